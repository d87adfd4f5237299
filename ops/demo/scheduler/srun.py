"""srun inside a job: run the command as the one task of a step, and say what became of it as srun does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from ops.demo.scheduler import options
from ops.demo.scheduler.words import Refused, host

_RULES = options.grammar(
    "srun",
    "accel-bind= account|A= bcast? bind-to= chdir|D= compress? constraint|C= container= cpu-bind= cpu-freq= "
    "cpus-per-gpu= cpus-per-task|c= dependency|d= distribution|m= epilog= error|e= exact exclude|x= exclusive? "
    "export= gpu-bind= gpu-freq= gpus|G= gpus-per-node= gpus-per-task= gres= gres-flags= hint= immediate|I? input|i= "
    "job-name|J= jobid= kill-on-bad-exit|K? label|l mem= mem-bind= mem-per-cpu= mem-per-gpu= mpi= msg-timeout= "
    "network= no-kill|k nodelist|w= nodes|N= ntasks|n= ntasks-per-core= ntasks-per-gpu= ntasks-per-node= "
    "ntasks-per-socket= open-mode= output|o= overcommit|O overlap partition|p= preserve-env|E profile= prolog= "
    "propagate? pty quiet|Q quit-on-interrupt relative|r= slurmd-debug= task-epilog= task-prolog= threads= "
    "threads-per-core= time|t= time-min= unbuffered|u verbose|v wait|W=",
    stop=True,
)


def run(argv: list[str]) -> int:
    """Run a step in the foreground; the exit code is the command's, 128 + N when signal N ended it."""
    try:
        _, command = options.parse(_RULES, argv)
    except Refused as no:
        sys.stderr.write(no.stderr)
        return no.returncode
    if not command:
        sys.stderr.write("srun: fatal: No command given to execute.\n")
        return 1
    env = _environment()
    try:
        step = subprocess.Popen(command, env=env)
    except OSError as error:
        _say(f"slurmstepd: error: execve(): {command[0]}: {error.strerror}")
        _say(f"srun: error: {host()}: task 0: Exited with exit code 2")
        return 2
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, lambda got, _frame: step.send_signal(got))
    signal.signal(signal.SIGTERM, lambda _got, _frame: _aborted(env, step))
    return _told(step.wait(), env)


def _environment() -> dict[str, str]:
    """Every step of a job has its number."""
    folder = Path(os.environ["M4OPS_EMBEDDED"]) / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    job = os.environ.get("SLURM_JOB_ID", "0")
    number = 0
    while True:
        try:
            os.close(
                os.open(folder / f"{job}.{os.environ.get('SLURM_RESTART_COUNT', '0')}.{number}", os.O_CREAT | os.O_EXCL)
            )
            break
        except FileExistsError:
            number += 1
    return dict(os.environ) | {
        "SLURM_STEP_ID": str(number),
        "SLURM_STEPID": str(number),
        "SLURM_NTASKS": "1",
        "SLURM_NPROCS": "1",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": "0",
        "SLURM_NNODES": "1",
        "SLURM_STEP_NODELIST": host(),
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": "1",
        "SLURM_STEP_TASKS_PER_NODE": "1",
    }


def _aborted(env: dict[str, str], step: subprocess.Popen[bytes]) -> None:
    """Said once, when the job is being ended; the step gets its signals from the scheduler."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    wait = int(float(env.get("M4OPS_EMBEDDED_KILLWAIT", "3"))) + 2
    _say(f"srun: Job step aborted: Waiting up to {wait} seconds for job step to finish.")
    note = Path(env["M4OPS_EMBEDDED"], "runs", f"{_job(env)}.{env.get('SLURM_RESTART_COUNT', '0')}", "why")
    if note.exists():
        _say(f"slurmstepd: error: *** STEP {_job(env)}.{env['SLURM_STEP_ID']} ON {host()} {note.read_text().rstrip()}")
    else:
        step.terminate()
    _say("srun: forcing job termination")


def _job(env: dict[str, str]) -> str:
    return env.get("SLURM_JOB_ID", "0")


def _told(code: int, env: dict[str, str]) -> int:
    """The line srun ends with, and its exit code."""
    if code > 0:
        _say(f"srun: error: {host()}: task 0: Exited with exit code {code}")
    elif code < 0:
        _say(f"srun: error: {host()}: task 0: {signal.strsignal(-code)}")
        if -code == signal.SIGKILL:
            _say(f"srun: Force Terminated StepId={_job(env)}.{env['SLURM_STEP_ID']}")
    return code if code >= 0 else 128 - code


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
