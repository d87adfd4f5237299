"""Where in a block one of many literals stands: by hyperscan or google-re2 if one is installed, else literal by literal.

`pip install m4ops[fast]` brings them; hyperscan is made for x86-64 only. All ways find the same places (tests/test_scan.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from heapq import heapify, heappop, heapreplace
from typing import Any

Next = Callable[[int], int]
"""The first place at or after a place; -1 if there is none."""
Scanner = Callable[[bytes, int], Next]
"""Of a block and the end of what counts of it."""

SMALL = 1 << 19
"""Bytes up to which loading a library would cost more than it saves."""
LARGE = 1 << 24
"""Bytes from which hyperscan, four times as fast, has earned its 40 ms of making ready; re2 takes 3."""


def scanner(literals: tuple[bytes, ...], size: int) -> Scanner:
    """The fastest way at hand for so many bytes."""
    ways = () if size <= SMALL else (re2, hyperscan) if size <= LARGE else (hyperscan, re2)
    return next((quick for way in ways if (quick := way(literals))), None) or plain(literals)


def plain(literals: tuple[bytes, ...]) -> Scanner:
    """Each literal's own `bytes.find`, resumed where it must be."""

    def begin(data: bytes, end: int) -> Next:
        places = [(place, i) for i, literal in enumerate(literals) if (place := data.find(literal, 0, end)) >= 0]
        heapify(places)

        def following(start: int) -> int:
            while places and places[0][0] < start:
                literal = places[0][1]
                place = data.find(literals[literal], start, end)
                if place < 0:
                    heappop(places)
                else:
                    heapreplace(places, (place, literal))
            return places[0][0] if places else -1

        return following

    return begin


@cache
def hyperscan(literals: tuple[bytes, ...]) -> Scanner | None:
    """All places of a block in one pass, by SIMD; None without hyperscan."""
    try:
        from hyperscan import HS_MODE_BLOCK, Database
    except ImportError:
        return None
    database: Any = Database(mode=HS_MODE_BLOCK)
    database.compile(expressions=literals, ids=range(len(literals)), elements=len(literals), flags=0, literal=True)
    lengths = [len(literal) for literal in literals]

    def begin(data: bytes, end: int) -> Next:
        places: list[int] = []
        database.scan(
            memoryview(data)[:end],
            match_event_handler=lambda which, _, stop, *more: places.append(stop - lengths[which]),
        )
        places.sort()

        def following(start: int) -> int:
            at = bisect_left(places, start)
            return places[at] if at < len(places) else -1

        return following

    return begin


@cache
def re2(literals: tuple[bytes, ...]) -> Scanner | None:
    """One place after the other; None without google-re2."""
    try:
        import re2 as library
    except ImportError:
        return None
    options = library.Options()
    options.encoding = library.Options.Encoding.LATIN1
    options.never_capture = True
    options.max_mem = 64 << 20
    pattern: Any = library.compile(b"|".join(library.escape(literal) for literal in literals), options)

    def begin(data: bytes, end: int) -> Next:
        def following(start: int) -> int:
            found = pattern.search(data, start, end)
            return found.start() if found else -1

        return following

    return begin
