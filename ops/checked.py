"""Looks at checkpoints that are remembered: one whose files are still the same need not be looked at again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from ops import state
from ops.checkpoints import verify
from ops.checkpoints.verify import Fault
from ops.errors import Busy, OpsError
from ops.model import Checked, Checkpoint, Run

FILE = "looks.json"


def seen(run: Run, checkpoints: Sequence[Checkpoint], steps: frozenset[int], now: float) -> tuple[Checkpoint, ...]:
    """The checkpoints with what is known of them: those of `steps` are looked at, unless they are known already."""
    memory = dict(state.kept(run, FILE))
    found, fresh = [], {}
    for checkpoint in checkpoints:
        mark = _mark(checkpoint) if checkpoint.name in memory or checkpoint.step in steps else ""
        known = _known(memory.get(checkpoint.name), mark)
        if known is None and checkpoint.step in steps:
            known = _checked(verify.faults(checkpoint), now, False)
            fresh[checkpoint.name] = {"mark": mark, **to_builtins(known)}
        problems = (*checkpoint.problems, *(known.faults if known else ()))
        found.append(replace(checkpoint, checked=known, problems=tuple(dict.fromkeys(problems))))
    if fresh and state.folder(run).is_dir():
        _keep(run, {**{c.name: memory[c.name] for c in checkpoints if c.name in memory}, **fresh})
    return tuple(found)


def note(run: Run, looks: Mapping[Checkpoint, Sequence[Fault]], now: float, deep: bool) -> str:
    """Remember these looks; what kept it from that, if something did. A look at all bytes stays one."""
    memory = dict(state.kept(run, FILE))
    for checkpoint, faults in looks.items():
        mark = _mark(checkpoint)
        known = None if deep else _known(memory.get(checkpoint.name), mark)
        if known is None or not known.deep:
            memory[checkpoint.name] = {"mark": mark, **to_builtins(_checked(faults, now, deep))}
    return _keep(run, memory)


def _keep(run: Run, memory: Mapping[str, Any]) -> str:
    try:
        with state.lease(run, "looks", 60):
            state.keep(run, FILE, memory)
    except (Busy, OpsError) as error:
        return error.what
    return ""


def _checked(faults: Sequence[Fault], now: float, deep: bool) -> Checked:
    sure, doubts = ([f for f in faults if f.sure is wanted] for wanted in (True, False))
    return Checked(now, deep, verify.told(sure), verify.told(doubts))


def _known(kept: Any, mark: str) -> Checked | None:
    """What is remembered, if it is of these files."""
    if not isinstance(kept, dict) or not mark or kept.get("mark") != mark:
        return None
    faults, doubts = (tuple(map(str, kept.get(key) or ())) for key in ("faults", "doubts"))
    return Checked(float(kept.get("time") or 0), bool(kept.get("deep")), faults, doubts)


def _mark(checkpoint: Checkpoint) -> str:
    """What tells these files from others, as far as the file system says: names, sizes, times, inodes."""
    told = hashlib.sha256()
    for part in checkpoint.parts:
        for path in sorted(_walk(str(part))):
            try:
                info = os.stat(path)
            except OSError:
                continue
            told.update(
                f"{path[len(str(part)) :]}\0{info.st_size} {info.st_mtime_ns} {info.st_ino}\n".encode(
                    "utf-8", "surrogateescape"
                )
            )
    return told.hexdigest()


def _walk(path: str) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
