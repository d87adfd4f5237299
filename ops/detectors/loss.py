"""Loss spikes and divergences, judged by the run's own noise.

A loss is measured against the median of the last accepted ones. It stands out when it lies above by more than the
run's noise, its tail and a share of the level allow; two such rows running, or three of six, raise `loss-spike`.
What becomes of it is told from where the loss goes then (`ops.detectors.episode`). What creeps is seen by slower tests: the
median of the last 40 rows against earlier such medians, and the level against the lowest one yet. They begin anew after a
spike, which says nothing of a drift. Outliers enter the statistics clipped or not at all, and a step that goes back (a
resume) clears the short memory.

Spikes rise within a few rows and divergences slowly: "a spike that tends to recover is when it happens instantly"
(huggingface/m4-logs, chronicles of the 80B run).
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from math import isfinite, sqrt
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from ops.detectors.datasets import Datasets
from ops.detectors.episode import FEW, Episode
from ops.detectors.evidence import State, answered, ladder, where
from ops.detectors.level import ENOUGH, NEAR, NOISE, Level, Rule, grain, sigma_of
from ops.detectors.window import Window
from ops.model import Finding, LogEvent, Sample, Severity, Snapshot
from ops.pace import stepped_back
from ops.quantiles import median

SLOW, PAST = 40, 400
"""Rows: of the slow test's median, of its earlier medians."""
GUARD = 20
"""Rows of a run before anything but the comparison with its first loss is judged."""
CLIMB = 4
"""Rises one after the other that are no noise, young as the run is."""
SETTLED = 0.05
"""A lasting shift below this share of the level is taken as the new level after `NOISE` rows."""
CREEP = 0.006
"""A slow rise of a smaller share of the level is none."""
SLOW_GRAINS = 1.5
"""Units of what the losses are rounded to: a median that moves by one of them may have moved by next to nothing."""
CREEPS = "loss-creep:"
"""The key of what the slow tests see: a jump meanwhile is a finding of its own."""
RULE = Rule(step=1.2)
SURE = 10, 0.05
"""Where the noise is not known but the run is past `GUARD`: times what rows differ by, and a share of the level, that two
rows running must lie above it."""


class Losses:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.rows: int = state.get("rows", 0)
        self.first: float | None = state.get("first")
        self.begun: list[int] = list(state.get("begun", ()))
        self.level = Level(state.get("level", {}), RULE)
        self.past = Window(PAST, (value for _, value in state.get("past", ())))
        self.past_steps = deque((int(step) for step, _ in state.get("past", ())), PAST)
        self.fresh: list[list[Any]] = list(state.get("fresh", ()))
        self.slow_rows = Window(SLOW, state.get("slow_rows", ()))
        self.steps: deque[list[int]] = deque(state.get("steps", ()), 3 * SLOW)
        self.fast = Episode(**state["fast"]) if state.get("fast") else None
        self.slow = Episode(**state["slow"]) if state.get("slow") else None
        self.lowest: list[float] | None = state.get("lowest")
        self.datasets = Datasets(state.get("datasets", {}))
        self.before: float | None = state.get("before")
        last = state.get("last")
        self.last = Sample(step=last[0], loss=0.0, elapsed=last[1]) if last else None

    def dump(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "first": self.first,
            "begun": self.begun,
            "level": self.level.dump(),
            "past": [list(pair) for pair in zip(self.past_steps, self.past.values, strict=True)],
            "fresh": self.fresh,
            "slow_rows": list(self.slow_rows.values),
            "steps": list(self.steps),
            "fast": to_builtins(self.fast) if self.fast else None,
            "slow": to_builtins(self.slow) if self.slow else None,
            "lowest": self.lowest,
            "datasets": self.datasets.dump(),
            "before": self.before,
            "last": [self.last.step, self.last.elapsed] if self.last else None,
        }

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if not isinstance(line, Sample):
            return
        if stepped_back(self.last, line):
            _resume(self, line.step)
        self.last = line
        self.datasets.take(line)
        if isfinite(line.loss):
            _row(self, line)

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """`loss-spike`, or `loss-divergence` when it did not heal; `dataset-spike` when a part rose alone."""
        return _findings(self, snapshot)

    def begin(self, back: int, level: float, excess: float, loss: float) -> Episode:
        """An episode that began `back` rows before the newest one, which brings `loss`."""
        newest = len(self.steps) - 1
        start = max(0, newest - back)
        step, line, offset = self.steps[start]
        return Episode(
            step=step,
            line=line,
            offset=offset,
            level=level,
            excess=excess,
            rows=newest - start,
            alarm=newest - start,
            margin=max(1, step - self.steps[max(0, start - 10)][0]),
            peak=loss,
            peak_row=newest - start,
            seen=self.steps[-1][0],
            recent=[loss],
        )


def _resume(memory: Losses, at: int) -> None:
    """Forget what was after step `at`, and everything short: after a restart the data is in another order."""
    memory.level.restart()
    memory.datasets.resume()
    memory.slow_rows.clear()
    memory.lowest, memory.fresh, memory.before = None, [], None
    kept = [(s, v) for s, v in zip(memory.past_steps, memory.past.values, strict=True) if s < at]
    memory.past_steps = deque((s for s, _ in kept), PAST)
    memory.past = Window(PAST, (v for _, v in kept))
    memory.steps = deque((row for row in memory.steps if row[0] < at), 3 * SLOW)
    memory.fast = memory.fast if memory.fast and memory.fast.step < at else None
    memory.slow = memory.slow if memory.slow and memory.slow.step < at else None


def _row(memory: Losses, sample: Sample) -> None:
    memory.rows += 1
    memory.first = sample.loss if memory.first is None else memory.first
    if len(memory.begun) < 2:
        memory.begun.append(sample.step)
    memory.steps.append([sample.step, sample.line, sample.offset])
    if memory.fast:
        memory.before = None
        memory.fast.follow(sample, sample.loss)
        _decide(memory, memory.fast)
        return
    if _stands_out(memory, sample.loss):
        return
    _creep(memory, sample)


def _decide(memory: Losses, episode: Episode) -> None:
    """Has an open rise healed, or is it a divergence?"""
    if episode.healed(2 * FEW if episode.diverged else FEW):
        memory.fast = None
        memory.level.settle(episode.recent[-ENOUGH:])
        memory.slow_rows.clear()  # a spike says nothing of a drift
        memory.slow = memory.slow if memory.slow and memory.slow.diverged else None
        return
    if not episode.diverged:
        episode.diverged = episode.climbs or (episode.waited and episode.stays(2 * FEW))
    if _settled(episode):
        memory.fast, memory.level.flags = None, []
        memory.level.near.clear()
        _forget_past(memory)


def _settled(episode: Episode) -> bool:
    """Has the loss long had a level that is but a little above the one before?"""
    if episode.rows - episode.peak_row < NOISE or len(episode.recent) < SLOW:
        return False
    return median(episode.recent) - episode.level < SETTLED * abs(episode.level)


def _stands_out(memory: Losses, loss: float) -> bool:
    """The fast test. Opens an episode and answers True, or takes the loss, clipped, into the statistics."""
    before, memory.before = memory.before, loss
    if memory.rows <= GUARD or not memory.level.ready:
        return _surely_above(memory, before, loss) or _above_first(memory, loss)
    rise = memory.level.rises(loss)
    if rise:
        level, bound, back = rise
        memory.fast = memory.begin(back, level, bound, loss)
    return rise is not None


def _surely_above(memory: Losses, before: float | None, loss: float) -> bool:
    """Two rows running so far above the level that no noise need be known: a spike among a run's first rows left none."""
    series = memory.level
    if memory.rows <= GUARD or len(series.near) < ENOUGH or before is None:
        return False
    level, (jitters, share) = series.value, SURE
    bound = max(jitters * _jitter(series), share * abs(level))
    if min(before, loss) - level > bound:
        memory.fast = memory.begin(1, level, bound, loss)
    return memory.fast is not None


def _jitter(series: Level) -> float:
    """What one row and the next differ by, among the last ones."""
    return median([abs(b - a) for a, b in pairwise(series.near.values)] or [0.0])


def _above_first(memory: Losses, loss: float) -> bool:
    """While the noise is not known yet: three rows of six above 1.25 × the run's first loss and no mere jitter, or four
    rises one after the other to 1.5 × of it."""
    first = memory.first or 0.0
    series = memory.level
    flags = series.flags = [*series.flags, first > 0 and loss - first > max(0.25 * first, 6 * _jitter(series))][-6:]
    last = [*list(series.near.values)[-CLIMB:], loss]
    climbs = len(last) > CLIMB and loss > 1.5 * first > 0 and all(a < b for a, b in pairwise(last))
    if sum(flags) >= 3 or climbs:
        high = flags if any(flags) else [value > 1.25 * first for value in last]
        onset = len(high) - 1 - high.index(True)
        memory.fast = memory.begin(onset, first, 0.25 * first, loss)
        memory.fast.young = memory.begun[0] <= 2 * (memory.begun[1] - memory.begun[0])
        return True
    if not flags[-1]:
        series.accept(loss, series.value if len(series.near) else loss)
    return False


def _creep(memory: Losses, sample: Sample) -> None:
    """The slow tests, or how a slow rise goes on."""
    memory.slow_rows.push(sample.loss)
    if memory.slow:
        _follow_slow(memory, memory.slow, sample)
    elif rise := _over_past(memory, sample) or _over_lowest(memory):
        memory.slow = rise
        memory.slow.diverged = _still_rising(memory.slow_rows)


def _still_rising(rows: Window) -> bool:
    """Is each quarter of the window higher than the one before?"""
    values, quarter = list(rows.values), len(rows) // 4
    medians = [median(values[i : i + quarter]) for i in range(0, 4 * quarter, quarter)] if quarter else []
    return all(a < b for a, b in pairwise(medians)) and len(rows) >= SLOW // 2


def _follow_slow(memory: Losses, episode: Episode, sample: Sample) -> None:
    episode.follow(sample, memory.slow_rows.median)
    settled = _settled(episode)
    healed = episode.healed(SLOW // 2 if episode.diverged else 2 * FEW)
    waited = episode.rows - episode.alarm >= SLOW // 2
    episode.diverged = episode.diverged or (waited and episode.stays(SLOW // 2))
    if settled or healed:
        memory.slow = memory.lowest = None
        memory.slow_rows.clear()
    if settled:
        _forget_past(memory)


def _forget_past(memory: Losses) -> None:
    """A rise stayed and is the level now: what was below it is no measure any more."""
    memory.past.clear()
    memory.past_steps.clear()
    memory.slow_rows.clear()
    memory.fresh, memory.lowest = [], None


def _over_past(memory: Losses, sample: Sample) -> Episode | None:
    """The median of the last 40 rows against an upper quantile of earlier such medians: a few percent are seen."""
    if len(memory.slow_rows) < SLOW:
        return None
    now = memory.slow_rows.median
    memory.fresh.append([sample.step, now])
    if len(memory.fresh) > SLOW:
        step_, value = memory.fresh.pop(0)
        memory.past.push(value)
        memory.past_steps.append(step_)
    if len(memory.past) < SLOW or len(memory.level.noise) < NOISE // 2:
        return None
    usual = memory.past.quantile(0.85)
    least = max(CREEP * abs(usual), RULE.least)
    if now - usual <= least:  # mostly: the noise need not be known
        return None
    rounded = SLOW_GRAINS * grain(memory.slow_rows)
    bound = max(6 * 1.2533 * sigma_of(memory.level.noise) / sqrt(SLOW), least, rounded)
    if now - usual <= bound:
        return None
    newest_first = [value for _, value in reversed(memory.fresh)]
    below = next((i for i, value in enumerate(newest_first) if value <= usual), len(newest_first))
    return memory.begin(below + SLOW // 2, usual, bound, now)


def _over_lowest(memory: Losses) -> Episode | None:
    """A quarter above the lowest level since the last resume. A run too young for `_over_past` has this."""
    if memory.rows <= GUARD or len(memory.slow_rows) < NEAR or len(memory.level.noise) < GUARD:
        return None
    now = memory.level.near.median
    if memory.lowest is None or now <= memory.lowest[0]:
        memory.lowest = [now, memory.rows]
    low, row = memory.lowest
    if now - low <= 0.25 * abs(low):
        return None
    bound = max(0.25 * abs(low), 5 * sigma_of(memory.level.noise))
    return memory.begin(memory.rows - int(row), low, bound, now) if now - low > bound else None


def _findings(memory: Losses, snapshot: Snapshot) -> tuple[Finding, ...]:
    open_ = [episode for episode in (memory.fast, memory.slow) if episode]
    parts = f"; of the data sets rose {memory.datasets.named}" if memory.datasets.risen else ""
    if not open_ and parts:
        return (memory.datasets.finding(snapshot),)
    told = [episode for episode in open_ if episode.diverged or episode is open_[0]]
    first = min((e for e in open_ if e.diverged), key=lambda e: e.step, default=None)
    found = [
        _divergence(e, first, parts, snapshot) if first and e.diverged else _spike(e, parts, snapshot) for e in told
    ]
    return tuple(replace(f, episode=CREEPS) if e is memory.slow else f for e, f in zip(told, found, strict=True))


def _spike(episode: Episode, parts: str, snapshot: Snapshot) -> Finding:
    return Finding(
        kind="loss-spike",
        severity=Severity.OK if episode.young else Severity.WARNING,
        summary=f"loss rose from {episode.level:.4g} to {episode.peak:.4g} since step {episode.step}; "
        f"{_outlook(episode)}{parts}",
        evidence=(where(snapshot, episode.line, episode.offset),),
        step=episode.step,
        line=episode.line or None,
        runbook="loss-spikes",
        actions=("m4ops plot",),
    )


def _outlook(episode: Episode) -> str:
    """Where an undecided rise stands, as of its last row."""
    since = episode.rows - episode.alarm
    rows = f"{since} logged row{'' if since == 1 else 's'}"
    now = f"{episode.now:.4g} at step {episode.seen}"
    if episode.returns:
        return f"{now}, on its way back"
    return f"{now}, not healed after {rows}" if episode.waited else f"{now}, undecided {rows} after the alarm"


def _divergence(episode: Episode, first: Episode, parts: str, snapshot: Snapshot) -> Finding:
    """`first`: the earliest divergence. A rewind has to go before that one."""
    note = answered(snapshot, episode.step, episode.offset)
    back = ", on its way back" if episode.returns or episode.now <= episode.level + episode.excess else ""
    return Finding(
        kind="loss-divergence",
        severity=Severity.WARNING if note else Severity.CRITICAL,
        summary=f"loss diverges since step {episode.step}: {episode.level:.4g} before, "
        f"{episode.now:.4g} at step {episode.seen}{back}{note}{parts}",
        evidence=(where(snapshot, episode.line, episode.offset),),
        step=episode.step,
        line=episode.line or None,
        runbook="loss-diverges",
        actions=ladder(snapshot, first.step, first.margin),
    )
