"""The words of the embedded scheduler: what was submitted, where each task stands, what a command answers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PENDING = "PENDING"
RUNNING = "RUNNING"
COMPLETING = "COMPLETING"
COMPLETED = "COMPLETED"
FAILED = "FAILED"
CANCELLED = "CANCELLED"
TIMEOUT = "TIMEOUT"
NODE_FAIL = "NODE_FAIL"
REQUEUED = "REQUEUED"

COMPACT = {
    PENDING: "PD", RUNNING: "R", COMPLETING: "CG", COMPLETED: "CD", FAILED: "F", CANCELLED: "CA",
    TIMEOUT: "TO", NODE_FAIL: "NF", "SUSPENDED": "S", "PREEMPTED": "PR", "BOOT_FAIL": "BF",
    "DEADLINE": "DL", "OUT_OF_MEMORY": "OOM", "CONFIGURING": "CF", REQUEUED: "RQ",
}  # fmt: skip
"""State to the two letters of `squeue %t` (Slurm 22.05 man page squeue, JOB STATE CODES)."""

HELD_USER = "JobHeldUser"
HELD_ADMIN = "JobHeldAdmin"
HELD_REQUEUED = "job requeued in held state"

PLAIN = -1
"""The index of a job that is no array."""

Key = tuple[int, int]
"""Array job id (or the id of a plain job) and task index (`PLAIN` for a plain job)."""

TOP_PRIORITY = 4294901760
MIN_JOB_AGE = 300.0
"""Seconds a finished job stays known to squeue and scontrol (slurm.conf MinJobAge)."""

REQUEUE_WAIT = 1.0
"""Seconds a requeued job waits, reason BeginTime (Slurm: cred_expire, 120 s by default)."""

DEFAULT_KILL_WAIT = 3.0
"""Seconds from SIGTERM to SIGKILL (Slurm: KillWait, 30 s by default); `M4OPS_EMBEDDED_KILLWAIT` overrides."""

VERSION = "22.05.8"


@dataclass(frozen=True)
class Call:
    """Where and how a command is asked: the scheduler's folder, the caller's environment, folder, input."""

    root: Path
    env: Mapping[str, str]
    cwd: Path
    stdin: str = ""


class Refused(Exception):
    """A command that ends early with a message on standard error and an exit code."""

    def __init__(self, stderr: str, returncode: int = 1) -> None:
        super().__init__(stderr)
        self.stderr = stderr if stderr.endswith("\n") or not stderr else stderr + "\n"
        self.returncode = returncode


@dataclass(frozen=True)
class Spec:
    """What sbatch was asked for, shared by all tasks of an array."""

    array_id: int
    name: str
    user: str
    uid: int
    group: str
    gid: int
    workdir: str
    command: str
    args: tuple[str, ...]
    output: str
    error: str
    append: bool
    partition: str
    account: str
    nodes: int
    ntasks: int
    cpus_per_task: int
    submit_host: str
    submit_dir: str
    signal: str
    kill_on_invalid_dep: bool
    kill_wait: float
    is_array: bool
    throttle: int
    task_min: int
    task_max: int
    task_count: int
    task_step: int


@dataclass(frozen=True)
class Task:
    """One task of an array, or a plain job. Times are seconds since the epoch, 0.0 when not yet known."""

    array_id: int
    index: int
    job_id: int
    """0 while the task is part of an array's pending remainder: it then goes by the array's own id."""
    time_limit: int
    """Seconds; 0 means unlimited."""
    dependency: str
    comment: str
    exclude: str
    requeue: bool
    begin: float
    submit: float
    held: str = ""
    state: str = PENDING
    reason: str = ""
    """Only for a finished task: why, as scontrol shows it; a pending one's reason is worked out when asked."""
    restarts: int = 0
    start: float = 0.0
    end: float = 0.0
    status: int = 0
    """Raw wait status of the batch script."""
    ending: str = ""
    """While it runs: the state it is being ended for (CANCELLED, TIMEOUT, REQUEUED)."""
    ended_by: int = 0
    kill_at: float = 0.0
    """When SIGKILL is due; 0.0 before SIGTERM was sent."""
    warned: bool = False

    @property
    def key(self) -> Key:
        return (self.array_id, self.index)

    @property
    def id(self) -> int:
        """The job id Slurm would show."""
        return self.job_id or self.array_id

    @property
    def finished(self) -> bool:
        return self.state not in (PENDING, RUNNING)

    @property
    def shown_state(self) -> str:
        return COMPLETING if self.state == RUNNING and self.ending else self.state

    @property
    def priority(self) -> int:
        return 0 if self.held else TOP_PRIORITY - self.array_id


@dataclass(frozen=True)
class Run:
    """One earlier run of a task that was requeued, as `sacct -D` shows it."""

    array_id: int
    index: int
    job_id: int
    state: str
    status: int
    submit: float
    start: float
    end: float


def kill_wait(env: Mapping[str, str]) -> float:
    """Seconds between SIGTERM and SIGKILL that this environment asks for."""
    try:
        return max(0.0, float(env.get("M4OPS_EMBEDDED_KILLWAIT", "")))
    except ValueError:
        return DEFAULT_KILL_WAIT


def host() -> str:
    """The short name of this machine, the only node there is."""
    return os.uname().nodename.split(".")[0]


def slots() -> int:
    """How many tasks may run at once."""
    return max(8, os.cpu_count() or 1)
