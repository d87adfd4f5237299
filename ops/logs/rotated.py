"""A log that was rotated: which files it was before, and reading on as if it had stayed one.

logrotate(8) calls them `log.1`, `log-20261121`, with `.gz` when it compresses; Python's logging.handlers `log.1` and
`log.2026-11-21`. With `copytruncate` they are copies, and the log is cut under its own name. Reading never counts a line
twice: what was missed is read from an older file only where that is the file that was read before, or a copy of it.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from msgspec.structs import replace

from ops.logs import tail
from ops.logs.cursor import Cursor
from ops.logs.reader import HEAD, File, batches, copied, opened, read_file, same, unknown
from ops.model import LogEvent, LogView, Sample, Unknown

MARK = re.compile(r"(?:\.\d{1,3}|[.-]\d{8,14}|[.-]\d{4}-\d\d-\d\d(?:[T_-]\d\d(?:[:-]?\d\d){0,2})?)(?:\.gz)?")
"""What rotation adds to a log's name."""
PACKED = 8 << 20
"""A compressed file larger than this is not unpacked for a short look."""
HISTORY = 16 << 20
"""Bytes of a log and of what it was before that a first look reads, where the log has less."""
KEPT = 4 << 20
"""Bytes behind its place that an unpacked file still has."""


class Unpacked(io.RawIOBase):
    """The text in a gzip file, for a reader that goes forward and looks back a little: further back costs a new beginning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0
        self._begin()

    def _again(self) -> None:
        self.close()
        self._begin()

    def _begin(self) -> None:
        import gzip

        self.packed = gzip.GzipFile(self.path)
        self.window, self.end = bytearray(), 0

    def seek(self, place: int, whence: int = 0, /) -> int:
        self.at = place
        return place

    def read(self, size: int = -1, /) -> bytes:
        """Raises OSError where the file is torn."""
        if self.at < self.end - len(self.window):
            self._again()
        while self.end < self.at + size and (more := self._more()):
            self.window += more
            self.end += len(more)
            del self.window[: max(0, len(self.window) - max(KEPT, self.end - self.at))]
        start = self.at - (self.end - len(self.window))
        found = bytes(self.window[start : start + size])
        self.at += len(found)
        return found

    def _more(self) -> bytes:
        import zlib

        try:
            return self.packed.read(1 << 20)
        except (EOFError, zlib.error) as error:
            raise OSError(f"{self.path} is torn: {error}") from error

    def length(self) -> int:
        """How much it is, by reading it once. Raises OSError where it is torn."""
        size = 0
        self._again()
        while more := self._more():
            size += len(more)
        self._again()
        return size

    def close(self) -> None:
        self.packed.close()


def read(
    path: Path, last_bytes: int | None = None, progress: str = "", earlier: Sequence[Path] = ()
) -> LogView | Unknown:
    """The log, or its last `last_bytes`, as `reader.read_log` does; what it lacks of them is read from what it was before.

    `earlier`: the logs of the jobs before, newest first.
    """
    try:
        with opened(path) as log:
            seen = read_file(log, last_bytes, progress)
            return _further_back(_older(log, earlier) if seen.begin == 0 else (), seen, last_bytes, progress)
    except OSError as error:
        return unknown(path, error)


def _further_back(older: Sequence[Path], seen: LogView, last_bytes: int | None, progress: str) -> LogView:
    """What was seen of a log, with what stood before it. An older file that cannot be read is where it begins."""
    with suppress(OSError):
        for file in older if not _from_scratch(seen) else ():
            left = None if last_bytes is None else last_bytes - (seen.size - seen.begin)
            if (left is not None and left <= 0) or (left is not None and _large(file)):
                break
            with _part(file) as part:
                before = read_file(part, left, progress, finished=True)
            seen = tail.before(before, seen)
            if before.begin or _from_scratch(seen):
                break
    return seen


def _from_scratch(seen: LogView) -> bool:
    """Does it begin where a training begins? What lies before that is of another one."""
    first = [sample.step for sample in seen.samples[:2]]
    return len(first) == 2 and first[0] <= 2 * (first[1] - first[0])


def again(before: LogView | None, new: LogView) -> bool:
    """Does a new file begin at or before the first step that is known of the one before, so that it tells the history itself?"""
    return bool(before and before.samples and new.samples and new.samples[0].step <= before.samples[0].step)


def read_new(path: Path, cursor: Cursor | None, progress: str = "") -> tuple[LogView, Cursor] | Unknown:
    """What was written since `cursor` (None: ever), and the cursor for next time. Unknown if unreadable."""
    samples: list[Sample] = []
    events: list[LogEvent] = []
    try:
        last = None
        for last in read_batches(path, cursor, progress):
            samples += last[0].samples
            events += last[0].events
    except OSError as error:
        return unknown(path, error)
    assert last is not None
    return replace(last[0], samples=tuple(samples), events=tuple(events)), last[1]


def read_batches(
    path: Path, cursor: Cursor | None, progress: str = "", earlier: Sequence[Path] = ()
) -> Iterator[tuple[LogView, Cursor]]:
    """The same block by block, at least once: memory does not grow with the file. Raises OSError.

    Where the log was rotated, its rest comes first, from the files it was before; where it was never read, some history.
    """
    with opened(path) as log:
        known = cursor is not None and cursor.own == progress
        if known and cursor and same(log, cursor):
            yield from batches(log, cursor, progress)
            return
        older = _missed(log, cursor, earlier) if known and cursor else _history(log, earlier)
        moved, restarted = known, not known and cursor is not None
        for number, (file, skip) in enumerate(older):
            with _part(file) as part:
                start = cursor if known and not number else None
                for new, after in batches(part, start, progress, finished=True, skip=skip):
                    yield new, replace(after, moved=number > 0, restarted=restarted)
            moved, restarted = True, False
        lost = known and not older
        for new, after in batches(log, None, progress):
            yield new, replace(after, restarted=restarted or lost, moved=moved, unseen=lost)


def _missed(log: File, cursor: Cursor, earlier: Sequence[Path]) -> list[tuple[Path, int]]:
    """The files that hold what was written since the cursor, oldest first: none where that is not certain."""
    older = _older(log, earlier)
    with os.scandir(log.path.parent) as folder:
        moved = [Path(e.path) for e in folder if e.inode() == cursor.inode and e.name != log.path.name]
    for found, test in ((moved, same), (older, copied)):
        own = [file for file in found if _holds(file, cursor, test)]
        if len(own) == 1:
            after = older[: older.index(own[0])] if own[0] in older else ()
            whole = all(_holds(file, cursor, lambda *_: True) for file in after)
            return [(file, 0) for file in (own[0], *reversed(after))] if whole else []
    return []


def _holds(file: Path, cursor: Cursor, test: Callable[[File, Cursor], bool]) -> bool:
    with suppress(OSError), _part(file) as part:
        return test(part, cursor)
    return False


def _history(log: File, earlier: Sequence[Path]) -> list[tuple[Path, int]]:
    """The files before the log, oldest first, and where to begin in them: enough for a habit of the run."""
    found: list[tuple[Path, int]] = []
    left = HISTORY - log.size
    with suppress(OSError):
        for file in _older(log, earlier):
            if left <= 0 or _large(file):
                break
            with _part(file) as part:
                found.insert(0, (file, max(0, part.size - left)))
                left -= part.size
    return found


def _large(file: Path) -> bool:
    return file.suffix == ".gz" and file.stat().st_size > PACKED


def _older(log: File, earlier: Sequence[Path]) -> tuple[Path, ...]:
    """The files that the log was before, newest first, as their names say; with both kinds of names as they were written.
    What the log still holds is a copy of it, and none of them.

    Then the logs of earlier jobs. Raises OSError.
    """
    name, written = log.path.name, {}
    with os.scandir(log.path.parent) as folder:
        for entry in folder:
            if entry.name.startswith(name) and MARK.fullmatch(entry.name, len(name)):
                written[entry.name] = -entry.stat().st_mtime
    files = [file for file in written if file.removesuffix(".gz") == file or file.removesuffix(".gz") not in written]
    marks = {file: re.sub(r"\D", "", file[len(name) :]) for file in files}
    counted = {len(mark) <= 3 for mark in marks.values()}
    sign = 1 if True in counted else -1
    files.sort(key=(lambda file: sign * int(marks[file])) if len(counted) < 2 else written.__getitem__)
    rotated = [path for path in map(log.path.with_name, files) if not _held(path, log)]
    return tuple(dict.fromkeys((*rotated, *(path for path in earlier if path != log.path))))


def _held(path: Path, log: File) -> bool:
    """Does the log still begin with all that a file holds? Not with what cannot be read."""
    with suppress(OSError):
        return _begins(path, log)
    return False


def _begins(path: Path, log: File) -> bool:
    log.bytes.seek(0)
    if path.suffix == ".gz":
        with Unpacked(path) as text:
            head = text.read(HEAD)
    else:
        with path.open("rb") as file:
            head = file.read(HEAD)
    if not head or log.bytes.read(len(head)) != head:
        return False
    with _part(path) as part:
        for handle in (part.bytes, log.bytes):
            handle.seek(part.size - len(head))
        return part.size <= log.size and part.bytes.read(len(head)) == log.bytes.read(len(head))


@contextmanager
def _part(path: Path) -> Iterator[File]:
    """An older file, unpacked if it is compressed. Raises OSError."""
    with opened(path) as file:
        if path.suffix != ".gz":
            yield file
            return
        text = Unpacked(path)
        try:
            yield replace(file, bytes=cast(BinaryIO, text), size=text.length())
        finally:
            text.close()
