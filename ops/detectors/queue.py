"""Is there a job of this run in the queue, or a good reason why not?"""

from __future__ import annotations

from ops.detectors.attempt import told
from ops.model import Finding, Job, LogView, Severity, Snapshot, Unknown

RUNBOOK = "job-not-in-queue"


def look(snapshot: Snapshot) -> tuple[Finding, ...]:
    """`job-absent`, `kill-switch-left`, or `queue-unknown` when Slurm did not answer."""
    if isinstance(snapshot.jobs, Unknown):
        summary = f"the queue could not be read: {snapshot.jobs.reason}"
        return (Finding("queue-unknown", Severity.UNKNOWN, summary, runbook=RUNBOOK, actions=("squeue --me",)),)
    running = [job for job in snapshot.jobs if job.running]
    pending = [job for job in snapshot.jobs if job.pending]
    if not running and not pending:
        return _absent(snapshot)
    return _left(snapshot, pending)


def _absent(snapshot: Snapshot) -> tuple[Finding, ...]:
    if snapshot.kill_switch_set is True or finished(snapshot):
        return ()
    log = snapshot.log if isinstance(snapshot.log, LogView) else None
    last = log.samples[-1] if log and log.samples else None
    reached = f"; the last step logged is {last.step} of {last.total or 'unknown'}" if last else ""
    started = last is not None or bool(snapshot.checkpoints) or isinstance(snapshot.checkpoints, Unknown)
    finding = Finding(
        kind="job-absent",
        severity=Severity.CRITICAL if started else Severity.WARNING,
        summary=f"no job of {snapshot.run.name} is running or queued{reached}{_doubts(snapshot)}",
        evidence=("squeue names no job of this run", *_last_end(snapshot), *_last_words(log)),
        step=last.step if last else None,
        runbook=RUNBOOK,
        actions=("m4ops submit",),
    )
    return (finding,)


def _doubts(snapshot: Snapshot) -> str:
    unread = [
        f"{name} ({value.reason})"
        for name, value in (("the log", snapshot.log), ("the kill switch", snapshot.kill_switch_set))
        if isinstance(value, Unknown)
    ]
    return f"; not known: {', '.join(unread)}" if unread else ""


def _last_end(snapshot: Snapshot) -> tuple[str, ...]:
    """How the last attempt ended: what stands in the job's own output may be missing in the log."""
    return (told(snapshot.attempts[-1], snapshot.now),) if snapshot.attempts else ()


def _last_words(log: LogView | None) -> tuple[str, ...]:
    """What the log says after its last step: why the job ended."""
    if log is None:
        return ()
    end = log.samples[-1].offset if log.samples else -1
    last = [event for event in log.events if event.offset > end and event.kind != "validation"][-3:]
    return tuple(f"{log.path}:{event.line} {event.text}" if event.line else event.text for event in last)


def finished(snapshot: Snapshot) -> bool:
    """Did the training reach its maximum number of steps, with no rewind since?"""
    log = snapshot.log
    if not isinstance(log, LogView):
        return False
    ends = [event.offset for event in log.events if event.kind == "max-steps" and event.value == "training"]
    last = log.samples[-1] if log.samples else None
    if ends and (last is None or last.offset < ends[-1]):
        end = ends[-1]
    elif last and last.total is not None and last.step >= last.total:
        end = last.offset
    else:
        return False
    changes = snapshot.history if isinstance(snapshot.history, tuple) else ()
    return not any(
        change.status == "applied"
        and change.expectation is not None
        and change.expectation.resume_step is not None
        and (change.log_offset or 0) > end
        for change in changes
    )


def _left(snapshot: Snapshot, pending: list[Job]) -> tuple[Finding, ...]:
    if snapshot.kill_switch_set is not True or not pending:
        return ()
    path = snapshot.run.kill_switch
    summary = f"the kill switch {path} is still there: each of the queued jobs will end as soon as it starts"
    actions = (f"rm {path}",)
    return (Finding("kill-switch-left", Severity.WARNING, summary, (str(path),), runbook=RUNBOOK, actions=actions),)
