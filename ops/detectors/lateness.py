"""What is later than the run's own habit: saves, evaluations; and a time limit that comes before the next save.

Intervals are taken from the run itself: the steps between its checkpoints, the steps between evaluated ones, and its
seconds per step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import PurePath

from ops.model import Evals, Finding, Job, LogEvent, LogView, Severity, Snapshot
from ops.pace import seconds_per_step
from ops.quantiles import median

LATELY = 6
"""Gaps between saves, or between evaluated steps, of which the usual one is the median."""
LATE, VERY_LATE = 2.0, 4.0
"""In usual gaps: steps since the last save at which it is late."""
EVALS_LATE = 3.0
"""In usual gaps: steps by which evaluations may lag behind the newest checkpoint."""
WORTH = 300.0
"""Seconds of work; less than that is not worth a word."""
UNSAVED = 0.5
"""Share of a job's time by which something should be saved when nothing ever was."""
RUNBOOK = "save-late"


def look(snapshot: Snapshot) -> tuple[Finding, ...]:
    """`checkpoint-late` and `limit-before-save` while a job trains; `evals-late`."""
    jobs = snapshot.jobs if isinstance(snapshot.jobs, tuple) else ()
    running = next((job for job in jobs if job.state == "RUNNING"), None)
    log = snapshot.log
    late: list[Finding | None] = [_evals(snapshot)]
    if running and isinstance(log, LogView) and log.samples and isinstance(snapshot.checkpoints, tuple):
        saves = saved_steps(snapshot, log)
        late += [_unsaved(snapshot, log, running)] if not saves else [_checkpoint(snapshot, log, saves)]
        late += [_limit(snapshot, log, running, saves)]
    return tuple(finding for finding in late if finding)


def saved_steps(snapshot: Snapshot, log: LogView) -> list[int]:
    """The steps that were saved, up to the last one logged: checkpoints that are whole, and saves the log tells of."""
    checkpoints = snapshot.checkpoints if isinstance(snapshot.checkpoints, tuple) else ()
    told = {step for event in log.events if (step := saved_step(event)) is not None}
    steps = (told | {c.step for c in checkpoints}) - {c.step for c in checkpoints if not c.complete}
    return sorted(step for step in steps if step <= log.samples[-1].step)


def saved_step(event: LogEvent) -> int | None:
    """The N of the `opt_step-N` that a line of the trainer calls saved."""
    number = PurePath(event.value).name.rpartition("-")[2] if event.kind == "saved" else ""
    return int(number) if number.isdecimal() else None


def usual_gap(steps: Sequence[int]) -> float | None:
    """The usual distance between the last of these steps; None of fewer than two."""
    gaps = [b - a for a, b in pairwise(steps[-LATELY - 1 :])]
    return median(gaps) if gaps else None


def _checkpoint(snapshot: Snapshot, log: LogView, saves: Sequence[int]) -> Finding | None:
    gap, last, newest = usual_gap(saves), log.samples[-1], saves[-1]
    there = next((c.saved for c in snapshot.checkpoints or () if c.step == newest), None)
    if not gap or last.step - newest <= LATE * gap or (there is not None and snapshot.now - there < WORTH):
        return None
    torn = [c for c in snapshot.checkpoints or () if newest < c.step <= last.step and not c.complete]
    return Finding(
        kind="checkpoint-late",
        severity=Severity.CRITICAL if last.step - newest > VERY_LATE * gap else Severity.WARNING,
        summary=f"the last save was at step {newest}, {last.step - newest} steps ago; "
        f"usually there is one every {gap:g} steps{_worth(snapshot, last.step - newest)}",
        evidence=(
            *(str(c.path) for c in snapshot.checkpoints or () if c.step == newest),
            *(f"{c.path}: {problem}" for c in torn for problem in c.problems),
        ),
        step=newest,
        runbook=RUNBOOK,
        actions=("m4ops save", "m4ops checkpoints"),
    )


def _worth(snapshot: Snapshot, steps: int) -> str:
    seconds = seconds_per_step(snapshot.log.samples) if isinstance(snapshot.log, LogView) else None
    return f": {steps * seconds / 3600:.1f} h of work are not saved" if seconds else ""


def _unsaved(snapshot: Snapshot, log: LogView, job: Job) -> Finding | None:
    """Nothing was ever saved: judged by the job's own time."""
    if job.start is None or job.end is None or snapshot.now - job.start < UNSAVED * (job.end - job.start):
        return None
    last = log.samples[-1]
    if snapshot.now - job.start < WORTH:
        return None
    return Finding(
        kind="checkpoint-late",
        severity=Severity.WARNING,
        summary=f"job {job.id} has used half of its time, is at step {last.step}, and nothing was ever saved",
        evidence=(f"no complete {snapshot.run.layout.pattern} in {snapshot.run.dir}",),
        step=last.step,
        runbook=RUNBOOK,
        actions=("m4ops save", "m4ops checkpoints"),
    )


def _limit(snapshot: Snapshot, log: LogView, job: Job, saves: Sequence[int]) -> Finding | None:
    """The time limit of a job that does not save as it ends comes before its next save."""
    pace, gap, last = seconds_per_step(log.samples), usual_gap(saves), log.samples[-1]
    if not pace or not gap or job.end is None or _saves_at_its_end(snapshot, log, job):
        return None
    left, due = job.end - snapshot.now, max(0.0, saves[-1] + gap - last.step) * pace
    lost = (last.step - saves[-1]) * pace + left
    if left <= 0 or left >= due or lost < WORTH:
        return None
    return Finding(
        kind="limit-before-save",
        severity=Severity.WARNING,
        summary=f"job {job.id} reaches its time limit in {left / 60:.0f} min, its next save is due in {due / 60:.0f} min: "
        f"{lost / 60:.0f} min of work will be lost",
        evidence=(
            f"saved at step {saves[-1]}, usually every {gap:g} steps; now step {last.step}, {pace:.3g} s a step",
        ),
        step=last.step,
        runbook=RUNBOOK,
        actions=("m4ops save",),
    )


def _saves_at_its_end(snapshot: Snapshot, log: LogView, job: Job) -> bool:
    """Does the job's script have it save before the limit, or did the trainer save when an earlier job ended?

    `slurm_templates/train.slurm` does where a save switch is known; m4's trainer does at its own time's end and on
    SIGTERM (huggingface/smollm, vision/m4/training/trainer.py).
    """
    if "m4ops-submission:" in job.comment and snapshot.run.save_switch:
        return True
    return any(end.offset < save.offset and not _trained(log, end, save) for end, save in _ends_and_saves(log))


def _ends_and_saves(log: LogView) -> Iterable[tuple[LogEvent, LogEvent]]:
    told = [event for event in log.events if event.kind in ("saved", "time-over", "sigterm")]
    return ((a, b) for a, b in pairwise(told) if a.kind != "saved" and b.kind == "saved")


def _trained(log: LogView, since: LogEvent, until: LogEvent) -> bool:
    return any(since.offset < sample.offset < until.offset for sample in log.samples)


def _evals(snapshot: Snapshot) -> Finding | None:
    checkpoints = [c.step for c in snapshot.checkpoints or () if c.complete]
    if not isinstance(snapshot.evals, Evals) or not checkpoints:
        return None
    newest = max(checkpoints)
    evaluated = sorted({line.step for line in snapshot.evals.lines if line.step is not None and line.step <= newest})
    gap = usual_gap(evaluated)
    if len(evaluated) < 3 or not gap or newest - evaluated[-1] <= EVALS_LATE * max(gap, usual_gap(checkpoints) or 0):
        return None
    return Finding(
        kind="evals-late",
        severity=Severity.WARNING,
        summary=f"evaluations lag: the newest is of step {evaluated[-1]}, the newest checkpoint is of step {newest}; "
        f"usually every {gap:g} steps are evaluated",
        evidence=(str(snapshot.evals.path),),
        step=evaluated[-1],
        runbook=RUNBOOK,
        actions=("m4ops evals",),
    )
