"""`m4ops check`: what cron runs. One question to the scheduler a tick, however many runs are looked at."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import click

from ops.cli import checking, session
from ops.cli.checking import Checked
from ops.cli.session import json_option
from ops.config import Config
from ops.errors import OpsError
from ops.model import Run, Severity

NAMED = 8
"""Runs that are named in one line."""


@click.command()
@json_option
@click.option(
    "--sink",
    "sinks",
    multiple=True,
    metavar="URI",
    help="stdout:, https://…, mailto:…, smtp://host:port/…, or what docs/alerts.md lists (more than m4ops.toml says).",
)
@click.option(
    "--saves",
    is_flag=True,
    help="Afterwards do what m4ops watch-saves does, of your own runs; m4ops cron install adds it.",
)
@click.option("--all", "all_runs", is_flag=True, help="Every run under M4OPS_ROOTS and the roots of your m4ops.toml.")
@click.option("--every", metavar="MINUTES", type=click.IntRange(1), help="What cron says: missed checks are told of.")
@click.option("--run", "wanted", multiple=True, metavar="DIR|NAME", help="One of several runs; may be repeated.")
@click.option("--test", is_flag=True, help="Only send a test to every sink, and say what became of it.")
@click.pass_context
def check(
    ctx: click.Context,
    /,
    as_json: bool,
    sinks: tuple[str, ...],
    saves: bool,
    all_runs: bool,
    every: int | None,
    wanted: tuple[str, ...],
    test: bool,
) -> None:
    """For cron: exit 0, 1, 2 or 3; new findings go to the sinks, known ones are quiet.

    The exit code is the worst finding's, as Nagios has them: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN. Of several runs
    it is the worst run's; the scheduler is asked once for all of them.
    """
    from ops import discovery
    from ops.views import words

    try:
        _parse(sinks)
        runs, lost = _runs(ctx, all_runs, wanted)
        whole = discovery.own(dict(os.environ)).heartbeat if all_runs else ""
        if test:
            from ops.cli import trial

            well = [trial.tried(run, checking.policy_of(run, config, sinks)) for run, config in runs]
            well += [trial.beaten(whole)] if whole else []
            sys.exit(int(not all(well)))
        seen = checking.checked_runs(runs, sinks, as_json, every or 0)
        checked = (*lost, *seen)
    except (OpsError, OSError) as error:
        session.say(f"m4ops check: UNKNOWN: {error}")
        sys.exit(int(Severity.UNKNOWN))
    checked = (*checked, *_requests(checked, runs, sinks))
    worst = max((c.severity for c in checked), key=words.URGENCY.index, default=Severity.OK)
    if as_json:
        _print(checked, worst, many=all_runs or len(wanted) > 1)
    elif worst and sys.stderr.isatty():
        session.say(_stands(checked))
    _beat(runs, seen, whole, lost)
    if saves:
        _after_saves(runs)
    sys.exit(int(worst))


def _beat(runs: Sequence[tuple[Run, Config]], checked: Sequence[Checked], whole: str, lost: Sequence[Checked]) -> None:
    """Tell those who wait outside that the checks live, or that they are blind. What fails is told after a while.

    Who only looks at another's run says nothing of whether its own checks come. `whole`: the address that waits for the
    check of all runs.
    """
    from ops import state, watch

    runs = [(run, config if checking.tells(run, state.apart(run)) else Config()) for run, config in runs]
    addresses: dict[str, set[bool | None]] = {}
    for (_, config), one in zip(runs, checked, strict=True):
        addresses.setdefault(config.heartbeat, set()).add(one.sees)
    addresses.setdefault(whole, set()).update(_seen_of_mine(checked, lost))
    sure = {address: False not in sees for address, sees in addresses.items() if address and None not in sees}
    said: dict[str, str] = {"": ""}
    if sure:
        from ops.alerts import heartbeat

        said |= heartbeat.beat(sure)
    for run, config in runs:
        if config.heartbeat in said:
            watch.beaten(run, config.heartbeat, said[config.heartbeat], time.time())
    if whole in sure and watch.beaten(state.everything(), whole, said[whole], time.time()) == watch.UNHEARD:
        session.say(f"m4ops check --all: {watch.unheard(state.everything())[0].summary}")


def _seen_of_mine(checked: Sequence[Checked], lost: Sequence[Checked]) -> set[bool | None]:
    """What could be seen of this user's runs, or of all where none is; of one that is not even found nothing is sure."""
    sees = {one.run.dir: one.sees for one in checked} | {one.run.dir: None for one in lost}
    mine = {one.run.dir for one in (*checked, *lost) if not session.anothers(one.run)}
    return {sees[run] for run in mine or sees}


def _stands(checked: Sequence[Checked]) -> str:
    """Why the exit code is not 0, for a person: what was told before, or waits to be seen twice, is not printed again."""
    wrong = [f"{one.run.name} {one.severity.name}" for one in checked if one.severity]
    more = f" and {len(wrong) - NAMED} more" if len(wrong) > NAMED else ""
    return f"{', '.join(wrong[:NAMED])}{more}; only news are printed, m4ops status shows all"


def _after_saves(runs: Sequence[tuple[Run, Config]]) -> None:
    """Serve finished checkpoints, where that is declared. What fails in there is a finding of the next check.

    Never another user's: what a run declares would be done with the rights of whoever checks it.
    """
    sys.stdout.flush()  # an extraction may take its time
    for run, config in runs:
        if run.on_save and session.mine(run):
            from ops.cli.saves import served

            try:
                tuple(served(run, config))
            except (OpsError, OSError) as error:
                session.say(f"m4ops check: {run.name}: {error}")


def _runs(
    ctx: click.Context, all_runs: bool, wanted: Sequence[str]
) -> tuple[list[tuple[Run, Config]], tuple[Checked, ...]]:
    """The runs that are meant; one that cannot be found or described is UNKNOWN and does not hide the others."""
    from ops import discovery

    env = dict(os.environ)
    names = [str(folder) for folder in discovery.folders(env)] if all_runs else []
    if all_runs and not names:
        raise OpsError(
            "no run lies under the configured roots",
            "M4OPS_ROOTS",
            "export M4OPS_ROOTS=FOLDER, whose sub-folders are runs",
        )
    names += wanted
    if not names:
        return [session.find(ctx)], ()
    runs: dict[Path, tuple[Run, Config]] = {}
    lost = []
    for name in names:
        try:
            run, config = discovery.find(name, Path.cwd())
            runs.setdefault(run.dir, (run, config))
        except (OpsError, OSError) as error:
            lost.append(checking.lost(Run(Path(name), Path(name).name), error))
    return list(runs.values()), tuple(lost)


def _requests(
    checked: Sequence[Checked], runs: Sequence[tuple[Run, Config]], sinks: tuple[str, ...]
) -> Iterator[Checked]:
    """Carry out what teammates asked for; a request that failed makes the check fail too."""
    from ops.cli import request

    policies = {run.dir: checking.policy_of(run, config, sinks) for run, config in runs}
    for one in checked:
        if one.snapshot is None:
            continue
        try:
            replies = request.carry_out(
                one.run, one.snapshot.jobs, partial(checking.tell, one.run, policies[one.run.dir])
            )
        except (OpsError, OSError) as error:
            yield checking.lost(one.run, error)
        else:
            if any(r.outcome in ("failed", "unknown") for r in replies):
                yield Checked(one.run, None, (), Severity.WARNING)


def _parse(sinks: Sequence[str]) -> None:
    from ops.alerts.sinks import parse

    for sink in sinks:
        parse(sink)


def _print(checked: Sequence[Checked], worst: Severity, many: bool) -> None:
    from ops.views import data

    told = [data.check_json(c.snapshot, c.findings, c.taken) for c in checked if c.snapshot is not None]
    if many:
        lost = [
            {"name": c.run.name, "dir": str(c.run.dir), "why": c.findings[0].summary}
            for c in checked
            if c.findings and not c.snapshot
        ]
        session.out(data.dumps(data.checks_json(told, lost, worst)))
    elif told:
        session.out(data.dumps(told[0]))
