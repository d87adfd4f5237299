"""Loss spikes and divergences, judged by the run's own noise.

A loss is measured against the median of the last accepted ones. It stands out when it lies above by more than the
run's noise, its tail and a share of the level allow; two such rows running, or three of six, raise `loss-spike`.
After 20 logged rows, or sooner if the rise goes on, the spike has healed or is a `loss-divergence`. What creeps is
seen by slower tests: the median of the last 40 rows against earlier such medians, and the level against the lowest
one yet. Outliers enter the statistics clipped or not at all, and a step that goes back (a resume) clears the short
memory.

Spikes rise within a few rows and divergences slowly: "a spike that tends to recover is when it happens instantly"
(huggingface/m4-logs, chronicles of the 80B run).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import isfinite, sqrt
from statistics import median
from typing import Any

from ops.detectors.evidence import State, answered, ladder, where
from ops.detectors.window import Window
from ops.model import Finding, LogEvent, Sample, Severity, Snapshot
from ops.pace import stepped_back

NEAR, NOISE, LATEST, SLOW, PAST = 15, 240, 40, 40, 400
"""Rows: of the level, of the noise, of its latest part, of the slow test's median, of its earlier medians."""
GUARD = 20
"""Rows of a run before anything but the comparison with its first loss is judged."""
CLIMB = 4
"""Rises one after the other that are no noise, young as the run is."""
LAG = 10
"""Rows until a row counts as noise."""
WAIT = 20
"""Rows after the alarm by which a spike has healed or is a divergence."""
RISE = 12
"""A rise that still goes on after so many rows is no spike."""
SETTLED = 0.05
"""A lasting shift below this share of the level is taken as the new level after `NOISE` rows."""
QUANTUM = 2e-4
"""Two units of the last decimal the trainer prints."""


@dataclass
class Episode:
    """A rise under observation."""

    step: int
    line: int
    offset: int
    level: float
    """The loss before."""
    excess: float
    """How far above the level is out of the ordinary."""
    rows: int
    """Logged rows since the onset."""
    alarm: int
    """`rows` at the alarm."""
    margin: int
    """Ten logged rows in steps: how far before the onset a rewind should go."""
    peak: float
    peak_row: int
    seen: int
    """The last step seen."""
    diverged: bool = False
    young: bool = False
    """It began with a run's first rows."""
    recent: list[float] = field(default_factory=list)

    def follow(self, sample: Sample, height: float) -> None:
        """Take in one more row; `height` is what its peak is measured by."""
        self.rows += 1
        self.seen = sample.step
        self.recent = [*self.recent, sample.loss][-SLOW:]
        if height > self.peak:
            self.peak, self.peak_row = height, self.rows

    def healed(self, rows: int, share: float = 0.25) -> bool:
        """Is the loss of the last rows back, but for a share of the rise?"""
        bound = self.level + max(share * (self.peak - self.level), 0.3 * self.excess)
        return len(self.recent) >= rows and median(self.recent[-rows:]) <= bound


class Losses:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.rows: int = state.get("rows", 0)
        self.first: float | None = state.get("first")
        self.begun: list[int] = list(state.get("begun", ()))
        self.near = Window(NEAR, state.get("near", ()))
        self.noise = Window(NOISE, state.get("noise", ()))
        self.waiting: list[float] = list(state.get("waiting", ()))
        self.past = Window(PAST, (value for _, value in state.get("past", ())))
        self.past_steps: list[int] = [step for step, _ in state.get("past", ())]
        self.fresh: list[list[Any]] = list(state.get("fresh", ()))
        self.slow_rows = Window(SLOW, state.get("slow_rows", ()))
        self.steps: list[list[int]] = list(state.get("steps", ()))
        self.flags: list[bool] = list(state.get("flags", ()))
        self.fast = Episode(**state["fast"]) if state.get("fast") else None
        self.slow = Episode(**state["slow"]) if state.get("slow") else None
        self.lowest: list[float] | None = state.get("lowest")
        last = state.get("last")
        self.last = Sample(step=last[0], loss=0.0, elapsed=last[1]) if last else None

    def dump(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "first": self.first,
            "begun": self.begun,
            "near": list(self.near.values),
            "noise": list(self.noise.values),
            "waiting": self.waiting,
            "past": [list(pair) for pair in zip(self.past_steps, self.past.values, strict=True)],
            "fresh": self.fresh,
            "slow_rows": list(self.slow_rows.values),
            "steps": self.steps,
            "flags": self.flags,
            "fast": asdict(self.fast) if self.fast else None,
            "slow": asdict(self.slow) if self.slow else None,
            "lowest": self.lowest,
            "last": [self.last.step, self.last.elapsed] if self.last else None,
        }

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if not isinstance(line, Sample):
            return
        if stepped_back(self.last, line):
            _resume(self, line.step)
        self.last = line
        if isfinite(line.loss):
            _row(self, line)

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """`loss-spike`, or `loss-divergence` when it did not heal."""
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
    memory.near.clear()
    memory.slow_rows.clear()
    memory.lowest = None
    memory.fresh, memory.flags, memory.waiting = [], [], []
    kept = [(s, v) for s, v in zip(memory.past_steps, memory.past.values, strict=True) if s < at]
    memory.past_steps = [s for s, _ in kept]
    memory.past = Window(PAST, (v for _, v in kept))
    memory.steps = [row for row in memory.steps if row[0] < at]
    memory.fast = memory.fast if memory.fast and memory.fast.step < at else None
    memory.slow = memory.slow if memory.slow and memory.slow.step < at else None


def _row(memory: Losses, sample: Sample) -> None:
    memory.rows += 1
    memory.first = sample.loss if memory.first is None else memory.first
    memory.begun = [*memory.begun, sample.step][:2]
    memory.steps = [*memory.steps, [sample.step, sample.line, sample.offset]][-3 * SLOW :]
    if memory.fast:
        memory.fast.follow(sample, sample.loss)
        _decide(memory, memory.fast)
        return
    if _stands_out(memory, sample.loss):
        return
    _creep(memory, sample)


def _decide(memory: Losses, episode: Episode) -> None:
    """Has an open rise healed, or is it a divergence?"""
    since = episode.rows - episode.alarm
    if since >= 3 and (episode.healed(10, 0.15) if episode.diverged else episode.healed(5)):
        memory.fast, memory.flags = None, []
        if (
            memory.slow
            and not memory.slow.diverged
            and median(episode.recent[-5:]) <= memory.slow.level + memory.slow.excess
        ):
            memory.slow = None
        return
    rising = episode.peak_row >= RISE and episode.rows - episode.peak_row <= 2
    if since >= WAIT or (since >= 3 and rising):
        episode.diverged = True
    if _settled(episode):
        memory.fast, memory.flags = None, []
        memory.near.clear()


def _settled(episode: Episode) -> bool:
    level = median(episode.recent)
    return (
        episode.rows - episode.peak_row >= NOISE
        and len(episode.recent) >= SLOW
        and level - episode.level < SETTLED * abs(episode.level)
    )


def _stands_out(memory: Losses, loss: float) -> bool:
    """The fast test. Opens an episode and answers True, or takes the loss, clipped, into the statistics."""
    ready = memory.rows > GUARD and len(memory.near) >= 8 and len(memory.noise) >= 8
    if not ready:
        return _above_first(memory, loss)
    level, bound, far = _bounds(memory)
    flags = [*memory.flags, loss - level > bound][-6:]
    memory.flags = flags
    if (all(flags[-2:]) and len(flags) > 1) or sum(flags) >= 3 or loss - level > far:
        memory.fast = memory.begin(len(flags) - 1 - flags.index(True), level, bound, loss)
        memory.waiting = []
        return True
    _accept(memory, min(loss, level + bound), level)
    return False


def _bounds(memory: Losses) -> tuple[float, float, float]:
    """The level, what lies above it by more than is usual, and by so much that one row is enough."""
    level, tail = _level(memory.near), memory.noise.quantile(0.99)
    # The steep fall of a run's first losses is no noise: the latest rows know better.
    latest = Window(LATEST, list(memory.noise.values)[-LATEST:])
    sigma = min(_sigma(memory.noise), _sigma(latest))
    bound = max(5 * sigma, 1.4 * tail, 0.012 * abs(level), QUANTUM)
    return level, bound, max(20 * sigma, 4 * tail, 0.15 * abs(level), 10 * QUANTUM)


def _level(near: Window) -> float:
    """The median of the last losses, or of their later half: a falling loss is not measured against its past."""
    half = len(near) // 2
    return min(near.median, median(list(near.values)[-half:])) if half >= 4 else near.median


def _sigma(noise: Window) -> float:
    """The noise as a standard deviation, whatever its tails are."""
    return (noise.quantile(0.75) - noise.quantile(0.25)) / 1.349


def _accept(memory: Losses, loss: float, level: float) -> None:
    """The loss is the level's at once, and the noise's later: else a rise would widen its own bounds."""
    memory.near.push(loss)
    memory.waiting.append(loss - level)
    if len(memory.waiting) > LAG:
        memory.noise.push(memory.waiting.pop(0))


def _above_first(memory: Losses, loss: float) -> bool:
    """While the noise is not known yet: three rows of six above 1.25 × the run's first loss and no mere jitter, or four
    rises one after the other to 1.5 × of it."""
    first = memory.first or 0.0
    jitter = median([abs(b - a) for a, b in pairwise(memory.near.values)] or [0.0])
    memory.flags = [*memory.flags, first > 0 and loss - first > max(0.25 * first, 6 * jitter)][-6:]
    last = [*list(memory.near.values)[-CLIMB:], loss]
    climbs = len(last) > CLIMB and loss > 1.5 * first > 0 and all(a < b for a, b in pairwise(last))
    if sum(memory.flags) >= 3 or climbs:
        high = memory.flags if any(memory.flags) else [value > 1.25 * first for value in last]
        onset = len(high) - 1 - high.index(True)
        memory.fast = memory.begin(onset, first, 0.25 * first, loss)
        memory.fast.young = memory.begun[0] <= 2 * (memory.begun[1] - memory.begun[0])
        return True
    if not memory.flags[-1]:
        _accept(memory, loss, _level(memory.near) if len(memory.near) else loss)
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
    return all(a < b for a, b in pairwise(medians)) and len(rows) == SLOW


def _follow_slow(memory: Losses, episode: Episode, sample: Sample) -> None:
    episode.follow(sample, memory.slow_rows.median)
    settled = _settled(episode)
    waited = episode.rows - episode.alarm >= WAIT
    healed = waited and episode.healed(SLOW // 2 if episode.diverged else 5)
    episode.diverged = episode.diverged or waited
    if settled or healed:
        memory.slow = memory.lowest = None
    if settled:
        memory.past.clear()
        memory.past_steps, memory.fresh = [], []


def _over_past(memory: Losses, sample: Sample) -> Episode | None:
    """The median of the last 40 rows against an upper quantile of earlier such medians: a few percent are seen."""
    if len(memory.slow_rows) < SLOW:
        return None
    now = memory.slow_rows.median
    memory.fresh.append([sample.step, now])
    if len(memory.fresh) > SLOW:
        step_, value = memory.fresh.pop(0)
        memory.past.push(value)
        memory.past_steps = [*memory.past_steps, step_][-PAST:]
    if len(memory.past) < SLOW or len(memory.noise) < NOISE // 2:
        return None
    usual = memory.past.quantile(0.85)
    bound = max(6 * 1.2533 * _sigma(memory.noise) / sqrt(SLOW), 0.006 * abs(usual), QUANTUM)
    if now - usual <= bound:
        return None
    newest_first = [value for _, value in reversed(memory.fresh)]
    below = next((i for i, value in enumerate(newest_first) if value <= usual), len(newest_first))
    return memory.begin(below + SLOW // 2, usual, bound, now)


def _over_lowest(memory: Losses) -> Episode | None:
    """A quarter above the lowest level since the last resume. A run too young for `_over_past` has this."""
    if memory.rows <= GUARD or len(memory.near) < NEAR or len(memory.noise) < GUARD:
        return None
    now = memory.near.median
    if memory.lowest is None or now <= memory.lowest[0]:
        memory.lowest = [now, memory.rows]
    low, row = memory.lowest
    bound = max(0.25 * abs(low), 5 * _sigma(memory.noise))
    return memory.begin(memory.rows - int(row), low, bound, now) if now - low > bound else None


def _findings(memory: Losses, snapshot: Snapshot) -> tuple[Finding, ...]:
    open_ = [episode for episode in (memory.fast, memory.slow) if episode]
    diverged = [episode for episode in open_ if episode.diverged]
    if diverged:
        return (_divergence(min(diverged, key=lambda e: e.step), snapshot),)
    return tuple(_spike(episode, snapshot) for episode in open_)


def _spike(episode: Episode, snapshot: Snapshot) -> Finding:
    left = max(0, WAIT - (episode.rows - episode.alarm))
    return Finding(
        kind="loss-spike",
        severity=Severity.OK if episode.young else Severity.WARNING,
        summary=f"loss rose from {episode.level:.4g} to {episode.peak:.4g} at step {episode.step}; "
        f"whether it heals shows within {left} logged rows",
        evidence=(where(snapshot, episode.line, episode.offset),),
        step=episode.step,
        line=episode.line or None,
        runbook="loss-spikes",
        actions=("m4ops plot",),
    )


def _divergence(episode: Episode, snapshot: Snapshot) -> Finding:
    now = median(episode.recent[-5:])
    note = answered(snapshot, episode.step, episode.offset)
    return Finding(
        kind="loss-divergence",
        severity=Severity.WARNING if note else Severity.CRITICAL,
        summary=f"loss diverges since step {episode.step}: {episode.level:.4g} before, "
        f"{now:.4g} at step {episode.seen}{note}",
        evidence=(where(snapshot, episode.line, episode.offset),),
        step=episode.step,
        line=episode.line or None,
        runbook="loss-diverges",
        actions=ladder(snapshot, episode.step, episode.margin),
    )
