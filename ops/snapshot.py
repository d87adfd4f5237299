"""Look at everything once, and freeze it. Nothing here changes anything; a source that fails becomes Unknown."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from ops import disk, evals, journal, slurm, started
from ops.checkpoints import layouts
from ops.model import DISCARDED, LOOK, M4, Checkpoint, Job, LogView, Run, Snapshot, Unknown
from ops.shell import Shell

if TYPE_CHECKING:
    from ops.placement import NodeState

T = TypeVar("T")
BRIEF = LOOK // 8
"""How many bytes of a log's end are enough for most plans."""
NO_LOG = Unknown("no log found: neither logs/main_log.txt nor logs/*.out")


def read(run: Run, shell: Shell, now: float, log: int | None = LOOK) -> Snapshot:
    """One picture of the run, with so many bytes of its log's end, or all of it (None)."""
    queued = jobs(run, shell)
    seen = beside_log(run, now, queued)
    return replace(seen, log=_log(seen, log), nodes=_nodes(queued, shell))


def beside_log(run: Run, now: float, queued: tuple[Job, ...] | Unknown) -> Snapshot:
    """The picture of a run whose jobs are known, without its log."""
    checkpoints = _readable(lambda: layouts.read(run))
    return Snapshot(
        run=run,
        now=now,
        user=user(),
        jobs=queued,
        pointer=_readable(lambda: layouts.pointer(run)),
        checkpoints=checkpoints,
        log=Unknown("not read"),
        evals=evals.read(run.evals, run.layout),
        history=journal.history(journal.read(run.dir)),
        kill_switch_set=_switch(run),
        folders=_folders(run.dir / DISCARDED),
        trainer_config=_config(run.trainer_config, "trainer config"),
        ds_config=_config(run.ds_config, "ds_config"),
        disk=_readable(lambda: disk.read(run.dir, checkpoints)),
        started=started.read(run.dir),
    )


def _switch(run: Run) -> bool | Unknown:
    """Whether the kill switch is set. By its contract an m4 run has one, another only if m4ops.toml names it."""
    if run.kill_switch:
        return _readable(run.kill_switch.exists)
    return Unknown("no kill switch is known") if run.layout == M4 else False


def further_back(snapshot: Snapshot, size: int) -> Snapshot:
    """The snapshot with so many bytes of its log's end."""
    return replace(snapshot, log=_log(snapshot, size))


def back_to(snapshot: Snapshot, offset: int) -> Snapshot:
    """The snapshot with its log from a byte on, or from further back."""
    size = LOOK
    while isinstance(snapshot.log, LogView) and snapshot.log.begin > offset:
        size *= 8
        snapshot = further_back(snapshot, size)
    return snapshot


def inspected(snapshot: Snapshot, steps: frozenset[int], reset: bool = False) -> Snapshot:
    """The snapshot with these checkpoints looked into: every file's structure, LR fields, for a reset its moments."""
    return looked_into(snapshot, steps, lambda checkpoint: _with_states(checkpoint, reset))


def looked_into(
    snapshot: Snapshot, steps: frozenset[int], more: Callable[[Checkpoint], Checkpoint] = lambda checkpoint: checkpoint
) -> Snapshot:
    """The snapshot with what the layout tells of these checkpoints once it has opened their files, and `more` of them."""
    if not steps or isinstance(snapshot.checkpoints, Unknown):
        return snapshot
    opened = layouts.read(snapshot.run, steps)
    if isinstance(opened, Unknown):
        return replace(snapshot, checkpoints=opened)
    known = {c.step: more(c) for c in opened}
    there = (c for c in snapshot.checkpoints if c.step in known or c.step not in steps)
    return replace(snapshot, checkpoints=tuple(known.get(c.step, c) for c in there))


def _with_states(checkpoint: Checkpoint, reset: bool) -> Checkpoint:
    from ops.checkpoints import states, verify

    if checkpoint.complete:
        checkpoint = replace(checkpoint, problems=verify.told(f for f in verify.faults(checkpoint) if f.sure))
    return replace(checkpoint, states=states.read(checkpoint, reset)) if checkpoint.complete else checkpoint


def jobs(run: Run, shell: Shell) -> tuple[Job, ...] | Unknown:
    """The run's jobs, by one `squeue`."""
    return slurm.jobs_of(run, owner(run), slurm.queue(shell))


def owner(run: Run) -> str:
    """The user to whom the run's folder belongs."""
    return _name(_owner(run.dir))


def user() -> str:
    """Who we are, by uid: what the environment claims does not count."""
    return _name(os.geteuid())


@lru_cache
def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _owner(folder: Path) -> int:
    try:
        return folder.stat().st_uid
    except OSError:
        return -1


def _nodes(queued: tuple[Job, ...] | Unknown, shell: Shell) -> tuple[NodeState, ...] | Unknown:
    if not any(job.pending for job in queued or ()):
        return Unknown("not asked")
    from ops import nodes

    return nodes.for_waiting(queued, shell)


def _log(seen: Snapshot, size: int | None) -> LogView | Unknown:
    log: LogView | Unknown = NO_LOG
    if seen.run.log:
        from ops.logs import rotated

        log = rotated.read(seen.run.log, size, seen.run.progress, seen.run.earlier_logs)
        if isinstance(log, LogView) and size is not None and size < LOOK:
            return replace(log, brief=True)
    return with_kept(seen, log)


def with_kept(seen: Snapshot, log: LogView | Unknown) -> LogView | Unknown:
    """The log, with the rows that a Trainer's newest checkpoint keeps where it has none itself."""
    told = log.samples if isinstance(log, LogView) else seen.run.log
    if told or seen.run.layout.name != "hf_trainer":
        return log
    from ops.logs import kept

    return kept.shown(log, kept.read(seen.run, seen.checkpoints))


def _readable(source: Callable[[], T | Unknown]) -> T | Unknown:
    """What a source says; Unknown where part of what it looks at is closed to this user."""
    try:
        return source()
    except OSError as error:
        return Unknown(f"{error.filename}: {error.strerror}")


def _folders(base: Path) -> tuple[str, ...]:
    """`''` for `discarded/` itself, then `exp_K` and `exp_K/opt_step-N`."""
    if not os.path.isdir(base):
        return ()
    found = [p for pattern in ("*", "*/*") for p in base.glob(pattern) if os.path.isdir(p)]
    return ("", *sorted(str(p.relative_to(base)) for p in found))


def _config(path: Path | None, key: str) -> str | Unknown:
    if path is None:
        return Unknown(f"m4ops.toml names no {key}")
    try:
        return path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        return Unknown(f"{path}: {error.strerror}")
