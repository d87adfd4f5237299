"""A rise of the loss under observation: has it healed, is it on its way back, or does it stay?

A spike and a divergence begin alike; what tells them apart is which way the loss goes afterwards. A spike comes down, now
fast, now over two thousand steps (bigscience, train/tr8-104B-wide, experiment 11), and whoever sees it come down waits.
A divergence climbs, or stays where it is. So the verdict is about the last rows, not about the height.
"""

from __future__ import annotations

from msgspec import Struct, field

from ops.model import Sample
from ops.quantiles import median

KEPT = 40
"""Rows that are kept of a rise."""
FEW = 5
"""Rows whose median is where the loss is now: what one row says is noise."""
WAIT = 30
"""Rows after the alarm before which nothing is called a divergence but what climbs on."""
CLIMB, SHARE = 20, 0.25
"""Rows after the alarm at which a spike has long had its peak; and of the whole rise, by how much of it a loss that still
climbs undiminished then rose within ten rows."""
PATIENCE = 40
"""Rows within which a loss that comes down must be back, at the pace of its last rows."""
PACE = 15
"""The last rows, from whose highest place on that pace is taken."""
HEALED = 0.2
"""Of the rise: so little may be left of it."""


class Episode(Struct):
    """A rise, from its first row on."""

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
        self.recent = [*self.recent, sample.loss][-KEPT:]
        if height > self.peak:
            self.peak, self.peak_row = height, self.rows

    @property
    def now(self) -> float:
        """Where the loss is, but for its noise."""
        return median(self.recent[-FEW:])

    @property
    def waited(self) -> bool:
        """Is it long enough ago to judge?"""
        return self.rows - self.alarm >= WAIT

    @property
    def climbs(self) -> bool:
        """Does it rise undiminished when a spike would have had its peak?"""
        if self.rows - self.alarm < CLIMB:
            return False
        return self.now - median(self.recent[-3 * FEW : -2 * FEW]) > SHARE * (self.peak - self.level)

    @property
    def back_in(self) -> int | None:
        """Rows until it is back at the pace at which it comes down; None when it does not."""
        last = self.recent[-PACE:]
        heights = [median(last[i : i + FEW]) for i in range(len(last) - FEW + 1)]
        if not heights:
            return None
        high = max(heights)
        ago = heights[::-1].index(high)
        drop, left = high - heights[-1], heights[-1] - self.level
        return round(left / drop * ago) if drop > self.excess and ago else None

    @property
    def returns(self) -> bool:
        """Is it on its way back, and soon there?"""
        rows = self.back_in
        return rows is not None and rows <= PATIENCE

    def stays(self, rows: int) -> bool:
        """Is the loss of the last rows, and now, still out of the ordinary, and not on its way back?"""
        high = self.level + self.excess
        return median(self.recent[-rows:]) > high and self.now > high and not self.returns

    def healed(self, rows: int = FEW) -> bool:
        """Is the loss of the last rows back, but for a little of the rise? Rows before the peak do not count."""
        bound = self.level + max(HEALED * (self.peak - self.level), 0.3 * self.excess)
        enough = len(self.recent) >= rows and self.rows - self.peak_row > FEW // 2
        return enough and median(self.recent[-rows:]) <= bound
