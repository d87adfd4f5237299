"""`m4ops check --test`: do alerts of this run reach anybody? A test goes to every sink, and is kept nowhere."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

from ops import snapshot
from ops.alerts import heartbeat, sinks
from ops.alerts.address import Answered, NotSent, mask
from ops.alerts.notify import targets
from ops.alerts.words import OPENED, RESOLVED, Message, News
from ops.cli import session
from ops.errors import OpsError
from ops.model import Finding, Run, Severity
from ops.policy import Policy


def tried(run: Run, policy: Policy) -> bool:
    """Send it, say of each sink what became of it, and whether all took it."""
    wandb = session.wandb_id(session.look(run)) if any(uri.startswith("wandb:") for uri in _all(policy)) else ""
    failed = 0
    for uri in _all(policy):
        reason = _told(uri, run, wandb)
        failed += bool(reason)
        session.out(f"{mask(uri)}: {f'FAILED: {reason}' if reason else 'taken'}")
    if policy.heartbeat:
        failed += not beaten(policy.heartbeat)
    if not _all(policy):
        session.say("no `sinks` in m4ops.toml: what is new is printed, and cron mails that")
    return not failed


def beaten(address: str) -> bool:
    """Try a heartbeat, say what became of it, and whether it was heard."""
    reason = heartbeat.beat({address: True})[address]
    session.out(f"heartbeat {mask(address)}: {f'FAILED: {reason}' if reason else 'heard'}")
    return not reason


def _all(policy: Policy) -> tuple[str, ...]:
    return targets((*policy.sinks, *policy.escalate_to))


def _told(uri: str, run: Run, wandb: str) -> str:
    """What went wrong; empty if nothing did."""
    try:
        sinks.vet(uri)
        for news in _test(sinks.keeps_incidents(uri)):
            sinks.send(uri, Message((news,), news.time, run.name, str(run.dir), socket.gethostname(), wandb))
    except OpsError as error:
        return f"{error.what.removesuffix(f': {mask(uri)}')}; {error.hint}".removesuffix("; ")
    except (Answered, NotSent) as error:
        return str(error)
    return ""


def _test(incident: bool) -> Iterator[News]:
    """An incident is opened and closed at once: who is on duty is called."""
    now = time.time()
    words = f"this is a test by {snapshot.user()}: alerts of this run arrive here"
    finding = Finding("test", Severity.WARNING if incident else Severity.OK, words)
    yield News(OPENED, finding, now, now, incident=f"test.{now:.0f}")
    if incident:
        yield News(RESOLVED, finding, now, now, incident=f"test.{now:.0f}", last=True)
