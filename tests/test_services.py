"""Slack, Teams, PagerDuty and their likes, spoken to at their true addresses: what they show, open, close and refuse."""

import json
import os
import shutil
import socketserver
import subprocess
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest
from alerting import NAN, NOW, PROGRESS, SPIKE, configure, failed, lines, m4ops, message, news, tick
from msgspec.structs import replace
from receivers import Web
from services import Internet

from ops import state
from ops.alerts.address import Answered, NotSent
from ops.alerts.episodes import advance
from ops.alerts.library import KEYED
from ops.alerts.sinks import send, vet
from ops.alerts.text import subject, text
from ops.alerts.words import LAST_RETRY, Message, ident
from ops.errors import BadInput
from ops.model import Finding, Run, Severity
from ops.policy import Policy

LOUD = Finding("nan", Severity.CRITICAL, "loss is NaN & <!channel>", ("<@U123> said: 3 < 4", "x" * 9000))
"""What a log line may hold: a call of everybody in the channel, and far too much of it."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Internet]:
    with pytest.MonkeyPatch.context() as patch, Internet(tmp_path_factory.mktemp("internet")) as internet:
        for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
            patch.delenv(name)
        for name, value in internet.environment.items():
            patch.setenv(name, value)
        yield internet


@pytest.fixture
def internet(world: Internet) -> Iterator[Internet]:
    """As at its first day."""
    world.calls.clear()
    for service in (world.slack, world.teams, world.pagerduty, world.pings, world.wandb, world.opsgenie):
        service.__init__()  # type: ignore[misc]
    yield world
    world.trouble.clear()


@pytest.fixture
def addresses(internet: Internet) -> dict[str, str]:
    """How each service is written in m4ops.toml: as it is shown there for copying, and as apprise has it."""
    path = internet.slack.path
    return {
        "slack": f"https://hooks.slack.com{path}",
        "slack by apprise": f"slack://{path.removeprefix('/services/')}",
        "teams": internet.teams.address,
        "pagerduty": f"pagerduty://{internet.pagerduty.key}",
    }


def test_slack_and_teams_show_a_message_of_any_length_and_call_nobody(
    internet: Internet, addresses: dict[str, str]
) -> None:
    for name in ("slack", "slack by apprise", "teams"):
        vet(addresses[name])
        send(addresses[name], message(LOUD))
        send(addresses[name], message(SPIKE))
    loud, spike, *_ = internet.slack.shown
    assert loud.startswith("CRITICAL tr_190: loss is NaN & <!channel>\n  <@U123> said: 3 < 4\n") and loud.endswith(" …")
    assert f"ack {ident(SPIKE)}" in spike and "m4ops rewind --to 16000" in spike
    assert len(internet.slack.shown) == 4 and internet.slack.called == []
    assert len(internet.teams.cards) == 2 and f"ack {ident(SPIKE)}" in internet.teams.cards[1]


def test_a_pager_gets_an_incident_that_can_be_closed(internet: Internet, addresses: dict[str, str]) -> None:
    send(addresses["pagerduty"], message(LOUD))
    (event,) = internet.pagerduty.events
    payload = event["payload"]
    assert payload["summary"] == "CRITICAL tr_190: loss is NaN & <!channel>"
    assert (payload["severity"], payload["class"], payload["component"]) == ("critical", "nan", "tr_190")
    assert payload["source"] == "login2" and payload["timestamp"] == "2024-05-28T08:11:12.000+00:00"
    assert f"ack {ident(LOUD)}" not in payload["summary"] and "3 < 4" in payload["custom_details"]["text"]
    send(addresses["pagerduty"], message(Finding("nan", Severity.CRITICAL, "y" * 5000)))
    assert len(internet.pagerduty.events) == 2, "a summary too long for it was refused"
    send(f"pagerduty://{internet.pagerduty.key}@of-apprise/host?region=eu", message(NAN))
    assert (internet.calls[-1].host, internet.calls[-1].json["routing_key"]) == (
        "events.eu.pagerduty.com", internet.pagerduty.key
    )  # fmt: skip
    for wrong in ("pagerduty://short", f"pagerduty://{internet.pagerduty.key}?region=moon"):
        with pytest.raises(BadInput, match="PagerDuty sink"):
            vet(wrong)


def told(*rounds: list[Finding]) -> Iterator[Message]:
    """The messages of ticks, five minutes apart, that find this."""
    episodes: tuple = ()  # type: ignore[type-arg]
    for number, findings in enumerate(rounds):
        episodes, fresh = advance(episodes, findings, NOW + 300 * number)
        if fresh:
            yield Message(fresh, NOW + 300 * number, "tr_190", "/gpfs/runs/tr_190", "login2")


def test_a_storm_is_one_incident_and_is_over_when_the_last_of_it_is(
    internet: Internet, addresses: dict[str, str]
) -> None:
    """A node that fails later is another incident; what changes its kind stays the same one."""
    storm, later = failed(61)[:60], failed(61)[60:]
    crash = Finding("traceback", Severity.CRITICAL, "an exception", episode="incident:7")
    lost = Finding("node-failure", Severity.CRITICAL, "n99 failed", node="n99", episode="incident:7")
    rounds = ([*storm, crash], [*storm, *later, lost], [storm[7], lost], [lost], [], [storm[0]])
    seen = []
    for one in told(*rounds):
        send(addresses["pagerduty"], one)
        seen.append(sorted(states[-1] for states in internet.pagerduty.incidents.values()))
    assert seen == [
        ["triggered"] * 2, ["triggered"] * 3, ["resolved", *["triggered"] * 2],
        ["resolved"] * 2 + ["triggered"], ["resolved"] * 3, ["resolved"] * 3 + ["triggered"],
    ]  # fmt: skip
    assert len(internet.pagerduty.events) == 8


def test_what_is_gone_without_proof_stays_open_at_the_pager(internet: Internet, addresses: dict[str, str]) -> None:
    blind = Finding("queue-unknown", Severity.UNKNOWN, "squeue does not answer")
    for one in told([NAN], *[[blind]] * 13):
        send(addresses["pagerduty"], one)
    assert [states for key, states in internet.pagerduty.incidents.items() if ".nan." in key] == [["triggered"]]
    send(addresses["pagerduty"], Message((news(Finding("request", Severity.OK, "alice asked to stop: done")),), NOW))
    assert len(internet.pagerduty.incidents) == 2, "what is no trouble calls nobody"


ACCOUNTS = {
    "firehydrant": "firehydrant://s3cretKey0123456789",
    "goalert": "goalerts://alerts.example.org/12345678-5555-4444-9999-0123456789ab",
    "ilert": "ilert://s3cretKey0123456789",
    "incidentio": "incidentio://s3cretKey0123456789/01ABCDEFGH",
    "signl4": "signl4://s3cretSecret",
    "pagertree": "pagertree://int_s3cret01234",
    "splunk": "splunk://route_key@12345678-1234-1234-1234-123456789abc",
    "squadcast": "squadcast://s3cretKey0123456789s3cretKey0123456789",
}


@pytest.mark.parametrize("service", sorted(ACCOUNTS))
def test_other_services_of_incidents_get_one_key_from_begin_to_end(internet: Internet, service: str) -> None:
    vet(ACCOUNTS[service])
    for one in told([NAN], []):
        send(ACCOUNTS[service], one)
    opened, closed = (f"{call.path} {call.body.decode()}" for call in internet.calls)
    key = f".nan.{NOW:.0f}"
    assert key in opened and key in closed
    words = ("resolve", "close", "RECOVERY", "CLOSED")
    assert any(word.lower() in closed.lower() for word in words), closed
    assert not any(f'"{word}' in opened for word in words), opened


def test_every_service_with_a_key_is_tried() -> None:
    known = {"goalert" if name == "goalerts" else name for name in KEYED} - {"victorops"}
    assert known == {*ACCOUNTS, "opsgenie", "jira"}


@pytest.mark.parametrize("scheme", ["opsgenie://{}", "opsgenie://{}/@ann/?region=eu", "jira://{}"])
def test_opsgenie_opens_takes_and_closes_an_alert_by_its_alias(
    bare: Run, internet: Internet, scheme: str, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One however often the node comes up, and one message too long for its title."""
    configure(bare, scheme.format(internet.opsgenie.key))
    lines(bare, f"srun: error: Node failure on n7 {'x' * 200}\n")
    m4ops(bare, monkeypatch, "check")
    node = next(key for key in internet.opsgenie.alerts if "node-failure" in key)
    found = {f["kind"]: f["id"] for f in json.loads(m4ops(bare, monkeypatch, "check", "--json"))["findings"]}
    said = m4ops(bare, monkeypatch, "ack", found["node-failure"])
    assert ("acknowledged at Jira" if "jira" in scheme else "acknowledged at Opsgenie") in said
    clock.now += 600
    lines(bare, *(PROGRESS.format(n) for n in range(6, 200)))
    m4ops(bare, monkeypatch, "check")
    assert internet.opsgenie.alerts[node] == ["open", "acknowledged", "closed"]
    assert [states for key, states in internet.opsgenie.alerts.items() if key != node] == [["open"]], "job-absent"
    assert "RESOLVED" in internet.opsgenie.notes[-1] and "s3cret" not in "".join(internet.opsgenie.notes)
    assert {call.host for call in internet.calls} == {
        "api.atlassian.com" if "jira" in scheme else "api.eu.opsgenie.com" if "eu" in scheme else "api.opsgenie.com"
    }


def test_a_sink_that_asks_for_peace_is_given_it(bare: Run, internet: Internet, addresses: dict[str, str]) -> None:
    """A few seconds are waited for; longer ones lie with the message, and nothing new disturbs it."""
    slack, policy = internet.slack, Policy(sinks=(addresses["slack"],), per_hour=1000)
    internet.trouble["hooks.slack.com"] = (429, {"Retry-After": "1"}, "rate_limited")
    (said,) = tick(bare, [SPIKE], policy)
    assert "429" in said and len(internet.calls) == 2, "it is asked once more after its second"
    for pause, answer in (
        (NOW + 20, {"Retry-After": "1200"}),
        (NOW + 1300, {"Retry-After": formatdate(time.time() + 900)}),
    ):
        internet.trouble["hooks.slack.com"] = (503, answer, "busy")
        internet.calls.clear()
        tick(bare, [SPIKE], policy, pause)
        tick(bare, [SPIKE, NAN], policy, pause + 1)
        tick(bare, [SPIKE], policy, pause + 800)
        assert len(internet.calls) == 1, answer
    internet.trouble.clear()
    tick(bare, [SPIKE], policy, NOW + 4000)
    assert slack.shown[0].startswith(f"WARNING tr_190: {SPIKE.summary}\n")
    assert state.load(bare).outbox == () == state.load(bare).sinks


@pytest.mark.parametrize(
    ("status", "headers", "advice"),
    [(429, {"Retry-After": "30"}, "too many messages at once: it is tried again later"),
     (503, {}, ""), (404, {}, "Put a new one into m4ops.toml"), (403, {}, "Put a new one into m4ops.toml")],
)  # fmt: skip
def test_what_a_service_does_not_take_is_said_and_comes_later(
    bare: Run, internet: Internet, addresses: dict[str, str], status: int, headers: dict[str, str], advice: str
) -> None:
    secrets = {
        "hooks.slack.com": internet.slack.path,
        "prod-12.westus.logic.azure.com": internet.teams.signature,
        "events.pagerduty.com": internet.pagerduty.key,
    }
    internet.trouble |= {host: (status, headers, f"no: {secret}") for host, secret in secrets.items()}
    policy = Policy(sinks=tuple(addresses.values()), per_hour=1000)
    said = tick(bare, [NAN], policy)
    assert len(said) == len(addresses) and all(str(status) in line and advice in line for line in said), said
    assert "s3cret" not in "".join(said).lower(), said
    tick(bare, [NAN, SPIKE], policy, NOW + 60)
    internet.trouble.clear()
    assert tick(bare, [NAN, SPIKE], policy, NOW + 60 + LAST_RETRY) == ()
    assert len(internet.slack.shown) == 4 and len(internet.teams.cards) == 2 and len(internet.pagerduty.events) == 2
    assert state.load(bare).outbox == () == state.load(bare).sinks


def test_a_wrong_key_is_told_in_the_words_of_the_service(internet: Internet, addresses: dict[str, str]) -> None:
    with pytest.raises(Answered, match=r"400 .*'routing_key' is invalid"):
        send("pagerduty://" + "0" * 32, message())
    with pytest.raises(Answered, match=r"404 .*no_service.*Put a new one"):
        send(addresses["slack"][:-1], message())
    with pytest.raises(Answered, match=r"401.*Put a new one"):
        send(addresses["teams"][:-1], message())
    internet.trouble["hooks.slack.com"] = (429, {"Retry-After": "30"}, "rate_limited")
    with pytest.raises(NotSent, match="rate_limited"):
        send(addresses["slack"], message())


def test_a_pager_is_told_of_the_ack_and_of_the_end(
    bare: Run, internet: Internet, addresses: dict[str, str], clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands as they are typed, for a run whose node fails and comes back."""
    configure(bare, "stdout:", more=f'escalate_to = ["{addresses["pagerduty"]}"]\nescalate_after = "10m"')
    lines(bare, "srun: error: Node failure on n7\n")
    m4ops(bare, monkeypatch, "check")
    clock.now += 700
    m4ops(bare, monkeypatch, "check")
    found = {f["kind"]: f["id"] for f in json.loads(m4ops(bare, monkeypatch, "check", "--json"))["findings"]}

    def at_the_pager(kind: str) -> list[str]:
        return next(states for key, states in internet.pagerduty.incidents.items() if f".{kind}." in key)

    assert at_the_pager("node-failure") == at_the_pager("job-absent") == ["triggered"]
    assert "PagerDuty" in m4ops(bare, monkeypatch, "ack", found["node-failure"])
    assert at_the_pager("node-failure") == ["triggered", "acknowledged"]
    internet.trouble["events.pagerduty.com"] = (503, {}, "")
    assert "503" in m4ops(bare, monkeypatch, "ack", "job-absent")
    internet.trouble.clear()
    assert at_the_pager("job-absent") == ["triggered"] and "yours" in m4ops(bare, monkeypatch, "ack", "job-absent")
    assert at_the_pager("job-absent") == ["triggered", "acknowledged"]


# ---------------------------------------------------------------- wandb


@pytest.fixture
def logged_in(internet: Internet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody who has done `wandb login` and keeps nothing else of wandb in the environment."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".netrc").write_text(f"machine api.wandb.ai login user password {internet.wandb.key}\n")
    (tmp_path / ".netrc").chmod(0o600)
    (tmp_path / ".m4ops").mkdir()
    return tmp_path


CLIENT = """
import sys, wandb
run = wandb.init(id="3fj2k1ab", entity="m4", project="idefics", mode="online", dir=sys.argv[1],
                 settings=wandb.Settings(x_disable_stats=True, console="off", silent=True))
run.alert(sys.argv[2], sys.argv[3], level="ERROR", wait_duration=1)
run.finish()
"""


def test_wandb_gets_what_its_own_client_sends_and_nothing_else(internet: Internet, logged_in: Path) -> None:
    alert = replace(message(NAN), dir=str(logged_in))
    argv = [sys.executable, "-c", CLIENT, str(logged_in), subject(alert), text(alert)]
    subprocess.run(argv, check=True, capture_output=True, timeout=60)
    of_client = len(internet.calls)
    send("wandb:m4/idefics", alert)
    assert len(internet.calls) == of_client + 1 > 2, "one request, and the run of the trainer stays as it was"
    theirs, ours = internet.wandb.alerts
    assert theirs == ours
    send("wandb:idefics", alert)
    assert internet.wandb.alerts[2] == ours
    internet.wandb.key += "x"
    with pytest.raises(Answered, match="wandb login --relogin"):
        send("wandb:m4/idefics", alert)
    internet.wandb.key = internet.wandb.key[:-1]
    with pytest.raises(Answered, match="could not find run"):
        send("wandb:m4/idefics", replace(alert, wandb="unknown"))
    (logged_in / ".netrc").unlink()
    with pytest.raises(NotSent, match="wandb login, on this host"):
        send("wandb:m4/idefics", alert)


def test_a_wandb_alert_that_waited_offline_is_synced_into_a_run_of_its_own(
    internet: Internet, logged_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    send("wandb:m4/idefics", replace(message(NAN), dir=str(logged_in)))
    assert internet.calls == []
    (kept,) = (logged_in / ".m4ops" / "wandb").glob("offline-run-*")
    monkeypatch.delenv("WANDB_MODE")
    subprocess.run([sys.executable, "-m", "wandb", "sync", str(kept)], capture_output=True, timeout=60, cwd=logged_in)
    assert [(a["runName"], a["title"]) for a in internet.wandb.alerts] == [("m4ops-3fj2k1ab", subject(message(NAN)))]
    named = {call.json["variables"].get("name") for call in internet.calls if b"upsertBucket" in call.body}
    assert named == {"m4ops-3fj2k1ab"}, "the run of the trainer stays as it was"


# ---------------------------------------------------------------- the heartbeat


def test_who_waits_outside_hears_of_every_check_that_sees_and_of_one_that_is_blind(
    bare: Run, internet: Internet, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One blind check is a hiccup, two are not; a heartbeat that does not arrive is told like any other trouble."""
    address = f"https://hc-ping.com{internet.pings.check}"
    configure(bare, "stdout:", more=f'heartbeat = "{address}"')

    def heard(checks: int) -> list[str]:
        internet.pings.heard.clear()
        for _ in range(checks):
            said.append(m4ops(bare, monkeypatch, "check"))
            clock.now += 600
        return list(internet.pings.heard)

    said: list[str] = []
    assert heard(2) == ["ok", "ok"]
    squeue = bare.dir.parent / "squeue"
    squeue.write_text("#!/bin/sh\necho slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1\n")
    squeue.chmod(0o755)
    with monkeypatch.context() as controller:
        controller.setenv("PATH", str(squeue.parent), prepend=":")
        controller.setenv("M4OPS_EMBEDDED", "")
        assert heard(3) == ["fail", "fail"], said
    assert heard(1) == ["ok"]
    said.clear()
    internet.trouble["hc-ping.com"] = (404, {}, f"not found: {internet.pings.check}")
    assert heard(5) == []
    assert [word for word in said if word] == [said[3]] and "heartbeat does not reach https://hc-ping.com/***" in said[
        3
    ]
    assert "s3cret" not in "".join(said) and "heartbeat" in m4ops(bare, monkeypatch, "status")
    internet.trouble.clear()
    heard(2)
    assert "RESOLVED tr_190: the heartbeat" in said[-1] and "heartbeat" not in m4ops(bare, monkeypatch, "status")


def test_runs_that_name_the_same_heartbeat_beat_together(
    bare: Run, internet: Internet, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"https://hc-ping.com{internet.pings.check}"
    configure(bare, "stdout:", more=f'heartbeat = "{address}"')
    other = bare.dir.parent / "tr_191"
    shutil.copytree(bare.dir, other)
    m4ops(bare, monkeypatch, "check", "--run", str(bare.dir), "--run", str(other))
    assert internet.pings.heard == ["ok"]


def test_the_check_of_all_runs_has_a_heartbeat_of_its_own(
    bare: Run, internet: Internet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "config" / "m4ops" / "m4ops.toml"
    own.parent.mkdir(parents=True)
    own.write_text(f'roots = ["{bare.dir.parent}"]\nheartbeat = "https://hc-ping.com{internet.pings.check}"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(own.parent.parent))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    shutil.copytree(bare.dir, other := bare.dir.parent / "tr_191")

    def heard(*more: str) -> tuple[str, list[str]]:
        internet.pings.heard.clear()
        return m4ops(bare, monkeypatch, "check", *more), list(internet.pings.heard)

    assert heard("--all")[1] == ["ok"] and heard()[1] == []
    said, signs = heard("--all", "--test")
    assert said.endswith("heartbeat https://hc-ping.com/***: heard\n") and signs == ["ok"]
    configure(Run(other, "tr_191"), more="sink = 3")
    assert heard("--all")[1] == [], "a run of one's own is not seen"
    (other / "m4ops.toml").unlink()
    internet.trouble["hc-ping.com"] = (404, {}, "not found")
    told = [heard("--all")[0] for _ in range(4)]
    assert ["heartbeat does not reach" in words for words in told] == [False, False, True, False]


def test_a_heartbeat_that_hangs_holds_up_no_check_for_long(
    bare: Run, web: Web, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.alerts.web.TIMEOUT", 0.3)
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as silent:  # never answers
        configure(bare, web.uri, more=f'heartbeat = "http://127.0.0.1:{silent.server_address[1]}/s3cret"')
        for _ in range(4):
            m4ops(bare, monkeypatch, "check")
            clock.now += 600
    assert "no answer within 0.3 s" in web.texts()[-1] and "s3cret" not in str(web.posted())


@pytest.mark.parametrize("wrong", ["hc-ping.com/s3cret", "ftp://h/s3cret", "https:///s3cret", "$HEARTBEAT s3cret"])
def test_a_heartbeat_that_is_no_address_is_told_at_once(bare: Run, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    configure(bare, more=f'heartbeat = "{wrong}"')
    said = m4ops(bare, monkeypatch, "check")
    assert "`heartbeat`: this is no web address" in said and "s3cret" not in said


# ---------------------------------------------------------------- from nothing


def test_a_test_tells_of_each_sink_whether_it_arrives(
    bare: Run, internet: Internet, addresses: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the addresses in files of their own, as others may read m4ops.toml."""
    for name, address in addresses.items():
        (tmp_path / name).write_text(f"# {name}\n{address}\n")
    (tmp_path / "heartbeat").write_text(f"https://hc-ping.com{internet.pings.check}\n")
    files = [f"file:{tmp_path / name}" for name in addresses]
    configure(bare, *files, "file:/nowhere/s", "$SLACK", more=f'heartbeat = "file:{tmp_path / "heartbeat"}"')
    said = m4ops(bare, monkeypatch, "check", "--test").splitlines()
    assert said[: len(files)] == [f"{file}: taken" for file in files]
    assert "No such file" in said[-3] and "variables are not filled in" in said[-2]
    assert said[-1] == f"heartbeat file:{tmp_path / 'heartbeat'}: heard" and internet.pings.heard == ["ok"]
    assert list(internet.pagerduty.incidents.values()) == [["triggered", "resolved"]]
    assert len(internet.slack.shown) == 2 and "this is a test" in internet.slack.shown[0]
    assert not (bare.dir / ".m4ops").exists(), "nothing is kept of a test"
    internet.trouble["hooks.slack.com"] = (404, {}, f"no_service {internet.slack.path}")
    said = m4ops(bare, monkeypatch, "check", "--test").splitlines()
    assert said[0].startswith(f"{files[0]}: FAILED: it answered 404") and "no_service" in said[0]
    assert "s3cret" not in "".join(said).lower()
    for wrong in ("", "https://h/s3cret\nhttps://h/2", "prometheus:/tmp/s3cret", f"file:{tmp_path / 'slack'}"):
        (tmp_path / "slack").write_text(f"{wrong}\n")
        told = m4ops(bare, monkeypatch, "check", "--test").splitlines()[0]
        assert "holds not one address" in told and "s3cret" not in told


@pytest.mark.parametrize(
    ("said", "hint"),
    [('sinks = "https://h/x"', 'sinks = ["…"]'), ('[alerts]\nheartbeat = "https://h/x"', "without [alerts]"),
     ('sink = ["stdout:"]', "did you mean `sinks`"), ('sinks = ["stdout"]', "did you mean `stdout:`"),
     ('sinks = ["hooks.slack.com/services/T0/s3cret"]', "did you mean `https://hooks.slack.com/***`"),
     ('sinks = ["https://${HOOK}/s3cret"]', "variables are not filled in")],
)  # fmt: skip
def test_what_is_written_wrong_is_told_with_what_is_right(
    bare: Run, monkeypatch: pytest.MonkeyPatch, said: str, hint: str
) -> None:
    (bare.dir / "m4ops.toml").write_text(f"{said}\n")
    told = m4ops(bare, monkeypatch, "check")
    assert hint in told and "s3cret" not in told
