"""Does the learning rate go on where it should after a resume?

What a change in the journal promised counts first; without a promise, the run's own LR at that step. A
scheduler that was silently not restored restarts its warm-up, and the only sign of it is the logged LR
(huggingface/m4-logs, chronicles of the 80B run, experiments 9 and 10).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from math import isfinite
from typing import Any

from msgspec import Struct

from ops.detectors.evidence import State, change_between, where
from ops.detectors.promise import expected_lr
from ops.model import Change, Finding, LogEvent, Sample, Severity, Snapshot
from ops.pace import resumed

CHECKED = 10
"""Logged rows after a resume that are compared."""
TOLERANCE = 0.01 + 5e-4
"""Relative; the trainer's `%.3E` rounds by 5e-4."""
POINTS = 1024
"""Points kept of one branch's LR; older ones are thinned out."""
TINY = 1e-12

EMPTY: State = {"before": [], "now": [], "rows": 0, "last": None, "open": None, "change": ""}

Point = Sequence[Any]
"""step, lr"""


class Expected(Struct, frozen=True):
    """The LR that a row should have, how far it may lie from it, and who says so."""

    lr: float
    slack: float
    source: str
    certain: bool = True


class Rates:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.memory: dict[str, Any] = {**EMPTY, **state}

    def dump(self) -> dict[str, Any]:
        return self.memory

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if not isinstance(line, Sample) or line.lr is None or not isfinite(line.lr):
            return
        last = self.memory["last"]
        change = change_between(snapshot, last[2] if last else -1, line.offset)
        if change or (last and resumed(Sample(last[0], 0.0, elapsed=last[1]), line)):
            _begin(self.memory, change)
        _row(self.memory, line, snapshot)

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """`lr-mismatch` if the resumed LR is not the expected one."""
        return (_finding(self.memory["open"], snapshot),) if self.memory["open"] else ()


def _begin(memory: dict[str, Any], change: Change | None) -> None:
    """A new branch: the curve so far is what its first rows are compared with."""
    now = memory["now"]
    before = [p for p in memory["before"] if p[0] < now[0][0]] if now else memory["before"]
    memory.update(before=[*before, *now], now=[], rows=0, change=change.id if change else "")


def _row(memory: dict[str, Any], sample: Sample, snapshot: Snapshot) -> None:
    memory["rows"] += 1
    if memory["rows"] <= CHECKED and (expected := _expected(memory, sample, snapshot)):
        _compare(memory, sample, expected)
    memory["last"] = [sample.step, sample.elapsed, sample.offset]
    now = [*memory["now"], [sample.step, sample.lr]]
    memory["now"] = [*now[: POINTS // 2 : 2], *now[POINTS // 2 :]] if len(now) > POINTS else now


def _compare(memory: dict[str, Any], sample: Sample, expected: Expected) -> None:
    seen = sample.lr or 0.0
    if abs(seen - expected.lr) <= expected.slack:
        memory["open"] = None
    elif memory["open"] is None or memory["rows"] == 1:
        memory["open"] = {
            "step": sample.step,
            "line": sample.line,
            "offset": sample.offset,
            "seen": seen,
            "expected": expected.lr,
            "source": expected.source,
            "certain": expected.certain,
        }


def _expected(memory: dict[str, Any], sample: Sample, snapshot: Snapshot) -> Expected | None:
    changes = snapshot.history if isinstance(snapshot.history, tuple) else ()
    change = next((c for c in changes if c.id == memory["change"]), None)
    if change and change.expectation and change.expectation.lr:
        return _promised(memory, sample, change)
    # What an undo brings back is neither promised nor the last branch's.
    if change and change.undoes:
        return None
    return _own(memory["before"], sample.step, certain=isinstance(snapshot.history, tuple))


def _promised(memory: dict[str, Any], sample: Sample, change: Change) -> Expected | None:
    promise = change.expectation
    assert promise is not None
    if memory["rows"] > 1 and not promise.lr[0][0] <= sample.step <= promise.lr[-1][0]:
        return None
    lr = expected_lr(promise, sample.step)
    slack = max(promise.lr_tolerance, TOLERANCE) * abs(lr) + TINY
    return Expected(lr, slack, f"promised by change {change.id}")


def _own(curve: Sequence[Point], at: int, certain: bool) -> Expected | None:
    """The run's own LR at a step, between two of its points or just beyond the last one."""
    place = bisect_left(curve, at, key=lambda point: int(point[0]))
    if place < len(curve) and curve[place][0] == at:
        low = high = curve[place]
    elif 0 < place < len(curve):
        low, high = curve[place - 1], curve[place]
    elif place == len(curve) >= 2 and at - curve[-1][0] <= 3 * (curve[-1][0] - curve[-2][0]):
        low, high = curve[-2], curve[-1]
    else:
        return None
    slope = (high[1] - low[1]) / (high[0] - low[0]) if high[0] > low[0] else 0.0
    lr = low[1] + slope * (at - low[0])
    # Warm-up ends and steps of the schedule bend the line.
    bend = abs(slope) * (high[0] - low[0] if at < high[0] else at - high[0])
    slack = TOLERANCE * abs(lr) + bend + TINY
    return Expected(lr, slack, "the run's own LR there before", certain)


def _finding(seen: dict[str, Any], snapshot: Snapshot) -> Finding:
    doubt = "" if seen["certain"] else "; the journal could not be read, a change may have promised it"
    return Finding(
        kind="lr-mismatch",
        severity=Severity.CRITICAL if seen["certain"] else Severity.UNKNOWN,
        summary=f"the LR at step {seen['step']} is {seen['seen']:.4g}, "
        f"expected {seen['expected']:.4g} ({seen['source']}){doubt}",
        evidence=(where(snapshot, seen["line"], seen["offset"]),),
        step=seen["step"],
        line=seen["line"] or None,
        runbook="lr-mismatch",
        actions=("m4ops verify", "m4ops history"),
    )
