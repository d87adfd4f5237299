"""Explosions inside the model: parameters, gradients, optimizer states and activations, module by module.

They often come before the loss. Of each series the largest absolute value counts, on a scale of doublings: it is measured
against its own level and its own changes from one logged step to the next, so that a norm that grows with the warm-up is
none, and one that doubles three times at once is. What is NaN or infinite is told at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, log2
from typing import Any

from ops.detectors.evidence import State
from ops.model import Finding, Measure, Severity, Snapshot

READY = 8
"""Values of a series without which it is not judged."""
DOUBLINGS, FAR = 3.0, 6.0
"""So far above its level two values running are an explosion, and so far one."""
USUAL = 8.0
"""The same, in usual changes from one value to the next."""
WEIGHT = 0.2
"""Of a new value in the level and in the usual change."""
ACCEPTED = 50
"""Values after which a higher level is the usual one."""
MOST = 20_000
"""Series that are followed."""
NAMED = 3


class Modules:
    """The detector, and what it remembers: of each series how many values, level, usual change, how many were high."""

    def __init__(self, state: State) -> None:
        self.series: dict[str, list[float]] = {name: list(kept) for name, kept in state.get("series", {}).items()}
        self.risen: dict[str, dict[str, Any]] = {name: dict(seen) for name, seen in state.get("risen", {}).items()}
        self.step: int = state.get("step", 0)

    def dump(self) -> dict[str, Any]:
        return {"series": self.series, "risen": self.risen, "step": self.step}

    def take(self, measure: Measure) -> None:
        """The next value of a series."""
        if measure.step < self.step:
            self.risen = {}
        self.step = measure.step
        name = f"{measure.module} {measure.series}"
        if not isfinite(measure.value):
            self.risen.setdefault(name, _rise(measure, measure.value, 0.0))
        elif measure.value and (name in self.series or len(self.series) < MOST):
            self._value(name, measure)

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """`series-explosion`, with the module where it began."""
        return (_finding(self.risen),) if self.risen else ()

    def _value(self, name: str, measure: Measure) -> None:
        value = log2(abs(measure.value))
        known = self.series.setdefault(name, [0, value, 0.0, 0])
        count, level, change, high = known
        above, bound = value - level, max(DOUBLINGS, USUAL * change)
        if name in self.risen:
            self._follow(name, measure, above < bound / 2, value)
        elif count >= READY and above > bound:
            known[3] = high + 1
            if known[3] >= 2 or above > max(FAR, 2 * bound):
                self.risen[name] = _rise(measure, measure.value, 2**level)
        else:
            kept = max(-bound, min(bound, above))
            weight = max(WEIGHT, 1 / (count + 1))
            known[:] = [
                count + 1,
                float(f"{level + weight * kept:.5g}"),
                float(f"{change + weight * (abs(kept) - change):.4g}"),
                0,
            ]

    def _follow(self, name: str, measure: Measure, back: bool, value: float) -> None:
        seen = self.risen[name]
        seen["rows"] += 1
        if not isfinite(seen["peak"]) or abs(measure.value) > seen["peak"]:
            seen["peak"] = abs(measure.value)
        if back or seen["rows"] >= ACCEPTED:
            self.series[name] = [READY, value if not back else self.series[name][1], self.series[name][2], 0]
            del self.risen[name]


def unread(troubles: Sequence[tuple[str, str]]) -> tuple[Finding, ...]:
    """`series-unknown`: files of such series that could not be read, or not whole, and why."""
    if not troubles:
        return ()
    first, why = troubles[0]
    more = f", and {len(troubles) - 1} more" if len(troubles) > 1 else ""
    return (
        Finding(
            kind="series-unknown",
            severity=Severity.UNKNOWN,
            summary=f"what the trainer logs of the model could not be read: {first}: {why}{more}",
            evidence=tuple(f"{file}: {why}" for file, why in troubles),
            runbook="log-stalled",
            actions=("m4ops status",),
        ),
    )


def _rise(measure: Measure, peak: float, level: float) -> dict[str, Any]:
    place = {"step": measure.step, "file": measure.file, "finite": isfinite(peak)}
    return {**place, "level": level, "peak": abs(peak) if isfinite(peak) else 0.0, "rows": 0}


def _finding(risen: dict[str, dict[str, Any]]) -> Finding:
    order = sorted(risen.items(), key=lambda item: (item[1]["step"], item[1]["finite"], -_growth(item[1])))
    name, first = order[0]
    more = f"; {len(order) - 1} more series since" if len(order) > 1 else ""
    return Finding(
        kind="series-explosion",
        severity=Severity.CRITICAL if any(not seen["finite"] for seen in risen.values()) else Severity.WARNING,
        summary=f"{name} {_said(first)} at step {first['step']}{more}",
        evidence=(f"{first['file']}: step {first['step']}", *(f"{n} {_said(seen)}" for n, seen in order[1:NAMED])),
        step=first["step"],
        runbook="loss-spikes",
        actions=("m4ops plot",),
    )


def _growth(seen: dict[str, Any]) -> float:
    return float(seen["peak"]) / (float(seen["level"]) or 1e-30)


def _said(seen: dict[str, Any]) -> str:
    if not seen["finite"]:
        return "is NaN or infinite"
    return f"rose from {seen['level']:.3g} to {seen['peak']:.3g}"
