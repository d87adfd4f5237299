"""What the detectors would have said, line by line: a finished log judged again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct

from ops.detectors import STREAM, modules
from ops.model import Finding, LogEvent, LogView, Measure, Sample, Severity, Snapshot


class Raised(Struct):
    """A finding, at the moment it was raised. `finding` is what was known of it in the end."""

    detector: str
    finding: Finding
    row: int
    """0-based: the logged point at which it was raised; of an incident, its line."""
    resolved_row: int | None = None
    """The logged point at which it was over, or got its next kind."""


def replay(lines: Iterable[Sample | LogEvent], snapshot: Snapshot) -> list[Raised]:
    """Every finding of the stream detectors in the order raised; one whose kind changes is raised again."""
    streams = {name: make({}) for name, make in STREAM.items()}
    raised: list[Raised] = []
    running: dict[tuple[str, str], Raised] = {}
    row = -1
    for line in lines:
        row += isinstance(line, Sample)
        for name, stream in streams.items():
            stream.take(line, snapshot)
            found = stream.findings(snapshot)
            if found or running:
                at = line.line - 1 if isinstance(line, LogEvent) and line.line else max(row, 0)
                raised += _compare(name, {f.key: f for f in found}, running, at)
    return raised


def not_understood(log: LogView, unpack: str = "") -> Raised:
    """`progress-unknown`: no line of the log is known as progress. `unpack`: the command for a compressed file."""
    what = "it is compressed" if unpack else "the file is empty" if not log.size else "no line is known as progress"
    how = f"{unpack} {log.path.name} | m4ops replay -" if unpack else ""
    how = how or "m4ops replay LOG --progress 'step {step} | loss: {loss}' says how a progress line looks"
    finding = Finding(
        kind="progress-unknown",
        severity=Severity.UNKNOWN,
        summary=f"{what}, so nothing is known of the loss: {how}",
        evidence=(str(log.path),),
        runbook="log-stalled",
        actions=(how,),
    )
    return Raised("steps", finding, 0)


def replay_series(measures: Iterable[Measure], unread: Sequence[tuple[str, str]], snapshot: Snapshot) -> list[Raised]:
    """The same of the model's own series; a logged point is all that was logged of one step."""
    inside, raised, running = modules.Modules({}), list[Raised](), dict[tuple[str, str], Raised]()
    row = 0
    for row, (_, of_step) in enumerate(groupby(measures, key=lambda measure: measure.step)):
        for measure in of_step:
            inside.take(measure)
        raised += _compare("modules", {f.key: f for f in inside.findings(snapshot)}, running, row)
    return raised + [Raised("modules", finding, row) for finding in modules.unread(unread)]


def _compare(
    detector: str, found: dict[str, Finding], running: dict[tuple[str, str], Raised], row: int
) -> list[Raised]:
    """Bring `running` up to what is found now; the findings that are new."""
    for place in [place for place in running if place[0] == detector and place[1] not in found]:
        running.pop(place).resolved_row = row
    new = []
    for key, finding in found.items():
        old = running.get((detector, key))
        if old and old.finding.kind == finding.kind:
            old.finding = finding
            continue
        if old:
            old.resolved_row = row
        running[detector, key] = Raised(detector, finding, row)
        new.append(running[detector, key])
    return new
