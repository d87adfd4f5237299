"""Every kind of sink, with real receivers on this machine; what it is given, and what it must never show."""

import json
import os
import socketserver
import stat
import subprocess
import sys
import traceback
from collections.abc import Iterator
from email import message_from_bytes, policy
from pathlib import Path

import pytest
from alerting import NAN, NOW, SPIKE, message
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from receivers import Mail, Web, free_port

from ops.alerts import mail as mail_sink
from ops.alerts import prometheus
from ops.alerts.address import Answered, NotSent, mask
from ops.alerts.sinks import parse, send, vet
from ops.alerts.text import text
from ops.alerts.words import Ack, Episode, ident
from ops.errors import BadInput, OpsError
from ops.model import Checkpoint, Finding, Job, LogView, Run, Sample, Severity, Snapshot, Unknown


@pytest.fixture
def mail() -> Iterator[Mail]:
    receiver = Mail(0).listen()
    yield receiver
    receiver.down()


def test_the_webhook_gets_the_finding_whole(web: Web) -> None:
    send(f"http://user:p%40ss@127.0.0.1:{web.port}/hook/ä?k=v", message())
    body = web.posted()[0]
    assert body["text"] == (
        f"WARNING tr_190: {SPIKE.summary}\n  {SPIKE.evidence[0]}\n  since 2024-05-28 06:06 UTC\n"
        "  consider: m4ops rewind --to 16000\n"
        f"  ack: m4ops --run /gpfs/runs/tr_190 ack {ident(SPIKE)}\n  runbook: loss-spikes\n"
    )
    shown = ("schema", "kind", "severity", "run", "dir", "host", "step", "evidence", "runbook", "actions", "event")
    assert {name: body[name] for name in shown} == {
        "schema": "m4ops.alert/1", "kind": "loss-spike", "severity": "WARNING", "run": "tr_190",
        "dir": "/gpfs/runs/tr_190", "host": "login2", "step": 16250, "evidence": list(SPIKE.evidence),
        "runbook": "loss-spikes", "actions": list(SPIKE.actions), "event": "opened",
    }  # fmt: skip
    assert (body["count"], body["news"][0]["episode"]) == (1, ident(SPIKE))
    assert body["time"] == "2024-05-28T08:11:12+00:00" and body["since"] == "2024-05-28T06:06:12+00:00"
    assert web.headers[0]["path"] == "/hook/%C3%A4?k=v"
    assert web.headers[0]["Authorization"] == "Basic dXNlcjpwQHNz"
    assert web.headers[0]["Content-Type"] == "application/json"


@pytest.mark.parametrize("answer", [301, 302, 307, 404, 500])
def test_only_a_success_is_a_delivery(web: Web, answer: int) -> None:
    web.answer = answer
    with pytest.raises(Answered, match=f"it answered {answer}"):
        send(web.uri, message())


def test_a_sink_that_says_nothing_is_given_up_within_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.alerts.web.TIMEOUT", 0.2)
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:  # never accepts
        for uri in (
            f"http://127.0.0.1:{server.server_address[1]}/",
            f"smtp://127.0.0.1:{server.server_address[1]}/a@b",
        ):
            with pytest.raises(NotSent, match=r"no answer within 0\.2 s"):
                send(uri, message())


def test_mail_goes_to_the_named_server_and_an_episode_is_one_thread(mail: Mail) -> None:
    send(mail.uri, message())
    send(mail.uri, message(event="resolved"))
    letter, over = mail.mails()
    assert (letter["To"], letter["From"]) == ("ops@example.org", "m4ops@login2")
    assert letter["Subject"] == f"[m4ops] WARNING tr_190: {SPIKE.summary}"
    assert letter["Message-ID"] == f"<{message().id}@m4ops>" != over["Message-ID"]
    assert letter["References"] == over["References"]
    assert letter.get_content().replace("\r\n", "\n") == text(message())
    assert over.get_content().replace("\r\n", "\n") == (
        f"RESOLVED tr_190: {SPIKE.summary}\n  over after 2 h 05 min\n"
    )  # fmt: skip


def test_a_refused_recipient_is_a_failure(mail: Mail) -> None:
    mail.answer = 550
    with pytest.raises(Answered, match="no such user"):
        send(mail.uri, message())


def fake_sendmail(folder: Path, status: int) -> Path:
    program = folder / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" >"$0.args"\ncat >"$0.mail"\necho trouble >&2\nexit {status}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def test_mail_goes_through_the_local_sendmail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = fake_sendmail(tmp_path, 0)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    strange = Finding("nan", Severity.CRITICAL, "Verlust ist NaN\n\x1b[31m€\udc80", ("." * 300,))
    send("mailto:root", message(strange))
    assert Path(f"{program}.args").read_text() == "-i -t\n"
    letter = message_from_bytes(Path(f"{program}.mail").read_bytes(), policy=policy.default)
    assert letter["To"] == "root" and letter["Subject"] == "[m4ops] CRITICAL tr_190: Verlust ist NaN �[31m€�"
    assert "." * 300 in letter.get_content()  # type: ignore[attr-defined]
    fake_sendmail(tmp_path, 75)
    with pytest.raises(NotSent, match=f"{program} ended with 75: trouble"):
        send("mailto:root", message())


def test_without_sendmail_mail_goes_to_this_host(mail: Mail, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    monkeypatch.setattr(mail_sink, "LOCAL_SMTP", ("127.0.0.1", mail.port))
    send("mailto:ops@example.org", message())
    assert mail.mails()[0]["To"] == "ops@example.org"


# ---------------------------------------------------------------- apprise, wandb


def test_apprise_brings_it_to_what_it_knows(web: Web, mail: Mail) -> None:
    vet(f"json://127.0.0.1:{web.port}/hook")
    send(f"json://127.0.0.1:{web.port}/hook", message(NAN))
    send(f"mailto://127.0.0.1:{mail.port}/?from=m4ops@example.org&to=ops@example.org&mode=insecure", message(NAN))
    assert [(p["title"], p["type"]) for p in web.posted()] == [("CRITICAL tr_190: loss is NaN", "failure")]
    assert f"ack {ident(NAN)}" in web.posted()[0]["message"]
    assert mail.mails()[0]["To"] == "ops@example.org" and "loss is NaN" in mail.mails()[0]["Subject"]


def test_what_apprise_cannot_deliver_is_a_failure_in_its_words_without_secrets(web: Web) -> None:
    web.answer = 403
    for uri in (f"json://s3cretUser:s3cretPass@127.0.0.1:{web.port}/s3cretPath?token=s3cretQuery",
                f"json://s3cretUser:s3cretPass@127.0.0.1:{free_port()}/s3cretPath"):  # fmt: skip
        with pytest.raises(Answered) as refused:
            send(uri, message(NAN))
        assert str(refused.value) and "s3cret" not in f"{refused.value} {mask(uri)}"


def test_apprise_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(BadInput) as bad:
        parse("slack://tokenA/tokenB/tokenC")
    assert "m4ops[alerts]" in bad.value.hint and "token" not in str(bad.value)


def test_a_run_without_wandb_says_so() -> None:
    with pytest.raises(NotSent, match="no wandb id yet"):
        send("wandb:", replace(message(NAN), wandb=""))


# ---------------------------------------------------------------- Prometheus

RUN = Run(Path("/gpfs/tr_190"), 'tr "190"\n\\')


def snapshot(**known: object) -> Snapshot:
    nothing: dict[str, object] = dict.fromkeys(
        ("jobs", "pointer", "checkpoints", "log", "evals", "history"), Unknown("?")
    )
    return Snapshot(run=RUN, now=NOW, user="me", **{**nothing, **known})  # type: ignore[arg-type]


def samples(file: Path) -> dict[str, list[tuple[dict[str, str], float]]]:
    families = text_string_to_metric_families(file.read_text())
    return {f.name: [(s.labels, s.value) for s in f.samples] for f in families}


def test_prometheus_reads_the_state_of_a_run(tmp_path: Path) -> None:
    log = LogView(Path("log"), 9, NOW - 10, (Sample(16250, float("nan"), 1e-5, time=NOW - 70),), ())
    kept = Checkpoint(16000, Path("x"), saved=NOW - 600)
    torn = Checkpoint(16250, Path("y"), ("no optimizer",), saved=NOW)
    jobs = [Job(i, i, "", i, state, "", "tr", "me") for i, state in (("1", "RUNNING"), ("2", "PENDING"))]
    seen = snapshot(log=log, checkpoints=(kept, torn), jobs=tuple(jobs))
    episodes = [Episode(NAN, NOW - 9, NOW), Episode(SPIKE, NOW - 9, NOW)]
    known = prometheus.metrics(seen, Severity.CRITICAL, episodes, [Ack("nan", "alice", NOW, NOW + 9)])
    prometheus.write(str(tmp_path / "m4ops.prom"), known, "tr_190")
    found = samples(tmp_path / "m4ops.prom")
    assert {labels["run"] for rows in found.values() for labels, _ in rows} == {'tr "190"\n\\'}
    figures = {name: rows[0][1] for name, rows in found.items() if len(rows) == 1 and name != "m4ops_loss"}
    assert figures == {
        "m4ops_severity": 2, "m4ops_step": 16250, "m4ops_learning_rate": 1e-5, "m4ops_progress_age_seconds": 70,
        "m4ops_checkpoint_step": 16000, "m4ops_checkpoint_age_seconds": 600, "m4ops_check_timestamp_seconds": NOW,
    }  # fmt: skip
    assert str(found["m4ops_loss"][0][1]) == "nan"
    open_ = {(labels["severity"], labels["acked"]): n for labels, n in found["m4ops_open_episodes"]}
    assert {key for key, n in open_.items() if n} == {("critical", "yes"), ("warning", "no")}
    assert {labels["running"]: n for labels, n in found["m4ops_jobs"]} == {"yes": 1, "no": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["m4ops.prom"]
    assert stat.S_IMODE((tmp_path / "m4ops.prom").stat().st_mode) == 0o644


def test_what_is_unknown_has_no_sample_and_a_folder_holds_a_file_a_run(tmp_path: Path) -> None:
    for run in ("a", "b"):
        prometheus.write(str(tmp_path), prometheus.metrics(snapshot(), Severity.UNKNOWN, (), ()), run)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m4ops_a.prom", "m4ops_b.prom"]
    found = samples(tmp_path / "m4ops_a.prom")
    assert set(found) == {"m4ops_severity", "m4ops_open_episodes", "m4ops_check_timestamp_seconds"}
    with pytest.raises(OpsError, match="metrics cannot be written"):
        prometheus.write(str(tmp_path / "no" / "m4ops.prom"), "", "a")


# ---------------------------------------------------------------- what must not be shown


@pytest.mark.parametrize(
    "uri",
    ["", "hook", "pigeon:coop", "https:///x", "http://h:port/x", "http://[::1/x", "mailto:", "mailto:a@b,c@d",
     "mailto:-oQ/tmp", "mailto:a@b%0aBcc:c@d", "smtp://host/", "smtp://u:p@host/a@b", "wandb:a/b/c", "wandb://x",
     "prometheus:file", "prometheus://host/x"],
)  # fmt: skip
def test_what_is_no_sink_is_said_with_what_is(uri: str) -> None:
    with pytest.raises(BadInput, match=r"sink|Prometheus") as bad:
        parse(uri)
    assert "stdout:" in bad.value.hint and "smtp://" in bad.value.hint


def test_a_scheme_that_nobody_knows_is_told_when_it_is_new() -> None:
    with pytest.raises(BadInput, match="unknown kind of sink"):
        vet("pigeon://coop/s3cret")


SECRETS = ("s3cretUser", "s3cretPass", "T0s3cret", "B0s3cret", "s3cretQuery")


@pytest.mark.parametrize("scheme", ["http", "htps", "https", "", "slack", "pigeon", "mailtos"])
def test_no_secret_of_an_address_is_ever_shown(web: Web, scheme: str) -> None:
    """Neither when it fails nor when the address is mistyped."""
    web.answer = 404  # its reason repeats the path
    for host in (f"127.0.0.1:{web.port}", f"127.0.0.1:{free_port()}", "127.0.0.1:x", "no such host"):
        start = f"{scheme}://" if scheme else ""
        uri = f"{start}s3cretUser:s3cretPass@{host}/T0s3cret/B0s3cret?token=s3cretQuery"
        for attempt in (lambda uri=uri: parse(uri), lambda uri=uri: vet(uri), lambda uri=uri: send(uri, message(NAN))):
            try:
                attempt()
            except (OpsError, Answered, NotSent) as error:
                told = f"{''.join(traceback.format_exception(error))} {mask(uri)}".lower()
                assert [secret for secret in SECRETS if secret.lower() in told] == []


def test_a_tick_without_alerts_loads_no_library(tmp_path: Path) -> None:
    run = tmp_path / "tr_1"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "main_log.txt").write_text("iteration:  5/10  50% | per_token_loss: 2.1 | lr: 1.000E-05 |\n")
    (run / "m4ops.toml").write_text(
        'sinks = ["json://127.0.0.1:9/x", "wandb:a/b", "stdout:"]\nquiet_hours = "00:00-23:59"\nquiet_passes = []\n'
    )
    env = {**os.environ, "M4OPS_EMBEDDED": str(tmp_path / "slurm"), "M4OPS_RUN": str(run)}
    program = (
        "import sys\nfrom ops.cli import cli\ntry: cli(['check'])\nexcept SystemExit: pass\n"
        "print(*sorted({'apprise', 'wandb', 'requests', 'ops.alerts.library'} & set(sys.modules)), file=sys.stderr)"
    )
    argv = [sys.executable, "-c", program]
    first, second = (subprocess.run(argv, env=env, capture_output=True, text=True, cwd=run) for _ in range(2))
    assert "apprise" in first.stderr, "the new sink was not looked at"
    assert (second.stdout, second.stderr) == ("", "\n"), (first, second)
    kept = json.loads((run / ".m4ops" / "state" / "memory.json").read_text())
    assert kept["held"] and len(kept["vetted"]) == 3
