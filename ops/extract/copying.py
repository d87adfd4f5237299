"""Copy weights block by block to their places; every block is on the disk before it is noted as done."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct

from ops.checkpoints import safetensors
from ops.checkpoints.cast import Cast, cast
from ops.checkpoints.safetensors import Layout
from ops.checkpoints.torchfile import ITEMSIZE
from ops.checkpoints.weights import Piece, Weight
from ops.errors import Drift
from ops.extract.job import INDEX, Job, identity, sync

BLOCK = 64 << 20
"""Bytes that are copied at once."""
SYNCED = 1 << 27
"""Bytes after which what was copied is forced to the disk and noted, while the copying goes on: what a crash can cost."""
CHUNK = 1 << 20
"""Bytes that pass through this process at once."""
WORKERS = 2
_NO_COPY = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.ETXTBSY}
"""What copy_file_range(2) answers where it cannot: other file systems, old kernels, some network file systems."""


class Block(NamedTuple):
    """A range of bytes of one of the files."""

    file: int
    begin: int
    end: int


class _Desk(Struct, frozen=True):
    """The work with its files open, and what is looked up for every block."""

    work: Job
    sources: Mapping[Path, int]
    targets: Sequence[int]
    log: int
    tensors: Mapping[str, Weight]
    starts: Sequence[Sequence[int]]
    casts: Mapping[tuple[str, str], Cast | None]


def build(work: Job, told: Callable[[int], None], alive: Callable[[], None]) -> int:
    """Copy every block that is not noted as copied. Returns the bytes copied.

    `told` gets the bytes there are, `alive` is called as often. Raises Drift when the checkpoint changes meanwhile.
    """
    before, done = identity(work), _done(work)
    blocks = [b for b in _blocks(work.files) if (b.file, b.begin) not in done]
    left = sum(b.end - b.begin for b in blocks)
    there = work.size - left
    with contextlib.ExitStack() as stack:
        desk = _desk(work, stack)
        told(there)
        pool = stack.enter_context(ThreadPoolExecutor(WORKERS))
        fresh: list[Block] = []
        try:
            for future in as_completed([pool.submit(_block, desk, b) for b in blocks]):
                fresh.append(future.result())
                there += fresh[-1].end - fresh[-1].begin
                told(there)
                alive()
                if sum(b.end - b.begin for b in fresh) >= SYNCED:
                    _note(desk, fresh)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            _note(desk, fresh)
            raise
        _note(desk, fresh)
    if identity(work) != before:
        shutil.rmtree(work.staging)
        where = str(work.weights.files[0].parent)
        raise Drift("the checkpoint changed while its weights were copied; nothing was kept", where)
    _finish(work)
    return left


def _note(desk: _Desk, fresh: list[Block]) -> None:
    """Have these blocks on the disk, then note them: none of them is copied again."""
    for number in {b.file for b in fresh}:
        os.fdatasync(desk.targets[number])
    os.write(desk.log, "".join(f"{b.file} {b.begin}\n" for b in fresh).encode())
    fresh.clear()


def _finish(work: Job) -> None:
    """Write the index, and note that all is there."""
    if text := safetensors.index(work.files):
        (work.built / INDEX).write_text(text, encoding="utf-8")
        sync(work.built / INDEX)
    sync(work.built)
    (work.staging / "ready").touch()
    sync(work.staging)


def _blocks(files: Sequence[Layout]) -> Iterator[Block]:
    for number, layout in enumerate(files):
        for begin in range(len(layout.header), layout.size, BLOCK):
            yield Block(number, begin, min(begin + BLOCK, layout.size))


def _done(work: Job) -> frozenset[tuple[int, int]]:
    """The blocks that are on the disk; a torn last line is none."""
    log = work.staging / "done"
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return frozenset((int(file), int(begin)) for file, begin in (line.split() for line in lines))


def _desk(work: Job, stack: contextlib.ExitStack) -> _Desk:
    def opened(path: Path, flags: int) -> int:
        handle = os.open(path, flags, 0o666)
        stack.callback(os.close, handle)
        return handle

    files = work.weights.files
    _allow_open_files(len(files) + len(work.files) + 64)
    targets = [opened(work.built / layout.name, os.O_RDWR | os.O_CREAT) for layout in work.files]
    for layout, handle in zip(work.files, targets, strict=True):
        os.fchmod(handle, work.staging.stat().st_mode & 0o666)
        os.ftruncate(handle, layout.size)
        _write(handle, layout.header, 0)
    tensors = {w.name: w for w in work.weights.tensors}
    pairs = {(tensors[s.name].dtype, s.dtype) for f in work.files for s in f.slots}
    return _Desk(
        work,
        {path: opened(path, os.O_RDONLY) for path in files},
        targets,
        opened(work.staging / "done", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        tensors,
        [[s.begin for s in f.slots] for f in work.files],
        {pair: cast(*pair) for pair in pairs},
    )


def _allow_open_files(count: int) -> None:
    """Many ranks have many files: as many may be open as the system allows."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count if hard < 0 else min(count, hard), hard))


def _block(desk: _Desk, block: Block) -> Block:
    """Copy a block."""
    layout, target = desk.work.files[block.file], desk.targets[block.file]
    first = max(0, bisect_right(desk.starts[block.file], block.begin) - 1)
    for number in range(first, len(layout.slots)):
        slot = layout.slots[number]
        if slot.begin >= block.end:
            break
        begin, end = max(block.begin, slot.begin), min(block.end, slot.end)
        weight = desk.tensors[slot.name]
        old, new = ITEMSIZE[weight.dtype], ITEMSIZE[slot.dtype]
        part = _clipped(weight.pieces(), *((at - slot.begin) // new * old for at in (begin, end)))
        turn = desk.casts[weight.dtype, slot.dtype]
        if turn is None:
            _copy(desk.sources, part, target, begin)
        else:
            _convert(desk.sources, part, target, begin, turn)
    return block


def _clipped(pieces: Iterable[Piece], begin: int, end: int) -> Iterator[Piece]:
    """The bytes `begin` to `end` of what the pieces are together."""
    at = 0
    for file, offset, length in pieces:
        first, last = max(begin - at, 0), min(end - at, length)
        if first < last:
            yield Piece(file, offset + first, last - first)
        at += length
        if at >= end:
            return


def _copy(sources: Mapping[Path, int], pieces: Iterable[Piece], target: int, at: int) -> None:
    """Inside the kernel where it can, else through this process."""
    step = _kernel_copy
    for file, offset, length in pieces:
        end = at + length
        while at < end:
            try:
                count = step(sources[file], target, end - at, offset, at)
            except OSError as error:
                if step is _through or error.errno not in _NO_COPY:
                    raise
                step = _through
                continue
            if not count:
                raise Drift("a state file ends before its data", str(file))
            at, offset = at + count, offset + count


def _kernel_copy(source: int, target: int, length: int, offset: int, at: int) -> int:
    return os.copy_file_range(source, target, length, offset, at)


def _through(source: int, target: int, length: int, offset: int, at: int) -> int:
    return _write(target, os.pread(source, min(length, CHUNK), offset), at)


def _convert(sources: Mapping[Path, int], pieces: Iterable[Piece], target: int, at: int, turn: Cast) -> None:
    """Gather the pieces to chunks, cast each, write it."""
    buffer = bytearray()
    for file, offset, length in pieces:
        end = offset + length
        while offset < end:
            data = os.pread(sources[file], min(end - offset, CHUNK - len(buffer)), offset)
            if not data:
                raise Drift("a state file ends before its data", str(file))
            buffer += data
            offset += len(data)
            if len(buffer) == CHUNK:
                at += _write(target, turn(buffer), at)
                buffer = bytearray()
    if buffer:
        _write(target, turn(buffer), at)


def _write(target: int, data: bytes, at: int) -> int:
    """Write all of it. Returns the bytes."""
    view = memoryview(data)
    while view:
        count = os.pwrite(target, view, at)
        view, at = view[count:], at + count
    return len(data)
