"""One request over HTTP, and what an answer other than a success means."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ops.alerts.address import Answered, NotSent

if TYPE_CHECKING:
    from urllib.error import HTTPError
    from urllib.request import OpenerDirector, Request

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


def post(url: str, content: Mapping[str, object], headers: Mapping[str, str] | None = None) -> bytes:
    """POST a JSON object; the begin of the answer. Raises Answered when it is refused, NotSent when there were too many, else OSError."""
    sent = {"Content-Type": "application/json", "User-Agent": "m4ops", **(headers or {})}
    from urllib.request import Request

    return ask(Request(url, json.dumps(content).encode(), sent, method="POST"))


def ask(request: Request) -> bytes:
    """Make a request; the begin of the answer. Raises as `post`."""
    from http.client import HTTPException
    from urllib.error import HTTPError

    try:
        with _opener().open(request, timeout=TIMEOUT) as answer:
            return bytes(answer.read(_READ))
    except HTTPException as error:
        raise OSError(str(error) or type(error).__name__) from error
    except HTTPError as error:
        with error:
            words = f"it answered {error.code} {error.reason}{_said(error)}"
        words += f": {advice(error.code)}" if advice(error.code) else ""
        wait = _wait(error.headers.get("Retry-After", ""))
        busy = error.code == 429 or (error.code == 503 and wait)
        raise NotSent(words, wait) if busy else Answered(words, error.code) from None


def _opener() -> OpenerDirector:
    from urllib.request import HTTPRedirectHandler, build_opener

    class NoRedirect(HTTPRedirectHandler):
        """A redirected POST arrives as a GET without its message, and looks delivered."""

        def redirect_request(self, *_: object, **__: object) -> None:
            return None

    return build_opener(NoRedirect)


def _wait(said: str) -> float:
    """The seconds that `Retry-After` says, or that its time is ahead (RFC 9110, 10.2.3); 0 for neither."""
    from email.utils import parsedate_to_datetime

    try:
        seconds = float(said) if said.strip().isdigit() else parsedate_to_datetime(said).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0
    return min(max(0.0, seconds), LONGEST_WAIT)


def advice(code: int) -> str:
    """What a person does about this answer; empty where it is for the service to mend."""
    return _ADVICE.get(code, "")


def _said(error: HTTPError) -> str:
    """What stands in the answer, in one line; a page for browsers tells nothing."""
    from http.client import HTTPException

    if "html" in error.headers.get("Content-Type", ""):
        return ""
    try:
        words = " ".join(error.read(4 * _SAID).decode("utf-8", "replace").split())
    except (OSError, HTTPException):
        return ""
    shown = "".join(c for c in words if c.isprintable())[:_SAID]
    return f" ({shown})" if shown else ""


def reason(error: Exception) -> str:
    """Why nothing was sent, in a few words; they may hold an address."""
    from urllib.error import URLError

    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError) or isinstance(error.__context__, TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    return str(cause) or type(cause).__name__
