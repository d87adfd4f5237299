"""The DeepSpeed part of bench/lr_exactness.py: ZeRO-1, 2 and 3 in two processes, every rank's LR after `m4ops scale-lr`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from lr_trainings import AHEAD, SAVED

STAGES = (1, 2, 3)
RANKS = 2
SCHEDULERS = (
    "LambdaLR", "StepLR", "CosineAnnealingLR, eta_min", "OneCycleLR", "SequentialLR", "CyclicLR, triangular2",
)  # fmt: skip
OWN = {
    "WarmupLR": {"warmup_min_lr": 1e-6, "warmup_max_lr": [1e-3, 4e-4], "warmup_num_steps": 20},
    "WarmupDecayLR": {"warmup_max_lr": 1e-3, "warmup_num_steps": 12, "total_num_steps": 50, "warmup_type": "linear"},
    "WarmupCosineLR": {"warmup_min_ratio": 0.1, "warmup_num_steps": 12, "total_num_steps": 40},
    "OneCycle": {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3, "cycle_first_step_size": 15, "decay_step_size": 3, "decay_lr_rate": 0.1},
    "LRRangeTest": {"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 4, "lr_range_test_step_rate": 0.5},
}  # fmt: skip
"""DeepSpeed's own schedulers, by what the config gives them."""
PEAKS = {"WarmupLR": 1e-3, "WarmupDecayLR": 1e-3, "WarmupCosineLR": 1e-3, "OneCycle": 1e-3}
"""Under ZeRO-3 these are set, after the LR was off and back."""
OPTIMIZER = {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}
"""WarmupCosineLR multiplies the LR of the config's optimizer."""
ALLOWED = 1e-12


@dataclass(frozen=True)
class Sharded:
    """One scheduler under one stage: the largest relative error on any rank, and whether nothing else was changed."""

    scheduler: str
    stage: int
    error: float
    same: bool

    @property
    def passed(self) -> bool:
        return self.error <= ALLOWED and self.same


def deepspeed(factor: float) -> list[Sharded]:
    """Two launches in all: one saves every run, one resumes each as it is and scaled."""
    schedulers = (*SCHEDULERS, *(f"DeepSpeed's {kind}" for kind in OWN))
    names = [f"{name}-zero-{stage}" for name in schedulers for stage in STAGES]
    with tempfile.TemporaryDirectory() as folder:
        plain, scaled = Path(folder, "plain"), Path(folder, "scaled")
        for kind, stage in product(OWN, STAGES):
            _configure(plain / f"DeepSpeed's {kind}-zero-{stage}", kind)
        launch([plain / name for name in names], SAVED)
        shutil.copytree(plain, scaled)
        same = {name: _scaled(scaled / name, plain / name, factor) for name in names}
        launch([root / name for root in (plain, scaled) for name in names], SAVED + AHEAD)
        found = {
            name: max(_error(scaled / name, plain / name, factor, rank) for rank in range(RANKS)) for name in names
        }
    return [Sharded(s, z, found[f"{s}-zero-{z}"], same[f"{s}-zero-{z}"]) for s, z in product(schedulers, STAGES)]


def _configure(run: Path, kind: str) -> None:
    """The config of one of DeepSpeed's own schedulers, and where m4ops finds it."""
    run.mkdir(parents=True)
    config = {"scheduler": {"type": kind, "params": OWN[kind]}}
    with_optimizer = {"optimizer": OPTIMIZER} if kind == "WarmupCosineLR" else {}
    (run / "ds.json").write_text(json.dumps({**with_optimizer, **config}, indent=2))
    (run / "m4ops.toml").write_text('ds_config = "ds.json"\n')


def launch(runs: list[Path], until: int) -> None:
    """Train the runs, one after the other, on all ranks."""
    trainer = Path(__file__).with_name("lr_deepspeed_trainer.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(trainer), "--until", str(until), *map(str, runs)], env=env, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-4000:])


def _scaled(run: Path, plain: Path, factor: float) -> bool:
    """Scale the run's LR, undo, scale again. Whether undo gave every byte back, and little was changed by the scaling."""
    (run / "latest_opt_step_dir").write_text(str(run / f"opt_step-{SAVED}"))
    before = _files(run)
    scaling: tuple[tuple[str, ...], ...] = (("scale-lr", f"{factor:g}"),)
    if run.name.endswith("3") and (peak := PEAKS.get(run.name.removeprefix("DeepSpeed's ").removesuffix("-zero-3"))):
        scaling = (("set-lr", "0"), ("set-lr", "back"), ("set-lr", repr(factor * peak), "--peak", "--again"))
    for words in scaling:
        _m4ops(run, *words, "-y")
    for _ in scaling:
        _m4ops(run, "undo", "-y")
    if _files(run) != before:
        return False
    for words in scaling:
        _m4ops(run, *words, "-y")
    after = _files(run)
    files = before.keys() - {"ds.json"}
    return all(len(before[k]) == len(after[k]) and _changed(before[k], after[k]) <= 200 for k in files)


def _files(run: Path) -> dict[str, bytes]:
    paths = (p for p in run.rglob("*") if p.is_file() and ".m4ops" not in p.parts)
    return {str(p.relative_to(run)): p.read_bytes() for p in paths}


def _changed(old: bytes, new: bytes) -> int:
    return 0 if old == new else sum(a != b for a, b in zip(old, new, strict=True))


def _m4ops(run: Path, *words: str) -> None:
    scheduler = run.parent.parent / "scheduler"
    scheduler.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "ops.cli", "--run", str(run), *words]
    done = subprocess.run(command, env={**os.environ, "M4OPS_EMBEDDED": str(scheduler)}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}: {done.stdout}{done.stderr}")


def _error(run: Path, plain: Path, factor: float, rank: int) -> float:
    now, was = (_rates(folder, rank) for folder in (run, plain))
    if len(now) != AHEAD or len(was) != AHEAD:
        return float("inf")
    pairs = ((a, factor * b) for x, y in zip(now, was, strict=True) for a, b in zip(x, y, strict=True))
    return max(abs(a - b) / b if b else abs(a) for a, b in pairs)


def _rates(run: Path, rank: int) -> list[list[float]]:
    lines = (run / f"lrs.{rank}.jsonl").read_text().splitlines()
    return [line["lrs"] for line in map(json.loads, lines) if line["step"] > SAVED]
