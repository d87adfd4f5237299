"""The Keep commands: apply, undo, verify, demo."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli import session
from ops.cli.session import json_option
from ops.errors import BadInput, Refused, Unreachable
from ops.model import LOOK, Change, Run, Severity, Snapshot, Unknown

if TYPE_CHECKING:
    from ops.plan import Plan

EXIT = {"yes": Severity.OK, "no": Severity.CRITICAL, "not yet": Severity.UNKNOWN}


ASSUME_STOPPED = click.option(
    "--assume-stopped",
    is_flag=True,
    help="The scheduler cannot be asked, and I know that nothing of this run runs or waits.",
)


@click.command()
@click.argument("what", metavar="PLAN.json|ID")
@click.option("-n", "--dry-run", is_flag=True, help="Show the plan and stop.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@ASSUME_STOPPED
@click.pass_context
def apply(ctx: click.Context, what: str, dry_run: bool, yes: bool, assume_stopped: bool) -> None:
    """Apply a plan that --out wrote, or finish an unfinished change.

    A plan is applied only while the run is still as it was when the plan was made.
    """
    from ops import plan as plans

    run = session.new_or_found(ctx)
    if what.isdigit():
        return _end(ctx, run, what, True, (dry_run, yes, assume_stopped))
    try:
        made = plans.loads(Path(what).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the plan cannot be read: {error}", what) from None
    if Path(made.run) != run.dir:
        raise Refused(f"the plan is for {made.run}", str(run.dir), f"m4ops --run {made.run} apply {what}")
    if strange := plans.foreign(made, run):
        raise Refused(f"the plan changes what is not this run's: {', '.join(strange[:3])}", what, "make the plan here")
    _carry(ctx, run, _assumed(made, assume_stopped), dry_run, yes)


@click.command()
@click.argument("change", required=False, metavar="[ID]")
@click.option("-n", "--dry-run", is_flag=True, help="Show the plan and stop.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@ASSUME_STOPPED
@click.pass_context
def undo(ctx: click.Context, change: str | None, dry_run: bool, yes: bool, assume_stopped: bool) -> None:
    """Take a change back, to the byte.

    Without ID: the newest change that stands. Once the trainer has saved again the world is another one, and undo says
    so instead of overwriting anything.
    """
    from msgspec.structs import replace

    from ops import journal
    from ops import plan as plans

    run, _ = session.find(ctx)
    entry = journal.find(journal.read(run.dir), change)
    if entry.change.status == "unfinished":
        forward = change is None and bool(entry.change.undoes)  # the undo that stopped half way is what is meant
        return _end(ctx, run, entry.change.id, forward, (dry_run, yes, assume_stopped))
    if entry.change.status != "applied":
        raise Refused(
            f"change {entry.change.id} is {entry.change.status} already", str(run.dir), f"{session.me(ctx)} history"
        )
    done = plans.from_json(entry.plan)
    back = replace(plans.inverse(done, entry.change.id, assume_stopped), command=session.typed())
    if not back.actions:
        raise Refused(f"change {entry.change.id} ({entry.change.title}) left nothing to take back", str(run.dir))
    _carry(ctx, run, back, dry_run, yes)


def _carry(ctx: click.Context, run: Run, made: Plan, dry_run: bool, yes: bool) -> None:
    """Show a plan, ask, apply it."""
    from ops.cli import carry
    from ops.interventions import parking
    from ops.views.plan import plan_text

    if not made.wish.get("assume_stopped"):
        parking.refuse_loose(made.actions, carry.world(run).jobs, run.name)
    session.out(plan_text(made, session.color()))
    if not dry_run:
        session.confirm(yes)
        carry.carried(ctx, run, made)


def _assumed(made: Plan, assume_stopped: bool) -> Plan:
    from msgspec.structs import replace

    return replace(made, wish={**made.wish, "assume_stopped": True}) if assume_stopped else made


def _end(ctx: click.Context, run: Run, identity: str, forward: bool, said: tuple[bool, bool, bool]) -> None:
    """Finish or take back a change that stopped half way; `said` are -n, -y and --assume-stopped."""
    from ops import executor, journal
    from ops.cli import carry
    from ops.views.plan import plan_text

    dry_run, yes, assume_stopped = said
    entry = journal.find(journal.read(run.dir), identity)
    if entry.change.status != "unfinished":
        raise Refused(
            f"change {identity} is {entry.change.status}: there is nothing to finish",
            str(run.dir),
            f"{session.me(ctx)} history",
        )
    what = "this finishes it" if forward else "this takes back what was done"
    session.say(f"change {identity} ({entry.change.title}) is unfinished: {what}")
    session.out(plan_text(executor.rest(entry, forward), session.color()))
    if dry_run:
        return
    session.confirm(yes)
    executor.finish(identity, run.dir, carry.world(run), forward, assume_stopped)
    session.say(f"change {identity} is {'applied' if forward else 'rolled back'}")


@click.command()
@click.argument("change", required=False, metavar="[ID]")
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait for the verdict, at most so long.")
@json_option
@click.pass_context
def verify(ctx: click.Context, change: str | None, wait: float, as_json: bool) -> None:
    """Did the resume do what the plan promised? yes, no, or not yet.

    Compares the first log lines after the change with the promised step, LR and wandb id. Exit 0: yes, 2: no, 3: not yet.
    """
    from ops import snapshot
    from ops.detectors import promise
    from ops.views.promises import checks_of

    run, _ = session.find(ctx)
    end = time.time() + wait
    while True:
        seen = snapshot.further_back(snapshot.beside_log(run, time.time(), Unknown("not asked")), LOOK)
        found = _promised(seen, change)
        seen = snapshot.back_to(seen, found.log_offset or 0)
        checks = checks_of(seen, found)
        if isinstance(checks, Unknown):
            raise Unreachable(f"the promises cannot be checked: {checks.reason}", str(run.dir), "m4ops status")
        verdict = promise.overall(checks)
        if verdict != "not yet" or time.time() >= end:
            break
        time.sleep(0.5)
    if as_json:
        from msgspec import to_builtins

        from ops.views import data

        session.out(
            data.dumps(
                {
                    "schema": "m4ops.verify/1",
                    "change": found.id,
                    "verdict": verdict,
                    "checks": to_builtins(checks),
                }
            )
        )
    else:
        session.out(f"change {found.id} ({found.title}): {verdict}")
        for c in checks:
            where = f"  (line {c.line})" if c.line else ""
            session.out(f"  {c.what:9} {c.verdict:8} expected {c.expected}; seen {c.seen}{where}")
    sys.exit(int(EXIT[verdict]))


def _promised(seen: Snapshot, wanted: str | None) -> Change:
    """The change to verify. Raises Refused."""
    candidates = [c for c in seen.history or () if c.status == "applied" and c.expectation is not None]
    for change in reversed(candidates):
        if wanted in (None, change.id):
            return change
    raise Refused(
        f"change {wanted} promised nothing" if wanted else "no change that stands promised anything",
        str(seen.run.dir),
        "m4ops history",
    )


@click.command()
@click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the run is made; default: a new folder in the temporary directory; with --slurm, in this one.",
)
@click.option("--svg", type=click.Path(dir_okay=False, path_type=Path), help="Render what was shown as a picture.")
@click.option("--transcript", type=click.Path(dir_okay=False, path_type=Path), help="Write what was shown as text.")
@click.option("--slurm", is_flag=True, help="Train under the Slurm of this environment, on two nodes or more.")
@click.option(
    "--lose-node",
    envvar="M4OPS_DEMO_LOSE_NODE",
    default="",
    metavar="COMMAND",
    help="With --slurm: how the cluster's owner takes {node} away in the middle; default: no node is lost.",
)
@click.argument("flags", nargs=-1, metavar="[-- SBATCH FLAGS]")
def demo(
    folder: Path | None, svg: Path | None, transcript: Path | None, slurm: bool, lose_node: str, flags: tuple[str, ...]
) -> None:
    """A real small training: launched, diverging, caught, rewound, recovered.

    Needs the demo extra (torch, accelerate, wandb) and no Slurm: an embedded scheduler answers Slurm's commands. With
    --slurm the training runs on the cluster that the environment names, from a folder that all its nodes see; SBATCH_*
    variables and flags after -- say where (--partition, --account). m4ops takes no node from a cluster by itself.
    """
    from ops.demo import show
    from ops.demo.cluster import Cluster

    if flags and not slurm:
        raise BadInput(f"flags of sbatch without --slurm: {' '.join(flags)}", hint="m4ops demo --slurm -- FLAGS")
    show.run(folder, svg, transcript, Cluster(flags, lose_node) if slurm else None)
