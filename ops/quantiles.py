"""The middle and the quarters of a few values, as `statistics` has them: that takes 4 ms to import, of every look."""

from __future__ import annotations

from collections.abc import Iterable


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two. There must be one."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def quartiles(values: Iterable[float]) -> tuple[float, float]:
    """Below which a quarter, and three quarters, of what the values are drawn from lie. There must be two values."""
    ordered = sorted(values)
    return _quarter(ordered, 1), _quarter(ordered, 3)


def _quarter(ordered: list[float], number: int) -> float:
    last = len(ordered)
    at = min(max(number * (last + 1) // 4, 1), last - 1)
    rest = number * (last + 1) - 4 * at
    return (ordered[at - 1] * (4 - rest) + ordered[at] * rest) / 4
