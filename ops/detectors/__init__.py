"""The detectors: a picture of the run and what its log says anew in, findings out. Pure; nothing here acts.

Stream detectors follow the log's lines and keep a memory of plain JSON; snapshot detectors look at one picture. A
new one is one file and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, cast

from ops.detectors import (
    attempt,
    checkpoint,
    gradients,
    incident,
    lateness,
    loss,
    lr,
    modules,
    nan,
    queue,
    resume,
    room,
    shift,
    slowness,
    stall,
    steps,
    waiting,
)
from ops.model import DATASET, Finding, LogEvent, LogView, Measure, Sample, Severity, Snapshot


class Stream(Protocol):
    """A detector that follows the log. It is made from what `dump` gave, or from `{}`."""

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        """The next line, in the log's order."""

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """What is wrong as of the last line taken."""

    def dump(self) -> dict[str, Any]:
        """The memory as plain JSON."""


STREAM: Mapping[str, Callable[[Mapping[str, Any]], Stream]] = {
    "loss": loss.Losses,
    "nan": nan.NotFinite,
    "incident": incident.Incidents,
    "lr": lr.Rates,
    "gradients": gradients.Gradients,
    "slowness": slowness.Slowness,
    "resume": resume.Resumes,
    "shift": shift.Shifts,
    "steps": steps.Steps,
}
LOOK: tuple[Callable[[Snapshot], tuple[Finding, ...]], ...] = (
    queue.look,
    waiting.look,
    attempt.look,
    stall.look,
    checkpoint.look,
    lateness.look,
    room.look,
)

PLACED = ("lr", "resume", "shift")
"""Streams that compare a log's bytes with those at which changes were made."""
VERSION = 4
"""Of the memory: one that another version wrote is not understood, and made again from the log."""
WORST = (Severity.CRITICAL, Severity.UNKNOWN, Severity.WARNING, Severity.OK)


def judge(
    snapshot: Snapshot, new: LogView | None, memory: Mapping[str, Any], measures: Iterable[Measure] = ()
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """What is wrong now, worst first, and the memory for the next time.

    `new` is the log's lines since `memory` was made (None: none); in pieces or at once, the findings are the same.
    When the log began anew (`Cursor.restarted`), pass `{}` and the whole log. `measures` are new values of the model's
    own series.
    """
    bench = Bench(memory)
    bench.take(new, snapshot)
    bench.measure(measures)
    return bench.dump(), bench.findings(snapshot)


class Bench:
    """All detectors, with what they remember."""

    def __init__(self, memory: Mapping[str, Any]) -> None:
        self.streams = {name: make(memory.get(name, {})) for name, make in STREAM.items()}
        self.losses = cast(loss.Losses, self.streams["loss"])
        self.inside = modules.Modules(memory.get("modules", {}))
        self.unread: tuple[tuple[str, str], ...] = ()
        """Files of the model's own series that could not be read, or not whole, and why."""
        self.unseen = False
        """Is the log another file than at the last look, and what was last written to that one lost?"""

    @classmethod
    def remembering(cls, memory: Mapping[str, Any]) -> Bench | None:
        """With a memory as `dump` gave it; None if another version wrote it, or it is not whole."""
        try:
            whole = all(name in memory for name in (*STREAM, "modules"))
            return cls(memory) if whole and memory["version"] == VERSION else None
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            return None

    def elsewhere(self) -> Bench:
        """The same for a log that goes on in another file: what counts that file's bytes begins anew."""
        kept = self.dump()
        return Bench({name: memory for name, memory in kept.items() if name not in PLACED})

    def again(self) -> Bench:
        """The same for a training that went back to a step before: what follows its steps begins anew."""
        kept = self.dump()
        return Bench({name: kept[name] for name in ("incident", "modules", *PLACED)})

    @property
    def stepped(self) -> bool:
        """Was a step ever taken?"""
        return cast(steps.Steps, self.streams["steps"]).read > 0

    def take_kept(self, samples: Iterable[Sample], snapshot: Snapshot) -> None:
        """The next rows that are no lines of the log, and have no place among its bytes."""
        for sample in samples:
            for name, stream in self.streams.items():
                if name not in PLACED:
                    stream.take(sample, snapshot)

    def take(self, new: LogView | None, snapshot: Snapshot) -> None:
        """The log's next lines."""
        for line in lines(new) if new else ():
            for stream in self.streams.values():
                stream.take(line, snapshot)

    def measure(self, measures: Iterable[Measure]) -> None:
        """New values of the model's own series, and of the data sets' losses."""
        for measure in measures:
            if measure.series == DATASET:
                self.losses.datasets.beside(measure)
            else:
                self.inside.take(measure)

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """What is wrong now, worst first."""
        found = [*self.inside.findings(snapshot), *modules.unread(self.unread)]
        found += [finding for stream in self.streams.values() for finding in stream.findings(snapshot)]
        for look in LOOK:
            found += look(snapshot)
        if self.unseen:
            found.append(stall.unseen(snapshot))
        return tuple(sorted(found, key=lambda finding: WORST.index(finding.severity)))

    def dump(self) -> dict[str, Any]:
        """The memory as plain JSON."""
        after: dict[str, Any] = {name: stream.dump() for name, stream in self.streams.items()}
        return after | {"modules": self.inside.dump(), "version": VERSION}


def lines(log: LogView) -> Iterator[Sample | LogEvent]:
    """Samples and events in the log's order."""
    both: list[Sample | LogEvent] = [*log.samples, *log.events]
    return iter(sorted(both, key=lambda line: line.offset))
