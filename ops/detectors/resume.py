"""Is the job that resumed the one that was meant? Step, batch size, seed, optimizer and wandb run at its first points.

What a change in the journal promised counts first, then the checkpoint it must have taken, then the run as it was. The
learning rate has a detector of its own (`lr`), the other logged fields too (`shift`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from ops.detectors.evidence import State, change_between, where
from ops.detectors.lateness import saved_step
from ops.detectors.promise import verify
from ops.fields import BATCH
from ops.model import Change, Checkpoint, Finding, LogEvent, Sample, Severity, Snapshot, Started
from ops.pace import resumed

REMEMBERED = 200
"""Rows for which a resume that went wrong stays a finding."""
COMPARED = 5
"""First rows of a resume that are kept for the comparison."""


class Resume(Struct):
    """A resume, and how the run was just before it."""

    step: int
    line: int
    offset: int
    usual: int
    """Steps between two rows before it."""
    saved: int | None
    """The last save that the log tells of."""
    batch: float | None
    """Batch size before."""
    after: int
    """Byte of the last row before: a change after it is what the resume follows."""
    rows: int = 0
    first: list[dict[str, Any]] = field(default_factory=list)
    wandb: list[list[Any]] = field(default_factory=list)


class Difference(Struct, frozen=True):
    """One thing that is not as expected."""

    what: str
    expected: str
    seen: str
    grave: bool = False


class Resumes:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.last: list[Any] | None = state.get("last")
        self.usual: int = state.get("usual", 0)
        self.saved: int | None = state.get("saved")
        self.batch: float | None = state.get("batch")
        self.wandb: list[list[Any]] = list(state.get("wandb", ()))
        self.now = Resume(**state["now"]) if state.get("now") else None

    def dump(self) -> dict[str, Any]:
        now = to_builtins(self.now) if self.now else None
        kept = {"last": self.last, "usual": self.usual, "saved": self.saved, "batch": self.batch}
        return {**kept, "wandb": self.wandb, "now": now}

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if isinstance(line, Sample):
            self._row(line, snapshot)
        elif line.kind == "wandb-id" and line.value:
            told = [line.value, line.line, line.offset]
            self.wandb = [*self.wandb, told][-COMPARED:]
            if self.now and self.now.rows <= COMPARED:
                self.now.wandb.append(told)
        elif (saved := saved_step(line)) is not None:
            self.saved = saved

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """`resume-differs`: what is not as it was promised, or as the checkpoint has it."""
        found = tuple(_differences(self.now, snapshot)) if self.now else ()
        return (_finding(self.now, found, snapshot),) if self.now and found else ()

    def _row(self, sample: Sample, snapshot: Snapshot) -> None:
        last = self.last
        if last and (
            resumed(Sample(last[0], 0.0, elapsed=last[1]), sample) or change_between(snapshot, last[2], sample.offset)
        ):
            self.now = Resume(
                sample.step, sample.line, sample.offset, self.usual, self.saved, self.batch, last[2], wandb=self.wandb
            )
        elif last and sample.step > last[0]:
            self.usual = sample.step - last[0]
        if self.now:
            self.now.rows += 1
            if self.now.rows <= COMPARED:
                self.now.first.append(_plain(sample))
            self.now = self.now if self.now.rows <= REMEMBERED else None
        self.batch = _batch(sample) or self.batch
        self.last, self.wandb = [sample.step, sample.elapsed, sample.offset], []


def _plain(sample: Sample) -> dict[str, Any]:
    return {"step": sample.step, "line": sample.line, "offset": sample.offset, "batch": _batch(sample)}


def _batch(sample: Sample) -> float | None:
    return next((sample.fields[name] for name in BATCH if name in sample.fields), None)


def _differences(now: Resume, snapshot: Snapshot) -> Iterator[Difference]:
    first = now.first[0]
    change = change_between(snapshot, now.after, now.offset)
    taken = _taken(now, snapshot)
    infos = _infos(taken)
    yield from _promised(now, change) if change and change.expectation else _unasked(now, change, taken)
    yield from _batch_size(now, first["batch"], infos)
    if isinstance(snapshot.started, Started) and infos is not None:
        yield from _job(snapshot.started, infos, change)


def _promised(now: Resume, change: Change) -> Iterator[Difference]:
    assert change.expectation is not None
    rows = [Sample(row["step"], 0.0, line=row["line"], offset=row["offset"]) for row in now.first]
    said = [LogEvent("wandb-id", line, offset, "", value) for value, line, offset in now.wandb]
    for check in verify(replace(change.expectation, lr=()), rows, said):
        if check.verdict == "no":
            yield Difference(check.what, f"{check.expected} (promised by change {change.id})", check.seen, grave=True)


def _unasked(now: Resume, change: Change | None, taken: Checkpoint | None) -> Iterator[Difference]:
    """Nobody promised anything: it goes on from the last save, in the wandb run of its checkpoint."""
    if change is None and now.saved is not None and now.step <= now.saved - now.usual:
        yield Difference("step", f"one just above {now.saved}, the last save", str(now.step), grave=taken is None)
    of_checkpoint = taken.wandb_id if taken else None
    new = [value for value, _, _ in now.wandb]
    if change is None and isinstance(of_checkpoint, str) and of_checkpoint and new and new[0] != of_checkpoint:
        yield Difference("wandb run", of_checkpoint, new[0])


def _batch_size(now: Resume, seen: float | None, infos: dict[str, Any] | None) -> Iterator[Difference]:
    gbs = infos.get("gbs_running") if infos else None
    of_checkpoint = gbs.get("global_batch_size_current") if isinstance(gbs, dict) else None
    expected = of_checkpoint if isinstance(of_checkpoint, int | float) else now.batch
    if seen is not None and expected is not None and seen != expected:
        source = "the checkpoint's" if expected is of_checkpoint else "it was before"
        yield Difference("batch size", f"{expected:g} ({source})", f"{seen:g}", grave=True)


def _job(started: Started, infos: dict[str, Any], change: Change | None) -> Iterator[Difference]:
    """What the job's own config says against the checkpoint's infos."""
    seed = infos.get("seed")
    if isinstance(seed, int) and started.seed is not None and started.seed != seed:
        yield Difference("seed", f"{seed} (the checkpoint's)", f"{started.seed} in {started.file.name}")
    asked = bool(change and (change.wish.get("kind") == "reset-optimizer" or change.wish.get("reset_optimizer")))
    if started.optimizer is False and not asked:
        seen = f"fresh: load_optimizer_states is False in {started.file.name}"
        yield Difference("optimizer", "the checkpoint's", seen, grave=True)


def _taken(now: Resume, snapshot: Snapshot) -> Checkpoint | None:
    """The checkpoint that the resume must have taken: the last whole one before its first row, and not far before."""
    before = [c for c in snapshot.checkpoints or () if c.complete and c.step < now.step]
    newest = max(before, key=lambda c: c.step, default=None)
    return newest if newest and newest.step >= now.step - 2 * max(now.usual, 1) else None


def _infos(checkpoint: Checkpoint | None) -> dict[str, Any] | None:
    if checkpoint is None or not isinstance(checkpoint.infos, str):
        return None
    try:
        infos = json.loads(checkpoint.infos)
    except ValueError:
        return None
    return infos if isinstance(infos, dict) else None


def _finding(now: Resume, found: tuple[Difference, ...], snapshot: Snapshot) -> Finding:
    told = "; ".join(f"{d.what}: expected {d.expected}, seen {d.seen}" for d in found)
    blind = not isinstance(snapshot.history, tuple)
    doubt = "; the journal could not be read, a change may have asked for it" if blind else ""
    grave = Severity.CRITICAL if any(d.grave for d in found) else Severity.WARNING
    return Finding(
        kind="resume-differs",
        severity=Severity.UNKNOWN if blind else grave,
        summary=f"the resume at step {now.step} is not what was to be expected: {told}{doubt}",
        evidence=(where(snapshot, now.line, now.offset),),
        step=now.step,
        line=now.line or None,
        runbook="resume-differs",
        actions=("m4ops verify", "m4ops history"),
    )
