"""Node names as Slurm writes them: `n[1-3,07],login2` stands for n1 n2 n3 n07 login2 (scontrol(1), `show hostnames`)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

_PART = re.compile(r"(?:[^,\[\]]|\[[^\]]*\])+")
_LARGEST = 100_000


def expand(text: str) -> tuple[str, ...]:
    """The names, in their order. What is no list of hosts (`None assigned`, `(null)`) gives none."""
    if not text or " " in text or text.startswith("("):
        return ()
    return tuple(name for part in _PART.findall(text) for name in _expand(part))


def _expand(part: str) -> list[str]:
    pieces = re.split(r"\[([^\]]*)\]", part)
    choices = [[piece] if i % 2 == 0 else list(_numbers(piece)) for i, piece in enumerate(pieces)]
    return ["".join(found) for found in itertools.islice(itertools.product(*choices), _LARGEST)]


def _numbers(text: str) -> Iterable[str]:
    for one in text.split(","):
        first, dash, last = one.partition("-")
        if dash and first.isdigit() and last.isdigit():
            numbers = range(int(first), min(int(last), int(first) + _LARGEST) + 1)
            yield from (str(n).zfill(len(first)) for n in numbers)
        else:
            yield one


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key by which n2 comes before n10."""
    return tuple((int(p), "") if p.isdigit() else (-1, p) for p in re.split(r"(\d+)", name) if p)


def compress(names: Iterable[str]) -> str:
    """The names sorted, with runs of numbers folded: `n[1-3,10],x`."""
    groups: dict[tuple[str, int], list[int]] = {}
    for name in sorted(set(names), key=natural):
        found = re.fullmatch(r"(.*?)(\d+)", name)
        if found is None:
            groups.setdefault((name, -1), [])
            continue
        # Names of one width fold together; without leading zeros any width does.
        width = len(found[2]) if found[2].startswith("0") and len(found[2]) > 1 else 0
        groups.setdefault((found[1], width), []).append(int(found[2]))
    return ",".join(_folded(prefix, width, numbers) for (prefix, width), numbers in groups.items())


def _folded(prefix: str, width: int, numbers: list[int]) -> str:
    if not numbers:
        return prefix
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    told = ",".join(str(a).zfill(width) if a == b else f"{str(a).zfill(width)}-{str(b).zfill(width)}" for a, b in runs)
    single = len(runs) == 1 and runs[0][0] == runs[0][1]
    return prefix + (told if single else f"[{told}]")
