"""torch's distributed checkpoints (DCP) as a trainer of one's own saves them: folders whose name ends with a number.

`torch.distributed.checkpoint` has no rule which one a resume takes, nor what the number counts: both are the trainer's
own. Here the highest number that has a `.metadata` is taken for it. Source: pytorch `torch/distributed/checkpoint/filesystem.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from ops.checkpoints import dcp
from ops.checkpoints.folders import modified, names, numbered, size
from ops.checkpoints.layouts import torchtitan
from ops.checkpoints.torchfile import DISTRIBUTED
from ops.model import Checkpoint, Layout, Pointer, Run, Unknown

LAYOUT = Layout(
    "dcp",
    "*N",
    "the folder with the highest number that has a .metadata (torch has no rule: the trainer's own code chooses)",
    "torch.distributed.checkpoint",
    counts_saves=True,
)
NAME = re.compile(r"(?!iter_\d+$|optimizer_\d+$|pytorch_model_fsdp_\d+$)(?:.*[^\d.])?(\d+)")
"""Megatron-LM's, and the two parts of FSDP's state within a checkpoint, have layouts of their own."""
FOLDERS = ("checkpoint", "checkpoints")


def mine(folder: Path, found: frozenset[str]) -> bool:
    """A folder with a number at its end and a `.metadata` at its top, here or in `checkpoint/` or `checkpoints/`; no torchtitan's."""
    return not torchtitan.mine(folder, found) and any(
        _any(place) for place in (folder, *(folder / name for name in FOLDERS if name in found))
    )


def home(run_dir: Path) -> Path:
    """Where the numbered folders lie."""
    return next((p for p in (run_dir, *(run_dir / name for name in FOLDERS)) if _any(p)), run_dir)


def pointer(run: Run) -> Pointer | Unknown:
    """The highest number that has a `.metadata`; a problem where two folders have it."""
    found = numbered(home(run.dir), NAME)
    if isinstance(found, Unknown):
        return found
    whole = [(step, path) for step, path in found if (path / dcp.METADATA).is_file()]
    if not whole:
        return Pointer("", None, "missing", "highest")
    step = whole[-1][0]
    last = [path for number, path in whole if number == step]
    problem = f"{' and '.join(p.name for p in last)} have the same number" if len(last) > 1 else ""
    return Pointer(last[-1].name, step, problem, "highest")


def read(folder: Path, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
    """Every numbered folder with a `.metadata` or `.distcp` files, by number."""
    found = numbered(folder, NAME)
    if isinstance(found, Unknown):
        return found
    saved = {step: path for step, path in found if (only is None or step in only) and _saved(path)}
    return tuple(_checkpoint(step, path, only is not None) for step, path in saved.items())


def state_files(checkpoint: Path) -> tuple[Path, ...]:
    """The `.distcp` files. Raises StateError."""
    return dcp.state_files(checkpoint)


def said(checkpoint: Path) -> tuple[tuple[str, int], ...]:
    """Nothing but the name tells a number in plain text."""
    return ()


def _any(folder: Path) -> bool:
    return any(NAME.fullmatch(name) and (folder / name / dcp.METADATA).is_file() for name in names(folder))


def _saved(folder: Path) -> bool:
    return any(name == dcp.METADATA or name.endswith(DISTRIBUTED) for name in names(folder))


def _checkpoint(step: int, path: Path, deep: bool) -> Checkpoint:
    return Checkpoint(
        step=step,
        path=path,
        problems=tuple(dcp.save_problems(path, deep)),
        saved=modified(path / dcp.METADATA),
        size=size(path) if deep else None,
        infos=None,
        wandb_id=None,
        layout=LAYOUT.name,
    )
