"""Progress lines of an m4 training, and the branches a run's samples fall into."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from ops.model import Sample

ANSI = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
HEAD = re.compile(
    r"(?:\[(?P<time>\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d+)?\]\s*)?"
    r"iteration:\s*(?P<step>\d+)\s*/\s*(?P<total>\d+)\b"
)
NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d+)?(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)", re.IGNORECASE)
CLOCK = re.compile(r"(?:(\d+)(?:-|\s*days?,\s*))?(\d+):(\d\d):(\d\d)")
LOSS = ("per_token_loss", "loss", "lm loss", "lm_loss")
RATE = ("lr", "learning rate", "learning_rate")
NORM = ("grad_norm", "grad norm", "gnorm", "norm")


def clean(raw: bytes) -> str:
    """A line as people see it: without NUL bytes, ANSI colours, line ends; foreign bytes become U+FFFD."""
    return ANSI.sub(b"", raw.replace(b"\0", b"")).decode("utf-8", errors="replace").strip("\r\n")


def parse_sample(line: bytes, number: int = 0, offset: int = 0) -> Sample | None:
    """One progress line, or None if it is none or has no loss.

    The format is that of huggingface/smollm, vision/m4/training/trainer.py.
    What stands before `iteration:` on the line (`0: ` of `srun --label`, a tqdm bar) is ignored, but for the
    `[date time]` of the log formatter, which is taken as local time. `fields` holds every numeric metric.
    """
    text = clean(line)
    head = HEAD.search(text)
    if head is None:
        return None
    rest = text[head.end() :]
    glued = rest.find("iteration:")
    words = _metrics(rest if glued < 0 else rest[:glued])
    fields = {key: float(value) for key, value in words.items() if NUMBER.fullmatch(value)}
    loss = _first(fields, LOSS)
    if loss is None:
        return None
    return Sample(
        step=int(head["step"]),
        loss=loss,
        lr=_first(fields, RATE),
        line=number,
        offset=offset,
        time=datetime.fromisoformat(head["time"]).astimezone().timestamp() if head["time"] else None,
        elapsed=_seconds(words.get("elapsed time", "")),
        total=int(head["total"]),
        grad_norm=_first(fields, NORM),
        fields=fields,
    )


def _metrics(text: str) -> dict[str, str]:
    pairs = (part.rpartition(": ") for part in text.split("|"))
    return {key.strip(): value.strip() for key, colon, value in pairs if colon}


def _first(fields: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    return next((fields[name] for name in names if name in fields), None)


def _seconds(text: str) -> float | None:
    """`19:29:30`, `43:29:30`, `1-19:29:30` and `1 day, 19:29:30` are times a trainer may print."""
    match = CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


@dataclass(frozen=True)
class Branch:
    """Samples whose steps only grow. `kept` of them, the first ones, are still part of the run."""

    samples: tuple[Sample, ...]
    kept: int

    @property
    def alive(self) -> tuple[Sample, ...]:
        return self.samples[: self.kept]

    @property
    def discarded(self) -> tuple[Sample, ...]:
        """What a later branch trained again from an earlier step."""
        return self.samples[self.kept :]


def split_branches(samples: tuple[Sample, ...]) -> tuple[Branch, ...]:
    """Cut where the step goes back. A sample is discarded if a later branch began at its step or before."""
    runs: list[list[Sample]] = []
    for sample in samples:
        if not runs or _goes_back(runs[-1][-1], sample):
            runs.append([])
        runs[-1].append(sample)
    branches: list[Branch] = []
    limit: int | None = None
    for run in reversed(runs):
        kept = len(run) if limit is None else sum(sample.step < limit for sample in run)
        branches.append(Branch(tuple(run), kept))
        limit = run[0].step if limit is None else min(limit, run[0].step)
    return tuple(reversed(branches))


def _goes_back(before: Sample, after: Sample) -> bool:
    """The same step twice is a resume only if the job's clock says so; else it is one line printed twice."""
    if after.step != before.step:
        return after.step < before.step
    return None not in (before.elapsed, after.elapsed) and (after.elapsed or 0) < (before.elapsed or 0)
