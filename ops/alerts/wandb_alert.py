"""`wandb.alert` for the run that is trained, without opening that run a second time.

wandb's own client would: it writes host, program and summary of whoever alerts into the run, also in its shared mode
and when an offline run of the same id is synced later. So the alert goes by the one request of which that client makes
one too (NotifyScriptableRunAlert: core/internal/api in wandb/wandb), and with WANDB_MODE=offline into a run of its own,
`m4ops-ID`, in SAVE_DIR/.m4ops/wandb, for `wandb sync`.
"""

from __future__ import annotations

import base64
import configparser
import json
import netrc
import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from ops import shell
from ops.alerts import web
from ops.alerts.address import Answered
from ops.alerts.text import short, subject, text
from ops.alerts.words import Message
from ops.errors import OpsError
from ops.model import OPS_DIR, Severity

TIMEOUT = 45.0
"""Seconds that wandb may take to keep an alert offline."""
PUBLIC = ("https://api.wandb.ai", "https://api.forge.coreweave.com")
"""wandb's own server, by its names (wandb/sdk/lib/urls.py); `wandb login` notes the key under one of them."""
LONGEST_TITLE = 63
_LEVELS = {Severity.CRITICAL: "ERROR", Severity.WARNING: "WARN", Severity.UNKNOWN: "WARN", Severity.OK: "INFO"}
_ALERT = """mutation NotifyScriptableRunAlert(
  $entityName: String!, $projectName: String!, $runName: String!, $title: String!, $text: String!,
  $severity: AlertSeverity = INFO, $waitDuration: Duration
) {
  notifyScriptableRunAlert(input: {
    entityName: $entityName, projectName: $projectName, runName: $runName,
    title: $title, text: $text, severity: $severity, waitDuration: $waitDuration
  }) { success }
}"""


def send(project: str, message: Message) -> None:
    """Deliver one message. Raises Answered or OSError with what wandb said, OpsError while no wandb run is known."""
    if not message.wandb:
        raise OpsError("the run has no wandb id yet")
    entity, _, name = project.rpartition("/")
    words = {"runName": message.wandb, "entityName": entity, "projectName": name}
    words |= {"title": short(subject(message), LONGEST_TITLE), "text": text(message)}
    words["severity"] = _LEVELS[message.severity]
    if os.environ.get("WANDB_MODE") in ("offline", "dryrun"):
        return _keep(words, message.dir)
    server, key = _login()
    words["entityName"] = entity or os.environ.get("WANDB_ENTITY") or _asked(server, key)
    words["projectName"] = name or os.environ.get("WANDB_PROJECT") or "uncategorized"
    _query(server, key, _ALERT, {**words, "waitDuration": 1000})  # ms, in which it is not said twice


def _query(server: str, key: str, query: str, variables: dict[str, object]) -> dict[str, dict[str, str]]:
    login = "Basic " + base64.b64encode(f"api:{key}".encode()).decode()
    try:
        said = web.post(f"{server}/graphql", {"query": query, "variables": variables}, {"Authorization": login})
    except Answered as error:
        if error.code in (401, 403):
            raise Answered(f"wandb does not take the key for {server}: wandb login --relogin, on this host") from None
        raise
    try:
        answer = json.loads(said)
        faults = [str(fault["message"]) for fault in answer.get("errors") or ()]
        data = answer.get("data") or {}
    except (ValueError, TypeError, KeyError, AttributeError):
        raise Answered(f"{server} answered something else than wandb does") from None
    if faults:
        raise Answered(f"wandb: {'; '.join(faults)}".replace(key, "***"))
    return dict(data)


def _asked(server: str, key: str) -> str:
    """The entity whose key this is."""
    return _query(server, key, "query Viewer { viewer { entity } }", {}).get("viewer", {}).get("entity", "")


def _login() -> tuple[str, str]:
    """wandb's server and the key for it. Raises OpsError without one."""
    said = os.environ.get("WANDB_BASE_URL") or _configured()
    servers = (said.rstrip("/"),) if said and said.rstrip("/") not in PUBLIC else PUBLIC
    keys = [os.environ.get("WANDB_API_KEY") or _logged_in(server) for server in servers]
    found = next(((server, key) for server, key in zip(servers, keys, strict=True) if key), None)
    if found is None:
        raise OpsError(f"nobody is logged in at {servers[0]} here: wandb login, on this host")
    return found


def _configured() -> str:
    """The server that `wandb login --host` has noted."""
    settings = configparser.ConfigParser(interpolation=None)
    folder = os.environ.get("WANDB_CONFIG_DIR") or Path.home() / ".config" / "wandb"
    try:
        settings.read(Path(folder) / "settings")
    except (configparser.Error, UnicodeDecodeError):
        return ""
    return settings.get("default", "base_url", fallback="")


def _logged_in(server: str) -> str:
    """The key that `wandb login` has noted, empty where there is none."""
    try:
        found = netrc.netrc(os.environ.get("NETRC") or Path.home() / ".netrc").authenticators(urlsplit(server).netloc)
    except (OSError, netrc.NetrcParseError):
        return ""
    return (found[2] or "") if found else ""


def _keep(words: dict[str, str], folder: str) -> None:
    """Offline. wandb works in a process of its own, which a time limit ends."""
    answer = shell.run((sys.executable, "-P", "-m", __name__, json.dumps(words), folder), TIMEOUT, dict(os.environ))
    if answer.returncode:
        last = (answer.stderr.strip() or answer.stdout.strip() or f"exit code {answer.returncode}").splitlines()[-1]
        raise OSError(f"wandb: {last}")


def keep(words: dict[str, str], folder: str) -> None:
    """In that process: the alert."""
    import wandb

    place = Path(folder) / OPS_DIR
    settings = wandb.Settings(
        mode="offline", x_disable_stats=True, x_disable_meta=True, console="off", silent=True, disable_git=True
    )
    run = wandb.init(
        id=f"m4ops-{words['runName']}",
        name=f"alerts of {words['runName']}",
        entity=words["entityName"] or None,
        project=words["projectName"] or None,
        dir=place if os.access(place, os.W_OK) else None,
        settings=settings,
    )
    run.alert(words["title"], words["text"], level=words["severity"], wait_duration=1)
    run.finish()


if __name__ == "__main__":
    keep(json.loads(sys.argv[1]), sys.argv[2])
