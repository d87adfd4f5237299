"""`m4ops check`: what cron runs. One question to the scheduler a tick, however many runs are looked at."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec import Struct, field
from msgspec.structs import replace

from ops.cli import session
from ops.cli.session import json_option
from ops.errors import Busy, OpsError
from ops.model import Finding, Run, Severity, Snapshot

if TYPE_CHECKING:
    from ops.alerts.words import Ack
    from ops.config import Config
    from ops.lease import Lease
    from ops.policy import Policy
    from ops.requests import Reply
    from ops.state import Memory
    from ops.tick import Seen


NAMED = 8
"""Runs that are named in one line."""


class Checked(Struct, frozen=True):
    """A run's verdict; without a snapshot the run itself could not be looked at."""

    run: Run
    snapshot: Snapshot | None
    findings: tuple[Finding, ...]
    severity: Severity
    taken: Mapping[str, Ack] = field(default_factory=dict)
    """Who has taken which of them, by their key."""
    sees: bool | None = False
    """Whether everything could be read; None: something could not, for the first time."""


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
    from ops.views import words

    try:
        _parse(sinks)
        runs, lost = _runs(ctx, all_runs, wanted)
        if test:
            from ops.cli import trial

            failed = [run.name for run, config in runs if not trial.tried(run, _policy(run, config, sinks))]
            sys.exit(int(bool(failed)))
        seen = checked_runs(runs, sinks, as_json, every or 0)
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
    _beat(runs, seen)
    if saves:
        _after_saves(runs)
    sys.exit(int(worst))


def _beat(runs: Sequence[tuple[Run, Config]], checked: Sequence[Checked]) -> None:
    """Tell those who wait outside that the checks live, or that they are blind. What fails is told after a while."""
    from ops import watch

    addresses: dict[str, set[bool | None]] = {}
    for (_, config), one in zip(runs, checked, strict=True):
        addresses.setdefault(config.heartbeat, set()).add(one.sees)
    sure = {address: False not in sees for address, sees in addresses.items() if address and None not in sees}
    said: dict[str, str] = {"": ""}
    if sure:
        from ops.alerts import heartbeat

        said |= heartbeat.beat(sure)
    for run, config in runs:
        if config.heartbeat in said:
            watch.beaten(run, config.heartbeat, said[config.heartbeat], time.time())


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
            lost.append(_lost(Run(Path(name), Path(name).name), error))
    return list(runs.values()), tuple(lost)


def checked_runs(
    runs: Sequence[tuple[Run, Config]], sinks: tuple[str, ...], quiet: bool, every: int = 0
) -> tuple[Checked, ...]:
    """Look at all runs by one question, judge each, and tell what is new. `quiet`: not to stdout by default.

    `every`: this check comes every so many minutes; 0: it came by itself.
    """
    from ops import tick

    seen = tick.look([run for run, _ in runs], session.lately(), time.time())
    checked = []
    for (run, config), one in zip(runs, seen, strict=True):
        policy = _policy(run, config, sinks)
        if isinstance(one, OSError):
            checked.append(_unseen(run, policy, one))
            continue
        try:
            checked.append(_check(run, one, policy, quiet, every))
        except (OpsError, OSError) as error:
            checked.append(_impaired(run, one, policy, quiet, error))
    return tuple(checked)


def _impaired(run: Run, seen: Seen, policy: Policy, quiet: bool, error: Exception) -> Checked:
    """What is seen is judged and told though the run takes no notes: they lie aside, on this host; or nowhere at all."""
    what, where = (error.what, error.where) if isinstance(error, OpsError) else (str(error), "")
    summary = f"checks keep no notes with this run: {what}"
    evidence = (where, f"{socket.gethostname()} keeps them meanwhile: another host may tell the same once more")
    hurt = Finding("check-impaired", Severity.WARNING, summary, tuple(filter(None, evidence)))
    try:
        return _check(run, seen, policy, quiet, 0, hurt)
    except (OpsError, OSError) as worse:
        session.say(f"m4ops check: {run.name}: {worse}")
    try:
        return _unkept(run, seen, hurt)
    except (OpsError, OSError):
        return _lost(run, error)


def _unkept(run: Run, seen: Seen, hurt: Finding) -> Checked:
    """Judge, and say it all: nobody remembers what was told. Raises OSError."""
    from ops import judging, state
    from ops.views.status import verdict

    judged = judging.judge(seen.snapshot, state.newest(run)[0])
    findings = (*judged.findings, hurt)
    for finding in findings:
        session.say(f"m4ops check: {finding.severity.name} {run.name}: {finding.summary}")
    return Checked(run, judged.snapshot, findings, verdict(judged.snapshot, findings))


def _policy(run: Run, config: Config, sinks: tuple[str, ...]) -> Policy:
    """Where news go. A file that another user's run names is not written: that would be done with our rights."""
    policy = config.alerts(sinks)
    kept = (sink for sink in policy.sinks if sink in sinks or not sink.startswith("prometheus:") or session.mine(run))
    return replace(policy, sinks=tuple(kept))


def _check(run: Run, seen: Seen, policy: Policy, quiet: bool, every: int, hurt: Finding | None = None) -> Checked:
    """`hurt`: why the notes go aside."""
    from ops import judging, state, tick, watch
    from ops.alerts import acks as kept
    from ops.alerts import notify
    from ops.views.status import verdict

    now = seen.snapshot.now
    acks = kept.read(run, now)
    try:
        place = state.aside(run) if hurt else run
        with state.lease(place, "tick", tick.LEASE) as held:
            memory, source = state.newest(run)
            keep = _keeper(place, held, memory if source == place else None)
            if memory.problem:
                session.say(f"m4ops check: {memory.problem}")
            judged = judging.judge(seen.snapshot, memory)
            picture, memory = judged.snapshot, judged.memory
            missed = watch.checked(run, now, every) if every else ()
            findings = (*judged.findings, *missed, *session.beside(picture, memory), *((hurt,) if hurt else ()))
            if quiet and not notify.targets((*policy.sinks, *policy.escalate_to)):
                keep(memory)
            else:
                desk = notify.Desk(run, policy, keep, acks, session.wandb_id(picture))
                memory, problems = notify.notify(desk, memory, findings, now)
                for problem in problems:
                    session.say(f"m4ops check: {problem}")
            if not hurt:
                tick.keep(run, seen)
                if source != run:
                    state.drop(source, state.FILE)
                kept.settle(run, now)
    except Busy:
        memory = state.load(run)
        judged = judging.judge(seen.snapshot, memory)
        picture, findings = judged.snapshot, judged.findings
    taken = session.taken(findings, memory, acks, now)
    checked = Checked(run, picture, findings, verdict(picture, findings), taken, _sees(findings, memory))
    _metrics(checked, policy, memory, acks)
    return checked


def _sees(findings: Sequence[Finding], memory: Memory) -> bool | None:
    """See `Checked.sees`: one squeue that did not answer rings nowhere, as it pages nobody."""
    from ops.alerts.episodes import PATIENCE

    dark = {finding.key for finding in findings if finding.severity is Severity.UNKNOWN}
    if not dark:
        return True
    lasting = any(episode.key in dark and episode.ticks >= PATIENCE for episode in memory.episodes)
    return False if lasting else None


def _keeper(run: Run, held: Lease, before: Memory | None = None) -> Callable[[Memory], None]:
    """What saves the memory while the lease is held, and raises when it was lost. What is there already is not written."""
    from ops import state

    def keep(memory: Memory) -> None:
        nonlocal before
        held.renew()
        if memory != before or memory.problem:
            state.save(run, memory)
            before = memory

    return keep


def _unseen(run: Run, policy: Policy, error: OSError) -> Checked:
    """Tell that a run cannot be looked at: it may be no more there, so the notes on that lie aside."""
    from ops import state, tick
    from ops.alerts import notify

    blind = Finding("check-unknown", Severity.UNKNOWN, f"this run cannot be watched: {error}")
    if notify.targets(policy.sinks):
        aside = state.aside(run)
        try:
            with state.lease(aside, "tick", tick.LEASE) as held:
                desk = notify.Desk(run, policy, _keeper(aside, held))
                notify.notify(desk, state.newest(run)[0], (blind,), time.time())
        except (OpsError, OSError) as failed:
            session.say(f"m4ops check: {failed}")
    return _lost(run, error)


def _metrics(checked: Checked, policy: Policy, memory: Memory, acks: Sequence[Ack]) -> None:
    """Write the files for Prometheus that are asked for."""
    files = [sink.partition(":")[2] for sink in policy.sinks if sink.startswith("prometheus:")]
    if not files or checked.snapshot is None:
        return
    from ops.alerts import prometheus

    text = prometheus.metrics(checked.snapshot, checked.severity, memory.episodes, acks)
    for file in files:
        try:
            prometheus.write(file, text, checked.run.name)
        except OpsError as error:
            session.say(f"m4ops check: {error}")


def _requests(
    checked: Sequence[Checked], runs: Sequence[tuple[Run, Config]], sinks: tuple[str, ...]
) -> Iterator[Checked]:
    """Carry out what teammates asked for; a request that failed makes the check fail too."""
    from ops.cli import request

    policies = {run.dir: _policy(run, config, sinks) for run, config in runs}
    for one in checked:
        if one.snapshot is None:
            continue
        try:
            replies = request.carry_out(one.run, one.snapshot.jobs, partial(_tell, one.run, policies[one.run.dir]))
        except (OpsError, OSError) as error:
            yield _lost(one.run, error)
        else:
            if any(r.outcome in ("failed", "unknown") for r in replies):
                yield Checked(one.run, None, (), Severity.WARNING)


def _tell(run: Run, policy: Policy, reply: Reply) -> None:
    """Say what became of a request: on stderr, which cron mails, and to the run's sinks."""
    from ops import state, tick
    from ops.alerts import notify
    from ops.alerts.words import OPENED, News, Pending
    from ops.cli.request import told

    session.say(f"m4ops check: {run.name}: {told(reply)}")
    policy = replace(policy, sinks=tuple(sink for sink in policy.sinks if sink != "stdout:"))
    if not notify.targets(policy.sinks):
        return
    severity = Severity.OK if reply.outcome == "done" else Severity.WARNING
    news = News(OPENED, Finding("request", severity, told(reply)), reply.time, reply.time)
    with state.lease(run, "tick", tick.LEASE, notify.LIMIT) as held:
        desk = notify.Desk(run, policy, _keeper(run, held))
        message = desk.message((news,), reply.time)
        for problem in notify.post(desk, state.load(run), [Pending(message)], reply.time)[1]:
            session.say(f"m4ops check: {problem}")


def _parse(sinks: Sequence[str]) -> None:
    from ops.alerts.sinks import parse

    for sink in sinks:
        parse(sink)


def _lost(run: Run, error: Exception) -> Checked:
    session.say(f"m4ops check: UNKNOWN: {run.name}: {error}")
    return Checked(run, None, (Finding("run-unknown", Severity.UNKNOWN, str(error)),), Severity.UNKNOWN)


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
