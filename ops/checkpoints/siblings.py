"""What the neighbours of a checkpoint tell of it: what they have and it lacks, and files that are a copy of theirs.

A file that is not there may be named nowhere, and a whole file of another step is sound in itself. All of it is told with
doubt: a training may have begun to save less.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ops.checkpoints import layouts, lr, safetensors, statefile, verify
from ops.checkpoints.patch import crc_of_zeros
from ops.checkpoints.torchfile import StateError, opened
from ops.checkpoints.torchzip import read_at
from ops.checkpoints.verify import Fault
from ops.model import Checkpoint

NEAR = 2
"""Neighbours that are asked."""
_OF_A_RANK = re.compile(r"rank[_-]?\d+|(?:random_states|rng_state|resumable_states)_\d+|__\d+_\d+\.distcp|-of-\d+")
"""Files of which there are as many as processes, or as pieces: how many is told by the files themselves."""
_STEP = re.compile(r"(?<=global_step)\d+|(?<=step=)\d+|(?<=-ba)\d+")
"""Where DeepSpeed, Lightning and Composer write the step into a name."""
_RANDOM = re.compile(r"(?:random_states|rng_state)[^/]*$")
"""They stay the same where nothing is random."""
_SAMPLES, _SAMPLE = 16, 4096
"""Pieces, and bytes of each, by which files without checksums are compared."""

Files = dict[str, Path]
Theirs = Sequence[tuple[Checkpoint, Files]]


def faults(checkpoint: Checkpoint, all_: Sequence[Checkpoint], known: Sequence[Fault]) -> tuple[Fault, ...]:
    """What a checkpoint lacks, or has from elsewhere, as its nearest complete neighbours among `all_` tell; but for
    files of which a fault is `known`."""
    others = [c for c in all_ if c.complete and c.path != checkpoint.path]
    near = sorted(others, key=lambda c: abs(c.step - checkpoint.step))[:NEAR]
    mine, theirs = _files(checkpoint), [(c, _files(c)) for c in near]
    if not theirs:
        return ()
    bad = {fault.file for fault in known if fault.file}
    found = (*_lost(mine, theirs), *_lost_tensors(mine, theirs), *_copied(checkpoint, mine, theirs))
    return tuple(fault for fault in found if fault.file not in bad)


def _files(checkpoint: Checkpoint) -> Files:
    """The files that a resume loads, by their names; the checkpoint's own step in a name is the letter N."""
    return {_STEP.sub("N", p.relative_to(checkpoint.home).as_posix()): p for p in verify.state_files(checkpoint)}


def _lost(mine: Files, theirs: Theirs) -> Iterator[Fault]:
    """Files that each neighbour has; unless there are others in their place, as after a change of the training's size."""
    if mine.keys() <= {name for _, files in theirs for name in files}:
        everywhere = set.intersection(*(set(files) for _, files in theirs))
        for name in sorted(n for n in everywhere - mine.keys() if not _OF_A_RANK.search(n)):
            yield Fault(name, f"is missing, and {_names(theirs)} it", False)


def _lost_tensors(mine: Files, theirs: Theirs) -> Iterator[Fault]:
    """Weights that each neighbour has, in whichever file."""
    with suppress(StateError):  # told of the file itself
        lost = set.intersection(*(_tensors(files) for _, files in theirs)) - _tensors(mine)
        if lost and any(path.suffix == ".safetensors" for path in mine.values()):
            more = f" (and {len(lost) - 1} more tensors)" if len(lost) > 1 else ""
            yield Fault("", f"{min(lost)}{more} is missing, and {_names(theirs)} it", False)


def _names(theirs: Theirs) -> str:
    return " and ".join(c.name for c, _ in theirs) + (" have" if len(theirs) > 1 else " has")


def _tensors(files: Files) -> set[str]:
    return {s.name for p in files.values() if p.suffix == ".safetensors" for s in safetensors.read(p)}


def _copied(checkpoint: Checkpoint, mine: Files, theirs: Theirs) -> Iterator[Fault]:
    """Files with a neighbour's content. Weights may stay the same where the LR is 0, and some of them are often frozen."""
    for other, files in theirs:
        both = sorted(name for name in mine.keys() & files.keys() if not _RANDOM.search(name))
        pairs = {name: (mine[name], files[name]) for name in both}
        changing = {name for name, path in mine.items() if _changes(checkpoint, path)}
        same = [name for name in pairs if name in changing and _same(*pairs[name], _checksums)]
        weights = [name for name in pairs if name not in changing]
        held = [name for name in weights if pairs[name][0].suffix == ".safetensors" or _checksums(pairs[name][0])]
        if held and all(_same(*pairs[name], _told_by(pairs[name][0])) for name in held) and _learns(checkpoint):
            same += held
        for file in (mine[name].relative_to(checkpoint.home).as_posix() for name in same):
            yield Fault(file, f"holds the very same tensors as that of {other.name}", False)


def _changes(checkpoint: Checkpoint, path: Path) -> bool:
    """Whether it holds an optimizer's moments or a schedule, which are others after every step."""
    whole = bool(checkpoint.files) or path.suffix == ".distcp"
    return whole or "optim" in path.as_posix() or lr.holds_scheduler(path.name)


def _learns(checkpoint: Checkpoint) -> bool:
    """Whether its LR is above 0, as far as that can be told."""
    with suppress(StateError):
        rates = [site.value for path in layouts.state_files(checkpoint) for site in lr.file_sites(path)]
        return not rates or any(rates)
    return True


def _same(one: Path, other: Path, told_by: Callable[[Path], object]) -> bool:
    with suppress(OSError, StateError):
        return one.stat().st_size == other.stat().st_size and bool(told := told_by(one)) and told == told_by(other)
    return False


def _told_by(path: Path) -> Callable[[Path], object]:
    return _sampled if path.suffix == ".safetensors" else _checksums


def _checksums(path: Path) -> tuple[tuple[int, int], ...]:
    """Of a torch file's tensors, where not all are zero; none of a file without checksums, or that is damaged.

    Of a scheduler's all that it says.
    """
    part = "/data.pkl" if lr.holds_scheduler(path.name) else "/data/"
    with suppress(StateError):
        found = statefile.read(path).directory
        told = tuple((r.size, r.crc) for r in (found.records if found else ()) if part in r.name)
        return told if any(crc != crc_of_zeros(size) for size, crc in told) else ()
    return ()


def _sampled(path: Path) -> tuple[bytes, ...]:
    """Pieces from all over the file."""
    size = os.path.getsize(path)
    with opened(path) as fd:
        starts = (size * piece // _SAMPLES for piece in range(_SAMPLES))
        return tuple(read_at(fd, at, min(_SAMPLE, size - at)) for at in starts)
