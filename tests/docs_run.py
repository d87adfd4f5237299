"""The runs that the pages of the documentation speak of: `tr_190_01_64n` at step 16250, in the states the pages name.

A page says in a comment which of them its commands need: `<!-- run: diverging -->`. The checkpoints are real ones
of Accelerate; what trains in the embedded scheduler is `tests/docs_trainer.py`.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ops.demo import scheduler
from ops.demo.scheduler import runner, state

ROOT = Path(__file__).resolve().parent.parent
NAME, JOB, WANDB = "tr_190_01_64n", 1943824, "3fj2k1ab"
STEPS, FIRST, LAST, TOTAL = (15500, 15750, 16000, 16250), 14505, 16250, 500_000
LR, SECONDS_A_STEP = 1e-5, 4
PROGRAMS = {
    "m4ops": f'exec {sys.executable} -P -m ops.cli "$@"',
    "python": f'exec {sys.executable} "$@"',
    "crontab": 'if [ "$1" = -l ]; then cat "$HOME.cron" 2>/dev/null || { echo "no crontab for me" >&2; exit 1; }; '
    'else cp "$1" "$HOME.cron"; fi',
}
"""What a page's shell finds first: the commands as they are here, and a crontab of the page's own."""
KINDS: dict[str, Callable[["Page"], None]] = {}


@dataclass(frozen=True)
class Page:
    """A folder with one run, its scheduler, and the environment of a shell that works there."""

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / NAME

    @property
    def log(self) -> Path:
        return self.run / "logs" / "main_log.txt"

    @property
    def slurm(self) -> Path:
        return self.folder / "slurm"

    @property
    def env(self) -> Mapping[str, str]:
        home = {k: str(self.folder / "home") for k in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME")}
        return home | {
            "PATH": f"{self.folder / 'bin'}:{self.slurm / 'bin'}:{os.environ['PATH']}",
            "M4OPS_EMBEDDED": str(self.slurm),
            "M4OPS_SAVE_DIR": str(self.run),
            "TRAIN_CMD": f"{sys.executable} -u {ROOT / 'tests' / 'docs_trainer.py'}",
            "COLUMNS": "110",
        }

    def submit(self, tasks: str = "1-10%1", command: str = "", hold: bool = False) -> None:
        """The run's job array, from the project's own template."""
        env = dict(self.env) | ({"TRAIN_CMD": command} if command else {})
        words = ["--job-name", NAME, "--array", tasks, "--output", str(self.run / "logs" / "%x_%A_%a.out")]
        more = ["--hold"] if hold else []
        argv = ["sbatch", *words, *more, str(ROOT / "slurm_templates" / "train.slurm")]
        code, _, error = scheduler.answer(argv, self.slurm, env, self.run)
        assert code == 0, error

    def bash(self, line: str) -> tuple[int, str]:
        """The exit code of a shell line in SAVE_DIR, and all that it printed."""
        argv = ["bash", "-c", line]
        done = subprocess.run(argv, cwd=self.run, env=dict(self.env), text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)  # fmt: skip
        return done.returncode, done.stdout

    def write(self, *lines: str) -> None:
        with open(self.log, "a") as log:
            log.writelines(line + "\n" for line in lines)

    def until(self, text: str) -> None:
        """Wait until the log says so."""
        wait_for(lambda: text in self.log.read_text(), f"{text!r} in {self.log}")

    def running(self) -> bool:
        return any(task.state == "RUNNING" for task in state.read(self.slurm).tasks.values())

    def infos(self, step: int, **changes: object) -> None:
        file = self.run / f"opt_step-{step}" / "resume_run_infos.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes, indent=2))


def wait_for(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end, f"never seen: {what}"
        time.sleep(0.05)


def save_checkpoints(folder: Path) -> None:
    """The four checkpoints, saved by Accelerate; the rest of m4's files beside its states."""
    import torch
    from accelerate import Accelerator

    torch.manual_seed(0)
    net = torch.nn.Linear(4, 2)
    adam = torch.optim.AdamW(net.parameters(), lr=LR)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda _: 1.0)
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(net, adam)
    accelerator.register_for_checkpointing(schedule)
    for step in STEPS:
        accelerator.backward(model(torch.ones(3, 4)).square().mean())
        optimizer.step()
        schedule.last_epoch = step
        target = folder / f"opt_step-{step}"
        accelerator.save_state(str(target / "accelerator_state"))
        for sub, file in (("unwrapped_model", "config.json"), ("tokenizer", "tokenizer_config.json")):
            (target / sub).mkdir()
            (target / sub / file).write_text("{}")
        (target / "resumable_states").mkdir()
        (target / "resumable_states" / "resumable_states_0.json").write_text("{}")
        sizes = {"global_batch_size_current": 512, "global_seen_samples": 512 * step}
        sizes |= {"next_goal_samples": 0, "grad_acc_size_current": 1}
        infos = {"train_logs": {"per_token_loss": 1.7}, "wandb_run_id": WANDB, "seed": 5, "resume_opt_step": step}
        infos |= {"resume_epoch": 0, "gbs_running": sizes}
        (target / "resume_run_infos.json").write_text(json.dumps(infos, indent=2))
        (target / "finished-saving").touch()


def prepare(saved: Path, folder: Path, kind: str) -> Page:
    """A run of its own in `folder`, in the state of that name."""
    page = Page(folder)
    shutil.copytree(saved, page.run)
    (folder / "home").mkdir()
    (page.run / "logs").mkdir()
    (page.run / "latest_opt_step_dir").write_text(str(page.run / f"opt_step-{STEPS[-1]}"))
    (page.run / f"{JOB - 1}_config.yaml").write_text(
        f"hparams:\n  kill_switch_path: {folder}/kill_switch\n  save_switch_path: {folder}/save_switch\n"
    )
    shutil.copy(ROOT / "slurm_templates" / "train.slurm", page.run / "launch.slurm")
    results = folder / "evals" / "results"
    results.mkdir(parents=True)
    with open(results / f"{NAME}_evaluations.jsonl", "w") as file:
        file.writelines(evaluation(page.run, step, shots) for step in STEPS for shots in (0, 4))
    (folder / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    page.slurm.mkdir()
    (page.slurm / "state.json").write_text(json.dumps({"next_id": JOB, "specs": [], "tasks": [], "runs": []}))
    runner.write_shims(page.slurm)
    page.write(f"** `wandb_run_id`: {WANDB} **")
    KINDS[kind](page)
    return page


def evaluation(run: Path, step: int, shots: int) -> str:
    line = {"model_name_or_path": f"{run}/opt_step-{step}/unwrapped_model", "task": "Vqav2", "prompt_template": "é"}
    line |= {
        "score": str({"vqa_accuracy": round(step / 40000 + shots / 50, 4)}),
        "in_context_params": {"num_shots": shots},
    }
    return json.dumps(line, ensure_ascii=False) + "\n"


def progress(
    step: int, loss: float, lr: float = LR, first: int = FIRST - 5, ago: float = 0.0, more: float = 0.0
) -> str:
    """One progress line as m4 writes it; `ago` in seconds, `more` those that the job lost."""
    minutes, seconds = divmod((step - first) * SECONDS_A_STEP + int(more), 60)
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - ago))
    return (
        f"[{moment}] iteration: {step:>6}/{TOTAL} {100 * step / TOTAL:>3.0f}% | "
        f"elapsed time: {minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d} | "
        f"per_token_loss: {loss:.4f} | lr: {lr:.3E} | num_opt_steps: {step} | "
    )


def train(
    page: Page, last: int = LAST, rise_at: int = 0, rate: float = 0.0, ago: float = 60.0, slow_at: int = TOTAL
) -> None:
    """The log up to `last`; from `rise_at` on the loss climbs to 7.2, from `slow_at` on a step takes a fifth longer."""
    noise = random.Random(190)
    for step in range(FIRST, last + 1, 5):
        climbed = 1 - 0.5 ** ((step - rise_at) / rate) if rise_at and step > rise_at else 0.0
        loss = 1.7 + 5.5 * climbed + noise.gauss(0, 0.01)
        page.write(
            progress(
                step, loss, ago=ago + (last - step) * SECONDS_A_STEP, more=0.2 * SECONDS_A_STEP * max(0, step - slow_at)
            )
        )
        if step in STEPS:
            page.write(f"** Saving finished at `{page.run}/opt_step-{step}` **")
            page.infos(step, train_logs={"per_token_loss": 1.7 + 5.5 * climbed})


def kind(function: Callable[[Page], None]) -> Callable[[Page], None]:
    """A state of the run, under the name that pages call it by."""
    KINDS[function.__name__.replace("_", " ")] = function
    return function


@kind
def training(page: Page) -> None:
    """All is well."""
    train(page)
    page.submit()
    page.until("iteration:  16300")


@kind
def diverging(page: Page) -> None:
    """The loss climbs since step 16120; task 1 goes on with it."""
    train(page, rise_at=16120, rate=20.0)
    page.submit()
    page.until("iteration:  16300")


@kind
def diverged(page: Page) -> None:
    """The loss climbs since step 16120, and the array is held."""
    train(page, rise_at=16120, rate=20.0)
    page.submit(hold=True)


@kind
def spiking(page: Page) -> None:
    """The loss has just jumped, and task 1 runs."""
    train(page, rise_at=16220, rate=3.0)
    page.submit(command="sleep 600")


@kind
def spiked(page: Page) -> None:
    """The loss jumped at step 16220 and came down again."""
    train(page, rise_at=16220, rate=3.0)
    page.infos(16250, train_logs={"per_token_loss": 1.7})
    page.submit()
    page.until("iteration:  16400")


@kind
def absent(page: Page) -> None:
    """The last task of the array ended at its time limit."""
    train(page)
    page.write("** Training time is over **", f"** Saving finished at `{page.run}/opt_step-{LAST}` **")


@kind
def held(page: Page) -> None:
    """Nothing runs and the whole array is held."""
    train(page)
    page.submit(hold=True)


@kind
def switched_off(page: Page) -> None:
    """The array is held, and the kill switch of the last stop is still there."""
    held(page)
    (page.folder / "kill_switch").touch()


@kind
def node_lost(page: Page) -> None:
    """Task 1 was lost with a node at step 16180, and its step hangs; others wait."""
    train(page, last=16180)
    shutil.rmtree(page.run / "opt_step-16250")
    (page.run / "latest_opt_step_dir").write_text(str(page.run / "opt_step-16000"))
    page.submit(command="sleep 600")
    page.write(
        "srun: error: Node failure on jean-zay-iam37",
        "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.",
    )


@kind
def silent(page: Page) -> None:
    """Task 1 runs and has logged nothing for 50 minutes."""
    age, long = 3000.0, (LAST - FIRST + 5) * SECONDS_A_STEP
    train(page, ago=age)
    page.submit(command="sleep 600")
    wait_for(page.running, "a running task")
    with state.locked(page.slurm) as table:
        for task in [t for t in table.tasks.values() if t.state == "RUNNING"]:
            table.put(replace(task, start=time.time() - age - long, submit=time.time() - age - long))
    os.utime(page.log, (time.time() - age, time.time() - age))


@kind
def from_scratch(page: Page) -> None:
    """The next task did not take the checkpoint: it began at step 0, and logs."""
    train(page)
    for step in range(5, 60, 5):
        page.write(progress(step, 9.0, first=0, ago=60.0 - step))
    page.submit(command="sleep 600")
    wait_for(page.running, "a running task")


@kind
def saving_late(page: Page) -> None:
    """The save at step 16250 was torn, and task 1 trains on."""
    train(page, last=16600)
    (page.run / "opt_step-16250" / "finished-saving").unlink()
    os.utime(page.run / "opt_step-16000" / "finished-saving", (time.time() - 3000, time.time() - 3000))
    (page.run / "latest_opt_step_dir").write_text(str(page.run / "opt_step-16000"))
    page.submit(command="sleep 600")
    wait_for(page.running, "a running task")


@kind
def slowed(page: Page) -> None:
    """Since step 16000 a step takes a fifth longer; task 1 runs."""
    train(page, slow_at=16000)
    page.submit(command="sleep 600")
    wait_for(page.running, "a running task")


@kind
def warming_up(page: Page) -> None:
    """A backup beside the scheduler's state: the resume from 16250 silently lost it, and the LR restarted."""
    train(page)
    folder = page.run / "opt_step-16250" / "accelerator_state"
    shutil.copy(folder / "custom_checkpoint_0.pkl", folder / "custom_checkpoint_0.pkl.orig")
    page.submit()
    page.until("iteration:  16300")


@kind
def pointing_nowhere(page: Page) -> None:
    """A crash left `latest_opt_step_dir` empty, and the array is held."""
    held(page)
    (page.run / "latest_opt_step_dir").write_text("")


@kind
def saving(page: Page) -> None:
    """The array is held; m4ops.toml declares what follows a save, and the newest one lacks the model's config."""
    held(page)
    (page.run / "m4ops.toml").write_text('on_save = ["verify", "extract bf16"]\n')
    (page.run / "opt_step-16250" / "unwrapped_model" / "config.json").unlink()


@kind
def changed(page: Page) -> None:
    """The loss diverged, the array was held, and change 1 rewound the run with a lower LR."""
    diverged(page)
    code, said = page.bash("m4ops rewind --to 16000 --scale-lr 0.75 -y")
    assert code == 0, said


@kind
def interrupted(page: Page) -> None:
    """Task 1 hangs; m4ops was killed while a rewind waited for its end."""
    train(page, rise_at=16120, rate=20.0)
    page.submit(command="sleep 600")
    wait_for(page.running, "a running task")  # else it begins between the plan and its start, and nothing is done
    argv = ["m4ops", "rewind", "--to", "16000", "--restart", "-y"]
    with subprocess.Popen(argv, cwd=page.run, env=dict(page.env), stdout=subprocess.DEVNULL) as rewind:
        wait_for((page.folder / "kill_switch").exists, "a set kill switch")
        rewind.kill()
