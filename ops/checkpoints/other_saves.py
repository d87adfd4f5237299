"""Files of a distributed checkpoint (DCP) that another save wrote. They load in silence: `.metadata` holds no checksum of any.

What tells it: the files disagree about the optimizer's step; one holds the very tensors of another save; one is older than the save
before. Source: pytorch `torch/distributed/checkpoint/filesystem.py` (`finish`: `.metadata` is written when all files are).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ops.checkpoints import about, dcp, lr
from ops.checkpoints.folders import modified
from ops.checkpoints.patch import crc_of_zeros
from ops.checkpoints.torchfile import StateError, TorchFile, opened
from ops.checkpoints.torchzip import read_at

NEAREST = 2
"""Saves before and after that are compared."""
SMALLEST = 16
"""Bytes; a shorter record, as a step counter, tells nothing."""
_NAME = re.compile(r"(.*?)(\d+)(\D*)")


class Sign(NamedTuple):
    """What was noticed, in which file (None: in more than one). Not `sure`: it can be otherwise."""

    file: Path | None
    what: str
    sure: bool


def signs(checkpoint: Path, files: Mapping[Path, TorchFile]) -> Iterator[Sign]:
    """What says that files of a checkpoint's folder are another save's."""
    nearest = _nearest(checkpoint)
    for folder in sorted({path.parent for path, file in files.items() if file.many}):
        parts = {path: file for path, file in files.items() if path.parent == folder}
        yield from (disagree := list(_steps(parts)))
        twins = [(other.name, other / folder.relative_to(checkpoint)) for other in nearest]
        for name, twin in twins:
            for path in _copies(parts, twin):
                yield Sign(path, f"holds the very same tensors as that of {name}: one is a copy", bool(disagree))
        yield from _older(folder, parts, twins)


def _steps(parts: Mapping[Path, TorchFile]) -> Iterator[Sign]:
    said: dict[int, list[str]] = {}
    for path, file in parts.items():
        if steps := about.optimizer_steps(file):
            said.setdefault(max(steps), []).append(path.name)
    if len(said) > 1:
        told = "; ".join(f"{step} in {', '.join(names[:4])}" for step, names in sorted(said.items()))
        yield Sign(None, f"the files disagree about the optimizer's step: {told}", False)


def _nearest(checkpoint: Path) -> list[Path]:
    """The saves before and after it, by the number in their names."""
    if not (mine := _NAME.fullmatch(checkpoint.name)):
        return []
    found = {}
    for name in os.listdir(checkpoint.parent):
        if (match := _NAME.fullmatch(name)) and (match[1], match[3]) == (mine[1], mine[3]):
            found[int(match[2])] = checkpoint.parent / name
    before = sorted(n for n in found if n < int(mine[2]))[-NEAREST:]
    after = sorted(n for n in found if n > int(mine[2]))[:NEAREST]
    return [found[n] for n in (*before, *after)]


def _copies(parts: Mapping[Path, TorchFile], twins: Path) -> list[Path]:
    """The files whose tensors are all those of another save's file. Weights alone may all be the same: at an LR of 0."""
    same = {path: _same(path, file, twins / path.name) for path, file in parts.items()}
    moments = any(state.get("state") for file in parts.values() for _, state in lr.optimizer_states(file.tree))
    found = [path for path, one in same.items() if one]
    return found if moments or False in same.values() else []


def _same(path: Path, file: TorchFile, twin: Path) -> bool | None:
    """Whether the checksum of each tensor stands in the same place of another save's file; None where none tells: zeros do not."""
    records = file.directory.records if file.directory else ()
    large = sorted((r for r in records if "/data/" in r.name and r.size >= SMALLEST), key=lambda r: -r.size)
    telling = [r for r in large if r.crc != crc_of_zeros(r.size)]
    if not telling:
        return None
    try:
        if twin.stat().st_size != path.stat().st_size:
            return False
        with opened(twin) as fd:
            return all(read_at(fd, r.entry_at + 16, 4) == r.crc.to_bytes(4, "little") for r in telling)
    except (OSError, StateError):
        return False


def _older(folder: Path, parts: Mapping[Path, TorchFile], twins: Sequence[tuple[str, Path]]) -> Iterator[Sign]:
    ended = modified(folder / dcp.METADATA)
    others = ((modified(twin / dcp.METADATA), name) for name, twin in twins)
    earlier = [(time, name) for time, name in others if time is not None and ended is not None and time < ended]
    if not earlier:
        return
    limit, name = max(earlier)
    for path in parts:
        if (time := modified(path)) is not None and time < limit:
            yield Sign(
                path,
                f"was written before {name} was saved, and its `.metadata` after that: is it another save's?",
                False,
            )
