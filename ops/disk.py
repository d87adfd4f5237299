"""How full the disk is, what a save takes of it, and how often the run saves: all that a forecast needs.

`read` gives a `model.Disk`; `Disk.saves_left` and `Disk.seconds_left` are the forecast.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from ops.model import Checkpoint, Disk, Unknown
from ops.quantiles import median

MEASURED = 2
"""Newest complete checkpoints whose size is taken: of them the larger, since the very newest may lack its weights yet."""
RECENT = 6
"""Newest complete checkpoints between which the interval is taken: older ones were thinned out."""


def read(folder: Path, checkpoints: tuple[Checkpoint, ...] | Unknown) -> Disk | Unknown:
    """The file system below `folder`, by statvfs(3), and the pace of these checkpoints. A quota is not seen."""
    try:
        about = os.statvfs(folder)
    except OSError as error:
        return Unknown(f"{folder}: {error.strerror}")
    whole = sorted((c for c in checkpoints or () if c.complete and c.saved is not None), key=lambda c: c.step)
    sizes = [usage(*c.parts) for c in whole[-MEASURED:]]
    return Disk(
        free=about.f_bavail * about.f_frsize,
        inodes=about.f_favail if about.f_files else None,
        save_bytes=max((size for size, _ in sizes), default=None),
        save_files=max((files for _, files in sizes), default=None),
        interval=_interval([c.saved for c in whole[-RECENT:] if c.saved is not None]),
        last=max((c.saved for c in whole if c.saved is not None), default=None),
    )


def usage(*paths: Path) -> tuple[int, int]:
    """Bytes on the disk and inodes of folders with all below them, and of files. What vanishes meanwhile is nothing."""
    size, inodes, todo = 0, len(paths), [str(p) for p in paths if not p.is_file()]
    for path in paths:
        with suppress(FileNotFoundError):
            size += path.lstat().st_blocks * 512 if path.is_file() else 0
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    inodes += 1
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            continue
    return size, inodes


def _interval(times: Sequence[float]) -> float | None:
    gaps = [later - earlier for earlier, later in pairwise(times) if later - earlier >= 1]  # less: a copy
    if not gaps:
        return None
    return median(gaps)
