"""What a job has on disk beside its line in the table: script, environment, output files, marks of its runs."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ops.demo.scheduler.processes import birth
from ops.demo.scheduler.words import PLAIN, Spec, Task, host

_PATTERN = re.compile(r"%(\d*)([%AJNajnstux])")
NO_INDEX = 4294967294
"""What Slurm puts for %a where a job has no task index."""


def job_dir(root: Path, array_id: int) -> Path:
    """Where the copies of script and environment lie."""
    return root / "jobs" / str(array_id)


def run_dir(root: Path, task: Task) -> Path:
    """Where one run's supervisor leaves its pid and the exit status: a restart has its own."""
    return root / "runs" / f"{task.id}.{task.restarts}"


def supervisor(root: Path, task: Task) -> int:
    """The pid of the run's supervisor; 0 if it has not come up yet, -1 if it is gone."""
    try:
        pid, born = map(int, (run_dir(root, task) / "pid").read_text().split())
    except FileNotFoundError:
        return 0
    return pid if birth(pid) == born else -1


def batch_shell(root: Path, task: Task) -> int:
    """The pid of the batch script; 0 while it is not running."""
    try:
        return int((run_dir(root, task) / "shell").read_text())
    except FileNotFoundError:
        return 0


def outcome(root: Path, task: Task) -> tuple[int, float, str] | None:
    """Raw wait status, end time and trouble at the start of a run that is over."""
    try:
        data = json.loads((run_dir(root, task) / "exit").read_text())
    except FileNotFoundError:
        return None
    return int(data["status"]), float(data["end"]), str(data["trouble"])


def write_whole(path: Path, text: str) -> None:
    """Write a file so that nobody reads half of it."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    os.replace(fresh, path)


def expand(pattern: str, spec: Spec, task: Task, *, alone: bool = True) -> str:
    """A file name of sbatch(1) with %x %j %A %a %u %N ... filled in; not `alone`: an array's remainder."""
    index = task.index if task.index != PLAIN and alone else NO_INDEX
    values = {
        "A": str(spec.array_id), "J": str(task.id), "N": host(), "a": str(index), "j": str(task.id),
        "n": "0", "s": "batch", "t": "0", "u": spec.user, "x": spec.name,
    }  # fmt: skip

    def fill(found: re.Match[str]) -> str:
        return "%" if found[2] == "%" else values[found[2]].zfill(int(found[1] or 0))

    return os.path.join(spec.workdir, _PATTERN.sub(fill, pattern))


def output(spec: Spec, task: Task, *, alone: bool = True) -> str:
    return expand(spec.output, spec, task, alone=alone)


def errors(spec: Spec, task: Task, *, alone: bool = True) -> str:
    return expand(spec.error or spec.output, spec, task, alone=alone)


def expand_folder(pattern: str, spec: Spec) -> str:
    """The pattern itself below the job's folder, as squeue shows it."""
    return os.path.join(spec.workdir, pattern)
