"""The model's weights in a checkpoint: which tensor lies in which bytes of which file. Nothing is loaded.

DeepSpeed's ZeRO keeps the master weights as flat vectors in the optimizer's shards. Stages 1 and 2 cut one long vector
into as many parts as there are ranks; stage 3 cuts every parameter, each rank's part padded to the same length. Source:
DeepSpeed 0.19 `utils/zero_to_fp32.py`, whose order and choice of tensors this follows; Accelerate `checkpointing.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import product
from math import ceil, prod
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from ops.checkpoints import safetensors, sharded
from ops.checkpoints.dcp import METADATA
from ops.checkpoints.symbols import Call
from ops.checkpoints.torchfile import ITEMSIZE, StateError, Tensor, TorchFile, extents, read

FLOATS = ("float64", "float32", "float16", "bfloat16")
_OPTIM = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_MOST_RUNS = 1 << 20
"""Of a tensor that does not lie in one piece: pieces beyond this are not gathered."""


class Piece(NamedTuple):
    """A range of bytes of a file."""

    file: Path
    offset: int
    length: int


class Vector(Struct, frozen=True):
    """Elements that follow one another through one or more pieces."""

    dtype: str
    pieces: tuple[Piece, ...]

    @property
    def numel(self) -> int:
        return sum(p.length for p in self.pieces) // ITEMSIZE[self.dtype]


class Weight(Struct, frozen=True):
    """A tensor: of each vector in turn the elements `first` to `first + count`, until the shape is full."""

    name: str
    shape: tuple[int, ...]
    vectors: tuple[Vector, ...]
    first: int
    count: int

    @property
    def dtype(self) -> str:
        return self.vectors[0].dtype

    def pieces(self) -> Iterator[Piece]:
        """Its bytes, in order."""
        size = ITEMSIZE[self.dtype]
        left = prod(self.shape) * size
        for vector in self.vectors:
            skip, wanted = self.first * size, min(self.count * size, left)
            left -= wanted
            for piece in vector.pieces:
                taken = min(piece.length - skip, wanted)
                if taken > 0:
                    yield Piece(piece.file, piece.offset + skip, taken)
                    wanted -= taken
                skip = max(0, skip - piece.length)


class Weights(Struct, frozen=True):
    """All weights of a checkpoint, in the model's order."""

    kind: str
    """How they are stored: `ZeRO-3 of 8 ranks`, `safetensors`, …"""
    tensors: tuple[Weight, ...]
    tied: tuple[tuple[str, str], ...] = ()
    """Names left out because they are another tensor of the model, and that tensor's name."""
    unlisted: tuple[str, ...] = ()
    """Tensors that only the model's own state holds: DeepSpeed saves no frozen parameters at stage 1, and its
    converter leaves them out in silence."""

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that holds a part."""
        vectors = {id(v): v for t in self.tensors for v in t.vectors}
        return tuple(sorted({p.file for v in vectors.values() for p in v.pieces}))


def weights_of(checkpoint: Path) -> Weights:
    """The weights of a checkpoint: a folder, or Lightning's file.

    StateError when they are torn, not all there, or kept in another way.
    """
    if checkpoint.is_file():
        return _of_lightning(checkpoint)
    state = checkpoint / "accelerator_state"
    state = state if state.is_dir() else checkpoint
    if any((folder := state / tag).is_dir() for tag in _tags(state)):
        return _of_zero(folder)
    if found := sorted(state.glob("model*.safetensors")):
        return _of_safetensors(found)
    if found := sorted(state.glob("pytorch_model*.bin")):
        return _of_torch(found)
    places = (state, *sorted(state.glob("pytorch_model_fsdp*")))
    if sharded_in := next((f for f in places if (f / METADATA).is_file()), None):
        return _of_shards(sharded_in)
    raise StateError("no weights here", str(state), "m4ops checkpoints says what is missing")


# -- weights that lie in files of their own --------------------------------------------------------------------


def _of_safetensors(files: Sequence[Path]) -> Weights:
    found = []
    for file in files:
        for slot in safetensors.read(file):
            vector = Vector(slot.dtype, (Piece(file, slot.begin, slot.end - slot.begin),))
            found.append(Weight(slot.name, slot.shape, (vector,), 0, prod(slot.shape)))
    return Weights("safetensors", tuple(found))


def _of_torch(files: Sequence[Path]) -> Weights:
    found: list[Weight] = []
    tied: list[tuple[str, str]] = []
    for path in files:
        file = _checked(read(path))
        alone, aliases = _untied(file.tree if isinstance(file.tree, dict) else {})
        tied += aliases
        found += [_whole(name, tensor.shape, vector) for (name, tensor), vector in _with_vectors(file, alone)]
    if not found:  # FSDP's, where each rank saved what it has (accelerate `utils/fsdp_utils.py`, `use_dcp=False`)
        raise StateError("holds no whole tensor, but a rank's parts", str(files[0]), "save it once more by torch's DCP")
    return Weights("torch", tuple(found), tuple(tied))


def _of_lightning(path: Path) -> Weights:
    """The `state_dict` of a LightningModule, under the names it has there (`model.` and so on)."""
    file = _checked(read(path))
    tree = file.tree if isinstance(file.tree, dict) else {}
    if "pytorch-lightning_version" not in tree or not isinstance(tree.get("state_dict"), dict):
        raise StateError("no checkpoint of Lightning: no `state_dict` beside its version", str(path))
    alone, tied = _untied(tree["state_dict"])
    whole = (_whole(name, tensor.shape, vector) for (name, tensor), vector in _with_vectors(file, alone))
    return Weights("Lightning", tuple(whole), tuple(tied))


def _of_shards(folder: Path) -> Weights:
    """Of a distributed checkpoint."""
    found = [
        _whole(name, shape, Vector(dtype, tuple(Piece(*run) for run in runs)))
        for name, dtype, shape, runs in sharded.weights(folder)
    ]
    if not found:
        raise StateError("no weights in this distributed checkpoint", str(folder))
    return Weights("torch's distributed checkpoint", tuple(found))


def _untied(tree: Mapping[Any, Any]) -> tuple[dict[str, Tensor], list[tuple[str, str]]]:
    """Every tensor of a state dict once, and the other names of those that have several."""
    own: dict[str, Tensor] = {}
    tied = []
    first: dict[tuple[object, ...], str] = {}
    for name, tensor in ((str(k), v) for k, v in tree.items() if isinstance(v, Tensor)):
        same = first.setdefault((tensor.storage.key, tensor.offset, tensor.shape, tensor.stride), name)
        if same == name:
            own[name] = tensor
        else:
            tied.append((name, same))
    return own, tied


# -- DeepSpeed ZeRO --------------------------------------------------------------------------------------


def _tags(state: Path) -> tuple[str, ...]:
    """The folder of the shards: as `latest` names it, else as Accelerate calls it."""
    latest = state / "latest"
    return (latest.read_text(encoding="utf-8").strip(),) if latest.is_file() else ("pytorch_model",)


def _of_zero(folder: Path) -> Weights:
    shards = _shards(folder)
    stage, flats, paddings = _flats(shards)
    model = _checked(read(_model_file(folder, stage, 0)))
    tree = _dict(model, model.tree)
    if "buffer_names" not in tree or "param_shapes" not in tree:
        raise StateError("no model state of a ZeRO checkpoint", str(model.path))
    found = {w.name: w for w in _buffers(model, tree)}
    found.update((w.name, w) for w in _frozen(folder, stage, model, len(shards)))
    groups = [_shapes(model, group) for group in tree["param_shapes"]]
    trained = _cut_parameters(groups, flats, folder) if stage == 3 else _cut_vectors(groups, flats, paddings, folder)
    found.update((w.name, w) for w in trained)
    shared = _dict(model, tree.get("shared_params") or {})
    tied = {str(alias): str(name) for alias, name in shared.items() if str(name) in found}
    unlisted = _unlisted(model, tree, found.keys() | tied.keys()) if stage < 3 else ()
    tensors = (*(w for w in found.values() if w.name not in tied), *unlisted)
    ranks = "1 rank" if len(shards) == 1 else f"{len(shards)} ranks"
    return Weights(f"ZeRO-{stage} of {ranks}", tensors, tuple(tied.items()), tuple(w.name for w in unlisted))


def _shards(folder: Path) -> list[Path]:
    """Optimizer shards by rank. Raises StateError when some are missing, or for a kind of parallelism not known."""
    ranks = {}
    for path in folder.glob("*_optim_states.pt"):
        match = _OPTIM.fullmatch(path.name)
        if match is None or int(match[2]):
            raise StateError("experts or tensor parallel ranks: m4ops cannot put these weights together", str(path))
        ranks[int(match[1])] = path
    if not ranks or sorted(ranks) != list(range(len(ranks))):
        missing = sorted(set(range(max(ranks, default=0))) - ranks.keys())
        raise StateError(f"optimizer shards of ranks {missing or 'all'} are missing", str(folder))
    return [ranks[rank] for rank in sorted(ranks)]


def _flats(shards: Sequence[Path]) -> tuple[int, list[list[Vector]], Any]:
    """The ZeRO stage, each rank's flat vectors of master weights, and the paddings between parameters."""
    stages, flats, paddings = set(), [], None
    for path in shards:
        file = _checked(read(path))
        state = _dict(file, _dict(file, file.tree).get("optimizer_state_dict"))
        stage, count = _number(state.get("zero_stage")), state.get("partition_count")
        count = max(map(int, count)) if isinstance(count, list) else count
        if stage is None or count != len(shards):
            raise StateError(f"a shard of {count} ranks at ZeRO stage {stage}; {len(shards)} are there", str(path))
        groups = state.get("fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups")
        if not isinstance(groups, list | tuple) or not all(isinstance(g, Tensor) for g in groups):
            raise StateError("this shard holds no master weights", str(path))
        stages.add(stage)
        flats.append([vector for _, vector in _with_vectors(file, dict(enumerate(groups)))])
        paddings = paddings if flats[1:] else state.get("param_alignment_paddings")
    if len(stages) != 1:
        raise StateError(f"shards of several ZeRO stages: {sorted(stages)}", str(shards[0].parent))
    if len({tuple(v.dtype for v in vectors) for vectors in flats}) != 1:
        raise StateError("the ranks keep their weights in different types or groups", str(shards[0].parent))
    return stages.pop(), flats, paddings


def _number(node: Any) -> int | None:
    """An int, also as a member of an enumeration (DeepSpeed's ZeroStageEnum)."""
    node = node.args[0] if isinstance(node, Call) and node.args else node
    return int(node) if isinstance(node, int) else None


def _model_file(folder: Path, stage: int, rank: int) -> Path:
    return folder / (f"zero_pp_rank_{rank}_" * (stage == 3) + "mp_rank_00_model_states.pt")


def _buffers(file: TorchFile, tree: Mapping[str, Any]) -> Iterator[Weight]:
    names = {str(n) for n in tree["buffer_names"]}
    module = _dict(file, tree.get("module"))
    wanted = {str(k): v for k, v in module.items() if str(k) in names and isinstance(v, Tensor)}
    for (name, tensor), vector in _with_vectors(file, wanted):
        yield _whole(name, tensor.shape, vector)


def _frozen(folder: Path, stage: int, model: TorchFile, ranks: int) -> Iterator[Weight]:
    """Parameters that are not trained: whole in stages 1 and 2, cut among the ranks' model files in stage 3."""
    shapes = _shapes(model, model.tree.get("frozen_param_shapes") or {})
    if not shapes:
        return
    parts: dict[str, list[Vector]] = {name: [] for name in shapes}
    for rank in range(ranks if stage == 3 else 1):
        file = _checked(read(_model_file(folder, stage, rank))) if rank else model
        fragments = _dict(file, file.tree.get("frozen_param_fragments"))
        wanted = {name: fragments.get(name) for name in shapes}
        if not all(isinstance(t, Tensor) for t in wanted.values()):
            raise StateError("frozen parameters are not all there", str(file.path))
        for (name, _), vector in _with_vectors(file, wanted):
            parts[name].append(vector)
    for name, shape in shapes.items():
        if sum(v.numel for v in parts[name]) < prod(shape):
            raise StateError(f"of the frozen parameter {name} a part is missing", str(folder))
        yield Weight(name, shape, tuple(parts[name]), 0, parts[name][0].numel)


def _unlisted(file: TorchFile, tree: Mapping[str, Any], known: Set[str]) -> tuple[Weight, ...]:
    """Tensors of the model's own state that nothing lists, and that are no other name of one that is listed."""
    module = {str(k): v for k, v in _dict(file, tree.get("module")).items() if isinstance(v, Tensor)}
    taken = {tensor.storage.key for name, tensor in module.items() if name in known}
    wanted = {k: v for k, v in module.items() if k not in known and v.storage.key not in taken and v.numel}
    return tuple(_whole(name, tensor.shape, vector) for (name, tensor), vector in _with_vectors(file, wanted))


def _cut_parameters(
    groups: Sequence[Mapping[str, tuple[int, ...]]], flats: Sequence[Sequence[Vector]], folder: Path
) -> Iterator[Weight]:
    """Stage 3: a rank's groups are one vector, in which it has its part of every parameter."""
    vectors = tuple(_joined(groups_) for groups_ in flats)
    at = 0
    for shapes in groups:
        for name, shape in shapes.items():
            count = ceil(prod(shape) / len(vectors))
            yield Weight(name, shape, vectors, at, count)
            at += count
    if wrong := [v for v in vectors if v.numel != at]:
        raise StateError(f"{at} elements a rank by the parameters' shapes, {wrong[0].numel} in a shard", str(folder))


def _cut_vectors(
    groups: Sequence[Mapping[str, tuple[int, ...]]], flats: Sequence[Sequence[Vector]], paddings: Any, folder: Path
) -> Iterator[Weight]:
    """Stages 1 and 2: the ranks' parts of a group are one vector, in which the parameters follow one another."""
    if len(groups) != len(flats[0]):
        raise StateError(f"{len(groups)} groups of parameters, {len(flats[0])} of weights", str(folder))
    for number, shapes in enumerate(groups):
        vector = _joined([rank[number] for rank in flats])
        gaps = paddings[number] if paddings is not None else [0] * len(shapes)
        if len(gaps) != len(shapes):
            raise StateError(f"{len(shapes)} parameters in group {number}, {len(gaps)} paddings", str(folder))
        at = 0
        for (name, shape), gap in zip(shapes.items(), gaps, strict=True):
            yield Weight(name, shape, (vector,), at, prod(shape))
            at += prod(shape) + int(gap)
        step = 2 * len(flats)  # DeepSpeed pads a group so that every rank's part is aligned
        if ceil(at / step) != ceil(vector.numel / step):
            raise StateError(f"group {number}: {at} elements by the shapes, {vector.numel} in the shards", str(folder))


# -- tensors of a torch file -----------------------------------------------------------------------------


def _checked(file: TorchFile) -> TorchFile:
    if file.big_endian:
        raise StateError("written on a big-endian machine", str(file.path))
    return file


def _dict(file: TorchFile, node: Any) -> dict[Any, Any]:
    if not isinstance(node, dict):
        raise StateError("not the tree of a DeepSpeed checkpoint", str(file.path))
    return node


def _shapes(file: TorchFile, node: Any) -> dict[str, tuple[int, ...]]:
    return {str(name): tuple(map(int, shape)) for name, shape in _dict(file, node).items()}


def _with_vectors(file: TorchFile, tensors: Mapping[Any, Any]) -> Iterator[tuple[tuple[Any, Tensor], Vector]]:
    """Each named tensor with its bytes."""
    for tensor in tensors.values():
        if tensor.dtype not in safetensors.CODES:
            raise StateError(f"tensors of type {tensor.dtype} cannot be extracted", str(file.path))
    try:
        found = extents(file, {t.storage.key: t.storage for t in tensors.values()}.values())
    except ValueError as error:
        raise StateError(str(error), str(file.path), "m4ops checkpoints: is the save complete?") from error
    for name, tensor in tensors.items():
        size, (start, end) = ITEMSIZE[tensor.dtype], found[tensor.storage.key]
        runs = [(start + at * size, count * size) for at, count in _runs(file, tensor)]
        if any(at + length > end for at, length in runs):
            raise StateError(f"tensor {name} lies outside its storage", str(file.path))
        yield (name, tensor), Vector(tensor.dtype, tuple(Piece(file.path, at, length) for at, length in runs))


def _runs(file: TorchFile, tensor: Tensor) -> Iterator[tuple[int, int]]:
    """The ranges of its storage (first element, elements) that are the tensor in its logical order."""
    shape, stride = tensor.shape, tensor.stride
    inner, outer = 1, len(shape)
    while outer and (shape[outer - 1] == 1 or stride[outer - 1] == inner):
        outer -= 1
        inner *= shape[outer]
    if prod(shape[:outer]) > _MOST_RUNS:
        raise StateError(f"a tensor of shape {shape} lies in too many pieces (strides {stride})", str(file.path))
    for place in product(*map(range, shape[:outer])):
        yield tensor.offset + sum(i * s for i, s in zip(place, stride[:outer], strict=True)), inner


def _joined(vectors: Iterable[Vector]) -> Vector:
    """One after another."""
    vectors = list(vectors)
    return Vector(vectors[0].dtype, tuple(p for v in vectors for p in v.pieces if p.length))


def _whole(name: str, shape: tuple[int, ...], vector: Vector) -> Weight:
    return Weight(str(name), tuple(map(int, shape)), (vector,), 0, vector.numel)
