"""Bring a copy back: built in the run's own folder, each part compared with its sum, whole before it is moved in."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from ops import lease, state
from ops.checkpoints import layouts
from ops.errors import Drift, OpsError, Refused
from ops.executor import markers
from ops.executor.files import sync_folder
from ops.model import OPS_DIR, Run
from ops.store import manifest as lists
from ops.store.line import How, Line, Place, fetched, finished, place, pool
from ops.store.manifest import Copied, Manifest, Piece
from ops.store.noted import manifest_of, remember
from ops.store.push import FILES, LEASE_SECONDS, Told

TRIES = 3
"""How often a part is fetched that comes with another content than was pushed."""


class Pulled(Struct, frozen=True):
    """A copy that is whole in `staging`, to be moved to `target`: its bytes, those fetched by this call, seconds."""

    manifest: Manifest
    at: Place
    staging: Path
    target: Path
    fetched: int
    seconds: float


def held(run: Run, source: str, endpoint: str = "") -> tuple[str, ...]:
    """The checkpoints of which the store holds a whole copy, by step."""
    at, line = place(source), Line(endpoint)
    prefix = at.key(run.name) + "/"

    def names() -> list[str]:
        pages = line.client.get_paginator("list_objects_v2").paginate(Bucket=at.bucket, Prefix=prefix, Delimiter="/")
        return [str(entry["Key"]) for page in pages for entry in page.get("Contents", [])]

    found = line.ask(f"s3://{at.bucket}/{prefix}", names)
    whole = [n.removeprefix(prefix).removesuffix(lists.SUFFIX) for n in found if n.endswith(lists.SUFFIX)]
    return tuple(sorted(whole, key=lambda name: (step_of(name), name)))


def step_of(name: str) -> int:
    """The step that a checkpoint's name ends with; -1 where it holds no number."""
    numbers = re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else -1


def named(run: Run, step: int, source: str, endpoint: str = "") -> str:
    """The name of the copy of a step. Raises Refused where the store holds no whole one."""
    names = held(run, source, endpoint)
    if found := [name for name in names if step_of(name) == step]:
        return found[0]
    steps = ", ".join(str(step_of(name)) for name in names[-8:]) or "none"
    raise Refused(
        f"the store holds no whole copy of step {step}", place(source).url(run.name), f"the last ones it holds: {steps}"
    )


def find(run: Run, name: str, source: str, endpoint: str = "") -> Manifest:
    """The list of a copy. Raises Refused where the store holds no whole one."""
    at = place(source)
    return _found(Line(endpoint), at, run, name)


def pull(
    run: Run,
    name: str,
    source: str,
    *,
    endpoint: str = "",
    how: How | None = None,
    told: Told = lambda done, total: None,
) -> Pulled:
    """Fetch a copy, or what an interrupted call left of it. The caller moves it in, then calls `settle`.

    Raises Busy, Refused (it is here already, there is no whole copy, no room, no right), Unreachable, Drift (a file was
    replaced in the store meanwhile), OpsError. What was fetched stays for the next call.
    """
    start, at, line = time.monotonic(), place(source), Line(endpoint, how)
    target, staging = layouts.home(run) / name, run.dir / OPS_DIR / "pull" / name
    refuse_overwrite(target)
    try:
        with lease.acquire(state.folder(run) / "store" / f"{name}.lease", f"pull {name}", LEASE_SECONDS) as mine:
            found = _found(line, at, run, name)
            work = _Pull(line, at, run, found, staging, told)
            _room(staging, found, work.present())
            work.fetch(mine.renew)
            work.finish()
            whole = staging / name if found.one_file else staging
            return Pulled(found, at, whole, target, work.new, time.monotonic() - start)
    except OSError as error:
        raise OpsError(
            f"the copy cannot be written: {error.strerror}",
            str(error.filename or staging),
            "free space or get access, then give the same command again: it goes on where this one ended",
        ) from error


def refuse_overwrite(target: Path) -> None:
    """Raises Refused where the checkpoint is here already."""
    if os.path.lexists(target):
        raise Refused(
            "the checkpoint is here already, and a pull overwrites nothing",
            str(target),
            "m4ops verify-checkpoint --deep tells whether it is sound; move it away to have the copy",
        )


def settle(run: Run, pulled: Pulled) -> None:
    """After the checkpoint was moved in: say that the store has its copy, and note what it is made of."""
    if pulled.manifest.one_file:
        pulled.staging.parent.rmdir()
    markers.set_uploaded(pulled.target)
    remember(run, pulled.at, pulled.target, pulled.manifest, lists.tree(pulled.target).files)


def _found(line: Line, at: Place, run: Run, name: str) -> Manifest:
    found = manifest_of(line, at, run, name)
    if found is None:
        raise Refused(
            "the store holds no whole copy of this checkpoint",
            at.url(run.name, name),
            "m4ops pull without a step lists what there is",
        )
    return found


def _room(staging: Path, found: Manifest, there: int) -> None:
    lease.make_folder(staging)
    free = shutil.disk_usage(staging).free
    if free < found.size - there:
        raise Refused(
            f"{found.size - there:,} bytes are to be fetched, {free:,} are free",
            str(staging),
            "m4ops prune -n shows what could go",
        )


class _Pull:
    """One pull under way."""

    def __init__(self, line: Line, at: Place, run: Run, found: Manifest, staging: Path, told: Told) -> None:
        self.line, self.at, self.run, self.found = line, at, run, found
        self.staging, self.told = staging, told
        self.parts = ThreadPoolExecutor(line.how.workers)
        self.lock = threading.Lock()
        self.done = self.new = 0

    def present(self) -> int:
        """Bytes on the disk of an earlier attempt."""
        files = (self.staging / f.piece.name for f in self.found.files)
        return sum(p.stat().st_blocks * 512 for p in files if p.is_file())

    def fetch(self, alive: Callable[[], None]) -> None:
        for name in self.found.folders:
            lease.make_folder(self.staging / name)
        with self.parts, pool(FILES, self.line) as files:
            finished([files.submit(self._file, copied) for copied in self.found.files], alive)

    def finish(self) -> None:
        """Links, modes and times as they were; nothing beside what was pushed; all on the disk."""
        names = {f.piece.name for f in self.found.files} | self.found.folders.keys() | self.found.links.keys()
        for name, target in self.found.links.items():
            (self.staging / name).unlink(missing_ok=True)
            os.symlink(target, self.staging / name)
        for path in sorted(self.staging.rglob("*"), reverse=True):
            if path.relative_to(self.staging).as_posix() not in names:
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        for name, mode in self.found.folders.items():
            os.chmod(self.staging / name, mode)
            sync_folder(self.staging / name)
        sync_folder(self.staging)

    def _file(self, copied: Copied) -> None:
        piece, path = copied.piece, self.staging / copied.piece.name
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            old = os.fstat(handle).st_size
            os.ftruncate(handle, piece.size)
            numbers = range(len(piece.parts)) if piece.size else ()
            finished([self.parts.submit(self._part, copied, n, handle, old) for n in numbers])
            os.fchmod(handle, piece.mode)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.utime(path, ns=(piece.modified, piece.modified))

    def _part(self, copied: Copied, number: int, handle: int, old: int) -> None:
        """Have one part in its place: there already from an earlier attempt, or fetched and compared."""
        self.line.in_time()
        begin, end = copied.piece.parts[number]
        wanted = copied.sums[number]
        if end <= old and hashlib.sha256(os.pread(handle, end - begin, begin)).hexdigest() == wanted:
            return self._count(end - begin, 0)
        data = memoryview(self._whole(copied.piece, (begin, end), wanted))
        while data:
            written = os.pwrite(handle, data, begin)
            data, begin = data[written:], begin + written
        self._count(end - copied.piece.parts[number][0], end - copied.piece.parts[number][0])

    def _whole(self, piece: Piece, bounds: tuple[int, int], wanted: str) -> bytes:
        where = self.at.url(self.run.name, self.found.checkpoint, piece.name)
        key = {"Bucket": self.at.bucket, "Key": self.at.key(self.run.name, self.found.checkpoint, piece.name)}
        for _ in range(TRIES):
            data = fetched(self.line, key, bounds, where)
            if data is None:
                raise OpsError("a file of the copy is no longer in the store", where, "pull another step")
            if hashlib.sha256(data).hexdigest() == wanted:
                return data
        if manifest_of(self.line, self.at, self.run, self.found.checkpoint) != self.found:
            raise Drift("the copy was replaced while it was fetched", where, "pull it again")
        raise OpsError(
            f"the copy is damaged: bytes {bounds[0]} to {bounds[1]} are not what was pushed",
            where,
            "if the checkpoint still lies elsewhere, push it again from there; else pull another step",
        )

    def _count(self, size: int, new: int) -> None:
        with self.lock:
            self.done, self.new = self.done + size, self.new + new
            self.told(self.done, self.found.size)
