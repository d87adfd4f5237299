"""Is the run slower than it used to be, for good? A change point in seconds per step, by the run's own noise.

One slow step (a save, an evaluation, a hiccup of the file system) is none: the median of the last stretches of the log
has to lie above the earlier ones, and nearly all of them. A restart is no excuse: the usual slow-down is a bad node
that came with the new job.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from ops.detectors.evidence import State, where
from ops.detectors.window import Window
from ops.model import Finding, LogEvent, Sample, Severity, Snapshot
from ops.pace import seconds_between

SHARE = 0.05
"""Slower by less is not told."""
STRETCH = 60.0
"""Seconds that one measured stretch lasts at least: trainers print whole seconds."""
NOW, USUAL, READY = 12, 200, 30
"""Stretches that are compared, of those before them, and how many of those must be there."""
MOST = 10
"""Of the `NOW` last stretches so many must be slow."""
ACCEPTED = 300
"""Stretches after which the new pace is the usual one."""
ITERATION = {"elapsed time per iteration (ms)": 1e-3, "elapsed time per iteration (s)": 1.0}
"""Fields in which trainers tell it themselves (NVIDIA/Megatron-LM, training.py), in seconds."""


class Slowness:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.usual = Window(USUAL, state.get("usual", ()))
        self.now: list[list[Any]] = list(state.get("now", ()))
        self.stretch: list[Any] | None = state.get("stretch")
        self.slow: dict[str, Any] | None = state.get("slow")
        last = state.get("last")
        self.last = Sample(last[0], 0.0, elapsed=last[1], time=last[2]) if last else None

    def dump(self) -> dict[str, Any]:
        last = [self.last.step, self.last.elapsed, self.last.time] if self.last else None
        usual = list(self.usual.values)
        return {"usual": usual, "now": self.now, "stretch": self.stretch, "slow": self.slow, "last": last}

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if not isinstance(line, Sample):
            return
        before, self.last = self.last, line
        told = _told(line)
        seconds = told if told is not None else _between(before, line)
        if before is None or line.step <= before.step or seconds is None:
            self.stretch = None
            self._new_job(before, line)
            return
        self._lengthen(line, seconds, line.step - before.step)

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """`slow-down` while steps take longer than they used to."""
        return (_finding(self.slow, snapshot),) if self.slow else ()

    def _new_job(self, before: Sample | None, line: Sample) -> None:
        """What was measured of the job before belongs to the past, unless it is still being judged."""
        if before is not None and not self.slow:
            for _, _, _, pace in self.now:
                self.usual.push(pace)
            self.now = []

    def _lengthen(self, line: Sample, seconds: float, steps: int) -> None:
        """Add a row to the stretch; `seconds` a step."""
        stretch = self.stretch or [line.step, line.line, line.offset, 0.0, 0]
        stretch[3] += seconds * steps
        stretch[4] += steps
        self.stretch = stretch
        if stretch[3] >= STRETCH:
            self.stretch = None
            self._measured([*stretch[:3], stretch[3] / stretch[4]])

    def _measured(self, one: list[Any]) -> None:
        self.now.append(one)
        if len(self.now) > NOW:
            oldest = self.now.pop(0)
            if not self.slow:
                self.usual.push(oldest[3])
        if len(self.now) < NOW or len(self.usual) < READY:
            return
        if self.slow:
            self._still_slow()
        else:
            self._judge()

    def _judge(self) -> None:
        usual, bound = self.usual.median, _bound(self.usual)
        paces = sorted(one[3] for one in self.now)
        middle = (paces[NOW // 2 - 1] + paces[NOW // 2]) / 2
        slow = [one for one in self.now if one[3] > usual + bound / 2]
        if middle > usual + bound and len(slow) >= MOST:
            step, line, offset, _ = slow[0]
            self.slow = {"step": step, "line": line, "offset": offset, "usual": usual, "now": middle, "rows": 0}

    def _still_slow(self) -> None:
        assert self.slow is not None
        paces = sorted(one[3] for one in self.now)
        self.slow["now"], self.slow["rows"] = (paces[NOW // 2 - 1] + paces[NOW // 2]) / 2, self.slow["rows"] + 1
        if self.slow["now"] <= self.slow["usual"] + _bound(self.usual) / 2:
            self.slow = None
        elif self.slow["rows"] >= ACCEPTED:
            self.slow = None
            self.usual.clear()


def _told(sample: Sample) -> float | None:
    return next((sample.fields[name] * unit for name, unit in ITERATION.items() if name in sample.fields), None)


def _between(before: Sample | None, after: Sample) -> float | None:
    passed = seconds_between(before, after) if before else None
    steps = after.step - before.step if before else 0
    return passed / steps if passed is not None and steps > 0 else None


def _bound(usual: Window) -> float:
    """How far above the usual pace a median of `NOW` stretches must lie."""
    sigma = (usual.quantile(0.75) - usual.quantile(0.25)) / 1.349
    return max(SHARE * usual.median, 4 * 1.2533 * sigma * sqrt(1 / NOW + 1 / len(usual)))


def _finding(slow: dict[str, Any], snapshot: Snapshot) -> Finding:
    more = slow["now"] / slow["usual"] - 1
    return Finding(
        kind="slow-down",
        severity=Severity.WARNING,
        summary=f"a step takes {slow['now']:.3g} s since step {slow['step']}; before that it took {slow['usual']:.3g} s "
        f"(+{more:.0%})",
        evidence=(where(snapshot, slow["line"], slow["offset"]),),
        step=slow["step"],
        line=slow["line"] or None,
        runbook="slow-down",
        actions=("m4ops nodes", "m4ops plot"),
    )
