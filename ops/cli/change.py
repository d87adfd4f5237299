"""The Change commands that edit a run's state on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ops.cli import carry, session
from ops.errors import BadInput

AT = click.option("--at", type=int, metavar="STEP", help="The checkpoint to edit; default: the one a resume takes.")
AGAIN = click.option("--again", is_flag=True, help="Once more, on top of an earlier LR change of the same checkpoint.")


@click.command()
@click.option(
    "--to",
    required=True,
    metavar="STEP",
    help="A step; `latest`: the highest complete one; -1: one complete one before the pointer.",
)
@click.option("--scale-lr", metavar="F", help="Multiply the LR by F.")
@click.option("--set-lr", metavar="X", help="Set the current LR to X.")
@click.option("--reset-optimizer", is_flag=True, help="Start with fresh optimizer moments.")
@click.option("--keep-discarded", is_flag=True, help="Leave later checkpoints where they are.")
@click.option("--keep-wandb-run", is_flag=True, help="Go on in the same wandb run.")
@AGAIN
@carry.parking
@carry.options
@click.pass_context
def rewind(
    ctx: click.Context,
    /,
    dry_run: bool,
    yes: bool,
    out: Path | None,
    scale_lr: str | None,
    set_lr: str | None,
    **wish: Any,
) -> None:
    """Resume from an earlier checkpoint, with all that belongs to it.

    Points latest_opt_step_dir at it, rolls the evaluations back (the whole file stays as a numbered archive), moves
    later checkpoints to discarded/exp_K, and empties the wandb id, so that a new wandb run begins.
    """
    from ops.interventions.rewind import Rewind

    factor = None if scale_lr is None else session.number(scale_lr, "--scale-lr")
    value = None if set_lr is None else session.number(set_lr, "--set-lr")
    carry.carry_out(ctx, Rewind(scale_lr=factor, set_lr=value, **wish), dry_run, yes, out)


@click.command("scale-lr", context_settings={"ignore_unknown_options": True})
@click.argument("factor")
@click.option("--group", type=int, metavar="I", help="Only the parameter group I, counted from 0; default: all.")
@AT
@AGAIN
@carry.parking
@carry.options
@click.pass_context
def scale_lr(ctx: click.Context, /, dry_run: bool, yes: bool, out: Path | None, factor: str, **wish: Any) -> None:
    """Multiply the learning rate that the next resume starts with.

    Every LR field in every state file of every rank is scaled, so the first resumed step already runs with it, and the
    whole schedule follows.
    """
    from ops.interventions.learning_rate import ScaleLr

    carry.carry_out(ctx, ScaleLr(session.number(factor, "factor"), **wish), dry_run, yes, out)


@click.command("set-lr", context_settings={"ignore_unknown_options": True})
@click.argument("lr")
@click.option("--peak", is_flag=True, help="Set the schedule's highest LR, not the current one.")
@click.option("--group", type=int, metavar="I", help="Only the parameter group I, counted from 0; default: all.")
@AT
@AGAIN
@carry.parking
@carry.options
@click.pass_context
def set_lr(ctx: click.Context, /, dry_run: bool, yes: bool, out: Path | None, lr: str, **wish: Any) -> None:
    """Set the learning rate that the next resume starts with.

    The current LR (with --peak the highest of the schedule) becomes LR, and all of the schedule is scaled by the same
    factor. With 0, every LR becomes 0; with `back`, what a change set to 0 comes back from the journal.
    """
    from ops.interventions.learning_rate import SetLr
    from ops.interventions.schedule import LrBack

    if lr == "back":
        given = {name: wish.pop(name) for name in ("again", "group", "peak")}
        if taken := [name for name, value in given.items() if value is not None and value is not False]:
            raise BadInput(f"set-lr back takes no --{taken[0]}: all that was set to 0 comes back")
        carry.carry_out(ctx, LrBack(**wish), dry_run, yes, out)
        return
    carry.carry_out(ctx, SetLr(session.number(lr, "LR"), **wish), dry_run, yes, out)


@click.command("shift-schedule")
@click.option("--to-step", required=True, type=int, metavar="S", help="The step from which the schedule goes on.")
@click.option("--lr", metavar="X", help="The LR of the first resumed step, where only the trainer's code knows it.")
@AT
@carry.parking
@carry.options
@click.pass_context
def shift_schedule(
    ctx: click.Context, /, dry_run: bool, yes: bool, out: Path | None, lr: str | None, **wish: Any
) -> None:
    """Let the LR schedule go on from another step.

    Mends a schedule that began anew because the trainer lost its state. Sets the counters of the scheduler and of those
    inside it, and the LR of that step where the state tells it.
    """
    from ops.interventions.schedule import ShiftSchedule

    value = None if lr is None else session.number(lr, "--lr")
    carry.carry_out(ctx, ShiftSchedule(lr=value, **wish), dry_run, yes, out)


@click.command("reset-optimizer")
@click.option("--in-checkpoint", is_flag=True, help="In the checkpoint, also where the trainer's config is known.")
@click.option("--no-originals", is_flag=True, help="Keep no copy of the moments: saves their room, cannot be undone.")
@click.option("--scale-lr", metavar="F", help="Multiply the LR by F.")
@click.option("--set-lr", metavar="X", help="Set the current LR to X.")
@AGAIN
@AT
@carry.parking
@carry.options
@click.pass_context
def reset_optimizer(
    ctx: click.Context,
    /,
    dry_run: bool,
    yes: bool,
    out: Path | None,
    scale_lr: str | None,
    set_lr: str | None,
    no_originals: bool,
    **wish: Any,
) -> None:
    """Start the next resume with fresh optimizer moments.

    By load_optimizer_states in the trainer's config where m4ops.toml names it (trainer_config), else in the checkpoint:
    there moments and steps become zero on all ranks; LR and master weights stay.
    """
    from ops.interventions.optimizer import ResetOptimizer

    factor = None if scale_lr is None else session.number(scale_lr, "--scale-lr")
    value = None if set_lr is None else session.number(set_lr, "--set-lr")
    made = ResetOptimizer(scale_lr=factor, set_lr=value, originals=not no_originals, **wish)
    carry.carry_out(ctx, made, dry_run, yes, out)


@click.command("reset-wandb")
@AT
@carry.parking
@carry.options
@click.pass_context
def reset_wandb(ctx: click.Context, /, dry_run: bool, yes: bool, out: Path | None, **wish: Any) -> None:
    """Give the next resume a wandb run of its own.

    Empties wandb_run_id in the checkpoint's resume_run_infos.json.
    """
    from ops.interventions.wandb_run import ResetWandb

    carry.carry_out(ctx, ResetWandb(**wish), dry_run, yes, out)


@click.command("trim-evals")
@click.option("--to", required=True, type=int, metavar="STEP", help="Keep evaluations of steps up to this one.")
@carry.options
@click.pass_context
def trim_evals(ctx: click.Context, dry_run: bool, yes: bool, out: Path | None, to: int) -> None:
    """Roll the evaluations back; the whole file stays as a numbered archive.

    Kept lines keep their bytes; lines whose step cannot be told are kept and named.
    """
    from ops.interventions.evaluations import TrimEvals

    carry.carry_out(ctx, TrimEvals(to), dry_run, yes, out)
