"""What an m4 checkpoint holds beside the state that a resume cannot do without: weights for evaluations, the data loaders' states.

Source: huggingface/smollm `vision/m4/training/trainer.py` (`_save`); `experiments/pretraining/vloom/common/convert-checkpoints.py`,
which sets a marker while it writes the weights, and takes one older than two hours for a crash's remains.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from ops.checkpoints import about, verify
from ops.checkpoints.folders import names
from ops.checkpoints.verify import Fault
from ops.model import M4, Checkpoint

WEIGHTS, LOADERS = "unwrapped_model", "resumable_states"
MARKER = "started-convert-checkpoint"
STALE = 2 * 3600.0
"""Seconds after which the marker of somebody else means nothing."""
_FOLDERS = (LOADERS, WEIGHTS, "unwrapped_adapter", "tokenizer")


def files(checkpoint: Checkpoint) -> tuple[Path, ...]:
    """Those whose bytes can be checked; none of weights that are just being written."""
    return tuple(p for folder in _folders(checkpoint) for p in sorted(folder.rglob("*")) if p.suffix in verify.SUFFIXES)


def faults(checkpoint: Checkpoint) -> tuple[Fault, ...]:
    """What is wrong with the structure of these files, and with small texts beside them. No tensor is read."""
    found = [Fault(WEIGHTS, "is being written by a conversion: not looked at", False)] if _converted(checkpoint) else []
    for path in files(checkpoint):
        found += [Fault(_name(checkpoint, path), what) for what in verify.structure(path)]
    for folder in _folders(checkpoint):
        found += [*verify.indexes(checkpoint.path, folder), *_texts(checkpoint, folder)]
    found += _loaders(checkpoint)
    return tuple(replace(fault, resumed=False) for fault in found)


def _folders(checkpoint: Checkpoint) -> list[Path]:
    if checkpoint.layout != M4.name:
        return []
    skipped = WEIGHTS if _converted(checkpoint) else ""
    return [path for name in _FOLDERS if name != skipped and (path := checkpoint.path / name).is_dir()]


def _converted(checkpoint: Checkpoint) -> bool:
    """Whether somebody is writing the weights."""
    marker = checkpoint.path / WEIGHTS / MARKER
    try:
        return checkpoint.layout == M4.name and time.time() - marker.stat().st_mtime < STALE
    except OSError:
        return False


def _loaders(checkpoint: Checkpoint) -> Iterator[Fault]:
    """A state for each process that has a random state."""
    if checkpoint.layout == M4.name and (checkpoint.path / LOADERS).is_dir():
        states = names(about.state_folder(checkpoint.path))
        processes = {int(m[1]) for n in states if (m := re.fullmatch(r"random_states_(\d+)\.pkl", n))}
        have = {int(found[-1]) for n in names(checkpoint.path / LOADERS) if (found := re.findall(r"\d+", n))}
        if missing := sorted(processes - have):
            yield Fault(LOADERS, f"holds none of process {', '.join(map(str, missing[:8]))}", False)
        if processes and have and (missing := sorted(have - processes)):
            what = f"random state of process {', '.join(map(str, missing[:8]))}: missing, and {LOADERS}/ has one of it"
            yield Fault("", what, False)


def _texts(checkpoint: Checkpoint, folder: Path) -> Iterator[Fault]:
    for path in sorted(folder.rglob("*.json")):
        try:
            json.loads(path.read_bytes())
        except OSError as error:
            yield Fault(_name(checkpoint, path), f"cannot be read: {error.strerror}")
        except (ValueError, RecursionError) as error:
            yield Fault(_name(checkpoint, path), f"is torn: {error}")


def _name(checkpoint: Checkpoint, path: Path) -> str:
    return path.relative_to(checkpoint.path).as_posix()
