"""The Change commands about the run's jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ops.cli import carry, session
from ops.interventions.exclude import Exclude
from ops.interventions.jobs import Cancel, Hold, Release, Requeue, Save, Stop, planning_note


@click.command()
@click.option("--why", default="", help="The reason, for the note.")
@click.option("--until", default="", help="How long the nodes stay free, for the note.")
@click.option("--stop", is_flag=True, help="Also end what runs, and keep it queued.")
@carry.options
@click.pass_context
def hold(ctx: click.Context, /, dry_run: bool, yes: bool, out: Path | None, **wish: Any) -> None:
    """Keep queued tasks from starting; prints the note for the planning channel.

    What runs goes on running, unless --stop is given (m4ops stop ends it, saved). Whole arrays are held, never single tasks.
    """
    note = planning_note(session.look(session.find(ctx)[0]), wish["why"], wish["until"])
    carry.carry_out(ctx, Hold(**wish), dry_run, yes, out)
    session.out(f"\nFor the planning channel:\n{note}")


@click.command()
@carry.options
@click.pass_context
def release(ctx: click.Context, dry_run: bool, yes: bool, out: Path | None) -> None:
    """Let held tasks start."""
    carry.carry_out(ctx, Release(), dry_run, yes, out)


@click.command()
@click.argument("job", default="")
@click.option("--again", is_flag=True, help="Though it was requeued five times within a day.")
@carry.options
@click.pass_context
def requeue(ctx: click.Context, /, dry_run: bool, yes: bool, out: Path | None, **wish: Any) -> None:
    """Put the running task back into the queue.

    JOB is one task (1234_3); default: every running one of the run.
    """
    carry.carry_out(ctx, Requeue(**wish), dry_run, yes, out)


@click.command()
@click.argument("nodes", nargs=-1, required=True, metavar="NODE…")
@click.option("--why", default="", help="The reason, for the history.")
@carry.options
@click.pass_context
def exclude(ctx: click.Context, dry_run: bool, yes: bool, out: Path | None, nodes: tuple[str, ...], why: str) -> None:
    """Keep the run away from failing nodes, now and at the next submit.

    Sets ExcNodeList of what waits, reads back that Slurm took it, and remembers the nodes in .m4ops/exclude. Refused
    where fewer usable nodes than the job needs would be left. What runs keeps its nodes.
    """
    carry.carry_out(ctx, Exclude(nodes, why), dry_run, yes, out)


@click.command()
@click.argument("job", default="")
@carry.options
@click.pass_context
def cancel(ctx: click.Context, dry_run: bool, yes: bool, out: Path | None, job: str) -> None:
    """End the run's jobs for good, running ones without a save.

    JOB is one job, array or task (1234, 1234_3); default: all of the run. It cannot be undone, and asks twice.
    """
    run, _ = session.find(ctx)
    made = carry.plan(Cancel(job), run, session.typed())
    if out is None and not dry_run and not yes:
        carry.decide(ctx, run, made, (True, yes, out))
        session.confirm(yes)
        click.confirm("This cannot be undone. Cancel?", abort=True, err=True)
        carry.carried(ctx, run, made)
    else:
        carry.decide(ctx, run, made, (dry_run, yes, out))


@click.command()
@carry.options
@click.pass_context
def stop(ctx: click.Context, dry_run: bool, yes: bool, out: Path | None) -> None:
    """Save and end the running task by the kill switch; queued tasks stay held.

    Holds what waits, sets the kill switch, waits for the end, removes the switch.
    """
    carry.carry_out(ctx, Stop(), dry_run, yes, out)


@click.command()
@carry.options
@click.pass_context
def save(ctx: click.Context, dry_run: bool, yes: bool, out: Path | None) -> None:
    """Have the running trainer save now, and wait for it."""
    carry.carry_out(ctx, Save(), dry_run, yes, out)
