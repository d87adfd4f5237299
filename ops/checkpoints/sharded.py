"""Weights in torch's distributed checkpoints (DCP), as FSDP and torchtitan write them: every part of every tensor a file of
its own inside a `.distcp` file, and `.metadata`, which says where.

Source: pytorch `torch/distributed/checkpoint/metadata.py`, `filesystem.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ops.checkpoints import safetensors
from ops.checkpoints.dcp import METADATA, fields
from ops.checkpoints.symbols import Call
from ops.checkpoints.torchfile import ITEMSIZE, StateError, Tensor, extents, opened, read_zip

_MOST_RUNS = 1 << 20
"""Of a tensor cut along an inner dimension: runs beyond this are not put together."""
_OTHERS = ("optim", "lr_scheduler", "dataloader", "train_state", "scheduler", "rng")
"""How the names of what is no weight begin."""


class Part(NamedTuple):
    """A part of a tensor: where it begins in it, its shape, and the bytes of a file that hold its own small zip."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: Path
    at: int
    size: int


class Whole(NamedTuple):
    """A tensor, and its bytes in order as (file, offset, length)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    runs: tuple[tuple[Path, int, int], ...]


def weights(folder: Path) -> Iterator[Whole]:
    """Every tensor of the model; where all of them lie under the key `model`, or `app`, without it.

    StateError when one is not all there, or lies in a way m4ops cannot put together.
    """
    said = fields(folder)
    tensors, stored = said.get("state_dict_metadata"), said["storage_data"]
    if not isinstance(tensors, dict):
        raise StateError("no metadata of a distributed checkpoint", str(folder / METADATA))
    places = {(i.state["fqn"], i.state.get("offset")): info.state for i, info in stored.items() if isinstance(i, Call)}
    found = {str(n): a.state for n, a in tensors.items() if isinstance(a, Call) and isinstance(a.state, dict)}
    found = {n: said for n, said in found.items() if "size" in said and not n.removeprefix("app.").startswith(_OTHERS)}
    key = next((key for key in ("app.model.", "app.", "model.") if all(n.startswith(key) for n in found)), "")
    for name, said in found.items():
        yield _whole(name.removeprefix(key), said, list(_parts(folder, name, said, places)))


def _parts(folder: Path, name: str, said: Mapping[str, Any], places: Mapping[Any, Any]) -> Iterator[Part]:
    for chunk in said["chunks"]:
        offsets, shape = tuple(chunk.state["offsets"]), tuple(chunk.state["sizes"])
        place = places.get((name, offsets))
        if place is None or "relative_path" not in place:
            raise StateError(f"a part of {name} is missing", str(folder / METADATA))
        yield Part(offsets, shape, folder / place["relative_path"], int(place["offset"]), int(place["length"]))


def _whole(name: str, said: Mapping[str, Any], parts: Sequence[Part]) -> Whole:
    """Put the parts together, in the order of the tensor's elements."""
    shape, dtype, found = tuple(map(int, said["size"])), "", []
    for part in parts:
        tensor, start = _value(part)
        size = ITEMSIZE[tensor.dtype]
        if tensor.shape != part.shape or not _in_order(tensor) or tensor.dtype not in safetensors.CODES:
            raise StateError(f"{name} lies in a way m4ops cannot put together", str(part.file))
        dtype = tensor.dtype
        found += [(at * size, part.file, start + own * size, count * size) for at, own, count in _runs(shape, part)]
    if sum(run[3] for run in found) != prod(shape) * ITEMSIZE.get(dtype, 1) or not dtype:
        raise StateError(f"a part of {name} is missing", str(parts[0].file.parent) if parts else "")
    return Whole(name, dtype, shape, tuple((file, at, length) for _, file, at, length in sorted(found)))


def _runs(shape: tuple[int, ...], part: Part) -> Iterator[tuple[int, int, int]]:
    """Elements that follow one another in the tensor and in the part: place in the one, in the other, count."""
    inner, cut = 1, len(shape)
    while cut and part.shape[cut - 1] == shape[cut - 1]:
        cut -= 1
        inner *= shape[cut]
    outer = max(0, cut - 1)
    count = inner * (part.shape[outer] if cut else 1)
    if prod(part.shape[:outer]) > _MOST_RUNS:
        raise StateError("a tensor is cut into too many pieces", str(part.file))
    for number, place in enumerate(product(*(range(n) for n in part.shape[:outer]))):
        index = [o + i for o, i in zip(part.offsets, (*place, *([0] * (len(shape) - outer))), strict=True)]
        at = 0
        for i, n in zip(index, shape, strict=True):
            at = at * n + i
        if count:
            yield at, number * count, count


def _in_order(tensor: Tensor) -> bool:
    """Whether its elements lie one after the other from the storage's begin."""
    step = 1
    for count, stride in zip(reversed(tensor.shape), reversed(tensor.stride), strict=True):
        if count > 1 and stride != step:
            return False
        step *= count
    return tensor.offset == 0


def _value(part: Part) -> tuple[Tensor, int]:
    """The tensor that a part holds, and where its bytes begin in the file."""
    with opened(part.file) as fd:
        held = read_zip(part.file, fd, part.at, part.size)
        if not isinstance(held.tree, Tensor):
            raise ValueError(f"no tensor at byte {part.at}")
        begin, _ = extents(held, [held.tree.storage])[held.tree.storage.key]
        return held.tree, begin
