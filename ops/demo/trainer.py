"""A small real training (torch, Accelerate, CPU) that writes and reads an m4 run's files.

    python -u -m ops.demo.trainer --config CONFIG.yaml

It trains a next-character model of 6,000 parameters with SGD and an un-prepared LambdaLR that is registered
for checkpointing: in one process, or in as many as torchrun starts, on one node or more, each with a data order of
its own; the first one logs, decides and writes, but for the states of the others. Files, log lines and resume rules are m4's (huggingface/smollm
vision/m4/training/trainer.py); a resume draws a new data order. Exit code 0 when the training ended by
itself, by a switch or by SIGTERM; a Python error (1) when the resume point is unusable.

Faults, by the config's `fault:` section, at optimizer steps counted from 1:

| key                 | what happens                                                 | after a resume    |
| ------------------- | ------------------------------------------------------------ | ----------------- |
| `diverge_at`        | over 40 steps the web pages (80 % of a batch) become copies  | again, unless the |
|                     | of one page. The gradients of a batch then agree, so the     | LR is lower: ×0.5 |
|                     | curvature of the loss grows, and the default LR lies beyond  | and ×0.25 are     |
|                     | the stability limit 2 (1 + momentum) / curvature: the loss   | stable and learn  |
|                     | swings up and stays up                                       | the page          |
| `spike_at`          | six batches with random targets; the loss heals by itself    | not again         |
| `nan_at`            | one infinite pixel: loss, gradients and weights become NaN   | not again         |
| `hang_at`           | the process sleeps before that step, until a signal ends it  | not again         |
| `lose_node_at`      | the lines of a node failure (`node` names it), then SIGKILL  | not again         |
| `slow_save_seconds` | every save pauses before its last files: for that time the   | again             |
|                     | checkpoint is unfinished                                     |                   |

Which of those that come once have come stands in `SAVE_DIR/logs/faults_fired.json`.
"""

import argparse
import copy
import math
import os
import signal
import sys
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ops.demo import contract, faults, model_and_data
from ops.demo.contract import ResumeInfos, ResumePoint, say
from ops.demo.training_config import Config, Faults, read_config

if TYPE_CHECKING:
    import torch

    from ops.demo.model_and_data import Batch, DataStream


@dataclass
class Progress:
    """Where the training stands, and what it has seen since the last logged step."""

    first: int
    step: int
    samples: int
    saved: bool
    validated: bool
    logs: dict[str, Any]
    losses: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    began: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Training:
    """The parts of one job's training; only `at` changes. `wandb_run` is None with `wandb_enable: False`."""

    config: Config
    accelerator: Any
    model: "torch.nn.Module"
    optimizer: Any
    scheduler: "torch.optim.lr_scheduler.LambdaLR"
    stream: "DataStream"
    held_out: "Batch"
    data_seed: int
    wandb_id: str
    wandb_run: Any
    at: Progress
    fired: dict[str, int]
    sigterm: threading.Event


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="A small real training with the files of an m4 run.")
    parser.add_argument("--config", type=Path, required=True, help="YAML; see ops/demo/training_config.py")
    config_path = parser.parse_args(arguments).config
    config = read_config(config_path)
    (config.save_dir / "logs").mkdir(parents=True, exist_ok=True)
    point = contract.find_resume_point(config.save_dir)
    if config.kill_switch_path and config.kill_switch_path.exists():
        say("** Kill switch activated. Exiting the training before it even starts. **")
        return
    if contract.first_process():
        contract.record_job(config.save_dir, config_path)
    training = set_up(config, point)
    train(training)
    if training.wandb_run:
        training.wandb_run.finish()
    if training.accelerator.num_processes > 1:
        sys.stdout.flush()
        os._exit(0)  # all is saved and said; an exit sometimes aborts while gloo's threads end (torch 2.13)
    training.accelerator.end_training()


def set_up(config: Config, point: ResumePoint | None) -> Training:
    """Everything ready for the next optimizer step, the states of `point` loaded."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    torch.set_num_threads(1)
    if point:
        config = replace(config, seed=point.infos.seed)
    set_seed(config.seed)
    accelerator = Accelerator(cpu=True)  # without cpu=True Accelerate 1.15 takes no backend on a host without a GPU
    raw = model_and_data.build_model()
    fresh = model_and_data.build_optimizer(raw, config)
    scheduler = model_and_data.build_scheduler(fresh, config)
    # The scheduler is not prepared: prepared, it would step once for every process.
    model, optimizer = accelerator.prepare(raw, fresh)
    accelerator.register_for_checkpointing(scheduler)
    wandb_id, wandb_run = start_wandb(config, point)
    if point:
        load_states(accelerator, optimizer, point.opt_step_dir / "accelerator_state", config)
    fired = faults.fired(config.save_dir)
    seed = data_seed(config.seed, resumed=point is not None, process=accelerator.process_index)
    say(f"** Data order seed: {seed} **")
    return Training(
        config=config,
        accelerator=accelerator,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        stream=model_and_data.DataStream(seed, config.batch_size_per_gpu, config.fault, fired),
        held_out=model_and_data.DataStream(config.seed + 1, 1024, Faults(), fired).batch(0),
        data_seed=seed,
        wandb_id=wandb_id,
        wandb_run=wandb_run,
        at=start_of(point),
        fired=fired,
        sigterm=listen_for_sigterm(),
    )


def start_of(point: ResumePoint | None) -> Progress:
    if point is None:
        return Progress(first=0, step=0, samples=0, saved=False, validated=True, logs={})
    infos = point.infos
    step, samples = infos.resume_opt_step, infos.gbs_running["global_seen_samples"]
    return Progress(step, step, samples, saved=True, validated=True, logs=infos.train_logs)


def load_states(accelerator: Any, optimizer: Any, folder: Path, config: Config) -> None:
    """Load a checkpoint's states; with `load_optimizer_states: False` the optimizer stays as it was made."""
    untouched = copy.deepcopy(optimizer.state_dict())
    accelerator.load_state(str(folder))
    if not config.load_optimizer_states:
        optimizer.load_state_dict(untouched)


def data_seed(seed: int, *, resumed: bool, process: int) -> int:
    """A fresh run's data order is its seed's; every resume, and every process, has an order of its own."""
    if not resumed:
        return seed + 1000 * process
    return zlib.crc32(f"{seed} {process} {contract.job_id()} {time.time_ns()}".encode())


def start_wandb(config: Config, point: ResumePoint | None) -> tuple[str, Any]:
    """The wandb run and its id, that of the checkpoint if it has one; offline unless WANDB_MODE says else."""
    if not config.wandb_enable or not contract.first_process():
        return "", None
    os.environ.setdefault("WANDB_MODE", "offline")
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb
    from wandb.sdk.lib.runid import generate_id

    run_id = point.infos.wandb_run_id if point else ""
    if not run_id:
        if point:
            say(
                "** The run you are resuming was not logging into wandb. Therefore a new wandb_run_id has "
                "been generated **"
            )
        run_id = generate_id()
        say(f"** `wandb_run_id`: {run_id} **")
    settings = wandb.Settings(console="off", disable_git=True, x_disable_stats=True, x_disable_meta=True)
    run = wandb.init(
        project=config.wandb_project,
        name=config.save_dir.name,
        id=run_id,
        resume="allow",
        dir=str(config.save_dir),
        settings=settings,
    )
    return run_id, run


def listen_for_sigterm() -> threading.Event:
    received = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: received.set())
    return received


def train(training: Training) -> None:
    """Optimizer steps until something ends the training; what ended it is saved first."""
    config, at = training.config, training.at
    while not over_and_saved(training):
        if not at.validated and at.step % config.val_logging_opt_steps == 0:
            validate(training)
        began = time.monotonic()
        faults.fail_if_told(config.fault, training.fired, config.save_dir, at.step + 1)
        optimizer_step(training)
        time.sleep(max(0.0, config.step_seconds - (time.monotonic() - began)))
        if at.step % config.train_logging_opt_steps == 0:
            log(training)


def over_and_saved(training: Training) -> bool:
    """Whether the training is over; saves when that, the schedule or the save switch asks for it."""
    from accelerate.utils import broadcast_object_list

    # One process looks for all: a switch may come between the looks of two, and one of them would wait for ever.
    first = contract.first_process()
    over, due = broadcast_object_list([bool(first and over_now(training)), bool(first and save_now(training))])
    if not training.at.saved and (over or due):
        save(training)
    return bool(over)


def over_now(training: Training) -> bool:
    why = why_over(training)
    if why:
        say(f"** {why} **")
    return bool(why)


def save_now(training: Training) -> bool:
    """Whether the schedule asks for a save, or the save switch, which is removed."""
    config, at = training.config, training.at
    due = at.step != 0 and at.step % config.train_saving_opt_steps == 0
    if config.save_switch_path and config.save_switch_path.exists():
        due = True
        say("** Save switch activated - forcing checkpoint save **")
        config.save_switch_path.unlink()
    return due


def why_over(training: Training) -> str:
    """The reason to end, in m4's words, or nothing."""
    config, step = training.config, training.at.step
    if config.kill_switch_path and config.kill_switch_path.exists():
        return f"Kill switch activated (Don't forget to remove {config.kill_switch_path})"
    if training.sigterm.is_set():
        return "SIGTERM signal received. Please restart training"
    if config.jz_job_time_sec and time.monotonic() - training.at.began >= config.jz_job_time_sec:
        return "Training time is over"
    if step >= config.max_num_opt_steps:
        return "Maximum number of steps has been reached for this training"
    this_run = config.max_num_opt_steps_this_run
    if this_run is not None and step >= training.at.first + this_run:
        return "Maximum number of steps has been reached for this run"
    return ""


def optimizer_step(training: Training) -> None:
    import torch

    config, at = training.config, training.at
    batch = training.stream.batch(at.step + 1)
    logits = training.model(batch.contexts, batch.images)
    losses = torch.nn.functional.cross_entropy(logits, batch.targets, reduction="none")
    training.accelerator.backward(losses.mean())
    norm = training.accelerator.clip_grad_norm_(training.model.parameters(), config.grad_clip)
    training.optimizer.step()
    training.scheduler.step()
    training.optimizer.zero_grad(set_to_none=True)
    at.step += 1
    at.samples += config.batch_size_per_gpu * training.accelerator.num_processes
    at.saved, at.validated = False, False
    at.losses["grad_norm"].append(float(norm))
    at.losses["pixel_values_sum"].append(batch.images.sum().item())
    for name, value in batch.mean_by_set(losses.detach()).items():
        at.losses[name].append(value)


def log(training: Training) -> None:
    """Means since the last logged step, of all processes; the LR is the scheduler's, that of the step to come."""
    config, at = training.config, training.at
    means = means_of_all(training)
    at.logs = {
        "per_token_loss": {name: means[name] for name in ("all", "cm4", "pmd")},
        "lr": training.scheduler.get_last_lr()[0],
        "num_tokens": at.samples * model_and_data.CONTEXT,
        "num_images": at.samples,
        "num_batches": at.step,
        "num_batches_since_training_logged": len(at.losses["all"]),
        "num_epochs": 0,
        "num_opt_steps": at.step,
        "grad_norm": means["grad_norm"],
        "pixel_values_sum": means["pixel_values_sum"],
        "global_batch_size_current": config.batch_size_per_gpu * training.accelerator.num_processes,
    }
    at.losses.clear()
    if not contract.first_process():
        return
    where = contract.progress(at.step, config.max_num_opt_steps)
    contract.log_training(config.save_dir, where, time.monotonic() - at.began, at.logs)
    if training.wandb_run:
        training.wandb_run.log(at.logs, step=at.step)


def means_of_all(training: Training) -> dict[str, float]:
    """The mean of each metric since the last logged step, over all processes."""
    import torch

    means = [sum(values) / len(values) for values in training.at.losses.values()]
    together = training.accelerator.reduce(torch.tensor(means, dtype=torch.float64), "mean")
    return dict(zip(training.at.losses, together.tolist(), strict=True))


def validate(training: Training) -> None:
    """On the first process: all have the same weights and the same held-out batch."""
    training.at.validated = True
    if not contract.first_process():
        return
    say("** Starting validation **")
    losses, _ = held_out_result(training)
    images = len(training.held_out.targets)
    metrics: contract.Metrics = {
        "val_per_token_loss": losses,
        "val_num_images": images,
        "val_num_tokens": images * model_and_data.CONTEXT,
    }
    contract.log_validation(training.config.save_dir, training.at.step, metrics)
    say("** Finished validation **")


def held_out_result(training: Training) -> tuple[dict[str, float], float]:
    """Held-out loss by data set, nats a token, and the share of right next characters."""
    import torch

    batch = training.held_out
    with torch.no_grad():
        logits = training.accelerator.unwrap_model(training.model)(batch.contexts, batch.images)
        losses = torch.nn.functional.cross_entropy(logits, batch.targets, reduction="none")
    right = (logits.argmax(dim=1) == batch.targets).float().mean().item()
    return batch.mean_by_set(losses), right


def save(training: Training) -> None:
    """A checkpoint in m4's order of files: the states of all processes first, the marker and the pointer last."""
    config, at = training.config, training.at
    accelerator, rank = training.accelerator, training.accelerator.process_index
    opt_step_dir = config.save_dir / f"opt_step-{at.step}"
    (opt_step_dir / "resumable_states").mkdir(parents=True, exist_ok=True)
    state = f'{{"data_seed": {training.data_seed}, "batches": {at.step}}}'
    (opt_step_dir / "resumable_states" / f"resumable_states_{rank}.json").write_text(state)
    accelerator.save_state(str(opt_step_dir / "accelerator_state"))
    accelerator.wait_for_everyone()
    at.saved = True
    if not contract.first_process():
        return
    time.sleep(config.fault.slow_save_seconds)
    running = {
        "global_batch_size_current": config.batch_size_per_gpu * accelerator.num_processes,
        "global_seen_samples": at.samples,
        "next_goal_samples": 0,
        "grad_acc_size_current": 1,
    }
    infos = ResumeInfos(at.logs, training.wandb_id, config.seed, at.step, 0, running)
    contract.finish_checkpoint(opt_step_dir, infos, model_and_data.MODEL_CONFIG)
    if config.evals_dir and at.step % config.eval_opt_steps == 0:
        evaluate(training, opt_step_dir, config.evals_dir)


def evaluate(training: Training, opt_step_dir: Path, evals_dir: Path) -> None:
    losses, right = held_out_result(training)
    for name in ("cm4", "pmd"):
        score = {"perplexity": math.exp(min(losses[name], 700.0))}
        contract.append_evaluation(evals_dir, opt_step_dir, f"{name.capitalize()}Perplexity", score)
    contract.append_evaluation(evals_dir, opt_step_dir, "NextCharacterInContextAcc", {"accuracy": right})


if __name__ == "__main__":
    main()
