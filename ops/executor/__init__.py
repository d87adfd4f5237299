"""The one place that changes a run: checks, journals, prepares, applies, and rolls back what fails.

A plan runs in stages, cut at its waits. A stage is checked whole (`before` of every action) and prepared whole before
its first action; if one then fails, the stage is rolled back. The journal says `applying` before and `applied` after
each action, fsynced, so that whatever happens in between can be finished or undone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from ops import actions as act
from ops import journal, lease
from ops import plan as plans
from ops.actions import Action
from ops.checkpoints import states
from ops.errors import Drift, OpsError, Refused, Unfinished
from ops.executor import files, recovery
from ops.executor.files import Built
from ops.executor.record import Writer
from ops.executor.standing import state
from ops.executor.world import World, wait
from ops.interventions import parking
from ops.model import OPS_DIR, Unknown
from ops.plan import Plan

__all__ = ["World", "apply", "finish", "rest"]
LEASE_SECONDS = 600.0
Stage = tuple[tuple[int, Action], ...]
"""Actions with their index in the plan."""


def apply(plan: Plan, world: World) -> str:
    """Apply a plan, all or nothing. Returns the change's id.

    Raises Drift or Refused (nothing was touched), Busy, Unfinished (said what is and is not done), OpsError for a
    failure that was rolled back.
    """
    if not plan.actions:
        raise Refused("there is nothing to do: the run is already so", plan.run, "m4ops status")
    with _at_work(plan.run, plan.title, world) as (entries, world):
        _close_idle(entries, plan, world)
        _refuse_loose(plan, world)
        _check(_stage(plan.actions, 0))
        identity = str(1 + max((int(e.change.id) for e in entries if e.change.id.isdigit()), default=0))
        writer = Writer(journal.path(Path(plan.run)), identity, world.user, world.now)
        writer.plan(plan, world.log_size())
        _run(plan, world, writer)
        return identity


def rest(entry: journal.Entry, forward: bool) -> Plan:
    """What is left of an unfinished change: to be done, or to be taken back. Raises Drift."""
    plan = plans.from_json(entry.plan)
    if not forward:
        return replace(plan, actions=recovery.back(entry), expectation=None)
    done = recovery.done(entry)
    return replace(plan, actions=tuple(a for i, a in enumerate(plan.actions) if i not in done))


def finish(identity: str, run_dir: Path, world: World, forward: bool, assume_stopped: bool = False) -> None:
    """End an unfinished change: do what is left, or take back what was done. Raises as `apply` does."""
    with _at_work(str(run_dir), f"end change {identity}", world) as (entries, world):
        entry = journal.find(entries, identity)
        if entry.change.status != "unfinished":
            raise Refused(f"change {identity} is {entry.change.status}: there is nothing to finish", str(run_dir))
        left = rest(entry, forward)
        if not assume_stopped:
            _refuse_loose(left, world)
        recovery.settle(entry)
        files.sweep(plans.from_json(entry.plan).actions, run_dir)
        writer = Writer(journal.path(run_dir), identity, world.user, world.now)
        if forward:
            plan = plans.from_json(entry.plan)
            _run(plan, world, writer, recovery.done(entry) - _lost(plan, world))
        else:
            _run_back(replace(left, actions=recovery.back(entry)), world, writer)


@contextlib.contextmanager
def _at_work(run: str, purpose: str, world: World) -> Iterator[tuple[tuple[journal.Entry, ...], World]]:
    """Alone at the run, with its journal."""
    run_dir = Path(run)
    _own_folder(run_dir)
    held = lease.acquire(run_dir / OPS_DIR / "lock", purpose, LEASE_SECONDS, take_expired=False)
    try:
        entries = journal.read(run_dir)
        if isinstance(entries, Unknown):
            raise OpsError(f"the journal cannot be read: {entries.reason}")
        yield entries, replace(world, renew=held.renew)
    except BaseException:
        with contextlib.suppress(OpsError):
            held.release()
        raise
    try:
        held.release()
    except OpsError as error:
        raise OpsError(f"all is done, but {error.what}", error.where, "m4ops history shows the change") from error


def _run(plan: Plan, world: World, writer: Writer, done: frozenset[int] = frozenset()) -> None:
    """All actions but those that are done already, stage by stage."""
    undone = (i for i in range(len(plan.actions)) if i not in done)
    start = recovery.stage_start(plan.actions, next(undone, len(plan.actions)))
    while start < len(plan.actions):
        if start and _replans(plan.actions[start - 1]) and done.isdisjoint(range(start, len(plan.actions))):
            plan = _replanned(plan, start, world, writer)
        end = recovery.stage_end(plan.actions, start)
        stage = tuple((i, plan.actions[i]) for i in range(start, end) if i not in done)
        built = _ready(stage, plan, writer, fresh=not start and not done)
        begun: list[tuple[int, Action]] = []
        try:
            _run_stage(stage, built, begun, world, writer)
            if end == len(plan.actions):
                writer.end("done")
        except (OSError, OpsError) as error:
            _failed(error, begun, built, world, writer)
        except KeyboardInterrupt:
            raise _stopped(writer, "it was interrupted") from None
        finally:
            files.sweep(plan.actions, writer.run_dir)
        start = end


def _ready(stage: Stage, plan: Plan, writer: Writer, fresh: bool) -> dict[int, Built]:
    """The stage checked and its contents built; with what was built noted, so that undo can tell it."""
    built: dict[int, Built] = {}
    try:
        if not fresh:
            _check(stage)
        for index, action in stage:
            if not isinstance(action, act.Fileless):
                built[index] = files.prepare(action, writer.run_dir, f"{writer.id}-{index}")
        news = ((i, built[i].new) for i, a in stage if isinstance(a, act.Rewrite | act.Copy))
        writer.sealed([(i, states.fingerprint(new)) for i, new in news if new])
    except (OSError, OpsError) as error:
        files.sweep(plan.actions, writer.run_dir)
        if not fresh:
            raise _stopped(writer, _said(error)) from error
        writer.end("rolled-back", quiet=True)
        if isinstance(error, OpsError):
            raise
        raise OpsError(
            f"the new content cannot be built: {_said(error)}; nothing was touched",
            str(error.filename or writer.run_dir / OPS_DIR),
            "free space or get write access, then give the same command again",
        ) from error
    return built


def _run_stage(
    stage: Stage, built: dict[int, Built], begun: list[tuple[int, Action]], world: World, writer: Writer
) -> None:
    for index, action in stage:
        ready = built.get(index, Built())
        begun.append((index, action))
        writer.applying(index, ready.pieces)
        world.told(action)
        match action:
            case act.Schedule() | act.Submit():
                _tell(action, world)
            case act.WaitFor():
                wait(action, world)
            case _:
                files.do(action, ready)
        writer.applied(index, durable=isinstance(action, act.Fileless))


def _failed(
    error: OSError | OpsError,
    begun: list[tuple[int, Action]],
    built: dict[int, Built],
    world: World,
    writer: Writer,
) -> NoReturn:
    """Roll the stage back; where the scheduler has moved the world on, say what stands and how to go on."""
    *before, (_, failed) = begun
    where = f"`{failed.describe()}` failed: {_said(error)}"
    edits = [(i, a) for i, a in begun if not isinstance(a, act.Fileless)]
    orders = [a for _, a in before if isinstance(a, act.Order)]
    unheard = isinstance(failed, act.Order) and isinstance(error, Unfinished)
    if unheard or isinstance(failed, act.WaitFor) or (isinstance(failed, act.Order) and edits):
        raise _stopped(writer, where) from error
    try:
        for index, action in reversed(edits):
            if not (begun[0][0] and _switches_off(action)):  # what is parked must not find it set when it is released
                files.take_back(action, built[index])
        for back in act.inverse_of(tuple(orders)) if begun[0][0] == 0 else ():
            if isinstance(back, act.Order):
                _tell(back, world)
    except (OSError, OpsError) as worse:
        raise _stopped(writer, f"{where}; and it could not be rolled back: {_said(worse)}") from error
    if begun[0][0] or any(a.inverse() is None for a in orders):
        raise _stopped(writer, f"{where}; what this step had edited was put back") from error
    writer.end("rolled-back", quiet=True)
    raise OpsError(
        f"{where}. Everything was rolled back: the run is as it was",
        error.where if isinstance(error, OpsError) else str(error.filename or ""),
        f"{(error.hint if isinstance(error, OpsError) else '') or 'mend that'}; then give the same command again",
    ) from error


def _run_back(back: Plan, world: World, writer: Writer) -> None:
    """Take back what an unfinished change did."""
    try:
        _check(_stage(back.actions, 0))
        built = {
            i: files.prepare(a, writer.run_dir, f"{writer.id}-back-{i}")
            for i, a in enumerate(back.actions)
            if not isinstance(a, act.Fileless)
        }
        for index, action in enumerate(back.actions):
            world.told(action)
            if isinstance(action, act.Order):
                _tell(action, world)
            elif not isinstance(action, act.WaitFor):
                files.do(action, built[index])
        writer.end("rolled-back")
    except (OSError, OpsError) as error:
        raise _stopped(writer, _said(error)) from error
    except KeyboardInterrupt:
        raise _stopped(writer, "it was interrupted") from None
    finally:
        files.sweep(back.actions, writer.run_dir)


def _stopped(writer: Writer, why: str) -> Unfinished:
    """What is and what is not done, as the journal and the files tell it."""
    done = left = ""
    with contextlib.suppress(OSError, OpsError):
        entry = journal.find(journal.read(writer.run_dir), writer.id)
        to_do = rest(entry, forward=True).actions
        done = _told(tuple(a for a in act.inverse_of(rest(entry, forward=False).actions) if a not in to_do))
        left = _told(to_do)
    return Unfinished(
        f"change {writer.id} is unfinished: {why}\n  done: {done or 'UNKNOWN'}\n  not done: {left or 'UNKNOWN'}",
        str(writer.run_dir),
        f"m4ops undo {writer.id} takes back what was done, m4ops apply {writer.id} goes on",
    )


def _stage(actions: tuple[Action, ...], start: int) -> Stage:
    return tuple((i, actions[i]) for i in range(start, recovery.stage_end(actions, start)))


def _check(stage: Stage) -> None:
    """Every `before` of the stage holds; an action on what an earlier one of the stage changes is checked by that one."""
    touched: set[str] = set()
    for _, action in stage:
        if isinstance(action, act.Fileless):
            continue
        own = act.paths(action)
        if not touched.intersection(own):
            now, found = state(action)
            if now != "before" and not (now == "after" and isinstance(action, act.WriteText) and action.after is None):
                already = "it is as the plan would leave it already" if now == "after" else f"found: {found}"
                raise Drift(
                    f"the world is not what the plan was made for; nothing was touched. `{action.describe()}`: {already}",
                    own[0],
                    "make the plan again",
                )
        touched.update(own)


def _tell(action: act.Order, world: World) -> None:
    from ops.executor.submission import tell

    tell(action, world)


def _switches_off(action: Action) -> bool:
    return isinstance(action, act.WriteText) and action.after is None and not action.before


def _replans(action: Action) -> bool:
    return isinstance(action, act.WaitFor) and action.replan


def _replanned(plan: Plan, start: int, world: World, writer: Writer) -> Plan:
    """What follows a stop is computed again from the wish: the job may have saved once more while it ended."""
    if world.replan is None:
        return plan
    try:
        fresh = world.replan(plan)
    except OpsError as error:
        raise _stopped(writer, f"the run is stopped, but cannot be planned for again: {error.what}") from error
    follows = plan.wish.get("at", "") is None
    if why := plans.grew(plan.actions[start:], fresh.actions, follows):
        raise _stopped(writer, f"the run is stopped, but what is to be done is no longer what was shown: {why}")
    plan = replace(
        plan,
        actions=(*plan.actions[:start], *fresh.actions),
        title=fresh.title,
        wish=fresh.wish,
        expectation=fresh.expectation,
    )
    try:
        writer.plan(plan, world.log_size(), event="replanned")
    except OpsError as error:
        raise _stopped(writer, error.what) from error
    return plan


def _lost(plan: Plan, world: World) -> frozenset[int]:
    """Holds that a controller took and lost again, with its state: what they held is loose, and no release follows."""
    jobs = world.jobs() or ()
    loose = {j.array_id for j in jobs if j.pending and not j.held}
    last = {a.job: (i, a.verb) for i, a in enumerate(plan.actions) if isinstance(a, act.Schedule)}
    return frozenset(i for job, (i, verb) in last.items() if verb == "hold" and job in loose)


def _refuse_loose(plan: Plan, world: World) -> None:
    if not plan.wish.get("assume_stopped"):
        parking.refuse_loose(plan.actions, world.jobs, plan.run)


def _close_idle(entries: tuple[journal.Entry, ...], plan: Plan, world: World) -> None:
    """Refuse while a change is unfinished; one that left nothing behind is closed."""
    for entry in (e for e in entries if e.change.status == "unfinished"):
        if not recovery.never_began(entry):
            raise Unfinished(
                f"change {entry.change.id} ({entry.change.title}) is unfinished",
                plan.run,
                f"m4ops undo {entry.change.id}, or m4ops apply {entry.change.id} to finish it",
            )
        writer = Writer(journal.path(Path(plan.run)), entry.change.id, world.user, world.now)
        files.sweep(plans.from_json(entry.plan).actions, writer.run_dir)
        writer.end("rolled-back", quiet=True)


def _said(error: OSError | OpsError) -> str:
    return error.what if isinstance(error, OpsError) else f"{error.strerror}: {error.filename}"


def _told(actions: tuple[Action, ...]) -> str:
    return "".join(f"\n    {a.describe()}" for a in actions) or "nothing"


def _own_folder(run_dir: Path) -> None:
    folder = run_dir / OPS_DIR
    try:
        lease.make_folder(folder)
        if not os.access(folder, os.W_OK):
            raise OpsError("no write access")
    except OpsError as error:
        raise OpsError(
            f"the run cannot be changed: {error.what}; nothing was touched",
            str(folder),
            "ask the run's owner, or look with m4ops status",
        ) from error
