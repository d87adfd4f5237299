"""torchtitan: `checkpoint/step-N/`, torch's distributed checkpoints (DCP).

A resume takes the highest N whose folder has a `.metadata`. The number is looked for anywhere in a name, so
`step-300.old` counts as 300, and then `step-300` is loaded, which is not there. Source: pytorch/torchtitan
`components/checkpointer/dcp.py` (`_find_load_step`, `_purge_stale_checkpoints`; before 2026 `components/checkpoint.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

from ops.checkpoints import dcp, folders
from ops.checkpoints.folders import modified, names, size
from ops.errors import OpsError
from ops.model import Checkpoint, Layout, Pointer, Run, Stray, Unknown

LAYOUT = Layout("torchtitan", "step-N", "the step-N with the highest N that has a .metadata", "torchtitan")
NAME = re.compile(r"step-(\d+)")
FOLDER = "checkpoint"
"""`checkpoint.folder` of its config, in `dump_folder`."""


STATE = "train_state"
"""What its trainer saves of itself (`trainer.py`): by this its folders are told from a `step-N` that a trainer of one's own saved."""
WEIGHTS = "model.safetensors.index.json"
_LOOKED_AT = 3
"""Folders, the newest: of the last save of all the weights alone may have been kept (`last_save_model_only`)."""


def mine(folder: Path, found: frozenset[str]) -> bool:
    """A `step-N` with torchtitan's own state in its `.metadata`, here or in `checkpoint/`."""
    places = (folder, *((folder / FOLDER,) if FOLDER in found else ()))
    return any(dcp.mentions(path, STATE) for place in places for path in _saved(place)[:_LOOKED_AT])


def home(run_dir: Path) -> Path:
    """`checkpoint/`, or the folder itself where the steps lie in it."""
    return run_dir if _saved(run_dir) else run_dir / FOLDER


def pointer(run: Run) -> Pointer | Unknown:
    """The highest number, as the framework reads names; a problem when no checkpoint is called as it loads it."""
    folder = home(run.dir)
    numbers = {name: int(match[1]) for name in names(folder) if (match := NAME.search(name))}
    strays = tuple(
        Stray(folder / name, f"keep_latest_k takes it for step-{numbers[name]}, and deletes it when no step is older")
        for name in sorted(numbers)
        if not NAME.fullmatch(name)
    )
    found = [(number, name) for name, number in numbers.items() if _counts(folder / name)]
    step, name = max(found, default=(None, ""))
    if step is None:
        return Pointer("", None, "missing", "highest", strays=strays)
    there = (folder / f"step-{step}" / dcp.METADATA).is_file()
    problem = "" if there else f"{name} counts as step-{step}, which is not there"
    if not there and (folder / f"step-{step}" / WEIGHTS).is_file():
        problem = (
            f"{name} counts as step-{step}, which holds the weights alone (last_save_in_hf): its load ends the job"
        )
    odd = tuple(folder / name for _, name in sorted(found) if not NAME.fullmatch(name))
    return Pointer(name, step, problem, "highest", obstacles=odd, strays=strays)


def read(folder: Path, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
    """Every `step-N`, by step."""
    return folders.read(folder, NAME, only, _checkpoint)


def state_files(checkpoint: Path) -> tuple[Path, ...]:
    """The `.distcp` files. Raises StateError."""
    return dcp.state_files(checkpoint)


def said(checkpoint: Path) -> tuple[tuple[str, int], ...]:
    """Nothing but the name tells the step in plain text."""
    return ()


def _counts(folder: Path) -> bool:
    """Whether the framework takes a folder for a checkpoint."""
    return any((folder / name).is_file() for name in (dcp.METADATA, WEIGHTS))


def _saved(folder: Path) -> list[Path]:
    """Every `step-N` with a `.metadata`, the newest first."""
    found = sorted(((int(m[1]), name) for name in names(folder) if (m := NAME.fullmatch(name))), reverse=True)
    return [folder / name for _, name in found if (folder / name / dcp.METADATA).is_file()]


def _checkpoint(step: int, path: Path, deep: bool) -> Checkpoint:
    return Checkpoint(
        step=step,
        path=path,
        problems=tuple(dcp.save_problems(path, deep)) or (_weights_alone(step, path) if deep else ()),
        saved=modified(path / dcp.METADATA),
        size=size(path) if deep else None,
        infos=None,
        wandb_id=None,
        layout=LAYOUT.name,
        lr_elsewhere=_elsewhere(path) if deep else "",
    )


def _weights_alone(step: int, path: Path) -> tuple[str, ...]:
    """Of step 0 a resume loads no more than the weights."""
    if not step or dcp.mentions(path, STATE) or dcp.mentions(path, "optim"):
        return ()
    return ("it holds the weights alone (last_save_model_only): no training goes on from it",)


def _elsewhere(path: Path) -> str:
    """From 0.3 on only the scheduler's step is saved (`components/optimizer/lr_scheduler.py`)."""
    try:
        kept = {item.path[1:] for item in dcp.items(path) if item.path[0] == "lr_scheduler"}
    except OpsError:
        return ""
    if kept != {("last_epoch",)}:
        return ""
    return "torchtitan saves the scheduler's step alone and computes the LR anew from `optimizer.lr` of its config"
