"""What several detectors say in the same way: where it is seen, and where to rewind to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ops.model import Change, LogView, Snapshot

State = Mapping[str, Any]
"""A detector's memory: plain JSON, rebuilt by feeding the log from its start to an empty one."""


def where(snapshot: Snapshot, line: int, offset: int) -> str:
    """`file:line`, or the byte where lines were not counted; a byte that the log has not is one it had before its rotation."""
    if line and isinstance(snapshot.log, LogView) and offset >= snapshot.log.size:
        return f"{snapshot.log.path}, line {line} before it was rotated"
    if offset < 0 and isinstance(snapshot.log, LogView) and snapshot.log.source:
        return str(snapshot.log.source)
    log = snapshot.log.path if isinstance(snapshot.log, LogView) else snapshot.run.log
    return f"{log or 'log'}:{line}" if line else f"{log or 'log'}, byte {offset}"


def rewind_target(snapshot: Snapshot, onset: int, margin: int) -> int | None:
    """The last sound checkpoint `margin` steps before `onset`, else the last one before it at all."""
    checkpoints = snapshot.checkpoints if isinstance(snapshot.checkpoints, tuple) else ()
    steps = sorted(c.step for c in checkpoints if c.sound and c.step < onset)
    safe = [step for step in steps if step <= onset - margin]
    found = safe or steps
    return found[-1] if found else None


def ladder(snapshot: Snapshot, onset: int, margin: int) -> tuple[str, ...]:
    """The commands of the intervention ladder's first two rungs for a loss gone wrong at `onset`."""
    target = rewind_target(snapshot, onset, margin)
    if target is None:
        return ("m4ops checkpoints",)
    return (f"m4ops rewind --to {target}", f"m4ops rewind --to {target} --scale-lr 0.75")


def change_between(snapshot: Snapshot, low: int, high: int) -> Change | None:
    """The latest change that was applied, or undone, between two bytes of the log."""
    changes = snapshot.history
    if not changes or not isinstance(changes, tuple):
        return None
    done = (change for change in reversed(changes) if change.status in ("applied", "undone"))
    return next((change for change in done if low < (change.log_offset or 0) <= high), None)


def answered(snapshot: Snapshot, onset: int, offset: int) -> str:
    """A note if a change after the log's byte `offset` went back to before `onset`: the resume is awaited."""
    changes = snapshot.history if isinstance(snapshot.history, tuple) else ()
    for change in reversed(changes):
        resume = change.expectation.resume_step if change.expectation else None
        if change.status == "applied" and resume is not None and (change.log_offset or 0) > offset:
            return f"; change {change.id} went back to step {resume}, no resume logged yet" if resume < onset else ""
    return ""
