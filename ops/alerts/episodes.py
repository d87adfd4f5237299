"""When a finding becomes a message. Pure: findings and what was told before, in; what to tell now, out.

A finding opens an episode and is told once, again when it gets worse or its cause turns out to be another, and once
more when it is over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ops.model import Finding, Severity

PATIENCE = 2
"""Ticks in a row that must say UNKNOWN before it is told: one squeue that did not answer pages nobody."""
BLIND_LIMIT = 3600.0
"""Seconds an episode may go unseen, while something else is UNKNOWN, before it is closed without proof."""

OPENED, WORSE, RESOLVED, UNSEEN = "opened", "worse", "resolved", "unseen"


@dataclass(frozen=True)
class Episode:
    """A trouble from its first sight to its end. Times are UTC seconds."""

    finding: Finding
    """The worst of it, with its latest evidence."""
    since: float
    seen: float
    ticks: int = 1
    told: Severity = Severity.OK
    """The worst that was told; OK: nothing yet."""

    @property
    def key(self) -> str:
        return self.finding.key


@dataclass(frozen=True)
class Message:
    """One thing to tell people: a finding and what became of it: `opened`, `worse` (also: of a graver cause than
    thought), `resolved`, `unseen`."""

    event: str
    finding: Finding
    time: float
    since: float
    run: str = ""
    host: str = ""
    """Where the check ran."""

    @property
    def id(self) -> str:
        """The same for every attempt to deliver it, so that a receiver can tell a repetition."""
        words = f"{self.run}\0{self.finding.key}\0{self.event}\0{self.finding.severity}\0{self.time!r}"
        return hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:32]


@dataclass(frozen=True)
class Pending:
    """A message that not every sink has taken yet; `done` are the marks of those that have."""

    message: Message
    done: tuple[str, ...] = ()


def advance(
    episodes: Sequence[Episode], findings: Iterable[Finding], now: float
) -> tuple[tuple[Episode, ...], tuple[Message, ...]]:
    """One tick: the episodes after it, and what is to be told.

    While any finding is UNKNOWN, nothing is called resolved: what would show the trouble may be just what
    cannot be read. An episode unseen for an hour in such times ends as `unseen`, so its return is told again.
    """
    worst = _worst(findings)
    known = {episode.key: episode for episode in episodes}
    blind = any(finding.severity is Severity.UNKNOWN for finding in worst.values())
    steps = chain(
        (_gone(episode, blind, now) for key, episode in known.items() if key not in worst),
        (_seen(known.get(key), finding, now) for key, finding in worst.items()),
    )
    kept, told = zip(*steps, strict=True) if known or worst else ((), ())
    return tuple(e for e in kept if e), tuple(m for m in told if m)


def _rank(severity: Severity) -> int:
    """OK < UNKNOWN < WARNING < CRITICAL: a known trouble is worse than not knowing."""
    return (Severity.OK, Severity.UNKNOWN, Severity.WARNING, Severity.CRITICAL).index(severity)


def _worst(findings: Iterable[Finding]) -> dict[str, Finding]:
    """The worst finding of each key, the last one among equals; OK is no trouble."""
    worst: dict[str, Finding] = {}
    for finding in findings:
        before = worst.get(finding.key)
        if finding.severity is not Severity.OK and (
            before is None or _rank(finding.severity) >= _rank(before.severity)
        ):
            worst[finding.key] = finding
    return worst


def _seen(old: Episode | None, finding: Finding, now: float) -> tuple[Episode, Message | None]:
    if old is None:
        episode = Episode(finding, since=now, seen=now)
    else:
        latest = finding if _rank(finding.severity) >= _rank(old.finding.severity) else old.finding
        episode = replace(old, finding=latest, seen=now, ticks=old.ticks + 1)
    waits = finding.severity is Severity.UNKNOWN and episode.ticks < PATIENCE
    graver = _rank(finding.severity) - _rank(episode.told)
    # A lost node shows late, after the tracebacks of the others: who was told of those must hear of it.
    other = old is not None and finding.kind != old.finding.kind
    if waits or graver < 0 or (graver == 0 and not other):
        return episode, None
    event = WORSE if episode.told else OPENED
    return replace(episode, told=finding.severity), Message(event, finding, now, episode.since)


def _gone(episode: Episode, blind: bool, now: float) -> tuple[Episode | None, Message | None]:
    if not episode.told:
        return None, None
    if blind and now - episode.seen < BLIND_LIMIT:
        return episode, None
    return None, Message(UNSEEN if blind else RESOLVED, episode.finding, now, episode.since)
