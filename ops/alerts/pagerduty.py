"""Incidents of PagerDuty, by its Events API v2: opened, taken and closed (docs/events-API-v2 in PagerDuty/developer-docs).

apprise's plug-in takes one key an address, cannot acknowledge, and sends the whole text as the summary.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from urllib.parse import SplitResult, parse_qs

from ops.alerts import web
from ops.alerts.incidents import incidents, name
from ops.alerts.text import short, subject, text
from ops.alerts.words import Message
from ops.model import Severity

HOSTS = {"us": "events.pagerduty.com", "eu": "events.eu.pagerduty.com"}
SUMMARY = 1024
"""The longest summary that is taken."""
DETAILS = 20_000
"""Characters of the text; an event may have 512 KB."""
_SEVERITIES = {Severity.CRITICAL: "critical", Severity.UNKNOWN: "error", Severity.WARNING: "warning"}


def fault(parts: SplitResult) -> str:
    """What is wrong with the address, empty if nothing is: `pagerduty://KEY`, or apprise's `KEY@API_KEY`; `?region=eu`."""
    if not re.fullmatch(r"[0-9A-Za-z]{32}", _key(parts)):
        return (
            "a PagerDuty sink is pagerduty://INTEGRATION_KEY, the 32 letters and digits of an Events API v2 integration"
        )
    return "" if _region(parts) in HOSTS else "the region of a PagerDuty sink is us or eu"


def send(parts: SplitResult, message: Message) -> None:
    """One event an incident. Raises as `web.post`."""
    for key, part in incidents(message):
        severity = _SEVERITIES.get(part.severity)
        _event(parts, "trigger" if severity else "resolve", key, _payload(part, severity) if severity else {})


def acknowledge(parts: SplitResult, folder: str, incident: str) -> None:
    """Somebody has taken an incident of the run in this folder. Raises as `web.post`."""
    _event(parts, "acknowledge", name(folder, incident), {})


def _event(parts: SplitResult, action: str, key: str, more: dict[str, object]) -> None:
    event = {"routing_key": _key(parts), "event_action": action, "dedup_key": key}
    web.post(f"https://{HOSTS[_region(parts)]}/v2/enqueue", event | more)


def _payload(message: Message, severity: str) -> dict[str, object]:
    finding = message.news[0].finding
    return {
        "client": "m4ops",
        "payload": {
            "summary": short(subject(message), SUMMARY),
            "source": finding.node or message.host or message.run,
            "severity": severity,
            "timestamp": datetime.fromtimestamp(message.news[0].time, UTC).isoformat(timespec="milliseconds"),
            "component": message.run,
            "group": message.dir,
            "class": finding.kind,
            "custom_details": {"text": short(text(message), DETAILS), "checked on": message.host},
        },
    }


def _key(parts: SplitResult) -> str:
    return (parts.netloc.rpartition("@")[0] or parts.netloc).partition(":")[0]


def _region(parts: SplitResult) -> str:
    return parse_qs(parts.query).get("region", ["us"])[0].lower()
