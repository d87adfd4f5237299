"""One request over HTTP, and what an answer other than a success means."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

from ops.alerts.address import Answered, NotSent

LONGEST_WAIT = 3600.0
"""Seconds for which a sink that asks for it is left alone; one that asks for more is tried nevertheless."""
TIMEOUT = 10.0
"""Seconds a sink may stay silent."""
_SAID = 200
"""Characters of an answer that are shown."""
_READ = 100_000
"""Bytes of an answer that are read."""
_GONE = "is the address revoked, or mistyped? Put a new one into m4ops.toml"
_ADVICE = {
    400: "it does not understand the message: is this the address of another kind of sink?",
    401: _GONE,
    403: _GONE,
    404: _GONE,
    410: _GONE,
    413: "the message is too long for it",
    429: "too many messages at once: it is tried again later",
}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST arrives as a GET without its message, and looks delivered."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


def post(url: str, content: Mapping[str, object], headers: Mapping[str, str] | None = None) -> bytes:
    """POST a JSON object; the begin of the answer. Raises Answered when it is refused, NotSent when there were too many, else OSError."""
    sent = {"Content-Type": "application/json", "User-Agent": "m4ops", **(headers or {})}
    return ask(urllib.request.Request(url, json.dumps(content).encode(), sent, method="POST"))


def ask(request: urllib.request.Request) -> bytes:
    """Make a request; the begin of the answer. Raises as `post`."""
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT) as answer:
            return bytes(answer.read(_READ))
    except urllib.error.HTTPError as error:
        with error:
            words = f"it answered {error.code} {error.reason}{_said(error)}"
        words += f": {advice(error.code)}" if advice(error.code) else ""
        wait = _wait(error.headers.get("Retry-After", ""))
        busy = error.code == 429 or (error.code == 503 and wait)
        raise NotSent(words, wait) if busy else Answered(words, error.code) from None


def _wait(said: str) -> float:
    """The seconds that `Retry-After` says, or that its time is ahead (RFC 9110, 10.2.3); 0 for neither."""
    try:
        seconds = float(said) if said.strip().isdigit() else parsedate_to_datetime(said).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, seconds), LONGEST_WAIT)


def advice(code: int) -> str:
    """What a person does about this answer; empty where it is for the service to mend."""
    return _ADVICE.get(code, "")


def _said(error: urllib.error.HTTPError) -> str:
    """What stands in the answer, in one line; a page for browsers tells nothing."""
    if "html" in error.headers.get("Content-Type", ""):
        return ""
    try:
        words = " ".join(error.read(4 * _SAID).decode("utf-8", "replace").split())
    except (OSError, http.client.HTTPException):
        return ""
    shown = "".join(c for c in words if c.isprintable())[:_SAID]
    return f" ({shown})" if shown else ""


def reason(error: Exception) -> str:
    """Why nothing was sent, in a few words; they may hold an address."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError) or isinstance(error.__context__, TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    return str(cause) or type(cause).__name__
