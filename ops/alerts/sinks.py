"""Where messages go. Named by URI; what is secret in a URI is never shown.

stdout:                          standard output (cron mails it)
https://host/path                POST of a JSON object; its `text` field is what Slack and its likes show
mailto:someone@host              the local sendmail, or an SMTP server on this host
smtp://server:port/someone@host  that SMTP server
pagerduty://integration-key      incidents of PagerDuty: opened, taken by `m4ops ack`, closed
wandb:[entity/project]           an alert of the wandb run that is trained
prometheus:/path                 no messages, but the state of the run at every tick (`ops.alerts.prometheus`)
any other scheme://…             the library apprise: Slack, Teams, Opsgenie, Telegram, mail with a login, …
"""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import SplitResult, quote, unquote, urlsplit

from ops.alerts import opsgenie, pagerduty, web
from ops.alerts.address import STATE, Answered, NotSent, mailbox, mask, scrub, stored
from ops.alerts.incidents import name
from ops.alerts.text import payload, short, text
from ops.alerts.words import Message
from ops.errors import BadInput, OpsError

SLACK = ("hooks.slack.com", "hooks.slack-gov.com")
SLACK_TEXT = 4000
"""Characters that Slack advises a message to keep to (chat.postMessage)."""
_NATIVE = re.compile(r"(^|\.)(logic\.azure\.com|api\.powerplatform\.com|discord\.com)$")
"""Hosts of Teams and Discord: they take a webhook's JSON only in a form of their own."""
KNOWN = (
    "stdout:  https://HOST/PATH  mailto:SOMEONE@HOST  smtp://SERVER[:PORT]/SOMEONE@HOST  pagerduty://KEY  "
    "wandb:[ENTITY/PROJECT]  prometheus:/PATH  and what apprise knows"
)
INSTALL = "pip install 'm4ops[alerts]' for Slack, Teams, Telegram and a hundred more; without it: "


def parse(uri: str) -> SplitResult:
    """The parts of a sink's URI. Raises BadInput, without showing a secret, for what is no sink."""
    address = stored(uri)
    try:
        parts = urlsplit(address)
        _ = parts.port if parts.scheme in _SENDERS else None
    except ValueError:
        raise _bad("a sink that is no URI", uri) from None
    if not _ours(parts):
        return _of_library(parts, address, uri)
    if "$" in (parts.hostname or ""):
        raise _bad("a sink with a variable, which nobody fills in", uri)
    if parts.scheme in ("http", "https", "smtp") and not parts.hostname:
        raise _bad("a sink without a host", uri)
    if parts.scheme in ("mailto", "smtp") and not re.fullmatch(r"[^\s,;<>\"-][^\s,;<>\"]*", mailbox(parts)):
        raise _bad("a sink without one mail address (one address a sink)", uri)
    if parts.scheme == "pagerduty" and (fault := pagerduty.fault(parts)):
        raise _bad(fault, uri)
    if parts.scheme == "smtp" and parts.username is not None:
        raise _bad("an smtp: sink cannot log in; mailtos:// of apprise can", uri)
    if parts.scheme == STATE and not (parts.path.startswith("/") and not parts.netloc):
        raise _bad("a file for Prometheus needs its whole path: prometheus:/PATH", uri)
    if parts.scheme == "wandb" and (parts.netloc or not re.fullmatch(r"([\w.-]+(/[\w.-]+)?)?", parts.path)):
        raise _bad("a wandb sink is written wandb: or wandb:ENTITY/PROJECT", uri)
    return parts


def _ours(parts: SplitResult) -> bool:
    """Whether m4ops itself speaks to it; all else is for apprise, which also knows the addresses of `_NATIVE`."""
    if parts.scheme == "mailto":
        return not parts.netloc
    native = parts.scheme == "https" and _NATIVE.search(parts.hostname or "")
    return parts.scheme in (*_SENDERS, STATE) and not native


def vet(uri: str) -> None:
    """Raises BadInput for a sink that nobody knows: a typing mistake is told by day, not when there is an alert."""
    if not _ours(parse(uri)):
        from ops.alerts import library

        library.load(stored(uri))


def send(uri: str, message: Message) -> None:
    """Deliver one message. Raises Answered when it was refused, NotSent when the sink cannot be reached."""
    with _named(uri) as address:
        parts = parse(address)
        if _ours(parts):
            _SENDERS[parts.scheme](parts, message)
        else:
            from ops.alerts import library

            library.send(address, message)


def acknowledge(uri: str, folder: str, incident: str, by: str) -> str:
    """Somebody has taken an incident of the run in this folder; which service knows that now, if the sink is one.

    Raises as `send`.
    """
    with _named(uri) as address:
        parts = parse(address)
        if parts.scheme == "pagerduty":
            pagerduty.acknowledge(parts, folder, incident)
            return "PagerDuty"
        if parts.scheme in opsgenie.SERVICES:
            opsgenie.act(address, "acknowledge", name(folder, incident), f"taken by {by} (m4ops ack)")
        return opsgenie.SERVICES.get(parts.scheme, "")


def keeps_incidents(uri: str) -> bool:
    """Whether what this sink is told stays open there until it is told the end. Raises BadInput."""
    scheme = parse(uri).scheme
    if scheme == "pagerduty" or scheme in _SENDERS:
        return scheme == "pagerduty"
    from ops.alerts import library

    return scheme in library.KEYED


@contextmanager
def _named(uri: str) -> Iterator[str]:
    """The address that a sink names. What fails with it is told in words without a secret."""
    address = uri
    try:
        address = stored(uri)
        yield address
    except Answered as error:
        raise Answered(scrub(str(error), address), error.code) from None
    except NotSent as error:
        raise NotSent(scrub(str(error), address), error.wait) from None
    except OpsError as error:
        raise NotSent(error.what) from None
    except (OSError, ValueError) as error:
        raise NotSent(scrub(web.reason(error), address)) from None


def _print(_: SplitResult, message: Message) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text(message).encode(encoding, "replace").decode(encoding))
    sys.stdout.flush()


_IN_URL = "/%:@!$&'()*+,;=~-._"


def _post(parts: SplitResult, message: Message) -> None:
    userinfo, _, host = parts.netloc.rpartition("@")
    path, query = quote(parts.path or "/", safe=_IN_URL), quote(parts.query, safe=_IN_URL + "?")
    url = parts._replace(netloc=host, path=path, query=query, fragment="").geturl()
    login = "Basic " + base64.b64encode(unquote(userinfo).encode()).decode()
    content = {"text": _for_slack(message)} if parts.hostname in SLACK else payload(message)
    web.post(url, content, {"Authorization": login} if userinfo else {})


def _for_slack(message: Message) -> str:
    """The text with Slack's three control characters as entities: a log line calls no `<!channel>`."""
    words = short(text(message), SLACK_TEXT)
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _mailto(parts: SplitResult, message: Message) -> None:
    from ops.alerts import mail

    mail.local(mailbox(parts), message)


def _smtp(parts: SplitResult, message: Message) -> None:
    from ops.alerts import mail

    mail.by_server((parts.hostname or "", parts.port or 25), mailbox(parts), message)


def _wandb(parts: SplitResult, message: Message) -> None:
    from ops.alerts import wandb_alert

    wandb_alert.send(parts.path, message)


_SENDERS: dict[str, Callable[[SplitResult, Message], None]] = {
    "stdout": _print,
    "http": _post,
    "https": _post,
    "mailto": _mailto,
    "smtp": _smtp,
    "wandb": _wandb,
    "pagerduty": pagerduty.send,
}


def _of_library(parts: SplitResult, address: str, uri: str) -> SplitResult:
    """What may be apprise's: whether it knows the scheme costs half a second, and is asked by `vet`."""
    from importlib.util import find_spec

    if not address.lower().startswith(f"{parts.scheme}://") or not parts.scheme:
        raise _bad("unknown kind of sink", uri)
    if find_spec("apprise") is None:
        raise BadInput(f"unknown kind of sink: {mask(uri)}", hint=INSTALL + KNOWN)
    return parts


def _bad(what: str, uri: str) -> BadInput:
    hint = f"one of: {KNOWN}"
    if uri in ("stdout", "wandb"):
        hint = f"did you mean `{uri}:`?"
    elif "$" in uri:
        hint = "variables are not filled in, cron has none: write file:/PATH, and the address into that file"
    elif mask(uri).endswith("/***") and "://" not in mask(uri):
        hint = f"did you mean `https://{mask(uri)}`?"
    return BadInput(f"{what}: {mask(uri)}", hint=hint)
