"""Whether the last change did what it promised, as far as a look at the log can tell."""

from __future__ import annotations

from ops.detectors.promise import Check, verify
from ops.model import Change, Snapshot, Unknown


def checks_of(snapshot: Snapshot, change: Change) -> tuple[Check, ...] | Unknown:
    """The promises of a change against the log's lines after it; Unknown where they cannot be compared."""
    log, start = snapshot.log, change.log_offset
    if change.expectation is None:
        return Unknown("it promised nothing that a log shows")
    if isinstance(log, Unknown):
        return log
    if start is None:
        return Unknown("the size of the log at the change was not noted")
    if log.size < start:
        return Unknown(f"{log.path.name} is shorter than it was at the change: another file?")
    if log.begin > start:
        return Unknown("the lines after it are too far back to look at here: m4ops verify")
    samples = [s for s in log.samples if s.offset >= start]
    return verify(change.expectation, samples, [e for e in log.events if e.offset >= start])


def broken(snapshot: Snapshot) -> list[Check]:
    """What the last change promised and the log shows otherwise."""
    last = snapshot.last_change
    if not isinstance(last, Change):
        return []
    checks = checks_of(snapshot, last) if last.status == "applied" else ()
    return [] if isinstance(checks, Unknown) else [c for c in checks if c.verdict == "no"]
