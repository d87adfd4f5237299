"""Alerts brought to people, with real receivers: once, whoever looks and whatever fails or is killed in between."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from alerting import NAN, NOW, PROGRESS, SPIKE, configure, lines, m4ops, tick
from click.testing import CliRunner
from receivers import Mail, Web, free_port

from ops import state
from ops.alerts import notify
from ops.alerts.notify import LONGEST_PENDING
from ops.alerts.words import LAST_RETRY, Message
from ops.cli import cli
from ops.model import Run
from ops.policy import Policy
from ops.state import Memory


def test_first_down_then_up_nothing_is_lost_and_nothing_comes_twice(bare: Run, web: Web) -> None:
    """Three sinks, of which one always works: it must not hear twice what the others missed."""
    other, mail = Web(free_port()), Mail(free_port())
    policy = Policy(sinks=(web.uri, other.uri, mail.uri))
    said = tick(bare, [SPIKE], policy)
    assert sorted(word.split(":")[0] for word in said) == ["http", "smtp"]
    assert tick(bare, [SPIKE, NAN], policy, NOW + 300) == ()
    try:
        other.listen()
        tick(bare, [NAN], policy, NOW + 600)
        mail.listen()
        assert tick(bare, [NAN], policy, NOW + 600 + LAST_RETRY) == ()
        assert tick(bare, [NAN], policy, NOW + 900 + LAST_RETRY) == ()
    finally:
        other.down()
        mail.down()
    everything = [
        f"WARNING tr_190: {SPIKE.summary}",
        "CRITICAL tr_190: loss is NaN",
        f"RESOLVED tr_190: {SPIKE.summary}",
    ]
    assert web.texts() == other.texts() == everything
    assert [mail["Subject"] for mail in mail.mails()] == [f"[m4ops] {text}" for text in everything]
    assert state.load(bare).outbox == () == state.load(bare).sinks


def test_a_sink_that_is_down_is_said_once_and_tried_ever_more_rarely(bare: Run, web: Web) -> None:
    refusing = Web(0).listen()
    refusing.answer = 500
    policy = Policy(sinks=(refusing.uri, web.uri))
    try:
        said = [tick(bare, [NAN], policy, NOW + 60.0 * minute) for minute in range(120)]
        tries = state.load(bare).sinks[0].tries
    finally:
        refusing.down()
    assert [bool(s) for s in said] == [True] + [False] * 119
    assert "it answered 500" in said[0][0] and "hook" not in said[0][0]
    assert 8 < tries < 16


def test_the_other_sinks_hear_of_one_that_fails_and_of_its_recovery(bare: Run, web: Web) -> None:
    other = Web(free_port())
    policy = Policy(sinks=(other.uri, web.uri))
    for number in range(6):
        tick(bare, (NAN, *notify.troubles(state.load(bare))), policy, NOW + number * LAST_RETRY)
        if number == 3:
            other.listen()
    other.down()
    assert [t.partition(" does")[0].partition(" do ")[0] for t in web.texts()] == [
        "CRITICAL tr_190: loss is NaN", "WARNING tr_190: alerts", "RESOLVED tr_190: alerts"
    ]  # fmt: skip
    assert other.texts()[0] == "CRITICAL tr_190: loss is NaN" and len(other.texts()) == 3


def test_a_sink_that_hangs_keeps_nothing_from_the_others(bare: Run, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "LIMIT", 0.5)
    hanging = Web(0).listen()
    hanging.stalled = threading.Event()
    try:
        said = tick(bare, [NAN], Policy(sinks=(hanging.uri, web.uri)))
    finally:
        hanging.stalled.set()
        hanging.down()
    assert len(said) == 1 and "no answer within 0.5 s" in said[0]
    assert len(web.bodies) == 1 and len(state.load(bare).outbox) == 1


def test_a_bad_sink_does_not_silence_the_others_and_alone_gives_way_to_stdout(
    bare: Run, web: Web, capsys: pytest.CaptureFixture[str]
) -> None:
    (said,) = tick(bare, [NAN], Policy(sinks=("pigeon://coop/s3cret", web.uri)))
    assert "unknown kind of sink" in said and "s3cret" not in said
    assert len(web.bodies) == 1 and capsys.readouterr().out == ""
    tick(bare, [NAN, SPIKE], Policy(sinks=("pigeon://coop/s3cret",)), NOW + 9)
    assert "loss 9.12" in capsys.readouterr().out


def test_a_corrected_address_gets_what_the_wrong_one_missed(bare: Run, web: Web) -> None:
    assert len(tick(bare, [NAN], Policy(sinks=(f"http://127.0.0.1:{free_port()}/",)))) == 1
    assert tick(bare, [NAN], Policy(sinks=(web.uri,)), NOW + 1) == ()
    assert web.texts() == ["CRITICAL tr_190: loss is NaN"]


def test_without_a_sink_it_is_printed_for_cron_to_mail(bare: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert tick(bare, [SPIKE], Policy()) == tick(bare, [SPIKE], Policy(), NOW + 1) == ()
    assert capsys.readouterr().out.startswith(
        f"WARNING tr_190: {SPIKE.summary}\n  main_log.txt line 812: per_token_loss: 9.1200\n  consider: m4ops rewind --to 16000\n  ack: "
    )
    tick(bare, [], Policy(), NOW + 7500)
    assert capsys.readouterr().out == f"RESOLVED tr_190: {SPIKE.summary}\n  over after 2 h 05 min\n"


def test_what_is_given_up_is_told(bare: Run) -> None:
    policy = Policy(sinks=(f"http://127.0.0.1:{free_port()}/",))
    tick(bare, [NAN], policy)
    said = tick(bare, [NAN], policy, NOW + LONGEST_PENDING + 1)
    assert any("given up" in words and "loss is NaN" in words for words in said)


def test_what_nobody_takes_goes_to_the_second_list_and_so_does_its_end(bare: Run, web: Web) -> None:
    boss = Web(0).listen()
    policy = Policy(sinks=(web.uri,), escalate_to=(boss.uri,), escalate_after=1800)
    for minute in (0, 10, 20, 30, 40):
        tick(bare, [NAN, SPIKE], policy, NOW + 60.0 * minute)
    tick(bare, [SPIKE], policy, NOW + 3600)
    boss.down()
    assert boss.texts() == ["CRITICAL tr_190: nobody has taken it: loss is NaN", "RESOLVED tr_190: loss is NaN"]
    assert len(web.texts()) == 2


# ---------------------------------------------------------------- the command, as cron runs it

CHECKS = """
import socket, sys, time
socket.gethostname = lambda: sys.argv[1]
from ops.cli import cli
for line in sys.stdin:
    try:
        cli.main(["check"], standalone_mode=False)
    except SystemExit:
        pass
    print("done", flush=True)
"""


class Host:
    """A login node whose cron checks the run when it is told to."""

    def __init__(self, name: str, run: Run) -> None:
        env = {**os.environ, "M4OPS_EMBEDDED": str(run.dir.parent / "slurm"), "M4OPS_RUN": str(run.dir)}
        self.errors = run.dir.parent / f"{name}.err"
        argv = [sys.executable, "-c", CHECKS, name]
        with open(self.errors, "w") as errors:
            self.process = subprocess.Popen(
                argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def begin(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("check\n")
        self.process.stdin.flush()

    def done(self) -> None:
        assert self.process.stdout and self.process.stdout.readline() == "done\n"

    def close(self) -> str:
        """What it said on stderr."""
        self.process.communicate(timeout=120)
        return self.errors.read_text()


def test_two_login_nodes_of_two_hundred_ticks_tell_everything_once(bare: Run, web: Web) -> None:
    """Both check at the same moments; a web and a mail server, each down for a while."""
    mail = Mail(0).listen()
    configure(bare, web.uri, mail.uri, more="messages_per_hour = 100000")
    hosts = [Host(name, bare) for name in ("login1", "login2")]
    failures = []
    try:
        for number in range(200):
            if number % 20 == 5:
                failures.append(f"n{number}")
                lines(bare, f"srun: error: Node failure on n{number}\n")
            else:
                lines(bare, *(PROGRESS.format(10 * number + i) for i in range(6)))
            if number in (50, 90):
                web.down() if number == 50 else web.listen()
            if number in (70, 130):
                mail.down() if number == 70 else mail.listen()
            for host in hosts:
                host.begin()
            for host in hosts:
                host.done()
    finally:
        said = [host.close() for host in hosts]
        mail.down()
    told = [(n["event"], n["summary"].split()[0]) for post in web.posted() for n in post["news"]]
    opened = [name for event, name in told if event == "opened" and name in failures]
    over = [name for event, name in told if event == "resolved" and name in failures]
    assert opened == failures and over == failures
    ids = [post["id"] for post in web.posted()]
    assert len(ids) == len(set(ids)) and {post["host"] for post in web.posted()} == {"login1", "login2"}
    assert [mail["Message-ID"] for mail in mail.mails()] == [f"<{identity}@m4ops>" for identity in ids]
    troubles = [line for line in "".join(said).splitlines() if line.strip()]
    assert len(troubles) == 2 and all("127.0.0.1" in line for line in troubles), troubles


def test_killed_in_the_middle_of_sending_nothing_is_lost(bare: Run, web: Web) -> None:
    slow = Web(0).listen()
    slow.stalled = threading.Event()
    configure(bare, web.uri, slow.uri)
    lines(bare, "srun: error: Node failure on n7\n")
    try:
        host = Host("login1", bare)
        host.begin()
        wait_for(lambda: bool(slow.bodies) and bool(done(bare)))
        host.process.send_signal(signal.SIGKILL)
        host.close()
        slow.stalled.set()
        again = Host("login1", bare)
        again.begin()
        again.done()
        again.close()
    finally:
        slow.stalled.set()
        slow.down()
    assert len(web.bodies) == 1, "it was noted as delivered before the kill"
    assert {post["id"] for post in slow.posted()} == {web.posted()[0]["id"]} and len(slow.bodies) == 2
    assert state.load(bare).outbox == ()


def done(run: Run) -> list[tuple[str, ...]]:
    return [pending.done for pending in state.load(run).outbox if pending.done]


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_storm_of_five_hundred_failed_nodes_in_a_minute_is_three_messages_at_most(
    bare: Run, web: Web, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(bare, web.uri)
    for number in range(12):
        lines(
            bare, *(f"srun: error: Node failure on n{i:03d}\n" for i in range(number * 42, min(500, number * 42 + 42)))
        )
        m4ops(bare, monkeypatch, "check")
        clock.now += 5
    for _ in range(30):
        clock.now += 60
        m4ops(bare, monkeypatch, "check")
    assert len(web.bodies) <= 3
    nodes = {n["node"] for post in web.posted() for n in post["news"] if n["kind"] == "node-failure"}
    assert len(nodes) == 60 and "440 more lines of the same failure" in str(state.load(bare).episodes)
    assert all(len(post["text"].splitlines()) < 60 for post in web.posted())


def test_an_ack_is_shown_everywhere_and_ends(
    bare: Run, web: Web, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(bare, web.uri, more='repeat_after = "1h"')
    lines(bare, "srun: error: Node failure on n7\n")
    m4ops(bare, monkeypatch, "check")
    news = {n["kind"]: n for n in web.posted()[0]["news"]}
    name = news["node-failure"]["episode"]
    assert f"ack: m4ops --run {bare.dir} ack {name}" in web.posted()[0]["text"]
    assert "yours until" in m4ops(bare, monkeypatch, "ack", name, "--for", "3h", "--why", "node is being swapped")
    m4ops(bare, monkeypatch, "ack", "job-absent", "--for", "3h")
    assert "node is being swapped" in m4ops(bare, monkeypatch, "status")
    assert "node is being swapped" in m4ops(bare, monkeypatch, "ack")
    found = {f["kind"]: f for f in json.loads(m4ops(bare, monkeypatch, "check", "--json"))["findings"]}
    assert found["node-failure"]["id"] == name and found["node-failure"]["ack"]["why"] == "node is being swapped"
    for _ in range(25):
        clock.now += 600
        m4ops(bare, monkeypatch, "check")
    assert [{n["event"] for n in post["news"]} for post in web.posted()] == [{"opened"}, {"still"}]
    assert "taken" not in m4ops(bare, monkeypatch, "status")
    m4ops(bare, monkeypatch, "ack", name)
    assert "nobody's again" in m4ops(bare, monkeypatch, "ack", name, "--end")
    assert "taken" not in m4ops(bare, monkeypatch, "status")


@pytest.mark.parametrize(
    ("words", "told"),
    [(("ack", "nodefailure"), "did you mean node-failure"), (("ack", "loss-nan", "--for", "8d"), "7d at most"),
     (("ack", "loss-nan", "--for", "soon"), "no span of time"), (("ack", "ab12cd", "--end"), "nobody has taken")],
)  # fmt: skip
def test_what_cannot_be_acked_is_said(bare: Run, words: tuple[str, ...], told: str) -> None:
    done = CliRunner().invoke(cli, ["--run", str(bare.dir), *words])
    assert told in str(done.exception)


def test_a_missed_check_is_told_and_that_checks_come_again_is_not(
    bare: Run, web: Web, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(bare, web.uri)
    for pause in (600, 3 * 3600, 600, 600):
        m4ops(bare, monkeypatch, "check", "--every", "10")
        clock.now += pause
    assert [[n["kind"] for n in post["news"]] for post in web.posted()] == [["job-absent"], ["check-missed"]]


def test_what_somebody_finds_by_hand_reaches_those_whom_cron_tells_as_well(
    bare: Run, web: Web, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cron's line names a sink, and its output is mailed: a check that was typed knows of neither."""
    other = Web(free_port())
    cron = ("check", "--every", "10", "--sink", web.uri, "--sink", other.uri, "--sink", "stdout:")
    assert "no job of tr_190" in m4ops(bare, monkeypatch, *cron)
    lines(bare, "srun: error: Node failure on n7\n")
    for _ in range(2):
        clock.now += 60
        first = m4ops(bare, monkeypatch, "check")
    assert "n7" not in first, "the second time there is nothing new"
    other.listen()
    clock.now += LAST_RETRY
    try:
        assert "n7 failed" in m4ops(bare, monkeypatch, *cron)
        clock.now += 600
        assert "n7 failed" not in m4ops(bare, monkeypatch, *cron)
    finally:
        other.down()
    assert len(web.bodies) == len(other.bodies) == 2
    assert [{n["kind"] for n in post["news"]} for post in other.posted()] == [{"job-absent"}, {"node-failure"}]
    assert state.load(bare).outbox == () == state.load(bare).sinks


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Run]:
    """A run on a disk of its own that is soon full; its log lies elsewhere."""
    disk, log = tmp_path / "disk", tmp_path / "main_log.txt"
    disk.mkdir()
    log.write_text(PROGRESS.format(5))
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)], check=True)
    try:
        (disk / "tr_190" / ".m4ops").mkdir(parents=True)
        (disk / "tr_190" / "logs").symlink_to(tmp_path)
        yield Run(disk / "tr_190", "tr_190", log)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def fill(run: Run) -> Path:
    """Every byte of the run's disk."""
    filler = run.dir.parent / "filler"
    with open(filler, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError as error:
            assert error.errno == errno.ENOSPC
    return filler


def test_while_the_disk_is_full_what_is_seen_is_told_once_and_so_is_its_end(
    small: Run, web: Web, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    configure(small, web.uri)

    def checks(count: int) -> None:
        for _ in range(count):
            assert m4ops(small, monkeypatch, "check") == ""
            clock.now += 600

    checks(2)
    filler = fill(small)
    lines(small, "srun: error: Node failure on n7\n")
    checks(4)
    assert "node-failure" in m4ops(small, monkeypatch, "ack") and "taken" not in m4ops(small, monkeypatch, "ack")
    m4ops(small, monkeypatch, "ack", "node-failure", "--why", "swapping it")
    assert "swapping it" in m4ops(small, monkeypatch, "ack")
    m4ops(small, monkeypatch, "ack", "node-failure", "--end")
    assert "taken" not in m4ops(small, monkeypatch, "ack")
    filler.unlink()
    checks(3)
    told = [[f"{n['event']} {n['kind']}" for n in post["news"]] for post in web.posted()]
    assert told == [
        ["opened job-absent"],
        ["opened node-failure", "opened check-impaired"],
        ["resolved check-impaired"],
    ]
    assert "No space left on device" in web.posted()[1]["text"]
    assert [file.name for file in (tmp_path / "home").rglob("*.json")] == []


def test_where_no_note_can_be_kept_at_all_what_is_seen_is_said_every_time(
    small: Run, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(small.dir.parent / "home"))
    lines(small, "srun: error: Node failure on n7\n")
    fill(small)
    for _ in range(2):
        said = m4ops(small, monkeypatch, "check")
        assert "CRITICAL tr_190: n7 failed after step 5" in said and "CRITICAL tr_190: no job" in said
        assert "WARNING tr_190: checks keep no notes with this run: cannot take the lease: No space left" in said


def test_the_metrics_are_written_at_every_check_and_are_no_message(
    bare: Run, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = bare.dir.parent / "m4ops.prom"
    configure(bare, f"prometheus:{file}")
    assert "no job of tr_190" in m4ops(bare, monkeypatch, "check"), "without another sink cron mails it"
    assert 'm4ops_severity{run="tr_190"} 2.0' in file.read_text()
    file.unlink()
    clock.now += 60
    assert m4ops(bare, monkeypatch, "check") == ""
    assert f'm4ops_check_timestamp_seconds{{run="tr_190"}} {clock.now!r}' in file.read_text()


def test_a_message_keeps_its_id_over_the_bookkeeping(bare: Run) -> None:
    tick(bare, [NAN], Policy(sinks=(f"http://127.0.0.1:{free_port()}/",)))
    (pending,) = state.load(bare).outbox
    state.save(bare, Memory(outbox=(pending,)))
    assert state.load(bare).outbox[0].message.id == pending.message.id
    assert isinstance(pending.message, Message)
