"""What is wrong with a checkpoint's files, from their structure and from one another; no tensor is read.

Torch checks no checksum and DeepSpeed no shard's identity: a truncated file ends a resume, but a shard that is another
rank's, or another step's, is loaded in silence. Source: pytorch `torch/serialization.py`; DeepSpeed
`runtime/engine.py` (`_get_zero_ckpt_name`), `runtime/zero/stage3.py` (`partition_count`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ops import schedules
from ops.checkpoints import about, accelerate_state, folders, layouts, lr, statefile
from ops.checkpoints.lr import SHARD
from ops.checkpoints.patch import crc_of_zeros
from ops.checkpoints.torchfile import ITEMSIZE, StateError, TorchFile
from ops.checkpoints.torchzip import Record
from ops.model import M4, Checkpoint, Unknown

_TORCH = (".pt", ".pkl", ".bin", ".pth", ".ckpt", ".distcp")
SUFFIXES = (*_TORCH, ".safetensors")
_RANDOM = re.compile(r"(?:random_states|rng_state)(?:_(\d+))?\.(?:pkl|pth)")
_PART = re.compile(r"^__(\d+)_\d+\.distcp$")
"""What one process wrote of a distributed checkpoint."""
_WITH_OTHERS = ("hf_trainer", "torchtitan", "dcp", "megatron")
"""The layouts in which a file of anybody's may lie."""
_LOADED = re.compile(
    r"(?:pytorch_|adapter_)?model|optimizer|scheduler|scaler|rng_state|random_states|training_args|common\.pt|distrib_optim"
)
_WITH_RANDOM = (M4.name, "accelerate", "hf_trainer")
"""The layouts in which every process saves one."""
_SMALLEST = 64
"""Bytes; a shorter record (a step counter) is the same on every rank."""


class Fault(Struct, frozen=True):
    """What is wrong, and in which file (relative to the checkpoint; empty: in more than one).

    Not `sure`: it can be meant, by a change or a setting that is rare. Not `resumed`: a resume does not need that file.
    """

    file: str
    what: str
    sure: bool = True
    resumed: bool = True


def faults(checkpoint: Checkpoint) -> tuple[Fault, ...]:
    """Everything that is wrong with a checkpoint that a layout found."""
    root, mine = checkpoint.home, state_files(checkpoint)
    found = [Fault("", what) for what in checkpoint.problems]
    foreign = [
        n for n in (*checkpoint.stray, *checkpoint.idle) if not any(p.startswith(n) for p in checkpoint.problems)
    ]
    found += [Fault(name, f"does not belong here: {accelerate_state.effect(name)}", False) for name in foreign]
    files: dict[Path, TorchFile] = {}
    others = unneeded(checkpoint, mine)
    for path in mine:
        wrong = structure(path)
        found += [Fault(_name(root, path), what, path not in others) for what in wrong]
        if not wrong and path.suffix in _TORCH:
            try:
                file = statefile.read(path)
            except StateError as error:
                found.append(Fault(_name(root, path), error.what, path not in others))
                continue
            if lost := _lost(file):
                found.append(Fault(_name(root, path), f"the bytes of {lost} are not all there", path not in others))
            else:
                files[path] = file
    found += [f for f in _archive_names(root, files) if f not in found]
    if not checkpoint.files:
        found += indexes(root, about.state_folder(root))
    shards = {p: f for p, f in files.items() if SHARD.fullmatch(p.name)}
    if any(SHARD.fullmatch(p.name) for p in mine):
        found += [*_census(mine, shards), *_disagreement(shards), *_latest(root)]
    if not checkpoint.files and any(file.many for file in files.values()):
        from ops.checkpoints import other_saves

        for sign in other_saves.signs(root, files):
            found.append(Fault(_name(root, sign.file) if sign.file else "", sign.what, sign.sure))
    found += [
        *_copies(root, files),
        *_steps(checkpoint, files),
        *_mixture(checkpoint, files),
        *_processes(checkpoint, shards),
    ]
    in_files = {f"{f.file}: {f.what}" for f in found if f.file}
    return tuple(dict.fromkeys(f for f in found if f.file or f.what not in in_files))


def told(faults: Iterable[Fault]) -> tuple[str, ...]:
    """The faults as lines, each with its file where it is in one."""
    return tuple(dict.fromkeys(f"{f.file}: {f.what}" if f.file else f.what for f in faults))


def state_files(checkpoint: Checkpoint) -> tuple[Path, ...]:
    """The files that a resume loads, in order of their names; strays are not among them."""
    if checkpoint.files:
        return checkpoint.files
    strays = {checkpoint.path / name for name in (*checkpoint.stray, *checkpoint.idle)}
    state = about.state_folder(checkpoint.path)
    return tuple(sorted(p for p in state.rglob("*") if p.suffix in SUFFIXES and p.is_file() and p not in strays))


def unneeded(checkpoint: Checkpoint, files: Iterable[Path]) -> frozenset[Path]:
    """Those of the files that somebody laid into the checkpoint, as its framework loads none of such a name."""
    if checkpoint.layout not in _WITH_OTHERS:
        return frozenset()
    loaded: tuple[Path, ...] = ()
    with suppress(StateError):  # told of the file itself
        loaded = layouts.state_files(checkpoint)
    names = (p for p in files if not _LOADED.match(p.name) and not SHARD.fullmatch(p.name))
    return frozenset(names) - frozenset(loaded)


def structure(path: Path) -> tuple[str, ...]:
    """What is wrong with one file's structure. A fraction of a millisecond, whatever its size."""
    if path.suffix != ".safetensors":
        return statefile.structure_problems(path)
    from ops.checkpoints import safetensors

    try:
        safetensors.read(path)
    except StateError as error:
        return (error.what,)
    return ()


def indexes(root: Path, folder: Path) -> Iterator[Fault]:
    """Weights in several files: the index says which tensor is in which. Source: transformers `modeling_utils.py`."""
    for path in sorted(folder.glob("*.index.json")):
        from ops.checkpoints import safetensors

        wanted: dict[str, set[str]] = {}
        try:
            for tensor, name in json.loads(path.read_bytes())["weight_map"].items():
                wanted.setdefault(name, set()).add(tensor)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            yield Fault(_name(root, path), f"is torn, or no index of weights ({error!r})")
            continue
        there = {name for name in wanted if (folder / name).is_file()}
        if lost := sorted(wanted.keys() - there):
            yield Fault(_name(root, path), f"names {_few(lost)}, which is not there")
        for name in sorted(name for name in there if name.endswith(".safetensors")):
            with suppress(StateError):  # told of the file itself
                if lacking := wanted[name] - {slot.name for slot in safetensors.read(folder / name)}:
                    yield Fault(_name(root, path), f"{name} does not hold {_few(sorted(lacking))}")


# -- one file and its name -------------------------------------------------------------------------------


def _lost(file: TorchFile) -> str:
    """A tensor of whose bytes its zip has no record, or too short a one."""
    if file.directory is None or file.many:
        return ""
    sizes = {record.name: record.size for record in file.directory.records}
    for label, tensor in about.tensors(file.tree):
        storage = tensor.storage
        if storage.numel and sizes.get(f"{file.root}/data/{storage.key}", -1) < storage.numel * ITEMSIZE.get(
            storage.dtype, 1
        ):
            return label.lstrip(".") or "its tensor"
    return ""


def _archive_names(root: Path, files: Mapping[Path, TorchFile]) -> Iterator[Fault]:
    """Torch names the records of a zip after the file it first wrote; `archive` where it wrote to a stream."""
    names = {p.stem for p in files}
    for path, file in files.items():
        other = file.root not in ("", "archive", path.stem)
        if other and (file.root in names or SHARD.fullmatch(f"{file.root}.pt")):
            yield Fault(
                _name(root, path), f"was saved as {file.root}{path.suffix}: another file's content under this name"
            )


def _copies(root: Path, files: Mapping[Path, TorchFile]) -> Iterator[Fault]:
    """Two shards of one state whose large records all have the same CRCs: DeepSpeed's of an optimizer, DCP's of anything."""
    seen: dict[tuple[Path, tuple[tuple[int, int], ...]], Path] = {}
    for path, file in files.items():
        shard = path.suffix == ".distcp" or (SHARD.fullmatch(path.name) and "optim" in path.name)
        if not (told := _telling(file.directory.records) if shard and file.directory else ()):
            continue
        if first := seen.get((path.parent, told)):
            yield Fault(_name(root, path), f"holds the very same tensors as {first.name}: a copy of it")
        seen.setdefault((path.parent, told), path)


def _telling(records: Iterable[Record]) -> tuple[tuple[int, int], ...]:
    """Size and CRC of the tensors by which one file is told from another: not of short ones, nor of those that are all zero."""
    large = ((r.size, r.crc) for r in records if "/data/" in r.name and r.size >= _SMALLEST)
    return tuple((size, crc) for size, crc in large if crc != crc_of_zeros(size))


# -- the files together ----------------------------------------------------------------------------------


def _census(paths: Sequence[Path], shards: Mapping[Path, TorchFile]) -> Iterator[Fault]:
    """As many shards as the ranks that the shards were saved by."""
    said = about.world(shards)
    if isinstance(said, Unknown):
        yield Fault("", f"ranks: {said.reason}")
        return
    models = [about.number_of(f.tree.get("mp_world_size")) for f in shards.values() if isinstance(f.tree, dict)]
    parallel = max((m for m in models if m is not None), default=1)
    found: dict[str, set[tuple[int, int]]] = {"optim": set(), "model": set()}
    names = [SHARD.fullmatch(p.name) for p in paths]
    matches = [m for m in names if m]
    whole = all(m["dp"] is None for m in matches if m["what"] == "model")
    for match in matches:
        found[match["what"]].add((int(match["dp"] or 0), int(match["mp"])))
    for what, have in found.items():
        data_ranks = 1 if what == "model" and whole else said
        wanted = {(dp, mp) for dp in range(data_ranks) for mp in range(parallel)}
        for word, ranks in (("missing", wanted - have), ("more than were saved", have - wanted)):
            if ranks:
                yield Fault("", f"{what} states of rank {_ranks(ranks, parallel)}: {word} ({said} ranks saved this)")
    if len({m["prefix"] for m in matches if m["what"] == "optim"}) > 1:
        yield Fault("", "optimizer shards of two precisions (bf16_, fp16_, none) lie side by side")


def _ranks(ranks: Iterable[tuple[int, int]], parallel: int) -> str:
    return ", ".join(f"{dp}" if parallel == 1 else f"{dp} (model part {mp})" for dp, mp in sorted(ranks))


def _disagreement(shards: Mapping[Path, TorchFile]) -> Iterator[Fault]:
    """What every rank must say alike: optimizer step, LR, versions, step of the engine."""
    said: dict[str, dict[str, list[str]]] = {}
    for path, file in shards.items():
        match = SHARD.fullmatch(path.name)
        rank = f"{match['dp'] or 0}" if match else path.name
        for what, value in _said(path, file):
            said.setdefault(what, {}).setdefault(value, []).append(rank)
    for what, values in said.items():
        if len(values) > 1:
            told = "; ".join(f"{value} on rank {_few(ranks)}" for value, ranks in values.items())
            yield Fault("", f"the ranks disagree about {what}: {told}")


def _said(path: Path, file: TorchFile) -> Iterator[tuple[str, str]]:
    tree = file.tree if isinstance(file.tree, dict) else {}
    kind = "optim" if "optim" in path.name else "model"
    if tree.get("ds_version") is not None:
        yield "DeepSpeed's version", str(tree["ds_version"])
    if kind == "model":
        for key in ("global_steps", "dp_world_size", "mp_world_size"):
            yield key, str(tree.get(key))
        return
    yield "the optimizer's step", ", ".join(map(str, sorted(about.optimizer_steps(file)))) or "none"
    for site in lr.sites_of(file, path.name):
        yield site.label.removeprefix("optimizer_state_dict."), f"{site.value:g}"


def _few(ranks: list[str]) -> str:
    return ", ".join(ranks[:8]) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")


def _latest(root: Path) -> Iterator[Fault]:
    """DeepSpeed's own pointer, which zero_to_fp32.py and a load without optimizer states read."""
    file = about.state_folder(root) / "latest"
    try:
        tag = file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        yield Fault(_name(root, file), f"cannot be read ({error.strerror}): zero_to_fp32.py needs it")
        return
    if not tag or not (file.parent / tag).is_dir():
        yield Fault(_name(root, file), f"names {tag or 'nothing'}, which is not there")


def _steps(checkpoint: Checkpoint, files: Mapping[Path, TorchFile]) -> Iterator[Fault]:
    """Who says that this is another step's checkpoint."""
    if layouts.words(checkpoint).counts_saves:
        return
    said: dict[str, int] = {}
    with suppress(StateError):  # told of the file itself
        said = {
            name: step for name, step in layouts.said(checkpoint) if not any(name in p for p in checkpoint.problems)
        }
    for path, file in files.items():
        iteration = file.tree.get("iteration") if isinstance(file.tree, dict) else None  # Megatron-LM's
        if isinstance(iteration, int):
            said.setdefault(_name(checkpoint.home, path), int(iteration))
    for name, step in said.items():
        if step != checkpoint.step:
            yield Fault("", f"{name} says step {step}; the checkpoint is of step {checkpoint.step}")


def _mixture(checkpoint: Checkpoint, files: Mapping[Path, TorchFile]) -> Iterator[Fault]:
    """Files of another step or half a change: what scheduler, optimizer and engine say of the same instant."""
    step = None if layouts.words(checkpoint).counts_saves else checkpoint.step
    optimizers: dict[str, float] = {}
    schedulers: dict[str, float] = {}
    for path, file in files.items():
        tree = file.tree if isinstance(file.tree, dict) else {}
        if step is not None and (count := max(about.optimizer_steps(file), default=0)) > step:
            yield Fault(path.name, f"its optimizer has made {count} steps; the checkpoint is of step {step}", False)
        engine = about.number_of(tree.get("global_steps"))
        if None not in (engine, step) and engine != step:
            yield Fault(path.name, f"DeepSpeed's global_steps is {engine}; the checkpoint is of step {step}", False)
        epoch = about.number_of(tree.get("last_epoch")) if lr.holds_scheduler(path.name) else None
        if epoch is not None and step and epoch % step:
            yield Fault(path.name, f"its scheduler stands at {epoch}; the checkpoint is of step {step}", False)
        if (
            not path.name.startswith(("optimizer", "custom_checkpoint", "scheduler"))
            and "optim_states" not in path.name
            and path.suffix != ".ckpt"
        ):
            continue
        for site in lr.sites_of(file, path.name):
            group = site.label.rpartition("[")[2].rstrip("]")
            if schedules.own(site.label).startswith("_last_lr["):
                schedulers[group] = site.value
            elif ".param_groups[" in site.label and site.label.endswith("].lr"):
                optimizers.setdefault(site.label.rpartition("[")[2].partition("]")[0], site.value)
    for group in sorted(schedulers.keys() & optimizers.keys()):
        if abs(schedulers[group] - optimizers[group]) > 1e-5 * max(schedulers[group], optimizers[group]):
            what = f"{schedulers[group]:g} in the scheduler, {optimizers[group]:g} in the optimizer"
            yield Fault("", f"the LR of group {group} is {what}: the next step runs with the latter", False)


def _processes(checkpoint: Checkpoint, shards: Mapping[Path, TorchFile]) -> Iterator[Fault]:
    """A rank's random state is restored where there is one, and nothing is said where there is none."""
    matches = (_RANDOM.fullmatch(name) for name in folders.names(about.state_folder(checkpoint.home)))
    have = {int(m[1] or 0) for m in matches if m}
    said = about.world(shards) if shards else None
    at_least = 1 if checkpoint.layout in _WITH_RANDOM and not checkpoint.problems else 0
    parts = (_PART.search(path.name) for path in state_files(checkpoint)) if have else ()
    ranks = (rank + 1 for rank in (*have, *(int(part[1]) for part in parts if part)))
    count = said if isinstance(said, int) else max(ranks, default=at_least)
    if missing := sorted(set(range(count)) - have):
        yield Fault("", f"random state of process {_few([str(m) for m in missing])}: missing", False)


def _name(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix()
