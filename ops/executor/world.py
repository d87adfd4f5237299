"""What the executor needs of the outside: the scheduler's orders and waits, a clock, and how to look again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from ops import actions as act
from ops import slurm
from ops.actions import Action
from ops.errors import Drift, OpsError, Unfinished, Unreachable
from ops.model import Job, Unknown
from ops.plan import Plan
from ops.shell import Answer, Shell, Submitter


def _no_submitter(argv: Sequence[str], timeout: float, env: Mapping[str, str]) -> Answer:
    return Answer(127, "", f"{argv[0]}: not to be had here")


class World(Struct, frozen=True):
    """The outside, as the executor sees it."""

    shell: Shell
    user: str
    now: Callable[[], float]
    sleep: Callable[[float], None]
    jobs: Callable[[], tuple[Job, ...] | Unknown]
    saved: Callable[[], int]
    """Highest step with a complete checkpoint, -1 without one."""
    log_size: Callable[[], int | None]
    replan: Callable[[Plan], Plan] | None = None
    told: Callable[[Action], None] = lambda _: None
    """Called before each action."""
    renew: Callable[[], None] = lambda: None
    """Keeps the lease alive through a wait."""
    submitter: Submitter = _no_submitter
    said: Callable[[str], None] = lambda _: None
    """Called with what became known on the way: the id of a job, that there was nothing to cancel."""


def order(action: act.Schedule, world: World) -> None:
    """Give the order, if the id is still a job of this run's: a controller that lost its state gives ids anew.

    An order to an array also fails for its tasks that ended before: what counts is what the queue then shows.
    """
    if not _ours(action, world):
        if action.verb.startswith("requeue"):
            raise Drift(f"job {action.job} is no job of this run any more", action.job, "m4ops status")
        return world.said(f"job {action.job} is no job of this run any more: there is nothing to {action.verb}")
    if action.verb == "exclude":
        from ops import nodes

        return nodes.exclude(world.shell, action.job, action.before, action.after)
    try:
        slurm.order(world.shell, action.verb, action.job)
    except OpsError as error:
        jobs, wanted = world.jobs(), {"hold": True, "release": False}.get(action.verb)
        if isinstance(jobs, Unknown):  # a controller that hangs may carry it out when it goes on
            raise Unfinished(f"{error.what}; whether it was heard is UNKNOWN", error.where, error.hint) from error
        if wanted is None:
            raise
        if any(j.pending and j.held != wanted for j in jobs if j.array_id == action.job):
            raise


def _ours(action: act.Schedule, world: World) -> bool:
    jobs = world.jobs()
    if isinstance(jobs, Unknown):
        raise Unreachable(f"the queue is UNKNOWN ({jobs.reason}); the order was not given", action.job, "m4ops status")
    return any(action.job in (j.id, j.array_id, j.raw_id) for j in jobs)


def wait(action: act.WaitFor, world: World) -> None:
    """Until the condition holds. Raises OpsError at the limit."""
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
