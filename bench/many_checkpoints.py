"""How long `m4ops checkpoints` takes on a run with 500 checkpoints of 64 ranks each.

    python bench/many_checkpoints.py [--checkpoints 500] [--ranks 64] [--rounds 5] [--folder DIR]

Each rank has an optimizer and a model shard (real torch files: small trees, large tensors that are holes, so that a
terabyte takes no room) and its random state. The command runs as a user types it, once to warm the caches, then several
times; printed are the medians of wall time beside that of `find -size +0` over the same tree.
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
from pathlib import Path

MAKE = """
import pathlib, sys, torch
rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
flat = torch.full((1000,), 0.5 + rank)
inner = {"state": {0: {"step": torch.tensor(1.0), "exp_avg": flat, "exp_avg_sq": flat + 1}},
         "param_groups": [{"lr": 5e-5, "initial_lr": 1e-4, "betas": (0.9, 0.95)}]}
outer = {"zero_stage": 3, "partition_count": ranks, "optimizer_state_dict": inner, "fp32_flat_groups": [flat + 2]}
torch.save({"optimizer_state_dict": outer, "ds_version": "0.19.8"}, folder / "optim.pt")
model = {"module": {}, "global_steps": 1, "dp_world_size": ranks, "mp_world_size": 1, "ds_version": "0.19.8"}
torch.save(model, folder / "model.pt")
torch.save({"base_lrs": [1e-4], "_last_lr": [5e-5], "last_epoch": 1}, folder / "scheduler.pkl")
"""


def a_run(folder: Path, checkpoints: int, ranks: int) -> Path:
    """The files are hard links of one rank's, whose content no look without --deep compares byte by byte."""
    files = folder / "files"
    files.mkdir()
    subprocess.run([sys.executable, "-c", MAKE, "0", str(ranks), str(files)], check=True)
    run = folder / "run"
    infos = {"train_logs": {}, "wandb_run_id": "a", "seed": 1, "resume_epoch": 0}
    sizes = dict.fromkeys(("global_batch_size_current", "global_seen_samples"), 1)
    sizes |= dict.fromkeys(("next_goal_samples", "grad_acc_size_current"), 1)
    for step in range(1, checkpoints + 1):
        state = run / f"opt_step-{step}" / "accelerator_state"
        (state / "pytorch_model").mkdir(parents=True)
        for rank in range(ranks):
            for kind, prefix in (("optim", "bf16_"), ("model", "")):
                name = f"{prefix}zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt"
                os.link(files / f"{kind}.pt", state / "pytorch_model" / name)
            (state / f"random_states_{rank}.pkl").touch()
        os.link(files / "scheduler.pkl", state / "custom_checkpoint_0.pkl")
        (state / "latest").write_text("pytorch_model")
        (state.parent / "resume_run_infos.json").write_text(
            json.dumps({**infos, "resume_opt_step": step, "gbs_running": sizes})
        )
        (state.parent / "finished-saving").touch()
    (run / "latest_opt_step_dir").write_text(str(run / f"opt_step-{checkpoints}"))
    (folder / "bin").mkdir()
    (folder / "bin" / "squeue").write_text("#!/bin/sh\n")
    (folder / "bin" / "squeue").chmod(0o755)
    return run


def cost(argv: list[str], env: dict[str, str]) -> tuple[float, float]:
    """Wall and CPU seconds of a process."""
    began = time.perf_counter()
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv[0]} ended with {process.returncode}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", type=int, default=500)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to make the run (default: the system's temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        run = a_run(Path(name), options.checkpoints, options.ranks)
        env = {**os.environ, "PATH": f"{name}/bin{os.pathsep}{os.environ['PATH']}", "XDG_STATE_HOME": f"{name}/state"}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        own = [str(Path(sys.executable).with_name("m4ops")), "--run", str(run), "checkpoints"]
        first, _ = cost(own, env)
        rows = [(*cost(own, env), *cost(["find", str(run), "-size", "+0"], env)) for _ in range(options.rounds)]
        wall, cpu, find, _ = (statistics.median(column) for column in zip(*rows, strict=True))
        print(
            f"{options.checkpoints} checkpoints x {options.ranks} ranks, {3 * options.ranks * options.checkpoints} files:"
        )
        print(f"  m4ops checkpoints {wall:.2f} s, {cpu:.2f} s of them CPU (the first time {first:.2f} s; aim 2 s)")
        print(f"  find {find:.2f} s")


if __name__ == "__main__":
    main()
