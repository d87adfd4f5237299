"""The one place that changes a run: checks, prepares, journals, applies, and rolls back what fails.

A plan runs in stages, cut at its waits. A stage is checked whole (`before` of every action) and prepared whole before
its first action; if one then fails, the stage is rolled back. The journal says `applying` before and `applied` after
each action, fsynced, so that whatever happens in between can be finished or undone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ops import actions as act
from ops import journal, lease, slurm
from ops import plan as plans
from ops.actions import Action
from ops.checkpoints import states
from ops.errors import Drift, OpsError, Unfinished
from ops.executor import files
from ops.executor.record import Writer
from ops.model import OPS_DIR, Job, Unknown
from ops.plan import Plan
from ops.shell import Shell

LEASE_SECONDS = 600.0


@dataclass(frozen=True)
class World:
    """What the executor needs of the outside: the scheduler, a clock, and how to look again."""

    shell: Shell
    user: str
    now: Callable[[], float]
    sleep: Callable[[float], None]
    jobs: Callable[[], tuple[Job, ...] | Unknown]
    saved: Callable[[], int]
    """Highest step with a complete checkpoint, -1 without one."""
    log_size: Callable[[], int | None]
    replan: Callable[[Plan], Plan] | None = None
    say: Callable[[str], None] = lambda _: None
    renew: Callable[[], None] = lambda: None
    """Keeps the lease alive through a wait."""


def apply(plan: Plan, world: World) -> str:
    """Apply a plan, all or nothing. Returns the change's id.

    Raises Drift (nothing was touched), Busy, Unfinished (said what is and is not done), OpsError for a failure that
    was rolled back.
    """
    run_dir = Path(plan.run)
    _own_folder(run_dir)
    with lease.acquire(run_dir / OPS_DIR / "lock", plan.title, LEASE_SECONDS, take_expired=False) as held:
        world = replace(world, renew=held.renew)
        entries = journal.read(run_dir)
        if isinstance(entries, Unknown):
            raise OpsError(f"the journal cannot be read: {entries.reason}")
        _refuse_unfinished(entries, plan)
        _check(_stage(plan.actions, 0))
        identity = str(1 + max((int(e.change.id) for e in entries if e.change.id.isdigit()), default=0))
        writer = Writer(journal.path(run_dir), identity, world.user, world.now)
        built = _prepare_or_clear(_stage(plan.actions, 0), run_dir, identity)
        plan = replace(plan, actions=_sealed(plan.actions, 0, built))
        writer.plan(plan, world.log_size())
        _run(plan, world, writer, built)
        return identity


def finish(entry: journal.Entry, world: World, forward: bool) -> Plan:
    """End an unfinished change: do what is left, or take back what was done. Returns what was carried out."""
    plan = plans.from_json(entry.plan)
    run_dir = Path(plan.run)
    with lease.acquire(
        run_dir / OPS_DIR / "lock", f"end change {entry.change.id}", LEASE_SECONDS, take_expired=False
    ) as held:
        world = replace(world, renew=held.renew)
        _settle(plan, entry)
        writer = Writer(journal.path(run_dir), entry.change.id, world.user, world.now)
        begun = {*entry.applying, *entry.applied}
        if forward:
            left = tuple(a for i, a in enumerate(plan.actions) if i not in entry.applied and not _done(a))
        else:
            left = act.inverse_of(tuple(a for i, a in enumerate(plan.actions) if i in begun and _was_done(a, i, entry)))
        ending = replace(plan, actions=left)
        _check(tuple(left))
        built = _prepare_or_clear(left, run_dir, entry.change.id)
        for index, action in enumerate(left):
            _do(action, index, built.get(index), world, None)
        writer.end("done" if forward else "rolled-back")
        _clear(run_dir)
        return ending


def _run(plan: Plan, world: World, writer: Writer, built: dict[int, Path]) -> None:
    start, actions = 0, plan.actions
    while start < len(actions):
        stage = _stage(actions, start)
        _run_stage(stage, start, world, writer, built)
        start += len(stage)
        if start < len(actions):
            if isinstance(stage[-1], act.WaitFor) and stage[-1].replan and world.replan:
                actions = _replanned(plan, actions, start, world, writer)
            built = _next_stage(actions, start, plan, writer)
            sealed = _sealed(actions, start, built)
            if sealed != plan.actions:
                plan = replace(plan, actions=sealed)
                writer.plan(plan, world.log_size(), event="replanned")
            actions = sealed
    writer.end("done")
    _clear(Path(plan.run))


def _next_stage(actions: tuple[Action, ...], start: int, plan: Plan, writer: Writer) -> dict[int, Path]:
    try:
        _check(_stage(actions, start))
        return _prepare_or_clear(_stage(actions, start), Path(plan.run), writer.id)
    except OpsError as error:
        raise Unfinished(
            f"change {writer.id} stopped before action {start + 1} of {len(actions)}: {error.what}. "
            f"Done: {_told(actions[:start])}. Not done: {_told(actions[start:])}",
            error.where,
            f"m4ops undo {writer.id} takes back what was done, m4ops apply {writer.id} goes on",
        ) from error


def _run_stage(stage: tuple[Action, ...], start: int, world: World, writer: Writer, built: dict[int, Path]) -> None:
    done: list[Action] = []
    for offset, action in enumerate(stage):
        try:
            _do(action, start + offset, built.get(offset), world, writer)
        except (OSError, OpsError) as error:
            _failed(error, action, tuple(done), start, world, writer)
        done.append(action)


def _do(action: Action, index: int, built: Path | None, world: World, writer: Writer | None) -> None:
    in_place = isinstance(action, act.PatchState) and built is None
    pieces = files.splices(action) if in_place and isinstance(action, act.PatchState) else ()
    if writer:
        writer.applying(index, pieces)
    world.say(action.describe())
    match action:
        case act.Schedule():
            slurm.order(world.shell, action.verb, action.job)
        case act.WaitFor():
            _wait(action, world)
        case act.PatchState() if in_place:
            files.write_splices(action.path, pieces)
        case _:
            files.do(action, built)
    if writer:
        writer.applied(index)


def _failed(
    error: OSError | OpsError, action: Action, done: tuple[Action, ...], start: int, world: World, writer: Writer
) -> None:
    """Roll the stage back, unless an earlier stage or the scheduler already moved the world on."""
    said = error.what if isinstance(error, OpsError) else f"{error.strerror}: {error.filename}"
    moved = any(isinstance(a, act.Schedule | act.WaitFor) for a in done) or start > 0 or isinstance(action, act.WaitFor)
    edited = any(not isinstance(a, act.Schedule | act.WaitFor) for a in done)
    if moved or (isinstance(action, act.Schedule) and edited):
        raise Unfinished(
            f"change {writer.id} stopped at `{action.describe()}`: {said}. Done in this stage: {_told(done)}",
            error.where if isinstance(error, OpsError) else "",
            f"m4ops undo {writer.id} takes back what was done, m4ops apply {writer.id} goes on",
        ) from error
    for back in act.inverse_of((*done, action)):
        if isinstance(back, act.PatchState) or _done(back):
            continue
        files.do(back, files.prepare(back, writer.run_dir, "rollback"))  # type: ignore[arg-type]
    for patch in reversed([a for a in done if isinstance(a, act.PatchState)]):
        _unpatch(patch, writer.run_dir)
    writer.end("rolled-back", quiet=True)
    _clear(writer.run_dir)
    raise OpsError(f"`{action.describe()}` failed: {said}. Everything was rolled back; the run is as it was") from error


def _unpatch(patch: act.PatchState, run_dir: Path) -> None:
    back = patch.inverse()
    if not isinstance(back, act.PatchState) or files.state(back)[0] != "before":
        return
    built = files.prepare(back, run_dir, "rollback")
    files.do(back, built) if built else files.write_splices(back.path, files.splices(back))


def _stage(actions: tuple[Action, ...], start: int) -> tuple[Action, ...]:
    for end in range(start, len(actions)):
        if isinstance(actions[end], act.WaitFor):
            return actions[start : end + 1]
    return actions[start:]


def _check(stage: tuple[Action, ...]) -> None:
    """Every `before` of the stage holds; an action on what an earlier one of the stage changes is checked by that one."""
    touched: set[str] = set()
    for action in stage:
        if isinstance(action, act.Schedule | act.WaitFor):
            continue
        own = act.paths(action)
        if not touched.intersection(own):
            now, found = files.state(action)
            if now != "before":
                already = "it is as the plan would leave it already" if now == "after" else f"found: {found}"
                raise Drift(
                    f"the world is not what the plan was made for; nothing was touched. `{action.describe()}`: {already}",
                    own[0],
                    "make the plan again",
                )
        touched.update(own)


def _prepare_or_clear(stage: tuple[Action, ...], run_dir: Path, identity: str) -> dict[int, Path]:
    built: dict[int, Path] = {}
    try:
        for index, action in enumerate(stage):
            if not isinstance(action, act.Schedule | act.WaitFor):
                place = files.prepare(action, run_dir, f"{identity}-{index}")
                if place is not None:
                    built[index] = place
    except OSError as error:
        for place in built.values():
            place.unlink(missing_ok=True)
        _clear(run_dir)
        raise OpsError(
            f"the new content cannot be built: {error.strerror}; nothing was touched",
            str(error.filename or run_dir / OPS_DIR),
            "free space or get write access, then give the same command again",
        ) from error
    return built


def _sealed(actions: tuple[Action, ...], start: int, built: dict[int, Path]) -> tuple[Action, ...]:
    """The actions, with the fingerprint of what was built for a rewrite: undo will look for it."""
    sealed = list(actions)
    for offset, place in built.items():
        action = sealed[start + offset]
        if isinstance(action, act.Rewrite):
            sealed[start + offset] = replace(action, after=states.fingerprint(place))
    return tuple(sealed)


def _replanned(plan: Plan, actions: tuple[Action, ...], start: int, world: World, writer: Writer) -> tuple[Action, ...]:
    """What follows a stop is computed again from the wish: the job may have saved once more while it ended."""
    if world.replan is None:
        return actions
    fresh = world.replan(plan)
    if why := plans.grew(actions[start:], fresh.actions):
        raise Unfinished(
            f"change {writer.id}: the run is stopped, but what is to be done is no longer what was shown: {why}",
            plan.run,
            f"look (m4ops status), then m4ops undo {writer.id} and give the command again",
        )
    return (*actions[:start], *fresh.actions)


def _wait(action: act.WaitFor, world: World) -> None:
    end, pause = world.now() + action.limit, 0.2
    while not _holds(action, world):
        if world.now() > end:
            raise OpsError(f"{action.describe()}: not within the limit")
        world.renew()
        world.sleep(pause)
        pause = min(pause * 1.5, 30.0)


def _holds(action: act.WaitFor, world: World) -> bool:
    if action.condition == "saved":
        return world.saved() > int(action.value or -1)
    jobs = world.jobs()
    return not isinstance(jobs, Unknown) and not any(j.running for j in jobs)


def _settle(plan: Plan, entry: journal.Entry) -> None:
    """Bring an action that a crash left half-way back to its start: torn in-place bytes, an original linked aside."""
    for index in set(entry.applying) - set(entry.applied):
        action = plan.actions[index]
        if isinstance(action, act.PatchState) and entry.splices:
            pieces = tuple((o, bytes.fromhex(a), bytes.fromhex(b)) for o, a, b in entry.splices)
            files.write_splices(action.path, pieces, forward=False)
        elif isinstance(action, act.Rewrite) and files.state(action)[0] == "half":
            os.unlink(action.aside)


def _done(action: Action) -> bool:
    return not isinstance(action, act.Schedule | act.WaitFor) and files.state(action)[0] == "after"


def _was_done(action: Action, index: int, entry: journal.Entry) -> bool:
    return index in entry.applied if isinstance(action, act.Schedule | act.WaitFor) else _done(action)


def _refuse_unfinished(entries: tuple[journal.Entry, ...], plan: Plan) -> None:
    for entry in entries:
        if entry.change.status == "unfinished" and not _never_began(entry):
            raise Unfinished(
                f"change {entry.change.id} ({entry.change.title}) is unfinished",
                plan.run,
                f"m4ops undo {entry.change.id}, or m4ops apply {entry.change.id} to finish it",
            )


def _never_began(entry: journal.Entry) -> bool:
    """A change that stopped before its first action (or whose roll-back could not be noted) left nothing behind."""
    actions = plans.from_json(entry.plan).actions
    begun = [a for i, a in enumerate(actions) if i in entry.applying]
    return not any(isinstance(a, act.Schedule | act.WaitFor) or files.state(a)[0] != "before" for a in begun)


def _told(actions: tuple[Action, ...]) -> str:
    return "; ".join(a.describe() for a in actions) or "nothing"


def _own_folder(run_dir: Path) -> None:
    folder = run_dir / OPS_DIR
    try:
        if not folder.is_dir():
            folder.mkdir()
            shutil.copymode(run_dir, folder)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "Permission denied", str(folder))
    except OSError as error:
        raise OpsError(
            f"the run cannot be changed: {error.strerror}; nothing was touched",
            str(folder),
            "ask the run's owner, or look with m4ops status",
        ) from error


def _clear(run_dir: Path) -> None:
    with contextlib.suppress(OSError):
        shutil.rmtree(run_dir / OPS_DIR / "tmp", ignore_errors=True)
