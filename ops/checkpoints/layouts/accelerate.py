"""Accelerate's automatic naming: `PROJECT_DIR/checkpoints/checkpoint_N`, N counting the saves.

A resume takes the entry whose last path component has the highest first number, whatever else it is called; an entry
without a number ends it. Source: accelerate `accelerator.py` (`save_state`, `load_state`).
"""

from __future__ import annotations

import re
from pathlib import Path

from ops.checkpoints import accelerate_state, folders
from ops.checkpoints.folders import modified, names, size
from ops.model import Checkpoint, Layout, Pointer, Run, Unknown

LAYOUT = Layout(
    "accelerate",
    "checkpoint_N",
    "the checkpoint_N with the highest N",
    "Accelerate",
    counts_saves=True,
    after_rewind="N counts saves: the log's steps cannot be compared with it, and Accelerate saves under N = 0 again unless "
    "the training sets ProjectConfiguration.iteration; a name that exists already ends it",
)
NAME = re.compile(r"checkpoint_(\d+)")
FOLDER = "checkpoints"
_STATE = re.compile(r"random_states_\d+\.pkl|optimizer(_\d+)?\.bin|pytorch_model")


def mine(folder: Path, found: frozenset[str]) -> bool:
    """A `checkpoints/checkpoint_N` with a state of Accelerate's."""
    place = folder / FOLDER
    inside = names(place) if FOLDER in found else ()
    return any(NAME.fullmatch(n) and any(map(_STATE.fullmatch, names(place / n))) for n in inside)


def home(run_dir: Path) -> Path:
    """`checkpoints/` in the project's folder."""
    return run_dir / FOLDER


def pointer(run: Run) -> Pointer | Unknown:
    """The highest first number among all names there, as Accelerate reads them."""
    firsts = {name: re.search(r"\d+", name) for name in names(home(run.dir))}
    if not firsts:
        return Pointer("", None, "missing", "highest")
    odd = tuple(sorted(name for name in firsts if not NAME.fullmatch(name)))
    paths = tuple(home(run.dir) / name for name in odd)
    if bare := [name for name in odd if not firsts[name]]:
        problem = f"{FOLDER}/{bare[0]} has no number: load_state ends with an IndexError"
        return Pointer(bare[0], None, problem, "highest", obstacles=paths)
    last = max(firsts, key=lambda name: int(firsts[name][0]))  # type: ignore[index]
    if last in odd:
        problem = f"{FOLDER}/{last} has the highest number: load_state takes it"
        return Pointer(last, None, problem, "highest", obstacles=paths)
    return Pointer(last, int(last.rpartition("_")[2]), rule="highest", obstacles=paths)


def read(folder: Path, inspect: frozenset[int]) -> tuple[Checkpoint, ...] | Unknown:
    """Every `checkpoint_N`, by N."""
    return folders.read(folder, NAME, inspect, _checkpoint)


def state_files(checkpoint: Path) -> tuple[Path, ...]:
    """The files from which a resume takes LR, optimizer and scheduler. Raises StateError."""
    from ops.checkpoints import lr

    return lr.state_files(checkpoint)


def said(checkpoint: Path) -> tuple[tuple[str, int], ...]:
    """Nothing beside the states says a step."""
    return ()


def _checkpoint(number: int, path: Path, deep: bool) -> Checkpoint:
    return Checkpoint(
        step=number,
        path=path,
        problems=tuple(accelerate_state.problems(path, deep)),
        stray=accelerate_state.strays(path),
        idle=accelerate_state.idle(path),
        saved=modified(path),
        size=size(path) if deep else None,
        infos=None,
        wandb_id=None,
        layout=LAYOUT.name,
    )
