"""Sets of numbers as Slurm writes them: `1-20%1`, `2,4-6`, `1-10:3`, and host names `n[1-3,07]`."""

from __future__ import annotations

import re
from collections.abc import Iterable

MAX_ARRAY_SIZE = 100001
_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")


def parse_set(text: str) -> tuple[int, ...]:
    """`1-3,7,10-20:5` as sorted numbers without repetition. Raises ValueError."""
    numbers: set[int] = set()
    for part in text.split(","):
        found = _PART.fullmatch(part)
        if not found:
            raise ValueError(part)
        first, last, step = int(found[1]), int(found[2] or found[1]), int(found[3] or 1)
        if last < first or step < 1 or last >= MAX_ARRAY_SIZE:
            raise ValueError(part)
        numbers.update(range(first, last + 1, step))
    return tuple(sorted(numbers))


def parse_array(text: str) -> tuple[tuple[int, ...], int]:
    """The numbers and the throttle (0: none) of an `--array` argument. Raises ValueError."""
    numbers, percent, throttle = text.partition("%")
    if percent and throttle and not throttle.isdigit():
        raise ValueError(text)
    return parse_set(numbers), int(throttle or 0)


def compress(numbers: Iterable[int]) -> str:
    """`[1, 2, 3, 5]` as `1-3,5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def hostnames(text: str) -> list[str]:
    """`n[1-3,07],x` as n1 n2 n3 n07 x."""
    names: list[str] = []
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\][^,\[]*)?", text):
        found = re.fullmatch(r"([^\[]*)\[([^\]]*)\](.*)", part)
        if not found:
            names.append(part)
            continue
        for piece in found[2].split(","):
            first, _, last = piece.partition("-")
            for number in range(int(first), int(last or first) + 1):
                names.append(f"{found[1]}{number:0{len(first)}d}{found[3]}")
    return names
