"""What an extraction is to write, where it is built, and whether it is still the same work."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from msgspec import Struct

from ops.checkpoints import safetensors
from ops.checkpoints.safetensors import Layout
from ops.checkpoints.weights import FLOATS, Weights

SHARD = 5_000_000_000
"""Bytes of the largest file, as huggingface_hub has it."""
INDEX = "model.safetensors.index.json"
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin", INDEX, "pytorch_model.bin.index.json")
"""What says that a folder holds a model's weights already."""


class Job(Struct, frozen=True):
    """What is to be written, where it is built, and where it goes then."""

    weights: Weights
    files: tuple[Layout, ...]
    staging: Path
    target: Path

    @property
    def size(self) -> int:
        return sum(f.size for f in self.files)

    @property
    def built(self) -> Path:
        return self.staging / "files"

    @property
    def names(self) -> tuple[str, ...]:
        """In the order in which they are moved: the index, by which a reader goes, comes last."""
        return (*(f.name for f in self.files), *((INDEX,) if len(self.files) > 1 else ()))


def job(weights: Weights, target: Path, staging: Path, dtype: str = "float32", limit: int = SHARD) -> Job:
    """The work of writing these weights to the folder `target`; `staging` lies on the same file system.

    Floating-point tensors are written as `dtype` (float32, bfloat16), others as they are.
    """
    kinds = [(w.name, dtype if w.dtype in FLOATS else w.dtype, w.shape) for w in weights.tensors]
    return Job(weights, safetensors.layouts(kinds, limit), staging, target)


def held(target: Path) -> tuple[str, ...]:
    """Names of the weights that a folder holds already."""
    return tuple(sorted({p.name for pattern in WEIGHTS for p in target.glob(pattern)}))


def identity(work: Job) -> str:
    """What the work is: from which files, as they are now, to which bytes."""
    seen = [[str(p), *_seen(p)] for p in work.weights.files]
    heads = [[f.name, hashlib.sha256(f.header).hexdigest()] for f in work.files]
    return json.dumps({"m4ops": "extract/1", "from": seen, "to": heads, "target": str(work.target)})


def _seen(path: Path) -> tuple[int, int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns, about.st_ino


def sync(path: Path) -> None:
    """Have a file or folder on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
