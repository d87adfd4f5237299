"""The supervisor of one run: it starts the batch script, outlives the runner, and notes the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

from ops.demo.scheduler import spool
from ops.demo.scheduler.processes import adopt_orphans, birth, descendants, send
from ops.demo.scheduler.words import PLAIN, Spec, Task, host

_NO_OUTPUT = 53
"""What Slurm 22.05 reports when the output file cannot be opened: ExitCode 0:53, and no log anywhere."""


def launch(root: Path, spec: Spec, task: Task) -> None:
    """Fork the supervisor of a run; it reports through files. A second one for the same run gives way."""
    if os.fork():
        return
    try:
        os.closerange(3, 1024)
        os.setsid()
        _supervise(root, spec, task)
    except BaseException as error:  # noqa: BLE001 - the fork must not return into the runner's loop
        print(f"supervisor of job {task.id}: {error!r}", flush=True)
    finally:
        os._exit(0)


def _supervise(root: Path, spec: Spec, task: Task) -> None:
    folder = spool.run_dir(root, task)
    folder.mkdir(parents=True, exist_ok=True)
    if not _claim(folder):
        return
    adopt_orphans()
    child, status, trouble = _start(root, spec, task)
    if child:
        status = _wait(child)
        _end_leftovers()
    note = {"status": status, "end": time.time(), "trouble": trouble}
    spool.write_whole(folder / "exit", json.dumps(note))


def _claim(folder: Path) -> bool:
    """Be the one supervisor of this run."""
    mine = folder / f"pid.{os.getpid()}"
    mine.write_text(f"{os.getpid()} {birth(os.getpid())}")
    try:
        os.link(mine, folder / "pid")
    except FileExistsError:
        return False
    finally:
        mine.unlink()
    return True


def _start(root: Path, spec: Spec, task: Task) -> tuple[subprocess.Popen[bytes] | None, int, str]:
    """The script's process, or the status it fails with and why."""
    folder = spool.run_dir(root, task)
    try:
        out = _opened(spool.output(spec, task), spec, task)
        err = _opened(spec.error and spool.errors(spec, task), spec, task) if spec.error else out
    except OSError:
        return None, _NO_OUTPUT, "JobLaunchFailure"
    workdir = spec.workdir
    if not os.path.isdir(workdir):
        os.write(
            err,
            f"slurmstepd: error: couldn't chdir to `{workdir}': No such file or directory: "
            "going to /tmp instead\n".encode(),
        )
        workdir = "/tmp"
    script = spool.job_dir(root, spec.array_id) / "slurm_script"
    try:
        child = subprocess.Popen(
            [str(script), *spec.args],
            cwd=workdir,
            env=environment(root, spec, task),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
    except OSError as error:
        interpreter = script.read_text(errors="replace").splitlines()[0][2:].strip().split(" ")[0]
        os.write(err, f"slurmstepd: error: execve(): bad interpreter({interpreter}): {error.strerror}\n".encode())
        return None, 2 << 8, "NonZeroExitCode"
    spool.write_whole(folder / "shell", str(child.pid))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    return child, 0, ""


def _opened(path: str, spec: Spec, task: Task) -> int:
    """Always O_APPEND: the lines the runner adds at the end must not be written over."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if spec.append else os.O_TRUNC)
    return os.open(path, flags, 0o644)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Reap whatever ends, until the batch script does. (A Popen let go of earlier would reap it itself.)"""
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return status


def _end_leftovers() -> None:
    """A job is over when its batch script is: what it left running is killed."""
    while descendants(os.getpid()):
        send(descendants(os.getpid()), signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def environment(root: Path, spec: Spec, task: Task) -> dict[str, str]:
    """What the batch script sees: the submitted environment and Slurm's variables (names as in sbatch(1))."""
    env: dict[str, str] = json.loads((spool.job_dir(root, spec.array_id) / "env.json").read_text())
    node = host()
    env |= {
        "SLURM_JOB_ID": str(task.id),
        "SLURM_JOBID": str(task.id),
        "SLURM_JOB_NAME": spec.name,
        "SLURM_JOB_PARTITION": spec.partition,
        "SLURM_JOB_NODELIST": node,
        "SLURM_NODELIST": node,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": "1",
        "SLURM_NPROCS": "1",
        "SLURM_TASKS_PER_NODE": "1",
        "SLURM_CPUS_ON_NODE": str(os.cpu_count() or 1),
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": "0",
        "SLURMD_NODENAME": node,
        "SLURM_JOB_CPUS_PER_NODE": str(os.cpu_count() or 1),
        "SLURM_JOB_USER": spec.user,
        "SLURM_JOB_UID": str(spec.uid),
        "SLURM_JOB_GID": str(spec.gid),
        "SLURM_SUBMIT_DIR": spec.submit_dir,
        "SLURM_SUBMIT_HOST": spec.submit_host,
        "SLURM_CLUSTER_NAME": "demo",
        "SLURM_TASK_PID": "0",
        "ENVIRONMENT": "BATCH",
        "M4OPS_EMBEDDED": str(root),
        "M4OPS_EMBEDDED_KILLWAIT": f"{spec.kill_wait:g}",
        "PATH": f"{root / 'bin'}:{env.get('PATH', os.defpath)}",
    }
    if spec.cpus_per_task > 1:
        env["SLURM_CPUS_PER_TASK"] = str(spec.cpus_per_task)
    if spec.account:
        env["SLURM_JOB_ACCOUNT"] = spec.account
    if task.restarts:
        env["SLURM_RESTART_COUNT"] = str(task.restarts)
    if task.index != PLAIN:
        env |= {
            "SLURM_ARRAY_JOB_ID": str(spec.array_id),
            "SLURM_ARRAY_TASK_ID": str(task.index),
            "SLURM_ARRAY_TASK_MIN": str(spec.task_min),
            "SLURM_ARRAY_TASK_MAX": str(spec.task_max),
            "SLURM_ARRAY_TASK_COUNT": str(spec.task_count),
            "SLURM_ARRAY_TASK_STEP": str(spec.task_step),
        }
    return env
