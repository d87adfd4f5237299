"""The marker that keeps m4's own converter away from a checkpoint while m4ops writes its weights.

`unwrapped_model/started-convert-checkpoint` says that somebody converts; one older than two hours is a crash's remains
(m4's `experiments/pretraining/vloom/common/convert-checkpoints.py`, which also removes it at the end).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ops.checkpoints.beside import MARKER, STALE, WEIGHTS
from ops.errors import Busy
from ops.extract.job import Job

OURS = b"m4ops extract\n"
"""What our marker says: whoever holds the lease knows it for the remains of a crash."""


@contextlib.contextmanager
def marked(work: Job) -> Iterator[Callable[[], None]]:
    """The marker set while inside, for a target that is a checkpoint's unwrapped_model/; what is given keeps it fresh.

    Raises Busy when somebody else set it less than two hours ago.
    """
    if work.target.name != WEIGHTS or not work.target.is_dir():
        yield lambda: None
        return
    marker = work.target / MARKER
    if not _set(marker, work.staging.with_name(f"{work.staging.name}.claim")) and marker.read_bytes() != OURS:
        age = time.time() - marker.stat().st_mtime
        if age < STALE:
            raise Busy(
                f"a conversion of this checkpoint began {age / 60:.0f} minutes ago",
                str(marker),
                "wait for it; if it is dead, remove the marker",
            )
    os.utime(marker)
    try:
        yield lambda: os.utime(marker)
    finally:
        marker.unlink(missing_ok=True)


def _set(marker: Path, staged: Path) -> bool:
    """Set the marker with its content, in one step; False: there is one."""
    staged.write_bytes(OURS)
    try:
        os.link(staged, marker)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        return _set_unlinked(marker)
    finally:
        staged.unlink()
    return True


def _set_unlinked(marker: Path) -> bool:
    try:
        with marker.open("xb") as file:
            file.write(OURS)
    except FileExistsError:
        return False
    return True
