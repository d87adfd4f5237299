"""A training under real DeepSpeed ZeRO with one of several schedulers; started on every rank by torch.distributed.run.

    python -m torch.distributed.run --nproc-per-node 2 bench/lr_deepspeed_trainer.py --until 10 DIR/StepLR-zero-3 …

A run's name says scheduler and stage; where there is a `RUN/ds.json`, the scheduler is DeepSpeed's own, and it its config,
which every job reads. `RUN/lrs.RANK.jsonl` gets one line before each optimizer step, with the LR that
every parameter group of that rank really has. Nothing of m4ops is imported here.
"""

import argparse
import json
import os
import pathlib
import warnings

import deepspeed.ops
import torch
from accelerate import Accelerator, DeepSpeedPlugin, InitProcessGroupKwargs
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DummyOptim, DummyScheduler
from lr_schedulers import RATES, TORCH

deepspeed.ops.__compatible_ops__ = {}  # gloo in the place of shared-memory operators, which take half a minute to compile
parser = argparse.ArgumentParser()
parser.add_argument("runs", type=pathlib.Path, nargs="+")
parser.add_argument("--until", type=int, required=True)
args = parser.parse_args()
warnings.simplefilter("ignore")


def train(root):
    name, _, stage = root.name.partition("-zero-")
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": int(stage)},
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
    }
    own = root / "ds.json"
    config |= json.loads(own.read_text()) if own.exists() else {}
    plugin = DeepSpeedPlugin(hf_ds_config=config)
    accelerator = Accelerator(deepspeed_plugin=plugin, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
    root.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(6, 17), torch.nn.ReLU(), torch.nn.Linear(17, 2))
    groups = [{"params": p.parameters(), "lr": lr} for p, lr in zip((net[0], net[2]), RATES, strict=True)]
    if own.exists():
        made_by_it = "optimizer" in config
        optimizer = DummyOptim([p for g in groups for p in g["params"]]) if made_by_it else torch.optim.AdamW(groups)
        net, optimizer, scheduler = accelerator.prepare(net, optimizer, DummyScheduler(optimizer))
    else:
        optimizer = torch.optim.AdamW(groups)
        scheduler = TORCH[name](optimizer)
        net, optimizer = accelerator.prepare(net, optimizer)
        accelerator.register_for_checkpointing(scheduler)
    step, pointer = 0, root / "latest_opt_step_dir"
    if pointer.exists():
        start = pathlib.Path(pointer.read_text())
        accelerator.load_state(str(start / "accelerator_state"))
        step = json.loads((start / "resume_run_infos.json").read_text())["resume_opt_step"]
    generator = torch.Generator().manual_seed(step)
    with (root / f"lrs.{accelerator.process_index}.jsonl").open("a") as record:
        while step < args.until:
            rates = [float(g["lr"]) for g in optimizer.optimizer.param_groups]
            record.write(json.dumps({"step": step + 1, "lrs": rates}) + "\n")
            x = torch.randn(2, 6, generator=generator).to(torch.bfloat16)
            accelerator.backward(net(x).float().square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
    if not pointer.exists():
        save(accelerator, root, step)
    accelerator.wait_for_everyone()
    AcceleratorState._reset_state()
    PartialState._reset_state()


def save(accelerator, root, step):
    target = root / f"opt_step-{step}"
    accelerator.save_state(str(target / "accelerator_state"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        sizes = dict.fromkeys(("next_goal_samples", "grad_acc_size_current"), 1)
        sizes |= dict.fromkeys(("global_batch_size_current", "global_seen_samples"), 4)
        infos = {"train_logs": {}, "wandb_run_id": "", "seed": 3, "resume_opt_step": step, "resume_epoch": 0}
        (target / "resume_run_infos.json").write_text(json.dumps({**infos, "gbs_running": sizes}))
        (target / "finished-saving").touch()
        (root / "latest_opt_step_dir").write_text(str(target))


for run in args.runs:
    train(run)
os._exit(0)  # with all written: an exit sometimes aborts while gloo's threads end (torch 2.13)
