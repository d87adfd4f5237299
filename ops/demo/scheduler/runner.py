"""The detached process that starts tasks, ends them, sees them end. One a root; it leaves when all is done.

It keeps nothing in memory that matters: killed at any point, the next one goes on from the table.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

from ops.demo.scheduler import processes, spool, stepd, waiting
from ops.demo.scheduler.state import Table, label, locked, read, split, unfinished
from ops.demo.scheduler.words import (
    CANCELLED,
    COMPLETED,
    FAILED,
    NODE_FAIL,
    PENDING,
    REQUEUE_WAIT,
    REQUEUED,
    RUNNING,
    TIMEOUT,
    Run,
    Spec,
    Task,
    host,
)

TICK, LIVELY_TICK = 0.1, 0.025
"""Seconds between two looks, and while the table has changed within the last second."""
LINGER = 2.0
"""Seconds the runner stays when there is nothing left to do."""
LAUNCH_AGAIN = 1.0
"""Seconds after which a supervisor that has not come up is started again (the runner died in between)."""
_WHY = {CANCELLED: "", TIMEOUT: " DUE TO TIME LIMIT", REQUEUED: " DUE TO JOB REQUEUE"}
_SHIMS = ("sbatch", "squeue", "scontrol", "scancel", "sacct", "sinfo", "srun")
_MAIN = str(Path(__file__).with_name("__main__.py"))


def ensure(root: Path, env: Mapping[str, str]) -> None:
    """Start a runner if there is work and none is alive. It belongs to no terminal and to no parent."""
    if not unfinished(read(root)) or not os.access(root, os.W_OK):
        return
    with open(root / "runner.lock", "a") as lock, open(root / "runner.log", "ab") as log:
        if not _take(lock):
            return
        # The runner inherits the lock itself: nobody can start a second one meanwhile.
        python = [sys.executable, "-IS", _MAIN, "runner", str(root), str(lock.fileno())]
        # The shell leaves the runner to init, so that nobody has a child to wait for.
        subprocess.run(
            ["/bin/sh", "-c", '"$@" &', "sh", *python],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            pass_fds=(lock.fileno(),),
            check=True,
            cwd="/",
            env={"PATH": env.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
        )


def _take(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def alive(root: Path) -> bool:
    """Whether a runner is there, or just being started."""
    with open(root / "runner.lock", "a") as lock:
        return not _take(lock)


def pid(root: Path) -> int:
    """The runner's process; 0 if there is none, or it has only just been started."""
    try:
        number, born = map(int, (root / "runner.pid").read_text().split())
    except FileNotFoundError:
        return 0
    return number if processes.birth(number) == born else 0


def write_shims(root: Path) -> None:
    """Programs named as Slurm's, which jobs find first in their PATH."""
    folder = root / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name in _SHIMS:
        path = folder / name
        if path.exists():
            continue
        text = f'#!/bin/sh\nM4OPS_EMBEDDED={_quoted(str(root))} exec {_quoted(sys.executable)} -IS {_quoted(_MAIN)} {name} "$@"\n'
        spool.write_whole(path, text)
        path.chmod(0o755)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def main(root: Path, lock: int) -> None:
    """Be the runner of this root; `lock` is the descriptor that says so."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)  # a background process of sh ignores them, its jobs must not
    spool.write_whole(root / "runner.pid", f"{os.getpid()} {processes.birth(os.getpid())}")
    idle_since = time.monotonic()
    while True:
        if tick(root):
            idle_since = time.monotonic()
        elif time.monotonic() - idle_since > LINGER and _leave(root, lock):
            return
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        lively = time.time() - (root / "state.json").stat().st_mtime < 1
        time.sleep(LIVELY_TICK if lively else TICK)


def _leave(root: Path, lock: int) -> bool:
    """Give the lock up only while no command can submit, or a job would wait for a runner that has left."""
    with locked(root) as table:
        if unfinished(table):
            return False
        fcntl.flock(lock, fcntl.LOCK_UN)
    return True


def tick(root: Path) -> bool:
    """One look at everything: what ended, what is to be ended, what may start. True while there is work."""
    if not unfinished(read(root)):
        return False
    now = time.time()
    with locked(root) as table:
        for task in [t for t in table.tasks.values() if t.state == RUNNING]:
            _collect(root, table, task, now)
        outlook = waiting.outlook(table, now)
        _drop_invalid(table, outlook, now)
        starting = [t for t in table.tasks.values() if _not_up(root, t, now)]
        starting += [_mark_started(table, task) for task in outlook.starts]
    for task in starting:
        stepd.launch(root, table.specs[task.array_id], task)
    return True


def _not_up(root: Path, task: Task, now: float) -> bool:
    return task.state == RUNNING and now - task.start > LAUNCH_AGAIN and not spool.supervisor(root, task)


def _mark_started(table: Table, task: Task) -> Task:
    return table.put(replace(split(table, task), state=RUNNING, start=time.time(), begin=0.0, end=0.0, status=0))


def _drop_invalid(table: Table, outlook: waiting.Outlook, now: float) -> None:
    """--kill-on-invalid-dep=yes"""
    for key, reason in outlook.reasons.items():
        task = table.tasks[key]
        if reason == "DependencyNeverSatisfied" and table.specs[task.array_id].kill_on_invalid_dep:
            table.put(replace(task, state=CANCELLED, reason=reason, start=now, end=now))


def _collect(root: Path, table: Table, task: Task, now: float) -> None:
    spec = table.specs[task.array_id]
    over = spool.outcome(root, task)
    pid = spool.supervisor(root, task)
    if over:
        table.put(ended(table, task, *over))
    elif pid == -1:
        _lost(root, table, task, now)
    elif pid > 0:
        _press(root, table, spec, task, pid)


def _lost(root: Path, table: Table, task: Task, now: float) -> None:
    """The supervisor vanished without a word (the machine was rebooted, or somebody killed it)."""
    if spool.outcome(root, task):
        return  # it wrote its word between our two looks
    print(f"job {label(task)}: its supervisor is gone", flush=True)
    shell = spool.batch_shell(root, task)
    if shell and processes.has_variable(shell, f"SLURM_JOB_ID={task.id}"):
        processes.send([shell, *processes.descendants(shell)], signal.SIGKILL)
    if task.ending:
        table.put(ended(table, task, signal.SIGKILL, now, ""))
    else:
        table.put(replace(task, state=NODE_FAIL, reason="NodeDown", status=signal.SIGTERM, end=now))


def ended(table: Table, task: Task, status: int, end: float, trouble: str) -> Task:
    """The task after its run is over."""
    if task.ending == REQUEUED:
        return requeued(table, replace(task, status=status, end=end), end)
    state = task.ending or (FAILED if status else COMPLETED)
    reason = trouble
    if not reason and state == FAILED:
        reason = "NonZeroExitCode" if os.WIFEXITED(status) else "JobLaunchFailure"
    reason = "TimeLimit" if state == TIMEOUT else reason or task.held or "None"
    return replace(task, state=state, reason=reason, status=status, end=end, ending="", kill_at=0.0)


def requeued(table: Table, task: Task, now: float) -> Task:
    """The task pending again; its finished run is remembered for `sacct -D`."""
    state = REQUEUED if task.state == RUNNING else task.state
    table.runs.append(Run(task.array_id, task.index, task.id, state, task.status, task.submit, task.start, task.end))
    return replace(
        split(table, task),
        state=PENDING,
        reason="",
        restarts=task.restarts + 1,
        submit=now,
        begin=now + REQUEUE_WAIT,
        start=0.0,
        end=0.0,
        status=0,
        ending="",
        ended_by=0,
        kill_at=0.0,
        warned=False,
    )


def _press(root: Path, table: Table, spec: Spec, task: Task, pid: int) -> None:
    """Warn, time out, terminate, kill: whatever is due for a running task."""
    now = time.time()
    if task.time_limit and not task.ending:
        task = _warned(root, table, spec, task, pid)
        if now >= task.start + task.time_limit:
            task = table.put(replace(task, ending=TIMEOUT))
    if not task.ending:
        return
    if not task.kill_at:
        _say_why(root, spec, task)
        processes.terminate(processes.descendants(pid))
        table.put(replace(task, kill_at=now + spec.kill_wait))
    elif now >= task.kill_at:
        processes.send(processes.descendants(pid), signal.SIGKILL)


def _say_why(root: Path, spec: Spec, task: Task) -> None:
    """The line slurmstepd leaves in the job's output, and a note of it for a running srun."""
    why = f"CANCELLED AT {time.strftime('%Y-%m-%dT%H:%M:%S')}{_WHY.get(task.ending, '')} ***\n"
    spool.write_whole(spool.run_dir(root, task) / "why", why)
    try:
        with open(spool.errors(spec, task), "a") as out:
            out.write(f"slurmstepd: error: *** JOB {task.id} ON {host()} {why}")
    except OSError as error:
        print(f"job {label(task)}: its output cannot be written: {error}", flush=True)


def _warned(root: Path, table: Table, spec: Spec, task: Task, pid: int) -> Task:
    """`--signal=[B:]SIG@secs`: once, that many seconds before the limit."""
    if not spec.signal or task.warned:
        return task
    to_shell, number, seconds = parse_signal(spec.signal)
    if time.time() < task.start + task.time_limit - seconds:
        return task
    below = [spool.batch_shell(root, task)] if to_shell else processes.descendants(pid)
    processes.send([p for p in below if p and (to_shell or processes.in_step(p))], number)
    return table.put(replace(task, warned=True))


def parse_signal(text: str) -> tuple[bool, int, int]:
    """`[B:]SIG[@seconds]` as (batch shell only, signal number, seconds before the end). Raises ValueError."""
    name, _, seconds = text.partition("@")
    to_shell = name.startswith("B:")
    return to_shell, signal_number(name.removeprefix("B:").removeprefix("R:")), int(seconds or 60)


def signal_number(name: str) -> int:
    """`USR1`, `SIGUSR1` or `10`. Raises ValueError."""
    if name.isdigit():
        return int(signal.Signals(int(name)))
    try:
        return int(signal.Signals["SIG" + name.upper().removeprefix("SIG")])
    except KeyError:
        raise ValueError(name) from None
