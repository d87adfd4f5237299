"""The marker that keeps m4's own converter away from a checkpoint while m4ops writes its weights.

`unwrapped_model/started-convert-checkpoint` says that somebody converts; one older than two hours is a crash's remains
(m4's `experiments/pretraining/vloom/common/convert-checkpoints.py`, which also removes it at the end).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from ops.errors import Busy
from ops.extract.job import Job

MARKER = "started-convert-checkpoint"
STALE = 2 * 3600.0
"""Seconds after which the marker means nothing."""


@contextlib.contextmanager
def marked(work: Job) -> Iterator[Callable[[], None]]:
    """The marker set while inside, for a target that is a checkpoint's unwrapped_model/; what is given keeps it fresh.

    Raises Busy when somebody else set it less than two hours ago.
    """
    if work.target.name != "unwrapped_model" or not work.target.is_dir():
        yield lambda: None
        return
    marker = work.target / MARKER
    try:
        os.close(os.open(marker, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except FileExistsError:
        age = time.time() - marker.stat().st_mtime
        if age < STALE and not (work.staging / "job").exists():
            raise Busy(
                f"a conversion of this checkpoint began {age / 60:.0f} minutes ago",
                str(marker),
                "wait for it; if it is dead, remove the marker",
            ) from None
        os.utime(marker)
    try:
        yield lambda: os.utime(marker)
    finally:
        marker.unlink(missing_ok=True)
