"""A job runs and its log is written, but no step is told: either nobody understands the log, or the training hangs.

A rank that hangs in a collective may go on printing warnings. Then the log is not silent (`ops.detectors.stall`), and only
the steps are missing. When a step was read is known by the tick that read it, for few trainers print the time.
"""

from __future__ import annotations

from shlex import quote

from ops.detectors.evidence import State, where
from ops.detectors.queue import finished
from ops.detectors.stall import STARTING, limit
from ops.model import Finding, Job, LogEvent, LogView, Sample, Severity, Snapshot

PATIENCE = 3
"""Times the silence that is allowed: a validation or a save prints its own progress."""


class Steps:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.read: float = state.get("read", 0.0)
        """When the newest step was read; 0: none ever."""
        self.last: list[int] = list(state.get("last", (0, 0, 0)))

    def dump(self) -> dict[str, object]:
        return {"read": self.read, "last": self.last}

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if isinstance(line, Sample):
            self.read, self.last = snapshot.now, [line.step, line.line, line.offset]

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """`progress-unknown`; `log-stalled` when the steps stopped though the log goes on."""
        jobs = snapshot.jobs if isinstance(snapshot.jobs, tuple) else ()
        running = [job for job in jobs if job.state == "RUNNING"]
        started = max((job.start or 0.0 for job in running), default=0.0)
        log = snapshot.log
        if not started or not isinstance(log, LogView) or not log.size or log.modified < started or finished(snapshot):
            return ()
        if log.source:  # steps come with the saves
            return ()
        age = snapshot.now - max(self.read, started)
        if not self.read:
            return (_unknown(running[0], log),) if age > STARTING and not log.samples else ()
        allowed = PATIENCE * max(limit(log.samples), STARTING / PATIENCE)
        silent = snapshot.now - log.modified > limit(log.samples)  # then `ops.detectors.stall` says so
        return (self._stalled(running[0], age, allowed, snapshot),) if age > allowed and not silent else ()

    def _stalled(self, job: Job, age: float, allowed: float, snapshot: Snapshot) -> Finding:
        step, line, offset = self.last
        return Finding(
            kind="log-stalled",
            severity=Severity.CRITICAL if age > 2 * allowed else Severity.WARNING,
            summary=f"job {job.id} runs and its log is written, but no step was logged for {age:.0f} s since step {step} "
            f"(allowed: {allowed:.0f} s)",
            evidence=(where(snapshot, line, offset), f"job {job.id} on {job.nodes or 'unknown nodes'}"),
            step=step,
            line=line or None,
            runbook="log-stalled",
            actions=("m4ops requeue",),
        )


def _unknown(job: Job, log: LogView) -> Finding:
    return Finding(
        kind="progress-unknown",
        severity=Severity.UNKNOWN,
        summary=f"job {job.id} runs, but no line of its log is known as progress: neither loss, nor LR, nor a hang is watched; "
        "m4ops.toml can say how such a line looks",
        evidence=(str(log.path), 'progress = "step {step} | loss: {loss} | lr: {lr}"'),
        runbook="log-stalled",
        actions=(f"m4ops replay {quote(str(log.path))} --progress 'step {{step}} | loss: {{loss}}'",),
    )
