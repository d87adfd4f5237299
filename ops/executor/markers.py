"""The markers by which m4's satellites tell each other that a checkpoint is being uploaded, or was.

`started-upload-checkpoint` while somebody does, removed at the end; then `finished-upload-checkpoint`. A started one older
than two hours is a crash's remains (m4's `experiments/pretraining/vloom/common/s3-upload-checkpoints.py`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from ops.errors import Busy
from ops.executor.files import sync_folder
from ops.model import FINISHED

STARTED_UPLOAD, FINISHED_UPLOAD = "started-upload-checkpoint", "finished-upload-checkpoint"
STALE = 2 * 3600.0
"""Seconds after which a started marker means nothing."""


@contextlib.contextmanager
def uploading(checkpoint: Path, ours: Path) -> Iterator[Callable[[], None]]:
    """The started marker set while inside, and none afterwards; the finished one only if nothing was raised.

    What is given keeps the marker fresh. `ours` is a note, outside the checkpoint, that a marker is m4ops's own: what a
    crash leaves is told from somebody else's work by it. Raises Busy for the latter. Hold the lease of the upload.
    A checkpoint of another trainer has no markers.
    """
    if not (checkpoint / FINISHED).exists():
        yield lambda: None
        return
    marker = checkpoint / STARTED_UPLOAD
    _refuse_others(marker, ours)
    ours.touch()
    (checkpoint / FINISHED_UPLOAD).unlink(missing_ok=True)
    _touch(marker)
    try:
        yield lambda: _touch(marker)
    finally:
        marker.unlink(missing_ok=True)
        sync_folder(checkpoint)
        ours.unlink(missing_ok=True)
    set_uploaded(checkpoint)


def set_uploaded(checkpoint: Path) -> None:
    """Say that a whole copy is in the store."""
    if (checkpoint / FINISHED).exists():
        _touch(checkpoint / FINISHED_UPLOAD)
        sync_folder(checkpoint)


def _refuse_others(marker: Path, ours: Path) -> None:
    try:
        age = time.time() - marker.stat().st_mtime
    except FileNotFoundError:
        return
    if age < STALE and not ours.exists():
        raise Busy(
            f"somebody else began to upload this checkpoint {age / 60:.0f} minutes ago",
            str(marker),
            "wait for it; if it is dead, remove the marker",
        )


def _touch(path: Path) -> None:
    """As open to the group as the folder it lies in."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        os.utime(path)
        return
    try:
        os.fchmod(handle, path.parent.stat().st_mode & 0o666)
    finally:
        os.close(handle)
