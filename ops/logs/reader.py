"""Reading a log that somebody else is writing: whole, its end, or on from where the last look stopped.

Bytes are searched block by block for the literals of the catalogue, and only lines that contain one are parsed. Lines end at
`\\n`, and at the `\\r` of progress bars, which line numbers do not count. The last line counts once its end is there, or if
nothing was written for a while: then it is taken if it tells something, and what follows of it is no line of its own.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct, field
from msgspec.structs import astuple, replace

from ops.logs import events, formats
from ops.logs.cursor import Cursor
from ops.logs.events import TRACEBACK, is_header, parse_event, traceback_end, traceback_event
from ops.logs.progress import Place, clean, follow
from ops.logs.scan import Scanner, scanner
from ops.logs.template import Columns, Template, columns, template
from ops.model import LogEvent, LogView, Sample, Unknown

BLOCK = 1 << 19
LONG = 1 << 20
"""A line longer than this is taken in parts, and a traceback longer than this is not waited for."""
WIDTH = 64 << 10
"""How much of one line is parsed."""
COUNTED = 64 << 20
"""Up to this size the lines before a tail are counted."""
HEAD = 1024
NEWLINE = ord("\n")
QUIET = 60.0
"""Seconds after which the last line of a log that nobody writes to may end without `\\n`."""
LITERALS = (*formats.LITERALS, *events.LITERALS)


class File(Struct, frozen=True):
    """A log's file as it is now: its bytes, which one it is, and when it was last written, in ns."""

    path: Path
    bytes: BinaryIO
    device: int
    inode: int
    size: int
    written: int


class Look(Struct, frozen=True):
    """What is looked for: the catalogue's literals and the formats' own, or the template or columns in their place."""

    search: Scanner
    own: Template | Columns | None

    @classmethod
    def at(cls, file: File, size: int, progress: str) -> Look:
        """For `size` bytes. Raises BadInput if `progress` (see `ops.logs.template`) is no template."""
        own = template(progress) if progress else _columns(file) if file.path.suffix.lower() == ".csv" else None
        return cls(scanner((own.literal, *events.LITERALS) if own else LITERALS, size), own)


class _Found(Struct):
    """What a scan has gathered, and where it stands. `line` (lines before) is None if not counted."""

    look: Look
    offset: int
    line: int | None
    samples: list[Sample] = field(default_factory=list)
    events: list[LogEvent] = field(default_factory=list)
    place: Place = field(default_factory=Place)
    seen: int = 0
    """Bytes behind `offset` that were read and hold no end of a line: they are read again, with more."""
    before: bytes = b""
    """What stands on the line before the block, where a `\\r` parts them."""
    quiet: bool = False
    """Was a last line without an end looked at?"""
    final: bool = False
    """Will no more be written? Then a traceback that has not ended is one too."""

    @property
    def number(self) -> int:
        """1-based number of the line at `offset`, or 0."""
        return 0 if self.line is None else self.line + 1

    def move(self, data: bytes, start: int, end: int) -> int:
        """Go from `data[start]`, where it stands, to `data[end]`."""
        self.offset += end - start
        if self.line is not None:
            self.line += data.count(b"\n", start, end)
        return end

    def header(self, text: str) -> None:
        """Note what stands before `Traceback` on its line."""
        event = parse_event(text[: text.find("Traceback")].encode(), self.number, self.offset)
        if event:
            self.events.append(event)

    def traceback(self, data: bytes, header: int, last: tuple[int, int]) -> None:
        """Note the traceback whose header line is at `data[header]`, where it stands, by its last line."""
        start, stop = last
        number = self.number and self.number + data.count(b"\n", header, header + start)
        text = clean(data[header + start : header + min(stop, start + WIDTH)]).strip()
        # A line that has a signature of its own is met by itself.
        if parse_event(text.encode()) is None:
            self.events.append(traceback_event(text, number, self.offset + start))


def read_log(
    path: Path, last_bytes: int | None = None, progress: str = "", finished: bool = False
) -> LogView | Unknown:
    """The log, or what its last `last_bytes` hold (less a line cut by that). Unknown if it cannot be read.

    `progress` says how its progress lines look, where they are of no known format (`ops.logs.template`). In a log that is
    `finished` the last line needs no end.
    Samples and events have line 0 when only the end of a log of 64 MiB or more is read.
    """
    try:
        with opened(path) as file:
            return read_file(file, last_bytes, progress, finished)
    except OSError as error:
        return unknown(path, error)


def read_file(file: File, last_bytes: int | None = None, progress: str = "", finished: bool = False) -> LogView:
    """The same of an open file. Raises OSError."""
    skip = max(0, file.size - last_bytes) if last_bytes is not None else 0
    found = _Found(Look.at(file, file.size - skip, progress), *_line_start(file.bytes, skip, file.size))
    begin = found.offset
    while _block(file, found):
        pass
    _rest(file, found, finished)
    return _view(file, found, begin)


def batches(
    file: File, start: Cursor | None = None, progress: str = "", finished: bool = False, skip: int = 0
) -> Iterator[tuple[LogView, Cursor]]:
    """A file from `start` (None: from its byte `skip`) on, block by block, at least once: memory does not grow with it.

    Raises OSError.
    """
    look = Look.at(file, file.size - (start.offset if start else skip), progress)
    if start:
        found = _Found(look, start.offset, start.line, place=_place(start))
    else:
        found = _Found(look, *_line_start(file.bytes, skip, file.size))
    more = True
    while more:
        begin = found.offset
        more = _block(file, found)
        if not more:
            _rest(file, found, finished)
        yield _view(file, found, begin), _cursor(file, found, progress)
        found = _Found(look, found.offset, found.line, place=found.place, seen=found.seen)


def unchanged(path: Path, cursor: Cursor, progress: str = "") -> bool:
    """Was nothing written since `cursor`, and is it to be read in the same way? Raises OSError."""
    info = path.stat()
    now = (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, progress)
    same = now == (cursor.device, cursor.inode, cursor.size, cursor.written, cursor.own)
    return same and (cursor.offset == cursor.size or cursor.quiet or not _quiet(info.st_mtime_ns))


def _columns(file: File) -> Columns:
    file.bytes.seek(0)
    return columns(file.bytes.read(WIDTH).partition(b"\n")[0])


def _place(cursor: Cursor) -> Place:
    return Place(*cursor.progress) if cursor.progress else Place()


def _cursor(file: File, found: _Found, own: str) -> Cursor:
    size = min(HEAD, found.offset)
    return Cursor(
        device=file.device,
        inode=file.inode,
        offset=found.offset,
        line=found.line or 0,
        head=_fingerprint(file, 0, size),
        head_size=size,
        progress=astuple(found.place),
        own=own,
        size=file.size,
        written=file.written,
        quiet=found.quiet,
        back=_fingerprint(file, found.offset - size, size),
    )


@contextmanager
def opened(path: Path) -> Iterator[File]:
    """The file at a path. Raises OSError."""
    # A FIFO would block the open for ever.
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is no regular file")
    with path.open("rb") as handle:
        info = os.fstat(handle.fileno())
        yield File(path, handle, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns)


def unknown(path: Path, error: OSError) -> Unknown:
    return Unknown(f"log {path}: {error.strerror or error}")


def _view(file: File, found: _Found, begin: int) -> LogView:
    events = tuple(sorted(found.events, key=lambda event: event.offset))
    return LogView(file.path, file.size, file.written / 1e9, tuple(found.samples), events, begin)


def same(file: File, cursor: Cursor) -> bool:
    """Is it the cursor's file, and no other content under its name?"""
    return (file.device, file.inode) == (cursor.device, cursor.inode) and _begins_alike(file, cursor)


def copied(file: File, cursor: Cursor) -> bool:
    """Is it a copy of the cursor's file? Its first bytes, and the last ones that were read, must be the same."""
    before = cursor.offset - cursor.head_size
    known = bool(cursor.head_size and cursor.back) and _begins_alike(file, cursor)
    return known and _fingerprint(file, before, cursor.head_size) == cursor.back


def _begins_alike(file: File, cursor: Cursor) -> bool:
    return file.size >= cursor.offset and _fingerprint(file, 0, cursor.head_size) == cursor.head


def _fingerprint(file: File, start: int, size: int) -> str:
    import hashlib

    file.bytes.seek(start)
    return hashlib.sha256(file.bytes.read(size)).hexdigest()


def _line_start(handle: BinaryIO, skip: int, size: int) -> tuple[int, int | None]:
    """The first line start at or after `skip`, and how many lines are before it (None: not counted)."""
    if skip == 0:
        return 0, 0
    lines = _count_lines(handle, skip - 1) if size < COUNTED else None
    handle.seek(skip - 1)
    position = skip - 1
    while block := handle.read(min(BLOCK, size - position)):
        ends = [end for end in (block.find(b"\n"), block.find(b"\r")) if end >= 0]
        if ends:
            whole = block[min(ends)] == NEWLINE
            return position + min(ends) + 1, None if lines is None else lines + whole
        position += len(block)
    return size, lines


def _count_lines(handle: BinaryIO, end: int) -> int:
    handle.seek(0)
    lines = 0
    while end > 0 and (block := handle.read(min(BLOCK, end))):
        lines += block.count(b"\n")
        end -= len(block)
    return lines


def _block(file: File, found: _Found) -> bool:
    """Take in one more block; whether there is another."""
    start, known = found.offset, found.seen
    found.before = _before(file.bytes, start)
    data = file.bytes.read(max(0, min(known + BLOCK, file.size - start)))
    found.seen = len(data) - _take(data, _last_end(data), found)
    return len(data) > known and start + len(data) < file.size


def _before(handle: BinaryIO, start: int) -> bytes:
    """The begin of the line at `start`, as far as it matters; the handle stands at `start` then."""
    handle.seek(max(0, start - HEAD))
    data = handle.read(min(start, HEAD))
    return data[data.rfind(b"\n") + 1 :]


def _quiet(written: int) -> bool:
    return time.time() - written / 1e9 >= QUIET


def _rest(file: File, found: _Found, finished: bool = False) -> None:
    """Take in a last line that has no end, if none is to be expected and it tells something.

    Of a log that is only quiet, a number at its end may go on: a writer's buffer ends anywhere.
    """
    found.quiet = finished or _quiet(file.written)
    if not found.seen or not found.quiet:
        return
    before = _before(file.bytes, found.offset)
    data = file.bytes.read(min(found.seen, file.size - found.offset))
    last = _Found(found.look, found.offset, found.line, place=replace(found.place), before=before)
    last.final = finished
    whole = _take(data + b"\n", len(data) + 1, last) > len(data)
    torn = not finished and last.samples and data[-1:] in b"0123456789.,+-eE"
    if whole and not torn and (last.samples or last.events):
        found.samples += last.samples
        found.events += last.events
        found.place, found.seen = last.place, 0
        found.move(data, 0, len(data))


def _last_end(data: bytes) -> int:
    end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
    return end if end or len(data) <= LONG else len(data)


def _take(data: bytes, end: int, found: _Found) -> int:
    """Parse the lines in `data[:end]`; the bytes consumed, fewer if a traceback has not ended yet."""
    mark = done = 0
    following = found.look.search(data, end)
    while (hit := following(done)) >= 0:
        start, stop = _part(data, hit, done, end)
        mark = found.move(data, mark, start)
        # A part may be a hole of NUL bytes with a line at its end, or one progress bar of megabytes.
        line = data[max(start, hit - HEAD) : min(stop, hit + WIDTH)]
        if TRACEBACK in line and is_header(text := clean(line)):
            last = _traceback(data[start : min(end, start + LONG)], text)
            if last is None and end - start < LONG and not found.final:
                return start
            found.header(text)
            found.traceback(data, start, last or (0, stop - start))
        else:
            before = b"" if done else found.before
            _line(line, before + data[max(done, start - HEAD) : start], found)
        done = stop + 1 if stop < end else end
    return found.move(data, mark, end)


def _line(line: bytes, before: bytes, found: _Found) -> None:
    """Note what a line tells, at the place where `found` stands."""
    before = before[before.rfind(b"\n") + 1 :]
    read = follow(line, found.place, found.number, found.offset, before, found.look.own)
    if isinstance(read, Sample):
        found.samples.append(read)
    elif event := read or parse_event(line, found.number, found.offset):
        found.events.append(event)


def _traceback(data: bytes, header: str) -> tuple[int, int] | None:
    """Bounds of the last line of the traceback at the start of `data`; None if it is not there yet."""
    is_last = traceback_end(header)
    at = data.find(b"\n") + 1
    while at:
        stop = data.find(b"\n", at)
        if stop >= 0 and is_last(clean(data[at : min(stop, at + WIDTH)])):
            return at, stop
        at = stop + 1
    return None


def _part(data: bytes, hit: int, low: int, end: int) -> tuple[int, int]:
    """The bounds of the part of a line around `hit`, not before `low`."""
    newline = data.rfind(b"\n", low, hit)
    start = max(newline + 1, data.rfind(b"\r", max(newline, low), hit) + 1, low)
    stop = data.find(b"\n", hit, end)
    stop = end if stop < 0 else stop
    carriage = data.find(b"\r", hit, stop)
    return start, stop if carriage < 0 else carriage
