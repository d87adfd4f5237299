"""Looks at checkpoints that are remembered: one whose files are still the same need not be looked at again."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace

from ops import state
from ops.checkpoints import layouts
from ops.checkpoints.folders import modified
from ops.errors import Busy, OpsError
from ops.model import Checked, Checkpoint, Run, Snapshot, Unknown

if TYPE_CHECKING:
    from ops.checkpoints.verify import Fault

FILE = "looks.json"
SETTLED = 120.0
"""Seconds without a write after which a file is no more being written."""
_MOST = 8
"""Checkpoints looked at in search of a sound one."""


def seen(run: Run, checkpoints: Sequence[Checkpoint], steps: frozenset[int], now: float) -> tuple[Checkpoint, ...]:
    """The checkpoints with what is known of them: those of `steps` are looked at, unless they are known already."""
    looks = _Looks(run, now)
    found = [looks.at(c, partial(_faults, c) if c.step in steps else None) for c in checkpoints]
    looks.keep(checkpoints)
    known = ((c, c.checked.faults if c.checked else ()) for c in found)
    return tuple(replace(c, problems=tuple(dict.fromkeys((*c.problems, *faults)))) for c, faults in known)


def resumed_next(picture: Snapshot) -> Snapshot:
    """The picture with the checkpoint that a resume takes looked at, unless it is known already.

    Where that one is damaged, those before it are looked at too, until one is sound: that is where to go back to.
    """
    pointer, found = picture.pointer, picture.checkpoints
    if not pointer or pointer.problem or pointer.step is None or not found:
        return picture
    before = sorted((c for c in found if c.complete and c.step <= pointer.step), key=lambda c: c.step, reverse=True)
    looked: dict[int, Checkpoint] = {}
    looks = _Looks(picture.run, picture.now)
    for checkpoint in before[:_MOST] if before and before[0].step == pointer.step else ():
        known = looks.at(checkpoint, partial(_looked_into, picture, checkpoint))
        looked[checkpoint.step] = known
        if known.sound:
            break
    looks.keep(found)
    return replace(picture, checkpoints=tuple(looked.get(c.step, c) for c in found))


class _Looks:
    """What is remembered of a run's checkpoints, and what there is new to be remembered."""

    def __init__(self, run: Run, now: float) -> None:
        self.place, self.now = _place(run), now
        self.memory = dict(state.kept(self.place, FILE) or state.kept(state.aside(run), FILE))
        self.fresh: dict[str, Any] = {}

    def at(self, checkpoint: Checkpoint, look: Callable[[], Sequence[Fault] | Unknown] | None) -> Checkpoint:
        """The checkpoint with what is known of it; `look` finds its faults where they are not remembered."""
        remembered = self.memory.get(checkpoint.name)
        if remembered is None and look is None:
            return checkpoint
        mark = _mark(checkpoint)
        known: Checked | Unknown | None = _known(remembered, mark)
        if known is None and look:
            found = look()
            known = found if isinstance(found, Unknown) else _checked(found, self.now, False)
            if isinstance(known, Checked):
                self.fresh[checkpoint.name] = {"mark": mark, **to_builtins(known)}
        return replace(checkpoint, checked=known)

    def keep(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Remember what is new, and nothing of checkpoints that are gone."""
        if self.fresh:
            kept = {c.name: self.memory[c.name] for c in checkpoints if c.name in self.memory}
            _keep(self.place, {**kept, **self.fresh})


def _place(run: Run) -> Run:
    """Where looks are remembered: with the run where m4ops keeps its notes there, which a mere look does not begin."""
    return run if state.folder(run).is_dir() else state.aside(run)


def _faults(checkpoint: Checkpoint) -> Sequence[Fault]:
    from ops.checkpoints import verify

    return verify.faults(checkpoint)


def _looked_into(picture: Snapshot, checkpoint: Checkpoint) -> Sequence[Fault] | Unknown:
    """Its faults; unknown while it may still be being saved, or while files are closed to this user."""
    files = [path for part in checkpoint.parts for path in _walk(str(part))]
    if closed := [path for path in files if not os.access(path, os.R_OK)]:
        return Unknown(f"{os.path.relpath(closed[0], checkpoint.home)} is closed to this user")
    marked = isinstance(picture.pointer, Unknown) or picture.pointer.rule == "named"
    running = any(job.running for job in picture.jobs) if picture.jobs else isinstance(picture.jobs, Unknown)
    if not marked and running and picture.now - max((modified(Path(f)) or 0.0 for f in files), default=0.0) < SETTLED:
        return Unknown("it is being saved, or was just now")
    try:
        found = layouts.read(picture.run, frozenset({checkpoint.step}))
        if isinstance(found, Unknown):
            return found
        return next((_faults(c) for c in found if c.step == checkpoint.step), Unknown("it is gone"))
    except (OSError, OpsError) as error:
        return Unknown(f"it could not be looked at: {error}")


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
    from ops.checkpoints import verify

    sure, doubts = ([f for f in faults if (f.sure and f.resumed) is wanted] for wanted in (True, False))
    return Checked(now, deep, verify.told(sure), verify.told(doubts))


def _known(kept: Any, mark: str) -> Checked | None:
    """What is remembered, if it is of these files."""
    if not isinstance(kept, dict) or not mark or kept.get("mark") != mark:
        return None
    faults, doubts = (tuple(map(str, kept.get(key) or ())) for key in ("faults", "doubts"))
    return Checked(float(kept.get("time") or 0), bool(kept.get("deep")), faults, doubts)


def _mark(checkpoint: Checkpoint) -> str:
    """What tells these files from others, as far as the file system says: names, sizes, times, inodes."""
    import hashlib

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
