"""A job runs and its log is silent. For a hang of the collectives that silence is the only sign there is."""

from __future__ import annotations

from itertools import pairwise

from ops.model import Finding, Job, LogView, Sample, Severity, Snapshot, Unknown
from ops.quantiles import median

SHORTEST = 120.0
"""Seconds of silence below which nothing is said."""
STARTING = 1800.0
"""Seconds a job has to load its model and log a first step."""
RECENT = 50


def look(snapshot: Snapshot) -> tuple[Finding, ...]:
    """`log-stalled` when the silence is longer than the run's own gaps explain; `log-unknown`."""
    jobs = snapshot.jobs if isinstance(snapshot.jobs, tuple) else ()
    running = [job for job in jobs if job.state == "RUNNING"]
    if isinstance(snapshot.log, Unknown):
        return () if _never_started(snapshot) else (_unknown(snapshot.log),)
    return _stalled(snapshot, snapshot.log, running) if running else ()


def _never_started(snapshot: Snapshot) -> bool:
    jobs = snapshot.jobs
    return isinstance(jobs, tuple) and not any(job.running for job in jobs) and snapshot.checkpoints == ()


def _unknown(log: Unknown) -> Finding:
    summary = f"the log could not be read: {log.reason}"
    return Finding("log-unknown", Severity.UNKNOWN, summary, runbook="log-stalled", actions=("m4ops status",))


def unseen(snapshot: Snapshot) -> Finding:
    """`log-unseen`: lines of the log were lost between two looks. It is told at once, and of one look."""
    return Finding(
        kind="log-unseen",
        severity=Severity.WARNING,
        summary="the log was cut or replaced since the last look: what was last written to the one before was never seen",
        evidence=(
            str(snapshot.run.log),
            "`#SBATCH --open-mode=append` keeps a log at a requeue, and so does a log a job",
        ),
        runbook="log-stalled",
        actions=("sacct -j JOBID",),
    )


def _stalled(snapshot: Snapshot, log: LogView, running: list[Job]) -> tuple[Finding, ...]:
    started = max((job.start for job in running if job.start is not None), default=0.0)
    age = snapshot.now - max(log.modified, started)
    last = log.samples[-1] if log.samples else None
    allowed = limit(log.samples)
    if log.source == log.path:
        if not (saves := _between_saves(snapshot)):
            return (_unknown(Unknown("there is none, and what a checkpoint keeps is as old as its save")),)
        allowed = 3 * max(saves)
    if not _logged_by(last, started, log.modified):
        allowed = max(allowed, STARTING)
    if age <= allowed:
        return ()
    said = f"since step {last.step}" if last else "and no step was ever logged"
    place = f"{log.path}:{last.line}" if last and last.line else str(log.path)
    finding = Finding(
        kind="log-stalled",
        severity=Severity.CRITICAL,
        summary=f"job {running[0].id} runs, but nothing was logged for {age:.0f} s {said} (allowed: {allowed:.0f} s)",
        evidence=(place, f"job {running[0].id} on {running[0].nodes or 'unknown nodes'}"),
        step=last.step if last else None,
        line=(last.line or None) if last else None,
        runbook="log-stalled",
        actions=("m4ops requeue",),
    )
    return (finding,)


def limit(samples: tuple[Sample, ...]) -> float:
    """Seconds of silence that are allowed: three times the longest gap lately (a save is in it), no more than
    20 times the usual gap, and never below `SHORTEST`.
    """
    gaps = _gaps(samples[-RECENT:])
    return max(SHORTEST, min(3 * max(gaps), 20 * median(gaps))) if gaps else STARTING


def _gaps(samples: tuple[Sample, ...]) -> list[float]:
    pairs = [(a.elapsed, b.elapsed) for a, b in pairwise(samples)]
    if all(None in pair for pair in pairs):
        pairs = [(a.time, b.time) for a, b in pairwise(samples)]
    return [b - a for a, b in pairs if a is not None and b is not None and b >= a]


def _between_saves(snapshot: Snapshot) -> list[float]:
    """Seconds between the saves of the last checkpoints."""
    saved = sorted(c.saved for c in snapshot.checkpoints or () if c.saved is not None)
    return [b - a for a, b in pairwise(saved[-RECENT:])]


def _logged_by(last: Sample | None, started: float, modified: float) -> bool:
    """Is the last step this job's, not an earlier one's? `elapsed` counts from the job's start."""
    if last is None or modified < started or last.offset < 0:  # an earlier file may be another job's
        return False
    return last.elapsed is None or started + last.elapsed <= modified + 60
