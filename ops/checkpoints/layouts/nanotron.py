"""nanotron: `N/` with `checkpoint_metadata.json`, one scheduler, and an optimizer state for every rank.

A resume takes the step that `latest.txt` names. Source: huggingface/nanotron `src/nanotron/trainer.py` (`save_checkpoint`),
`serialize/main.py` (`parse_ckpt_path`), `serialize/optimizer.py`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ops.checkpoints import folders
from ops.checkpoints.folders import file_problems, modified, names, size
from ops.errors import OpsError
from ops.model import Checkpoint, Layout, Pointer, Run, Unknown

LATEST = "latest.txt"
LAYOUT = Layout("nanotron", "N", LATEST, "nanotron")
NAME = re.compile(r"(\d+)")
METADATA = "checkpoint_metadata.json"


def mine(folder: Path, found: frozenset[str]) -> bool:
    """A numbered folder with the metadata."""
    return any(NAME.fullmatch(name) and (folder / name / METADATA).is_file() for name in found)


def home(run_dir: Path) -> Path:
    """`checkpoints_path` itself."""
    return run_dir


def pointer(run: Run) -> Pointer | Unknown:
    """What `latest.txt` says."""
    return folders.pointer(run.dir, LAYOUT, "a step", "missing: a job starts from step 0")


def read(folder: Path, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
    """Every numbered folder, by step."""
    return folders.read(folder, NAME, only, _checkpoint)


def state_files(checkpoint: Path) -> tuple[Path, ...]:
    """The scheduler's file, and the optimizer's of every rank."""
    optimizer = checkpoint / "optimizer"
    shards = sorted(optimizer / name for name in names(optimizer) if name.endswith(".pt"))
    return (*sorted((checkpoint / "lr_scheduler").glob("lr_scheduler*.pt")), *shards)


def said(checkpoint: Path) -> tuple[tuple[str, int], ...]:
    """`last_train_step` of the metadata."""
    step, _ = _last_step(checkpoint)
    return () if step is None else ((METADATA, step),)


def _checkpoint(step: int, path: Path, deep: bool) -> Checkpoint:
    return Checkpoint(
        step=step,
        path=path,
        problems=tuple(_problems(step, path, deep)),
        saved=modified(path / METADATA),
        size=size(path) if deep else None,
        infos=None,
        wandb_id=None,
        layout=LAYOUT.name,
        signs=(str(step),),
    )


def _problems(step: int, path: Path, deep: bool) -> list[str]:
    last, wrong = _last_step(path)
    problems = [wrong] if wrong else []
    if last is not None and last != step:
        problems.append(f"{METADATA} says last_train_step {last}, the folder says {step}")
    found = state_files(path)
    if not any(file.parent.name == "lr_scheduler" for file in found):
        problems.append("lr_scheduler/ holds no state: the job ends when it looks for it")
    if not any(file.parent.name == "optimizer" for file in found):
        problems.append("optimizer/ holds no state")
    if not names(path / "model"):
        problems.append("the weights (model/) are missing")
    if deep:
        try:
            problems += [f"{file.relative_to(path)}: {p}" for file in found for p in file_problems(file)]
        except OpsError as error:
            problems.append(error.what)
    return problems


def _last_step(checkpoint: Path) -> tuple[int | None, str]:
    """`last_train_step`, or what is wrong with the file."""
    try:
        step = json.loads((checkpoint / METADATA).read_bytes())["metas"]["last_train_step"]
    except OSError as error:
        return None, f"{METADATA}: {error.strerror}"
    except (ValueError, KeyError, TypeError) as error:
        return None, f"{METADATA} is torn: {error}"
    return (step, "") if isinstance(step, int) else (None, f"{METADATA} says no last_train_step")
