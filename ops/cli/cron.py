"""`m4ops cron`: who runs `m4ops check` every few minutes: cron, Slurm's cron, or a job that submits its successor."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import click

from ops import recent, requests
from ops.cli import session
from ops.errors import BadInput, OpsError
from ops.model import Run, Unknown
from ops.shell import Shell

BACKENDS = ("crontab", "scrontab", "sbatch")
ALL = click.option(
    "--all", "all_runs", is_flag=True, help="All runs under M4OPS_ROOTS and the roots of your m4ops.toml."
)


@click.group()
def cron() -> None:
    """Let cron run m4ops check: install, remove, status."""


@cron.command("install", context_settings={"ignore_unknown_options": True})
@click.option(
    "--backend", type=click.Choice(BACKENDS), default="crontab", show_default=True, help="Who runs the check."
)
@click.option("--minutes", default=10, show_default=True, type=click.IntRange(1, 59), help="How often.")
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    metavar="URI",
    help="Where new findings go; default: as m4ops.toml says, else cron's mail.",
)
@ALL
@click.option("-n", "--dry-run", is_flag=True, help="Print what would be written and stop.")
@click.argument("flags", nargs=-1, metavar="[-- SBATCH FLAGS]")
@click.pass_context
def install(
    ctx: click.Context,
    backend: str,
    minutes: int,
    sinks: tuple[str, ...],
    all_runs: bool,
    dry_run: bool,
    flags: tuple[str, ...],
) -> None:
    """Have this run checked every few minutes, or all of yours by one check, in place of an earlier install.

    The same tick does with finished checkpoints what on_save of m4ops.toml declares (m4ops watch-saves).

    crontab: one line of yours on this host. scrontab: Slurm's own cron, where the cluster has it. sbatch: a small job
    that submits its successor first; one chain a run, and a note if it breaks. Flags after -- go to the last two.
    A check that did not come is told of by the next one.
    """
    from ops import chain, crontab, scrontab, state, watch
    from ops.alerts.sinks import vet
    from ops.cli import checking

    for sink in sinks:
        vet(sink)
    run = _meant(ctx, all_runs)
    checked = _runs() if all_runs else (run,)
    if not checked:
        raise OpsError(
            "no run lies under the configured roots",
            "M4OPS_ROOTS",
            "export M4OPS_ROOTS=FOLDER, whose sub-folders are runs",
        )
    arguments = ("--saves", *(a for sink in sinks for a in ("--sink", sink)))
    if backend == "crontab":
        if flags:
            raise BadInput(f"cron takes no flags of sbatch: {' '.join(flags)}", hint="--backend scrontab or sbatch do")
        line = f"{crontab.line(run, minutes, arguments)} {crontab.tag(run)}"
        session.out(line if dry_run else crontab.install(run, minutes, arguments))
    elif backend == "scrontab":
        text = scrontab.block(run, minutes, arguments, flags)
        session.out(text if dry_run else scrontab.install(run, minutes, arguments, flags, _scheduler()))
    elif dry_run:
        session.out(chain.script(run, chain.Every(minutes, arguments, flags), "…").rstrip())
    else:
        job = chain.install(run, chain.Every(minutes, arguments, flags), _scheduler(), session.submitter())
        what, which = (f"{len(checked)} runs", " --all") if all_runs else (run.name, "")
        session.out(f"job {job} checks {what} and submits its successor every {minutes} minutes")
        session.say(
            f"{session.me(ctx)} cron status{which} shows the chain, {session.me(ctx)} cron remove{which} ends it"
        )
    for each in () if dry_run else checked:
        watch.expect(each, time.time(), minutes)
    if not sinks and any(not checking.tells(each, state.apart(each)) for each in checked):
        session.say("of another user's run this check prints what is new; its sinks are told by its owner's: --sink")


@cron.command("remove")
@click.option("--backend", type=click.Choice(BACKENDS), help="Only this one; default: whatever is installed.")
@ALL
@click.pass_context
def remove(ctx: click.Context, backend: str | None, all_runs: bool) -> None:
    """Have this run checked no more; with --all what checks all of them."""
    from ops import chain, crontab, scrontab, watch

    run = _meant(ctx, all_runs)
    removers = {
        "crontab": lambda: crontab.remove(run),
        "scrontab": lambda: scrontab.remove(run, _scheduler()),
        "sbatch": lambda: chain.remove(run, _scheduler()),
    }
    removed = []
    for name in [backend] if backend else BACKENDS:
        try:
            removed += [name] if removers[name]() else []
        except OpsError as error:
            if backend:
                raise
            _unasked(name, error)
    for checked in _runs() if all_runs else (run,):
        watch.forget(checked)
    session.say(f"removed: {', '.join(removed)}" if removed else f"nothing was installed for {run.name}")


@cron.command("status")
@ALL
@click.pass_context
def status(ctx: click.Context, all_runs: bool) -> None:
    """Show who checks this run, or all of them; exit 1 if nobody does, or no more."""
    from ops import discovery, state, watch

    run = _meant(ctx, all_runs)
    alive = _who(run, "")
    if not all_runs and Path(os.path.realpath(run.dir)) in discovery.folders(dict(os.environ)):
        alive = _who(state.everything(), "all runs by ") or alive
    for trouble in () if all_runs else watch.silent(run, time.time()):
        session.out(f"  {trouble.severity.name}: {trouble.summary}")
        alive = False
    if not alive:
        session.out(f"nobody checks {run.name}: {session.me(ctx)} cron install{' --all' * all_runs}")
    sys.exit(0 if alive else 1)


def _meant(ctx: click.Context, all_runs: bool) -> Run:
    """The run, or what stands for all of them."""
    from ops import state

    if not all_runs:
        return session.find(ctx)[0]
    if ctx.find_root().obj:
        raise BadInput("--run and --all exclude one another", hint="m4ops cron --help")
    return state.everything()


def _runs() -> tuple[Run, ...]:
    """Every run under the configured roots that can be described."""
    from ops import discovery

    found = []
    for folder in discovery.folders(dict(os.environ)):
        with suppress(OpsError, OSError):
            found.append(discovery.describe(folder)[0])
    return tuple(found)


def _who(run: Run, label: str) -> bool:
    """Tell who checks it; whether anybody does."""
    from ops import crontab, scrontab

    alive = False
    asked: dict[str, Callable[[], str | None]] = {
        "crontab": lambda: crontab.installed(run),
        "scrontab": lambda: scrontab.installed(run, _scheduler()),
    }
    for name, ask in asked.items():
        try:
            text = ask()
        except OpsError as error:
            _unasked(name, error)
        else:
            disabled = text is not None and "#DISABLED" in text
            alive = alive or (text is not None and not disabled)
            if text:
                session.out(f"{label}{name}{' (DISABLED: its job was cancelled)' if disabled else ''}: {text}")
    return _chain_status(run, label) or alive


def _chain_status(run: Run, label: str) -> bool:
    """Tell of the chain; whether it lives."""
    from ops import chain
    from ops.views import words

    found = chain.installed(run)
    if found is None:
        return False
    troubles = chain.look(run, time.time())
    links = chain.queued(run, _scheduler())
    own = [link for link in links or () if link.token == found.token]
    ended = not own and not isinstance(links, Unknown) and requests.owner(run) == os.geteuid()
    told = ", ".join(f"{link.job} {link.state}" for link in own) or "none of yours"
    told = f"UNKNOWN ({links.reason})" if isinstance(links, Unknown) else told
    last = words.ago(time.time() - found.beat) if found.beat else "never"
    session.out(f"{label}sbatch: every {found.minutes} minutes; last sign of life {last}; links in the queue: {told}")
    for trouble in troubles:
        session.out(f"  {trouble.severity.name}: {trouble.summary}" + "".join(f"; {e}" for e in trouble.evidence))
    if ended and not troubles:
        session.out("  WARNING: no link is in the queue: the chain has ended")
    return not troubles and not ended


def _unasked(name: str, error: OpsError) -> None:
    """A backend that this host does not have is not worth a word; one that fails is."""
    if "there is no" not in error.what and "has no" not in error.what:
        session.say(f"{name}: UNKNOWN ({error.what})")


def _scheduler() -> Shell:
    return recent.forgetting(session.scheduler())
