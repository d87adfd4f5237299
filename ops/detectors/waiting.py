"""What waits of the run, and whether it waits for something that will come by itself."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ops.catalogue.reasons import HELD_BY_ADMIN, Reason, reason_of
from ops.model import Finding, Job, Severity, Snapshot, Unknown

RUNBOOK = "job-not-in-queue"
NAMED = 3
"""Jobs or nodes a finding names; of more it says how many."""


def look(snapshot: Snapshot) -> tuple[Finding, ...]:
    """`job-held` where nothing of the run goes on; `job-stuck` for each reason that does not end by itself.

    A stuck job is a warning as long as another one runs or may start.
    """
    if isinstance(snapshot.jobs, Unknown):
        return ()
    waiting = [(job, _reason(job, snapshot)) for job in snapshot.jobs if job.pending]
    held = [job for job, reason in waiting if reason.held]
    stuck: dict[str, list[tuple[Job, Reason]]] = {}
    for job, reason in waiting:
        if reason.stuck:
            stuck.setdefault(reason.code, []).append((job, reason))
    goes_on = any(job.running for job in snapshot.jobs) or len(waiting) > len(held) + sum(map(len, stuck.values()))
    found = [_stuck(same, goes_on) for same in stuck.values()]
    if held and not goes_on:
        found.append(_held(held, bool(stuck), snapshot.user))
    return tuple(found)


def _reason(job: Job, snapshot: Snapshot) -> Reason:
    known = reason_of(job.reason) or Reason(job.reason, job.reason)
    if known.nodes and isinstance(snapshot.nodes, tuple):
        return _short(job, known, snapshot) or known
    return known


def _short(job: Job, reason: Reason, snapshot: Snapshot) -> Reason | None:
    """The reason made precise where fewer usable nodes than the job needs are left in each of its partitions."""
    nodes = snapshot.nodes or ()
    usable = {name: {n.name for n in nodes if n.usable and n.partition == name} for name in job.partition.split(",")}
    most, largest = max((len(names), name) for name, names in usable.items())
    if not job.node_count or job.node_count <= most:
        return None
    gone = [f"{n.name} is {n.state}" + (f" ({n.reason})" if n.reason else "")
            for n in nodes if n.partition == largest and not n.usable]  # fmt: skip
    told = ", ".join(gone[:NAMED]) + (f" and {len(gone) - NAMED} more" if len(gone) > NAMED else "")
    meaning = f"needs {job.node_count} nodes, and {most} of partition {largest} are usable" + (told and f": {told}")
    severity = Severity.WARNING if "maintenance" in job.reason else Severity.CRITICAL
    do = "have a node repaired, or ask for fewer nodes" if gone else "ask for fewer nodes, or for another partition"
    return replace(reason, meaning=meaning, severity=severity, do=do, commands=("sinfo -R", "m4ops nodes"))


def _stuck(same: Sequence[tuple[Job, Reason]], goes_on: bool) -> Finding:
    job, reason = same[0]
    names = [job.id for job, _ in same]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    target = job.array_id if "[" in job.id else job.id
    return Finding(
        kind="job-stuck",
        severity=Severity.WARNING if goes_on else reason.severity,
        summary=f"{', '.join(names[:NAMED])}{more} does not start by itself: {reason.meaning}",
        evidence=(f"squeue: {job.id} {job.state} ({job.reason})", f"what to do: {reason.do}"),
        runbook=RUNBOOK,
        actions=tuple(command.format(job=target) for command in reason.commands),
        episode=f"job-stuck:{reason.code}",
    )


def _held(held: Sequence[Job], others: bool, user: str) -> Finding:
    names = ", ".join(job.id for job in held)
    what = "held" if others else "all that is queued is held"
    by_admin = all(job.reason == HELD_BY_ADMIN for job in held) and user != "root"
    return Finding(
        kind="job-held",
        severity=Severity.WARNING,
        summary=f"nothing runs, and {what}: {names}" + (", by an administrator, who alone can release it" * by_admin),
        evidence=tuple(f"{job.id} {job.state} ({job.reason})" for job in held),
        runbook=RUNBOOK,
        actions=(f"scontrol show job {held[0].array_id}",) if by_admin else ("m4ops release",),
    )
