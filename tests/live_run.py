"""A run on a lab cluster, as its owner has it before them: jobs by sbatch, m4ops by its command."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_lab import Cluster
from slurm_lab.processes import PATIENCE, until

TRAINER = Path(__file__).with_name("shell_trainer.sh")
ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


@dataclass(frozen=True)
class LiveRun:
    """A SAVE_DIR that every node of the cluster sees."""

    cluster: Cluster
    name: str = "tr_live"

    @property
    def dir(self) -> Path:
        return self.cluster.jobs / self.name

    @property
    def log(self) -> str:
        try:
            return (self.dir / "logs" / "main_log.txt").read_text()
        except FileNotFoundError:
            return ""

    @property
    def steps(self) -> int:
        return self.log.count("iteration:")

    def make(self) -> "LiveRun":
        (self.dir / "logs").mkdir(parents=True)
        (self.dir / "logs" / "main_log.txt").touch()
        (self.dir / "m4ops.toml").write_text(f'kill_switch = "{self.dir}/kill"\nsave_switch = "{self.dir}/save"\n')
        return self

    def adopt(self, trained: Path, newest: int = 99) -> None:
        """Take the checkpoints of a really trained run (tests/runs.py), or its newest; it resumes from the last one."""
        found = sorted(trained.glob("*/opt_step-*"), key=lambda p: int(p.name.split("-")[1]))
        for checkpoint in found[-newest:]:
            shutil.copytree(checkpoint, self.dir / checkpoint.name)
        (self.dir / "latest_opt_step_dir").write_text(str(self.dir / found[-1].name))

    def train(self, *flags: str, steps: int = 9000) -> str:
        """Submit the shell trainer as an operator submits a training; the job's id."""
        # Not by --export=ALL,NAME=…: 22.05 then runs a login shell on the node first.
        command = (
            f"export SAVE_DIR={self.dir} STEPS={steps}; srun --kill-on-bad-exit=1 bash {TRAINER} 2>&1 "
            f"| tee -a {self.dir}/logs/main_log.txt; exit ${{PIPESTATUS[0]}}"
        )
        return self.sbatch("--requeue", *flags, wrap=command)

    def sbatch(self, *flags: str, wrap: str = "sleep 300", user: str = "") -> str:
        """Submit a shell line under the run's name; the job's id."""
        out = f"--output={self.cluster.jobs}/%x_%j.out"
        flags = (f"--job-name={self.name}", out, "--open-mode=append", *flags)
        return self.cluster.ask("sbatch", "--parsable", *flags, f"--wrap={wrap}", user=user)

    def m4ops(self, *words: str, limit: float = PATIENCE, user: str = "", path: str = "") -> Said:
        """The command on this run, in a process of its own. `path`: a folder whose programs come first."""
        argv = [*_as(user), sys.executable, "-m", "ops.cli", "--run", str(self.dir), *words]
        env = self.env | {"PATH": f"{path}:{self.env['PATH']}" if path else self.env["PATH"]}
        done = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=limit)
        return Said(done.returncode, done.stdout, done.stderr)

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """The same, without waiting for its end; with these variables changed."""
        argv = [sys.executable, "-m", "ops.cli", "--run", str(self.dir), *words]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(argv, env=self.env | env, cwd=ROOT, text=True, **pipes)

    @property
    def env(self) -> dict[str, str]:
        own = {k: os.environ[k] for k in ("XDG_STATE_HOME", "XDG_CONFIG_HOME") if k in os.environ}
        return {k: v for k, v in self.cluster.env.items() if not k.startswith("M4OPS_")} | own

    def done(self, *words: str, **more: Any) -> Said:
        """The command, and it must succeed."""
        said = self.m4ops(*words, **more)
        assert said.code == 0, said.err + said.out
        return said

    def timed(self, *words: str) -> tuple[Said, float]:
        """The command, and how many seconds it took."""
        began = time.monotonic()
        return self.m4ops(*words), time.monotonic() - began

    def screen(self) -> str:
        """What status shows, its lines unfolded."""
        return " ".join(self.done("status").out.split())

    def status(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.done("status", "--json").out)
        return shown

    def queue(self) -> dict[str, tuple[str, str]]:
        """What Slurm itself says: state and reason of each job and each folded array."""
        rows = self.cluster.ask("squeue", "-h", "-o", "%i\t%T\t%r").splitlines()
        return {row.split("\t")[0]: (row.split("\t")[1], row.split("\t")[2]) for row in rows}

    def told(self, job: str, key: str) -> str:
        """A field of `scontrol show job`."""
        fields = self.cluster.ask("scontrol", "-o", "show", "job", job).split()
        return next(f.partition("=")[2] for f in fields if f.startswith(key + "="))

    def trains(self, more: int = 1) -> None:
        """Wait until so many steps more are logged."""
        now = self.steps
        self.sees(lambda: self.steps >= now + more)

    def sees(self, condition: Any, limit: float = PATIENCE) -> None:
        """Wait until it holds; what the queue, the log and the jobs' own outputs say when it does not."""
        assert until(condition, limit, 0.05), f"{self._queue()}\n{self.log[-2000:]}\n{self._outputs()}"

    def _outputs(self) -> str:
        return "\n".join(f"{p.name}: {p.read_text()[-1000:]}" for p in self.cluster.jobs.glob(f"**/*{self.name}*.out"))

    def _queue(self) -> str:
        return subprocess.run(["squeue"], env=self.cluster.env, capture_output=True, text=True, timeout=30).stdout


def _as(user: str) -> list[str]:
    """As this user, who may read the interpreter and the modules wherever they lie, and nothing more."""
    cap = "+dac_read_search"
    who = [f"--reuid={user}", "--regid=nogroup", "--clear-groups", f"--inh-caps={cap}", f"--ambient-caps={cap}"]
    return ["setpriv", *who, "--"] if user else []


def unchanged(run: LiveRun, before: Sequence[str]) -> bool:
    """No file of the run outside m4ops's own folder came or went."""
    return sorted(files(run)) == sorted(before)


def files(run: LiveRun) -> list[str]:
    return [str(p) for p in run.dir.rglob("*") if ".m4ops" not in p.parts]
