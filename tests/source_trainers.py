"""Trainers that save and resume as the sources of Megatron-LM, nanotron and Composer do, in one small process.

    python source_trainers.py FRAMEWORK=ROOT… [--resume]

Twenty steps in each ROOT/run with a save every five; with `--resume` on to the twentieth from what the framework's own file names.
ROOT/record gets a JSON line before each optimizer step: the step, every group's LR, how many steps the moments hold. Megatron's scheduler is the real one (megatron-core); its
checkpointing is in no package and stands here as in NVIDIA/Megatron-LM `megatron/training/checkpointing.py` (`save_checkpoint`,
`load_checkpoint`, `read_metadata`). The published nanotron cannot be imported (its modules import one another in a circle);
what is here follows huggingface/nanotron `src/nanotron/trainer.py`, `serialize/optimizer.py`, `serialize/main.py`. Composer asks for an older torch than the other libraries; see mosaicml/composer
`composer/core/state.py`, `callbacks/checkpoint_saver.py`, `trainer/trainer.py` (`_get_autoresume_checkpoint`).
"""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

STEPS, EVERY, RANKS = 20, 5, 2


def model_and_optimizer(**group: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    groups = [{"params": [model.weight], "lr": 1e-3, **group}, {"params": [model.bias], "lr": 2e-3, **group}]
    return model, torch.optim.AdamW(groups)


def steps(first: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, record: Path) -> Any:
    """Each step, made when the caller asks for the next one; its LRs are recorded before."""
    with record.open("w") as lines:
        for step in range(first + 1, STEPS + 1):
            lrs = [g["lr"] for g in optimizer.param_groups]
            held = max((int(state["step"]) for state in optimizer.state.values()), default=0)
            lines.write(json.dumps({"step": step, "lrs": lrs, "held": held}) + "\n")
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            yield step


def megatron(folder: Path, record: Path, resume: bool) -> None:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    args = argparse.Namespace(
        tensor_model_parallel_size=RANKS,
        pipeline_model_parallel_size=1,
        use_checkpoint_opt_param_scheduler=True,
        override_opt_param_scheduler=False,
    )
    model, optimizer = model_and_optimizer(max_lr=1e-3, min_lr=1e-5)
    schedule = OptimizerParamScheduler(
        optimizer,  # type: ignore[arg-type]
        init_lr=0.0,
        max_lr=1e-3,
        min_lr=1e-5,
        lr_warmup_steps=12,
        lr_decay_steps=160,
        lr_decay_style="cosine",
        start_wd=0.01,
        end_wd=0.01,
        wd_incr_steps=160,
        wd_incr_style="constant",
        use_checkpoint_opt_param_scheduler=args.use_checkpoint_opt_param_scheduler,
    )
    tracker, first = folder / "latest_checkpointed_iteration.txt", 0
    if resume:
        first = int(tracker.read_text().strip())
        loaded = [
            torch.load(folder / f"iter_{first:07d}" / f"mp_rank_{rank:02d}" / "model_optim_rng.pt", weights_only=False)
            for rank in range(RANKS)
        ]
        assert all(state["iteration"] == first for state in loaded)
        assert loaded[0]["opt_param_scheduler"] == loaded[1]["opt_param_scheduler"]
        model.load_state_dict(loaded[0]["model"])
        optimizer.load_state_dict(loaded[0]["optimizer"]["optimizer"])
        schedule.load_state_dict(loaded[0]["opt_param_scheduler"])
    for step in steps(first, model, optimizer, record):
        schedule.step(increment=4)  # the global batch size: it counts samples
        if step % EVERY:
            continue
        for rank in range(RANKS):
            place = folder / f"iter_{step:07d}" / f"mp_rank_{rank:02d}"
            place.mkdir(parents=True)
            state = {
                "args": args,
                "checkpoint_version": 3.0,
                "iteration": step,
                "model": model.state_dict(),
                "optimizer": {"optimizer": optimizer.state_dict()},
                "opt_param_scheduler": schedule.state_dict(),
            }
            torch.save(state, place / "model_optim_rng.pt")
        tracker.write_text(str(step))


def nanotron(folder: Path, record: Path, resume: bool) -> None:
    model, optimizer = model_and_optimizer()
    latest, first = folder / "latest.txt", 0
    if resume:
        first = int(latest.read_text())
        optimizer.load_state_dict(
            torch.load(folder / str(first) / "optimizer" / "optimizer_pp-0-of-1_tp-0-of-1_exp-0-of-1.pt")
        )
        model.load_state_dict(load_file(folder / str(first) / "model" / "linear" / "model_weight.safetensors"))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step, 3) / 3 * (1 - step / 100))
    if resume:
        schedule.load_state_dict(torch.load(folder / str(first) / "lr_scheduler" / "lr_scheduler.pt"))
        assert (
            json.loads((folder / str(first) / "checkpoint_metadata.json").read_text())["metas"]["last_train_step"]
            == first
        )
    for step in steps(first, model, optimizer, record):
        schedule.step()
        if step % EVERY:
            continue
        place = folder / str(step)
        for name in ("optimizer", "lr_scheduler", "model/linear"):
            (place / name).mkdir(parents=True)
        torch.save(optimizer.state_dict(), place / "optimizer" / "optimizer_pp-0-of-1_tp-0-of-1_exp-0-of-1.pt")
        torch.save(schedule.state_dict(), place / "lr_scheduler" / "lr_scheduler.pt")
        save_file(model.state_dict(), place / "model" / "linear" / "model_weight.safetensors")
        metas = {"last_train_step": step, "consumed_train_samples": 3 * step}
        (place / "checkpoint_metadata.json").write_text(
            json.dumps({"version": "1.4", "tp": 1, "dp": 1, "metas": metas})
        )
        latest.write_text(str(step))


def composer(folder: Path, record: Path, resume: bool) -> None:
    model, optimizer = model_and_optimizer()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(step + 1, 3) / 3 * (1 - step / 100))
    latest, first = folder / "latest-rank0.pt", 0
    if resume:
        state = torch.load(latest.parent / os.readlink(latest))["state"]
        first = state["timestamp"]["Timestamp"]["batch"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizers"]["AdamW"])
        schedule.load_state_dict(state["schedulers"]["LambdaLR"])
    for step in steps(first, model, optimizer, record):
        schedule.step()
        if step % EVERY:
            continue
        name = f"ep0-ba{step}-rank0.pt"
        state = {
            "model": model.state_dict(),
            "optimizers": {"AdamW": optimizer.state_dict()},
            "schedulers": {"LambdaLR": schedule.state_dict()},
            "timestamp": {"Timestamp": {"epoch": 0, "batch": step}},
        }
        torch.save({"state": state, "rng": []}, folder / name)
        latest.unlink(missing_ok=True)
        latest.symlink_to(name)


if __name__ == "__main__":
    trainers = {"megatron": megatron, "nanotron": nanotron, "composer": composer}
    for training in (word for word in sys.argv[1:] if word != "--resume"):
        framework, _, root = training.partition("=")
        Path(root, "run").mkdir(exist_ok=True)
        trainers[framework](Path(root, "run"), Path(root, "record"), "--resume" in sys.argv)
