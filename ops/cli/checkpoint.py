"""The Look commands that open one checkpoint's files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import to_builtins
from msgspec.structs import replace

from ops.cli import elsewhere, session
from ops.cli.elsewhere import Where
from ops.cli.session import json_option
from ops.errors import BadInput, Busy, OpsError
from ops.model import Checkpoint, Run, Severity, Unknown

if TYPE_CHECKING:
    from ops.checkpoints.verify import Fault

NEWEST = 3
"""Checkpoints looked at when none is named, besides the one a resume takes."""
MEMORY = "verified.json"
RANDOM = ("random_states", "rng_state", "training_args")
"""Files whose numbers are no weights: any of them may be NaN."""


@click.command()
@click.argument("step", type=int, required=False)
@json_option
@click.pass_context
def inspect(ctx: click.Context, step: int | None, as_json: bool) -> None:
    """What one checkpoint holds: LR, step, scheduler, optimizer, ranks, dtypes, sizes.

    Without STEP: the one a resume takes. Nothing is loaded and no pickle is run, so it takes as long for a terabyte.
    """
    from ops.checkpoints.about import about
    from ops.views import checkpoint as views
    from ops.views import data

    run, _ = session.find(ctx)
    found = about(_chosen(run, [step] if step is not None else [])[0])
    if as_json:
        return session.out(data.dumps(views.about_json(found)))
    session.out(views.about_text(found, session.color(), session.width()))


@click.command("verify-checkpoint")
@click.argument("words", nargs=-1, metavar="[STEP]…")
@click.option("--deep", is_flag=True, help="Read every byte: checksums, NaN and Inf. What was read is remembered.")
@json_option
@elsewhere.options
@click.pass_context
def verify_checkpoint(ctx: click.Context, words: tuple[str, ...], deep: bool, as_json: bool, where: Where) -> None:
    """Is a checkpoint whole: files, ranks, agreement; --deep: every byte.

    Without STEP: the one a resume takes and the newest three. Exit 0: sound, 1: suspect, 2: damaged, 3: UNKNOWN.
    """
    from ops import checked as remembered
    from ops.views import checkpoint as views
    from ops.views import data

    run, config = session.find(ctx)
    steps, flags = elsewhere.parted(words, where)
    if wrong := [step for step in steps if not step.isdigit()]:
        raise BadInput(f"{wrong[0]}: not a step", str(run.dir), "m4ops checkpoints lists them")
    chosen = _chosen(run, [int(step) for step in steps], several=True)
    if where.elsewhere:
        from ops.work import Task

        more = elsewhere.given(ctx, ("words",))
        tasks = [Task(c.path.name, ("--run", str(run.dir), "verify-checkpoint", str(c.step), *more)) for c in chosen]
        return elsewhere.end(elsewhere.sent(ctx, run, config, tasks, (where, flags)))
    chosen, checked = looked_at(run, chosen)
    if deep:
        read = read_all(run, chosen)
        checked = {path: (*faults, *(f for f in read[path] if f not in faults)) for path, faults in checked.items()}
    looks = {c: checked[c.path] for c in chosen}
    if problem := remembered.note(run, looks, time.time(), deep):
        session.say(f"what was seen is not remembered: {problem}")
    if as_json:
        session.out(data.dumps(views.faults_json(checked, deep)))
    else:
        session.out(views.faults_text(checked, deep, session.color(), session.width()))
    sys.exit(int(max((views.severity(f) for f in checked.values()), default=Severity.UNKNOWN)))


def _chosen(run: Run, steps: list[int], several: bool = False) -> list[Checkpoint]:
    """The checkpoints meant. Raises BadInput for a step that is not there, OpsError where there is none."""
    from ops.checkpoints import layouts

    found = _read(run)
    if not found:
        raise OpsError("there is no checkpoint", f"no {run.layout.pattern} in {layouts.home(run)}", "m4ops status")
    if not steps:
        pointer = layouts.pointer(run)
        pointed = pointer.step if pointer else None
        steps = [pointed] if pointed is not None and any(c.step == pointed for c in found) else [found[-1].step]
        steps += [c.step for c in found[-NEWEST:] if c.step not in steps] if several else []
    by_step = {c.step: c for c in found}
    if missing := [s for s in steps if s not in by_step]:
        near = sorted(by_step, key=lambda s: abs(s - missing[0]))[:4]
        raise BadInput(
            f"there is no checkpoint of step {missing[0]}; the nearest: {', '.join(map(str, sorted(near)))}",
            str(run.dir),
            "m4ops checkpoints lists them",
        )
    return [by_step[s] for s in sorted(set(steps))]


def looked_at(run: Run, chosen: Sequence[Checkpoint]) -> tuple[list[Checkpoint], dict[Path, Sequence[Fault]]]:
    """The checkpoints, looked into, and all that is wrong with each but for its tensors. Raises OpsError."""
    from ops.checkpoints import beside, siblings, verify

    every, found = _read(run), _read(run, frozenset(c.step for c in chosen))
    told: dict[Path, Sequence[Fault]] = {}
    for checkpoint in found:
        own = (*verify.faults(checkpoint), *beside.faults(checkpoint))
        told[checkpoint.path] = (*own, *siblings.faults(checkpoint, every, own))
    return list(found), told


def _read(run: Run, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...]:
    """The run's checkpoints; or `only` these, looked into. Raises OpsError."""
    from ops.checkpoints import layouts

    found = layouts.read(run, only)
    if isinstance(found, Unknown):
        raise OpsError(f"the checkpoints are UNKNOWN: {found.reason}", str(run.dir))
    return found


# -- every byte, once ------------------------------------------------------------------------------------


def read_all(
    run: Run, chosen: Sequence[Checkpoint], alive: Callable[[], None] = lambda: None
) -> dict[Path, list[Fault]]:
    """The faults in the content of every file, from memory where it has been read and is still the same.

    `alive` is called from time to time.
    """
    from ops import state
    from ops.checkpoints import beside, deep, verify
    from ops.checkpoints.verify import Fault

    memory = dict(state.kept(run, MEMORY))
    found: dict[Path, list[Fault]] = {c.path: [] for c in chosen}
    apart = {p for c in chosen for p in beside.files(c)}
    others = {p for c in chosen for p in verify.unneeded(c, verify.state_files(c))}
    files = [(c, p) for c in chosen for p in (*verify.state_files(c), *beside.files(c)) if not verify.structure(p)]
    unread = {p for _, p in files if not _same(p, memory.get(_key(run, p)))}
    try:
        with _progress(deep.size_of(tuple(unread))) as told:
            for checkpoint, path in files:
                key, name = _key(run, path), path.relative_to(checkpoint.home).as_posix()
                alive()
                if path in unread:
                    mark = _mark(path)
                    numbers = not path.name.startswith(RANDOM) and path.parent.name != beside.LOADERS
                    read = deep.faults(path, name, numbers, told)
                    memory[key] = {**mark, "time": time.time(), "faults": to_builtins(read)}
                for fault in (Fault(**known) for known in memory[key]["faults"]):
                    found[checkpoint.path].append(
                        replace(fault, sure=fault.sure and path not in others, resumed=path not in apart)
                    )
    finally:
        _remember(run, {k: v for k, v in memory.items() if (run.dir / k).exists()})
    return found


def soundness(run: Run, checkpoints: Sequence[Checkpoint]) -> dict[Path, bool]:
    """Of each checkpoint whose content was verified, and is the same still: whether it was sound."""
    from ops import state
    from ops.checkpoints import verify

    memory = state.kept(run, MEMORY)
    known = {str(parent) for key in memory for parent in (Path(key), *Path(key).parents)}
    found = {}
    for checkpoint in (c for c in checkpoints if _key(run, c.path) in known):
        every = verify.state_files(checkpoint)
        files = set(every) - verify.unneeded(checkpoint, every)
        read = [memory[_key(run, p)] for p in files if _same(p, memory.get(_key(run, p)))]
        if any(fault.get("sure") for entry in read for fault in entry["faults"]):
            found[checkpoint.path] = False
        elif files and len(read) == len(files):
            found[checkpoint.path] = True
    return found


def _remember(run: Run, memory: Mapping[str, Any]) -> None:
    """Keep what was read; without it the next look reads again, so a failure is only said."""
    from ops import state

    try:
        with state.lease(run, "verify", 60):
            state.keep(run, MEMORY, memory)
    except (Busy, OpsError) as error:
        session.say(f"what was read is not remembered: {error.what}")


def _key(run: Run, path: Path) -> str:
    return path.relative_to(run.dir).as_posix()


def _mark(path: Path) -> dict[str, Any]:
    """What tells this content of the file from another, as far as the file system and its last bytes say."""
    from ops.checkpoints import states

    info = path.stat()
    return {"inode": info.st_ino, "modified": info.st_mtime_ns, "fingerprint": states.fingerprint(path)}


def _same(path: Path, known: Any) -> bool:
    return isinstance(known, dict) and all(known.get(key) == value for key, value in _mark(path).items())


class _progress:
    """A bar on a terminal, nothing elsewhere; called with bytes as they are read, from any thread."""

    def __init__(self, total: int) -> None:
        self.bar = click.progressbar(length=total, label="reading", file=sys.stderr) if sys.stderr.isatty() else None

    def __enter__(self) -> Callable[[int], object]:
        return self.bar.__enter__().update if self.bar else lambda _: None

    def __exit__(self, *what: Any) -> None:
        if self.bar:
            self.bar.__exit__(*what)
