"""Sinks of the library apprise, the extra `alerts`: Teams, Opsgenie, Telegram, mail with a login, …"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from ops.alerts import opsgenie, web
from ops.alerts.address import Answered, mask
from ops.alerts.incidents import incidents
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


KEYED = {
    "firehydrant": "dedup",
    "goalert": "dedup",
    "goalerts": "dedup",
    "ilert": "dedup",
    "incidentio": "dedup",
    "jira": "alias",
    "opsgenie": "alias",
    "pagertree": "thirdparty",
    "signl4": "external_id",
    "splunk": "entity_id",
    "squadcast": "dedup",
    "victorops": "entity_id",
}
"""Services of incidents that are opened and closed by a key of ours, and how the library calls it."""


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
    parts = urlsplit(uri)
    argument = KEYED.get(parts.scheme)
    if argument is None or argument in dict(parse_qsl(parts.query)):
        return _notify(uri, message)
    for key, part in incidents(message):
        if parts.scheme in opsgenie.SERVICES and part.severity is Severity.OK:
            opsgenie.act(uri, "close", key, text(part))
        else:
            _notify(_with(uri, {"action": "map", argument: key}), part)


def _notify(uri: str, message: Message) -> None:
    from apprise import NotifyFormat, OverflowMode

    target = load(uri)
    if "overflow" not in dict(parse_qsl(urlsplit(uri).query)):
        target.overflow_mode = (
            OverflowMode.TRUNCATE
        )  # the library's default sends what is too long, for the service to refuse
    title, _, body = text(message).partition("\n")
    with _overheard() as said:
        sent = target.notify(
            body=body or title,
            title=subject(message),
            notify_type=_TYPES[message.severity],
            body_format=NotifyFormat.TEXT,  # else a service takes it for marked up, and a log line for a call of @all
        )
    if not sent:
        words = "; ".join(said) or "apprise could not deliver it"
        code = re.search(r"error=(\d{3})", words)
        more = web.advice(int(code[1])) if code else ""
        raise Answered(f"{words} {more}".strip())


def _with(uri: str, arguments: dict[str, str]) -> str:
    """The address with these arguments, but where it says otherwise."""
    parts = urlsplit(uri)
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    return parts._replace(query=urlencode(arguments | said)).geturl()


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
