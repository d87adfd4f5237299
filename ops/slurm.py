"""Slurm as its commands tell it: one `squeue` for the queue, `scontrol` for what an operator orders.

Formats and texts: squeue(1), scontrol(1) of Slurm 22.05; the times are epochs (SLURM_TIME_FORMAT=%s).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ops.errors import OpsError, Unreachable
from ops.model import Job, Run, Unknown
from ops.shell import Answer, Shell

TIMEOUT = 15.0
"""Seconds m4ops waits for a controller: MessageTimeout's default (10 s) and some."""
_SEPARATOR = "\x1f"
_FIELDS = ("%F", "%K", "%A", "%T", "%r", "%N", "%D", "%S", "%e", "%V", "%u", "%Z", "%k", "%P", "%j")
_WITH_CLUSTER = ("squeue", "sinfo", "sbatch", "scancel", "scontrol", "sacct")
TAG = "m4ops:"
"""A job's comment names its run's SAVE_DIR after this."""


WORK = "m4ops-work:"
"""The comment of a job that works on a run's checkpoints begins with this: it is none of the run's, wherever it works."""


def queue(shell: Shell, ended: bool = False) -> tuple[Job, ...] | Unknown:
    """Every job in the queue, of everybody: one question. A controller that does not answer is Unknown.

    `ended`: also those that Slurm still remembers (MinJobAge, 300 s by default).
    """
    which = ("-t", "all") if ended else ()
    answer = shell(("squeue", "-h", *which, "-o", _SEPARATOR.join(_FIELDS)), TIMEOUT)
    if answer.returncode != 0:
        return Unknown(_first_line(answer) or f"squeue ended with {answer.returncode}")
    return parse_queue(answer.stdout)


def queues(shell: Shell, clusters: Sequence[str]) -> dict[str, tuple[Job, ...] | Unknown]:
    """The queue of each cluster ("" is the one Slurm itself means): one question for all that are named.

    The unnamed one is asked by itself, for `-M` needs slurmdbd. Of a cluster that cannot be reached `squeue -M a,b` prints
    nothing and ends with 0 (22.05): only a heading of its own tells that a cluster has answered.
    """
    named = [cluster for cluster in clusters if cluster]
    if len(named) < 2:
        return {cluster: queue(on(cluster, shell)) for cluster in clusters}
    answer = shell(("squeue", "-M", ",".join(named), "-o", _SEPARATOR.join(_FIELDS)), TIMEOUT)
    said = _first_line(answer) if answer.returncode else answer.stderr.strip().partition("\n")[0]
    told: dict[str, tuple[Job, ...] | Unknown] = {}
    for part in re.split(r"^CLUSTER: ", answer.stdout, flags=re.MULTILINE)[1:] if answer.returncode == 0 else ():
        cluster, _, rows = part.partition("\n")
        told[cluster.strip()] = parse_queue(rows.partition("\n")[2])
    lost = Unknown(said or "it cannot be reached: squeue says nothing of it")
    return {cluster: told.get(cluster, lost) if cluster else queue(shell) for cluster in clusters}


def parse_queue(text: str) -> tuple[Job, ...]:
    """The jobs of `squeue -h -o …`, one a line; the rest of an array stays one line (`1234_[4-20%1]`)."""
    rows = (line.split(_SEPARATOR, len(_FIELDS) - 1) for line in text.splitlines() if line.strip())
    return tuple(_job(row) for row in rows if len(row) == len(_FIELDS))


def _job(row: Sequence[str]) -> Job:
    array, task, raw, state, reason, nodes, count, start, end, submit, user, workdir, comment, partition, name = (
        c.strip() for c in row
    )
    if task in ("N/A", ""):
        identity, task = raw, ""
    else:
        identity = f"{array}_[{task}]" if re.search(r"[-,%]", task) else f"{array}_{task}"
    comment = "" if comment in ("(null)", "N/A") else comment
    return Job(
        identity, array, task, raw, state, reason, name, user, nodes, int(count) if count.isdigit() else 0,
        _time(start), _time(end), _time(submit), comment, workdir, partition,
    )  # fmt: skip


def _time(text: str) -> float | None:
    return float(text) if text.isdigit() and int(text) > 0 else None


def jobs_of(run: Run, owner: str, queued: tuple[Job, ...] | Unknown) -> tuple[Job, ...] | Unknown:
    """The run's jobs: tagged by m4ops, or named as the run and of its owner, or working below SAVE_DIR."""
    if isinstance(queued, Unknown):
        return queued
    below = str(run.dir) + "/"
    return tuple(
        j
        for j in queued
        if not j.comment.startswith(WORK)
        and (
            f"{TAG}{run.dir}" in j.comment.split()
            or (j.name == run.name and j.user == owner)
            or (j.workdir + "/").startswith(below)
        )
    )


def on(cluster: str, shell: Shell) -> Shell:
    """The shell with Slurm's commands asking this cluster (`-M`); with none named, the shell itself."""

    def ask(argv: Sequence[str], timeout: float) -> Answer:
        if argv[0] == "sacctmgr":
            return shell((*argv, f"cluster={cluster}"), timeout)
        return shell((argv[0], "-M", cluster, *argv[1:]) if argv[0] in _WITH_CLUSTER else argv, timeout)

    return ask if cluster else shell


def order(shell: Shell, verb: str, job: str) -> None:
    """Hold, release, requeue, requeuehold or cancel a job, an array or a task. Raises with Slurm's own words."""
    argv = ("scancel", job) if verb == "cancel" else ("scontrol", verb, job)
    answer = shell(argv, TIMEOUT)
    if answer.returncode == 0:
        return
    said = _first_line(answer) or f"exit code {answer.returncode}"
    kind = Unreachable if answer.returncode == 124 or "contact" in said or "timed out" in said else OpsError
    if verb == "release" and "denied" in said:
        said += " (an administrator holds it, who alone can release it: ask them)"
    raise kind(f"`{' '.join(argv)}` failed: {said}", f"job {job}", f"scontrol show job {job}")


def _first_line(answer: Answer) -> str:
    text = (answer.stderr or answer.stdout).strip()
    return text.splitlines()[0] if text else ""
