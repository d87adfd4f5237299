"""Stands in for a training in the tests of the pages: m4's files and log lines, the standard library alone.

It goes on from `latest_opt_step_dir` with the LR that the checkpoint's scheduler state says and the loss that its
`train_logs` say, fast, until a switch or a signal ends it. As with the Accelerate of 2023, a foreign file beside
`custom_checkpoint_0.pkl` makes it lose that state, and its LR restarts from the warm-up's.
"""

import json
import os
import pathlib
import pickle
import random
import secrets
import shutil
import signal
import sys
import time
import zipfile

LOG_EVERY, TOTAL, SECONDS_A_STEP = 5, 500_000, 4
root = pathlib.Path(os.environ["SAVE_DIR"])
kill_switch, save_switch = root.parent / "kill_switch", root.parent / "save_switch"
source = pathlib.Path((root / "latest_opt_step_dir").read_text())
if not source.is_dir():
    sys.exit(f"the path in the `latest_opt_step_dir` file is invalid: {source}")
if kill_switch.exists():
    sys.exit("** Kill switch activated. Exiting the training before it even starts. **")
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append("SIGTERM signal received. Please restart training"))
infos = json.loads((source / "resume_run_infos.json").read_text())
first = step = infos["resume_opt_step"]
print(f"Resuming from {source}", flush=True)
if not infos["wandb_run_id"]:
    infos["wandb_run_id"] = secrets.token_hex(4)
    print(f"** `wandb_run_id`: {infos['wandb_run_id']} **", flush=True)


def learning_rate():
    states = [p for p in (source / "accelerator_state").iterdir() if p.name.startswith("custom_checkpoint_")]
    if len(states) > 1:
        return 1e-8
    with zipfile.ZipFile(states[0]) as file:
        plain = next(name for name in file.namelist() if name.endswith("/data.pkl"))
        return pickle.loads(file.read(plain))["_last_lr"][0]


def save():
    target = root / f"opt_step-{step}"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("finished-*"))
    (target / "resume_run_infos.json").write_text(json.dumps(infos | {"resume_opt_step": step}))
    (target / "finished-saving").touch()
    (root / "latest_opt_step_dir").write_text(str(target))
    print(f"** Saving finished at `{target}` **", flush=True)


until = time.monotonic() + 120  # never longer, whoever has forgotten it
rate, level, noise = learning_rate(), infos["train_logs"]["per_token_loss"], random.Random(first)
while time.monotonic() < until:
    if kill_switch.exists():
        told.append(f"Kill switch activated (Don't forget to remove {kill_switch})")
    asked = save_switch.exists()
    if asked:
        save_switch.unlink()
    if (asked or told) and not (root / f"opt_step-{step}").exists():
        save()
    if told:
        print(f"** {told[0]} **", flush=True)
        break
    time.sleep(0.03)
    step += LOG_EVERY
    minutes, seconds = divmod((step - first) * SECONDS_A_STEP, 60)
    print(
        f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] iteration: {step:>6}/{TOTAL} {100 * step / TOTAL:>3.0f}% | "
        f"elapsed time: {minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d} | "
        f"per_token_loss: {level + noise.gauss(0, 0.01):.4f} | lr: {rate:.3E} | num_opt_steps: {step} | ",
        flush=True,
    )
