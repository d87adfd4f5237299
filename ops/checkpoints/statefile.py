"""A state file of any kind as one tree: a torch file, a pickle, or all the values of a `.distcp` file."""

from __future__ import annotations

from pathlib import Path

from ops.checkpoints import torchfile
from ops.checkpoints.torchfile import DISTRIBUTED, StateError, TorchFile
from ops.checkpoints.torchzip import shown


def read(path: Path, size: int | None = None) -> TorchFile:
    """The tree of a state file. StateError when it is torn, compressed, or something else.

    `size`: as if the file, a zip, ended after so many bytes.
    """
    if path.suffix != DISTRIBUTED:
        return torchfile.read(path, size)
    from ops.checkpoints import dcp

    return dcp.read(path)


def structure_problems(path: Path) -> tuple[str, ...]:
    """What is wrong with a state file's structure; empty when it is well formed. Tensors are not read."""
    if path.suffix != DISTRIBUTED:
        return torchfile.structure_problems(path)
    from ops.checkpoints import dcp

    try:
        return shown(dcp.structure_problems(path))
    except StateError as error:
        return (error.what,)
