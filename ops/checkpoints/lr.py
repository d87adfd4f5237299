"""Every learning rate a checkpoint holds: where it stands, and which bytes say another.

Which fields act on a resumed run differs by scheduler: LambdaLR obeys `base_lrs`, StepLR only the optimizer's
`lr`, OneCycleLR the optimizer's `max_lr` and `min_lr`, CosineAnnealingLR also `eta_min`. Scaling each,
in every file and for every rank, scales the whole future curve of them all. Source: pytorch
`torch/optim/lr_scheduler.py`, `torch/optim/swa_utils.py`; transformers `optimization.py` (GreedyLR); Accelerate
`checkpointing.py`; DeepSpeed `runtime/zero/stage3.py`, `stage_1_and_2.py`.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ops.checkpoints import append
from ops.checkpoints.opcodes import FORMATS, LINES, LONGEST_LINE, encoded, opcode_end, packed, unpacked
from ops.checkpoints.patch import Splice, rebuilt_bytes, replaced, with_crc
from ops.checkpoints.statefile import read
from ops.checkpoints.symbols import Call, Float, Int
from ops.checkpoints.torchfile import (
    ITEMSIZE,
    NumpyFloat,
    StateError,
    Tensor,
    TorchFile,
    extents,
    opened,
)
from ops.checkpoints.torchzip import read_at
from ops.model import LrSite
from ops.schedules import COUNTERS, edited, inner

SCHEDULER_FIELDS = ("base_lrs", "_last_lr", "eta_min", "min_lrs", "max_lrs", "default_min_lr", "_init_lrs")
PLATEAU_FIELDS = ("eps",)
"""Of a scheduler that follows the loss: the least step of the LR it takes, itself an LR."""
MEGATRON = "opt_param_scheduler"
"""Megatron-LM's scheduler in its state."""
GROUP_FIELDS = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
_SCHEDULER_FILE = re.compile(r"custom_checkpoint_\d+\.pkl|scheduler(_\d+)?\.bin|(?:lr_)?scheduler(?:_.*)?\.pt")
_OPTIMIZER_FILE = re.compile(r"optimizer(_\d+)?(_rank\d+)?\.bin|optimizer\.pt")
SHARD = re.compile(
    r"(?:(?P<prefix>bf16_|fp16_)?zero_pp_rank_(?P<dp>\d+)_)?mp_rank_(?P<mp>\d+)_(?P<what>optim|model)_states\.pt"
)
"""A file of DeepSpeed's, by rank."""
_SCHEDULER_KEYS = ("lr_scheduler", "lr_schedulers")
_ROOT = re.compile(r"|(?:app\.)?lr_scheduler|lr_schedulers\[0\]|state\.schedulers\.\w+")
"""What the one scheduler of a file is labelled."""
_APP = "app"
"""What torch's own tutorial of distributed checkpoints puts all state under; the optimizer is `optim` there."""
_OPTIMIZER_KEYS = ("optimizer", "optimizer_state_dict", "base_optimizer_state", "optim", _APP)
Edits = Iterable[tuple[LrSite, float]]


class NotSameLength(StateError):
    """The new value needs another number of bytes than the old: `rebuilt` makes the file anew, `appended` adds to it."""


def lr_sites(checkpoint_dir: Path) -> tuple[LrSite, ...]:
    """Every LR in every state file of every rank, each place once.

    StateError when a file is torn. Of DeepSpeed's own schedulers no LR is in any of them: it comes from ds_config.
    """
    found: list[LrSite] = []
    for path in state_files(checkpoint_dir):
        found += file_sites(path, path.relative_to(checkpoint_dir).as_posix())
    return tuple(found)


def state_files(checkpoint_dir: Path) -> tuple[Path, ...]:
    """The files of `accelerator_state/` (or of the directory itself) that a resume takes its LR from.

    Names that Accelerate or DeepSpeed would not load are passed over.
    """
    state = checkpoint_dir / "accelerator_state"
    state = state if state.is_dir() else checkpoint_dir
    known = (_SCHEDULER_FILE, _OPTIMIZER_FILE)
    plain = [p for p in state.glob("*") if any(k.fullmatch(p.name) for k in known)]
    shards = [
        p
        for p in state.glob("*/*")
        if p.parent.name.startswith(("pytorch_model", "global_step")) and SHARD.fullmatch(p.name)
    ]
    for folder in state.glob("optimizer_*/"):  # FSDP's
        from ops.checkpoints import dcp

        shards += dcp.state_files(folder)
    if not plain and not shards:
        raise StateError("no optimizer or scheduler state here", str(state), "m4ops checkpoints")
    return tuple(sorted(plain, key=_natural) + sorted(shards, key=_natural))


def file_sites(path: Path, name: str = "") -> tuple[LrSite, ...]:
    """Every LR of one state file, by label; `name` is what the sites call the file."""
    return sites_of(read(path), name or path.name)


def sites_of(file: TorchFile, name: str) -> tuple[LrSite, ...]:
    """Every LR of a file that was read."""
    found: dict[int, LrSite] = {}
    try:
        for label, node in _values(file.path.name, file.tree):
            kind, offset, value = _place(file, label, node)
            found.setdefault(offset, LrSite(name, label, value, kind, offset))
    except ValueError as error:
        raise StateError(str(error), str(file.path)) from error
    return tuple(found.values())


def counters_of(file: TorchFile, name: str) -> tuple[LrSite, ...]:
    """Every number by which the schedulers of a file count their steps."""
    found = []
    for label, state in every_scheduler(file.path.name, file.tree):
        for key in COUNTERS:
            if isinstance(node := state.get(key), Int | Float):
                kind = "count" if isinstance(node, Int) else "float64"
                found.append(LrSite(name, f"{label}.{key}".lstrip("."), float(node), kind, node.at))
    return tuple(found)


def scheduler_of(file: TorchFile) -> dict[str, Any] | None:
    """The state of the one scheduler that a file holds, as plain values; None where it holds none, or several."""
    for _, state in _megatron_state(file.tree):
        megatron: dict[str, Any] = _plain(state)
        return megatron
    found = [(label, state) for label, state in schedulers(file.path.name, file.tree) if not inner(label)]
    if len(found) != 1 or not _ROOT.fullmatch(found[0][0]):
        return None
    (label, state) = found[0]
    values = [(s.label.removeprefix(f"{label}."), s.value) for s in sites_of(file, "")]
    plain: dict[str, Any] = _plain(state)
    return edited(plain, values)  # an LR that is kept as a tensor


def edit(path: Path, edits: Edits) -> tuple[Splice, ...]:
    """The bytes to change in place so that each site holds its new value: values and checksums, by offset.

    Sites are found again by their label. StateError if one no longer holds its value, or if the new one
    cannot be an LR; NotSameLength if a value does not fit where the old one stands.
    """
    file, changes = changes_of(path, edits)
    if file.many:
        return _in_their_room(file, changes)
    longer = next((c for c in changes if len(c.old) != len(c.new)), None)
    if longer:
        raise NotSameLength(
            f"the LR at byte {longer.offset} takes {len(longer.old)} bytes, the new one {len(longer.new)}",
            str(path),
            "choose a value that fits (an integer for an integer)",
        )
    return with_crc(file, changes)


def appended(path: Path, edits: Edits) -> tuple[Splice, ...]:
    """The bytes to change where a value takes another length in a large file: the last splice is appended."""
    file, changes = changes_of(path, edits)
    return append.appended(file, changes)


def cut_back(path: Path, edits: Edits) -> tuple[Splice, ...] | None:
    """What makes the edits by cutting an appended end off; None where the file has none, or not those values before."""
    size = append.undone(path)
    if size is None:
        return None
    now = read(path)
    wanted = {s.label: s.value for s in (*sites_of(now, ""), *counters_of(now, ""))}
    wanted |= {site.label: value for site, value in edits}
    before = read(path, size)
    with opened(path) as fd:
        places = ((s, wanted[s.label]) for s in (*sites_of(before, ""), *counters_of(before, "")))
        changes = [_change(fd, site, site, value) for site, value in places if value != site.value]
    if any(len(c.old) != len(c.new) for c in changes):
        return None
    return (*with_crc(before, changes), append.cut(now, size))


def rebuilt(path: Path, edits: Edits) -> bytes:
    """The whole new content of a file of at most 1 MiB; the way for values of another length.

    Rebuilding with the reverse edits (sites of the kind they had) gives the original bytes.
    """
    file, changes = changes_of(path, edits)
    if not file.many:
        return rebuilt_bytes(file, changes)
    raw = path.read_bytes()
    for splice in _in_their_room(file, changes):
        raw = replaced(raw, splice)
    return raw


def _in_their_room(file: TorchFile, changes: Iterable[Splice]) -> tuple[Splice, ...]:
    from ops.checkpoints.refit import refitted

    return refitted(file, changes)


def as_stored(kind: str, value: float) -> float:
    """`value` as a site of this kind keeps it: rounded to its type."""
    return value if kind in ("float64", "int", "count") else unpacked(kind, packed(kind, value))


def changes_of(path: Path, edits: Edits) -> tuple[TorchFile, tuple[Splice, ...]]:
    """The file, and the value bytes alone that the edits change."""
    file = read(path)
    now = {site.label: site for site in (*sites_of(file, path.name), *counters_of(file, path.name))}
    found = []
    with opened(path) as fd:
        for site, value in edits:
            if site.label not in now:
                raise ValueError(f"holds no LR {site.label}")
            splice = _change(fd, now[site.label], site, value)
            if splice.old != splice.new:
                found.append(splice)
    return file, tuple(found)


def holds_scheduler(name: str) -> bool:
    """Whether a file of that name holds a scheduler's state and nothing else."""
    return _SCHEDULER_FILE.fullmatch(name) is not None


def optimizer_states(tree: Any, label: str = "") -> Iterator[tuple[str, dict[Any, Any]]]:
    """Each optimizer state dict (it has `param_groups`) and its label, also inside DeepSpeed's wrappings."""
    if isinstance(tree, list):
        for index, one in enumerate(tree):
            yield from optimizer_states(one, f"{label}[{index}]")
    if not isinstance(tree, dict):
        return
    if isinstance(tree.get("param_groups"), list):
        yield label or "optimizer", tree
        return
    for key, one in _composer(tree, "optimizers").items():
        yield from optimizer_states(one, key)
    several = tree.get("optimizer_states")
    for index, one in enumerate(several if isinstance(several, list) else ()):  # Lightning's
        yield from optimizer_states(one, f"optimizer_states[{index}]")
    for key in _OPTIMIZER_KEYS:
        yield from optimizer_states(tree.get(key), f"{label}.{key}".lstrip("."))


# -- finding ---------------------------------------------------------------------------------------------


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]


def _values(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Label and node of every LR in the tree of a file of that name."""
    for label, state in [] if _SCHEDULER_FILE.fullmatch(name) else optimizer_states(tree):
        for index, group in enumerate(state["param_groups"]):
            _refuse_relative(name, group)
            for field in GROUP_FIELDS:
                yield from _numbers(f"{label}.param_groups[{index}].{field}", group.get(field))
    for label, state in schedulers(name, tree):
        for field in SCHEDULER_FIELDS + (PLATEAU_FIELDS if "min_lrs" in state else ()):
            yield from _numbers(f"{label}.{field}".lstrip("."), state.get(field))
    yield from _megatron(tree)


def _megatron(tree: Any) -> Iterator[tuple[str, Any]]:
    """Megatron-LM's scheduler. Source: NVIDIA/Megatron-LM `megatron/core/optimizer_param_scheduler.py`."""
    for label, state in _megatron_state(tree):
        for field in ("max_lr", "min_lr", "start_lr"):
            yield from _numbers(f"{label}.{field}", state.get(field))


def _megatron_state(tree: Any) -> tuple[tuple[str, dict[Any, Any]], ...]:
    """Its label and state, where there is one."""
    state = tree.get(MEGATRON) if isinstance(tree, dict) else None
    return ((MEGATRON, state),) if isinstance(state, dict) else ()


def _composer(tree: Any, what: str) -> dict[str, Any]:
    """Composer's states of a kind, by label. Source: mosaicml/composer `composer/core/state.py` (`state_dict`)."""
    state = tree.get("state") if isinstance(tree, dict) else None
    found = state.get(what) if isinstance(state, dict) else None
    return {f"state.{what}.{name}": one for name, one in found.items()} if isinstance(found, dict) else {}


def _refuse_relative(name: str, group: Mapping[Any, Any]) -> None:
    """Adafactor with a relative step never reads its `lr`. Source: transformers `optimization.py`, `Adafactor._get_lr`."""
    if group.get("relative_step"):
        raise StateError(
            "Adafactor with relative_step computes its own LR: no number in the checkpoint sets it",
            name,
            "give Adafactor an lr and relative_step=False in the trainer's code",
        )


def every_scheduler(name: str, tree: Any) -> Iterator[tuple[str, dict[Any, Any]]]:
    """The same, and Megatron-LM's, which is none of torch's."""
    yield from schedulers(name, tree)
    yield from _megatron_state(tree)


def schedulers(name: str, tree: Any) -> Iterator[tuple[str, dict[Any, Any]]]:
    """Label and state dict of each scheduler in a file of that name, the outer before the inner, each once."""
    todo, seen = [("", tree)], set()
    if not holds_scheduler(name):
        held = [("", tree), (f"{_APP}.", tree.get(_APP))] if isinstance(tree, dict) else []
        todo = [(at + key, node.get(key)) for at, node in held for key in _SCHEDULER_KEYS if isinstance(node, dict)]
        todo += _composer(tree, "schedulers").items()
    while todo:
        label, node = todo.pop()
        if not isinstance(node, dict | list | tuple) or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            if scheduler := _is_scheduler(node):
                yield label, node
            items = [(k, v) for k, v in node.items() if not scheduler or k == "_schedulers"]
            inside = [(f"{label}.{k}".lstrip("."), v) for k, v in items]
        else:
            inside = [(f"{label}[{i}]", v) for i, v in enumerate(node)]
        todo += reversed(inside)


def _plain(node: Any) -> Any:
    """Symbols as values: a Counter is the mapping it was called with, any other is its name."""
    match node:
        case dict():
            return {_plain(k): _plain(v) for k, v in node.items()}
        case list() | tuple():
            return [_plain(v) for v in node]
        case bool() | None:
            return node
        case int() | float():
            return int(node) if isinstance(node, int) else float(node)
        case str():
            return str(node)
        case Call(args=(dict() as inside, *_)):
            return _plain(inside)
    return repr(node)


def _is_scheduler(node: Mapping[Any, Any]) -> bool:
    return not node.keys().isdisjoint(("base_lrs", "_last_lr", "_schedulers", "last_batch_iteration")) or (
        "last_epoch" in node and "min_lrs" in node
    )


def _numbers(label: str, node: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(node, list | tuple) and depth < 4:
        for index, item in enumerate(node):
            yield from _numbers(f"{label}[{index}]", item, depth + 1)
    elif node is not None:
        yield label, node


def _place(file: TorchFile, label: str, node: Any) -> tuple[str, int, float]:
    """Kind, offset and value of one LR. The offset is the opcode's in a pickle, the value's in a tensor."""
    match node:
        case NumpyFloat():
            return f"numpy-{node.dtype}", node.at, float(node)
        case Float():
            return "float64", node.at, float(node)
        case Int():
            return "int", node.at, float(node)
        case Tensor() if node.numel == 1 and node.dtype in FORMATS and not file.big_endian:
            start, end = extents(file, [node.storage])[node.storage.key]
            offset, size = start + node.offset * ITEMSIZE[node.dtype], ITEMSIZE[node.dtype]
            if offset + size > end:
                raise ValueError(f"{label} lies outside its storage")
            with opened(file.path) as fd:
                return f"tensor-{node.dtype}", offset, unpacked(node.dtype, read_at(fd, offset, size))
    raise ValueError(f"{label} is stored in a way m4ops does not know ({type(node).__name__})")


# -- changing --------------------------------------------------------------------------------------------


def _change(fd: int, now: LrSite, site: LrSite, value: float) -> Splice:
    """Raises ValueError when the site no longer holds its value, or the new one is none."""
    for number in (site.value, value):
        if not math.isfinite(number) or (number < 0 and site.label.rpartition(".")[2] not in COUNTERS):
            raise ValueError(f"{number} is no learning rate ({site.label})")
    kind = site.kind if {site.kind, now.kind} <= {"int", "float64"} else now.kind
    old = _old_bytes(fd, now)
    if site.value != now.value and encoded(kind, site.value, old) != old:
        raise ValueError(f"{site.label} is {now.value:g}, not {site.value:g} as it was when this was planned")
    if old[:1] in LINES and encoded(now.kind, now.value, old) != old:
        raise StateError(
            f"{site.label} is written as {old[1:-1].decode()}: undo could not give these digits back",
            now.file,
            "let Python write it anew: pickle.load, then pickle.dump",
        )
    return Splice(now.offset, old, old if value == now.value else encoded(kind, value, old))


def _old_bytes(fd: int, site: LrSite) -> bytes:
    if site.kind.startswith("tensor-"):
        return read_at(fd, site.offset, ITEMSIZE[site.kind.removeprefix("tensor-")])
    return read_at(fd, site.offset, opcode_end(os.pread(fd, LONGEST_LINE, site.offset)))
