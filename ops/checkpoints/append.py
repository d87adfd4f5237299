"""Values of another length in a large zip: the pickle is appended anew, and the old bytes stay where they are, unread.

A zip is read from its end. After the file's end come the pickle with its new values and a whole new directory that
names it in the place of the old; nothing before is touched but values of the same length. Cut off again, the file is
the one it was. Source: PKWARE APPNOTE 6.3 (4.3.9 to 4.5.3: zip64); pytorch `caffe2/serialize/inline_container.cc` reads
records by the directory, wherever they stand.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from struct import pack

from ops.checkpoints.patch import Splice, respliced, with_crc
from ops.checkpoints.torchfile import DISTRIBUTED, StateError, TorchFile, opened
from ops.checkpoints.torchzip import (
    DESCRIPTOR_FLAG,
    END,
    END64,
    ENTRY,
    LOCAL,
    LOCATOR,
    Directory,
    Record,
    read_at,
    read_directory,
)

ALIGNMENT = 64
_HUGE, _HUGE16 = 0xFFFFFFFF, 0xFFFF


def appended(file: TorchFile, changes: Iterable[Splice]) -> tuple[Splice, ...]:
    """The bytes to change in place, and what comes after the end: a splice that has no old bytes."""
    changes, directory = tuple(changes), file.directory
    at, end = file.pickle
    if directory is None or file.many:
        raise StateError(
            "a number stored in other than 8 bytes, in a large file that is no zip of its own",
            str(file.path),
            "choose a value that fits (an integer for an integer)",
        )
    inside = [s for s in changes if at <= s.offset < end]
    beside = with_crc(file, [s for s in changes if s not in inside])
    with opened(file.path) as fd:
        size = os.fstat(fd).st_size
        pickle = respliced(read_at(fd, at, end - at), at, inside, file.frames)
        central = bytearray(read_at(fd, directory.at, directory.end - directory.at))
        version = read_at(fd, directory.end64_at + 12, 4) if directory.end64_at is not None else pack("<2H", 45, 45)
    for splice in (s for s in beside if directory.at <= s.offset < directory.end):
        place = splice.offset - directory.at
        central[place : place + len(splice.new)] = splice.new
    old = next(r for r in directory.records if r.name == f"{file.root}/data.pkl")
    record = _record(old.name.encode(), pickle, size)
    entries = _entries(bytes(central), old, directory, pickle, size)
    tail = record + entries + _end(len(directory.records), len(entries), size + len(record), version)
    return (*beside, Splice(size, b"", tail))


def undone(path: Path) -> int | None:
    """Where the file ended before its pickle was appended; None for a file that is as it was written."""
    with opened(path) as fd:
        if read_at(fd, 0, 2) != b"PK" or path.suffix == DISTRIBUTED:
            return None
        records = read_directory(fd).records
        last = records[-1].header_at if len(records) > 1 and records[-1].name.endswith("/data.pkl") else 0
        return last if last and read_at(fd, last - END.size, 4) == b"PK\x05\x06" else None


def cut(file: TorchFile, size: int) -> Splice:
    """What leaves the file's first `size` bytes alone."""
    with opened(file.path) as fd:
        return Splice(size, read_at(fd, size, os.fstat(fd).st_size - size), b"")


def _record(name: bytes, data: bytes, at: int) -> bytes:
    """A record to stand at `at`, its sizes and CRC in its header."""
    fill = -(at + LOCAL.size + len(name) + 4) % ALIGNMENT
    extra = b"FB" + pack("<H", fill) + b"Z" * fill
    sizes = (zlib.crc32(data), len(data), len(data))
    header = LOCAL.pack(b"PK\x03\x04", 0, 0, 0, 0, 0, *sizes, len(name), len(extra))
    return header + name + extra + data


def _entries(central: bytes, old: Record, directory: Directory, data: bytes, at: int) -> bytes:
    """The directory with the pickle's entry naming the new record."""
    start = old.entry_at - directory.at
    values = list(ENTRY.unpack_from(central, start))
    names, extras, comments = values[10:13]
    stop = start + ENTRY.size + names + extras + comments
    name = central[start + ENTRY.size : start + ENTRY.size + names]
    extra = pack("<2HQ", 1, 8, at) if at >= _HUGE else b""
    values[3] &= ~DESCRIPTOR_FLAG
    values[7:10] = zlib.crc32(data), len(data), len(data)
    values[11:13] = len(extra), 0
    values[16] = min(at, _HUGE)
    return central[:start] + central[stop:] + ENTRY.pack(*values) + name + extra


def _end(count: int, length: int, at: int, version: bytes) -> bytes:
    """The end records, zip64's too."""
    end64 = END64.pack(
        b"PK\x06\x06",
        END64.size - 12,
        *(int.from_bytes(v, "little") for v in (version[:2], version[2:])),
        0,
        0,
        count,
        count,
        length,
        at,
    )
    locator = LOCATOR.pack(b"PK\x06\x07", 0, at + length, 1)
    short = min(count, _HUGE16)
    return end64 + locator + END.pack(b"PK\x05\x06", 0, 0, short, short, min(length, _HUGE), min(at, _HUGE), 0)
