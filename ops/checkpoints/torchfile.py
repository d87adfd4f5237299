"""Read a torch file without torch and without running anything in it: its tree, and where its bytes stand.

Handles torch's zip files (torch >= 1.6), its older unzipped ones, and plain pickles.
Source: pytorch `torch/serialization.py` (persistent ids, both layouts), `torch/_utils.py` (rebuilt tensors).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from struct import unpack
from typing import Any, TypeVar

from msgspec import Struct, field

from ops.checkpoints.pickle_walk import Walked, walk
from ops.checkpoints.symbols import Blob, Call, Float, Global, Persistent, Text
from ops.checkpoints.torchzip import Directory, data_at, read_at, read_directory, record_problems, shown
from ops.errors import OpsError

ITEMSIZE = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
_STORAGES = {
    "Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "Untyped": "uint8",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128",
}  # fmt: skip
_DTYPES = {
    "double": "float64", "float": "float32", "half": "float16",
    "long": "int64", "int": "int32", "short": "int16",
}  # fmt: skip
_TRUSTED = {
    "collections", "torch", "torch._utils", "torch._tensor", "_codecs",
    "numpy.core.multiarray", "numpy._core.multiarray",
}  # fmt: skip
DISTRIBUTED = ".distcp"
"""How the name of a file ends that is made of many (`ops.checkpoints.dcp`)."""
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."


class StateError(OpsError):
    """A state file that is torn, or not of a kind m4ops can read or change."""


class Storage(Struct, frozen=True):
    """The memory of one or more tensors; `key` names it within the file."""

    key: str
    dtype: str
    numel: int


class Tensor(Struct, frozen=True):
    """A view of a storage. `offset` and `stride` count elements; `shape` and `dtype` as torch has them."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        return prod(self.shape)


class NumpyFloat(Float):
    """A numpy scalar. Its value is the byte string `at` to `end` of the file, of type `dtype`."""

    dtype: str


Placed = TypeVar("Placed", NumpyFloat, Blob)


class TorchFile(Struct, frozen=True):
    """A file read: dicts, lists, tuples, located numbers, `Tensor`s; anything else is a symbol."""

    path: Path
    tree: Any
    pickle: tuple[int, int]
    """Absolute byte range of the pickle that holds the tree."""
    frames: tuple[int, ...] = ()
    directory: Directory | None = None
    """None for a file that is no zip."""
    root: str = ""
    big_endian: bool = False
    storages: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Byte range of each storage, where the file is no zip or is made of many."""
    many: bool = False
    """Made of many values, each a zip of its own (`ops.checkpoints.dcp`); there is no one `pickle`."""


def read(path: Path, size: int | None = None) -> TorchFile:
    """The tree of a torch file or pickle. StateError when it is torn, compressed, or something else.

    `size`: as if the file, a zip, ended after so many bytes.
    """
    with opened(path) as fd:
        head = read_at(fd, 0, 2)
        if head == b"PK":
            return read_zip(path, fd, 0, size)
        with mmap.mmap(fd, 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read_unzipped(path, data)
            except ValueError as error:
                if head[:1] == b"\x80":
                    raise
                raise ValueError(f"neither a torch file nor a pickle ({error})") from error


def extents(file: TorchFile, storages: Iterable[Storage]) -> dict[str, tuple[int, int]]:
    """Absolute byte range (start, end) of each storage, by its key."""
    if file.storages or file.directory is None:
        return {s.key: file.storages[s.key] for s in storages}
    records = {r.name: r for r in file.directory.records}
    found = {}
    with opened(file.path) as fd:
        for storage in storages:
            record = records.get(f"{file.root}/data/{storage.key}")
            if record is None or record.size < storage.numel * ITEMSIZE.get(storage.dtype, 1):
                raise ValueError(f"storage {storage.key} is not all there")
            start = data_at(fd, record)
            found[storage.key] = (start, start + record.size)
    return found


def structure_problems(path: Path) -> tuple[str, ...]:
    """What is wrong with the file's structure; empty when it is well formed.

    Reads a zip's directory and headers, not its data: a truncation is seen, a flipped bit in a tensor is not.
    """
    try:
        with opened(path) as fd:
            if read_at(fd, 0, 2) == b"PK":
                return shown(record_problems(fd, read_directory(fd)))
        read(path)
    except StateError as error:
        return (error.what,)
    return ()


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor to read `path`; a ValueError or OSError inside becomes a StateError naming the file."""
    try:
        with path.open("rb") as stream:
            yield stream.fileno()
    except OSError as error:
        raise StateError(f"cannot be read: {error.strerror}", str(path)) from error
    except ValueError as error:
        raise StateError(str(error), str(path), "m4ops verify-checkpoint: is the save complete?") from error


def read_zip(path: Path, fd: int, start: int = 0, size: int | None = None) -> TorchFile:
    """The torch file that takes `size` bytes from `start`, or all, of an opened file. Raises ValueError."""
    directory = read_directory(fd, start, size)
    found = [r for r in directory.records if r.name.endswith("/data.pkl") and r.name.count("/") == 1]
    if len(found) != 1:
        raise ValueError(f"a zip with {len(found)} data.pkl records: no torch file")
    if not all(r.stored for r in directory.records):
        raise ValueError("a compressed zip: torch stores its records as they are")
    if len({r.name for r in directory.records}) != len(directory.records):
        raise ValueError("a record name occurs twice in the zip")
    record, root = found[0], found[0].name.partition("/")[0]
    at = data_at(fd, record)
    walked = _walk(read_at(fd, at, record.size), 0, at)
    order = directory.named(f"{root}/byteorder")
    big = order is not None and read_at(fd, data_at(fd, order), order.size) == b"big"
    return TorchFile(path, walked.tree, (at, at + record.size), walked.frames, directory, root, big)


def _read_unzipped(path: Path, data: mmap.mmap) -> TorchFile:
    """An older torch file (magic, version, system, tree, storage keys, storages) or a plain pickle."""
    start = 0
    if legacy := data[: len(_LEGACY)] == _LEGACY:
        for _ in range(3):
            system = walk(data, start)
            start = system.end
    storages: dict[str, Storage] = {}
    walked = _walk(data, start, 0, storages)
    if not legacy:
        if walked.end != len(data):
            raise ValueError(f"a pickle of {walked.end} bytes in a file of {len(data)}")
        return TorchFile(path, walked.tree, (start, walked.end), walked.frames)
    keys = walk(data, walked.end)
    big = system.tree.get("little_endian") is False if isinstance(system.tree, dict) else False
    ranges = _legacy_storages(data, keys, storages)
    return TorchFile(path, walked.tree, (start, walked.end), walked.frames, big_endian=big, storages=ranges)


def _legacy_storages(data: mmap.mmap, keys: Walked, known: Mapping[str, Storage]) -> dict[str, tuple[int, int]]:
    """After the keys come the storages in their order, each its element count in 8 bytes and its elements."""
    found, at = {}, keys.end
    for key in keys.tree:
        numel = unpack("<q", data[at : at + 8].ljust(8, b"\0"))[0]
        start, at = at + 8, at + 8 + numel * ITEMSIZE.get(known[key].dtype if key in known else "", 1)
        if at > len(data) or key not in known or numel < known[key].numel:
            raise ValueError(f"storage {key} is not all there")
        found[str(key)] = (start, at)
    if at != len(data):
        raise ValueError(f"the storages end at byte {at}, the file at {len(data)}")
    return found


def _walk(data: bytes | mmap.mmap, at: int, base: int, storages: dict[str, Storage] | None = None) -> Walked:
    def persistent(pid: Any) -> Any:
        storage = _storage(pid)
        if isinstance(storage, Storage) and storages is not None:
            storages[storage.key] = storage
        return storage

    return walk(data, at, base=base, persistent=persistent, call=_call)


def _storage(pid: Any) -> Any:
    """`("storage", type, key, location, numel)`; unzipped files add a view, None since torch 0.4."""
    match pid:
        case ("storage", Global(name=name), str(key), _, int(numel), *view) if view in ([], [None]):
            dtype = _STORAGES.get(name.removesuffix("Storage"), name)
            return Storage(str(key), dtype, int(numel))
    return Persistent(pid)


def _call(func: Any, args: Any) -> Any:
    """The calls every torch file has, as values; any other stays a symbol."""
    if not isinstance(func, Global) or func.module not in _TRUSTED:
        return Call(func, args)
    match func.name, args:
        case (("_rebuild_tensor_v2" | "_rebuild_tensor"), (Storage() as s, int(at), tuple(shape), tuple(stride), *_)):
            return Tensor(s, int(at), shape, s.dtype, stride)
        case "OrderedDict", ():
            return {}
        case "_rebuild_tensor_v3", (Storage() as s, int(at), tuple(shape), tuple(stride), _, _, Global(name=dtype), *_):
            return Tensor(s, int(at), shape, _DTYPES.get(dtype, dtype), stride)
        case (("_rebuild_parameter" | "_rebuild_parameter_with_state"), (Tensor() as tensor, *_)):
            return tensor
        case "_rebuild_from_type_v2", (inner, _, tuple(rest), _):
            return _call(inner, rest)
        case "Size", (tuple(shape),):
            return shape
        case "encode", (Text() as text, "latin1"):
            return _placed(Blob(text.encode("latin1", "replace")), text)
        case "scalar", (Call() as dtype, Blob() | Text() as data):
            value = _numpy_float(dtype, data)
            return Call(func, args) if value is None else value
    return Call(func, args)


def _numpy_float(dtype: Call, data: Blob | Text) -> NumpyFloat | None:
    body = data.encode() if isinstance(data, Text) else data  # Python 2 wrote bytes as the strings they were
    match dtype.args, dtype.state:
        case ("f8" | "f4" as code, *_), (_, "<", *_) if len(body) == int(code[1]):
            value = NumpyFloat(unpack("<d" if code == "f8" else "<f", body)[0])
            value.dtype = "float64" if code == "f8" else "float32"
            return _placed(value, data)
    return None


def _placed(value: Placed, source: Text | Blob) -> Placed:
    value.at, value.end = source.at, source.end
    return value
