"""Slack, Teams, PagerDuty, Discord and their likes on this machine, at their true addresses, over TLS.

`Internet` is a proxy (RFC 9110, CONNECT) that answers in the place of every host, under a certificate authority of its
own. A service takes what its documentation says it takes and refuses the rest as it says; what it was given is kept.
"""

import base64
import html
import json
import re
import socketserver
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme

Answer = tuple[int, str]
"""Status and body."""


@dataclass
class Call:
    """A request that arrived."""

    host: str
    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Slack:
    """Incoming webhooks (docs.slack.dev, "Sending messages using incoming webhooks", and Block Kit's limits)."""

    path: str = "/services/T0S3CRET9/B0S3CRET9/s3cretSecretS3cretSecret"
    shown: list[str] = field(default_factory=list)
    """The text of each message, as people see it."""
    called: list[str] = field(default_factory=list)
    """Who was called by a message: `<!channel>` and the like."""

    def __call__(self, call: Call) -> Answer:
        if call.path != self.path:
            return 404, "no_service"
        try:
            sent = call.json
        except ValueError:
            return 400, "invalid_payload"
        attachments = sent.get("attachments", [])
        blocks = [block for a in attachments for block in a.get("blocks", [])]
        texts = [block["text"]["text"] for block in blocks if "text" in block]
        texts += [a["text"] for a in attachments if "text" in a] + [sent[key] for key in ("text",) if sent.get(key)]
        if not texts:
            return 400, "no_text"
        if any(len(b["text"]["text"]) > (150 if b["type"] == "header" else 3000) for b in blocks if "text" in b):
            return 400, "invalid_blocks"
        if len(sent.get("text", "")) > 40_000:
            return 400, "msg_too_long"
        self.called += re.findall(r"<[!@][^>]+>", "\n".join(texts))
        self.shown.append(html.unescape("\n".join(texts)))
        return 200, "ok"


@dataclass
class Teams:
    """A workflow "When a Teams webhook request is received" (learn.microsoft.com, "Create incoming webhooks")."""

    path: str = "/workflows/0123456789abcdef0123456789abcdef/triggers/manual/paths/invoke"
    signature: str = "s3cretSignatureS3cretSignatureS3cretSignatur"
    cards: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        """As Teams shows it for copying."""
        query = f"api-version=2016-06-01&sp=%2Ftriggers%2Fmanual%2Frun&sv=1.0&sig={self.signature}"
        return f"https://prod-12.westus.logic.azure.com:443{self.path}?{query}"

    def __call__(self, call: Call) -> Answer:
        if call.path != self.path:
            return 404, '{"error":{"code":"WorkflowNotFound","message":"The workflow could not be found."}}'
        if call.query.get("sig") != [self.signature]:
            return 401, '{"error":{"code":"DirectApiRequestHasMoreThanOneAuthorization"}}'
        if len(call.body) > 28 * 1024:
            return 413, "request entity too large"
        attachments = call.json.get("attachments", [])
        if call.json.get("type") != "message" or not attachments:
            return 400, '{"error":{"code":"TriggerInputSchemaMismatch"}}'
        for attachment in attachments:
            content = attachment["content"]
            if attachment["contentType"] != "application/vnd.microsoft.card.adaptive" or not content["body"]:
                return 400, '{"error":{"code":"TriggerInputSchemaMismatch"}}'
            self.cards.append("\n".join(str(block.get("text", "")) for block in content["body"]))
        return 202, ""


@dataclass
class PagerDuty:
    """Events API v2 (docs/events-API-v2 in PagerDuty/developer-docs), and the incidents it makes of them."""

    key: str = "0123456789abcdef0123456789s3cret"
    incidents: dict[str, list[str]] = field(default_factory=dict)
    """The states that each incident went through, by its dedup_key."""
    events: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, call: Call) -> Answer:
        if call.path != "/v2/enqueue" or call.method != "POST":
            return 404, "Not Found"
        faults = list(self._faults(call.json))
        if faults:
            said = {"status": "invalid event", "message": "Event object is invalid", "errors": faults}
            return 400, json.dumps(said)
        event = call.json
        self.events.append(event)
        key, states = event["dedup_key"], self.incidents.setdefault(event["dedup_key"], [])
        going = bool(states) and states[-1] != "resolved"
        if event["event_action"] == "trigger" and not going:
            states.append("triggered")
        elif event["event_action"] == "acknowledge" and going:
            states.append("acknowledged")
        elif event["event_action"] == "resolve" and going:
            states.append("resolved")
        if not states:
            del self.incidents[key]  # an acknowledge or resolve of nothing is dropped
        return 202, json.dumps({"status": "success", "message": "Event processed", "dedup_key": key})

    def _faults(self, event: dict[str, Any]) -> Any:
        if event.get("routing_key") != self.key:
            yield "'routing_key' is invalid"
        if event.get("event_action") not in ("trigger", "acknowledge", "resolve"):
            yield "'event_action' is invalid"
        if not 0 < len(event.get("dedup_key", "")) <= 255:
            yield "Length of 'dedup_key' is incorrect (should be between 1 and 255 characters)"
        if event.get("event_action") != "trigger":
            return
        payload = event.get("payload", {})
        if not 0 < len(payload.get("summary", "")) <= 1024:
            yield "Length of 'summary' is incorrect (should be between 1 and 1024 characters)"
        if payload.get("severity") not in ("critical", "error", "warning", "info"):
            yield "'severity' is invalid (must be one of the following: 'critical', 'warning', 'error', 'info')"
        if not payload.get("source"):
            yield "'source' is missing or blank"


@dataclass
class Opsgenie:
    """The Alert API (docs.opsgenie.com), which Jira Service Management took over: requests are taken, and done later."""

    key: str = "s3cret00-1111-2222-3333-0123456789ab"
    alerts: dict[str, list[str]] = field(default_factory=dict)
    """The states that each alert went through, by its alias."""
    notes: list[str] = field(default_factory=list)

    def __call__(self, call: Call) -> Answer:
        if call.headers.get("Authorization") != f"GenieKey {self.key}":
            return 422, '{"message":"Key format is not valid!","took":0.0,"requestId":"r"}'
        asked = call.path.partition("/v2/alerts")[2].strip("/").split("/")
        taken = (
            202,
            '{"result":"Request will be processed","took":0.1,"requestId":"43a29c5c-3dbf-4fa4-9c26-f4f71023e120"}',
        )
        if asked == [""]:
            sent = call.json
            if not 0 < len(sent.get("message", "")) <= 130 or len(sent.get("alias", "")) > 512:
                return 422, '{"message":"Request body is not processable."}'
            states = self.alerts.setdefault(sent["alias"], [])
            states += [] if states and states[-1] != "closed" else ["open"]
            return taken
        alias, action = asked
        known = call.query.get("identifierType") == ["alias"] and self.alerts.get(alias, ["closed"])[-1] != "closed"
        if known:  # of what is not there nothing is said but in the status of the request
            self.alerts[alias].append({"close": "closed", "acknowledge": "acknowledged"}[action])
            self.notes.append(call.json["note"])
        return taken


@dataclass
class Pings:
    """healthchecks.io (docs/http_api there): a ping of a known check, `/fail` included, is answered by OK."""

    check: str = "/s3cret00-5555-4444-9999-0123456789ab"
    heard: list[str] = field(default_factory=list)
    """`ok` or `fail` of each ping."""

    def __call__(self, call: Call) -> Answer:
        if call.path.removesuffix("/fail") != self.check:
            return 404, "not found"
        self.heard.append("fail" if call.path.endswith("/fail") else "ok")
        return 200, "OK"


@dataclass
class Wandb:
    """As much of wandb's server as wandb's own client needs to alert (the operations: core/api/graphql in wandb/wandb)."""

    key: str = "s3cret0123456789s3cret0123456789s3cret01"
    runs: tuple[str, ...] = ("3fj2k1ab", "m4ops-3fj2k1ab")
    alerts: list[dict[str, Any]] = field(default_factory=list)

    def __call__(self, call: Call) -> Answer:
        if call.path != "/graphql":
            return 200, "{}"
        login = base64.b64encode(f"api:{self.key}".encode()).decode()
        if call.headers.get("Authorization") != f"Basic {login}":
            return 401, '{"errors":[{"message":"user is not logged in"}]}'
        asked = call.json
        query, given = asked["query"], asked.get("variables") or {}
        if "notifyScriptableRunAlert" in query:
            if given["runName"] not in self.runs or given["entityName"] != "m4":
                return 200, json.dumps({"errors": [{"message": "could not find run"}], "data": None})
            self.alerts.append(given)
            return 200, json.dumps({"data": {"notifyScriptableRunAlert": {"success": True}}})
        if "upsertBucket" in query:
            project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": "m4"}}
            bucket = {"id": "b", "name": given["name"], "displayName": "x", "config": "{}", "project": project}
            return 200, json.dumps({"data": {"upsertBucket": {"bucket": bucket, "inserted": True}}})
        if "viewer" in query:
            return 200, json.dumps({"data": {"viewer": {"id": "v", "entity": "m4", "username": "m4", "flags": "{}"}}})
        if "createRunFiles" in query:
            return 200, '{"data":{"createRunFiles":{"runID":"b","uploadHeaders":[],"files":[]}}}'
        return 200, '{"data":{}}'


def _takes_all(_: Call) -> Answer:
    return 200, "{}"


class Internet:
    """All hosts of the world, on a port of this machine, while it is entered."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.trusted = folder / "authority.pem"
        self.authority.cert_pem.write_to_path(self.trusted)
        self.calls: list[Call] = []
        self.slack, self.teams, self.pagerduty, self.pings = Slack(), Teams(), PagerDuty(), Pings()
        self.wandb, self.opsgenie = Wandb(), Opsgenie()
        self.hosts: dict[str, Callable[[Call], Answer]] = {
            "hooks.slack.com": self.slack,
            "prod-12.westus.logic.azure.com": self.teams,
            "events.pagerduty.com": self.pagerduty,
            "hc-ping.com": self.pings,
            "api.opsgenie.com": self.opsgenie,
            "api.eu.opsgenie.com": self.opsgenie,
            "api.atlassian.com": self.opsgenie,
            "api.wandb.ai": self.wandb,
            "api.forge.coreweave.com": self.wandb,
        }
        self.trouble: dict[str, tuple[int, dict[str, str], str]] = {}
        """What a host answers instead, while it does: status, headers, body."""
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._lock = threading.Lock()

    @property
    def environment(self) -> dict[str, str]:
        """What makes programs use it."""
        proxy = f"http://127.0.0.1:{self.server.server_address[1]}"
        trusted = str(self.trusted)
        return {"HTTPS_PROXY": proxy, "SSL_CERT_FILE": trusted, "REQUESTS_CA_BUNDLE": trusted}

    def __enter__(self) -> "Internet":
        internet = self

        class Line(socketserver.StreamRequestHandler):
            """What comes through one connection: CONNECT, then TLS, then HTTP."""

            def handle(self) -> None:
                words = self.rfile.readline().decode().split()
                while self.rfile.readline().strip():
                    pass
                host = words[1].rpartition(":")[0]
                self.connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                try:
                    with internet._context(host).wrap_socket(self.connection, server_side=True) as secure:
                        internet._page(host)(secure, self.client_address, self.server)
                except OSError:
                    pass  # whoever asked went away

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address, daemon_threads = True, True

        self.server = Server(("127.0.0.1", 0), Line)
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()

    def _context(self, host: str) -> ssl.SSLContext:
        with self._lock:
            if host not in self._contexts:
                self._contexts[host] = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                self.authority.issue_cert(host).configure_cert(self._contexts[host])
            return self._contexts[host]

    def _page(self, host: str) -> Callable[..., BaseHTTPRequestHandler]:
        internet = self

        class Page(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                parts = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                call = Call(host, self.command, parts.path, parse_qs(parts.query), dict(self.headers), body)
                internet.calls.append(call)
                status, headers, text = internet.trouble.get(host) or internet._answered(call)
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            do_GET = do_PUT = do_PATCH = do_POST

            def log_message(self, *_: object) -> None:
                pass

        return Page

    def _answered(self, call: Call) -> tuple[int, dict[str, str], str]:
        status, text = self.hosts.get(call.host, _takes_all)(call)
        return status, {"Content-Type": "text/plain"}, text
