"""The address of a sink: what may be shown of it, and how a failed delivery is told."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from ops.errors import BadInput

STATE = "prometheus"
"""The scheme of what takes no messages, but the state of the run at every tick."""

FILE = "file:"
"""Begins an address that is kept outside m4ops.toml, which others may read."""
_VARIABLE = re.compile(r"\$\w+|\$\{\w+\}")
_HOST = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*\.[a-z]{2,}(?=/)")


class Answered(OSError):
    """The sink is there and refuses this message; the next one may still go. `code`: HTTP's, 0 where there is none."""

    def __init__(self, words: str, code: int = 0) -> None:
        super().__init__(words)
        self.code = code


class NotSent(Exception):
    """The sink did not take it and will hardly take the next one; the words hold no secret.

    `wait`: seconds after which it says that it may be asked again, 0 where it says nothing.
    """

    def __init__(self, words: str, wait: float = 0.0) -> None:
        super().__init__(words)
        self.wait = wait


def stored(uri: str) -> str:
    """The address itself: of `file:/PATH` what that file says, any other as it is. Raises BadInput."""
    if not uri.startswith(FILE):
        return uri
    try:
        file = Path(uri.removeprefix(FILE)).expanduser()
        if not file.is_absolute():
            raise BadInput(f"the file of an address needs its whole path: {uri}", hint="file:/PATH or file:~/PATH")
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadInput(f"the file of an address cannot be read: {uri}: {why}") from None
    found = [line for line in lines if line and not line.startswith("#")]
    if len(found) != 1 or found[0].startswith((FILE, f"{STATE}:", "stdout:")):
        raise BadInput(f"the file holds not one address: {uri}", hint="one web address a file, on a line of its own")
    return found[0]


def mask(uri: str) -> str:
    """The URI as it may be shown: no user, password, path or query of what is, or may be, a web address."""
    if uri.startswith(FILE) or _VARIABLE.fullmatch(uri):
        return uri
    if bare := _HOST.match(uri):
        return f"{bare[0]}/***"
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
