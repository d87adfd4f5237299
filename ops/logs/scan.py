"""Where in a block one of many literals stands: by google-re2 if it is installed, else literal by literal.

`pip install m4ops[fast]` brings google-re2. Both ways find the same places (tests/test_scan.py).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

Next = Callable[[int], int]
"""The first place at or after a place; -1 if there is none."""


SMALL = 1 << 20
"""Bytes up to which loading google-re2 would cost more than it saves."""


def scanner(literals: tuple[bytes, ...], data: bytes, end: int) -> Next:
    """Where the literals stand in `data[:end]`."""
    quick = fast(literals) if end > SMALL else None
    return (quick or plain(literals))(data, end)


def plain(literals: tuple[bytes, ...]) -> Callable[[bytes, int], Next]:
    """Each literal's own `bytes.find`, resumed where it must be."""

    def begin(data: bytes, end: int) -> Next:
        places = [data.find(literal, 0, end) for literal in literals]

        def following(start: int) -> int:
            first = -1
            for i, place in enumerate(places):
                if 0 <= place < start:
                    places[i] = place = data.find(literals[i], start, end)
                if place >= 0 and (first < 0 or place < first):
                    first = place
            return first

        return following

    return begin


@cache
def fast(literals: tuple[bytes, ...]) -> Callable[[bytes, int], Next] | None:
    """One pass for all literals; None without google-re2."""
    try:
        import re2
    except ImportError:
        return None
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.max_mem = 64 << 20
    pattern: Any = re2.compile(b"|".join(re2.escape(literal) for literal in literals), options)

    def begin(data: bytes, end: int) -> Next:
        def following(start: int) -> int:
            found = pattern.search(data, start, end)
            return found.start() if found else -1

        return following

    return begin
