"""A training under real DeepSpeed ZeRO, with m4's checkpoints; nothing of `ops` is imported here.

Started on every rank by torch.distributed.run, on CPUs (`DS_ACCELERATOR=cpu`). The runs named are trained one after
the other in the same processes, each to optimizer step `--until`; the last character of a run's name is its ZeRO stage.
`RUN/lrs.RANK.jsonl` gets one line before each optimizer step: the step, the LR that every parameter group of that rank
really has at that moment, the steps that its moments hold, and a sum of its fp32 master weights.

    python -m torch.distributed.run --nproc-per-node 2 tests/sharded_trainer.py --until 4 DIR/zero-1 DIR/zero-3
"""

import argparse
import hashlib
import json
import os
import pathlib

import deepspeed.ops
import torch
from accelerate import Accelerator, DeepSpeedPlugin, InitProcessGroupKwargs
from accelerate.state import AcceleratorState, PartialState

deepspeed.ops.__compatible_ops__ = {}  # gloo in the place of shared-memory operators, which take half a minute to compile

parser = argparse.ArgumentParser()
parser.add_argument("runs", type=pathlib.Path, nargs="+")
parser.add_argument("--until", type=int, required=True, help="end this job after so many optimizer steps")
args = parser.parse_args()


def train(root):
    stage = int(root.name[-1])
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
    }
    accelerator = Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config),
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
    )
    root.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(6, 17), torch.nn.ReLU(), torch.nn.Linear(17, 2))
    groups = [{"params": net[0].parameters(), "lr": 1e-3}, {"params": net[2].parameters(), "lr": 1e-2}]
    optimizer = torch.optim.AdamW(groups)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / 8))
    net, optimizer = accelerator.prepare(net, optimizer)
    accelerator.register_for_checkpointing(scheduler)
    step = 0
    pointer = root / "latest_opt_step_dir"
    if pointer.exists():
        start = pathlib.Path(pointer.read_text())
        accelerator.load_state(str(start / "accelerator_state"))
        step = json.loads((start / "resume_run_infos.json").read_text())["resume_opt_step"]
    record = root / f"lrs.{accelerator.process_index}.jsonl"
    generator = torch.Generator().manual_seed(step)
    while step < args.until:
        x = torch.randn(2, 6, generator=generator).to(torch.bfloat16)
        sharded = optimizer.optimizer
        masters = getattr(sharded, "fp32_partitioned_groups_flat", None) or sharded.single_partition_of_fp32_groups
        held = max((int(s["step"]) for s in sharded.state.values() if "step" in s), default=0)
        line = {"step": step + 1, "lrs": [float(g["lr"]) for g in sharded.param_groups], "moments": held}
        # By their bytes: ZeRO-3 pads its shards with whatever the memory held, beside which a sum shows nothing.
        line["masters"] = [hashlib.sha256(m.detach().cpu().numpy().tobytes()).hexdigest() for m in masters]
        with record.open("a") as handle:
            handle.write(json.dumps(line) + "\n")
        accelerator.backward(net(x).float().square().mean())  # DeepSpeed steps its optimizer in here
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
    target = root / f"opt_step-{step}"
    accelerator.save_state(str(target / "accelerator_state"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        sizes = dict.fromkeys(("next_goal_samples", "grad_acc_size_current"), 1)
        sizes |= dict.fromkeys(("global_batch_size_current", "global_seen_samples"), 4)
        infos = {"train_logs": {}, "wandb_run_id": "", "seed": 3, "resume_opt_step": step, "resume_epoch": 0}
        (target / "resume_run_infos.json").write_text(json.dumps({**infos, "gbs_running": sizes}))
        (target / "finished-saving").touch()
        pointer.write_text(str(target))
    accelerator.wait_for_everyone()
    AcceleratorState._reset_state()
    PartialState._reset_state()


for run in args.runs:
    train(run)
os._exit(0)  # with all written: an exit sometimes aborts while gloo's threads end (torch 2.13)
