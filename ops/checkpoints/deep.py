"""Every checksum of a checkpoint's files, and NaN and infinities in their numbers, at the speed of the disk.

Torch writes a CRC for each record and never looks at it again, so flipped bits load in silence. Files are read in
pieces by a thread a core. ISA-L computes the CRCs and numpy looks for what is not finite where they are installed, both
while other threads run; else zlib does, and a block is searched for the highest byte of a NaN or an infinity (IEEE 754:
all exponent bits set), which healthy numbers do not have. Only what is found is looked at.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from struct import unpack

from msgspec import Struct

from ops.checkpoints import about, safetensors, statefile
from ops.checkpoints.patch import crc_joined
from ops.checkpoints.torchfile import ITEMSIZE, StateError, TorchFile, extents, opened
from ops.checkpoints.torchzip import Record, data_at
from ops.checkpoints.verify import Fault

PIECE = 32 << 20
"""Bytes that one thread looks at in a row."""
_BLOCK = 1 << 21
"""Bytes read at once, into memory used again and again: it stays in the processor's cache. All items fit it."""
_SECOND = {"float32": 0x80, "bfloat16": 0x80, "float64": 0xF0}
"""Exponent bits in the byte below the highest."""
_SHOWN = 3
_NO_STATE = ("callbacks.", "loops.")
"""What Lightning keeps beside the states: the best score so far begins as an infinity."""


class _Range(Struct, frozen=True):
    """A run of bytes to read: what it is called, its dtype if it holds floats, the CRC it must have if it has one."""

    label: str
    at: int
    size: int
    dtype: str = ""
    crc: int | None = None


def faults(path: Path, name: str, numbers: bool, told: Callable[[int], object]) -> tuple[Fault, ...]:
    """What is wrong in the content of one file whose structure is sound. `told` gets the bytes of each piece read.

    Without `numbers` only checksums are compared.
    """
    try:
        ranges = tuple(_ranges(path, numbers))
        pieces = [(r, at, min(PIECE, r.size - at)) for r in ranges for at in range(0, r.size, PIECE)]
        with opened(path) as fd, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            done = pool.map(lambda piece: _look(fd, piece, told), pieces)
            seen = [(r, size, *result) for (r, _, size), result in zip(pieces, done, strict=True)]
    except StateError as error:
        return (Fault(name, error.what),)
    return tuple(_judged(name, seen))


def size_of(paths: Sequence[Path]) -> int:
    """Bytes that a look at these files reads, at most."""
    return sum(p.stat().st_size for p in paths)


def _ranges(path: Path, numbers: bool) -> Iterator[_Range]:
    if path.suffix == ".safetensors":
        yield from (
            _Range(s.name, s.begin, s.end - s.begin, _float(s.dtype)) for s in safetensors.read(path) if numbers
        )
        return
    file = statefile.read(path)
    names, kinds = _held(file)
    if file.directory is None:
        storages = {t.storage.key: t.storage for _, t in about.tensors(file.tree)}
        for key, (start, end) in extents(file, storages.values()).items() if numbers else ():
            yield _Range(names[key], start, end - start, kinds[key])
        return
    starts = {start: key for key, (start, _) in file.storages.items()}
    with opened(path) as fd:
        for record in file.directory.records:
            key = starts.get(data_at(fd, record)) or record.name.removeprefix(f"{file.root}/data/")
            dtype = kinds.get(key, "") if numbers and key != record.name and not file.big_endian else ""
            yield _Range(names.get(key, _short(record, file)), data_at(fd, record), record.size, dtype, record.crc)


def _held(file: TorchFile) -> tuple[dict[str, str], dict[str, str]]:
    """Label and dtype of each storage, by its key."""
    names: dict[str, str] = {}
    kinds: dict[str, str] = {}
    for label, tensor in about.tensors(file.tree):
        label = label.lstrip(".")
        names.setdefault(tensor.storage.key, label)
        kinds.setdefault(tensor.storage.key, "" if label.startswith(_NO_STATE) else _float(tensor.dtype))
    return names, kinds


def _short(record: Record, file: TorchFile) -> str:
    return record.name.removeprefix(f"{file.root}/")


def _float(dtype: str) -> str:
    return dtype if dtype in _SECOND or dtype == "float16" else ""


def _look(fd: int, piece: tuple[_Range, int, int], told: Callable[[int], object]) -> tuple[int, str]:
    """CRC of a piece (0 where none is wanted), and the worst number in it."""
    what, at, size = piece
    crc, worst, done = 0, "", 0
    crc32, finite = crc32_here(), finite_here()
    held = bytearray(min(_BLOCK, size))
    block = memoryview(held)
    while done < size:
        data = block[: min(len(held), size - done)]
        _fill(fd, data, what.at + at + done)
        crc = crc32(data, crc) if what.crc is not None else 0
        if what.dtype and worst != "NaN" and not (finite and finite(data, what.dtype)):
            worst = not_finite(held if len(data) == len(held) else held[: len(data)], what.dtype) or worst
        done += len(data)
        told(len(data))
    return crc, worst


def _fill(fd: int, data: memoryview, at: int) -> None:
    done = 0
    while done < len(data):
        count = os.preadv(fd, [data[done:]], at + done)
        if not count:
            raise ValueError(f"cut off while it was read, at byte {at + done}")
        done += count


@cache
def crc32_here() -> Callable[[memoryview, int], int]:
    """The fastest CRC-32 there is: ISA-L's takes a tenth of zlib's time."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32
    return isal_zlib.crc32


@cache
def finite_here() -> Callable[[memoryview, str], bool] | None:
    """Whether all floats of a block are finite, by numpy; None where it is not installed."""
    try:
        import numpy as np
    except ImportError:
        return None

    def finite(data: memoryview, dtype: str) -> bool:
        if dtype == "bfloat16":  # without its sign bit, a float is not finite from the first full exponent on
            return bool((np.frombuffer(data, np.uint16) << 1).max() < 0xFF00)
        return bool(np.isfinite(np.frombuffer(data, np.dtype(dtype))).all())

    return finite


def not_finite(data: bytes | bytearray, dtype: str) -> str:
    """`NaN`, `Inf` or an empty string: the worst of the little-endian floats in `data`."""
    size, worst = ITEMSIZE[dtype], ""
    top = data[size - 1 :: size]
    if dtype == "float16":
        top = top.translate(_HALF)
    for mark in (0x7F, 0xFF):
        at = top.find(mark)
        while at >= 0:
            found = _worse(data[at * size : at * size + size], dtype)
            if found == "NaN":
                return found
            worst = worst or found
            at = top.find(mark, at + 1)
    return worst


_HALF = bytes(0x7F if byte & 0x7C == 0x7C else 0 for byte in range(256))


def _worse(item: bytes | bytearray, dtype: str) -> str:
    if dtype in _SECOND and item[-2] & _SECOND[dtype] != _SECOND[dtype]:
        return ""
    form = {"float64": "<d", "float16": "<e"}.get(dtype, "<f")
    value = unpack(form, b"\0\0" + item if dtype == "bfloat16" else item)[0]
    return "NaN" if math.isnan(value) else "Inf" if math.isinf(value) else ""


def _judged(name: str, seen: Sequence[tuple[_Range, int, int, str]]) -> Iterator[Fault]:
    crcs: dict[_Range, int] = {}
    worst: dict[_Range, str] = {}
    for what, size, crc, value in seen:
        crcs[what] = crc_joined(crcs[what], crc, size) if what in crcs else crc
        worst[what] = "NaN" if "NaN" in (value, worst.get(what)) else value or worst.get(what, "")
    damaged = [w.label for w, crc in crcs.items() if w.crc is not None and w.crc != crc]
    if damaged:
        yield Fault(name, f"the bytes are not those that were written (CRC-32): {_list(damaged)}")
    for value in ("NaN", "Inf"):
        if labels := [w.label for w, found in worst.items() if found == value]:
            masked = value == "Inf" and not any(part in name for part in ("optim",))
            yield Fault(name, f"{value} in {_list(labels)}", sure=not masked)


def _list(labels: list[str]) -> str:
    more = len(labels) - _SHOWN
    return ", ".join(labels[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
