"""Write the weights of a checkpoint as safetensors files: ranges of bytes copied into their place, nothing loaded.

The files are built in a folder of their own and renamed when they are whole and on the disk. What was copied is noted
block by block, so that interrupted work goes on where it ended. Memory does not grow with the model.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from ops import lease
from ops.errors import OpsError, Refused
from ops.extract import claim, copying
from ops.extract.job import SHARD, Job, held, identity, job, sync

__all__ = ["SHARD", "Extracted", "Job", "extract", "held", "job"]
LEASE_SECONDS = 600.0


class Extracted(Struct, frozen=True):
    """What was written: the files, bytes in all, those copied by this call, seconds."""

    files: tuple[Path, ...]
    size: int
    copied: int
    seconds: float


def extract(work: Job, told: Callable[[int], None] = lambda _: None) -> Extracted:
    """Do the work, or what an interrupted call left of it. `told` gets the bytes there are so far.

    Raises Busy when somebody else is at it, Refused when the target holds weights already or the disk has no room, Drift
    when the checkpoint changes meanwhile, OpsError for a disk that fails. What was built stays for the next call.
    """
    start = time.monotonic()
    place = work.staging.with_name(f"{work.staging.name}.lease")
    try:
        with lease.acquire(place, f"extract to {work.target}", LEASE_SECONDS) as mine:
            with claim.marked(work) as touch:

                def alive() -> None:
                    mine.renew()
                    touch()

                copied = 0 if _begin(work) else copying.build(work, told, alive)
                _publish(work)
            _clear(work)
    except OSError as error:
        raise OpsError(
            f"the weights cannot be written: {error.strerror}",
            str(error.filename or work.staging),
            "free space or get access, then give the same command again: it goes on where this one ended",
        ) from error
    return Extracted(tuple(work.target / n for n in work.names), work.size, copied, time.monotonic() - start)


def _begin(work: Job) -> bool:
    """Make the staging folder, or take up the one there is. Returns whether all is built already."""
    shutil.rmtree(_gone(work), ignore_errors=True)
    now = identity(work)
    note = work.staging / "job"
    ours = note.is_file() and note.read_text() == now
    ready = ours and (work.staging / "ready").exists()
    if not ready and (there := held(work.target)):
        raise Refused(f"weights are there already: {', '.join(there[:4])}", str(work.target), "move them away first")
    if not ours:
        shutil.rmtree(work.staging, ignore_errors=True)
        lease.make_folder(work.built)
    if not ready:
        _room(work)
        note.write_text(now)
    return ready


def _room(work: Job) -> None:
    there = sum(p.stat().st_blocks * 512 for p in work.built.iterdir())
    free = shutil.disk_usage(work.staging).free
    if free < work.size - there:
        raise Refused(
            f"{work.size:,} bytes are to be written, {free:,} are free",
            str(work.staging),
            "m4ops prune -n shows what could go",
        )


def _publish(work: Job) -> None:
    """Rename the finished files to where they belong, or all at once where the folder is new."""
    if not work.target.exists() and work.built.is_dir():
        lease.make_folder(work.target.parent)
        os.rename(work.built, work.target)
    for name in work.names:
        if (work.built / name).exists():
            os.rename(work.built / name, work.target / name)
    sync(work.target)
    sync(work.target.parent)


def _clear(work: Job) -> None:
    """Nothing is left to resume: weights and marker are as they shall be."""
    gone = _gone(work)
    os.rename(work.staging, gone)  # in one step: half a folder would be another extraction's
    shutil.rmtree(gone)


def _gone(work: Job) -> Path:
    return work.staging.with_name(f"{work.staging.name}.gone")
