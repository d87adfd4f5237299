"""Alerts: told once, to everybody, whatever fails in between; with real receivers on this machine."""

import json
import os
import socketserver
import stat
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ops import state
from ops.alerts import sinks
from ops.alerts.episodes import BLIND_LIMIT, Episode, Message, advance
from ops.alerts.notify import MOST_PENDING, notify
from ops.alerts.sinks import Failure, deliver, parse
from ops.errors import BadInput
from ops.model import Finding, Run, Severity
from ops.state import Memory

NOW = 1716883872.0
SPIKE = Finding(
    "loss-spike",
    Severity.WARNING,
    "loss 9.12 at step 16250, 4.1 above the median",
    evidence=("main_log.txt line 812: per_token_loss: 9.1200",),
    step=16250,
    line=812,
    runbook="loss-spikes.md",
    actions=("m4ops rewind --to 16000",),
)
WORSE = Finding("loss-spike", Severity.CRITICAL, "loss does not come back")
NAN = Finding("nan", Severity.CRITICAL, "loss is NaN")
BLIND = Finding("queue", Severity.UNKNOWN, "squeue does not answer")


def ticks(*rounds: Sequence[Finding], every: float = 300) -> list[list[str]]:
    """What is told in each round, as `event kind SEVERITY`."""
    episodes: tuple[Episode, ...] = ()
    told = []
    for number, findings in enumerate(rounds):
        episodes, messages = advance(episodes, findings, NOW + every * number)
        told.append([f"{m.event} {m.finding.kind} {m.finding.severity.name}" for m in messages])
    return told


def test_told_once_and_once_more_when_over() -> None:
    assert ticks([SPIKE], [SPIKE], [SPIKE], [], []) == [
        ["opened loss-spike WARNING"], [], [], ["resolved loss-spike WARNING"], []
    ]  # fmt: skip


def test_told_again_when_it_gets_worse_but_not_when_it_gets_better() -> None:
    assert ticks([SPIKE], [WORSE], [SPIKE], [WORSE], []) == [
        ["opened loss-spike WARNING"], ["worse loss-spike CRITICAL"], [], [], ["resolved loss-spike CRITICAL"]
    ]  # fmt: skip


def test_a_failure_is_told_again_when_its_cause_turns_out_to_be_another() -> None:
    """A node's loss is noticed by Slurm after the other nodes' tracebacks; `training went on` is no news."""
    crash = Finding("traceback", Severity.CRITICAL, "an exception", episode="incident:7")
    lost = Finding("node-failure", Severity.CRITICAL, "n2 failed", node="n2", episode="incident:7")
    assert ticks([crash], [crash], [lost], [lost], [replace(lost, severity=Severity.WARNING)], []) == [
        ["opened traceback CRITICAL"], [], ["worse node-failure CRITICAL"], [], [], ["resolved node-failure CRITICAL"]
    ]  # fmt: skip
    healed = [replace(found, severity=Severity.WARNING) for found in (crash, lost)]
    assert ticks([crash], *([found] for found in healed), []) == [
        ["opened traceback CRITICAL"], [], [], ["resolved traceback CRITICAL"]
    ]  # fmt: skip


def test_a_new_episode_after_the_end_is_told() -> None:
    assert ticks([NAN], [], [NAN])[2] == ["opened nan CRITICAL"]


def test_the_same_trouble_on_two_nodes_is_two() -> None:
    pair = [Finding("node-failure", Severity.CRITICAL, "down", node=node) for node in ("n1", "n2")]
    assert ticks(pair, pair[:1]) == [
        ["opened node-failure CRITICAL"] * 2, ["resolved node-failure CRITICAL"]
    ]  # fmt: skip


def test_the_worst_of_one_kind_is_told_once_and_ok_is_nothing() -> None:
    fine = Finding("stalled", Severity.OK, "all well")
    assert ticks([SPIKE, WORSE, SPIKE, fine], [fine]) == [
        ["opened loss-spike CRITICAL"], ["resolved loss-spike CRITICAL"]
    ]  # fmt: skip


def test_one_silent_squeue_pages_nobody_and_two_in_a_row_do() -> None:
    assert ticks([BLIND], [], [BLIND], []) == [[], [], [], []]
    assert ticks([BLIND], [BLIND], [BLIND], []) == [
        [], ["opened queue UNKNOWN"], [], ["resolved queue UNKNOWN"]
    ]  # fmt: skip


def test_what_was_unknown_and_turns_out_bad_is_told_at_once() -> None:
    absent = Finding("queue", Severity.CRITICAL, "no job of the run is in the queue")
    assert ticks([BLIND], [absent]) == [[], ["opened queue CRITICAL"]]
    assert ticks([BLIND], [BLIND], [absent])[2] == ["worse queue CRITICAL"]


def test_not_knowing_is_not_well() -> None:
    """While squeue is silent its findings are missing: that resolves nothing, and repeats nothing after."""
    absent = Finding("job-absent", Severity.CRITICAL, "no job")
    assert ticks([absent], [BLIND], [BLIND], [absent], []) == [
        ["opened job-absent CRITICAL"], [], ["opened queue UNKNOWN"], ["resolved queue UNKNOWN"],
        ["resolved job-absent CRITICAL"],
    ]  # fmt: skip
    hidden = Finding("job-absent", Severity.UNKNOWN, "cannot tell")
    assert ticks([absent], [hidden], [hidden], [absent])[1:] == [[], [], []]


def test_a_source_that_stays_unknown_does_not_hide_the_next_trouble() -> None:
    told = ticks([BLIND, SPIKE], [BLIND], [BLIND], [BLIND, SPIKE], every=BLIND_LIMIT / 2 + 1)
    assert told[2] == ["unseen loss-spike WARNING"]
    assert told[3] == ["opened loss-spike WARNING"]


# ---------------------------------------------------------------- receivers


@dataclass
class Receiver:
    """Something that listens on this machine and keeps what it gets."""

    address: tuple[str, int]
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answer: int = 200

    @property
    def port(self) -> int:
        return self.address[1]

    def texts(self) -> list[str]:
        """The first line of each JSON body's text."""
        return [json.loads(body)["text"].split("\n")[0] for body in self.bodies]

    def mails(self) -> list[EmailMessage]:
        return [message_from_bytes(body, policy=policy.default) for body in self.bodies]  # type: ignore[misc]


def web_server(receiver: Receiver) -> socketserver.BaseServer:
    class Page(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if receiver.answer == 200:
                receiver.bodies.append(body)
                receiver.headers.append({"path": self.path, **self.headers})
            self.send_response(receiver.answer, f"as you say {self.path}")
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer(receiver.address, Page)


def mail_server(receiver: Receiver) -> socketserver.BaseServer:
    """As much of RFC 5321 as one mail needs; `answer` 550 refuses the recipient."""

    class Dialogue(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.say("220 here")
            while line := self.rfile.readline().strip().upper():
                if line == b"DATA":
                    self.say("354 go on")
                    lines = list(iter(self.rfile.readline, b".\r\n"))
                    receiver.bodies.append(b"".join(x.removeprefix(b".") for x in lines))
                    self.say("250 taken")
                elif line == b"QUIT":
                    return self.say("221 bye")
                else:
                    refused = line.startswith(b"RCPT") and receiver.answer == 550
                    self.say("550 no such user" if refused else "250 fine")
            return None

        def say(self, words: str) -> None:
            self.wfile.write(f"{words}\r\n".encode())

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

    return Server(receiver.address, Dialogue)


Open = Callable[..., Receiver]


@pytest.fixture
def listen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """`listen(web_server)` opens a receiver; `listen(web_server, closed)` opens one that was made by `down()`."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    opened: list[tuple[socketserver.BaseServer, threading.Thread]] = []

    def begin(kind: Callable[[Receiver], socketserver.BaseServer], receiver: Receiver | None = None) -> Receiver:
        receiver = receiver or Receiver(("127.0.0.1", 0))
        server = kind(receiver)
        receiver.address = ("127.0.0.1", server.server_address[1])  # type: ignore[index]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        opened.append((server, thread))
        return receiver

    yield begin
    for server, thread in opened:
        server.shutdown()
        server.server_close()
        thread.join()


def down() -> Receiver:
    """A receiver nobody listens at, yet."""
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        return Receiver(("127.0.0.1", server.server_address[1]))


@pytest.fixture
def run(tmp_path: Path) -> Run:
    (tmp_path / "tr_190").mkdir()
    return Run(tmp_path / "tr_190", "tr_190")


def tick(run: Run, findings: Sequence[Finding], sinks: Sequence[str], now: float = NOW) -> tuple[Failure, ...]:
    """What a tick does, with the bookkeeping on disk as between two cron jobs."""
    with state.lease(run, "tick", 60):
        memory, failures = notify(run, state.load(run), findings, sinks, now)
        state.save(run, memory)
    return failures


def message(finding: Finding = SPIKE, event: str = "opened", **more: object) -> Message:
    return Message(event, finding, NOW, NOW - 7500, "tr_190", "login2", **more)  # type: ignore[arg-type]


# ---------------------------------------------------------------- nothing lost, nothing twice


def test_first_down_then_up_nothing_is_lost_and_nothing_comes_twice(run: Run, listen: Open) -> None:
    """Three sinks, of which one always works: it must not hear twice what the others missed."""
    steady, web, mail = listen(web_server), down(), down()
    uris = [
        f"http://127.0.0.1:{web.port}/hook",
        f"smtp://127.0.0.1:{mail.port}/ops@example.org",
        f"http://127.0.0.1:{steady.port}/hook",
    ]
    assert {f.sink.split(":")[0] for f in tick(run, [SPIKE], uris)} == {"http", "smtp"}
    assert len(tick(run, [SPIKE, NAN], uris, NOW + 300)) == 4
    listen(web_server, web)
    assert [f.sink.split(":")[0] for f in tick(run, [NAN], uris, NOW + 600)] == ["smtp"] * 3
    listen(mail_server, mail)
    assert tick(run, [NAN], uris, NOW + 900) == ()
    assert tick(run, [NAN], uris, NOW + 1200) == ()
    everything = [
        f"WARNING tr_190: {SPIKE.summary}",
        "CRITICAL tr_190: loss is NaN",
        f"RESOLVED tr_190: {SPIKE.summary}",
    ]
    assert steady.texts() == web.texts() == everything
    assert [mail["Subject"] for mail in mail.mails()] == [f"[m4ops] {text}" for text in everything]
    assert state.load(run).outbox == ()


def test_two_hosts_in_turn_send_one_message(run: Run, listen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    web = listen(web_server)
    for number in range(6):
        monkeypatch.setattr("socket.gethostname", lambda n=number: f"login{n % 2}")
        tick(run, [SPIKE] if number < 4 else [], [f"http://127.0.0.1:{web.port}/"], NOW + number)
    assert [json.loads(body)["event"] for body in web.bodies] == ["opened", "resolved"]
    assert json.loads(web.bodies[0])["host"] == "login0"


TICK = """
import sys
from pathlib import Path
from ops import state
from ops.alerts.notify import notify
from ops.errors import Busy
from ops.model import Finding, Run, Severity

run = Run(Path(sys.argv[1]), "tr_190")
print("ready", flush=True)
sys.stdin.readline()
for now in range(5):
    try:
        with state.lease(run, "tick", 60):
            memory, failures = notify(run, state.load(run), [Finding("nan", Severity.CRITICAL, "NaN")], sys.argv[2:], now)
            assert not failures
            state.save(run, memory)
    except Busy:
        pass
"""


def test_many_hosts_at_once_send_one_message(run: Run, listen: Open) -> None:
    web = listen(web_server)
    argv = [sys.executable, "-c", TICK, str(run.dir), f"http://127.0.0.1:{web.port}/"]
    hosts = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    for host in hosts:
        assert host.stdout and host.stdout.readline() == "ready\n"
    for host in hosts:
        assert host.stdin
        host.stdin.write("go\n")
        host.stdin.flush()
    for host in hosts:
        host.communicate(timeout=30)
    assert [host.returncode for host in hosts] == [0] * 4
    assert len(web.bodies) == 1


def test_a_bad_sink_in_the_list_does_not_silence_the_others(run: Run, listen: Open) -> None:
    web = listen(web_server)
    failures = tick(run, [NAN], ["pigeon://coop", f"http://127.0.0.1:{web.port}/"])
    assert ["unknown kind of sink: pigeon:***" in str(failure) for failure in failures] == [True]
    assert len(web.bodies) == 1


def test_a_corrected_address_gets_what_the_wrong_one_missed(run: Run, listen: Open) -> None:
    web = listen(web_server)
    assert len(tick(run, [NAN], [f"http://127.0.0.1:{down().port}/"])) == 1
    assert tick(run, [NAN], [f"http://127.0.0.1:{web.port}/"]) == ()
    assert web.texts() == ["CRITICAL tr_190: loss is NaN"]


def test_one_refused_message_does_not_block_the_next(run: Run, listen: Open) -> None:
    web = listen(web_server)
    web.answer = 400
    uris = [f"http://127.0.0.1:{web.port}/"]
    failures = tick(run, [NAN, SPIKE], uris)
    assert len(failures) == 2 and "it answered 400" in failures[0].reason
    web.answer = 200
    assert tick(run, [NAN, SPIKE], uris) == ()
    assert len(web.bodies) == 2


def test_without_a_sink_it_is_printed_for_cron_to_mail(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert tick(run, [SPIKE], []) == tick(run, [SPIKE], []) == ()
    assert capsys.readouterr().out == (
        f"WARNING tr_190: {SPIKE.summary}\n  {SPIKE.evidence[0]}\n"
        "  consider: m4ops rewind --to 16000\n  runbook: loss-spikes.md\n"
    )
    tick(run, [], [], NOW + 7500)
    assert capsys.readouterr().out == f"RESOLVED tr_190: {SPIKE.summary}\n  over after 2 h 05 min\n"


def test_what_is_given_up_is_told(run: Run) -> None:
    dead = [f"http://127.0.0.1:{down().port}/"]
    memory = Memory()
    for number in range(MOST_PENDING + 5):
        finding = Finding("node-failure", Severity.CRITICAL, "down", node=f"n{number}")
        memory = notify(run, Memory(outbox=memory.outbox), [finding], dead, NOW + number)[0]
    assert len(memory.outbox) == MOST_PENDING
    _, failures = notify(run, memory, [], dead, NOW + 8 * 86400)
    assert [f.reason for f in failures if "given up" in f.reason] == [
        "given up: undelivered for too long"
    ] * MOST_PENDING


# ---------------------------------------------------------------- each sink


def test_the_webhook_gets_the_finding_whole(listen: Open) -> None:
    web = listen(web_server)
    assert deliver([message()], [f"http://user:p%40ss@127.0.0.1:{web.port}/hook/ä?k=v"]) == ()
    body = json.loads(web.bodies[0])
    assert body["text"].startswith(f"WARNING tr_190: {SPIKE.summary}\n")
    assert {name: body[name] for name in ("kind", "severity", "run", "host", "step", "evidence", "runbook", "actions")} == {
        "kind": "loss-spike", "severity": "WARNING", "run": "tr_190", "host": "login2", "step": 16250,
        "evidence": list(SPIKE.evidence), "runbook": "loss-spikes.md", "actions": list(SPIKE.actions),
    }  # fmt: skip
    assert body["time"] == "2024-05-28T08:11:12+00:00" and body["since"] == "2024-05-28T06:06:12+00:00"
    assert web.headers[0]["path"] == "/hook/%C3%A4?k=v"
    assert web.headers[0]["Authorization"] == "Basic dXNlcjpwQHNz"
    assert web.headers[0]["Content-Type"] == "application/json"


@pytest.mark.parametrize("answer", [301, 302, 307, 404, 500])
def test_only_a_success_is_a_delivery(listen: Open, answer: int) -> None:
    web = listen(web_server)
    web.answer = answer
    failures = deliver([message()], [f"http://127.0.0.1:{web.port}/"])
    assert [f"it answered {answer}" in failure.reason for failure in failures] == [True]


def test_a_sink_that_says_nothing_is_asked_once_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks, "TIMEOUT", 0.2)
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:  # never accepts
        port = server.server_address[1]
        for uri in (f"http://127.0.0.1:{port}/", f"smtp://127.0.0.1:{port}/a@b"):
            failures = deliver([message(), message(NAN)], [uri])
            assert [failure.reason for failure in failures] == ["no answer within 0.2 s"] * 2


def test_mail_goes_to_the_named_server(listen: Open) -> None:
    mail = listen(mail_server)
    assert deliver([message()], [f"smtp://127.0.0.1:{mail.port}/ops@example.org"]) == ()
    letter = mail.mails()[0]
    assert (letter["To"], letter["From"]) == ("ops@example.org", "m4ops@login2")
    assert letter["Subject"] == f"[m4ops] WARNING tr_190: {SPIKE.summary}"
    assert letter["Message-ID"] == f"<{message().id}@m4ops>"
    assert letter.get_content().replace("\r\n", "\n") == sinks.text(message())


def test_a_refused_recipient_is_a_failure(listen: Open) -> None:
    mail = listen(mail_server)
    mail.answer = 550
    failures = deliver([message()], [f"smtp://127.0.0.1:{mail.port}/nobody@example.org"])
    assert ["no such user" in failure.reason for failure in failures] == [True]


def fake_sendmail(folder: Path, status: int) -> Path:
    program = folder / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" >"$0.args"\ncat >"$0.mail"\necho trouble >&2\nexit {status}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_mail_goes_through_the_local_sendmail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_sendmail(tmp_path, 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    strange = Finding("nan", Severity.CRITICAL, "Verlust ist NaN\n\x1b[31m€\udc80", ("." * 300,))
    assert deliver([message(strange)], ["mailto:root"]) == ()
    assert Path(f"{program}.args").read_text() == "-i -t\n"
    letter = message_from_bytes(Path(f"{program}.mail").read_bytes(), policy=policy.default)
    assert letter["To"] == "root" and letter["Subject"] == "[m4ops] CRITICAL tr_190: Verlust ist NaN �[31m€�"
    assert "." * 300 in letter.get_content()  # type: ignore[attr-defined]
    fake_sendmail(tmp_path, 75)
    failures = deliver([message()], ["mailto:root"])
    assert [f"{program} ended with 75: trouble" in failure.reason for failure in failures] == [True]


def test_without_sendmail_mail_goes_to_this_host(listen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    mail = listen(mail_server)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(sinks, "LOCAL_SMTP", mail.address)
    assert deliver([message()], ["mailto:ops@example.org"]) == ()
    assert mail.mails()[0]["To"] == "ops@example.org"


# ---------------------------------------------------------------- what must not be shown


@pytest.mark.parametrize(
    "uri",
    ["", "hook", "pigeon:coop", "ftp://host/x", "https:///x", "http://h:port/x", "http://[::1/x", "mailto:", "mailto:a@b,c@d",
     "mailto:-oQ/tmp", "mailto:a@b%0aBcc:c@d", "smtp://host/", "smtp://u:p@host/a@b"],
)  # fmt: skip
def test_what_is_no_sink_is_said_with_what_is(uri: str) -> None:
    with pytest.raises(BadInput, match="sink") as bad:
        parse(uri)
    assert "stdout:" in bad.value.hint and "smtp://" in bad.value.hint


SECRETS = ("s3cretUser", "s3cretPass", "T0s3cret", "B0s3cret", "s3cretQuery")


@pytest.mark.parametrize("scheme", ["http", "htps", "https", ""])
def test_no_secret_of_an_address_is_ever_shown(run: Run, listen: Open, scheme: str) -> None:
    """Neither when it fails, nor when the address is mistyped, nor in the bookkeeping."""
    web = listen(web_server)
    web.answer = 404  # its reason repeats the path
    hosts = (f"127.0.0.1:{web.port}", f"127.0.0.1:{down().port}", "127.0.0.1:x", "no such host")
    for host in hosts:
        start = f"{scheme}://" if scheme else ""
        uri = f"{start}s3cretUser:s3cretPass@{host}/T0s3cret/B0s3cret?token=s3cretQuery"
        failures = tick(run, [NAN], [uri])
        shown = f"{failures!r} {[str(f) for f in failures]} {(state.folder(run) / 'memory.json').read_text()}"
        assert failures
        assert [secret for secret in SECRETS if secret.lower() in shown.lower()] == []
        try:
            parse(uri)
        except BadInput as bad:
            told = "".join(traceback.format_exception(bad)).lower()
            assert [secret for secret in SECRETS if secret.lower() in told] == []
