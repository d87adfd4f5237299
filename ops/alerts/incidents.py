"""A message for services that keep incidents: which it opens, and which are over. Pure.

A chat wants one message of all there is to tell; a pager wants what is one trouble as one incident, that it can close.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from msgspec.structs import replace

from ops.alerts.words import Message, ident, over
from ops.model import Severity


def incidents(message: Message) -> Iterator[tuple[str, Message]]:
    """The incidents of a message, worst first, each by its name for the service and with its own part of the message.

    One whose part is OK is over. What is no longer seen, without proof of its end, stays open until a person closes it.
    """
    groups: dict[str, Message] = {}
    for news in message.news:
        key = name(message.dir, news.incident or f"{ident(news.finding)}.{news.since:.0f}")
        before = groups[key].news if key in groups else ()
        groups[key] = replace(message, news=(*before, news))
    for key, part in groups.items():
        going = tuple(n for n in part.news if not over(n))
        part = replace(part, news=going) if going else part
        if part.severity is not Severity.OK or any(n.last for n in part.news):
            yield key, part


def name(folder: str, incident: str) -> str:
    """What a service calls an incident of the run in this folder: the same from its first message to its end."""
    return f"m4ops.{hashlib.sha256(folder.encode('utf-8', 'surrogateescape')).hexdigest()[:16]}.{incident}"
