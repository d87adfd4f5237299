"""Progress lines, followed from one to the next, and the branches a run's samples fall into."""

from __future__ import annotations

import re
from datetime import datetime

from msgspec import Struct

from ops.fields import NORM, RATE
from ops.logs.formats import BAR, FORMATS, LATER, Progress, first, read_line
from ops.logs.template import Columns, Template
from ops.model import LogEvent, Sample
from ops.pace import stepped_back

ANSI = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
TIME = re.compile(r"\[(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,]\d+)?\]\s*$")
CLOCK = re.compile(r"(?:(\d+)(?:-|\s*days?,\s*))?(\d+):(\d\d):(\d\d)")


def clean(raw: bytes) -> str:
    """A line as people see it: without NUL bytes, ANSI colours, line ends; foreign bytes become U+FFFD."""
    return ANSI.sub(b"", raw.replace(b"\0", b"")).decode("utf-8", errors="replace").strip("\r\n")


class Place(Struct):
    """Where in its progress a log is: what the next line may depend on."""

    format: int = len(FORMATS)
    """The most trusted format seen; less trusted ones are not read any more."""
    step: int = 0
    """The last step read."""
    total: int | None = None
    open: bool = False
    """A header told `step`, and its loss is still to come."""
    epoch: int = 0
    base: int = 0
    """Steps before this epoch, where each begins its count anew."""
    said: tuple[int, float, float | None] | None = None
    """Step, loss and clock of the last row: a rank of each node may print it."""


def parse_sample(line: bytes, number: int = 0, offset: int = 0) -> Sample | None:
    """One progress line by itself, or None if it is none or has no loss."""
    found = follow(line, Place(), number, offset)
    return found if isinstance(found, Sample) else None


def follow(
    line: bytes,
    place: Place,
    number: int = 0,
    offset: int = 0,
    before: bytes = b"",
    own: Template | Columns | None = None,
) -> Sample | LogEvent | None:
    """The sample that a line tells or completes; `skipped-steps` if all its steps were; else None.

    What stands before it on the line (`0: ` of `srun --label`, a tqdm bar) is ignored, but for the `[date time]` of
    m4's log formatter, which is taken as local time. `fields` holds every numeric metric. `before` is what stood on
    the line before a carriage return: the bar that knows the step of a Trainer's line. With a template or columns of its
    `own` the log has no other progress lines.
    """
    text = clean(line)
    if own:
        told = own.read(text)
        return _sample(told, told.step or 0, told.fields["loss"], text, (number, offset)) if told else None
    if place.open and (later := LATER.search(text)):
        place.open = False
        return Sample(place.step, float(later[1].replace(",", "")), line=number, offset=offset, total=place.total)
    found = read_line(text, place.format)
    if found is None:
        return None
    index, progress = found
    place.format = min(place.format, index)
    step = progress.step if progress.step is not None else _bar(before) or place.step + 1
    if progress.epoch is not None:
        step = _of_all(progress.epoch, step, place)
    place.step, place.total, place.open = step, progress.total, FORMATS[index].opens
    if place.open:
        return None
    loss = progress.loss
    if loss is None:
        scale = progress.fields.get("loss scale")
        return LogEvent("skipped-steps", number, offset, text.strip(), "" if scale is None else f"{scale:g}")
    sample = _sample(progress, step, loss, text, (number, offset))
    last, place.said = place.said, (step, loss, sample.elapsed)
    return None if progress.step is not None and place.said == last else sample


def _sample(progress: Progress, step: int, loss: float, text: str, where: tuple[int, int]) -> Sample:
    at = text.find("iteration")
    time = TIME.search(text, 0, at) if at > 0 else None
    stamp = progress.fields.get("timestamp") or progress.fields.get("time_ms", 0.0) / 1000
    known = stamp if 1e9 < stamp < 1e10 else None
    return Sample(
        step=step,
        loss=loss,
        lr=first(progress.fields, RATE),
        line=where[0],
        offset=where[1],
        time=datetime.fromisoformat(time[1]).timestamp() if time else known,
        elapsed=_seconds(progress.elapsed),
        total=progress.total,
        grad_norm=first(progress.fields, NORM),
        fields=progress.fields,
    )


def _of_all(epoch: int, step: int, place: Place) -> int:
    """The step counted over all epochs: one that a later epoch tells again is the later epoch's own."""
    if epoch > place.epoch and step + place.base <= place.step:
        place.base = place.step
    elif epoch < place.epoch:  # another job
        place.base = place.base * epoch // place.epoch
    place.epoch = epoch
    return step + place.base


def _bar(before: bytes) -> int | None:
    bars = BAR.findall(clean(before))
    return int(bars[-1][0]) if bars else None


def _seconds(text: str) -> float | None:
    """`19:29:30`, `43:29:30`, `1-19:29:30` and `1 day, 19:29:30` are times a trainer may print."""
    match = CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(group or 0) for group in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


class Branch(Struct, frozen=True):
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
        if not runs or stepped_back(runs[-1][-1], sample):
            runs.append([])
        runs[-1].append(sample)
    branches: list[Branch] = []
    limit: int | None = None
    for run in reversed(runs):
        kept = len(run) if limit is None else sum(sample.step < limit for sample in run)
        branches.append(Branch(tuple(run), kept))
        limit = run[0].step if limit is None else min(limit, run[0].step)
    return tuple(reversed(branches))
