"""A checkpoint's state files as the interventions see them, and what identifies their content."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec.structs import replace

from ops.checkpoints import lr, statefile
from ops.checkpoints.patch import Splice
from ops.checkpoints.torchfile import TorchFile
from ops.errors import OpsError
from ops.model import Checkpoint, LrSite, Span, StateFile, Unknown

WHOLE = 16 << 20
"""Bytes up to which a state file's fingerprint covers all of it."""
TAIL = 4 << 20
"""Of a larger zip the end is hashed: its central directory holds the CRC-32 of every record."""


class Numbered(Protocol):
    """An edit of one number: what `ops.actions.Edit` offers."""

    @property
    def label(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def before(self) -> float: ...
    @property
    def after(self) -> float: ...
    @property
    def stored(self) -> str: ...


def read(checkpoint: Checkpoint, reset: bool) -> tuple[StateFile, ...] | Unknown:
    """Every state file with its LR fields; Unknown, with the reason, if one cannot be read.

    For a `reset` also with its optimizer moments, and its fingerprint, for which up to 16 MB of it are read.
    """
    from ops.checkpoints import layouts

    try:
        paths = layouts.state_files(checkpoint)
        names = {path: path.relative_to(checkpoint.home).as_posix() for path in paths}
        return _joined([_state_file(path, name, paths, reset) for path, name in names.items()])
    except OpsError as error:
        return Unknown(f"{error.what}" + (f" ({error.where})" if error.where else ""))
    except OSError as error:
        return Unknown(f"{error.filename}: {error.strerror}")


def _state_file(path: Path, name: str, paths: Sequence[Path], reset: bool) -> StateFile:
    file = statefile.read(path)
    scheduler = lr.scheduler_of(file)
    found = StateFile(
        name,
        lr=lr.sites_of(file, name),
        counters=lr.counters_of(file, name),
        scheduler=scheduler,
        stride=_stride(path, scheduler, paths) if scheduler else 1,
        grouped=not (file.many and _flattened(path.parent)),
    )
    return replace(found, fingerprint=fingerprint(path), moments=_moments(file)) if reset else found


def _flattened(folder: Path) -> bool:
    from ops.checkpoints import dcp

    return dcp.flattened(folder)


def _joined(files: Sequence[StateFile]) -> tuple[StateFile, ...]:
    """A scheduler whose numbers are shared out among a distributed checkpoint's files, whole in each that has some of them."""
    parts = {f.file: f.scheduler for f in files if f.scheduler is not None and f.file.endswith(".distcp")}
    whole: dict[str, Any] = {key: None for part in parts.values() for key in part}
    whole |= {key: value for part in parts.values() for key, value in part.items() if value is not None}
    return tuple(replace(f, scheduler=whole) if f.file in parts else f for f in files)


def _stride(path: Path, scheduler: Mapping[str, Any], paths: Sequence[Path]) -> int | Unknown:
    """Accelerate steps a scheduler that it prepared once for every process, unless `split_batches` is set.

    Source: accelerate `scheduler.py`. It saves such a one as `scheduler.bin`, and random states for every process.
    """
    processes = len(list(path.parent.glob("random_states_*.pkl")))
    count = scheduler.get("last_epoch")
    if processes < 2 or not isinstance(count, int) or not re.fullmatch(r"scheduler(_\d+)?\.bin", path.name):
        return 1
    from ops.checkpoints.about import optimizer_steps

    steps = {n for p in paths if not lr.holds_scheduler(p.name) for n in optimizer_steps(statefile.read(p))}
    most = max(steps, default=0)
    if most and count in (most, most * processes):
        return count // most
    return Unknown(f"its scheduler stands at {count} after {most} optimizer steps of {processes} processes")


def _moments(file: TorchFile) -> tuple[Span, ...] | Unknown:
    if lr.holds_scheduler(file.path.name) or "model_states" in file.path.name:
        return ()
    from ops.checkpoints import moments

    try:
        return moments.ranges_of(file)
    except OpsError as error:
        return Unknown(error.what)


def fingerprint(path: Path) -> str:
    """What tells one content from another; empty when there is no such file."""
    import hashlib

    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > WHOLE and file.read(2) == b"PK":
                file.seek(size - TAIL)
                return f"zip:{size}:{hashlib.sha256(file.read()).hexdigest()}"
            file.seek(0)
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def numbers_of_file(path: Path) -> tuple[LrSite, ...]:
    """The LR fields and step counters a state file holds now."""
    file = statefile.read(path)
    return (*lr.sites_of(file, path.name), *lr.counters_of(file, path.name))


def as_stored(kind: str, value: float) -> float:
    """A value as a site of this kind keeps it."""
    return lr.as_stored(kind, value)


def site(path: Path, edit: Numbered) -> LrSite:
    """Where an edit's number stood when the plan was made."""
    return LrSite(path.name, edit.label, edit.before, edit.stored, edit.offset)


def patch(path: Path, edits: Iterable[Numbered]) -> tuple[Splice, ...]:
    """The bytes to change in place for these edits, checksums included.

    Where a value takes another length, a new end of the file; and to take that back, the end to cut off.
    """
    wanted = [(site(path, e), e.after) for e in edits]
    if cut := lr.cut_back(path, wanted):
        return cut
    try:
        return lr.edit(path, wanted)
    except lr.NotSameLength:
        return lr.appended(path, wanted)


def rebuilt(path: Path, edits: Iterable[Numbered]) -> bytes:
    """The whole new content of a small file with these edits."""
    return lr.rebuilt(path, [(site(path, e), e.after) for e in edits])


def copy_rewritten(source: Path, place: Path, zero: Sequence[Span], edits: Sequence[Numbered]) -> None:
    """Copy a state file with its optimizer moments zeroed and numbers set. Raises OpsError if the spans moved."""
    from ops.checkpoints import moments

    spans, splices = moments.zeroing(source, [(site(source, e), e.after) for e in edits])
    if spans != tuple(zero):
        raise OpsError(
            "the optimizer's moments are not where they were when this was planned", str(source), "make the plan again"
        )
    with source.open("rb") as old, place.open("wb") as file:
        _copy_around(old.fileno(), file.fileno(), spans)
        for piece in splices:
            os.pwrite(file.fileno(), piece.new, piece.offset)


def copy_as_edited(source: Path, place: Path, zero: Sequence[Span], edits: Sequence[Numbered], small: int) -> None:
    """Copy a state file that the same plan edits, as it is after that, whether it was edited already or not.

    Up to `small` bytes the copy may be of another length. Raises OpsError if the source is neither.
    """
    now = {s.label: s.value for s in numbers_of_file(source)} if edits else {}
    left = [e for e in edits if now.get(e.label) != as_stored(e.stored, e.after)]
    if zero:
        copy_rewritten(source, place, zero, left)
    elif left and source.stat().st_size <= small:
        place.write_bytes(rebuilt(source, left))
    else:
        import shutil

        shutil.copyfile(source, place)
        with place.open("r+b") as file:
            for piece in patch(source, left) if left else ():
                os.pwrite(file.fileno(), piece.new, piece.offset)


def _copy_around(source: int, place: int, spans: Sequence[Span]) -> None:
    """Copy all but the spans, which stay holes: they read as zeros and take no room."""
    size = os.fstat(source).st_size
    os.ftruncate(place, size)
    at = 0
    for begin, end in (*((s.offset, s.offset + s.length) for s in sorted(spans, key=lambda s: s.offset)), (size, size)):
        os.lseek(place, at, os.SEEK_SET)
        while at < begin:
            done = os.sendfile(place, source, at, begin - at)
            if not done:
                raise OpsError("a file became shorter while it was copied")
            at += done
        at = max(at, end)
