"""The words of alerts: an episode, an ack of it, news of it, a message, and what is known of a sink. Pure.

Times are UTC seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ops.model import Finding, Severity

FIRST_RETRY, LAST_RETRY = 60.0, 900.0
"""Seconds until a sink that failed is tried again: twice as long each time, at most the latter."""
OPENED, WORSE, STILL, ESCALATED, RESOLVED, UNSEEN = "opened", "worse", "still", "escalated", "resolved", "unseen"


def ident(finding: Finding) -> str:
    """The name of a finding's episode, short enough to be typed: the same at every tick and on every host."""
    return _short(finding.key, 6)


def _short(words: str, digits: int) -> str:
    import hashlib

    return hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()[:digits]


class Episode(Struct, frozen=True):
    """A trouble from its first sight to its end."""

    finding: Finding
    """The worst of it, with its latest evidence."""
    since: float
    seen: float
    ticks: int = 1
    told: Severity = Severity.OK
    """The worst that was told; OK: nothing yet."""
    told_at: float = 0.0
    """When that was told first."""
    again: float = 0.0
    """When it was told last."""
    repeats: int = 0
    escalated: bool = False
    kind: str = ""
    """The finding's kind at its first sight: the finding's own may change."""

    @property
    def key(self) -> str:
        return self.finding.key

    @property
    def incident(self) -> str:
        """What began as the same kind at the same tick is one incident: a storm calls nobody sixty times."""
        return f"{self.kind or self.finding.kind}.{self.since:.0f}"


class Ack(Struct, frozen=True):
    """Somebody has taken a trouble, until then. `what`: the name of an episode, or a kind of finding.

    An episode's ack ends with it; that of a kind also covers what opens later.
    """

    what: str
    owner: str
    time: float
    until: float
    why: str = ""

    def covers(self, finding: Finding, since: float, now: float) -> bool:
        return now < self.until and (self.what == finding.kind or (self.what == ident(finding) and since <= self.time))


class News(Struct, frozen=True):
    """One thing to tell people: a finding and what became of it."""

    event: str
    finding: Finding
    time: float
    since: float
    escalated: bool = False
    """Whether those of the second list know of it."""
    incident: str = ""
    """See `Episode.incident`."""
    last: bool = False
    """It is over, and nothing else of its incident is open."""


class Message(Struct, frozen=True):
    """What a sink gets at once: news, worst first."""

    news: tuple[News, ...]
    time: float
    run: str = ""
    dir: str = ""
    host: str = ""
    """Where the check ran."""
    wandb: str = ""
    """The id of the wandb run at that time."""

    @property
    def severity(self) -> Severity:
        """The worst of what is not over; OK when all is."""
        return max((n.finding.severity for n in self.news if not over(n)), key=rank, default=Severity.OK)

    @property
    def id(self) -> str:
        """The same for every attempt to deliver it, so that a receiver can tell a repetition."""
        parts = [f"{n.finding.key}\0{n.event}\0{n.finding.severity}\0{n.time!r}" for n in self.news]
        words = "\0".join([self.run, self.dir, repr(self.time), *parts])
        return _short(words, 32)


class Pending(Struct, frozen=True):
    """A message that not every sink has taken yet; `done` are the marks of those that have."""

    message: Message
    done: tuple[str, ...] = ()
    escalation: bool = False
    """Whether it goes to those of the second list."""


class Health(Struct, frozen=True):
    """A sink that does not take its messages. A healthy one has none."""

    mark: str
    sink: str
    """Masked: it may be shown."""
    since: float
    last: float
    """When it was tried last."""
    tries: int
    reason: str
    closed: float = 0.0
    """Until when it said not to be asked again, whatever there is to tell."""

    @property
    def retry(self) -> float:
        """When it is tried again though nothing new is to be told."""
        return max(self.closed, self.last + min(FIRST_RETRY * 2.0 ** min(self.tries - 1, 10), LAST_RETRY))


def over(news: News) -> bool:
    return news.event in (RESOLVED, UNSEEN)


def rank(severity: Severity) -> int:
    """OK < UNKNOWN < WARNING < CRITICAL: a known trouble is worse than not knowing."""
    return (Severity.OK, Severity.UNKNOWN, Severity.WARNING, Severity.CRITICAL).index(severity)


def pressing(finding: Finding) -> bool:
    """Whether it is told again while it lasts: CRITICAL, and a watcher that cannot see."""
    return finding.severity in (Severity.CRITICAL, Severity.UNKNOWN)


def acked(finding: Finding, since: float, acks: Sequence[Ack], now: float) -> Ack | None:
    """The ack that covers a finding, the one that holds longest."""
    return max((a for a in acks if a.covers(finding, since, now)), key=lambda a: a.until, default=None)
