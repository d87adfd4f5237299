"""torch's distributed checkpoints (DCP): `.metadata` says which value lies in which bytes of which `.distcp` file.

Each value, also each number, is a torch file of its own inside its `.distcp` file. Here all that lie in one file are read
as one tree with one directory of records, so that whatever reads and patches a torch file does the same with them.
Source: pytorch `torch/distributed/checkpoint/metadata.py`, `filesystem.py`, `_nested_dict.py`.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ops.checkpoints.symbols import Call
from ops.checkpoints.torchfile import StateError, Storage, Tensor, TorchFile, extents, opened, read_zip
from ops.checkpoints.torchfile import read as read_torch
from ops.checkpoints.torchzip import Directory, Record
from ops.errors import OpsError

METADATA = ".metadata"
"""Written last: a folder without it is no checkpoint."""
Path_ = tuple[str | int, ...]


class Item(Struct, frozen=True):
    """One value: its place in the state dict, and which bytes of which file of the folder hold it."""

    path: Path_
    file: str
    at: int
    size: int


def items(folder: Path) -> tuple[Item, ...]:
    """Every value of the checkpoint in a folder. StateError when its `.metadata` is missing or damaged."""
    return _items(*_metadata(folder))


def _metadata(folder: Path) -> tuple[Path, tuple[int, int, int]]:
    """The file, and what tells one content of it from another."""
    file = folder / METADATA
    try:
        info = file.stat()
    except OSError as error:
        raise StateError(f"cannot be read: {error.strerror}", str(file)) from error
    return file, (info.st_ino, info.st_size, info.st_mtime_ns)


def mentions(folder: Path, key: str) -> bool:
    """Whether the `.metadata` of a folder has this text, without reading what it says; False where it cannot be read."""
    try:
        with (folder / METADATA).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return data.find(key.encode()) >= 0
    except (OSError, ValueError):
        return False


def flattened(folder: Path) -> bool:
    """Whether the optimizer's groups were taken apart, so that each parameter has its own LR.

    Source: pytorch `torch/distributed/checkpoint/state_dict.py` (`_unflatten_optim_state_dict`), `flatten_optimizer_state_dict`.
    """
    pairs = (pair for item in items(folder) for pair in zip(item.path, item.path[1:], strict=False))
    return any(key == "param_groups" and isinstance(group, str) for key, group in pairs)


def state_files(folder: Path) -> tuple[Path, ...]:
    """The files that the `.metadata` names. StateError when it cannot be read."""
    return tuple(folder / name for name in sorted({item.file for item in items(folder)}))


def problems(folder: Path) -> list[str]:
    """Values that do not lie whole in the files that the `.metadata` says, or of which it does not say where they lie."""
    found = [f"{file.name}: {problem}" for file in state_files(folder) for problem in structure_problems(file)]
    said = fields(folder)
    described = said.get("state_dict_metadata")
    if isinstance(described, dict):
        stored = {
            str(i.state["fqn"]) for i in said["storage_data"] if isinstance(i, Call) and isinstance(i.state, dict)
        }
        wanted = {str(name) for name, about in described.items() if not _empty(about)}
        if lost := sorted((wanted - stored) | (stored - {str(name) for name in described})):
            found.append(f"{METADATA} speaks of {lost[0]} in one place alone")
    return found


def _empty(about: Any) -> bool:
    """Whether a tensor has no element, or no part: nothing of it is stored."""
    said = about.state if isinstance(about, Call) and isinstance(about.state, dict) else {}
    size = said.get("size")
    return isinstance(size, tuple) and (not said.get("chunks") or 0 in size)


def save_problems(folder: Path, deep: bool) -> list[str]:
    """What a resume from a whole distributed checkpoint would miss; looked into `deep`, also what `problems` tells."""
    if not (folder / METADATA).is_file():
        return [f"{METADATA} is missing: it is written last, so the save did not end"]
    if not deep:
        return []
    try:
        return problems(folder)
    except OpsError as error:
        return [error.what]


def fields(folder: Path) -> dict[Any, Any]:
    """What the `.metadata` of a folder says, by name; `storage_data` is there. StateError when it is missing or damaged."""
    metadata = read_torch(folder / METADATA).tree
    said = metadata.state if isinstance(metadata, Call) else None
    if not isinstance(said, dict) or not isinstance(said.get("storage_data"), dict):
        raise StateError("no metadata of a distributed checkpoint", str(folder / METADATA))
    return said


@lru_cache(maxsize=8)
def _items(file: Path, version: tuple[int, int, int]) -> tuple[Item, ...]:
    said = fields(file.parent)
    paths = said.get("planner_data") or {}
    found: list[Item] = []
    for index, info in said["storage_data"].items():
        match index, info:
            case (
                Call(state={"fqn": str(name)}),
                Call(state={"relative_path": str(where), "offset": int(at), "length": int(size)}),
            ):
                found.append(Item(_path(name, paths.get(name)), str(where), int(at), int(size)))
            case _:
                raise StateError("its storage_data is of a form m4ops does not know", str(file))
    return tuple(found)


def read(path: Path) -> TorchFile:
    """All values that lie in one `.distcp` file as one tree. StateError when one is damaged."""
    mine = [item for item in items(path.parent) if item.file == path.name]
    tree: dict[Any, Any] = {}
    records: list[Record] = []
    storages: dict[str, tuple[int, int]] = {}
    with opened(path) as fd:
        for number, item in enumerate(sorted(mine, key=lambda item: item.at)):
            value = read_zip(path, fd, item.at, item.size)
            records += value.directory.records if value.directory else ()
            node, kept = _own(value.tree, f"{number}:")
            storages |= {f"{number}:{key}": place for key, place in extents(value, kept).items()}
            _put(tree, item.path, node)
    for place, key in _shared_out(*_metadata(path.parent)):
        _know(tree, place, key)
    end = max((item.at + item.size for item in mine), default=0)
    whole = Directory(tuple(records), end, end, None, end)
    return TorchFile(path, _lists(tree), (end, end), directory=whole, storages=storages, many=True)


def structure_problems(path: Path) -> Iterator[str]:
    """What is wrong between the `.metadata` and the file: a value that does not lie in it whole."""
    if not path.is_file():
        yield f"missing, though the {METADATA} names it"
        return
    size = path.stat().st_size
    for item in items(path.parent):
        if item.file == path.name and item.at + item.size > size:
            yield f"cut off: {'.'.join(map(str, item.path))} ends at byte {item.at + item.size}, the file at {size}"
            return


_FLAT = re.compile(r"(?P<what>param_groups|state)\.(?P<name>.+)\.(?P<field>[^.]+)")


def _path(name: str, said: Any) -> Path_:
    """The place of a value. A flattened optimizer state (`param_groups.layers.0.weight.lr`) is taken apart again."""
    keys = [int(key) if isinstance(key, int) else str(key) for key in said] if said else [name]
    last = str(keys[-1])
    prefix, _, rest = last.partition(".")
    if not said and prefix in ("optimizer", "optim", "model", "lr_scheduler", "train_state"):
        keys, last = [prefix, rest], rest
    if match := _FLAT.fullmatch(last):
        keys[-1:] = [match["what"], match["name"], match["field"]]
    return tuple(keys)


def _put(tree: dict[Any, Any], path: Path_, value: Any) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    tree[path[-1]] = value


@lru_cache(maxsize=8)
def _shared_out(file: Path, version: tuple[int, int, int]) -> tuple[tuple[Path_, str | int], ...]:
    """An optimizer's groups and a scheduler's numbers, which the ranks share out among their files: where, and which.

    Source: pytorch `torch/distributed/checkpoint/_dedup_save_plans.py`.
    """
    found: dict[tuple[Path_, str | int], None] = {}
    for path in (item.path for item in _items(file, version)):
        if "param_groups" in path[:-1]:
            at = path.index("param_groups")
            found[path[:at], path[at + 1]] = None
        elif "scheduler" in str(path[-2:-1]):
            found[path[:-1], path[-1]] = None
    return tuple(found)


def _know(tree: dict[Any, Any], place: Path_, key: str | int) -> None:
    """A file with a part of an optimizer or a scheduler has the others' groups and numbers too, empty."""
    for name in place:
        inside = tree.get(name)
        if not isinstance(inside, dict):
            return
        tree = inside
    if place and "scheduler" in str(place[-1]):
        tree.setdefault(key, None)
    elif place:
        groups = tree.setdefault("param_groups", {})
        if isinstance(key, int):
            groups.setdefault(key, {})


def _lists(tree: Any) -> Any:
    """`param_groups` as the list it was; one that lies in another file is an empty group."""
    if not isinstance(tree, dict):
        return tree
    made = {key: _lists(value) for key, value in tree.items()}
    groups = made.get("param_groups")
    if isinstance(groups, dict):
        numbered = all(isinstance(key, int) for key in groups)
        many = range(max(groups, default=-1) + 1) if numbered else list(groups)
        made["param_groups"] = [groups.get(key, {}) for key in many]
    return made


def _own(value: Any, prefix: str) -> tuple[Any, list[Storage]]:
    """A value with its storages named apart from those of other values, and those storages as they were named."""
    match value:
        case Tensor(storage=Storage() as storage):
            return replace(value, storage=replace(storage, key=prefix + storage.key)), [storage]
        case dict():
            inside = [_own(inner, prefix) for inner in value.values()]
            return dict(zip(value, (node for node, _ in inside), strict=True)), [s for _, kept in inside for s in kept]
        case list() | tuple():
            inside = [_own(inner, prefix) for inner in value]
            return type(value)(node for node, _ in inside), [s for _, kept in inside for s in kept]
    return value, []
