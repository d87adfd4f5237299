"""The disk's forecast: how much is free, and when the run's saves find no room any more."""

from __future__ import annotations

from typing import Any

from ops.model import Disk, Unknown
from ops.views import words
from ops.views.words import paint, unknown

SOON = 7 * 86400.0
"""Seconds from which on the forecast stands out."""
URGENT = 86400.0
FAR = 90 * 86400.0
"""Seconds from which on it is none: no training's pace of saving holds for so long."""


def disk_line(disk: Disk | Unknown, now: float, color: bool = False) -> str:
    """`3.1 TB free · a save takes 1.2 TB: 2 more fit · full in 2 h 30 min, at a save every 50 min`."""
    if isinstance(disk, Unknown):
        return paint(unknown(disk), "magenta", color)
    free = f"{words.size(disk.free)} free"
    if disk.saves_left is None or disk.save_bytes is None:
        return free
    scarce = f" (by inodes: {disk.inodes:,} free)" if disk.scarce == "inodes" else ""
    fits = f"a save takes {words.size(disk.save_bytes)}: {disk.saves_left:,} more fit{scarce}"
    left = disk.seconds_left(now)
    if left is None or disk.interval is None or left > FAR:
        return f"{free} · {fits}"
    style = "bad" if left < URGENT else "yellow" if left < SOON else ""
    full = paint(f"no room for a save in {words.duration(left)}", style, color)
    return f"{free} · {fits} · {full}, at one every {words.duration(disk.interval)}"


def disk_json(disk: Disk, now: float) -> dict[str, Any]:
    """The fields of `disk` in `m4ops.status/1` and `m4ops.checkpoints/1`."""
    return {
        "free_bytes": disk.free,
        "free_inodes": disk.inodes,
        "save_bytes": disk.save_bytes,
        "save_files": disk.save_files,
        "save_interval_seconds": disk.interval,
        "saves_left": disk.saves_left,
        "seconds_left": disk.seconds_left(now),
        "scarce": disk.scarce,
    }
