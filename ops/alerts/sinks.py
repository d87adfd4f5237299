"""Where messages go: `stdout:`, a webhook, mail. Named by URI; what is secret in a URI is never shown.

stdout:                          standard output (cron mails it)
https://host/path                POST of a JSON object; its `text` field is what Slack and its likes show
mailto:someone@host              the local sendmail, or an SMTP server on this host
smtp://server:port/someone@host  that SMTP server
"""

from __future__ import annotations

import base64
import email.policy
import hashlib
import http.client
import json
import os
import re
import shutil
import smtplib
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import formatdate
from urllib.parse import SplitResult, quote, unquote, urlsplit

from ops import shell
from ops.alerts.episodes import RESOLVED, UNSEEN, Message
from ops.errors import BadInput, OpsError

TIMEOUT = 10.0
"""Seconds a sink may stay silent."""
ROUND = 30.0
"""Seconds after which a slow sink is given no further message in this round."""
LOCAL_SMTP = ("localhost", 25)
KNOWN = "stdout:  https://HOST/PATH  http://HOST/PATH  mailto:SOMEONE@HOST  smtp://SERVER[:PORT]/SOMEONE@HOST"


@dataclass(frozen=True)
class Failure:
    """A message that a sink did not take. `sink` is masked and may be shown."""

    sink: str
    message: Message
    reason: str

    def __str__(self) -> str:
        return f"{self.sink} did not take “{subject(self.message)}”: {self.reason}"


class _Answered(OSError):
    """The sink is there and refuses this message; the next one may still go."""


def parse(uri: str) -> SplitResult:
    """The parts of a sink's URI. Raises BadInput, without showing a secret, for what is no sink."""
    try:
        parts = urlsplit(uri)
        _ = parts.port
    except ValueError:
        raise _bad("a sink that is no URI", uri) from None
    if parts.scheme not in _SENDERS:
        raise _bad("unknown kind of sink", uri)
    if parts.scheme in ("http", "https", "smtp") and not parts.hostname:
        raise _bad("a sink without a host", uri)
    if parts.scheme in ("mailto", "smtp") and not re.fullmatch(r"[^\s,;<>\"-][^\s,;<>\"]*", _address(parts)):
        raise _bad("a sink without one mail address (one address a sink)", uri)
    if parts.scheme == "smtp" and parts.username is not None:
        raise _bad("an smtp: sink cannot log in", uri)
    return parts


def mask(uri: str) -> str:
    """The URI as it may be shown: no user, password, path or query of what is, or may be, a web address."""
    try:
        parts = urlsplit(uri)
        host = f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}"
    except ValueError:
        return "***"
    if uri == "stdout:" or parts.scheme == "mailto":
        return uri
    if parts.scheme == "smtp":
        return f"smtp://{host}/{_address(parts)}"
    if parts.scheme in ("http", "https"):
        return f"{parts.scheme}://{host}/***"
    return f"{parts.scheme}:***" if uri.lower().startswith(f"{parts.scheme}://") else "***"


def mark(uri: str) -> str:
    """What the bookkeeping calls this sink: the same every time, and no secret."""
    return hashlib.sha256(uri.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def deliver(messages: Sequence[Message], sinks: Sequence[str]) -> tuple[Failure, ...]:
    """Send every message to every sink, oldest first; what was not taken comes back. No sink's fault raises.

    A sink that does not answer, or is slow, is asked no more in this round; one that refuses a message gets
    the others.
    """
    return tuple(failure for sink in sinks for failure in _deliver_to(sink, messages))


def _deliver_to(sink: str, messages: Sequence[Message]) -> list[Failure]:
    failures: list[Failure] = []
    silent = ""
    end = time.monotonic() + ROUND
    for message in messages:
        try:
            if not silent and time.monotonic() > end:
                silent = f"not tried: the messages before took more than {ROUND:g} s"
            if not silent:
                parts = parse(sink)
                _SENDERS[parts.scheme](parts, message)
        except _Answered as error:
            failures.append(Failure(mask(sink), message, _scrub(str(error), sink)))
        except OpsError as error:
            silent = error.what
        except (OSError, http.client.HTTPException, ValueError) as error:
            silent = _scrub(_reason(error), sink)
        if silent:
            failures.append(Failure(mask(sink), message, silent))
    return failures


def subject(message: Message) -> str:
    """The message in one line: `CRITICAL tr_190_01_64n: loss is NaN since step 16250`."""
    word = {RESOLVED: "RESOLVED", UNSEEN: "NO LONGER SEEN"}.get(message.event, message.finding.severity.name)
    return " ".join(_plain(f"{word} {message.run}: {message.finding.summary}").split())


def text(message: Message) -> str:
    """The message for people, ending in a newline."""
    finding = message.finding
    lines = [subject(message)]
    if message.event == RESOLVED:
        lines.append(f"  over after {_duration(message.time - message.since)}")
    elif message.event == UNSEEN:
        lines.append("  no proof that it is over: something else cannot be read")
    else:
        lines += [f"  {line}" for line in finding.evidence]
        lines += [f"  consider: {action}" for action in finding.actions]
        lines += [f"  runbook: {finding.runbook}"] if finding.runbook else []
    return "".join(f"{_plain(line)}\n" for line in lines)


def payload(message: Message) -> dict[str, object]:
    """What a webhook gets."""
    finding = message.finding
    return {
        "text": text(message),
        "id": message.id,
        "event": message.event,
        "kind": finding.kind,
        "severity": finding.severity.name,
        "summary": _plain(finding.summary),
        "run": message.run,
        "host": message.host,
        "node": finding.node,
        "step": finding.step,
        "line": finding.line,
        "evidence": [_plain(line) for line in finding.evidence],
        "runbook": finding.runbook,
        "actions": list(finding.actions),
        "time": _iso(message.time),
        "since": _iso(message.since),
    }


def _print(_: SplitResult, message: Message) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text(message).encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST arrives as a GET without its message, and looks delivered."""

    def redirect_request(self, *_: object, **__: object) -> None:
        return None


_IN_URL = "/%:@!$&'()*+,;=~-._"


def _post(parts: SplitResult, message: Message) -> None:
    userinfo, _, host = parts.netloc.rpartition("@")
    path, query = quote(parts.path or "/", safe=_IN_URL), quote(parts.query, safe=_IN_URL + "?")
    url = parts._replace(netloc=host, path=path, query=query, fragment="").geturl()
    headers = {"Content-Type": "application/json", "User-Agent": "m4ops"}
    if userinfo:
        headers["Authorization"] = "Basic " + base64.b64encode(unquote(userinfo).encode()).decode()
    body = json.dumps(payload(message)).encode()
    request = urllib.request.Request(url, body, headers, method="POST")
    try:
        urllib.request.build_opener(_NoRedirect).open(request, timeout=TIMEOUT).close()
    except urllib.error.HTTPError as error:
        error.close()
        raise _Answered(f"it answered {error.code} {error.reason}") from None


def _mailto(parts: SplitResult, message: Message) -> None:
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/lib"])
    sendmail = shutil.which("sendmail", path=path)
    if sendmail is None:
        return _smtp_to(LOCAL_SMTP, _address(parts), message)
    with tempfile.NamedTemporaryFile(prefix="m4ops-mail-") as file:
        file.write(bytes(_letter(_address(parts), message)))
        file.flush()
        answer = shell.run((*_WITH_STDIN, file.name, sendmail, "-i", "-t"), TIMEOUT)
    if answer.returncode:
        raise OSError(f"{sendmail} ended with {answer.returncode}: {answer.stderr.strip()[-300:]}")


_WITH_STDIN = (
    sys.executable,
    "-ISc",
    "import os, sys; os.dup2(os.open(sys.argv[1], os.O_RDONLY), 0); os.execv(sys.argv[2], sys.argv[2:])",
)
"""Runs a program with a file as its standard input."""


def _smtp(parts: SplitResult, message: Message) -> None:
    _smtp_to((parts.hostname or "", parts.port or 25), _address(parts), message)


def _smtp_to(server: tuple[str, int], address: str, message: Message) -> None:
    with smtplib.SMTP(*server, local_hostname=message.host or "localhost", timeout=TIMEOUT) as smtp:
        try:
            smtp.send_message(_letter(address, message))
        except (smtplib.SMTPResponseException, smtplib.SMTPRecipientsRefused) as error:
            raise _Answered(f"it refused the mail: {error}") from None


def _letter(address: str, message: Message) -> EmailMessage:
    letter = EmailMessage(email.policy.default.clone(max_line_length=998))  # RFC 5322; a folded subject is ugly
    letter["Subject"] = f"[m4ops] {subject(message)}"
    letter["From"] = f"m4ops@{message.host or 'localhost'}"
    letter["To"] = address
    letter["Date"] = formatdate(message.time)
    letter["Message-ID"] = f"<{message.id}@m4ops>"
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(text(message), cte="quoted-printable")
    return letter


_SENDERS: dict[str, Callable[[SplitResult, Message], None]] = {
    "stdout": _print,
    "http": _post,
    "https": _post,
    "mailto": _mailto,
    "smtp": _smtp,
}


def _address(parts: SplitResult) -> str:
    return unquote(parts.path.lstrip("/"))


def _bad(what: str, uri: str) -> BadInput:
    return BadInput(f"{what}: {mask(uri)}", hint=f"one of: {KNOWN}")


def _reason(error: Exception) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError) or isinstance(error.__context__, TimeoutError):
        return f"no answer within {TIMEOUT:g} s"
    return str(cause) or type(cause).__name__


def _scrub(reason: str, sink: str) -> str:
    """The reason without any part of a web address that may be a secret."""
    parts = urlsplit(sink)
    if parts.scheme not in ("http", "https"):
        return reason
    userinfo = parts.netloc.rpartition("@")[0]
    secrets = {
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


def _plain(words: str) -> str:
    """Without what a log line may carry: control characters, and bytes that are no text."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in words)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _duration(seconds: float) -> str:
    minutes = round(max(0.0, seconds) / 60)
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"
