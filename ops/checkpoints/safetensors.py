"""The safetensors format: what a header says, the header of files to be made, how tensors are shared among files.

The bytes are those that the safetensors library writes: tensors by descending dtype, then by name, and the header
padded with spaces to 8 bytes. Source: huggingface/safetensors `safetensors/src/tensor.rs`; huggingface_hub
`serialization/_base.py` (how tensors are shared among files, their names, the index).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path

from msgspec import Struct

from ops.checkpoints.torchfile import ITEMSIZE, StateError, opened
from ops.checkpoints.torchzip import read_at

CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "float16": "F16", "bfloat16": "BF16",
    "int32": "I32", "float32": "F32", "complex64": "C64", "float64": "F64", "int64": "I64",
}  # fmt: skip
"""The format's names of dtypes, in its order."""
_DTYPES = {code: dtype for dtype, code in CODES.items()}
_RANK = {dtype: rank for rank, dtype in enumerate(CODES)}
_OTHERS = {
    "U16",
    "U32",
    "U64",
    "F4",
    "F6_E2M3",
    "F6_E3M2",
    "F8_E4M3",
    "F8_E5M2",
    "F8_E8M0",
    "F8_E4M3FNUZ",
    "F8_E5M2FNUZ",
}
"""Further dtypes of the format, which torch has not, or by other names."""
_LONGEST = 100_000_000
"""Bytes of the longest header that the library reads."""


class Slot(Struct, frozen=True):
    """One tensor and the bytes of its file where it stands. A dtype that torch does not have goes by the format's name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Layout(Struct, frozen=True):
    """One file to be made: its name, its first bytes, and its tensors in the order of their bytes."""

    name: str
    header: bytes
    slots: tuple[Slot, ...]

    @property
    def size(self) -> int:
        return self.slots[-1].end if self.slots else len(self.header)


Tensor = tuple[str, str, tuple[int, ...]]
"""Name, dtype and shape."""


def layouts(tensors: Sequence[Tensor], limit: int) -> tuple[Layout, ...]:
    """The files for these tensors in their order, each of at most `limit` bytes of data where a tensor allows it."""
    parts = _parts(tensors, limit)
    count = len(parts)
    names = (
        [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
        if count > 1
        else ["model.safetensors"]
    )
    return tuple(_layout(name, part) for name, part in zip(names, parts, strict=True))


def index(files: Sequence[Layout]) -> str | None:
    """The text of `model.safetensors.index.json`; None for a single file, which needs none."""
    if len(files) < 2:
        return None
    where = {slot.name: file.name for file in files for slot in file.slots}
    total = sum(slot.end - slot.begin for file in files for slot in file.slots)
    return json.dumps({"metadata": {"total_size": total}, "weight_map": where}, indent=2, sort_keys=True) + "\n"


def read(path: Path) -> tuple[Slot, ...]:
    """The tensors of a file, in the order of their bytes. StateError when it is torn or something else."""
    with opened(path) as fd:
        length = int.from_bytes(read_at(fd, 0, 8), "little")
        if not 2 <= length <= _LONGEST:
            raise ValueError("no safetensors file")
        header = json.loads(read_at(fd, 8, length))
        slots = sorted(_slots(header, 8 + length), key=lambda s: (s.begin, s.end))
        end = path.stat().st_size
    at = 8 + length
    for slot in slots:
        size = prod(slot.shape) * ITEMSIZE.get(slot.dtype, 0)
        if slot.begin != at or (slot.dtype in ITEMSIZE and slot.end - slot.begin != size):
            raise StateError(f"the header does not fit the data at tensor {slot.name}", str(path))
        at = slot.end
    if at != end:
        raise StateError(f"cut off: {at} bytes by its header, {end} on the disk", str(path))
    return tuple(slots)


def _slots(header: object, start: int) -> Iterable[Slot]:
    if not isinstance(header, dict):
        raise ValueError("no safetensors file")
    for name, about in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, (begin, end) = _DTYPES.get(about["dtype"], about["dtype"]), about["data_offsets"]
            shape = tuple(map(int, about["shape"]))
            if about["dtype"] not in _DTYPES and about["dtype"] not in _OTHERS:
                raise ValueError(f"no dtype is called {about['dtype']}")
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"tensor {name} has a header m4ops cannot read ({error})") from None
        yield Slot(name, dtype, shape, start + int(begin), start + int(end))


def _size(tensor: Tensor) -> int:
    return prod(tensor[2]) * ITEMSIZE[tensor[1]]


def _parts(tensors: Sequence[Tensor], limit: int) -> list[list[Tensor]]:
    """In the order they have; a tensor above the limit has a file of its own."""
    parts: list[list[Tensor]] = []
    current: list[Tensor] = []
    filled = 0
    for tensor in tensors:
        size = _size(tensor)
        if size > limit:
            parts.append([tensor])
            continue
        if filled + size > limit:
            parts.append(current)
            current, filled = [], 0
        current.append(tensor)
        filled += size
    return [*parts, current] if current or not parts else parts


def _layout(name: str, tensors: Iterable[Tensor]) -> Layout:
    placed, at = [], 0
    for tensor in sorted(tensors, key=lambda t: (-_RANK[t[1]], t[0])):
        placed.append((tensor, at, at + _size(tensor)))
        at += _size(tensor)
    said: dict[str, object] = {"__metadata__": {"format": "pt"}}
    for (key, dtype, shape), begin, end in placed:
        said[key] = {"dtype": CODES[dtype], "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(said, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    start = len(header)
    return Layout(name, header, tuple(Slot(*tensor, start + begin, start + end) for tensor, begin, end in placed))
