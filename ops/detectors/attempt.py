"""How the run's jobs ended, as Slurm's accounting tells it: of a batch host that dies the log itself says nothing."""

from __future__ import annotations

from ops.model import Attempt, Finding, LogEvent, LogView, Severity, Snapshot

RECENT = 6 * 3600.0
"""Seconds for which a lost node stays a finding though the job runs again."""
_BAD = {
    "FAILED": "failed",
    "OUT_OF_MEMORY": "ran out of host memory",
    "BOOT_FAIL": "could not start: its nodes did not boot",
    "DEADLINE": "missed its deadline",
}

_ENDS = {
    "PREEMPTED": ("preempted", "gave way to a job of higher priority"),
    "TIMEOUT": ("time-limit", "reached its time limit"),
}
"""Ends that belong to a chain, by the kind of the log line that mostly tells of them too. Where srun is killed before it
passes the line on, it stands in the job's own output alone, and only accounting knows."""


def look(snapshot: Snapshot) -> tuple[Finding, ...]:
    """`node-failure` for each node that ended an attempt lately; `job-ended` for a bad last end, while nothing runs;
    `preempted` and `time-limit`, with severity OK, for a last end that belongs to a chain."""
    if not isinstance(snapshot.attempts, tuple) or not snapshot.attempts:
        return ()
    last = snapshot.attempts[-1]
    lost = [a for a in snapshot.attempts if a.state == "NODE_FAIL" and snapshot.now - (a.end or 0.0) < RECENT]
    running = isinstance(snapshot.jobs, tuple) and any(j.running for j in snapshot.jobs)
    named = _named_by_log(snapshot)
    findings = [f for a in lost for f in _node_failures(a, running, snapshot) if f.node not in named]
    if not running and last.state in _BAD and isinstance(snapshot.jobs, tuple):
        findings.append(_ended(last))
    if last.state in _ENDS and snapshot.now - (last.end or 0.0) < RECENT:
        findings.append(_chained(last, snapshot))
    return tuple(findings)


def _named_by_log(snapshot: Snapshot) -> set[str]:
    events: tuple[LogEvent, ...] = snapshot.log.events if isinstance(snapshot.log, LogView) else ()
    return {event.value for event in events if event.kind == "node-failure"}


def told(attempt: Attempt, now: float) -> str:
    """How an attempt ended, as evidence."""
    ago = max(0.0, now - (attempt.end or now)) / 60
    return f"sacct: job {attempt.id} {attempt.state} on {attempt.nodes}, {ago:.0f} min ago"


def _chained(last: Attempt, snapshot: Snapshot) -> Finding:
    kind, words = _ENDS[last.state]
    jobs = snapshot.jobs if isinstance(snapshot.jobs, tuple) else ()
    goes_on = [j.id for j in jobs if j.running], [j.id for j in jobs if j.pending]
    then = f"; {goes_on[0][0]} goes on" if goes_on[0] else f"; {goes_on[1][0]} waits" if goes_on[1] else ""
    return Finding(
        kind, Severity.OK, f"job {last.id} {words}{then}", (told(last, snapshot.now),), episode=f"end:{last.key}"
    )


def _node_failures(attempt: Attempt, running: bool, snapshot: Snapshot) -> list[Finding]:
    then = "a job of the run runs again" if running else "no job of the run runs"
    return [
        Finding(
            kind="node-failure",
            severity=Severity.WARNING if running else Severity.CRITICAL,
            summary=f"{node or 'a node of ' + attempt.nodes} failed and ended job {attempt.id}; {then}",
            evidence=(
                told(attempt, snapshot.now),
                *((f"Slurm's reason for {node}: {attempt.why}",) if node and attempt.why else ()),
            ),
            node=node,
            runbook="node-failure",
            actions=(f"m4ops exclude {node}", f"m4ops nodes report {node}") if node else ("m4ops nodes",),
        )
        for node in attempt.failed or ("",)
    ]


def _ended(attempt: Attempt) -> Finding:
    return Finding(
        kind="job-ended",
        severity=Severity.WARNING,
        summary=f"job {attempt.id} {_BAD[attempt.state]} (exit code {attempt.exit_code}) and nothing runs since",
        evidence=(f"sacct: {attempt.state} {attempt.exit_code} on {attempt.nodes}",),
        runbook="job-not-in-queue",
    )
