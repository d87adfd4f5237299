"""What several layouts of folders read alike."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ops.model import Checkpoint, Layout, Pointer, Sign, Unknown

_FSDP = re.compile(r"(?:optimizer|pytorch_model_fsdp)_\d+")
LOOKED_INTO = 1 << 20
"""Bytes of a state file up to which its tree is read, not its structure alone: schedulers are that small."""


def numbered(folder: Path, name: re.Pattern[str]) -> list[tuple[int, Path]] | Unknown:
    """The sub-folders of such names, by the number that is the name's first group. No folder: none."""
    try:
        with os.scandir(folder) as listing:
            found = [(m, e) for e in listing if (m := name.fullmatch(e.name)) and e.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        return Unknown(f"{folder}: {error.strerror}")
    return sorted((int(match[1]), Path(entry.path)) for match, entry in found)


def read(
    folder: Path, name: re.Pattern[str], only: frozenset[int] | None, one: Callable[[int, Path, bool], Checkpoint]
) -> tuple[Checkpoint, ...] | Unknown:
    """Every sub-folder of such a name as the checkpoint that `one` sees in it, by number; or `only` these, looked into."""
    found = numbered(folder, name)
    if isinstance(found, Unknown):
        return found
    deep = only is not None
    return tuple(one(number, path, deep) for number, path in found if only is None or number in only)


def pointer(folder: Path, layout: Layout, what: str, missing: str) -> Pointer | Unknown:
    """What the text file that `layout.chosen_by` names says: the number of one of the folder's checkpoints.

    `what` and `missing` are how a problem is told: `an iteration`, and what it means that there is no such file.
    """
    file = folder / layout.chosen_by
    try:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return Pointer("", None, missing, signs=(Sign(file, None),))
    except OSError as error:
        return Unknown(f"{file}: {error.strerror}")
    said = text.strip()
    step = int(said) if said.isdecimal() else None
    if step is None:
        problem = "empty" if not said else f"says `{said}`, which is no {what.partition(' ')[2]}"
    else:
        problem = "" if (folder / layout.called(step)).is_dir() else f"names {what} that is not there"
    return Pointer(text, step, problem, signs=(Sign(file, text),))


def names(folder: Path) -> frozenset[str]:
    """What lies in a folder; nothing where it cannot be read."""
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


def modified(path: Path) -> float | None:
    """When it was last written; None where it was removed meanwhile, by a clean-up job."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def size(path: Path) -> int:
    """Bytes of all files of a checkpoint."""
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) if path.is_dir() else path.stat().st_size


def shard_problems(folder: Path) -> list[str]:
    """DeepSpeed: as many optimizer shards as the highest rank says."""
    ranks = sorted(
        int(m.group(1))
        for n in names(folder)
        if (m := re.search(r"zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt$", n))
    )
    if not ranks:
        return [f"{folder.name} holds no optimizer shard"]
    missing = sorted(set(range(ranks[-1] + 1)) - set(ranks))
    return [f"{folder.name} lacks the shards of ranks {missing}"] if missing else []


def fsdp_problems(state: Path) -> list[str]:
    """What is not whole of FSDP's sharded state: `optimizer_N` and `pytorch_model_fsdp_N`, distributed checkpoints each.

    Source: accelerate `utils/fsdp_utils.py`; HF Trainer saves by it.
    """
    parts = sorted(p for p in state.iterdir() if _FSDP.fullmatch(p.name) and p.is_dir())
    if not parts:
        return []
    from ops.checkpoints import dcp
    from ops.errors import OpsError

    found = []
    for folder in parts:
        try:
            found += [f"{folder.name}/{p}" for p in dcp.problems(folder)]
        except OpsError as error:
            found.append(f"{folder.name}/{dcp.METADATA}: {error.what}")
    return found


def engine_scheduler(folder: Path) -> dict[Any, Any] | None:
    """The state of the LR scheduler that DeepSpeed's engine steps itself: its config names it, or the optimizer.

    None where there is none, or where its file cannot be read: a deep look says why.
    """
    from ops.checkpoints import statefile
    from ops.errors import OpsError

    for shard in sorted(folder.glob("*_model_states.pt"))[:1]:  # every rank's holds it
        try:
            tree = statefile.read(shard).tree
        except OpsError:
            return None
        state = tree.get("lr_scheduler") if isinstance(tree, dict) else None
        return state if isinstance(state, dict) else None
    return None


def state_problems(checkpoint: Path) -> list[str]:
    """What is wrong with the structure of each file from which a resume takes LR, optimizer and scheduler."""
    from ops.checkpoints import lr
    from ops.errors import OpsError

    try:
        files = lr.state_files(checkpoint)
    except OpsError as error:
        return [error.what]
    return [f"{file.relative_to(checkpoint)}: {p}" for file in files for p in file_problems(file)]


def file_problems(file: Path) -> tuple[str, ...]:
    """What keeps a state file from being loaded, or makes it dangerous to load: a pickle may call anything."""
    from ops.checkpoints import statefile
    from ops.checkpoints.symbols import Call, Global
    from ops.errors import OpsError

    if problems := statefile.structure_problems(file):
        return problems
    try:
        tree = statefile.read(file).tree if file.stat().st_size <= LOOKED_INTO else None
    except OpsError as error:
        return (error.what,)
    if isinstance(tree, Call) and isinstance(tree.func, Global):
        return (f"no state, but a pickle that calls {tree.func.module}.{tree.func.name} when it is loaded",)
    return ()
