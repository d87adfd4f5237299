"""The level of a series and its noise: what lies above it by more than is usual.

The level is the median of the last accepted values, the noise the spread of what lay around it. A value stands out by
the noise, the tail and a share of the level; two running, or three of six, or one that is far out, are a rise. What stands out
enters the statistics clipped, so that a second rise is measured as the first was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import inf, sqrt
from typing import Any

from msgspec import Struct

from ops.detectors.window import Window
from ops.quantiles import median

NEAR, NOISE, LATEST = 15, 240, 40
"""Values of the level, of the noise, and of its latest part."""
LAG = 10
"""Values until one counts as noise: else a rise would widen its own bounds."""
ENOUGH = 8
"""Values of either without which nothing is judged."""
GRAINS = 2.5
"""Units of what a series is rounded to: a jump of fewer may be the rounding's (a loss in bf16 moves by 0.4 to 0.8 %)."""
FALLS = 0.2
"""Standard deviations by which the latest values lie below the level they were measured against, where a series falls."""


class Rule(Struct, frozen=True):
    """How far above the level a value must lie: the largest of these; and how far for one alone to be enough."""

    sigma: float = 5.0
    """Standard deviations of the noise."""
    tail: float = 1.4
    """Times the 99th percentile of what lay above the level."""
    share: float = 0.012
    """Of the level."""
    least: float = 2e-4
    """Two units of the last decimal that trainers print."""
    far_sigma: float = 20.0
    far_tail: float = 4.0
    far_share: float = 0.15
    far_least: float = 2e-3
    most: float = inf
    """So far above the level no noise reaches, whatever its spread."""
    step: float = inf
    """While the series falls, its noise is no more than so many times what neighbours differ by: its distance to a level
    that comes after it is no noise."""


class Level:
    """A series' memory."""

    def __init__(self, state: Mapping[str, Any], rule: Rule) -> None:
        self.rule = rule
        self.near = Window(NEAR, state.get("near", ()))
        self.noise = Window(NOISE, state.get("noise", ()))
        self.latest = Window(LATEST, list(self.noise.values)[-LATEST:])
        self.waiting: list[float] = list(state.get("waiting", ()))
        self.flags: list[bool] = list(state.get("flags", ()))

    def dump(self) -> dict[str, Any]:
        near, noise = list(self.near.values), list(self.noise.values)
        return {"near": near, "noise": noise, "waiting": self.waiting, "flags": self.flags}

    @property
    def ready(self) -> bool:
        return len(self.near) >= ENOUGH and len(self.noise) >= ENOUGH

    @property
    def value(self) -> float:
        """The median of the last values, or of their later half: what falls is not measured against its past."""
        half = len(self.near) // 2
        if half < 4:
            return self.near.median
        later = sorted(list(self.near.values)[-half:])
        middle = later[half // 2] if half % 2 else (later[half // 2 - 1] + later[half // 2]) / 2
        return min(self.near.median, middle)

    def bounds(self, level: float) -> tuple[float, float]:
        """What lies above the level by more than is usual, and by so much that one value is enough."""
        rule, tail = self.rule, self.noise.quantile(0.99)
        # The steep fall of a run's first losses is no noise: the latest values know better.
        sigma = min(sigma_of(self.noise), sigma_of(self.latest))
        if rule.step < inf and self.latest.median < -FALLS * sigma:
            sigma = min(sigma, rule.step * difference_of(self.latest.values))
        bound = max(
            rule.sigma * sigma, rule.tail * tail, rule.share * abs(level), rule.least, GRAINS * grain(self.near)
        )
        far = max(rule.far_sigma * sigma, rule.far_tail * tail, rule.far_share * abs(level), rule.far_least)
        return min(bound, rule.most), min(far, rule.most)

    def rises(self, value: float) -> tuple[float, float, int] | None:
        """The level, the bound, and how many values ago the rise began; or None, and the value is taken in."""
        level = self.value
        if value <= level and sum(self.flags) < 3:  # most values: no bound need be known
            self.flags = [*self.flags, False][-6:]
            self.accept(value, level)
            return None
        bound, far = self.bounds(level)
        flags = self.flags = [*self.flags, value - level > bound][-6:]
        if (all(flags[-2:]) and len(flags) > 1) or sum(flags) >= 3 or value - level > far:
            self.waiting = []
            return level, bound, len(flags) - 1 - flags.index(True)
        self.accept(min(value, level + bound), level)
        return None

    def accept(self, value: float, level: float) -> None:
        """The value is the level's at once, and the noise's later."""
        self.near.push(value)
        self.waiting.append(value - level)
        if len(self.waiting) > LAG:
            settled = self.waiting.pop(0)
            self.noise.push(settled)
            self.latest.push(settled)

    def settle(self, values: Sequence[float]) -> None:
        """A rise is over: the level is where these values are, though a little of the rise be left."""
        self.restart()
        for value in values:
            self.near.push(value)

    def restart(self) -> None:
        """Forget what is short: after a resume the data is in another order."""
        self.near.clear()
        self.flags, self.waiting = [], []


def grain(values: Window) -> float:
    """What a series is rounded to: the least step between values that come again. 0 where none do: it is not."""
    again = sorted({a for a, b in pairwise(values.sorted) if a == b})
    return min((b - a for a, b in pairwise(again)), default=0.0)


def difference_of(values: Iterable[float]) -> float:
    """The noise as a standard deviation, from what each value and the next differ by: where they go does not matter."""
    return median([abs(b - a) for a, b in pairwise(values)] or [0.0]) / (0.6745 * sqrt(2))


def sigma_of(noise: Window) -> float:
    """The noise as a standard deviation, whatever its tails are."""
    return (noise.quantile(0.75) - noise.quantile(0.25)) / 1.349
