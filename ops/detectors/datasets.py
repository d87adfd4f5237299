"""Which data made the loss rise: every data set's own loss, judged by its own noise.

A spike of the whole is then said with the data sets that rose (`per_token_loss/cm4` beside `per_token_loss`), and a rise of
one of them alone is a finding though the whole hardly moves.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from ops.detectors.evidence import State, where
from ops.detectors.level import Level, Rule
from ops.fields import dataset
from ops.model import Finding, Measure, Sample, Severity, Snapshot
from ops.quantiles import median

RULE = Rule(sigma=6.0, tail=2.0, share=0.03, far_sigma=30.0, far_tail=6.0, far_share=0.3)
"""A part is noisier than the whole, and there are many of them."""
BACK = 5
"""Rows whose median says whether it is back."""
ACCEPTED = 200
"""Rows after which the higher level is its own."""
MOST = 100
"""Data sets that are followed."""
NAMED = 3


class Datasets:
    """What is remembered of each data set."""

    def __init__(self, state: State) -> None:
        self.levels = {name: Level(kept, RULE) for name, kept in state.get("levels", {}).items()}
        self.risen: dict[str, dict[str, Any]] = {name: dict(seen) for name, seen in state.get("risen", {}).items()}
        self.logged: bool = state.get("logged", False)
        """Whether the log itself tells of them."""
        self.step: int = state.get("step", 0)
        """The last one told beside it."""

    def dump(self) -> dict[str, Any]:
        levels = {name: level.dump() for name, level in self.levels.items()}
        return {"levels": levels, "risen": self.risen, "logged": self.logged, "step": self.step}

    def resume(self) -> None:
        """After a resume the data is in another order."""
        for level in self.levels.values():
            level.restart()
        self.risen = {}

    def take(self, sample: Sample) -> None:
        for field, value in sample.fields.items():
            if name := dataset(field):
                self.logged = True
                self._row(name, value, {"step": sample.step, "line": sample.line, "offset": sample.offset})

    def beside(self, measure: Measure) -> None:
        """A data set's loss from a file beside the log. It counts where the log tells of none."""
        if self.logged:
            return
        if measure.step < self.step:
            self.resume()
        self.step = measure.step
        self._row(measure.module, measure.value, {"step": measure.step, "line": 0, "file": measure.file})

    def _row(self, name: str, value: float, place: dict[str, Any]) -> None:
        if not isfinite(value) or (name not in self.levels and len(self.levels) >= MOST):
            return
        level = self.levels.setdefault(name, Level({}, RULE))
        if name in self.risen:
            self._follow(name, value, level)
        elif not level.ready:
            level.accept(value, level.value if len(level.near) else value)
        elif rise := level.rises(value):
            before, bound, _ = rise
            self.risen[name] = {**place, "level": before, "bound": bound, "peak": value, "recent": [value], "rows": 0}

    def _follow(self, name: str, value: float, level: Level) -> None:
        seen = self.risen[name]
        seen["rows"], seen["peak"] = seen["rows"] + 1, max(seen["peak"], value)
        seen["recent"] = [*seen["recent"], value][-BACK:]
        back = seen["level"] + max(0.25 * (seen["peak"] - seen["level"]), 0.3 * seen["bound"])
        if len(seen["recent"]) == BACK and median(seen["recent"]) <= back:
            level.flags = []
            del self.risen[name]
        elif seen["rows"] >= ACCEPTED:
            level.restart()
            del self.risen[name]

    @property
    def named(self) -> str:
        """The data sets that rose, the one that rose most first; empty when none did."""
        most = sorted(self.risen.items(), key=lambda item: item[1]["level"] - item[1]["peak"])
        told = [f"{name} from {seen['level']:.4g} to {seen['peak']:.4g}" for name, seen in most]
        return ", ".join(told[:NAMED]) + (f" and {len(told) - NAMED} more" if len(told) > NAMED else "")

    def finding(self, snapshot: Snapshot) -> Finding:
        """`dataset-spike`: some rose, the whole did not."""
        first = min(self.risen.values(), key=lambda seen: int(seen["step"]))
        return Finding(
            kind="dataset-spike",
            severity=Severity.WARNING,
            summary=f"the loss of a data set rose at step {first['step']}, the whole did not: {self.named}",
            evidence=(_place(first, snapshot),),
            step=first["step"],
            line=first["line"] or None,
            runbook="loss-spikes",
            actions=("m4ops plot",),
        )


def _place(seen: dict[str, Any], snapshot: Snapshot) -> str:
    return f"{seen['file']}: step {seen['step']}" if "file" in seen else where(snapshot, seen["line"], seen["offset"])
