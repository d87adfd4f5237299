"""From the values to be changed to every byte to be changed: the values, their CRCs, or a whole small file.

A CRC is carried forward from the old one by what changed, so no record is read for it, however large it is,
and a record that was damaged before stays recognisable as damaged. Source: zlib's `crc32_combine`.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import groupby

from msgspec import Struct

from ops.checkpoints.torchfile import StateError, TorchFile, opened
from ops.checkpoints.torchzip import DESCRIPTOR, LOCAL, Directory, Record, data_at, read_at

REBUILD_LIMIT = 1 << 20
"""Bytes; a larger file is not made anew."""
_POLYNOMIAL = 0xEDB88320
_FULL = 0xFFFFFFFF


class Splice(Struct, frozen=True):
    """Bytes of a file and what they are to become, of the same length unless said otherwise."""

    offset: int
    old: bytes
    new: bytes


def with_crc(file: TorchFile, changes: Iterable[Splice]) -> tuple[Splice, ...]:
    """Same-length `changes` of the data, and those of the CRCs that follow from them, by offset."""
    changes = sorted(changes, key=lambda s: s.offset)
    if file.directory is None:
        return tuple(changes)
    found = list(changes)
    with opened(file.path) as fd:
        for record, inside in _by_record(file.directory, changes):
            end = data_at(fd, record) + record.size
            crc = record.crc
            for splice in inside:
                stop = splice.offset + len(splice.old)
                if not data_at(fd, record) <= splice.offset <= stop <= end:
                    raise ValueError(f"bytes {splice.offset} to {stop} are in no record")
                crc ^= _times(_difference(splice), _power(end - stop))
            found += crc_splices(fd, record, crc)
    return tuple(sorted(found, key=lambda s: s.offset))


def crc_splices(fd: int, record: Record, crc: int) -> Iterator[Splice]:
    """Set the record's CRC, in each place where it stands."""
    old, new = record.crc.to_bytes(4, "little"), crc.to_bytes(4, "little")
    if old == new:
        return
    places = [record.entry_at + 16]
    if record.descriptor:
        end = data_at(fd, record) + record.size
        places.append(end + 4 if read_at(fd, end, 4) == DESCRIPTOR else end)
    if not record.descriptor or any(read_at(fd, record.header_at + 14, 4)):
        places.append(record.header_at + 14)
    for at in places:
        if read_at(fd, at, 4) != old:
            raise ValueError(f"record {record.name}: its CRC at byte {at} is not the directory's")
        yield Splice(at, old, new)


def crc_of_zeros(size: int) -> int:
    """The CRC-32 of `size` zero bytes, in O(log size)."""
    return _times(_FULL, _power(size)) ^ _FULL


def crc_joined(first: int, second: int, size: int) -> int:
    """The CRC-32 of bytes with the CRC `first`, followed by `size` bytes with the CRC `second`."""
    return _times(first, _power(size)) ^ second


def rebuilt_bytes(file: TorchFile, changes: Iterable[Splice]) -> bytes:
    """The whole new content of a small file; `changes` may have other lengths within the pickle only."""
    raw = file.path.read_bytes()
    if len(raw) > REBUILD_LIMIT:
        raise StateError(
            f"a number stored in other than 8 bytes, in a file of {len(raw)} bytes: too large to make anew",
            str(file.path),
            "choose a value that fits (an integer for an integer)",
        )
    at, end = file.pickle
    inside = [s for s in changes if at <= s.offset < end]
    for splice in (s for s in changes if s not in inside):
        raw = replaced(raw, splice)
    pickle = respliced(raw[at:end], at, inside, file.frames)
    if file.directory is None:
        return raw[:at] + pickle + raw[end:]
    with opened(file.path) as fd:
        return rezipped(fd, raw, file, pickle)


# -- the parts of a rebuilt file -------------------------------------------------------------------------


def respliced(pickle: bytes, base: int, changes: list[Splice], frames: Iterable[int]) -> bytes:
    """The pickle with other values, and the length of each frame that holds one."""
    sized = []
    for frame in frames:
        length = pickle[frame - base + 1 : frame - base + 9]
        stop = frame + 9 + int.from_bytes(length, "little")
        grown = sum(len(s.new) - len(s.old) for s in changes if frame < s.offset < stop)
        sized.append(Splice(frame + 1, length, (stop - frame - 9 + grown).to_bytes(8, "little")))
    for splice in sorted([*changes, *sized], key=lambda s: -s.offset):
        pickle = replaced(pickle, Splice(splice.offset - base, splice.old, splice.new))
    return pickle


def replaced(data: bytes, splice: Splice) -> bytes:
    """The data with these bytes changed. ValueError when they are not the old ones."""
    stop = splice.offset + len(splice.old)
    if data[splice.offset : stop] != splice.old:
        raise ValueError(f"byte {splice.offset} changed while it was read")
    return data[: splice.offset] + splice.new + data[stop:]


def rezipped(fd: int, raw: bytes, file: TorchFile, pickle: bytes) -> bytes:
    """All records again, one after the other, aligned as torch aligns them, and the directory after them."""
    directory, out = file.directory, b""
    assert directory is not None
    alignment = directory.named(f"{file.root}/.storage_alignment")
    step = int(read_at(fd, data_at(fd, alignment), alignment.size)) if alignment else 64
    central = bytearray(raw[directory.at :])
    stops = [r.header_at for r in directory.records[1:]] + [directory.at]
    for record, stop in zip(directory.records, stops, strict=True):
        at = data_at(fd, record)
        data = pickle if at == file.pickle[0] else raw[at : at + record.size]
        crc = zlib.crc32(data)
        if crc != record.crc and zlib.crc32(read_at(fd, at, record.size)) != record.crc:
            raise ValueError(f"record {record.name} is damaged: its CRC does not match")
        entry = record.entry_at - directory.at
        _renumber(central, entry + 16, record, (crc, len(data)))
        _set(central, entry + 42, record.header_at, len(out))
        header = bytearray(_aligned(raw[record.header_at : at], len(out), step))
        _renumber(header, 14, record, (crc, len(data)), optional=record.descriptor)
        after = bytearray(raw[at + record.size : stop])
        if record.descriptor:
            _renumber(after, 4 if after[:4] == DESCRIPTOR else 0, record, (crc, len(data)))
        out += bytes(header) + data + bytes(after)
    _redirected(central, directory, len(out) - directory.at)
    return out + bytes(central)


def _aligned(header: bytes, at: int, step: int) -> bytes:
    """A local header to stand at `at`; its padding field (`FB`, then Z) is such that its data are aligned."""
    start = LOCAL.size + int.from_bytes(header[26:28], "little")
    field = start + 4
    padding = int.from_bytes(header[start + 2 : field], "little")
    if header[start : start + 2] != b"FB" or padding != len(header) - field:
        return header
    fill = -(at + field) % step
    sizes = ((fill + 4).to_bytes(2, "little"), fill.to_bytes(2, "little"))
    return header[:28] + sizes[0] + header[LOCAL.size : start] + b"FB" + sizes[1] + b"Z" * fill


def _renumber(data: bytearray, at: int, record: Record, new: tuple[int, int], optional: bool = False) -> None:
    """CRC, packed size, size as they stand at `at`; an `optional` 0 (see the descriptor) stays."""
    values = ((record.crc, new[0]), (record.size, new[1]), (record.size, new[1]))
    for place, (old, value) in zip((at, at + 4, at + 8), values, strict=True):
        if not (optional and not any(data[place : place + 4])):
            _set(data, place, old, value)


def _set(data: bytearray, at: int, old: int, new: int, width: int = 4) -> None:
    if data[at : at + width] != old.to_bytes(width, "little"):
        raise ValueError(f"the zip's records and directory disagree ({old} expected)")
    data[at : at + width] = new.to_bytes(width, "little")


def _redirected(central: bytearray, directory: Directory, shift: int) -> None:
    """Move the end records' pointers by `shift` bytes."""
    _set(central, directory.end_at - directory.at + 16, directory.at, directory.at + shift)
    if directory.end64_at is not None:
        end64 = directory.end64_at - directory.at
        _set(central, end64 + 48, directory.at, directory.at + shift, 8)
        locator = directory.end_at - directory.at - 20
        _set(central, locator + 8, directory.end64_at, directory.end64_at + shift, 8)


# -- CRC-32 as polynomials over GF(2), bit-reflected: bit 31 is x^0 --------------------------------------


def _by_record(directory: Directory, changes: list[Splice]) -> Iterator[tuple[Record, list[Splice]]]:
    starts = [r.header_at for r in directory.records]
    for index, inside in groupby(changes, key=lambda s: bisect_right(starts, s.offset) - 1):
        yield directory.records[index], list(inside)


def _difference(splice: Splice) -> int:
    """What the splice adds to the CRC when nothing follows it."""
    mixed = bytes(a ^ b for a, b in zip(splice.old, splice.new, strict=True))
    return zlib.crc32(mixed, _FULL) ^ _FULL


def _times(a: int, b: int) -> int:
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _power(size: int) -> int:
    """x^(8·size): what `size` more bytes multiply a CRC by."""
    result, square = 1 << 31, 1 << 23
    while size:
        if size & 1:
            result = _times(result, square)
        square = _times(square, square)
        size >>= 1
    return result
