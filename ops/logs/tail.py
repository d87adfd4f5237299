"""The end of a log as it is kept between two looks: what was read once is not read again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from ops.model import LOOK, LogEvent, LogView, Sample

MOST = 1000
"""Samples of it, and events of it, that are kept."""
_SAMPLE = ("step", "loss", "lr", "line", "offset", "time", "elapsed", "total", "grad_norm")
_EVENT = ("kind", "line", "offset", "text", "value", "node", "rank", "job")


def joined(before: LogView | None, new: LogView) -> LogView:
    """The log's end, as much as a look reads: `new` is what was read after `before`."""
    if before and new.begin > new.size - LOOK:
        samples, events, begin = before.samples + new.samples, before.events + new.events, before.begin
    else:
        samples, events, begin = new.samples, new.events, new.begin
    cut = [found[-MOST].offset for found in (samples, events) if len(found) > MOST]
    begin = max(begin, new.size - LOOK, *cut)
    samples = tuple(s for s in samples if s.offset >= begin)
    events = tuple(e for e in events if e.offset >= begin)
    return LogView(new.path, new.size, new.modified, samples, events, begin)


def before(older: LogView, view: LogView) -> LogView:
    """A view of a log with what it was before it was rotated: its bytes are counted back from the log's first, its lines not."""
    shift = min(view.begin, 0) - older.size
    samples = tuple(replace(s, line=0, offset=s.offset + shift) for s in older.samples)
    events = tuple(replace(e, line=0, offset=e.offset + shift) for e in older.events)
    begin = older.begin + shift
    return replace(view, samples=samples + view.samples, events=events + view.events, begin=begin)


def to_json(view: LogView) -> dict[str, Any]:
    """The end as plain JSON, the names of the fields once for all samples, without secrets."""
    names = list(dict.fromkeys(name for s in view.samples for name in s.fields))
    return {
        "begin": view.begin,
        "samples": [[getattr(s, name) for name in _SAMPLE] for s in view.samples],
        "names": names,
        "fields": [[s.fields.get(name) for name in names] for s in view.samples],
        "events": [[getattr(e, name) for name in _EVENT] for e in map(_redacted, view.events)],
    }


def _redacted(event: LogEvent) -> LogEvent:
    from ops.secrecy import redact

    return replace(event, text=redact(event.text))


def from_json(data: Mapping[str, Any], path: Path, size: int, modified: float) -> LogView:
    """What `to_json` wrote, of a log that is so large now. Raises KeyError, TypeError or ValueError."""
    names = data["names"]
    samples = tuple(
        Sample(
            **dict(zip(_SAMPLE, row, strict=True)),
            fields={n: v for n, v in zip(names, own, strict=True) if v is not None},
        )
        for row, own in zip(data["samples"], data["fields"], strict=True)
    )
    events = tuple(LogEvent(*row) for row in data["events"])
    return LogView(path, size, modified, samples, events, int(data["begin"]))
