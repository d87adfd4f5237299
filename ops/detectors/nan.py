"""A loss that is no number any more, reported until finite losses are back or a resume goes before it."""

from __future__ import annotations

from math import isfinite
from typing import Any

from ops.detectors.evidence import State, answered, ladder, where
from ops.model import Finding, LogEvent, Sample, Severity, Snapshot
from ops.pace import stepped_back

HEALED = 20
"""So many finite rows running, and it was an overflow that passed."""


class NotFinite:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.onset: dict[str, Any] | None = state.get("onset")
        self.finite: int = state.get("finite", 0)
        last = state.get("last")
        self.last = Sample(step=last[0], loss=0.0, elapsed=last[1]) if last else None

    def dump(self) -> dict[str, Any]:
        last = [self.last.step, self.last.elapsed] if self.last else None
        return {"onset": self.onset, "finite": min(self.finite, HEALED), "last": last}

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if not isinstance(line, Sample):
            return
        if self.onset and stepped_back(self.last, line) and line.step <= self.onset["step"]:
            self.onset = None
        self.last = line
        self.finite = self.finite + 1 if _finite(line) else 0
        if not self.finite:
            self.onset = self.onset or _onset(line)
        elif self.finite >= HEALED:
            self.onset = None

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """`loss-nan` while the loss is NaN or infinite."""
        return (_finding(self.onset, snapshot),) if self.onset else ()


def _finite(sample: Sample) -> bool:
    """HF's Trainer logs a NaN loss as 0.0 (`logging_nan_inf_filter`): the gradient norm shows it."""
    norm = sample.grad_norm
    hidden = sample.loss == 0.0 and norm is not None and not isfinite(norm)
    return isfinite(sample.loss) and not hidden and not sample.fields.get("number of nan iterations")


def _onset(sample: Sample) -> dict[str, Any]:
    return {
        "step": sample.step,
        "line": sample.line,
        "offset": sample.offset,
        "loss": "NaN" if isfinite(sample.loss) else str(sample.loss),
    }


def _finding(onset: dict[str, Any], snapshot: Snapshot) -> Finding:
    note = answered(snapshot, onset["step"], onset["offset"])
    return Finding(
        kind="loss-nan",
        severity=Severity.WARNING if note else Severity.CRITICAL,
        summary=f"the loss is {onset['loss']} since step {onset['step']}{note}",
        evidence=(where(snapshot, onset["line"], onset["offset"]),),
        step=onset["step"],
        line=onset["line"] or None,
        runbook="loss-diverges",
        actions=ladder(snapshot, onset["step"], 1),
    )
