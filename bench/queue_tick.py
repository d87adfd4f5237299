"""One `m4ops check --all` of many runs beside the bare `squeue`, on a real Slurm cluster with a long queue.

    python bench/queue_tick.py [runs] [tasks]

Brings up the suite's cluster (tests/slurm_lab; needs root and Debian's Slurm packages), queues `runs` arrays with
`tasks` tasks together (default: 500 runs, 10,000 tasks), checks all runs several times, and prints how often Slurm was
asked and the CPU time (user + system, of the command and its children) beside that of `squeue` with the same format.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.slurm_lab import Cluster, Shape  # noqa: E402

ROUNDS = 5
LINE = "[2026-01-01 00:00:00] iteration: {:9d}/500000   0% | elapsed time: 00:00:{:02d} | per_token_loss: 2.1 | lr: 1.000E-05 |\n"
COUNTER = '#!/bin/sh\necho {name} >>"{log}"\nexec {program} "$@"\n'


def cpu(argv: list[str], env: dict[str, str], codes: tuple[int, ...] = (0,)) -> float:
    """User and system seconds of a command and its children."""
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in codes:
            raise SystemExit(f"{argv} ended with {process.returncode}: {process.stderr.read().decode()}")
    return used.ru_utime + used.ru_stime


def make_runs(folder: Path, number: int) -> None:
    for i in range(number):
        logs = folder / f"tr_{i:03}" / "logs"
        logs.mkdir(parents=True)
        (logs / "main_log.txt").write_text("".join(LINE.format(25 * n, n % 60) for n in range(1, 41)))


def counting(folder: Path, log: Path) -> str:
    """A PATH whose Slurm commands note that they were called."""
    folder.mkdir()
    for name in ("squeue", "sinfo", "sacct", "sacctmgr", "scontrol"):
        program = folder / name
        program.write_text(COUNTER.format(name=name, log=log, program=shutil.which(name)))
        program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def main(runs: int, tasks: int) -> None:
    from ops.slurm import _FIELDS, _SEPARATOR

    cluster = Cluster.up(Shape(nodes=2), tied=True)
    with tempfile.TemporaryDirectory() as name:
        try:
            folder, log = Path(name), Path(name) / "asked"
            make_runs(folder / "runs", runs)
            for i in range(runs):
                each = tasks // runs
                cluster.ask(
                    "sbatch", f"--array=1-{each}%1", "-N2", f"--job-name=tr_{i:03}", "-o/dev/null", "--wrap=sleep 900"
                )
            own = {
                "SLURM_CONF": str(cluster.conf),
                "PYTHONPATH": str(ROOT),
                "XDG_STATE_HOME": name,
                "M4OPS_QUEUE_AGE": "0",
            }
            env = {**os.environ, **own, "M4OPS_ROOTS": str(folder / "runs")}
            bare = [cpu(["squeue", "-h", "-o", _SEPARATOR.join(_FIELDS)], env) for _ in range(ROUNDS)]
            each_task = [cpu(["squeue", "-h", "-r", "-o", "%i %T"], env) for _ in range(ROUNDS)]
            check = [sys.executable, "-m", "ops.cli", "check", "--all", "--json"]
            ticks = [cpu(check, env, (0, 1, 2)) for _ in range(ROUNDS)]
            cpu(check, {**env, "PATH": counting(folder / "bin", log)}, (0, 1, 2))
            asked = log.read_text().split()
        finally:
            cluster.down()
    report(runs, tasks, asked, (bare, each_task, ticks))


def report(runs: int, tasks: int, asked: list[str], measured: tuple[list[float], list[float], list[float]]) -> None:
    bare, each_task, ticks = (1000 * statistics.median(times) for times in measured)
    told = ", ".join(f"{name} {asked.count(name)} x" for name in sorted(set(asked)))
    print(f"{runs} runs, {tasks} queued tasks; one check --all asks: {told}")
    print(f"squeue alone      {bare:7.1f} ms CPU ({each_task:.1f} ms with a line a task)")
    print(f"check --all       {ticks:7.1f} ms CPU, {ticks / runs:.2f} ms a run, {ticks / bare:.0f} x squeue")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500, int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
