"""The address of a sink: what may be shown of it, and how a failed delivery is told."""

from __future__ import annotations

import hashlib
from urllib.parse import SplitResult, unquote, urlsplit

STATE = "prometheus"
"""The scheme of what takes no messages, but the state of the run at every tick."""


class Answered(OSError):
    """The sink is there and refuses this message; the next one may still go. `code`: HTTP's, 0 where there is none."""

    def __init__(self, words: str, code: int = 0) -> None:
        super().__init__(words)
        self.code = code


class NotSent(Exception):
    """The sink did not take it and will hardly take the next one; the words hold no secret."""


def mask(uri: str) -> str:
    """The URI as it may be shown: no user, password, path or query of what is, or may be, a web address."""
    try:
        parts = urlsplit(uri)
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return "***"
    if uri == "stdout:" or (parts.scheme in ("mailto", "wandb", STATE) and not parts.netloc):
        return uri
    if parts.scheme == "smtp":
        return f"smtp://{host}/{mailbox(parts)}"
    if parts.scheme in ("http", "https"):
        return f"{parts.scheme}://{host}/***"
    return f"{parts.scheme}:***" if uri.lower().startswith(f"{parts.scheme}://") else "***"


def mark(uri: str) -> str:
    """What the bookkeeping calls this sink: the same every time, and no secret."""
    return hashlib.sha256(uri.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def mailbox(parts: SplitResult) -> str:
    return unquote(parts.path.lstrip("/"))


def scrub(reason: str, sink: str) -> str:
    """The reason without any part of a web address that may be a secret."""
    parts = urlsplit(sink)
    if not parts.netloc or parts.scheme == "smtp":
        return reason
    userinfo, _, host = parts.netloc.rpartition("@")
    hosts = [] if parts.scheme in ("http", "https") else [host, host.partition(":")[0]]  # slack://TOKEN/…
    secrets = {
        *hosts,
        parts.path,
        parts.query,
        parts.fragment,
        userinfo,
        *userinfo.split(":"),
        *parts.path.split("/"),
    }
    for secret in sorted((s for s in secrets if len(s) > 3), key=len, reverse=True):
        reason = reason.replace(secret, "***")
    return reason
