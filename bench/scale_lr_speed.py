"""`m4ops scale-lr` on one large optimizer shard, beside torch.load and torch.save of the same shard.

    python bench/scale_lr_speed.py [--gigabytes 4] [--rounds 3] [--folder DIR] [--m4ops PROGRAM]

The shard has ZeRO-3's nesting: a third master weights, two thirds Adam moments. Both ways change the same LR fields in
the same run, one after the other; each is a whole process from its start to its end, the command of m4ops with plan,
queue (a squeue that says there is nothing), journal and fsync. torch is measured twice: until it has written, and until
what it wrote is on the disk, where m4ops's change is when it ends. Prints the medians of the ratios of wall time, CPU
time and greatest resident memory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

STEP = 1000
REST = 2.0
"""Seconds after a round, in which the kernel gets back what gigabytes of torch's took; both begin on a machine at rest."""
SHARD = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
MAKE = """
import sys, torch
n, folder = int(sys.argv[1]), sys.argv[2]
flat = [torch.full((n,), v) for v in (0.02, 1e-3, 1e-6)]
inner = {"state": {0: {"step": torch.tensor(1000.0), "exp_avg": flat[1], "exp_avg_sq": flat[2]}},
         "param_groups": [{"lr": 5e-5, "initial_lr": 1e-4, "betas": (0.9, 0.95)}]}
outer = {"zero_stage": 3, "partition_count": 1, "optimizer_state_dict": inner, "fp32_flat_groups": [flat[0]]}
torch.save({"optimizer_state_dict": outer, "ds_version": "0.19.8"}, f"{folder}/pytorch_model/SHARD")
model = {"module": {}, "global_steps": 1000, "dp_world_size": 1, "mp_world_size": 1, "ds_version": "0.19.8"}
torch.save(model, f"{folder}/pytorch_model/zero_pp_rank_0_mp_rank_00_model_states.pt")
torch.save({"base_lrs": [1e-4], "_last_lr": [5e-5], "last_epoch": 1000}, f"{folder}/custom_checkpoint_0.pkl")
""".replace("SHARD", SHARD)
PEER = """
import time
began = time.perf_counter()
import os, sys, torch
factor = float(sys.argv[1])
for path in sys.argv[2:]:
    state = torch.load(path, map_location="cpu", weights_only=False)
    if "base_lrs" in state:
        state["base_lrs"] = [lr * factor for lr in state["base_lrs"]]
        state["_last_lr"] = [lr * factor for lr in state["_last_lr"]]
    else:
        for group in state["optimizer_state_dict"]["optimizer_state_dict"]["param_groups"]:
            group["lr"] *= factor
            group["initial_lr"] *= factor
    torch.save(state, path)
print(time.perf_counter() - began)
for path in sys.argv[2:]:
    with open(path, "rb") as written:
        os.fsync(written.fileno())
"""


@dataclass(frozen=True)
class Cost:
    """Of one process: wall and CPU seconds, the most memory it had at once, in MB, and what it said."""

    wall: float
    cpu: float
    memory: float
    said: str


def cost(argv: list[str], env: dict[str, str]) -> Cost:
    began = time.perf_counter()
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        assert process.stdout
        said = process.stdout.read().decode()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv[1:4]} ended with {process.returncode}: {said}")
    return Cost(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000, said)


def a_run(folder: Path, gigabytes: float) -> Path:
    checkpoint = folder / "run" / f"opt_step-{STEP}"
    state = checkpoint / "accelerator_state"
    (state / "pytorch_model").mkdir(parents=True)
    subprocess.run([sys.executable, "-c", MAKE, str(int(gigabytes * 1e9 / 12)), str(state)], check=True)
    (state / "latest").write_text("pytorch_model")
    sizes = dict.fromkeys(("global_batch_size_current", "global_seen_samples"), 1)
    sizes |= dict.fromkeys(("next_goal_samples", "grad_acc_size_current"), 1)
    infos = {"train_logs": {}, "wandb_run_id": "", "seed": 1, "resume_opt_step": STEP, "resume_epoch": 0}
    (checkpoint / "resume_run_infos.json").write_text(json.dumps({**infos, "gbs_running": sizes}))
    (checkpoint / "finished-saving").touch()
    (folder / "run" / "latest_opt_step_dir").write_text(str(checkpoint))
    (folder / "bin").mkdir()
    (folder / "bin" / "squeue").write_text("#!/bin/sh\n")
    (folder / "bin" / "squeue").chmod(0o755)
    os.sync()
    return folder / "run"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: the system's temporary folder)")
    beside = Path(sys.executable).with_name("m4ops")
    parser.add_argument(
        "--m4ops", type=Path, default=beside, help="as a login node has it, where no torch is (default: here)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        run = a_run(Path(name), options.gigabytes)
        state = run / f"opt_step-{STEP}" / "accelerator_state"
        files = [str(state / "custom_checkpoint_0.pkl"), str(state / "pytorch_model" / SHARD)]
        env = {**os.environ, "PATH": f"{name}/bin{os.pathsep}{os.environ['PATH']}"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed m4ops is compiled
        own = [str(options.m4ops), "--run", str(run), "scale-lr", "0.5", "--again", "-y"]
        cost([*own, "-n"], env)
        pairs = []
        for _ in range(options.rounds):
            mine = cost(own, env)
            peer = cost([sys.executable, "-c", PEER, "0.5", *files], env)
            os.sync()
            time.sleep(REST)
            pairs.append((mine, peer))
            told = (f"{c.wall:.2f} s ({c.cpu:.2f} s CPU) {c.memory:.0f} MB" for c in (mine, peer))
            print("  m4ops {}   torch {}".format(*told), flush=True)
        size = os.path.getsize(files[1]) / 1e9
        durable = statistics.median(peer.wall / mine.wall for mine, peer in pairs)
        wall = statistics.median(float(peer.said) / mine.wall for mine, peer in pairs)
        cpu = statistics.median(peer.cpu / mine.cpu for mine, peer in pairs)
        memory = statistics.median(peer.memory / mine.memory for mine, peer in pairs)
        print(
            f"a {size:.1f} GB shard: {durable:.0f} x faster with both on the disk, {wall:.0f} x without torch's fsync,"
        )
        print(f"  {cpu:.0f} x less CPU, {memory:.0f} x less memory (aims: 100 x, 50 x)")


if __name__ == "__main__":
    main()
