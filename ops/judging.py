"""What is wrong with a run as it was seen: the log's new lines are read, and judged from what is remembered on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import MsgspecError, Struct, convert, to_builtins
from msgspec.structs import replace

from ops import detectors, snapshot
from ops.logs import measures, reader, rotated, tail
from ops.logs.cursor import Cursor
from ops.model import Finding, LogView, Snapshot, Unknown
from ops.snapshot import NO_LOG
from ops.state import Memory


class Judged(Struct, frozen=True):
    """The snapshot with its log's end, what is wrong, worst first, and the memory for the next time."""

    snapshot: Snapshot
    findings: tuple[Finding, ...]
    memory: Memory


class _Place(Struct):
    """Where in the log the detectors are, and its end up to there."""

    bench: detectors.Bench
    cursor: Cursor | None = None
    end: LogView | None = None
    unseen: bool = False
    known: bool = True
    """Whether the detectors remember what they were told; else all is read anew."""


def judge(seen: Snapshot, memory: Memory) -> Judged:
    """Judge a picture of a run, and keep nothing.

    A memory that is lost, torn or of another version is made again from the log's begin.
    """
    at = _recalled(seen, memory)
    before, anew = at.cursor, not at.known
    try:
        anew = _follow(seen, at) or anew
        log: LogView | Unknown = at.end or NO_LOG
    except OSError as error:
        log = Unknown(f"log {seen.run.log}: {error.strerror or error}")
    log, kept = _kept(seen, at, log, {} if anew else memory.kept)
    inside, places = measures.read_new(seen.run.dir / "logs", {} if anew else memory.measures)
    at.bench.measure(inside)
    at.bench.unread = measures.unread(places)
    seen = replace(seen, log=log)
    at.bench.unseen = at.unseen
    found = at.bench.findings(seen)
    after = replace(memory, detectors=at.bench.dump(), measures=places, kept=kept)
    if at.cursor is not before and at.cursor and at.end:
        after = replace(after, cursor=to_builtins(at.cursor), tail=tail.to_json(at.end))
    return Judged(seen, found, after)


def _kept(
    seen: Snapshot, at: _Place, log: LogView | Unknown, fed: Mapping[str, Any]
) -> tuple[LogView | Unknown, Mapping[str, Any]]:
    """The log with what a Trainer's newest checkpoint keeps, where no line of it ever told a step; and how much was judged."""
    if not fed and at.bench.stepped:
        return log, {}
    log = snapshot.with_kept(seen, log)
    if not isinstance(log, LogView) or not log.source:
        return log, fed if isinstance(log, Unknown) or not log.samples else {}
    from ops.logs import kept

    try:
        before = convert(fed, kept.Fed)
    except MsgspecError:
        before = kept.Fed(1, "foreign")
    rows, after, goes_on = kept.fresh(log.samples, before)
    at.bench = at.bench if goes_on else at.bench.again()
    at.bench.take_kept(rows, replace(seen, log=log))
    return log, to_builtins(after)


def _recalled(seen: Snapshot, memory: Memory) -> _Place:
    """Where the last look stopped, or the log's begin."""
    bench = detectors.Bench.remembering(memory.detectors)
    if bench and seen.run.log and memory.cursor:
        try:
            cursor = convert(memory.cursor, Cursor)
            return _Place(bench, cursor, tail.from_json(memory.tail, seen.run.log, cursor.size, cursor.written / 1e9))
        except (MsgspecError, KeyError, TypeError, ValueError):
            pass
    if bench and memory.kept and not memory.cursor:
        return _Place(bench)
    return _Place(detectors.Bench({}), known=False)


def _follow(seen: Snapshot, at: _Place) -> bool:
    """Take in the log's new lines; whether it began anew. Raises OSError."""
    log, begun, file = seen.run.log, False, None
    if log is None or (at.cursor and reader.unchanged(log, at.cursor, seen.run.progress)):
        return False
    for new, after in rotated.read_batches(log, at.cursor, seen.run.progress, seen.run.earlier_logs):
        if (after.restarted or after.moved) and new.path != file:
            file, at.unseen = new.path, after.unseen
            anew = not after.moved or rotated.again(at.end, new)
            begun = begun or anew
            at.bench = detectors.Bench({}) if anew else at.bench.elsewhere()
            at.end = None if anew or not at.end else tail.before(at.end, LogView(new.path, 0, 0.0, (), ()))
        at.bench.take(new, seen)
        at.cursor, at.end = after, tail.joined(at.end, new)
    return begun
