"""Whether a scaled checkpoint's future LR is F times the unedited one: every torch and HF scheduler, resumed for real.

    pip install --constraint constraints.txt transformers      # once; m4ops itself does not need it
    python bench/lr_exactness.py [--factor 0.7] [--write]

For each scheduler a training of ten steps is saved by Accelerate (`save_state`, the scheduler registered for
checkpointing as in huggingface/smollm vision/m4), then resumed three times by Accelerate: as it is, after
`m4ops scale-lr F -y` on the run, and after the published recipe (`base_lrs` and `_last_lr` scaled by
torch.load and torch.save). Compared are the LRs of both parameter groups before each of the next 25 optimizer
steps. Whatever is no LR must be the same to the bit, and `m4ops undo` must give every file back.
`--write` makes docs/lr-exactness.md anew. Fails if one row does.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import accelerate
import torch
import transformers
from lr_schedulers import RATES, TORCH, Make, of_transformers, steps_by_loss

SAVED, AHEAD = 10, 25
FLOAT64, FLOAT32 = 1e-12, 1e-6
"""Relative errors allowed where the LR is kept as a Python float, and as a float32 tensor."""
DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "lr-exactness.md"
LR_NAMES = frozenset(
    [
        "lr",
        "initial_lr",
        "max_lr",
        "min_lr",
        "swa_lr",
        "base_lrs",
        "_last_lr",
        "eta_min",
        "min_lrs",
        "max_lrs",
        "default_min_lr",
        "_init_lrs",
        "eps",
    ]
)


@dataclass(frozen=True)
class Row:
    """One scheduler's outcome. Errors are the largest relative one of all steps and groups."""

    scheduler: str
    error: float
    allowed: float
    same: bool
    undone: bool
    recipe: str

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed and self.same and self.undone


class Training:
    """Two parameter groups under Accelerate, and the scheduler under test."""

    def __init__(self, make: Make, tensor_lr: bool = False) -> None:
        torch.manual_seed(0)
        body, head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)
        rates = [torch.tensor(r) if tensor_lr else r for r in RATES]
        groups = [{"params": p.parameters(), "lr": r} for p, r in zip((body, head), rates, strict=True)]
        optimizer = torch.optim.AdamW(groups, lr=rates[0])
        self.accelerator = accelerate.Accelerator(cpu=True)
        self.model, self.optimizer = self.accelerator.prepare(torch.nn.Sequential(body, head), optimizer)
        self.scheduler = make(optimizer)
        self.accelerator.register_for_checkpointing(self.scheduler)

    def train(self, steps: int) -> list[tuple[float, ...]]:
        """The LR of each group as each step used it."""
        used = []
        for _ in range(steps):
            self.accelerator.backward(self.model(torch.ones(2, 3)).square().sum())
            used.append(tuple(float(group["lr"]) for group in self.optimizer.param_groups))
            self.optimizer.step()
            self.scheduler.step(*[1.0] if steps_by_loss(self.scheduler) else [])
            self.optimizer.zero_grad()
        return used

    def save(self, run: Path) -> None:
        """A checkpoint with m4's files."""
        checkpoint = run / f"opt_step-{SAVED}"
        self.accelerator.save_state(str(checkpoint / "accelerator_state"))
        sizes = dict.fromkeys(("global_batch_size_current", "global_seen_samples"), 1)
        sizes |= dict.fromkeys(("next_goal_samples", "grad_acc_size_current"), 1)
        infos = {"train_logs": {}, "wandb_run_id": "", "seed": 1, "resume_opt_step": SAVED, "resume_epoch": 0}
        (checkpoint / "resume_run_infos.json").write_text(json.dumps({**infos, "gbs_running": sizes}))
        (checkpoint / "finished-saving").touch()
        (run / "latest_opt_step_dir").write_text(str(checkpoint))


def resumed(run: Path, make: Make, tensor_lr: bool) -> list[tuple[float, ...]]:
    training = Training(make, tensor_lr)
    training.accelerator.load_state(str(run / f"opt_step-{SAVED}" / "accelerator_state"))
    return training.train(AHEAD)


def m4ops(run: Path, *words: str) -> None:
    """The whole command, as an operator types it, with an empty queue."""
    (run.parent / "scheduler").mkdir(exist_ok=True)
    env = {**os.environ, "M4OPS_EMBEDDED": str(run.parent / "scheduler")}
    command = [sys.executable, "-m", "ops.cli", "--run", str(run), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stdout}{done.stderr}")


def recipe(run: Path, factor: float) -> None:
    """What is published: scale the scheduler's base_lrs and _last_lr, load and save by torch."""
    path = run / f"opt_step-{SAVED}" / "accelerator_state" / "custom_checkpoint_0.pkl"
    state = torch.load(path, weights_only=False)
    for name in ("base_lrs", "_last_lr"):
        if name in state:
            state[name] = [lr * factor for lr in state[name]]
    torch.save(state, path)


def files(run: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in run.rglob("*") if p.is_file() and ".m4ops" not in p.parts}


def values(run: Path) -> dict[str, Any]:
    """Every value in every torch file, and the bytes of every other, without the LRs."""
    found: dict[str, Any] = {}
    for name, raw in files(run).items():
        if name.endswith((".pkl", ".bin")):
            found |= {name + k: v for k, v in leaves(torch.load(name, weights_only=False)).items()}
        else:
            found[name] = raw
    return found


def leaves(tree: Any, label: str = "", key: str = "") -> dict[str, Any]:
    if key in LR_NAMES and not (key == "eps" and "param_groups" in label):
        return {}
    match tree:
        case dict():
            inside = [leaves(v, f"{label}.{k}", str(k)) for k, v in tree.items()]
        case list() | tuple():
            inside = [leaves(v, f"{label}[{i}]") for i, v in enumerate(tree)]
        case torch.Tensor():
            return {label: (tree.dtype, tuple(tree.shape), tree.contiguous().view(-1).numpy().tobytes())}
        case _:
            return {label: repr(tree) if type(tree).__module__ != "builtins" else tree}
    return {k: v for found in inside for k, v in found.items()}


def error(found: list[tuple[float, ...]], wanted: list[tuple[float, ...]]) -> float:
    pairs = [(a, b) for x, y in zip(found, wanted, strict=True) for a, b in zip(x, y, strict=True)]
    return max(abs(a - b) / b if b else abs(a) for a, b in pairs)


def outcome(found: list[tuple[float, ...]], before: list[tuple[float, ...]], factor: float) -> str:
    """What became of the LR, in words."""
    wrong = [i for i in range(AHEAD) if error(found[i : i + 1], [tuple(factor * lr for lr in before[i])]) > FLOAT32]
    if not wrong:
        return "right"
    if all(error(found[i : i + 1], before[i : i + 1]) < FLOAT32 for i in range(AHEAD)):
        return "**no effect**"
    if wrong == [0]:
        return "first step with the old LR"
    ratios = [a / b for x, y in zip(found, before, strict=True) for a, b in zip(x, y, strict=True) if b]
    return f"**wrong** in {len(wrong)} of {AHEAD} steps ({min(ratios):.2g} to {max(ratios):.2g} ×)"


def measured(name: str, make: Make, factor: float, tensor_lr: bool = False) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        run, by_recipe = Path(folder, "run"), Path(folder, "recipe")
        training = Training(make, tensor_lr)
        training.train(SAVED)
        training.save(run)
        shutil.copytree(run, by_recipe)
        raw, kept = files(run), values(run)
        before = resumed(run, make, tensor_lr)
        m4ops(run, "scale-lr", f"{factor:g}", "-y")
        after, same = resumed(run, make, tensor_lr), kept == values(run)
        m4ops(run, "undo", "-y")
        recipe(by_recipe, factor)
        told = outcome(resumed(by_recipe, make, tensor_lr), before, factor)
        wanted = [tuple(factor * lr for lr in step) for step in before]
        return Row(name, error(after, wanted), FLOAT32 if tensor_lr else FLOAT64, same, raw == files(run), told)


def document(rows: list[Row], factor: float) -> str:
    versions = (
        f"torch {torch.__version__.partition('+')[0]}, accelerate {accelerate.__version__}, "
        f"transformers {transformers.__version__}"
    )
    lines = [
        "# What a resume trains with after the LR was changed in the checkpoint",
        "",
        "Made by `python bench/lr_exactness.py --write`; nothing here is written by hand.",
        "",
        f"A training with two parameter groups is saved by Accelerate after {SAVED} steps, its LR changed by a factor of {factor:g},",
        f"and resumed by Accelerate; the LR of each of the next {AHEAD} optimizer steps is compared with {factor:g} × that of a",
        f"resume without the change ({versions}).",
        "",
        "- *Published recipe*: `base_lrs` and `_last_lr` of the scheduler's file are scaled with `torch.load` and `torch.save`.",
        f"- *m4ops*: `m4ops scale-lr {factor:g}`; the largest relative error of all steps and groups. Everything that is no LR",
        "  was the same to the bit, and `m4ops undo` gave every file back to the byte.",
        "",
        "| scheduler | published recipe | `m4ops scale-lr` |",
        "|---|---|---|",
    ]
    for row in rows:
        mine = f"right (error {row.error:.0e})" if row.error else "right (error 0)"
        lines.append(f"| {row.scheduler} | {row.recipe} | {mine if row.passed else '**FAILED**'} |")
    told = [row.recipe for row in rows]
    counts = (told.count("right"), told.count("**no effect**"), told.count("first step with the old LR"))
    rest = len(rows) - sum(counts)
    lines += [
        "",
        f"Of {len(rows)} rows the recipe is right in {counts[0]}, has no effect in {counts[1]}, is late by a step in {counts[2]}"
        f" and wrong otherwise in {rest}; m4ops is right in {sum(r.passed for r in rows)}.",
        "",
        "transformers' `get_adafactor_schedule` has no row: Adafactor computes its own LR (`relative_step`), no file holds",
        "it, and m4ops refuses to change it. The LR of DeepSpeed's own schedulers comes from `ds_config`; m4ops says so.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factor", type=float, default=0.7)
    parser.add_argument("--write", action="store_true", help=f"make {DOCUMENT.name} anew")
    parser.add_argument("--only", default="", help="schedulers whose name contains this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    cases = [(name, make, False) for name, make in {**TORCH, **of_transformers()}.items()]
    cases += [
        (f"{name}, the LR a float32 tensor", TORCH[name], True) for name in ("LambdaLR", "StepLR", "SequentialLR")
    ]
    rows = []
    for name, make, tensor_lr in cases:
        if options.only in name:
            rows.append(measured(name, make, options.factor, tensor_lr))
            print(f"{'ok' if rows[-1].passed else 'FAILED':7}{rows[-1]}", flush=True)
    if options.write:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(document(rows, options.factor), encoding="utf-8")
    sys.exit(not all(row.passed for row in rows))


if __name__ == "__main__":
    main()
