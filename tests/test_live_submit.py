"""`m4ops submit` on a real Slurm: chains, secrets, the save before the time limit, and a controller that does not answer."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_lab import Cluster
from slurm_lab.processes import until

ROOT = Path(__file__).resolve().parent.parent
KEY = "7f3e9b1c5d2a8640e1f7c3b9d5a2864017e3f9b1"
TRAINER = """\
import json, os, pathlib, signal, sys, time
save_dir = pathlib.Path(os.environ["SAVE_DIR"])
job = os.environ["SLURM_JOB_ID"]
print("start of", job, "with a key of", len(os.environ.get("WANDB_API_KEY", "")), "characters", flush=True)
print("caches at", os.environ.get("HF_HOME"), "rate", os.environ.get("LR"), flush=True)
(save_dir / f"{job}_config.yaml").write_text(f"lr: {os.environ.get('LR', '0.1')}\\n")
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
switch = save_dir / "save_switch"

def save(step):
    target = save_dir / f"opt_step-{step}"
    target.mkdir(exist_ok=True)
    (target / "finished-saving").touch()
    (save_dir / "latest_opt_step_dir").write_text(str(target))
    print(f"** Saving finished at `{target}` **", flush=True)

seconds = float(sys.argv[1])
began = time.monotonic()
while time.monotonic() < began + seconds and not ended:
    if switch.exists():
        switch.unlink()
        save(7)
    time.sleep(0.05)
if ended:
    print("** SIGTERM signal received. Please restart training **", flush=True)
    save(8)
"""


class Lab:
    """A cluster, a run in it, and m4ops as a person types it on the login node."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.run = cluster.jobs / "tr_live"
        self.run.mkdir()
        (cluster.jobs / "train.py").write_text(TRAINER)

    def m4ops(self, *words: str, seconds: float = 0.5, code: int = 0, **more: str) -> str:
        env = self.cluster.env | {
            "PYTHONPATH": str(ROOT),
            "TRAIN_CMD": f"{sys.executable} {self.cluster.jobs / 'train.py'} {seconds}",
            "WANDB_API_KEY": KEY,
            **more,
        }
        argv = [sys.executable, "-m", "ops.cli", "--run", str(self.run), *words]
        done = subprocess.run(argv, env=env, cwd=self.cluster.jobs, capture_output=True, text=True, timeout=120)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @property
    def log(self) -> str:
        path = self.run / "logs" / "main_log.txt"
        return path.read_text() if path.exists() else ""

    def queue(self, *more: str) -> list[str]:
        return self.cluster.ask("squeue", "-h", *more).split()

    def idle(self) -> bool:
        return self.queue("-o", "%i") == []

    def submissions(self) -> list[dict[str, object]]:
        return [json.loads(p.read_text()) for p in sorted(self.run.glob(".m4ops/submitted/*/submission.json"))]


@pytest.fixture
def lab(slurm_lab: Callable[..., Cluster]) -> Lab:
    return Lab(slurm_lab(nodes=2))


def test_a_chain_runs_task_by_task_and_its_key_is_written_nowhere(lab: Lab) -> None:
    flags = ("--", "-N2", "--ntasks-per-node=1")
    lab.m4ops("submit", "--array", "1-3%1", "-y", *flags, seconds=1.5, HF_HOME="/scratch/me/caches")
    assert until(lambda: "start of" in lab.log)
    seen = _arguments()
    knows = {_program(place) for place in Path("/proc").glob("[0-9]*") if KEY.encode() in _read(place / "environ")}
    assert until(lab.idle)
    assert lab.log.count("with a key of 40 characters") == 6  # three tasks of two nodes
    assert lab.log.count("caches at /scratch/me/caches") == 6
    assert [line for line in seen if KEY in line] == []
    assert "srun" in knows, "the job's own processes know it"
    assert not knows & {"slurmctld", "slurmd", "slurmstepd", "munged", "tail"}, "and nobody else's"
    assert [path for path in _files(lab.cluster) if KEY.encode() in path.read_bytes()] == []
    said = json.loads(lab.m4ops("diff", "1_1", "1_3", "--json"))
    assert said["sections"]["nodes"] == [] and said["sections"]["environment"] == []


def test_sbatch_variables_count_and_flags_more(lab: Lab) -> None:
    said = {"SBATCH_PARTITION": "debug", "SBATCH_TIMELIMIT": "3", "SBATCH_WAIT": "1"}
    lab.m4ops("submit", "-y", "--", "--time=4", "--comment=mine", seconds=600, LR="0.3", **said)
    assert until(lambda: "caches at" in lab.log), lab.log
    told = lab.cluster.ask("scontrol", "show", "job", "1")
    assert "Partition=debug" in told and "TimeLimit=00:04:00" in told
    assert f"m4ops:{lab.run}" in told and " mine" in told
    assert "with a key of 40 characters" in lab.log and "caches at None rate 0.3" in lab.log


def test_what_changed_between_two_starts_is_told(lab: Lab) -> None:
    lab.m4ops("submit", "-y", "--", "-N1", "-w", "n1", LR="0.1", NCCL_DEBUG="WARN")
    lab.m4ops("submit", "-y", "--again", "--", "-N1", "--nodelist=n2", LR="0.2")
    assert until(lab.idle)
    text = lab.m4ops("diff", "1", "2")
    assert "lr: 0.1 → lr: 0.2" in text
    assert "LR: 0.1 → 0.2" in text and "- NCCL_DEBUG: WARN" in text
    assert "nodes: n1 → n2" in text


def test_before_the_limit_it_saves_and_requeues_itself(lab: Lab) -> None:
    """Slurm sends the signal of `--signal=B:USR1@…` itself: it looks every 30 s whose limit is near."""
    (lab.run / "m4ops.toml").write_text('save_switch = "save_switch"\n')
    lab.m4ops("submit", "-y", "--", "--time=1", seconds=600)
    assert until(lambda: lab.log.count("start of 1 ") == 2), lab.log
    before = lab.log.split("start of 1 ")[1]
    order = ["the save switch is set", "opt_step-7", "SIGTERM to the training", "opt_step-8", "requeue of 1"]
    assert sorted(order, key=before.index) == order
    assert "could not" not in lab.log
    lab.cluster.ask("scancel", "1")
    assert {p.name for p in (lab.run / ".m4ops" / "starts").iterdir()} == {"1.0", "1.1"}


def test_a_submission_nobody_answered_is_found_by_its_tag_and_made_once(lab: Lab) -> None:
    """sbatch gives up on a frozen controller, but its message waits there."""
    frozen = threading.Event()
    slow = lab.cluster.jobs / "bin"

    def asked() -> bool:
        return any(f"{slow}/sbatch" in line for line in _arguments())

    def thaw() -> None:
        assert until(asked)
        lab.cluster.freeze("slurmctld")
        frozen.set()
        until(lambda: not asked())
        lab.cluster.thaw("slurmctld")

    slow.mkdir()
    waits = 'while [ ! -e "$GO" ]; do sleep 0.05; done'
    (slow / "sbatch").write_text(f'#!/bin/bash\n{waits}\nexec -a "$0" /usr/bin/sbatch "$@"\n')
    (slow / "sbatch").chmod(0o755)
    go = lab.cluster.jobs / "go"
    thread = threading.Thread(target=lambda: thaw())
    thread.start()
    opener = threading.Thread(target=lambda: (frozen.wait(40), go.touch()))
    opener.start()
    said = lab.m4ops("submit", "-y", seconds=600, PATH=f"{slow}:{lab.cluster.env['PATH']}", GO=str(go))
    thread.join()
    opener.join()
    assert "sbatch gave no answer" in said and "job 1 is submitted" in said
    assert lab.queue("-o", "%i") == ["1"]
    assert [s["job"] for s in lab.submissions()] == ["1"]
    lab.m4ops("undo", "-y")
    assert until(lab.idle)


def test_a_refused_submission_leaves_nothing_and_says_why(lab: Lab) -> None:
    said = lab.m4ops("submit", "-y", "--", "--partition=nowhere", code=1)
    assert "Invalid partition name specified" in said and "no job was made" in said
    assert lab.submissions() == [] and lab.idle()
    lab.cluster.kill("slurmctld")
    said = lab.m4ops("submit", "-y", code=1)
    assert "the queue is UNKNOWN" in said
    assert lab.submissions() == []


def _arguments() -> list[str]:
    """The command line of every process there is."""
    found = (_read(path) for path in Path("/proc").glob("[0-9]*/cmdline"))
    return [line.replace(b"\0", b" ").decode(errors="replace") for line in found if line]


def _program(process: Path) -> str:
    return _read(process / "comm").decode().strip()


def _read(path: Path) -> bytes:
    """Of a process, or nothing when it has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _files(cluster: Cluster) -> list[Path]:
    """Every file of the cluster but where Slurm itself keeps its jobs' environments, for root alone."""
    own = (cluster.folder / "state", cluster.folder / "spool")
    found = (Path(folder) / name for folder, _, names in os.walk(cluster.folder) for name in names)
    return [p for p in found if p.is_file() and not any(p.is_relative_to(place) for place in own)]
