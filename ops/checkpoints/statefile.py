"""A state file of any kind as one tree: a torch file, a pickle, or all the values of a `.distcp` file."""

from __future__ import annotations

from pathlib import Path

from ops.checkpoints import dcp, torchfile
from ops.checkpoints.torchfile import StateError, TorchFile
from ops.checkpoints.torchzip import shown


def read(path: Path, size: int | None = None) -> TorchFile:
    """The tree of a state file. StateError when it is torn, compressed, or something else.

    `size`: as if the file, a zip, ended after so many bytes.
    """
    return dcp.read(path) if path.suffix == dcp.SUFFIX else torchfile.read(path, size)


def structure_problems(path: Path) -> tuple[str, ...]:
    """What is wrong with a state file's structure; empty when it is well formed. Tensors are not read."""
    if path.suffix != dcp.SUFFIX:
        return torchfile.structure_problems(path)
    try:
        return shown(dcp.structure_problems(path))
    except StateError as error:
        return (error.what,)
