"""What failed, from the log's lines: one incident a failure, with its first cause, its node and rank.

The first line in time is the cause, the loudest block is not: a lost node makes every rank print pages of NCCL
errors and tracebacks. What follows a cause without a logged step in between is its fallout and only counted, unless
it is a heavier cause (a lost node after a CUDA error), of another job, or of another node. After an ending (time
limit, preemption, scancel) everything is teardown. A scheduler hands the same faulty node out again, so a cause is
remembered for some rows after training went on.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins

from ops.catalogue import kind_of, kinds
from ops.catalogue.kind import Kind
from ops.detectors.evidence import State, where
from ops.model import Finding, LogEvent, Sample, Severity, Snapshot

REMEMBERED = 50
"""Logged rows after which a failure that training survived is history."""
SURVIVED = 3
"""Logged rows after which a symptom without a cause was none."""
MOST = 60
"""Incidents remembered; of a storm, what comes after them is counted with the last."""
LATE = 3
"""Logged rows that the nodes which live may still add between the lines of one node's loss."""
MACHINE = 3
"""The weight from which a cause is of one machine: another machine's is another incident."""


class Incident(Struct):
    """A failure: the line that names it best, and what is known."""

    kind: str
    line: int
    offset: int
    text: str
    first: int
    """The byte of its first line: what tells it from others."""
    step: int | None
    node: str = ""
    rank: int | None = None
    job: str = ""
    value: str = ""
    after: int = 0
    """Rows logged since."""
    fallout: int = 0
    reported: bool = False
    """torchrun's report of the first failed process is being read."""

    @property
    def about(self) -> Kind:
        return kinds()[self.kind]


class Incidents:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.incidents = [Incident(**seen) for seen in state.get("incidents", ())]
        self.last: int | None = state.get("last")

    def dump(self) -> dict[str, Any]:
        return {"incidents": to_builtins(self.incidents), "last": self.last}

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if isinstance(line, Sample):
            self._row(line)
        elif (kind := kind_of(line.kind)) and kind.role != "condition":
            self._event(line, kind)

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """One finding an incident; endings and what NVIDIA tells to ignore with severity OK."""
        return tuple(_finding(seen, snapshot) for seen in self.incidents)

    def _row(self, sample: Sample) -> None:
        self.last = sample.step
        if not self.incidents:
            return
        for seen in self.incidents:
            seen.after += 1
        self.incidents = [seen for seen in self.incidents if seen.after <= _remembered(seen.about)]

    def _event(self, event: LogEvent, kind: Kind) -> None:
        same = next((seen for seen in reversed(self.incidents) if _same(seen, event, kind)), None)
        if same:
            _fold(same, event, kind)
        elif _opens(kind):
            self._open(_incident(event, kind, self.last))

    def _open(self, new: Incident) -> None:
        """Remember it. Of too many, those that training survived go first; a fresh one never does: it is told of."""
        if len(self.incidents) >= MOST:
            self.incidents = [seen for seen in self.incidents if not seen.after]
        if len(self.incidents) < MOST:
            self.incidents.append(new)
        else:
            self.incidents[-1].fallout += 1


def _remembered(kind: Kind) -> int:
    return {"root": REMEMBERED, "ending": 0}.get(kind.role, SURVIVED)


def _opens(kind: Kind) -> bool:
    return kind.role in ("root", "symptom", "ending") or kind.severity > Severity.OK


def _incident(event: LogEvent, kind: Kind, last: int | None) -> Incident:
    return Incident(
        kind=kind.name,
        line=event.line,
        offset=event.offset,
        text=event.text[:300],
        first=event.offset,
        step=last,
        node=event.node,
        rank=event.rank,
        job=event.job,
        value=event.value[:80],
        reported=event.kind == "elastic-root",
    )


def _same(seen: Incident, event: LogEvent, kind: Kind) -> bool:
    """Does the event belong to this failure?"""
    if seen.job and event.job and seen.job != event.job:
        return False
    if seen.after:
        lost = kind.name == "node-failure" == seen.kind and seen.after <= LATE
        return lost and (not event.node or seen.node in ("", event.node))
    if kind.name == "hung-task" == seen.kind and event.value != seen.value:
        return False
    other = bool(event.node and seen.node and event.node != seen.node)
    return not (other and kind.weight >= MACHINE and seen.about.weight >= MACHINE)


def _fold(seen: Incident, event: LogEvent, kind: Kind) -> None:
    """A heavier cause takes the incident over, unless the job was ending; what is missing is filled in."""
    seen.job, seen.after = seen.job or event.job, 0
    if kind.weight > seen.about.weight and seen.about.role != "ending":
        seen.kind, seen.line, seen.offset, seen.text = kind.name, event.line, event.offset, event.text[:300]
        seen.node, seen.rank, seen.value = event.node or seen.node, event.rank, event.value[:80]
    elif event.kind == "elastic-root":
        seen.reported, seen.node, seen.rank = True, "", None
    elif event.kind in ("elastic-host", "elastic-rank"):
        _reported(seen, event)
    elif kind.role != "ending" and not (seen.about.role == "ending" and seen.node) and not _of_others(seen, kind):
        seen.node = seen.node or event.node
    seen.fallout += 1


def _of_others(seen: Incident, kind: Kind) -> bool:
    """Of a lost node slurmstepd's line may come alone, srun being killed before it names the node: the tasks that are told
    to end are those of the nodes that live."""
    return seen.kind == "node-failure" and kind.weight < MACHINE


def _reported(seen: Incident, event: LogEvent) -> None:
    """The host and the rank that stand below `Root Cause`: they know better than a prefix."""
    if seen.reported:
        seen.node = seen.node or event.node
        seen.rank = event.rank if seen.rank is None else seen.rank
        seen.reported = not (seen.node and seen.rank is not None)


def _finding(seen: Incident, snapshot: Snapshot) -> Finding:
    kind = seen.about
    evidence = (where(snapshot, seen.line, seen.offset), *(() if kind.name == "node-failure" else (seen.text,)))
    count = f"{seen.fallout} more line{'s' * (seen.fallout > 1)} of the same failure"
    folded = (count,) if seen.fallout else ()
    return Finding(
        kind=kind.name,
        severity=min(kind.severity, Severity.WARNING) if seen.after else kind.severity,
        summary=_summary(seen, kind),
        evidence=evidence + folded,
        step=seen.step,
        line=seen.line or None,
        node=seen.node,
        runbook=kind.runbook or ("job-not-in-queue" if kind.severity else ""),
        actions=_actions(seen, kind, snapshot),
        rank=seen.rank,
        episode=f"incident:{seen.first}",
    )


def _summary(seen: Incident, kind: Kind) -> str:
    when = f"after step {seen.step}" if seen.step is not None else "before the first step"
    then = "training went on" if seen.after else "nothing was logged since"
    if kind.name == "node-failure":
        return f"{seen.node or 'a node (the log does not say which)'} failed {when}; {then}"
    place = f" on {seen.node}" if seen.node else ""
    place += f", rank {seen.rank}" if seen.rank is not None else ""
    return f"{kind.meaning}{place}, {when}; {then}"


def _actions(seen: Incident, kind: Kind, snapshot: Snapshot) -> tuple[str, ...]:
    if kind.severity is Severity.OK:
        return ()
    jobs = snapshot.jobs if isinstance(snapshot.jobs, tuple) else ()
    faulty = seen.node and kind.weight >= MACHINE and any(job.pending for job in jobs)
    exclude = (f"m4ops exclude {seen.node}",) if faulty else ()
    if kind.name != "node-failure":
        return (*exclude, f"m4ops explain {kind.name}")
    return (*exclude, *(() if seen.node else ("m4ops nodes",)), "m4ops requeue")
