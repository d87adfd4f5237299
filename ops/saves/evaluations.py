"""Evaluations of a finished checkpoint, as jobs: each submitted once, followed to its end, with m4's markers.

`start_run_evals_NAME` says that one is on its way, `run_evals_NAME_done` that it is over (m4's
`experiments/pretraining/vloom` keeps both in the checkpoint). A job that failed takes its first marker with it, so that
nothing waits for it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ops import attempts, lease, shell, slurm
from ops.errors import BadInput, OpsError
from ops.interventions import sbatch_flags
from ops.model import Checkpoint, Job, Run, Unknown
from ops.resources import resource
from ops.saves import ledger
from ops.saves.declared import Step, filled
from ops.saves.ledger import Record
from ops.shell import Shell, Submitter

TAG = "m4ops-saves:"
"""A job's comment names checkpoint and evaluation after this."""
SUBMITTED = "?"
"""In the place of a job: sbatch was called, and its answer did not come."""
_UNHEARD = 124
"""shell.Answer: no answer within the limit."""
MARGIN = 86400.0


class Fate(Struct, frozen=True):
    """How an evaluation stands: `runs`, `done`, `failed`, `lost` (never submitted), or `unknown`; and in words."""

    word: str
    said: str = ""
    job: str = ""


def started(step: Step) -> str:
    """The marker of one on its way."""
    return f"start_run_evals_{step.how}"


def finished(step: Step) -> str:
    """The marker of one that is over."""
    return f"run_evals_{step.how}_done"


def submit(run: Run, step: Step, checkpoint: Checkpoint, tries: int, send: Submitter) -> str:
    """Hand the job to Slurm. Returns its id, or `?` when Slurm gave no answer. Raises OpsError when it refused."""
    logs = run.dir / "logs" / "evals"
    argv = _argv(run, step, checkpoint, tries)
    lease.make_folder(logs)
    (checkpoint.path / started(step)).touch()
    answer = send(argv, slurm.TIMEOUT, shell.submission(_variables(run, step, checkpoint)))
    if answer.returncode == 0 and (found := re.search(r"^(\d+)(?:;\S+)?\s*$", answer.stdout, re.MULTILINE)):
        return found[1]
    said = " ".join((answer.stderr or answer.stdout).split()) or f"exit code {answer.returncode}"
    if answer.returncode == _UNHEARD or re.search(r"timed out|Zero Bytes|Connection reset|Unexpected message", said):
        return SUBMITTED
    unmark(step, checkpoint)
    raise OpsError(f"sbatch refused: {said[:300]}", str(checkpoint.path), " ".join(argv))


def by_hand(run: Run, step: Step, checkpoint: Checkpoint) -> tuple[str, ...]:
    """The command as a person would give it, with what m4ops's own script wants to know."""
    flags, rest = sbatch_flags.split(_filled(run, step, checkpoint))
    with suppress(BadInput):  # the script is missing: then that is what to mend
        rest = _script(run, rest)
    told = (f"M4OPS_CHECKPOINT={checkpoint.path}", f"M4OPS_EVALS={step.how}")
    return ("env", *told, "sbatch", *(word for flag in flags for word in flag.words), *rest)


def _filled(run: Run, step: Step, checkpoint: Checkpoint) -> tuple[str, ...]:
    """sbatch's words as they were declared, with the checkpoint put in."""
    return filled(step.command[1:], _places(run, checkpoint))


def unmark(step: Step, checkpoint: Checkpoint) -> None:
    (checkpoint.path / started(step)).unlink(missing_ok=True)


def fate(
    run: Run, step: Step, checkpoint: Checkpoint, record: Record, jobs: tuple[Job, ...] | Unknown, ask: Shell
) -> Fate:
    """What became of the job. `jobs`: the queue, with those that ended lately."""
    if finished(step) in checkpoint.markers:
        return Fate("done", "its marker is there")
    if isinstance(jobs, Unknown):
        return Fate("unknown", f"the queue is UNKNOWN: {jobs.reason}", record.job)
    tag = _tag(run, step, checkpoint)
    job = record.job if record.job not in ("", SUBMITTED) else _newest(jobs, tag)
    if not job:
        return Fate("lost", "no job with its tag is in the queue")
    tasks = [j for j in jobs if job in (j.array_id, j.raw_id)]
    if any(j.running or j.pending for j in tasks):
        return Fate("runs", f"job {job} {tasks[0].state}", job)
    if tasks:
        return _ended(job, [j.state for j in tasks])
    told = attempts.told(ask, [job], record.began - MARGIN)
    if isinstance(told, Unknown) or not told:
        why = told.reason if isinstance(told, Unknown) else "accounting does not know it"
        return Fate("unknown", f"job {job} left the queue, and how it ended is UNKNOWN ({why})", job)
    return _ended(job, [a.state for a in told])


def _ended(job: str, states: Sequence[str]) -> Fate:
    bad = [s for s in states if not s.startswith("COMPLETED")]
    return Fate("failed", f"job {job} ended with {bad[0]}", job) if bad else Fate("done", f"job {job} COMPLETED", job)


def _newest(jobs: Sequence[Job], tag: str) -> str:
    ours = [j.array_id for j in jobs if any(w.startswith(f"{tag}.") for w in j.comment.split())]
    return max(ours, key=lambda job: int(job) if job.isdigit() else 0, default="")


def _argv(run: Run, step: Step, checkpoint: Checkpoint, tries: int) -> tuple[str, ...]:
    """sbatch's words: what the operator declared, and what m4ops needs to know the job again.

    Comment and folder are no run's, so that it does not count as a job of the training.
    """
    flags, rest = sbatch_flags.split(_filled(run, step, checkpoint))
    said = {flag.name: flag.value for flag in flags}
    comment = f"{_tag(run, step, checkpoint)}.{tries} {said.get('comment', '')}".rstrip()
    ours = [f"--comment={comment}", "--parsable"]
    ours += [f"--clusters={run.cluster}"] if run.cluster and "clusters" not in said else []
    ours += [] if "job-name" in said else [f"--job-name=evals-{step.how}-{checkpoint.step}-{run.name}"]
    ours += [] if "chdir" in said else [f"--chdir={run.dir.parent}"]
    ours += [] if "output" in said else [f"--output={run.dir}/logs/evals/%x_%j.out"]
    words = (word for flag in flags for word in flag.words)
    return ("sbatch", *words, *ours, *_script(run, rest))


def _script(run: Run, rest: Sequence[str]) -> tuple[str, ...]:
    """The script's place: as it stands in SAVE_DIR, else m4ops's own of that name; then its arguments."""
    if not rest:
        return ()  # --wrap
    for path in (run.dir / os.path.expanduser(rest[0]), resource("slurm_templates", rest[0])):
        if path.is_file():
            return (str(Path(os.path.abspath(path))), *rest[1:])
    raise BadInput(f"there is no script {rest[0]}", str(run.dir), "name it from SAVE_DIR, or by its whole path")


def _places(run: Run, checkpoint: Checkpoint) -> dict[str, str]:
    return {
        "weights": str(checkpoint.path / "unwrapped_model"),
        "checkpoint": str(checkpoint.path),
        "step": str(checkpoint.step),
        "save_dir": str(run.dir),
        "run": run.name,
    }


def _variables(run: Run, step: Step, checkpoint: Checkpoint) -> dict[str, str]:
    """What the job finds in its environment."""
    named = {f"M4OPS_{name.upper()}": value for name, value in _places(run, checkpoint).items()}
    return {**named, "M4OPS_EVALS": step.how}


def _tag(run: Run, step: Step, checkpoint: Checkpoint) -> str:
    words = "\0".join((os.path.realpath(run.dir), step.name, ledger.key(checkpoint)))
    return TAG + hashlib.sha256(os.fsencode(words)).hexdigest()[:16]
