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


def look(snapshot: Snapshot) -> tuple[Finding, ...]:
    """`node-failure` for each node that ended an attempt lately; `job-ended` for a bad last end, while nothing runs."""
    if not isinstance(snapshot.attempts, tuple) or not snapshot.attempts:
        return ()
    last = snapshot.attempts[-1]
    lost = [a for a in snapshot.attempts if a.state == "NODE_FAIL" and snapshot.now - (a.end or 0.0) < RECENT]
    running = isinstance(snapshot.jobs, tuple) and any(j.running for j in snapshot.jobs)
    named = _named_by_log(snapshot)
    findings = [f for a in lost for f in _node_failures(a, running, snapshot) if f.node not in named]
    if not running and last.state in _BAD and isinstance(snapshot.jobs, tuple):
        findings.append(_ended(last))
    return tuple(findings)


def _named_by_log(snapshot: Snapshot) -> set[str]:
    events: tuple[LogEvent, ...] = snapshot.log.events if isinstance(snapshot.log, LogView) else ()
    return {event.value for event in events if event.kind == "node-failure"}


def _node_failures(attempt: Attempt, running: bool, snapshot: Snapshot) -> list[Finding]:
    ago = max(0.0, snapshot.now - (attempt.end or snapshot.now)) / 60
    told = f"sacct: job {attempt.id} NODE_FAIL on {attempt.nodes}, {ago:.0f} min ago"
    then = "a job of the run runs again" if running else "no job of the run runs"
    return [
        Finding(
            kind="node-failure",
            severity=Severity.WARNING if running else Severity.CRITICAL,
            summary=f"{node or 'a node of ' + attempt.nodes} failed and ended job {attempt.id}; {then}",
            evidence=(told, *((f"Slurm's reason for {node}: {attempt.why}",) if node and attempt.why else ())),
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
