"""Another training with m4's files, written apart from `ops.demo`: nothing of `ops` is imported here.

It differs where the contract leaves freedom: AdamW with two parameter groups of different LR, linear warm-up
and decay, a regression. `--lr-record FILE` gets one JSON line before each optimizer step: the step, the LR
that every parameter group really has at that moment, and the optimizer steps that its moments hold.

    python tests/other_trainer.py --save-dir DIR --steps 40 --save-every 10 --lr-record lrs.jsonl
"""

import argparse
import json
import os
import pathlib
import secrets
import sys
import time

import torch
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--save-dir", type=pathlib.Path, required=True)
parser.add_argument("--steps", type=int, default=40, help="optimizer steps of the whole training")
parser.add_argument("--until", type=int, help="end this job here; the schedule still runs to --steps")
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--log-every", type=int, default=2)
parser.add_argument("--warmup", type=int, default=4)
parser.add_argument("--lr", type=float, default=3e-3, help="of the body; the head has ten times as much")
parser.add_argument("--lr-record", type=pathlib.Path)
parser.add_argument("--kill-switch", type=pathlib.Path)
parser.add_argument("--save-switch", type=pathlib.Path)
parser.add_argument("--no-optimizer-states", action="store_true", help="load_optimizer_states: False")
args = parser.parse_args()
job = os.environ.get("SLURM_JOB_ID", "other")
root = args.save_dir.absolute()
logs = root / "logs"
logs.mkdir(parents=True, exist_ok=True)


def exists(path):
    return path is not None and path.exists()


# --- where from -------------------------------------------------------------------------------------------
infos = None
if any(child.is_dir() and "opt_step" in str(child) for child in root.iterdir()):
    start_dir = pathlib.Path((root / "latest_opt_step_dir").read_text())
    if not os.path.isdir(start_dir):
        sys.exit(f"latest_opt_step_dir names no directory: {start_dir}")
    with open(start_dir / "resume_run_infos.json") as handle:
        infos = json.load(handle)
    for key in ("train_logs", "wandb_run_id", "seed", "resume_opt_step", "resume_epoch", "gbs_running"):
        infos[key]  # a missing key ends the job
    print(f"Resuming from {start_dir}", flush=True)
if exists(args.kill_switch):
    print("** Kill switch activated. Exiting the training before it even starts. **")
    sys.exit()
wandb_id = infos["wandb_run_id"] if infos else ""
if not wandb_id:
    wandb_id = secrets.token_hex(4)
    print(f"** `wandb_run_id`: {wandb_id} **", flush=True)

# --- what is trained --------------------------------------------------------------------------------------
torch.set_num_threads(1)
torch.manual_seed(infos["seed"] if infos else 5)
truth = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
adam = torch.optim.AdamW(
    [
        {"params": net[0].parameters(), "lr": args.lr, "weight_decay": 0.01},
        {"params": net[2].parameters(), "lr": 10 * args.lr, "weight_decay": 0.0},
    ]
)


def triangle(step):
    up = step / args.warmup
    down = (args.steps - step) / (args.steps - args.warmup)
    return max(0.0, min(up, down))


schedule = torch.optim.lr_scheduler.LambdaLR(adam, triangle)
accelerator = Accelerator(cpu=True)
net, optimizer = accelerator.prepare(net, adam)
accelerator.register_for_checkpointing(schedule)
step, seen, last = 0, 0, {}
if infos:
    fresh = {"state": {}, "param_groups": [dict(group) for group in optimizer.state_dict()["param_groups"]]}
    accelerator.load_state(start_dir / "accelerator_state")
    if args.no_optimizer_states:
        optimizer.load_state_dict(fresh)
    step, last = infos["resume_opt_step"], infos["train_logs"]
    seen = infos["gbs_running"]["global_seen_samples"]
shuffle = torch.Generator().manual_seed(time.time_ns() % 2**31 if infos else 5)


def save():
    target = root / f"opt_step-{step}"
    for sub in ("resumable_states", "unwrapped_model", "tokenizer"):
        (target / sub).mkdir(parents=True, exist_ok=True)
    torch.save(shuffle.get_state(), target / "resumable_states" / "rank_0.pt")
    accelerator.save_state(target / "accelerator_state")
    (target / "unwrapped_model" / "config.json").write_text('{"model_type": "regression"}')
    (target / "tokenizer" / "tokenizer_config.json").write_text("{}")
    sizes = dict.fromkeys(("next_goal_samples", "grad_acc_size_current"), 1)
    sizes |= {"global_batch_size_current": 32, "global_seen_samples": seen}
    record = {"train_logs": last, "wandb_run_id": wandb_id, "seed": 5, "gbs_running": sizes}
    record |= {"resume_opt_step": step, "resume_epoch": 0}
    (target / "resume_run_infos.json").write_text(json.dumps(record))
    open(target / "finished-saving", "w").close()
    (root / "latest_opt_step_dir").write_text(str(target))
    print(f"** Saving finished at `{target}` **", flush=True)


# --- training ---------------------------------------------------------------------------------------------
began, saved = time.time(), infos is not None
while True:
    ends = step >= args.steps or (args.until is not None and step >= args.until)
    if exists(args.kill_switch):
        print(f"** Kill switch activated (Don't forget to remove {args.kill_switch}) **")
        ends = True
    asked = exists(args.save_switch)
    if asked:
        args.save_switch.unlink()
    if not saved and (ends or asked or (step and step % args.save_every == 0)):
        save()
        saved = True
    if ends:
        break
    x = torch.randn(32, 6, generator=shuffle)
    loss = (net(x) - torch.sin(x @ truth)).square().mean()
    accelerator.backward(loss)
    if args.lr_record:
        held = max((int(state["step"]) for state in adam.state.values()), default=0)
        line = {"step": step + 1, "lrs": [group["lr"] for group in adam.param_groups], "moments": held}
        with open(args.lr_record, "a") as handle:
            handle.write(json.dumps(line) + "\n")
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    step, seen, saved = step + 1, seen + 32, False
    if step % args.log_every == 0:
        where = f"{step}/{args.steps}".rjust(12) + f" {100 * step / args.steps:>3.0f}%"
        clock = time.strftime("%H:%M:%S", time.gmtime(time.time() - began))
        last = {"per_token_loss": loss.item(), "lr": schedule.get_last_lr()[0], "num_opt_steps": step}
        shown = f"per_token_loss: {loss.item():.4f} | lr: {last['lr']:.3E} | num_opt_steps: {step} | "
        print(f"iteration: {where} | elapsed time: {clock} | {shown}", flush=True)
        entry = {"iteration": where.strip(), "elapsed_time": clock, "set": "train", **last}
        with open(logs / f"{job}_logs.jsonl", "a") as handle:
            handle.write(json.dumps(entry) + "\n")
