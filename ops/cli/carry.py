"""From a wish to a change: plan, show, ask, apply, and say how to take it back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from ops import executor, recent, slurm, snapshot
from ops import plan as plans
from ops.actions import Action, Schedule, WaitFor, inverse_of
from ops.checkpoints import layouts
from ops.cli import session
from ops.errors import OpsError
from ops.executor import World
from ops.interventions.lr_promise import Earlier
from ops.interventions.wish import plan_for
from ops.model import Run, Unknown
from ops.views.plan import plan_text

if TYPE_CHECKING:
    from ops.interventions.wish import Wish
    from ops.plan import Plan


def options(command: Any) -> Any:
    """`-n`, `-y`, `--out` of every change."""
    for option in (
        click.option(
            "--out",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Save the plan to FILE and stop: m4ops apply FILE carries it out.",
        ),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option("-n", "--dry-run", is_flag=True, help="Show the plan and stop."),
    ):
        command = option(command)
    return command


def parking(command: Any) -> Any:
    """How a state edit treats the run's jobs."""
    for option in (
        click.option(
            "--assume-stopped",
            is_flag=True,
            help="The scheduler cannot be asked, and I know that nothing of this run runs or waits.",
        ),
        click.option("--restart", is_flag=True, help="Park the run first, and release it at the end."),
        click.option(
            "--hold", is_flag=True, help="Park the run first: hold what waits, stop what runs; leave it held."
        ),
    ):
        command = option(command)
    return command


def plan(wish: Wish, run: Run, command: str) -> Plan:
    """The plan of a wish for the run as it is now. Raises Refused, BadInput."""
    size = snapshot.BRIEF
    seen = session.look(run, size)
    settled = wish.resolved(seen)
    seen = snapshot.inspected(seen, settled.inspects(seen), settled.resets)
    if settled.asks_nodes:
        from ops import nodes

        shell = slurm.on(run.cluster, session.scheduler())
        seen = replace(seen, placement=nodes.placement(run.dir, seen.jobs, shell))
    while True:
        try:
            return plan_for(settled, seen, command)
        except Earlier:
            size *= 8
            seen = snapshot.further_back(seen, size)


def carry_out(ctx: click.Context, wish: Wish, dry_run: bool, yes: bool, out: Path | None) -> Plan:
    """Plan the wish, show it, and apply it unless told to stop there."""
    run, _ = session.find(ctx)
    made = plan(wish, run, session.typed())
    decide(ctx, run, made, (dry_run, yes, out))
    return made


def decide(ctx: click.Context, run: Run, made: Plan, said: tuple[bool, bool, Path | None]) -> None:
    """Show a plan, and apply it unless `-n`, `-y`, `--out` (as said) stop there."""
    dry_run, yes, out = said
    session.out(plan_text(made, session.color()))
    if out is not None:
        save(made, out)
        session.say(f"saved; {session.me(ctx)} apply {out} carries it out")
    elif not dry_run:
        session.confirm(yes)
        carried(ctx, run, made)


def save(made: Plan, out: Path) -> None:
    """Write the plan as JSON. Raises OpsError."""
    try:
        out.write_text(plans.dumps(made), encoding="utf-8")
    except OSError as error:
        raise OpsError(f"the plan cannot be saved: {error.strerror}", str(out)) from None


def carried(ctx: click.Context, run: Run, made: Plan) -> str:
    """Apply a plan and say what follows. Returns the change's id."""
    identity = executor.apply(made, world(run, frozenset(a.describe() for a in made.actions)))
    me = session.me(ctx)
    back = f"To take it back: {me} undo {identity}" if inverse_of(made.actions) else "It cannot be taken back."
    session.say(f"change {identity} applied. {back}")
    if made.expectation is not None:
        session.say(f"After the resume: {me} verify {identity}")
    return identity


def world(run: Run, shown: frozenset[str] = frozenset()) -> World:
    """The outside as the executor sees it, for this run. Of what was `shown`, only what takes time is told again."""
    shell = slurm.on(run.cluster, recent.forgetting(session.scheduler()))

    def told(action: Action) -> None:
        if isinstance(action, Schedule | WaitFor) or action.describe() not in shown:
            session.say(f"  {action.describe()}")

    def replanned(old: Plan) -> Plan:
        from ops.interventions.registry import wish_of

        return plan(wish_of(dict(old.wish)), run, old.command)

    def saved() -> int:
        found = layouts.read(run)
        return -1 if isinstance(found, Unknown) else max((c.step for c in found if c.complete), default=-1)

    def log_size() -> int | None:
        return run.log.stat().st_size if run.log and run.log.exists() else None

    return World(
        shell=shell,
        user=snapshot.user(),
        now=time.time,
        sleep=time.sleep,
        jobs=lambda: snapshot.jobs(run, shell),
        saved=saved,
        log_size=log_size,
        replan=replanned,
        told=told,
        submitter=session.submitter(),
        said=session.say,
    )
