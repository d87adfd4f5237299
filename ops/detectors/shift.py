"""Does the run log other values after a resume than before? The first 50 rows of every field against the 200 before.

A job that resumes reads its data in another order, maybe from another place. That shows in fields nobody watches: in
the chronicle of the 80B run `image_to_text_ratio` had moved (huggingface/m4-logs). A loss that is suddenly too good is the
other sign: the data has been seen already, the sampler was not moved on.

Judged by the field's own habit: by how far the medians of earlier stretches of the same length lay from each other.
Losses, learning rate and gradient norm are judged elsewhere, and a counter is no measurement.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite, sqrt
from shlex import quote
from typing import Any

from ops.detectors.evidence import State, change_between, where
from ops.fields import LOSS, NORM, RATE, STEP, dataset
from ops.model import Finding, LogEvent, Sample, Severity, Snapshot
from ops.pace import resumed
from ops.quantiles import median, quartiles

BEFORE, AFTER = 200, 50
"""Rows that are compared."""
LOOKS = (10, 20, AFTER)
"""Rows after which they are."""
ENOUGH = 40
"""Rows of a field that make a habit."""
REMEMBERED = 300
"""Rows after a resume for which the finding stays."""
SHARE = 0.02
"""A shift of a smaller share is none."""
TOO_GOOD, FIRST_LOOK = 0.015, 20
"""The share by which a loss is too good, and the rows it takes to say so."""
ELSEWHERE = {*LOSS, *RATE, *NORM, *STEP}
MOST = 200
"""Fields that are followed."""


class Shifts:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.steps: deque[int] = deque(state.get("steps", ()), BEFORE)
        self.fields: dict[str, deque[float | None]] = {k: deque(v, BEFORE) for k, v in state.get("fields", {}).items()}
        self.habits: dict[str, dict[str, Any]] = dict(state.get("habits", {}))
        self.resume: dict[str, Any] | None = state.get("resume")
        self.moved: dict[str, list[float]] = dict(state.get("moved", {}))
        self.rows: int = state.get("rows", 0)
        self.last: list[Any] | None = state.get("last")

    def dump(self) -> dict[str, Any]:
        fields = {name: list(values) for name, values in self.fields.items()}
        kept = {"steps": list(self.steps), "fields": fields, "habits": self.habits, "resume": self.resume}
        return {**kept, "moved": self.moved, "rows": self.rows, "last": self.last}

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if not isinstance(line, Sample):
            return
        last = self.last
        if last and (
            resumed(Sample(last[0], 0.0, elapsed=last[1]), line) or change_between(snapshot, last[2], line.offset)
        ):
            self._resume(line)
        self.last = [line.step, line.elapsed, line.offset]
        self._keep(line)
        if self.resume:
            self.rows += 1
            if self.rows in LOOKS:
                self._look()
            if self.rows > REMEMBERED:
                self.resume, self.moved = None, {}

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """`field-moved` and `data-repeated`, for some hundred rows after a resume."""
        if not self.resume or not self.moved:
            return ()
        loss = self.moved.get("")
        fields = {name: pair for name, pair in self.moved.items() if name}
        told = (_fields_finding(self.resume, fields, snapshot),) if fields else ()
        return (*told, _loss_finding(self.resume, loss, snapshot)) if loss else told

    def _keep(self, sample: Sample) -> None:
        """The row, under '' its loss."""
        row = {name: value for name, value in sample.fields.items() if name not in ELSEWHERE and not dataset(name)}
        row[""] = sample.loss
        for name in row if len(self.fields) < MOST else ():
            self.fields.setdefault(name, deque([None] * len(self.steps), BEFORE))
        self.steps.append(sample.step)
        for name, values in list(self.fields.items()):
            value = row.get(name)
            values.append(None if value is None or not isfinite(value) else float(f"{value:.6g}"))
            if value is None and all(v is None for v in values):
                del self.fields[name]

    def _resume(self, sample: Sample) -> None:
        """From here on it is compared; what belongs to steps that are trained again says nothing of the loss."""
        earlier = [step < sample.step for step in self.steps]
        near = bool(self.steps) and sample.step <= max(self.steps) + BEFORE
        self.habits, self.moved, self.rows = {}, {}, 0
        for name, values in self.fields.items():
            kept = [v for v, good in zip(values, earlier, strict=True) if good or name]
            if (name or near) and (habit := _habit([v for v in kept if v is not None])):
                self.habits[name] = habit
        self.resume = {"step": sample.step, "line": sample.line, "offset": sample.offset, "lr": sample.lr}
        self.steps.clear()
        self.fields = {}

    def _look(self) -> None:
        self.moved = {}
        for name, habit in self.habits.items():
            values = [v for v in list(self.fields.get(name, ()))[-self.rows :] if v is not None]
            if 2 * len(values) >= self.rows and not _counts(values):
                now = median(values)
                moved = _too_good(habit, now, self.rows) if not name else _moved(habit, now, self.rows)
                if moved:
                    self.moved[name] = [habit["median"] if name else habit["latest"], now]


def _habit(values: Sequence[float]) -> dict[str, Any] | None:
    """What is usual of a field: its median, its noise, and how far the medians of stretches lie from it."""
    if len(values) < ENOUGH or _counts(values):
        return None
    middle = median(values)
    low, high = quartiles(values)
    return {
        "median": middle,
        "sigma": (high - low) / 1.349,
        "latest": median(values[-FIRST_LOOK:]),
        "spread": [_spread(values, middle, size) for size in LOOKS],
    }


def _spread(values: Sequence[float], middle: float, size: int) -> float:
    """The largest distance of a stretch's median from that of all."""
    starts = range(len(values) % size, len(values) - size + 1, size)
    return max((abs(median(values[i : i + size]) - middle) for i in starts), default=0.0)


def _counts(values: Sequence[float]) -> bool:
    """Only upwards: a counter of tokens, of seconds, of samples."""
    rises = [b > a for a, b in pairwise(values)]
    return all(b >= a for a, b in pairwise(values)) and 2 * sum(rises) >= len(rises) > 0


def _bound(habit: dict[str, Any], rows: int) -> float:
    """How far a median of `rows` values may lie off."""
    spread: float = habit["spread"][LOOKS.index(rows)]
    return max(6 * 1.2533 * float(habit["sigma"]) / sqrt(rows), 1.5 * spread)


def _moved(habit: dict[str, Any], now: float, rows: int) -> bool:
    bound = max(_bound(habit, rows), SHARE * abs(habit["median"]))
    return bool(abs(now - habit["median"]) > bound and abs(now - habit["latest"]) > bound / 2)


def _too_good(habit: dict[str, Any], now: float, rows: int) -> bool:
    if rows < FIRST_LOOK:
        return False
    latest: float = habit["latest"]
    return bool(latest - now > max(_bound(habit, rows), TOO_GOOD * abs(latest)))


def _fields_finding(resume: dict[str, Any], moved: dict[str, list[float]], snapshot: Snapshot) -> Finding:
    told = [f"{name} {before:.4g} → {after:.4g}" for name, (before, after) in sorted(moved.items(), key=_by_share)]
    more = f" and {len(told) - 4} more" if len(told) > 4 else ""
    return Finding(
        kind="field-moved",
        severity=Severity.WARNING,
        summary=f"since the resume at step {resume['step']} the log shows other values: {', '.join(told[:4])}{more} "
        "(medians)",
        evidence=(where(snapshot, resume["line"], resume["offset"]), *told[4:]),
        step=resume["step"],
        line=resume["line"] or None,
        runbook="resume-differs",
        actions=("m4ops history", f"m4ops plot --field {quote(min(moved.items(), key=_by_share)[0])}"),
    )


def _by_share(item: tuple[str, list[float]]) -> float:
    """The largest shift first."""
    before, after = item[1]
    return -abs(after - before) / (abs(before) or 1e-12)


def _loss_finding(resume: dict[str, Any], pair: list[float], snapshot: Snapshot) -> Finding:
    before, after = pair
    return Finding(
        kind="data-repeated",
        severity=Severity.WARNING,
        summary=f"the loss is too good since the resume at step {resume['step']}: {after:.4g}, before it {before:.4g}; "
        "was this data seen already?",
        evidence=(where(snapshot, resume["line"], resume["offset"]),),
        step=resume["step"],
        line=resume["line"] or None,
        runbook="resume-differs",
        actions=("m4ops plot", "m4ops verify"),
    )
