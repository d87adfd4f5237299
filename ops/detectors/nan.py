"""A loss that is no number any more, reported until finite losses are back or a resume goes before it."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any

from ops.detectors.evidence import State, answered, ladder, stepped_back, where
from ops.model import Finding, LogEvent, Sample, Severity, Snapshot

HEALED = 20
"""So many finite rows running, and it was an overflow that passed."""


def step(
    state: State, samples: Iterable[Sample], events: Iterable[LogEvent], snapshot: Snapshot
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Take in new samples: the new state, and `loss-nan` while the loss is NaN or infinite."""
    onset: dict[str, Any] | None = state.get("onset")
    last = state.get("last")
    finite: int = state.get("finite", 0)
    before = Sample(step=last[0], loss=0.0, elapsed=last[1]) if last else None
    for sample in samples:
        if onset and stepped_back(before, sample) and sample.step <= onset["step"]:
            onset = None
        before = sample
        finite = finite + 1 if isfinite(sample.loss) else 0
        if not finite:
            onset = onset or _onset(sample)
        elif finite >= HEALED:
            onset = None
    seen = [before.step, before.elapsed] if before else None
    new = {"onset": onset, "finite": min(finite, HEALED), "last": seen}
    return new, (_finding(onset, snapshot),) if onset else ()


def _onset(sample: Sample) -> dict[str, Any]:
    return {"step": sample.step, "line": sample.line, "offset": sample.offset, "loss": str(sample.loss)}


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
