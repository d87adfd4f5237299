"""Tell people, once: `episodes` decides what, `sinks` sends it, `notify` loses nothing in between."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ops.alerts.episodes import Pending, advance
from ops.alerts.sinks import Failure, deliver, mark
from ops.model import Finding, Run

if TYPE_CHECKING:
    from ops.state import Memory

MOST_PENDING = 100
"""Messages kept for a sink that does not take them."""
LONGEST_PENDING = 7 * 86400.0
"""Seconds for which they are kept."""


def notify(
    run: Run, memory: Memory, findings: Sequence[Finding], sinks: Sequence[str], now: float
) -> tuple[Memory, tuple[Failure, ...]]:
    """One tick of the alerts: to every sink what it lacks, be it new or what an earlier tick could not send.

    Load the memory and call this with one lease of the run held, and save what it returns before the lease is
    given back. A process killed in between tells its messages again at the next tick; it never loses one.
    Without a sink, standard output is one: cron mails it.
    """
    episodes, fresh = advance(memory.episodes, findings, now)
    host = socket.gethostname()
    new = (Pending(replace(message, run=run.name, host=host)) for message in fresh)
    outbox, failures = _bounded((*memory.outbox, *new), now)
    targets = tuple(dict.fromkeys(sinks)) or ("stdout:",)
    for sink in targets:
        outbox, failed = _offer(outbox, sink)
        failures += failed
    waiting = tuple(pending for pending in outbox if not {mark(sink) for sink in targets} <= set(pending.done))
    return replace(memory, episodes=episodes, outbox=waiting), failures


def _offer(outbox: tuple[Pending, ...], sink: str) -> tuple[tuple[Pending, ...], tuple[Failure, ...]]:
    """Deliver to `sink` what it has not had, and note what it took."""
    owed = tuple(pending.message for pending in outbox if mark(sink) not in pending.done)
    failures = deliver(owed, (sink,))
    taken = {message.id for message in owed} - {failure.message.id for failure in failures}
    return tuple(
        replace(pending, done=(*pending.done, mark(sink))) if pending.message.id in taken else pending
        for pending in outbox
    ), failures


def _bounded(outbox: tuple[Pending, ...], now: float) -> tuple[tuple[Pending, ...], tuple[Failure, ...]]:
    """The outbox without what is too old or too much, and a failure for each message given up."""
    kept = tuple(p for p in outbox if now - p.message.time <= LONGEST_PENDING)[-MOST_PENDING:]
    given_up = tuple(
        Failure("every sink that lacks it", p.message, "given up: undelivered for too long")
        for p in outbox
        if p not in kept
    )
    return kept, given_up
