"""The demo training seen from outside: its files, its log, its switches, its faults, and how it resumes."""

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
TEMPLATE = ROOT / "slurm_templates" / "train.slurm"
LIMIT = 60.0
Process: TypeAlias = "subprocess.Popen[bytes]"
TRAIN_LINE = re.compile(
    r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] iteration: +(\d+)/(\d+) +\d+% \| elapsed time: \d\d:\d\d:\d\d \| "
    r"per_token_loss: ([\d.]+|nan) \| per_token_loss/cm4: \S+ \| per_token_loss/pmd: \S+ \| "
    r"lr: (\d\.\d{3}E[+-]\d\d) \| num_tokens: \d+ \| .*grad_norm: \S+ \| .*"
)

# Takes srun's place: notes its options, runs the command once.
FAKE_SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do echo "$1" >>"$SRUN_NOTES"; shift; done
exec "$@"
"""


@dataclass(frozen=True)
class Run:
    """A run under a temporary folder; each start of its training is one job of the template."""

    folder: Path

    @property
    def save_dir(self) -> Path:
        return self.folder / "tr_demo"

    @property
    def kill(self) -> Path:
        return self.folder / "kill"

    @property
    def save(self) -> Path:
        return self.folder / "save"

    def start(self, job: int, fault: dict[str, Any] | None = None, **hparams: object) -> Process:
        """Start job ``job`` with these settings beside the usual ones."""
        paths = {"save_dir": "tr_demo", "evals_dir": "evals", "kill_switch_path": "kill"}
        steps = {"train_saving_opt_steps": 40, "val_logging_opt_steps": 40, "eval_opt_steps": 40}
        config = self.folder / "config.yaml"
        settings = {**paths, "save_switch_path": "save", **steps, **hparams}
        config.write_text(yaml.safe_dump({"hparams": settings, "fault": fault or {}}))
        command = f"{sys.executable} -u -m ops.demo.trainer --config {config}"
        return self.start_template(job, command)

    def start_template(self, job: int, command: str) -> Process:
        tools = self.folder / "bin"
        tools.mkdir(exist_ok=True)
        (tools / "srun").write_text(FAKE_SRUN)
        (tools / "srun").chmod(0o755)
        environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "SLURM_JOB_ID": str(job),
            "M4OPS_SAVE_DIR": str(self.save_dir),
            "TRAIN_CMD": command,
            "SRUN_NOTES": str(self.folder / "srun_options"),
        }
        surroundings = os.environ | environment
        return subprocess.Popen(["bash", TEMPLATE], cwd=ROOT, env=surroundings, stdout=subprocess.DEVNULL)

    def log(self) -> str:
        path = self.save_dir / "logs" / "main_log.txt"
        return path.read_text() if path.exists() else ""

    def losses(self, job: int) -> dict[int, float]:
        """Logged step → loss of a job, from its JSON lines."""
        lines = (self.save_dir / "logs" / f"{job}_logs.jsonl").read_text().splitlines()
        logged = [line for line in map(json.loads, lines) if line["set"] == "train"]
        return {int(line["iteration"].split("/")[0]): line["per_token_loss"] for line in logged}

    def infos(self, step: int) -> dict[str, Any]:
        path = self.save_dir / f"opt_step-{step}" / "resume_run_infos.json"
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def point_to(self, step: int) -> Path:
        target = self.save_dir / f"opt_step-{step}"
        (self.save_dir / "latest_opt_step_dir").write_text(str(target))
        return target


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def wait(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f"waited {LIMIT:.0f} s for {what}"
        time.sleep(0.01)


def code(job: Process) -> int:
    return job.wait(LIMIT)


def step_process(job: Process) -> int:
    """The pid of the training below the template's shell (bash → srun, which became the training)."""
    below = [job.pid]
    for pid in below:
        below += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"ops.demo.trainer" in command and command.startswith(os.fsencode(sys.executable)):
            return pid
    raise AssertionError("the training is not running")


def mean(values: dict[int, float], first: int, last: int) -> float:
    chosen = [value for step, value in values.items() if first <= step <= last]
    return sum(chosen) / len(chosen)


def scale_lr(checkpoint: Path, factor: float) -> None:
    """What the handbook does by hand, and the optimizer's own LR with it."""
    import torch

    state = checkpoint / "accelerator_state"
    scheduler = torch.load(state / "custom_checkpoint_0.pkl")
    for key in ("base_lrs", "_last_lr"):
        scheduler[key] = [lr * factor for lr in scheduler[key]]
    torch.save(scheduler, state / "custom_checkpoint_0.pkl")
    optimizer = torch.load(state / "optimizer.bin")
    for group in optimizer["param_groups"]:
        group["lr"] *= factor
    torch.save(optimizer, state / "optimizer.bin")


def test_a_run_loses_its_node_diverges_and_recovers_with_half_the_lr(run: Run) -> None:
    fault = {"lose_node_at": 50, "node": "demo-7", "spike_at": 61, "diverge_at": 121}
    assert code(run.start(1, fault, max_num_opt_steps=240)) == 137
    assert "srun: error: Node failure on demo-7\n" in run.log()
    assert re.search(r"slurmstepd: error: \*\*\* STEP 1\.0 ON .* DUE TO NODE FAILURE, SEE", run.log())
    assert (run.save_dir / "latest_opt_step_dir").read_text() == str(run.save_dir / "opt_step-40")
    first_id = run.infos(40)["wandb_run_id"]
    assert f"** `wandb_run_id`: {first_id} **" in run.log()

    # The next job goes on at 40, past the node failure, through the spike, into the divergence.
    assert code(run.start(2, fault, max_num_opt_steps=240)) == 0
    losses = run.losses(2)
    assert list(losses) == list(range(45, 245, 5))
    assert losses[65] > 1.3 * losses[60]
    assert losses[110] < losses[60]
    level = mean(losses, 100, 120)
    assert min(losses[step] for step in range(200, 245, 5)) > 1.5 * level
    assert "** Maximum number of steps has been reached for this training **" in run.log()
    orders = re.findall(r"Data order seed: (\d+)", run.log())
    assert len(set(orders)) == 2, "a restart reshuffles"
    check_files(run, first_id)

    # Rewound by hand: half the LR, no wandb id.
    target = run.point_to(120)
    scale_lr(target, 0.5)
    (target / "resume_run_infos.json").write_text(json.dumps(run.infos(120) | {"wandb_run_id": ""}))
    before = len(run.log())
    job = run.start(3, fault, max_num_opt_steps=400, step_seconds=0.005)
    wait(lambda: "iteration:      125/400" in run.log()[before:], "the first logged step")
    run.save.touch()
    wait(lambda: not run.save.exists(), "the save switch to be taken")
    wait(lambda: "iteration:      240/400" in run.log()[before:], "step 240")
    run.kill.touch()
    assert code(job) == 0
    check_recovery(run, run.log()[before:], level)
    assert code(run.start(4, max_num_opt_steps=400)) == 0
    assert run.log().endswith("** Kill switch activated. Exiting the training before it even starts. **\n")


def check_files(run: Run, wandb_id: str) -> None:
    checkpoint = run.save_dir / "opt_step-80"
    names = {str(path.relative_to(checkpoint)) for path in checkpoint.rglob("*") if path.is_file()}
    assert names == {
        "accelerator_state/custom_checkpoint_0.pkl",
        "accelerator_state/model.safetensors",
        "accelerator_state/optimizer.bin",
        "accelerator_state/random_states_0.pkl",
        "finished-saving",
        "resumable_states/resumable_states_0.json",
        "resume_run_infos.json",
        "tokenizer/tokenizer_config.json",
        "tokenizer/vocab.json",
        "unwrapped_model/config.json",
    }
    infos = run.infos(80)
    assert set(infos) == {
        "train_logs", "wandb_run_id", "seed", "resume_opt_step", "resume_epoch", "gbs_running",
    }  # fmt: skip
    assert (infos["resume_opt_step"], infos["wandb_run_id"]) == (80, wandb_id)
    assert infos["gbs_running"]["global_seen_samples"] == 80 * 256
    assert (run.save_dir / "2_config.yaml").read_bytes() == (run.folder / "config.yaml").read_bytes()
    assert "torch==" in (run.save_dir / "2_requirements.txt").read_text()
    assert (run.save_dir / "2_accelerate_config.yaml.autogenerated").is_file()
    check_lines(run)
    results = (run.folder / "evals" / "results" / "tr_demo_evaluations.jsonl").read_text().splitlines()
    evaluation = json.loads(results[0])
    assert evaluation["model_name_or_path"] == str(run.save_dir / "opt_step-40" / "unwrapped_model")
    assert evaluation["score"].startswith("{'perplexity': ")
    assert evaluation["in_context_params"]["num_shots"] == 0


def check_lines(run: Run) -> None:
    lines = [line for line in run.log().splitlines() if "iteration: " in line]
    parsed = [TRAIN_LINE.fullmatch(line) for line in lines]
    assert all(parsed), lines[parsed.index(None)]
    # The logged LR is the scheduler's after its step: the one of the step to come. Warm-up takes 20 steps.
    assert [match[4] for match in parsed[:4] if match] == ["9.500E-02", "1.900E-01", "2.850E-01", "3.800E-01"]
    assert f"** Saving finished at `{run.save_dir}/opt_step-80` **" in run.log()
    assert re.search(
        r"\*\* Starting validation \*\*\nValidation logs: val_per_token_loss: \d\.\d{4} \| .*\n"
        r"\*\* Finished validation \*\*\n",
        run.log(),
    )
    written = map(json.loads, (run.save_dir / "logs" / "2_logs.jsonl").read_text().splitlines())
    by_set = {line["set"]: line for line in written}
    assert set(by_set) == {"train", "validation"}
    assert by_set["train"]["iteration"] == "     240/240 100%"
    assert by_set["train"]["per_token_loss/cm4"] > by_set["train"]["per_token_loss/pmd"]
    assert by_set["validation"]["current step"] == 200


def check_recovery(run: Run, log: str, level: float) -> None:
    assert log.startswith(f"Resuming from {run.save_dir}/opt_step-120\n")
    (fresh_id,) = re.findall(r"\*\* `wandb_run_id`: (\w+) \*\*", log)
    assert fresh_id != run.infos(40)["wandb_run_id"]
    rates = [match[4] for match in TRAIN_LINE.finditer(log)]
    assert set(rates) == {"1.900E-01"}
    losses = run.losses(3)
    assert min(losses) == 125
    assert max(losses.values()) < 1.2 * level
    assert mean(losses, 200, 240) < level
    assert "** Save switch activated - forcing checkpoint save **" in log
    assert f"** Kill switch activated (Don't forget to remove {run.kill}) **" in log
    last = Path((run.save_dir / "latest_opt_step_dir").read_text())
    assert log.endswith(f"** Saving finished at `{last}` **\n")
    assert run.infos(int(last.name.removeprefix("opt_step-")))["wandb_run_id"] == fresh_id


def test_a_nan_stays_and_a_hang_waits_for_a_signal(run: Run) -> None:
    fault = {"nan_at": 12, "hang_at": 21, "slow_save_seconds": 0.5}
    job = run.start(1, fault, train_saving_opt_steps=15, wandb_enable=False)
    unfinished = run.save_dir / "opt_step-15"
    wait(lambda: (unfinished / "accelerator_state" / "custom_checkpoint_0.pkl").exists(), "a save")
    assert not (unfinished / "finished-saving").exists()
    assert not (run.save_dir / "latest_opt_step_dir").exists()
    fired = run.save_dir / "logs" / "faults_fired.json"
    wait(lambda: fired.exists() and "hang_at" in fired.read_text(), "the hang")
    assert job.poll() is None
    os.kill(step_process(job), signal.SIGTERM)
    assert code(job) == 128 + signal.SIGTERM
    losses = run.losses(1)
    assert math.isfinite(losses[10])
    assert math.isnan(losses[15])
    assert math.isnan(losses[20]), "NaN stays: the weights are NaN"
    assert "per_token_loss: nan | " in run.log()


def test_a_fresh_optimizer_starts_at_lr_zero_and_sigterm_saves(run: Run) -> None:
    import safetensors.torch
    import torch

    assert code(run.start(1, max_num_opt_steps_this_run=10, wandb_enable=False)) == 0
    assert "** Maximum number of steps has been reached for this run **" in run.log()
    fresh = {"load_optimizer_states": False, "wandb_enable": False}
    job = run.start(2, train_saving_opt_steps=1, step_seconds=0.01, **fresh)
    wait(lambda: f"{run.save_dir}/opt_step-15` **" in run.log(), "step 15")
    os.kill(step_process(job), signal.SIGTERM)
    assert code(job) == 0
    assert "** SIGTERM signal received. Please restart training **" in run.log()
    last = Path((run.save_dir / "latest_opt_step_dir").read_text())
    assert (last / "finished-saving").exists()

    def weights(step: int) -> dict[str, torch.Tensor]:
        return safetensors.torch.load_file(
            run.save_dir / f"opt_step-{step}" / "accelerator_state" / "model.safetensors"
        )

    before, first, second = weights(10), weights(11), weights(12)
    assert all(torch.equal(before[name], first[name]) for name in before), "the first step had LR 0"
    assert not all(torch.equal(first[name], second[name]) for name in first)


def test_an_unusable_resume_point_ends_the_job(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoint = run.save_dir / "opt_step-10"
    checkpoint.mkdir(parents=True)
    run.point_to(99)
    assert code(run.start(1)) == 1
    assert f"the `latest_opt_step_dir` file {run.save_dir}/latest_opt_step_dir is invalid" in run.log()
    run.point_to(10)
    (checkpoint / "resume_run_infos.json").write_text('{"train_logs": {}, "seed": 1}')
    assert code(run.start(2)) == 1
    assert "KeyError: 'wandb_run_id'" in run.log()
    assert list(checkpoint.iterdir()) == [checkpoint / "resume_run_infos.json"]
    assert code(run.start(3, max_opt_steps=3)) == 1
    assert "unknown key max_opt_steps; known are save_dir," in run.log()


def test_the_template_keeps_the_exit_code_and_appends_to_the_log(run: Run) -> None:
    assert code(run.start_template(1, "echo one; exit 7")) == 7
    assert code(run.start_template(2, "echo two >&2")) == 0
    assert run.log() == "one\ntwo\n"
    assert (run.folder / "srun_options").read_text().split() == ["--kill-on-bad-exit=1", "--wait=60"] * 2


def test_the_template_names_what_is_missing(run: Run) -> None:
    bare = {"PATH": os.environ["PATH"]}
    asked = subprocess.run(["bash", TEMPLATE], env=bare, capture_output=True, text=True)
    assert asked.returncode == 2
    assert "export M4OPS_SAVE_DIR and TRAIN_CMD first" in asked.stderr


def test_the_template_is_clean_shell(need: Callable[[str, str], str]) -> None:
    found = subprocess.run([need("shellcheck", "shellcheck"), TEMPLATE], capture_output=True, text=True)
    assert found.returncode == 0, found.stdout
