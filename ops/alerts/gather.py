"""When news become a message: at once, with the next digest, after the quiet hours, or when the hour has room. Pure.

A tick makes one message of all it has to tell, so that a storm of failures is one message too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from ops.alerts.words import OPENED, WORSE, Episode, News, Pending, over, rank
from ops.model import Severity
from ops.policy import BURST, Policy

AHEAD = 2
"""Messages that a CRITICAL of a new kind may be ahead of the cap; it is made up for by those after it."""


def gather(
    pool: Sequence[News], now: float, policy: Policy, pace: float, episodes: Sequence[Episode]
) -> tuple[tuple[News, ...], tuple[News, ...], float]:
    """What is told now, worst first; what is held back; and the pace after it.

    `pace` is the time at which the burst is whole again (generic cell rate algorithm, ITU-T I.371): it moves on by
    one spacing a message, and lies at most a burst ahead; with `episodes`, those that are open, a CRITICAL of which
    nobody has heard the like does not wait behind what was told before.
    """
    quiet = policy.quiet is not None and policy.quiet.hold(now)
    minor = [news.time for news in pool if news.finding.severity is Severity.WARNING]
    due = not policy.digest_every or now - min(minor, default=now) >= policy.digest_every

    def passes(news: News) -> bool:
        severity = news.finding.severity
        return severity in policy.quiet_passes if quiet else due or severity is not Severity.WARNING

    told = [news for news in pool if passes(news)]
    ahead = AHEAD if _unheard(told, pool, episodes) else 0
    if not told or pace - now > (BURST - 1 + ahead) * policy.spacing:
        return (), tuple(pool), pace
    held = tuple(news for news in pool if not passes(news))
    return latest(told), held, max(pace, now) + policy.spacing


def _unheard(told: Sequence[News], pool: Sequence[News], episodes: Sequence[Episode]) -> bool:
    """Whether a CRITICAL is to be told of whose kind nothing that is open was told yet."""
    waiting = {news.finding.key for news in pool}
    heard = {e.finding.kind for e in episodes if e.told is Severity.CRITICAL and e.key not in waiting}
    new = (n.finding for n in told if n.event in (OPENED, WORSE) and n.finding.severity is Severity.CRITICAL)
    return any(finding.kind not in heard for finding in new)


def latest(pool: Iterable[News]) -> tuple[News, ...]:
    """The last news of each trouble; what is over stands last, and else the worst first."""
    last = {news.finding.key: news for news in pool}
    return tuple(sorted(last.values(), key=lambda news: (over(news), -rank(news.finding.severity))))


def compact(outbox: Sequence[Pending], most: int) -> tuple[Pending, ...]:
    """At most `most` messages where that is possible: the oldest neighbours that the same sinks lack become one."""
    kept = list(outbox)
    while len(kept) > most:
        pairs = range(len(kept) - 1)
        at = next((i for i in pairs if _alike(kept[i], kept[i + 1])), None)
        if at is None:
            break
        kept[at : at + 2] = [_merged(kept[at], kept[at + 1])]
    return tuple(kept)


def _alike(one: Pending, other: Pending) -> bool:
    return set(one.done) == set(other.done) and one.escalation == other.escalation


def _merged(one: Pending, other: Pending) -> Pending:
    news = latest((*one.message.news, *other.message.news))
    return replace(other, message=replace(other.message, news=news))
