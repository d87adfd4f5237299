"""Sinks of the library apprise, the extra `alerts`: Slack, Teams, PagerDuty, Telegram, mail with a login, …"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ops.alerts.address import Answered, mask
from ops.alerts.text import subject, text
from ops.alerts.words import Message
from ops.errors import BadInput
from ops.model import Severity

_TYPES = {
    Severity.CRITICAL: "failure",
    Severity.WARNING: "warning",
    Severity.UNKNOWN: "warning",
    Severity.OK: "success",
}


def load(uri: str) -> Any:
    """The library's own object for a sink. Raises BadInput when it knows none."""
    import apprise

    with _overheard():
        found = apprise.Apprise.instantiate(uri, suppress_exceptions=True)
    if found is None:
        where = "https://github.com/caronc/apprise lists what each kind needs"
        raise BadInput(f"unknown kind of sink, or a part of its address is missing: {mask(uri)}", hint=where)
    return found


def send(uri: str, message: Message) -> None:
    """Deliver one message. Raises Answered with what the library said."""
    target = load(uri)
    title, _, body = text(message).partition("\n")
    with _overheard() as said:
        sent = target.notify(body=body or title, title=subject(message), notify_type=_TYPES[message.severity])
    if not sent:
        raise Answered("; ".join(said) or "apprise could not deliver it")


@contextmanager
def _overheard() -> Iterator[list[str]]:
    """What the library logs in this thread meanwhile, kept from the terminal: it names addresses."""
    said: list[str] = []
    logger, keeper, me = logging.getLogger("apprise"), logging.Handler(logging.WARNING), threading.get_ident()
    keeper.emit = lambda record: said.append(record.getMessage()) if record.thread == me else None  # type: ignore[method-assign]
    logger.propagate = False
    logger.addHandler(keeper)
    try:
        yield said
    finally:
        logger.removeHandler(keeper)
