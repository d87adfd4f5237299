"""Signs before the loss: a gradient norm far above its usual, and fp16 steps that are skipped one after the other.

The norm was ten times its usual one or two steps before the loss moved (bigscience train/tr8 experiment 11, tr11);
a loss scale that kept falling came before the loss blew up (arXiv 2210.02414). At a run's start both are
normal: the loss scale is searched for, and the norm falls.
"""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

from ops.detectors.evidence import State, ladder, where
from ops.detectors.window import Window
from ops.model import Finding, LogEvent, Sample, Severity, Snapshot
from ops.pace import stepped_back

USUAL, READY = 100, 30
"""Norms of the running median, and how many it needs."""
FACTOR = 10.0
CALM = 10
"""Rows below the bound after which the alarm is over."""
SKIPPED = 3
"""Intervals running in which every step was skipped: a collapse."""
SMALL = 1.0
"""A loss scale at or below it has no room left (DeepSpeed's and Megatron's minimum)."""


class Gradients:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.norms = Window(USUAL, state.get("norms", ()))
        self.alarm: dict[str, Any] | None = state.get("alarm")
        self.skips: dict[str, Any] | None = state.get("skips")
        self.rows: int = state.get("rows", 0)
        last = state.get("last")
        self.last = Sample(step=last[0], loss=0.0, elapsed=last[1]) if last else None

    def dump(self) -> dict[str, Any]:
        last = [self.last.step, self.last.elapsed] if self.last else None
        norms = list(self.norms.values)
        return {"norms": norms, "alarm": self.alarm, "skips": self.skips, "rows": self.rows, "last": last}

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if isinstance(line, LogEvent):
            if line.kind == "skipped-steps" and self.rows:
                self._skipped(line)
            return
        if stepped_back(self.last, line):
            self.alarm = self.skips = None
        self.last, self.rows = line, self.rows + 1
        self.skips = self._still_skipping(line)
        if line.grad_norm is not None and isfinite(line.grad_norm):
            self._norm(line, line.grad_norm)

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """`grad-norm-spike` and `fp16-collapse`."""
        norm = (_norm_finding(self.alarm, snapshot),) if self.alarm else ()
        collapse = (_collapse(self.skips, snapshot),) if self.skips else ()
        return norm + collapse

    def _norm(self, sample: Sample, norm: float) -> None:
        usual = self.norms.median if len(self.norms) >= READY else 0.0
        high = usual > 0 and norm > FACTOR * usual
        if not high:
            self.norms.push(norm)
        if high and self.alarm is None:
            self.alarm = {**_place(sample), "usual": usual, "peak": norm, "calm": 0}
        elif self.alarm:
            self.alarm["peak"] = max(self.alarm["peak"], norm)
            self.alarm["calm"] = 0 if high else self.alarm["calm"] + 1
            self.alarm = None if self.alarm["calm"] >= CALM else self.alarm

    def _skipped(self, event: LogEvent) -> None:
        scale = float(event.value or "nan")
        step = self.last.step if self.last else 0
        place = {"step": step, "line": event.line, "offset": event.offset}
        self.skips = {**(self.skips or {**place, "rows": 0}), "scale": scale, "calm": 0}
        self.skips["rows"] += 1

    def _still_skipping(self, sample: Sample) -> dict[str, Any] | None:
        if self.skips is None:
            return None
        calm = self.skips["calm"] + 1
        return {**self.skips, "calm": calm} if calm < CALM else None


def _place(sample: Sample) -> dict[str, Any]:
    return {"step": sample.step, "line": sample.line, "offset": sample.offset}


def _norm_finding(seen: dict[str, Any], snapshot: Snapshot) -> Finding:
    return Finding(
        kind="grad-norm-spike",
        severity=Severity.WARNING,
        summary=f"the gradient norm rose to {seen['peak']:.4g} at step {seen['step']}; its usual is {seen['usual']:.4g}",
        evidence=(where(snapshot, seen["line"], seen["offset"]),),
        step=seen["step"],
        line=seen["line"] or None,
        runbook="loss-spikes",
        actions=("m4ops plot",),
    )


def _collapse(seen: dict[str, Any], snapshot: Snapshot) -> Finding:
    scale = "" if isnan(seen["scale"]) else f", the loss scale is {seen['scale']:g}"
    sure = seen["rows"] >= SKIPPED or seen["scale"] <= SMALL
    return Finding(
        kind="fp16-collapse",
        severity=Severity.CRITICAL if sure else Severity.WARNING,
        summary=f"all steps of {seen['rows']} logged intervals were skipped after step {seen['step']}{scale}",
        evidence=(where(snapshot, seen["line"], seen["offset"]),),
        step=seen["step"],
        line=seen["line"] or None,
        runbook="loss-diverges",
        actions=ladder(snapshot, seen["step"], 1),
    )
