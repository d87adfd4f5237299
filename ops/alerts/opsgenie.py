"""Alerts of Opsgenie and Jira Service Management: apprise opens them under an alias of ours, by which they are taken and closed here.

apprise closes by the id of the request that opened, which both know no alert by. `POST …/alerts/ALIAS/close`, or
`/acknowledge`, with `identifierType=alias`: docs.opsgenie.com, Alert API; for Jira jira.atlassian.com, JSDCLOUD-14179.
"""

from __future__ import annotations

from urllib.parse import parse_qs, quote, unquote, urlsplit

from ops.alerts import web
from ops.alerts.text import short

SERVICES = {"opsgenie": "Opsgenie", "jira": "Jira"}
_ALERTS = {
    "opsgenie": "https://api.opsgenie.com/v2/alerts",
    "opsgenie eu": "https://api.eu.opsgenie.com/v2/alerts",
    "jira": "https://api.atlassian.com/jsm/ops/integration/v2/alerts",
}
NOTE = 25_000
"""The longest note that is taken."""


def act(address: str, action: str, alias: str, note: str) -> None:
    """`close` or `acknowledge` the alert of this alias. Raises as `web.post`."""
    parts = urlsplit(address)
    region = parse_qs(parts.query).get("region", [""])[0].lower()
    alerts = _ALERTS.get(f"{parts.scheme} {region}", _ALERTS[parts.scheme])
    key = unquote(parts.netloc.rpartition("@")[2].partition(":")[0])
    url = f"{alerts}/{quote(alias, safe='')}/{action}?identifierType=alias"
    web.post(url, {"source": "m4ops", "note": short(note, NOTE)}, {"Authorization": f"GenieKey {key}"})
