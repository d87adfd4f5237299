"""What a checkpoint is: LR, step, scheduler, optimizer, ranks, dtypes, sizes, who wrote it. No tensor is read.

Kinds are told from the fields that each class saves. Source: pytorch `torch/optim/*.py`,
`torch/optim/lr_scheduler.py`, `torch/optim/swa_utils.py`; transformers `optimization.py`; DeepSpeed `ops/adam`,
`runtime/engine.py` (`_save_checkpoint`), `runtime/zero/stage3.py`, `stage_1_and_2.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from struct import unpack
from typing import Any

from msgspec import Struct

from ops import schedules
from ops.checkpoints import layouts, lr
from ops.checkpoints.lr import SHARD
from ops.checkpoints.statefile import read
from ops.checkpoints.symbols import Call, Int
from ops.checkpoints.torchfile import ITEMSIZE, StateError, Tensor, TorchFile, extents, opened
from ops.checkpoints.torchzip import data_at, read_at
from ops.errors import OpsError
from ops.model import Checkpoint, LrSite, Unknown

_RANK = re.compile(r"__(\d+)_\d+\.distcp")
"""A file of a distributed checkpoint is called after the rank that wrote it."""
MASTERS = ("fp32_flat_groups", "single_partition_of_fp32_groups")
_OPTIMIZERS: tuple[tuple[str, frozenset[str]], ...] = (
    ("NAdam", frozenset({"exp_avg", "exp_avg_sq", "mu_product"})),
    ("Adafactor", frozenset({"exp_avg_sq_row"})),
    ("Adamax", frozenset({"exp_avg", "exp_inf"})),
    ("Adam or AdamW", frozenset({"exp_avg", "exp_avg_sq"})),
    ("Lion", frozenset({"exp_avg"})),
    ("Adadelta", frozenset({"square_avg", "acc_delta"})),
    ("RMSprop", frozenset({"square_avg"})),
    ("SGD with momentum", frozenset({"momentum_buffer"})),
    ("Adagrad", frozenset({"sum"})),
)  # fmt: skip


class Weights(Struct, frozen=True):
    """How many elements of one dtype a part of the checkpoint holds."""

    part: str
    dtype: str
    elements: int


class About(Struct, frozen=True):
    """One checkpoint. `steps` and `sizes` are pairs of who says so, or of which file, and the number."""

    path: Path
    layout: str
    steps: tuple[tuple[str, int], ...]
    lr: tuple[LrSite, ...] | Unknown
    schedulers: tuple[str, ...]
    optimizers: tuple[str, ...]
    engine: str
    world: int | Unknown
    weights: tuple[Weights, ...]
    writers: tuple[str, ...]
    sizes: tuple[tuple[str, int], ...]
    unread: tuple[str, ...] = ()


def about(checkpoint: Checkpoint) -> About:
    """All of it, from the pickles and headers alone. StateError when there is no state at all."""
    files, unread = trees(checkpoint)
    layout, state = layouts.words(checkpoint), state_folder(checkpoint.home)
    shards = {p: f for p, f in files.items() if SHARD.fullmatch(p.name)}
    try:
        rates: tuple[LrSite, ...] | Unknown = tuple(
            s for p, f in files.items() for s in lr.sites_of(f, _name(checkpoint, p))
        )
    except OpsError as error:
        rates = Unknown(error.what)
    every = checkpoint.files or sorted(p for p in checkpoint.path.rglob("*") if p.is_file())
    return About(
        path=checkpoint.path,
        layout=layout.name,
        steps=tuple(_steps(checkpoint, files)),
        lr=rates,
        schedulers=_once(scheduler_kind(s) for p, f in files.items() for s in _top_schedulers(p, f)),
        optimizers=_once(optimizer_kind(state) for state in _optimizers(files)),
        engine=_engine(shards) or layout.framework,
        world=world(shards) if shards else _processes(state),
        weights=tuple(_weights(state, {checkpoint.path: files[checkpoint.path]} if checkpoint.files else files)),
        writers=_once(_writer(f) for f in files.values()),
        sizes=tuple((_name(checkpoint, p), p.stat().st_size) for p in every),
        unread=unread,
    )


def state_folder(checkpoint: Path) -> Path:
    """Where Accelerate's files are."""
    state = checkpoint / "accelerator_state"
    return state if state.is_dir() else checkpoint


def _name(checkpoint: Checkpoint, path: Path) -> str:
    return path.relative_to(checkpoint.home).as_posix()


def trees(checkpoint: Checkpoint) -> tuple[dict[Path, TorchFile], tuple[str, ...]]:
    """The optimizer, scheduler and shard files that can be read, and why the others cannot."""
    found, unread = {}, []
    for path in layouts.state_files(checkpoint):
        try:
            found[path] = read(path)
        except StateError as error:
            unread.append(f"{_name(checkpoint, path)}: {error.what}")
    return found, tuple(unread)


def scheduler_kind(state: Mapping[Any, Any]) -> str:
    """The class that saves such fields; with the ones inside it, where it holds others."""
    name = schedules.kind(state) or "a scheduler m4ops does not know"
    inside = state.get("_schedulers")
    if isinstance(inside, list | tuple):
        return f"{name}({', '.join(scheduler_kind(s) for s in inside if isinstance(s, dict))})"
    return name


def optimizer_kind(state: Mapping[Any, Any]) -> str:
    """The class whose state has such names."""
    groups, entries = state["param_groups"], state.get("state")
    group = groups[0] if groups and isinstance(groups[0], dict) else {}
    first = next((e for e in entries.values() if isinstance(e, dict)), {}) if isinstance(entries, dict) else {}
    name = next((n for n, names in _OPTIMIZERS if names <= first.keys()), "")
    if name == "Adam or AdamW":
        if "bias_correction" in group:
            name = "DeepSpeed's Adam"
        elif "decoupled_weight_decay" in group:
            name = "AdamW" if group["decoupled_weight_decay"] else "Adam"
        return f"{name} (amsgrad)" if group.get("amsgrad") else name
    if not name:
        return "an optimizer without moments" if not first else f"an optimizer with {', '.join(map(str, first))}"
    return name


def optimizer_steps(file: TorchFile) -> frozenset[int]:
    """The step counters in an optimizer's state and groups, each value once."""
    found: set[int] = set()
    for _, state in lr.optimizer_states(file.tree):
        entries = state.get("state")
        owners = [*entries.values()] if isinstance(entries, dict) else []
        for owner in (*owners, *state["param_groups"]):
            number = _number(file, owner.get("step")) if isinstance(owner, dict) else None
            found |= set() if number is None else {number}
    return frozenset(found)


def number_of(value: Any) -> int | None:
    """A count that DeepSpeed keeps once, or once for every parameter group."""
    values = value if isinstance(value, list | tuple) else [value]
    return max((int(v) for v in values if isinstance(v, Int)), default=None)


def world(shards: Mapping[Path, TorchFile]) -> int | Unknown:
    """How many ranks the shards say they were saved by."""
    said = {n for f in shards.values() for n in (partitions(f),) if n is not None}
    if len(said) == 1:
        return said.pop()
    return Unknown(f"the shards disagree: {sorted(said)}" if said else "no shard says how many there are")


def partitions(shard: TorchFile) -> int | None:
    """The data-parallel ranks that a shard says it is one of."""
    tree = shard.tree if isinstance(shard.tree, dict) else {}
    inner = tree.get("optimizer_state_dict")
    count = number_of(inner.get("partition_count")) if isinstance(inner, dict) else None
    return number_of(tree.get("dp_world_size")) if count is None else count


def tensors(tree: Any, label: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of a tree with its place."""
    todo, seen = [(label, tree)], set()
    while todo:
        label, node = todo.pop()
        if isinstance(node, Tensor):
            yield label, node
        elif isinstance(node, dict | list | tuple) and id(node) not in seen:
            seen.add(id(node))
            pairs = node.items() if isinstance(node, dict) else enumerate(node)
            todo += [(f"{label}.{k}" if isinstance(node, dict) else f"{label}[{k}]", v) for k, v in pairs]


# -- the parts -------------------------------------------------------------------------------------------


def _once(names: Iterator[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(n for n in names if n))


def _top_schedulers(path: Path, file: TorchFile) -> Iterator[Mapping[Any, Any]]:
    found = [s for label, s in lr.every_scheduler(path.name, file.tree) if not schedules.inner(label)]
    alone = file.tree.get("lr_scheduler") if isinstance(file.tree, dict) else None  # torchtitan's: a step, and no LR
    yield from found or ([alone] if isinstance(alone, dict) else [])


def _optimizers(files: Mapping[Path, TorchFile]) -> Iterator[Mapping[Any, Any]]:
    """The optimizers' states; one whose numbers are shared out among a distributed checkpoint's files, once."""
    shared: dict[tuple[Path, str], tuple[dict[Any, Any], dict[Any, Any]]] = {}
    for path, file in files.items():
        for label, state in lr.optimizer_states(file.tree):
            if not file.many:
                yield state
                continue
            entries, group = shared.setdefault((path.parent, label), ({}, {}))
            for parameter, entry in (state.get("state") or {}).items():
                entries.setdefault(parameter, {}).update(entry)
            for one in state["param_groups"]:
                group.update(one)
    for entries, group in shared.values():
        yield {"state": entries, "param_groups": [group]}


def _number(file: TorchFile, value: Any) -> int | None:
    if isinstance(value, Int):
        return int(value)
    if not isinstance(value, Tensor) or value.numel != 1 or value.dtype not in ("float32", "int64"):
        return None
    form, size = ("<f", 4) if value.dtype == "float32" else ("<q", 8)
    start, end = extents(file, [value.storage])[value.storage.key]
    at = start + value.offset * size
    if at + size > end:
        return None
    with opened(file.path) as fd:
        return int(unpack(form, read_at(fd, at, size))[0])


def _steps(checkpoint: Checkpoint, files: Mapping[Path, TorchFile]) -> Iterator[tuple[str, int]]:
    yield from layouts.said(checkpoint)
    rows: dict[tuple[str, int], None] = {}
    for path, file in files.items():
        for scheduler in _top_schedulers(path, file):
            if isinstance(scheduler.get("last_epoch"), Int):
                rows["the scheduler", int(scheduler["last_epoch"])] = None
        rows |= {("the optimizer", step): None for step in sorted(optimizer_steps(file))}
        tree = file.tree if isinstance(file.tree, dict) else {}
        if isinstance(tree.get("global_steps"), Int):
            rows["DeepSpeed's global_steps", int(tree["global_steps"])] = None
    yield from rows


def _engine(shards: Mapping[Path, TorchFile]) -> str:
    if not shards:
        return ""
    stages = {_stage(f) for f in shards.values()} - {None}
    return "DeepSpeed" + (f" ZeRO-{stages.pop()}" if len(stages) == 1 else "")


def _stage(shard: TorchFile) -> int | None:
    inner = shard.tree.get("optimizer_state_dict") if isinstance(shard.tree, dict) else None
    said = inner.get("zero_stage") if isinstance(inner, dict) else None
    return int(said.args[0]) if isinstance(said, Call) and said.args else number_of(said)


def _processes(state: Path) -> int | Unknown:
    count = sum(len(list(state.glob(name))) for name in ("random_states_*.pkl", "rng_state*.pth"))
    ranks = (match for path in state.glob("*.distcp") if (match := _RANK.fullmatch(path.name)))
    count = count or max((int(match[1]) + 1 for match in ranks), default=0)
    return count or Unknown("no random states to count the processes by")


def _weights(state: Path, files: Mapping[Path, TorchFile]) -> Iterator[Weights]:
    from ops.checkpoints import safetensors, sharded

    counts: dict[tuple[str, str], int] = {}

    def add(part: str, dtype: str, elements: int) -> None:
        counts[part, dtype] = counts.get((part, dtype), 0) + elements

    for path in sorted(
        (*state.glob("model*.safetensors"), *state.glob("model/**/*.safetensors"))
    ):  # nanotron's are deep
        for slot in safetensors.read(path):
            add("weights", slot.dtype, (slot.end - slot.begin) // ITEMSIZE.get(slot.dtype, 1))
    for path in sorted(state.glob("pytorch_model*.bin")) if not counts else ():  # FSDP's, whole, lie beside the former
        for _, tensor in tensors(read(path).tree):
            add("weights", tensor.dtype, tensor.numel)
    for folder in sorted(state.glob("pytorch_model_fsdp_*/")):
        for whole in sharded.weights(folder):
            add("weights", whole.dtype, prod(whole.shape))
    placeholders: set[str] = set()
    for file in files.values():
        tree = file.tree if isinstance(file.tree, dict) else {}
        inner = tree.get("optimizer_state_dict")
        held = [inner.get(key) for key in MASTERS] if isinstance(inner, dict) else []
        for _, tensor in tensors(held):
            add("master weights with padding", tensor.dtype, tensor.numel)
        for _, tensor in tensors(_model(file)):
            if tensor.numel:
                add("weights", tensor.dtype, tensor.numel)
            elif not file.many:  # there a rank's part may be empty
                placeholders.add(tensor.dtype)
    yield from (Weights(part, dtype, n) for (part, dtype), n in sorted(counts.items(), reverse=True))
    yield from (Weights("weights, placeholders only", dtype, 0) for dtype in sorted(placeholders))


def _model(file: TorchFile) -> Any:
    """The weights: DeepSpeed's `module`, Lightning's `state_dict`, Composer's `state.model`, else what is called `model`.

    In a distributed checkpoint (torchtitan's) they stand beside all else, under their own names.
    """
    tree = file.tree if isinstance(file.tree, dict) else {}
    if file.many:
        tree = {**tree, **(tree.get("app") or {})}
        return {name: value for name, value in tree.items() if isinstance(value, Tensor) or name == "model"}
    state = tree.get("state")
    inner = state.get("model") if isinstance(state, dict) else None
    return tree.get("module") or tree.get("state_dict") or inner or tree.get("model")


def _writer(file: TorchFile) -> str:
    tree = file.tree if isinstance(file.tree, dict) else {}
    if tree.get("ds_version"):
        return f"DeepSpeed {tree['ds_version']}"
    if file.directory is None:
        return "torch's older format, or a plain pickle"
    record = next((r for r in file.directory.records if r.name.endswith("/version")), None)
    with opened(file.path) as fd:
        version = read_at(fd, data_at(fd, record), record.size).decode("ascii", "replace").strip() if record else "?"
    return f"torch, zip format {version}"
