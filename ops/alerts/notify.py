"""One tick of the alerts: what is new is spooled first, then sent, and every delivery is noted at once.

A process killed at any point loses nothing. At worst the one message that was on its way comes twice, with its id.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from ops.alerts.address import STATE, Answered, NotSent, mark, mask
from ops.alerts.episodes import advance, escalate
from ops.alerts.gather import compact, gather
from ops.alerts.sinks import send, vet
from ops.alerts.text import subject
from ops.alerts.web import TIMEOUT
from ops.alerts.words import Ack, Health, Message, News, Pending
from ops.errors import OpsError
from ops.model import Finding, Run, Severity
from ops.policy import Policy

if TYPE_CHECKING:
    from ops.state import Memory

MOST_PENDING = 50
"""Messages kept for a sink that does not take them; beyond, they are put together."""
LONGEST_PENDING = 7 * 86400.0
"""Seconds for which they are kept."""
ROUND = 30.0
"""Seconds after which a slow sink is given no further message in this tick."""
LIMIT = 60.0
"""Seconds after which a tick waits no longer for any sink."""
PATIENCE = 2
"""Tries in a row that must fail before the other sinks are told of it."""


class Desk(Struct, frozen=True):
    """From where a run's news are told: how people want them, what they have taken on, and how the memory is kept.

    `keep` saves the memory, and raises when the lease it is kept under was lost.
    """

    run: Run
    policy: Policy
    keep: Callable[[Memory], None]
    acks: tuple[Ack, ...] = ()
    wandb: str = ""
    """The id of the run's wandb run now."""
    others: tuple[str, ...] = ()
    """The marks of sinks that other checks of the run tell: what these lack stays in the spool."""
    by_hand: bool = False
    """Whether what is printed is read by whoever typed the check, while those of cron's mail wait for theirs."""

    def targets(self, sinks: Iterable[str]) -> tuple[str, ...]:
        return tuple("stdout:typed" if uri == "stdout:" and self.by_hand else uri for uri in targets(sinks))

    def message(self, news: tuple[News, ...], now: float) -> Message:
        import socket

        return Message(news, now, self.run.name, str(self.run.dir), socket.gethostname(), self.wandb)


def notify(desk: Desk, memory: Memory, findings: Iterable[Finding], now: float) -> tuple[Memory, tuple[str, ...]]:
    """One tick: to every sink what it lacks, be it new or what an earlier tick could not send.

    Load the memory and call this with one lease of the run held. Returns the memory, kept, and what went wrong for the
    first time, in words that may be shown.
    """
    policy = desk.policy
    episodes, news = advance(memory.episodes, findings, now, desk.acks, policy.repeat_after)
    late: tuple[News, ...] = ()
    if policy.escalate_to:
        episodes, late = escalate(episodes, now, desk.acks, policy.escalate_after, policy.urgent(now))
    told, held, pace = gather((*memory.held, *news), now, policy, memory.pace, episodes)
    second = (*late, *(n for n in told if n.escalated and policy.escalate_to))
    memory = replace(memory, episodes=episodes, held=held, pace=pace)
    fresh = ((told, False), (second, True))
    return post(desk, memory, [Pending(desk.message(n, now), (), other) for n, other in fresh if n], now)


def post(desk: Desk, memory: Memory, fresh: Sequence[Pending], now: float) -> tuple[Memory, tuple[str, ...]]:
    """Spool messages, and bring to every sink what it lacks. As `notify`."""
    lists = {False: desk.targets(desk.policy.sinks), True: desk.targets(desk.policy.escalate_to)}
    outbox, problems = _bounded((*memory.outbox, *fresh), now)
    known = {*map(mark, (*lists[False], *lists[True])), *desk.others}
    health = {h.mark: h for h in memory.sinks if h.mark in known}
    memory, bad = _vetted(replace(memory, outbox=outbox), (*lists[False], *lists[True]), health, now)
    if all(uri in bad for uri in lists[False]):
        lists[False] += desk.targets(["stdout:"])
    uris = tuple(dict.fromkeys((*lists[False], *lists[True])))
    if fresh:
        desk.keep(memory)
    owed = {
        uri: [p.message for p in outbox if uri in lists[p.escalation] and mark(uri) not in p.done]
        for uri in uris
        if uri not in bad
    }
    ready = {uri: owed[uri] for uri in owed if owed[uri] and _due(health.get(mark(uri)), owed[uri], now)}
    failures = {uri: (reason, 0.0) for uri, reason in bad.items() if reason}
    for uri, message, reason, wait in _sent(ready):
        if reason:
            failures[uri] = (reason, wait)
        else:
            memory = replace(memory, outbox=tuple(_noted(p, message, mark(uri)) for p in memory.outbox))
            desk.keep(memory)
    idle = {mark(uri) for uri in uris if uri in bad or (owed[uri] and uri not in ready)}
    idle |= set(desk.others) - set(map(mark, uris))
    after = {m: h for m, h in health.items() if m in idle}
    after |= {mark(uri): _failed(health.get(mark(uri)), uri, failure, now) for uri, failure in failures.items()}
    takers = {False: {*map(mark, lists[False]), *desk.others}, True: set(map(mark, lists[True]))}
    waiting = (p for p in memory.outbox if not takers[p.escalation] <= set(p.done))
    memory = replace(memory, outbox=tuple(waiting), sinks=tuple(after.values()))
    desk.keep(memory)
    return memory, problems + tuple(f"{h.sink}: {h.reason}" for h in after.values() if h.tries == 1 and h.last == now)


def targets(sinks: Iterable[str]) -> tuple[str, ...]:
    """The sinks that take messages, each once."""
    return tuple(dict.fromkeys(sink for sink in sinks if not sink.startswith(f"{STATE}:")))


def takers(policy: Policy) -> tuple[str, ...]:
    """The marks of those who are told everything."""
    return tuple(map(mark, targets(policy.sinks) or ("stdout:",)))


def troubles(memory: Memory) -> tuple[Finding, ...]:
    """Sinks that fail again and again, so that the others tell of it."""
    return tuple(
        Finding(
            "sink-failing",
            Severity.WARNING,
            f"alerts do not reach {health.sink}: {health.reason}",
            (f"tried {health.tries} times; nothing is lost, it is tried again",),
            episode=f"sink:{health.mark}",
        )
        for health in memory.sinks
        if health.tries >= PATIENCE
    )


def _vetted(
    memory: Memory, uris: Sequence[str], health: dict[str, Health], now: float
) -> tuple[Memory, dict[str, str]]:
    """Look at the sinks that are new, and what is wrong with them; empty: it was said, and is not asked again yet."""
    good, bad = [], {}
    for uri in uris:
        known = health.get(mark(uri))
        if mark(uri) in memory.vetted:
            good.append(mark(uri))
        elif known and now < known.retry:
            bad[uri] = ""
        else:
            try:
                vet(uri)
                good.append(mark(uri))
            except OpsError as error:
                bad[uri] = f"{error.what.removesuffix(f': {mask(uri)}')}; {error.hint}".removesuffix("; ")
    return replace(memory, vetted=tuple(good)), bad


def _due(health: Health | None, owed: Sequence[Message], now: float) -> bool:
    """Whether a sink is tried now: a failing one when its pause is over, or for what is new unless it asked for peace."""
    fresh = any(message.time >= now for message in owed)
    return health is None or now >= health.retry or (fresh and now >= health.closed)


def _failed(before: Health | None, uri: str, failure: tuple[str, float], now: float) -> Health:
    since, tries = (before.since, before.tries) if before else (now, 0)
    reason, wait = failure
    return Health(mark(uri), mask(uri), since, now, tries + 1, reason, now + wait if wait else 0.0)


def _noted(pending: Pending, message: Message, taker: str) -> Pending:
    return replace(pending, done=(*pending.done, taker)) if pending.message is message else pending


def _sent(owed: dict[str, list[Message]]) -> Iterable[tuple[str, Message, str, float]]:
    """Send to all sinks at once, to each its messages in their order; every outcome as it comes, empty for taken.

    With it the seconds for which the sink wants peace. One that hangs is left behind with its thread, which ends with the
    process.
    """
    said: queue.Queue[tuple[str, Message | None, str, float]] = queue.Queue()
    for uri, messages in owed.items():
        threading.Thread(target=_deliver, args=(uri, messages, said), daemon=True).start()
    busy = set(owed)
    end = time.monotonic() + LIMIT
    while busy:
        try:
            uri, message, reason, wait = said.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            yield from ((uri, owed[uri][0], f"no answer within {LIMIT:g} s", 0.0) for uri in busy)
            return
        if message is None:
            busy.discard(uri)
        else:
            yield uri, message, reason, wait


def _deliver(uri: str, messages: Sequence[Message], said: queue.Queue[tuple[str, Message | None, str, float]]) -> None:
    """One sink's messages, oldest first. One that is refused keeps nothing from the next; a silent sink is left."""
    end = time.monotonic() + ROUND
    try:
        for message in messages:
            try:
                if time.monotonic() > end:
                    raise NotSent(f"the messages before took more than {ROUND:g} s")
                _patiently(uri, message, end)
                said.put((uri, message, "", 0.0))
            except Answered as error:
                said.put((uri, message, f"it did not take “{subject(message)}”: {error}", 0.0))
            except NotSent as error:
                said.put((uri, message, str(error), error.wait))
                return
    finally:
        said.put((uri, None, "", 0.0))


def _patiently(uri: str, message: Message, end: float) -> None:
    """Send; to a sink that asks for a few seconds once more after them. Raises as `send`."""
    try:
        send(uri, message)
    except NotSent as error:
        if not 0 < error.wait <= min(TIMEOUT, end - time.monotonic()):
            raise
        time.sleep(error.wait)
        send(uri, message)


def _bounded(outbox: tuple[Pending, ...], now: float) -> tuple[tuple[Pending, ...], tuple[str, ...]]:
    """The outbox without what is too old, and a word for each message given up."""
    old = [pending for pending in outbox if now - pending.message.time > LONGEST_PENDING]
    kept = compact([pending for pending in outbox if pending not in old], MOST_PENDING)
    return kept, tuple(f"given up, undelivered for too long: “{subject(pending.message)}”" for pending in old)
