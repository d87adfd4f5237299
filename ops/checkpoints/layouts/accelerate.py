"""Accelerate's automatic naming: `PROJECT_DIR/checkpoints/checkpoint_N`, N counting the saves.

A resume takes the entry whose last path component has the highest first number, whatever else it is called; an entry
without a number ends it. Source: accelerate `accelerator.py` (`save_state`, `load_state`).
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec.structs import replace

from ops.checkpoints import accelerate_state, folders
from ops.checkpoints.folders import modified, names, size
from ops.model import Checkpoint, Layout, Pointer, Run, Stray, Unknown

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
    strays = tuple(Stray(home(run.dir) / name, _effect(firsts[name])) for name in odd)
    said = Pointer("", None, rule="highest", obstacles=tuple(stray.path for stray in strays), strays=strays)
    if bare := [name for name in odd if not firsts[name]]:
        problem = f"{FOLDER}/{bare[0]} has no number: load_state ends with an IndexError"
        return replace(said, text=bare[0], problem=problem)
    numbers = {name: int(match[0]) for name, match in firsts.items() if match}
    last = [name for name, number in sorted(numbers.items()) if number == max(numbers.values())]
    if first := next((name for name in last if name in odd), ""):
        problem = f"{FOLDER}/{first} has the highest number: load_state takes it"
        if last[1:]:
            problem = f"{FOLDER}/ holds {' and '.join(last)}: which of them load_state takes is chance"
        return replace(said, text=first, problem=problem)
    return replace(said, text=last[0], step=numbers[last[0]])


def _effect(number: re.Match[str] | None) -> str:
    """Of an entry with another name. Source: accelerate `accelerator.py` (`save_state`, `load_state`)."""
    if number is None:
        return "it has no number: load_state ends with an IndexError"
    return f"Accelerate takes it for save {int(number[0])}: total_limit deletes it, and ends the training if it is no folder"


def read(folder: Path, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
    """Every `checkpoint_N`, by N."""
    return folders.read(folder, NAME, only, _checkpoint)


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
