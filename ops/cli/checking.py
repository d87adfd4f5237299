"""One check of runs: each is judged, what is new is told, and what is remembered is kept; also while something of it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from ops.cli import session
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


def checked_runs(
    runs: Sequence[tuple[Run, Config]], sinks: tuple[str, ...], quiet: bool, every: int = 0
) -> tuple[Checked, ...]:
    """Look at all runs by one question, judge each, and tell what is new. `quiet`: not to stdout by default.

    `every`: this check comes every so many minutes; 0: it came by itself.
    """
    from ops import state, tick

    seen = tick.look([run for run, _ in runs], session.lately(), time.time())
    checked = []
    for (run, config), one in zip(runs, seen, strict=True):
        policy = _told(run, policy_of(run, config, sinks), sinks, state.apart(run))
        if isinstance(one, OSError):
            checked.append(_unseen(run, policy, one))
            continue
        try:
            checked.append(_check(run, one, policy, quiet, every))
        except (OpsError, OSError) as error:
            checked.append(_impaired(run, one, _told(run, policy, sinks), quiet, error))
    return tuple(checked)


def _impaired(run: Run, seen: Seen, policy: Policy, quiet: bool, error: Exception) -> Checked:
    """What is seen is judged and told though the run takes no notes: they lie aside, on this host; or nowhere at all."""
    import socket

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
        return lost(run, error)


def _unkept(run: Run, seen: Seen, hurt: Finding) -> Checked:
    """Judge, and say it all: nobody remembers what was told. Raises OSError."""
    from ops import judging, state
    from ops.views.status import verdict

    judged = judging.judge(seen.snapshot, state.newest(run)[0])
    findings = (*judged.findings, hurt)
    for finding in findings:
        session.say(f"m4ops check: {finding.severity.name} {run.name}: {finding.summary}")
    return Checked(run, judged.snapshot, findings, verdict(judged.snapshot, findings))


def policy_of(run: Run, config: Config, sinks: tuple[str, ...]) -> Policy:
    """Where news go. A file that another user's run names is not written: that would be done with our rights."""
    policy = config.alerts(sinks)
    kept = (sink for sink in policy.sinks if sink in sinks or not sink.startswith("prometheus:") or session.mine(run))
    return replace(policy, sinks=tuple(kept))


def tells(run: Run, apart: bool) -> bool:
    """Whether checks by this user tell the run's sinks. Not of another's run with notes that lie `apart` from its own:

    they do not know what was told already.
    """
    return not (apart and session.anothers(run))


def _told(run: Run, policy: Policy, sinks: tuple[str, ...], apart: bool = True) -> Policy:
    """Whom checks by this user tell; always those that their command line names."""
    if tells(run, apart):
        return policy
    return replace(policy, sinks=tuple(sink for sink in policy.sinks if sink in sinks), escalate_to=())


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
            others = watch.awaiting(run) if not hurt else ()
            missed = watch.checked(run, now, every, notify.takers(policy)) if every else ()
            findings = (*judged.findings, *missed, *session.beside(picture, memory), *((hurt,) if hurt else ()))
            if quiet and not notify.targets((*policy.sinks, *policy.escalate_to)):
                keep(memory)
            else:
                desk = notify.Desk(
                    run, policy, keep, acks, session.wandb_id(picture), others, bool(others and not every)
                )
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
    return lost(run, error)


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


def tell(run: Run, policy: Policy, reply: Reply) -> None:
    """Say what became of a request: on stderr, which cron mails, and to the run's sinks."""
    from ops import state, tick, watch
    from ops.alerts import notify
    from ops.alerts.address import mark
    from ops.alerts.words import OPENED, News, Pending
    from ops.cli.request import told

    session.say(f"m4ops check: {run.name}: {told(reply)}")
    policy = replace(policy, sinks=tuple(sink for sink in policy.sinks if sink != "stdout:"))
    if not notify.targets(policy.sinks):
        return
    severity = Severity.OK if reply.outcome == "done" else Severity.WARNING
    news = News(OPENED, Finding("request", severity, told(reply)), reply.time, reply.time)
    with state.lease(run, "tick", tick.LEASE, notify.LIMIT) as held:
        desk = notify.Desk(run, policy, _keeper(run, held), others=watch.awaiting(run))
        pending = Pending(desk.message((news,), reply.time), (mark("stdout:"),))
        for problem in notify.post(desk, state.load(run), [pending], reply.time)[1]:
            session.say(f"m4ops check: {problem}")


def lost(run: Run, error: Exception) -> Checked:
    """A run that could not be found, described or looked at."""
    session.say(f"m4ops check: UNKNOWN: {run.name}: {error}")
    return Checked(run, None, (Finding("run-unknown", Severity.UNKNOWN, str(error)),), Severity.UNKNOWN)
