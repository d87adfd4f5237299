"""When a finding becomes news. Pure: findings and what was told before, in; what to tell now, out.

A finding opens an episode and is told once, again when it gets worse or its cause turns out to be another, again
after a while if it presses and nobody has taken it, and once more when it is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from msgspec.structs import replace

from ops.alerts.words import (
    ESCALATED,
    OPENED,
    RESOLVED,
    STILL,
    UNSEEN,
    WORSE,
    Ack,
    Episode,
    News,
    acked,
    pressing,
    rank,
)
from ops.model import Finding, Severity

PATIENCE = 2
"""Ticks in a row that must say UNKNOWN before it is told: one squeue that did not answer pages nobody."""
BLIND_LIMIT = 3600.0
"""Seconds an episode may go unseen, while something else is UNKNOWN, before it is closed without proof."""
LONGEST_REPEAT = 86400.0
MOMENTARY = frozenset({"check-missed"})
"""Kinds that are told and over: nobody needs to hear that they ended."""


def advance(
    episodes: Sequence[Episode], findings: Iterable[Finding], now: float, acks: Sequence[Ack] = (), repeat: float = 0.0
) -> tuple[tuple[Episode, ...], tuple[News, ...]]:
    """One tick: the episodes after it, and what is to be told. `repeat`: seconds, 0 is never.

    While any finding is UNKNOWN, nothing is called resolved: what would show the trouble may be just what
    cannot be read. An episode unseen for an hour in such times ends as `unseen`, so its return is told again.
    """
    worst = _worst(findings)
    known = {episode.key: episode for episode in episodes}
    blind = any(finding.severity is Severity.UNKNOWN for finding in worst.values())
    steps = chain(
        (_gone(episode, blind, now) for key, episode in known.items() if key not in worst),
        (_seen(known.get(key), finding, now, acks, repeat) for key, finding in worst.items()),
    )
    kept, told = zip(*steps, strict=True) if known or worst else ((), ())
    going = {e.incident for e in kept if e and e.told}
    news = (replace(m, last=m.event == RESOLVED and m.incident not in going) for m in told if m)
    return tuple(e for e in kept if e), tuple(news)


def escalate(
    episodes: Sequence[Episode], now: float, acks: Sequence[Ack], after: float, severities: Sequence[Severity]
) -> tuple[tuple[Episode, ...], tuple[News, ...]]:
    """What of these severities was told `after` seconds ago, and nobody has taken it: once an episode."""
    late = [
        episode
        for episode in episodes
        if episode.told
        and not episode.escalated
        and episode.finding.severity in severities
        and now - episode.told_at >= after
        and not acked(episode.finding, episode.since, acks, now)
    ]
    news = tuple(_news(ESCALATED, replace(episode, escalated=True), now) for episode in late)
    called = {episode.incident for episode in late}  # whoever is called for a part of it hears of its end
    return tuple(replace(e, escalated=True) if e.incident in called else e for e in episodes), news


def _news(event: str, episode: Episode, now: float, finding: Finding | None = None) -> News:
    return News(event, finding or episode.finding, now, episode.since, episode.escalated, episode.incident)


def _worst(findings: Iterable[Finding]) -> dict[str, Finding]:
    """The worst finding of each key, the last one among equals; OK is no trouble."""
    worst: dict[str, Finding] = {}
    for finding in findings:
        before = worst.get(finding.key)
        if finding.severity is not Severity.OK and (before is None or rank(finding.severity) >= rank(before.severity)):
            worst[finding.key] = finding
    return worst


def _seen(
    old: Episode | None, finding: Finding, now: float, acks: Sequence[Ack], repeat: float
) -> tuple[Episode, News | None]:
    if old is None:
        episode = Episode(finding, since=now, seen=now, kind=finding.kind)
    else:
        latest = finding if rank(finding.severity) >= rank(old.finding.severity) else old.finding
        episode = replace(old, finding=latest, seen=now, ticks=old.ticks + 1)
    ack = acked(finding, episode.since, acks, now)
    waits = finding.severity is Severity.UNKNOWN and episode.ticks < PATIENCE
    if waits or (ack and ack.what == finding.kind):
        return episode, None
    graver = rank(finding.severity) - rank(episode.told)
    # A lost node shows late, after the tracebacks of the others: who was told of those must hear of it.
    other = old is not None and finding.kind != old.finding.kind
    if graver > 0 or (graver == 0 and other):
        event = WORSE if episode.told else OPENED
        told = replace(episode, told=finding.severity, told_at=now, again=now, repeats=0)
        return told, _news(event, told, now, finding)
    pause = min(repeat * 2**episode.repeats, max(repeat, LONGEST_REPEAT))
    if repeat and episode.told and not ack and pressing(finding) and now - episode.again >= pause:
        told = replace(episode, again=now, repeats=episode.repeats + 1)
        return told, _news(STILL, told, now, finding)
    return episode, None


def _gone(episode: Episode, blind: bool, now: float) -> tuple[Episode | None, News | None]:
    if not episode.told or episode.finding.kind in MOMENTARY:
        return None, None
    if blind and now - episode.seen < BLIND_LIMIT:
        return episode, None
    event = UNSEEN if blind else RESOLVED
    return None, _news(event, episode, now)
