"""Whether a scaled checkpoint's future LR is F times the unedited one: every torch and HF scheduler, resumed for real.

    pip install --constraint constraints.txt transformers pytorch-lightning      # once; m4ops itself needs neither
    python bench/lr_exactness.py [--factor 0.7] [--write]

For each scheduler a training of ten steps is saved by plain Accelerate, by transformers' Trainer and by Lightning, then
resumed three times by the same: as it is, after `m4ops scale-lr F -y` on the run, and after the published recipe
(`base_lrs` and `_last_lr` scaled by torch.load and torch.save). Compared are the LRs of both parameter groups before each
of the next 25 optimizer steps. Whatever is no LR must be the same to the bit, and `m4ops undo` must give every file back.
Then the same with real DeepSpeed ZeRO-1, 2 and 3 in two processes, on each rank (bench/lr_deepspeed.py).
`--write` makes docs/lr-exactness.md anew. Fails if one row does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lr_deepspeed import STAGES, Sharded, deepspeed
from lr_schedulers import BY_LOSS, TORCH, Make, of_transformers
from lr_trainings import AHEAD, FRAMEWORKS, SAVED, TENSOR_LR, Framework

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
    """One scheduler's outcome under one framework. Errors are the largest relative one of all steps and groups."""

    scheduler: str
    framework: str
    error: float
    allowed: float
    same: bool
    undone: bool
    recipe: str

    @property
    def passed(self) -> bool:
        return self.error <= self.allowed and self.same and self.undone


def m4ops(run: Path, *words: str) -> None:
    """The whole command, as an operator types it, with an empty queue."""
    (run.parent / "scheduler").mkdir(exist_ok=True)
    env = {**os.environ, "M4OPS_EMBEDDED": str(run.parent / "scheduler")}
    command = [sys.executable, "-m", "ops.cli", "--run", str(run), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stdout}{done.stderr}")


def recipe(run: Path, framework: Framework, factor: float) -> None:
    """What is published: scale the scheduler's base_lrs and _last_lr, load and save by torch."""
    path, way = run / framework.scheduler[0], framework.scheduler[1]
    whole = torch.load(path, weights_only=False)
    state = whole
    for key in way:
        state = state[key]
    for name in ("base_lrs", "_last_lr"):
        if name in state:
            state[name] = [lr * factor for lr in state[name]]
    torch.save(whole, path)


def files(run: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in run.rglob("*") if p.is_file() and ".m4ops" not in p.parts}


def values(run: Path) -> dict[str, Any]:
    """Every value in every torch file, and the bytes of every other, without the LRs."""
    found: dict[str, Any] = {}
    for name, raw in files(run).items():
        if name.endswith((".pkl", ".bin", ".pt", ".pth", ".ckpt")) and "training_args" not in name:
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


def measured(name: str, make: Make, factor: float, framework: Framework) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        run, by_recipe = Path(folder, "run"), Path(folder, "recipe")
        run.mkdir()
        framework.save(run, make)
        shutil.copytree(run, by_recipe)
        raw, kept = files(run), values(run)
        before = framework.resume(run, make)
        m4ops(run, "scale-lr", f"{factor:g}", "-y")
        after, same = framework.resume(run, make), kept == values(run)
        m4ops(run, "undo", "-y")
        recipe(by_recipe, framework, factor)
        told = outcome(framework.resume(by_recipe, make), before, factor)
        wanted = [tuple(factor * lr for lr in step) for step in before]
        allowed = FLOAT32 if framework is TENSOR_LR else FLOAT64
        return Row(name, framework.name, error(after, wanted), allowed, same, raw == files(run), told)


def document(rows: list[Row], sharded: list[Sharded], factor: float) -> str:
    versions = ", ".join(
        f"{n} {version(n).partition('+')[0]}"
        for n in ("torch", "accelerate", "transformers", "pytorch-lightning", "deepspeed")
    )
    names = [framework.name for framework in FRAMEWORKS]
    lines = [
        "# What a resume trains with after the LR was changed in the checkpoint",
        "",
        "Made by `python bench/lr_exactness.py --write`; nothing here is written by hand.",
        "",
        f"A training with two parameter groups is saved after {SAVED} steps by plain Accelerate, transformers' Trainer or Lightning, its",
        f"LR changed by a factor of {factor:g}, and resumed by the same; the LR of each of the next {AHEAD} optimizer steps is compared with",
        f"{factor:g} × that of a resume without the change ({versions}).",
        "",
        "- *Published recipe*: `base_lrs` and `_last_lr` of the scheduler's state are scaled with `torch.load` and `torch.save`.",
        f"- The other columns: `m4ops scale-lr {factor:g}`, the largest relative error of all steps and groups. Everything that is no",
        "  LR was the same to the bit, and `m4ops undo` gave every file back to the byte.",
        "- An empty cell: the framework does not step a scheduler by the loss at each step.",
        "",
        f"| scheduler | published recipe | {' | '.join(names)} |",
        "|---|---|" + "---|" * len(names),
    ]
    for name in dict.fromkeys(row.scheduler for row in rows):
        mine = {row.framework: row for row in rows if row.scheduler == name}
        told = " or ".join(dict.fromkeys(row.recipe for row in mine.values()))
        lines.append(f"| {name} | {told} | {' | '.join(cell(mine.get(n)) for n in names)} |")
    told = [row.recipe for row in rows]
    counts = (told.count("right"), told.count("**no effect**"), told.count("first step with the old LR"))
    lines += [
        "",
        f"Of {len(rows)} resumes the recipe is right in {counts[0]}, has no effect in {counts[1]}, is late by a step in {counts[2]}"
        f" and wrong otherwise in {len(rows) - sum(counts)}; m4ops is right in {sum(r.passed for r in rows)}.",
        "",
        "transformers' `get_adafactor_schedule` has no row: Adafactor computes its own LR (`relative_step`), no file holds",
        "it, and m4ops refuses to change it. The LR of DeepSpeed's own schedulers comes from `ds_config`: m4ops changes it",
        "there, and in the optimizer's state for the first step.",
        "",
        "## DeepSpeed, two processes",
        "",
        f"The same with real DeepSpeed (gloo, CPU): the largest error on either rank over {AHEAD} steps. Fewer than",
        "200 bytes of a file are changed, the LRs and their checksums, and undo gives them back. DeepSpeed's own schedulers",
        "stand in ds_config: m4ops changes them there, and the optimizer's LR on every rank. Under ZeRO-3 these",
        "are off for a while (`set-lr 0`, `set-lr back`), and then set by `--peak`, where they have one.",
        "",
        "| scheduler | " + " | ".join(f"ZeRO-{stage}" for stage in STAGES) + " |",
        "|---|" + "---|" * len(STAGES),
    ]
    for name in dict.fromkeys(s.scheduler for s in sharded):
        found = {s.stage: s for s in sharded if s.scheduler == name}
        lines.append(
            f"| {name} | "
            + " | ".join(f"right (error {found[s].error:.0e})" if found[s].passed else "**FAILED**" for s in STAGES)
            + " |"
        )
    return "\n".join(lines) + "\n"


def cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"right (error {row.error:.0e})" if row.passed else "**FAILED**"


def told(cases: list[tuple[Framework, str, Make]]) -> Iterator[tuple[Framework, str, Make]]:
    """The cases, each said before its turn: some take long."""
    for number, (framework, name, make) in enumerate(cases, 1):
        print(f"{number}/{len(cases)} {framework.name}: {name}", flush=True)
        yield framework, name, make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factor", type=float, default=0.7)
    parser.add_argument("--write", action="store_true", help=f"make {DOCUMENT.name} anew")
    parser.add_argument("--only", default="", help="schedulers whose name contains this")
    parser.add_argument("--no-deepspeed", action="store_true", help="leave the DeepSpeed part out")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    schedulers = {n: m for n, m in {**TORCH, **of_transformers()}.items() if options.only in n}
    cases = [(f, n, m) for n, m in schedulers.items() for f in FRAMEWORKS if f.by_loss or n not in BY_LOSS]
    tensors = ("LambdaLR", "StepLR", "SequentialLR")
    rows = [measured(n, m, options.factor, f) for f, n, m in told(cases)]
    rows += [
        measured(f"{n}, the LR a float32 tensor", TORCH[n], options.factor, TENSOR_LR)
        for n in tensors
        if n in schedulers
    ]
    sharded = [] if options.no_deepspeed else deepspeed(options.factor)
    for row in (*rows, *sharded):
        if not row.passed:
            print(f"FAILED {row}", flush=True)
    if options.write:
        DOCUMENT.parent.mkdir(exist_ok=True)
        DOCUMENT.write_text(document(rows, sharded, options.factor), encoding="utf-8")
    sys.exit(not all(row.passed for row in (*rows, *sharded)))


if __name__ == "__main__":
    main()
