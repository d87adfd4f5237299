"""Do what is due: each step of each finished checkpoint once, whoever looks, and whatever crashed before.

A step is done by whoever holds its lease, so that two login nodes share the work; a dead holder's lease is taken over at
once. Nothing waits for a step that failed but what needs it, and that step is tried again after a pause.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from ops import extract, lease, state
from ops.checkpoints import layouts
from ops.errors import Busy, OpsError
from ops.executor.markers import FINISHED_UPLOAD
from ops.model import M4, OPS_DIR, Checkpoint, Pointer, Run, Unknown
from ops.saves import evaluations, ledger
from ops.saves.declared import Step
from ops.saves.ledger import Record

LEASE = 600.0
"""Seconds a step may be silent before somebody else takes its place."""
MOST_JOBS = 3
"""Failed jobs of one evaluation after which no further one is submitted: they cost node-hours."""
Do = Callable[[Step, Checkpoint, Callable[[], None]], str]
"""Does a step of a checkpoint, calling the last argument from time to time, and says what came of it. Raises OpsError."""
Follow = Callable[[Step, Checkpoint, Record], evaluations.Fate]


class Outcome(Struct, frozen=True):
    """How one step of one checkpoint stands.

    `word`: `done` (before), `did` (now), `due`, `runs` (a job), `busy` (somebody is at it), `waits` (for another step),
    `failed` (now or before), `unknown`.
    """

    checkpoint: Checkpoint
    step: Step
    word: str
    said: str = ""
    again: float | None = None
    """When a failed one is tried again; None: not by itself."""


class World(Struct, frozen=True):
    """What serving needs of the outside."""

    do: Mapping[str, Do]
    """By kind of step."""
    follow: Follow
    now: Callable[[], float]


def looked_after(run: Run, steps: Sequence[Step], checkpoints: Sequence[Checkpoint]) -> tuple[Checkpoint, ...]:
    """The finished checkpoints that are looked after, newest first: those saved since that began, on the living branch.

    It begins with the newest save that is there. Where that is forgotten, with the newest that shows a step's trace.
    """
    pointer = layouts.pointer(run)
    kept = pointer.step if isinstance(pointer, Pointer) and not pointer.problem else None
    whole = [c for c in checkpoints if c.complete and c.saved is not None and (kept is None or c.step <= kept)]
    since = ledger.since(run)
    if since is None:
        traced = [c.saved for c in whole if c.saved and any(_trace(run, s, c) for s in steps)]
        since = max(traced, default=max((c.saved for c in whole if c.saved), default=0.0))
    return tuple(sorted((c for c in whole if (c.saved or 0.0) >= since), key=lambda c: -(c.saved or 0.0)))


def stands(run: Run, step: Step, checkpoint: Checkpoint, now: float) -> Outcome:
    """How a step stands, by its record and by what is in the checkpoint. Changes nothing and asks nobody."""
    record = ledger.load(run, step).get(ledger.key(checkpoint), Record())
    if _trace(run, step, checkpoint) or (record.done is not None and not _withdrawn(step, checkpoint)):
        return Outcome(checkpoint, step, "done", record.said)
    if step.kind == "evals" and (record.job or evaluations.started(step) in checkpoint.markers):
        return Outcome(checkpoint, step, "runs", f"job {record.job or 'UNKNOWN'}")
    if not record.tries:
        return Outcome(checkpoint, step, "due")
    if step.kind == "evals" and record.tries >= MOST_JOBS:
        return Outcome(checkpoint, step, "failed", record.error)
    if holder := _holder(run, step):
        return Outcome(checkpoint, step, "busy", holder)
    if ledger.load(run, step).get(ledger.key(checkpoint), Record()) != record:
        return stands(run, step, checkpoint, now)  # whoever was at it has just ended
    word = "failed" if now < record.next_try else "due"
    return Outcome(checkpoint, step, word, record.error, record.next_try)


def serve(run: Run, steps: Sequence[Step], world: World) -> Iterator[Outcome]:
    """Do all that is due. Gives the outcome of every step of every checkpoint that is looked after.

    Raises OpsError when the checkpoints or the bookkeeping cannot be read or written.
    """
    found = layouts.read(run)
    if isinstance(found, Unknown):
        raise OpsError(f"the checkpoints are UNKNOWN: {found.reason}", str(run.dir))
    mine = looked_after(run, steps, found)
    if mine and ledger.since(run) is None:
        with suppress(Busy), state.lease(run, "saves", LEASE):  # else somebody else begins just now
            ledger.begin(run, mine[-1].saved or 0.0)
    for checkpoint in mine:
        newest = checkpoint is mine[0]
        yield from _checkpoint(run, [s for s in steps if newest or s.kind != "prune"], checkpoint, world)


def _checkpoint(run: Run, steps: Sequence[Step], checkpoint: Checkpoint, world: World) -> Iterator[Outcome]:
    outcomes: list[Outcome] = []
    for step in steps:
        if not checkpoint.path.is_dir():  # moved away meanwhile, by a rewind or a prune
            return
        held_up = next((o for o in outcomes if _holds_up(o, step)), None)
        if held_up:
            outcomes.append(Outcome(checkpoint, step, "waits", f"for {held_up.step.name}"))
        elif step.kind == "evals":
            outcomes.append(_evaluation(run, step, checkpoint, world))
        else:
            outcomes.append(_step(run, step, checkpoint, world))
        yield outcomes[-1]


def _holds_up(earlier: Outcome, step: Step) -> bool:
    """Whether a step must wait: for what it needs, and a push for weights that are just being written."""
    if step.needs(earlier.step):
        return earlier.word not in ("done", "did")
    return step.kind == "push" and earlier.step.kind == "extract" and earlier.word == "busy"


def _step(run: Run, step: Step, checkpoint: Checkpoint, world: World) -> Outcome:
    before = stands(run, step, checkpoint, world.now())
    if before.word not in ("due", "busy"):
        return before
    try:
        with state.lease(run, _lease(step), LEASE) as mine:
            before = stands(run, step, checkpoint, world.now())  # somebody else may have been here
            if before.word not in ("due", "busy"):
                return before
            return _tried(run, step, checkpoint, world, mine.renew)
    except Busy as busy:
        return Outcome(checkpoint, step, "busy", busy.what)


def _tried(run: Run, step: Step, checkpoint: Checkpoint, world: World, alive: Callable[[], None]) -> Outcome:
    earlier = ledger.load(run, step).get(ledger.key(checkpoint), Record())
    record = ledger.keep(run, step, checkpoint, earlier.begun(world.now()))
    try:
        said = world.do[step.kind](step, checkpoint, alive)
    except Busy as busy:  # somebody's command is at it: no try was made
        ledger.keep(run, step, checkpoint, earlier)
        return Outcome(checkpoint, step, "busy", busy.what)
    except (OpsError, OSError) as error:
        record = ledger.keep(run, step, checkpoint, record.failed(_words(error)))
        return Outcome(checkpoint, step, "failed", record.error, record.next_try)
    ledger.keep(run, step, checkpoint, record.ended(world.now(), said))
    return Outcome(checkpoint, step, "did", said)


def _words(error: OpsError | OSError) -> str:
    if isinstance(error, OpsError):
        return error.what + (f" ({error.where})" if error.where else "")
    return f"{error.strerror or error} ({error.filename})"


# -- evaluations: jobs, which outlive the tick -----------------------------------------------------------


def _evaluation(run: Run, step: Step, checkpoint: Checkpoint, world: World) -> Outcome:
    before = stands(run, step, checkpoint, world.now())
    if before.word in ("done", "failed"):
        return before
    try:
        with state.lease(run, _lease(step), LEASE) as mine:
            checkpoint = replace(checkpoint, markers=tuple(sorted(os.listdir(checkpoint.path))))  # as they are now
            record = ledger.load(run, step).get(ledger.key(checkpoint), Record())
            marked = evaluations.started(step) in checkpoint.markers
            if record.job or marked:
                return _followed(run, step, checkpoint, world, record)
            if stands(run, step, checkpoint, world.now()).word not in ("due", "busy"):
                return stands(run, step, checkpoint, world.now())
            return _submitted(run, step, checkpoint, world, mine.renew)
    except Busy as busy:
        return Outcome(checkpoint, step, "busy", busy.what)
    except OSError as error:
        return Outcome(checkpoint, step, "unknown", _words(error))


def _submitted(run: Run, step: Step, checkpoint: Checkpoint, world: World, alive: Callable[[], None]) -> Outcome:
    """Note that it is tried, submit, note the job: a crash in between leaves `?`, and the job is found by its tag."""
    earlier = ledger.load(run, step).get(ledger.key(checkpoint), Record())
    record = replace(earlier.begun(world.now()), job=evaluations.SUBMITTED)
    ledger.keep(run, step, checkpoint, record)
    try:
        job = world.do[step.kind](step, checkpoint, alive)
    except (OpsError, OSError) as error:
        evaluations.unmark(step, checkpoint)
        record = ledger.keep(run, step, checkpoint, record.failed(_words(error)))
        return Outcome(checkpoint, step, "failed", record.error, record.next_try)
    ledger.keep(run, step, checkpoint, replace(record, job=job, error=""))
    return Outcome(checkpoint, step, "did" if job != evaluations.SUBMITTED else "unknown", f"job {job}")


def _followed(run: Run, step: Step, checkpoint: Checkpoint, world: World, record: Record) -> Outcome:
    """See how a submitted one went, set m4's markers accordingly, and note it."""
    fate = world.follow(step, checkpoint, record)
    now = world.now()
    if fate.word == "done":
        (checkpoint.path / evaluations.finished(step)).touch()
        evaluations.unmark(step, checkpoint)
        ledger.keep(run, step, checkpoint, record.ended(now, fate.said))
        return Outcome(checkpoint, step, "done", fate.said)
    if fate.word == "failed" or (fate.word == "lost" and record.job and now - record.began > ledger.PAUSE):
        evaluations.unmark(step, checkpoint)
        record = ledger.keep(run, step, checkpoint, record.failed(fate.said))
        again = record.next_try if record.tries < MOST_JOBS else None
        return Outcome(checkpoint, step, "failed", fate.said, again)
    if fate.job and fate.job != record.job:
        ledger.keep(run, step, checkpoint, replace(record, job=fate.job, tries=max(1, record.tries), error=""))
    if fate.word == "lost" and not record.job:
        said = (
            f"{evaluations.started(step)} is set, and no job of m4ops is there: if nobody evaluates it, remove the file"
        )
        return Outcome(checkpoint, step, "unknown", said)
    return Outcome(checkpoint, step, "runs" if fate.word == "runs" else "unknown", fate.said)


# -- what is there ---------------------------------------------------------------------------------------


def _trace(run: Run, step: Step, checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint itself shows that a step was done."""
    if step.kind == "extract":
        begun = run.dir / OPS_DIR / "extract" / checkpoint.path.name
        return bool(extract.held(checkpoint.path / "unwrapped_model")) and not begun.exists()
    if step.kind == "push":
        return FINISHED_UPLOAD in checkpoint.markers
    return step.kind == "evals" and evaluations.finished(step) in checkpoint.markers


def _withdrawn(step: Step, checkpoint: Checkpoint) -> bool:
    """Whether a copy in the store is stale: an edit took its marker away."""
    return step.kind == "push" and checkpoint.layout == M4.name


def _holder(run: Run, step: Step) -> str:
    """Who is at a step just now, if they live."""
    held = lease.look(state.folder(run) / f"{_lease(step)}.lease")
    return held.told(held.heartbeat) if held and not held.dead else ""


def _lease(step: Step) -> str:
    return f"saves-{step.name}"
