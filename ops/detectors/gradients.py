"""Signs before the loss: a gradient norm far above its usual, and fp16 steps that are skipped one after the other.

The norm was several times its usual one or two steps before the loss moved (bigscience train/tr8 experiment 11, tr11);
a loss scale that kept falling came before the loss blew up (arXiv 2210.02414). The norm is a series of its own, judged by
its own noise. At a run's start both are normal: the loss scale is searched for, and the norm falls.
"""

from __future__ import annotations

from math import exp, isfinite, isnan, log
from typing import Any

from ops.detectors.evidence import State, ladder, where
from ops.detectors.level import Level, Rule
from ops.detectors.window import Window
from ops.model import Finding, LogEvent, Sample, Severity, Snapshot
from ops.pace import stepped_back

RULE = Rule(
    sigma=8, tail=2, share=0, least=log(2), far_sigma=20, far_tail=4, far_share=0, far_least=log(4), most=log(10)
)
"""Of the norm's logarithm: norms waver by factors, each run's by its own."""
READY = 30
"""Norms without which nothing is judged."""
CALM = 10
"""Rows below the bound after which the alarm is over."""
SKIPPED = 3
"""Intervals running in which every step was skipped: a collapse."""
SCALE = ("loss scale", "loss_scale", "scale")
SCALES, FALLEN = 100, 256.0
"""Loss scales of the usual one, and how many times smaller than it is a fall (eight halvings)."""
ACCEPTED = 200
"""Rows after which a higher norm is the usual one."""
TINY = 1e-30
SMALL = 1.0
"""A loss scale at or below it has no room left (DeepSpeed's and Megatron's minimum)."""


class Gradients:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.norms = Level(state.get("norms", {}), RULE)
        self.alarm: dict[str, Any] | None = state.get("alarm")
        self.skips: dict[str, Any] | None = state.get("skips")
        self.rows: int = state.get("rows", 0)
        self.scales = Window(SCALES, state.get("scales", ()))
        self.fell: dict[str, Any] | None = state.get("fell")
        last = state.get("last")
        self.last = Sample(step=last[0], loss=0.0, elapsed=last[1]) if last else None

    def dump(self) -> dict[str, Any]:
        last = [self.last.step, self.last.elapsed] if self.last else None
        kept = {"norms": self.norms.dump(), "alarm": self.alarm, "skips": self.skips, "rows": self.rows}
        return {**kept, "scales": list(self.scales.values), "fell": self.fell, "last": last}

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if isinstance(line, LogEvent):
            if line.kind == "skipped-steps" and self.rows:
                self._skipped(line)
            return
        if stepped_back(self.last, line):
            self.alarm = self.skips = self.fell = None
            self.norms.restart()
        self.last, self.rows = line, self.rows + 1
        self.skips = self._still_skipping(line)
        if line.grad_norm is not None and isfinite(line.grad_norm):
            self._norm(line, line.grad_norm)
        scale = next((line.fields[name] for name in SCALE if name in line.fields), None)
        if scale is not None and isfinite(scale):
            self._scale(line, scale)

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """`grad-norm-spike` and `fp16-collapse`."""
        norm = (_norm_finding(self.alarm, snapshot),) if self.alarm else ()
        seen = self.skips or self.fell
        collapse = (_collapse(seen, snapshot),) if seen else ()
        return norm + collapse

    def _norm(self, sample: Sample, norm: float) -> None:
        """In an alarm nothing is learned; else the norm is, as far as it is in bounds."""
        value = log(max(norm, TINY))
        if self.alarm:
            high = value > self.alarm["level"] + self.alarm["bound"]
            self.alarm["peak"] = max(self.alarm["peak"], norm)
            self.alarm["calm"], self.alarm["rows"] = 0 if high else self.alarm["calm"] + 1, self.alarm["rows"] + 1
            if self.alarm["calm"] >= CALM or self.alarm["rows"] >= ACCEPTED:
                self.alarm = None
                self.norms.restart()
        elif len(self.norms.noise) < READY or not self.norms.ready:
            self.norms.accept(value, self.norms.value if len(self.norms.near) else value)
        elif rise := self.norms.rises(value):
            level, bound, _ = rise
            usual = {"usual": exp(level), "level": level, "bound": bound}
            self.alarm = {**_place(sample), **usual, "peak": norm, "calm": 0, "rows": 0}

    def _scale(self, sample: Sample, scale: float) -> None:
        """A loss scale that fell far below its usual one, or to its minimum, has no room left to fall."""
        usual = self.scales.median if len(self.scales) >= READY else 0.0
        if usual <= SMALL or scale > usual / FALLEN:
            self.fell = None
            self.scales.push(scale)
        elif self.fell is None:
            self.fell = {**_place(sample), "rows": 0, "scale": scale, "usual": usual}
        else:
            self.fell["scale"] = min(scale, self.fell["scale"])

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
    fell = f"the loss scale fell from {seen.get('usual', 0):g} to {seen['scale']:g} since step {seen['step']}"
    skipped = f"all steps of {seen['rows']} logged intervals were skipped after step {seen['step']}{scale}"
    return Finding(
        kind="fp16-collapse",
        severity=Severity.CRITICAL if sure else Severity.WARNING,
        summary=skipped if seen["rows"] else fell,
        evidence=(where(snapshot, seen["line"], seen["offset"]),),
        step=seen["step"],
        line=seen["line"] or None,
        runbook="loss-diverges",
        actions=ladder(snapshot, seen["step"], 1),
    )
