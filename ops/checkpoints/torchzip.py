"""The zip container of a torch file: its records, where their bytes stand, whether it all holds together.

Source: PKWARE APPNOTE 6.3 (the format); pytorch `caffe2/serialize/inline_container.cc` (records are stored
uncompressed and 64-byte aligned by a padding field, the CRC follows the data and stands in the directory).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator

from msgspec import Struct

END = struct.Struct("<4s4H2IH")
END64 = struct.Struct("<4sQ2H2I4Q")
LOCATOR = struct.Struct("<4sIQI")
ENTRY = struct.Struct("<4s6H3I5H2I")
LOCAL = struct.Struct("<4s5H3I2H")
DESCRIPTOR = b"PK\x07\x08"
DESCRIPTOR_FLAG = 8
"""Of a record's flags: a CRC follows its data."""
_NOT_READ = 0x2061
"""Of a record's flags: encrypted, in three ways, or patched."""
_FOLDER = 0x10
"""Of a record's external attributes."""
_HUGE, _HUGE16 = 0xFFFFFFFF, 0xFFFF
_SHOWN = 5


class Record(Struct, frozen=True):
    """One record. `header_at` is its local header, `entry_at` its entry in the central directory."""

    name: str
    header_at: int
    entry_at: int
    size: int
    crc: int
    stored: bool
    descriptor: bool
    """A CRC follows the data."""


class Directory(Struct, frozen=True):
    """The records in the order of their bytes, the central directory's range, its end records' places."""

    records: tuple[Record, ...]
    at: int
    end: int
    end64_at: int | None
    end_at: int

    def named(self, name: str) -> Record | None:
        return next((r for r in self.records if r.name == name), None)


def read_at(fd: int, at: int, size: int) -> bytes:
    """Exactly `size` bytes at `at`; ValueError when the file ends before."""
    parts, left = [], size
    while left > 0:
        part = os.pread(fd, left, at + size - left) if at < 1 << 62 else b""
        if not part:
            raise ValueError(f"cut off: bytes {at} to {at + size} were to be read")
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def read_directory(fd: int, start: int = 0, size: int | None = None) -> Directory:
    """The central directory of the zip that takes `size` bytes from `start` (all of the file, if none are given).

    Places are those of the file. ValueError says what is wrong with it.
    """
    end_at = _end_record(fd, start, os.fstat(fd).st_size if size is None else start + size)
    _, *disks, here, count, length, at, _ = END.unpack(read_at(fd, end_at, END.size))
    end64_at = None
    locator_at = max(end_at - LOCATOR.size, start)
    locator = read_at(fd, locator_at, end_at - locator_at)
    if len(locator) == LOCATOR.size and locator[:4] == b"PK\x06\x07":
        _, disk, place, of = LOCATOR.unpack(locator)
        end64_at = start + int(place)
        end64 = END64.unpack(read_at(fd, end64_at, END64.size))
        if end64[:2] != (b"PK\x06\x06", END64.size - 12) or (disk, of) != (0, 1):
            raise ValueError("the zip64 end record is not where it is said to be")
        disks, here, (count, length, at) = list(end64[4:6]), end64[6], end64[7:]
    if any(disks) or here != count:
        raise ValueError("the zip's end record speaks of other disks")
    at += start
    stop = end_at if end64_at is None else end64_at
    if at + length != stop:
        raise ValueError(f"the central directory ends at byte {at + length}, its end record is at {stop}")
    records = sorted(_entries(read_at(fd, at, length), at, start), key=lambda r: r.header_at)
    if len(records) != count:
        raise ValueError(f"the central directory has {len(records)} entries of {count}")
    return Directory(tuple(records), at, at + length, end64_at, end_at)


def data_at(fd: int, record: Record) -> int:
    """Where the record's data begin. ValueError when its local header is not its own."""
    name = record.name.encode()
    local = read_at(fd, record.header_at, LOCAL.size + len(name))
    signature, *_, name_size, extra_size = LOCAL.unpack_from(local)
    if signature != b"PK\x03\x04" or name_size != len(name) or local[LOCAL.size :] != name:
        raise ValueError(f"record {record.name}: no local header at byte {record.header_at}")
    return record.header_at + LOCAL.size + len(name) + int(extra_size)


def record_problems(fd: int, directory: Directory) -> Iterator[str]:
    """What does not hold together between the directory and the records; their data are not read."""
    names = [r.name for r in directory.records]
    if len(set(names)) != len(names):
        yield "a record name occurs twice"
    stops = [r.header_at for r in directory.records[1:]] + [directory.at]
    for record, stop in zip(directory.records, stops, strict=True):
        try:
            _check(fd, record, stop)
        except ValueError as error:
            yield str(error)


def shown(problems: Iterator[str]) -> tuple[str, ...]:
    """The first few problems, and how many more there are."""
    found = list(problems)
    more = len(found) - _SHOWN
    return tuple(found[:_SHOWN]) + ((f"and {more} more records",) if more > 0 else ())


def _end_record(fd: int, start: int, stop: int) -> int:
    last = max(stop - END.size, start)
    tail = read_at(fd, last, stop - last)
    if tail[:4] == b"PK\x05\x06" and tail[-2:] == b"\0\0":
        return last
    begin = max(last - _HUGE16, start)
    tail = read_at(fd, begin, stop - begin)
    found = tail.rfind(b"PK\x05\x06")
    if found < 0 or found + END.size > len(tail):
        raise ValueError("no zip end record: cut off, or no torch file")
    end = begin + found + END.size + int(END.unpack_from(tail, found)[-1])
    if end != stop:
        raise ValueError(f"the zip ends at byte {end}, the file at {stop}")
    return begin + found


def _entries(directory: bytes, base: int, start: int) -> Iterator[Record]:
    at = 0
    while at < len(directory):
        if len(directory) - at < ENTRY.size or directory[at : at + 4] != b"PK\x01\x02":
            raise ValueError(f"the central directory is damaged at byte {base + at}")
        values = ENTRY.unpack_from(directory, at)
        flags, method, crc, packed, size = values[3], values[4], *values[7:10]
        names, extras, comments, disk, _, attributes, header = values[10:17]
        extra_at = at + ENTRY.size + names
        name = directory[at + ENTRY.size : extra_at].decode("utf-8", "replace")
        if flags & _NOT_READ or disk or attributes & _FOLDER:
            raise ValueError(f"the central directory says of record {name} what torch does not read")
        if _HUGE in (size, packed, header):
            wide = _zip64(directory[extra_at : extra_at + extras])
            size, packed, header = (next(wide, v) if v == _HUGE else v for v in (size, packed, header))
        yield Record(
            name, start + header, base + at, size, crc, method == 0 and packed == size, bool(flags & DESCRIPTOR_FLAG)
        )
        at = extra_at + extras + comments
    if at > len(directory):
        raise ValueError("the central directory's last entry is longer than the directory")


def _zip64(extra: bytes) -> Iterator[int]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.Struct("<2H").unpack_from(extra, at)
        if kind == 1:
            yield from (int.from_bytes(extra[i : i + 8], "little") for i in range(at + 4, at + 4 + length, 8))
        at += 4 + length


def _check(fd: int, record: Record, stop: int) -> None:
    if not record.stored:
        raise ValueError(f"record {record.name} is compressed; torch stores its records")
    end = data_at(fd, record) + record.size
    if not record.descriptor:
        if end > stop:
            raise ValueError(f"record {record.name} runs into what follows it")
        return
    after = read_at(fd, end, min(max(stop - end, 0), 24))
    crc, size = record.crc.to_bytes(4, "little"), record.size
    forms = [DESCRIPTOR + crc + size.to_bytes(w, "little") * 2 for w in (4, 8) if size >> 8 * w == 0]
    forms += [form[4:] for form in forms]
    if not any(after.startswith(form) for form in forms):
        raise ValueError(f"record {record.name}: what follows its data is not its CRC and size")
