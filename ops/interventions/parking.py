"""A state edit needs a run that does not run and cannot start meanwhile: nothing RUNNING, nothing PENDING and not held.

With `hold` the plan first parks the run itself; with `restart` it also lets it go at the end.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ops.actions import Action, Schedule, WaitFor, WriteText, edits_state
from ops.errors import Refused
from ops.model import Job, Snapshot, Unknown

STOP_LIMIT = 1800.0
"""Seconds a job is given to save and exit: an 80B run's save took minutes, not half an hour."""


class Parking(Struct, frozen=True):
    """How a state-editing wish treats the run's jobs."""

    hold: bool = False
    restart: bool = False
    assume_stopped: bool = False
    """The operator's word that nothing runs, where no scheduler can be asked."""


def queue(snapshot: Snapshot) -> tuple[Job, ...]:
    """The run's jobs. Raises Refused when the queue is unknown."""
    return _known(snapshot.jobs, snapshot.run.name)


def around(snapshot: Snapshot, parking: Parking) -> tuple[tuple[Action, ...], tuple[Action, ...]]:
    """The actions before and after an edit. Raises Refused, naming the way on."""
    jobs = () if parking.assume_stopped else queue(snapshot)
    running = [j for j in jobs if j.running]
    loose = [j for j in jobs if j.pending and not j.held]
    foreign = [j for j in running + loose if j.user != snapshot.user]
    if foreign:
        raise Refused(
            f"job {foreign[0].id} belongs to {foreign[0].user}, and m4ops acts on your own jobs only",
            snapshot.run.name,
            f"ask {foreign[0].user} to m4ops hold and m4ops stop it",
        )
    if (running or loose) and not (parking.hold or parking.restart):
        raise Refused(
            f"the run is not parked: {_told(running, loose)}",
            snapshot.run.name,
            "add --restart (or --hold) to make stopping part of this plan, or first m4ops hold, then m4ops stop",
        )
    if running:
        ending = stop(snapshot, running, bool(loose or _held(jobs)), replan=True)
    else:
        ending = switch_off(snapshot) if parking.hold or parking.restart else ()
    return (*holds(snapshot, loose), *ending), releases(snapshot, jobs) if parking.restart else ()


def stops(snapshot: Snapshot, parking: Parking) -> bool:
    """Whether the plan ends a running job first: what is known of the checkpoints now may then be outdated."""
    asked = (parking.hold or parking.restart) and not parking.assume_stopped
    return asked and any(j.running for j in snapshot.jobs or ())


def refuse_loose(actions: tuple[Action, ...], ask: Callable[[], tuple[Job, ...] | Unknown], where: str) -> None:
    """Refuse a state edit when a job runs, or may start, that these actions do not park themselves.

    A plan is made at one time and applied at another: an array's next task may have started in between.
    """
    if not edits_state(actions):
        return
    jobs = _known(ask(), where)
    held = {a.job for a in actions if isinstance(a, Schedule) and a.verb == "hold"}
    waits = any(isinstance(a, WaitFor) and a.condition == "stopped" for a in actions)
    running = [j for j in jobs if j.running and not waits]
    loose = [j for j in jobs if j.pending and not j.held and j.array_id not in held]
    if running or loose:
        raise Refused(
            f"the run is not parked: {_told(running, loose)}",
            where,
            "first m4ops hold, then m4ops stop; or plan it anew",
        )


def holds(snapshot: Snapshot, pending: list[Job]) -> tuple[Action, ...]:
    """Hold whole arrays: holding single tasks of a big one blocks the controller for minutes (with slurmdbd)."""
    return tuple(Schedule("hold", array) for array in dict.fromkeys(j.array_id for j in pending))


def stop(snapshot: Snapshot, running: list[Job], more_to_come: bool, replan: bool) -> tuple[Action, ...]:
    """End the running tasks: by the kill switch (the trainer saves first) where one is known and held tasks follow.

    Else each task is requeued and held, explicitly by its id: that kills it without a last save.
    """
    switch, ended = snapshot.run.kill_switch, WaitFor("stopped", STOP_LIMIT, replan=replan)
    if switch is None or not more_to_come:
        return (*(Schedule("requeuehold", j.id) for j in running), ended)
    on = () if snapshot.kill_switch_set is True else (WriteText(str(switch), None, "", "kill switch on"),)
    return (*on, ended, WriteText(str(switch), "", None, "kill switch off"))


def switch_off(snapshot: Snapshot) -> tuple[Action, ...]:
    """Remove a kill switch that is set: while it is there, every task that starts exits at once."""
    if snapshot.kill_switch_set is not True:
        return ()
    return (WriteText(str(snapshot.run.kill_switch), "", None, "kill switch off"),)


def releases(snapshot: Snapshot, jobs: tuple[Job, ...]) -> tuple[Action, ...]:
    """Let every array of the run go. Raises Refused when nothing is left in the queue to start."""
    arrays = dict.fromkeys(j.array_id for j in jobs if j.pending or j.running)
    if not arrays:
        raise Refused(
            "nothing of this run is in the queue: there is nothing to restart",
            snapshot.run.name,
            "submit it again after this change",
        )
    if admin := next((j for j in jobs if j.pending and by_admin(j, snapshot)), None):
        raise Refused(
            f"job {admin.id} is held by an administrator, who alone can release it",
            snapshot.run.name,
            "--hold in the place of --restart leaves it held; then ask them (an operator of Slurm: m4ops release)",
        )
    return tuple(Schedule("release", array) for array in arrays)


def by_admin(job: Job, snapshot: Snapshot) -> bool:
    """Whether somebody with more rights than the user holds the job. What root holds, root releases."""
    from ops.catalogue.reasons import HELD_BY_ADMIN

    return job.reason == HELD_BY_ADMIN and snapshot.user != "root"


def _known(jobs: tuple[Job, ...] | Unknown, where: str) -> tuple[Job, ...]:
    if isinstance(jobs, Unknown):
        raise Refused(
            f"the queue is UNKNOWN: {jobs.reason}; a running job would be edited under its feet",
            where,
            "ask again, or add --assume-stopped if you know that no job of this run runs or waits",
        )
    return jobs


def _held(jobs: tuple[Job, ...]) -> bool:
    return any(j.held for j in jobs)


def _told(running: list[Job], loose: list[Job]) -> str:
    parts = [f"job {j.id} is {j.state} on {j.nodes or '?'}" for j in running]
    return "; ".join(parts + [f"job {j.id} is {j.state} and not held: it may start at any moment" for j in loose])
