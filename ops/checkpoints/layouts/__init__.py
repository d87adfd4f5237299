"""How frameworks lay out their checkpoints: one file each, with the facts that m4ops needs of it and nothing that acts.

A file here is a layout. Which one a run has is told by its folder (`detect`) or by `layout = "…"` in m4ops.toml. The
changes follow from the facts: the interventions move, write and patch what `Pointer` and `Checkpoint` name.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from ops.errors import BadInput
from ops.model import DISCARDED, M4, Checkpoint, Pointer, Run, Unknown
from ops.model import Layout as Words

NAMES = (
    M4.name,
    "hf_trainer",
    "accelerate",
    "lightning",
    "torchtitan",
    "dcp",
    "megatron",
    "nanotron",
    "composer",
    "ray_train",
)
"""m4's signs go first: an m4 run may hold what another layout would claim."""
ANYBODYS = "dcp"
"""Any number at a folder's end is its sign: it yields to every other layout."""


class Layout(Protocol):
    """What a file here offers."""

    LAYOUT: Words

    def mine(self, folder: Path, names: frozenset[str]) -> bool:
        """Whether a folder, which holds these names, is a run of this layout."""

    def home(self, run_dir: Path) -> Path:
        """The folder in which the checkpoints lie."""

    def pointer(self, run: Run) -> Pointer | Unknown:
        """What a resume takes now, by which rule, and the signs that say so."""

    def read(self, folder: Path, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
        """Every checkpoint that lies in a folder, by step; or `only` these, looked into."""

    def state_files(self, checkpoint: Path) -> tuple[Path, ...]:
        """The files from which a resume takes LR, step, optimizer and scheduler. Raises StateError."""

    def said(self, checkpoint: Path) -> tuple[tuple[str, int], ...]:
        """Who, beside the states, says which step a checkpoint is of."""


def named(name: str) -> Layout:
    """The layout of that name. Raises BadInput."""
    if name not in NAMES:
        raise BadInput(f"there is no layout `{name}`", hint="layouts: " + ", ".join(NAMES))
    return cast(Layout, import_module(f"{__name__}.{name}"))


def detect(folder: Path) -> str:
    """The layout that claims the folder; empty when none does. Raises BadInput when two do."""
    found = claims(folder)
    if len(found) > 1:
        raise BadInput(
            f"{' and '.join(found)} both claim this folder's checkpoints",
            str(folder),
            f'say which in m4ops.toml: layout = "{found[0]}"',
        )
    return found[0] if found else ""


def claims(folder: Path) -> tuple[str, ...]:
    """The layouts that claim the folder."""
    try:
        names = frozenset(os.listdir(folder))
    except OSError:
        return ()
    if named(M4.name).mine(folder, names):
        return (M4.name,)
    found = tuple(name for name in NAMES if named(name).mine(folder, names))
    return found if len(found) == 1 else tuple(name for name in found if name != ANYBODYS)


def home(run: Run) -> Path:
    """The folder in which the run's checkpoints lie."""
    return named(run.layout.name).home(run.dir)


def pointer(run: Run) -> Pointer | Unknown:
    """What a resume of the run takes now."""
    return named(run.layout.name).pointer(run)


def read(run: Run, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
    """The run's checkpoints, by step; or `only` these, looked into: structure of each file, keys, ranks."""
    return named(run.layout.name).read(home(run), only)


def discarded(run: Run, branch: str) -> tuple[Checkpoint, ...] | Unknown:
    """The checkpoints of a discarded branch."""
    return named(run.layout.name).read(run.dir / DISCARDED / branch)


def words(checkpoint: Checkpoint) -> Words:
    """The layout of a checkpoint, in words."""
    return named(checkpoint.layout).LAYOUT


def said(checkpoint: Checkpoint) -> tuple[tuple[str, int], ...]:
    """Who, beside the states, says which step the checkpoint is of."""
    return named(checkpoint.layout).said(checkpoint.path)


def state_files(checkpoint: Checkpoint) -> tuple[Path, ...]:
    """The files from which a resume takes LR, step, optimizer and scheduler. Raises StateError."""
    own = tuple(p for p in checkpoint.files if not p.is_symlink())
    return own or named(checkpoint.layout).state_files(checkpoint.path)
