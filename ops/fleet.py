"""Many runs and one queue: which job belongs to which run, told in one pass over the jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from ops.model import Job, Run, Unknown
from ops.slurm import TAG

Jobs = tuple[Job, ...] | Unknown


def share(runs: Sequence[Run], owners: Mapping[Path, str], queued: Jobs) -> dict[Path, Jobs]:
    """For each run's folder its jobs, as `ops.slurm.jobs_of` would pick them. `owners` names each folder's user."""
    if isinstance(queued, Unknown):
        return {run.dir: queued for run in runs}
    folders = {str(run.dir): run.dir for run in runs}
    named: dict[tuple[str, str], list[Path]] = {}
    for run in runs:
        named.setdefault((run.name, owners[run.dir]), []).append(run.dir)
    found: dict[Path, list[Job]] = {run.dir: [] for run in runs}
    for job in queued:
        tagged = (word.removeprefix(TAG) for word in job.comment.split() if word.startswith(TAG))
        at = {folders[place] for place in (*tagged, *_upwards(job.workdir)) if place in folders}
        for folder in at.union(named.get((job.name, job.user), ())):
            found[folder].append(job)
    return {folder: tuple(jobs) for folder, jobs in found.items()}


def _upwards(workdir: str) -> tuple[str, ...]:
    path = PurePosixPath(workdir)
    return (str(path), *map(str, path.parents)) if workdir else ()
