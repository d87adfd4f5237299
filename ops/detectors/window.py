"""The last N values of a series, with their quantiles at hand."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable


class Window:
    """The last `size` values pushed. A quantile costs nothing, a push one insertion into a sorted list."""

    def __init__(self, size: int, values: Iterable[float] = ()) -> None:
        self.size = size
        self.values = deque(values)
        self.sorted = sorted(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def push(self, value: float) -> None:
        self.values.append(value)
        insort(self.sorted, value)
        if len(self.values) > self.size:
            del self.sorted[bisect_left(self.sorted, self.values.popleft())]

    def clear(self) -> None:
        self.values.clear()
        self.sorted.clear()

    def quantile(self, share: float) -> float:
        """The value below which `share` of the window lies, interpolated. The window must not be empty."""
        values = self.sorted
        last = len(values) - 1
        place = share * last
        low = int(place)
        at = values[low]
        return at + (place - low) * (values[low + 1 if low < last else last] - at)

    @property
    def median(self) -> float:
        return self.quantile(0.5)
