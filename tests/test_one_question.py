"""One question a tick: what many runs ask the scheduler, what is remembered of it, and who may read that."""

import json
import os
import pty
import stat
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from fake_slurm import FakeSlurm, Row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import m4ops

from ops import attempts, fleet, recent, slurm
from ops.model import Attempt, Job, Run, Unknown
from ops.shell import Answer

SACCT = "|".join(("{raw}", "{raw}", "{state}", "1:0", "n[1-3]", "5", "{start}", "{end}", "root", "tr_0"))


class Counting:
    """A shell that counts what it is asked; `accounts` answers sacct, `events` sacctmgr."""

    def __init__(self, slurm: FakeSlurm, accounts: str | None = None, events: str = "") -> None:
        self.slurm, self.accounts, self.events = slurm, accounts, events
        self.asked: Counter[str] = Counter()
        self.said: list[tuple[str, ...]] = []

    def __call__(self, argv: Sequence[str], timeout: float) -> Answer:
        self.asked[argv[0]] += 1
        self.said.append(tuple(argv))
        if argv[0] == "sacct":
            return (
                Answer(1, "", "Slurm accounting storage is disabled\n")
                if self.accounts is None
                else Answer(0, self.accounts, "")
            )
        if argv[0] == "sacctmgr":
            return Answer(0, self.events, "")
        if argv[0] == "sinfo":
            return Answer(0, "", "")
        return self.slurm([argv[0], *argv[3:]] if argv[1:2] == ("-M",) else argv, timeout)


def make_run(root: Path, name: str, toml: str = "") -> Path:
    folder = root / name
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "main_log.txt").write_text("iteration:  5/10  50% | per_token_loss: 2.1 | lr: 1.000E-05 |\n")
    if toml:
        (folder / "m4ops.toml").write_text(toml)
    return folder


def running(name: str, array: str = "100") -> Row:
    return Row(array=array, name=name)


def test_all_runs_are_checked_by_one_squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(12):
        make_run(tmp_path, f"tr_{i}")
    monkeypatch.setenv("M4OPS_ROOTS", str(tmp_path))
    shell = Counting(FakeSlurm([running(f"tr_{i}", str(100 + i)) for i in range(11)]))
    said = m4ops("check", "--all", "--json", slurm=shell)
    checks = json.loads(said.out)
    assert shell.asked == {"squeue": 1}
    assert len(checks["runs"]) == 12 and checks["schema"] == "m4ops.checks/1"
    absent = [r["run"]["name"] for r in checks["runs"] if any(f["kind"] == "job-absent" for f in r["findings"])]
    assert absent == ["tr_11"]


def test_a_person_is_told_why_a_check_without_news_does_not_end_with_0(tmp_path: Path) -> None:
    run = make_run(tmp_path, "tr_1")
    env = {**os.environ, "M4OPS_EMBEDDED": str(tmp_path / "slurm")}
    (tmp_path / "slurm").mkdir()
    here, there = pty.openpty()

    def said(to: int) -> tuple[int, str]:
        argv = [sys.executable, "-m", "ops.cli", "--run", str(run), "check"]
        done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, stderr=to, text=True)
        return done.returncode, done.stdout

    code, news = said(subprocess.DEVNULL)
    assert (code, news.split(":")[0]) == (2, "CRITICAL tr_1")
    assert said(there) == (2, "")
    assert os.read(here, 4096).decode().strip() == "tr_1 CRITICAL; only news are printed, m4ops status shows all"
    os.close(there)
    os.close(here)


def test_several_runs_may_be_named_and_one_that_is_lost_hides_no_other(tmp_path: Path) -> None:
    first, second = make_run(tmp_path, "tr_1"), make_run(tmp_path, "tr_2", 'logg = "x"\n')
    shell = Counting(FakeSlurm())
    said = m4ops("check", "--run", str(first), "--run", str(second), "--run", "tr_nowhere", "--json", slurm=shell)
    checks = json.loads(said.out)
    assert said.code == 2 and checks["verdict"] == "CRITICAL"  # a known trouble is worse than not knowing
    assert [r["run"]["name"] for r in checks["runs"]] == ["tr_1"]
    assert [lost["name"] for lost in checks["unknown"]] == ["tr_2", "tr_nowhere"]
    assert "did you mean `log`?" in said.err and shell.asked["squeue"] == 1


def test_runs_of_another_cluster_are_asked_of_that_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(4):
        make_run(tmp_path, f"tr_{i}", 'cluster = "b"\n' if i % 2 else "")
    monkeypatch.setenv("M4OPS_ROOTS", str(tmp_path))
    shell = Counting(FakeSlurm([running(f"tr_{i}", str(i)) for i in range(4)]))
    assert m4ops("check", "--all", slurm=shell).code in (0, 1)
    assert sorted(argv[1:3] == ("-M", "b") for argv in shell.said) == [False, True]


def seen_running_then_gone(run: Path, accounts: str | None, events: str = "") -> tuple[Counting, str]:
    """Two checks: the first sees job 100 run, the second sees it gone; what the second says as JSON."""
    busy = Row(array="100", name=run.name)
    started = ("9" * 9, "0", "5")  # %S %e %V
    row = (*busy.fields[:7], *started, *busy.fields[10:])
    slurm = FakeSlurm()
    with mock.patch.object(Row, "fields", row):
        slurm.rows = [busy]
        m4ops("--run", str(run), "check", slurm=Counting(slurm))
    shell = Counting(FakeSlurm(), accounts, events)
    return shell, m4ops("--run", str(run), "check", "--json", slurm=shell).out


def test_a_batch_host_that_died_is_named_from_slurms_records(tmp_path: Path) -> None:
    """The log says nothing then. The node is the one of the job's that went down when the job ended."""
    end = "1000000000"
    accounts = SACCT.format(raw="100", state="NODE_FAIL", start="9" * 9, end=end) + "\n"
    events = f"|999|x||Cluster Registered TRES\nn9|{end}|DOWN*|Not responding\nn1|{end}|DOWN*|Not responding\n"
    run = make_run(tmp_path, "tr_0")
    with mock.patch("time.time", lambda: 1000000100.0):
        shell, out = seen_running_then_gone(run, accounts, events)
        found = [f for f in json.loads(out)["findings"] if f["kind"] == "node-failure"]
        assert [f["node"] for f in found] == ["n1"] and found[0]["severity"] == "CRITICAL"
        assert "n[1-3]" in found[0]["evidence"][0] and "m4ops exclude n1" in found[0]["actions"]
        assert shell.asked == {"squeue": 1, "sacct": 1, "sacctmgr": 1}
        quiet = Counting(FakeSlurm(), accounts, events)
        m4ops("--run", str(run), "check", slurm=quiet)
    assert quiet.asked == {"squeue": 1}, "an end that is known is not asked for again"


def test_without_accounting_a_check_still_judges(tmp_path: Path) -> None:
    run = make_run(tmp_path, "tr_0")
    shell, out = seen_running_then_gone(run, None)
    assert shell.asked == {"squeue": 1, "sacct": 1}
    assert [f["kind"] for f in json.loads(out)["findings"]] == ["job-absent"]


def test_a_run_that_goes_on_is_never_asked_of_accounting(tmp_path: Path) -> None:
    run = make_run(tmp_path, "tr_0")
    shell = Counting(FakeSlurm([running("tr_0")]), "")
    for _ in range(3):
        m4ops("--run", str(run), "check", slurm=shell)
    assert shell.asked == {"squeue": 3}


def test_an_end_that_accounting_does_not_know_is_given_up(tmp_path: Path) -> None:
    job = Job("100", "100", "", "100", "RUNNING", "None", "tr_0", "root", "n1", 1, 50.0)
    ledger = attempts.advance(attempts.advance(attempts.Ledger(), (job,), 100.0), (), 200.0)
    assert attempts.wanted(ledger) == ("100",)
    assert attempts.wanted(attempts.advance(ledger, Unknown("down"), 1e9)) == ("100",)
    assert attempts.wanted(attempts.advance(ledger, (), 200.0 + attempts.PATIENCE)) == ()


def test_a_requeued_job_has_two_attempts() -> None:
    first = Job("1_1", "1", "1", "2", "RUNNING", "None", "tr_0", "root", "n[1-3]", 3, 50.0)
    ledger = attempts.advance(attempts.Ledger(), (first,), 60.0)
    again = Job("1_1", "1", "1", "2", "RUNNING", "None", "tr_0", "root", "n[2-4]", 3, 90.0)
    ledger = attempts.advance(ledger, (again,), 100.0)
    assert attempts.wanted(ledger) == ("2",)
    ledger = attempts.answered(
        ledger, (Attempt("2", "1_1", 50.0, "n[1-3]", "REQUEUED", "0:0", 70.0), Attempt("2", "1_1", 90.0))
    )
    assert [a.state for a in ledger.ended] == ["REQUEUED"] and attempts.wanted(ledger) == ()
    assert attempts.from_json(json.loads(json.dumps(attempts.to_json(ledger)))) == ledger


NAMES = st.sampled_from(["tr_1", "tr_11", "x"])
USERS = st.sampled_from(["alice", "bob"])
PLACES = st.sampled_from(["/s/tr_1", "/s/tr_1/logs", "/s/tr_11", "/s", "/", "", "/s/tr_1x"])
COMMENTS = st.sampled_from(["", "m4ops:/s/tr_1", "a m4ops:/s/tr_11 b", "m4ops:/s/tr_1/", "xm4ops:/s/tr_1"])


@settings(suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(NAMES, USERS, PLACES, COMMENTS), max_size=6), USERS)
def test_sharing_the_queue_gives_each_run_what_it_would_pick_itself(rows: list[tuple[str, ...]], owner: str) -> None:
    jobs = tuple(
        Job(str(i), str(i), "", str(i), "PENDING", "", name, user, workdir=place, comment=comment)
        for i, (name, user, place, comment) in enumerate(rows)
    )
    runs = [Run(Path("/s/tr_1"), "tr_1"), Run(Path("/s/tr_11"), "tr_11"), Run(Path("/t/tr_1"), "tr_1")]
    shared = fleet.share(runs, {run.dir: owner for run in runs}, jobs)
    assert shared == {run.dir: slurm.jobs_of(run, owner, jobs) for run in runs}


class Clock:
    def __init__(self) -> None:
        self.now, self.asked = 1000.0, 0

    def __call__(self, argv: Sequence[str], timeout: float) -> Answer:
        self.asked += 1
        return Answer(0, f"{argv[0]} {self.asked}", "")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_RUNTIME_DIR": str(tmp_path)}


def ask(shell: Clock, env: dict[str, str], *argv: str) -> str:
    return recent.kept(shell, env, lambda: shell.now)(argv or ("squeue", "-h"), 1.0).stdout


def test_the_queue_is_asked_once_in_a_few_seconds_and_never_for_another_question_or_cluster(
    env: dict[str, str],
) -> None:
    shell = Clock()
    assert [ask(shell, env), ask(shell, env)] == ["squeue 1", "squeue 1"]
    assert ask(shell, env, "squeue", "-M", "b") == "squeue 2"
    assert ask(shell, env | {"SLURM_CONF": "/etc/other.conf"}) == "squeue 3"
    assert ask(shell, env | {"M4OPS_EMBEDDED": "/e"}) == "squeue 4"
    shell.now += recent.SECONDS + 0.1
    assert ask(shell, env) == "squeue 5"
    shell.now -= 60  # a clock that was set back makes nothing young
    assert ask(shell, env) == "squeue 6"
    assert ask(shell, env | {recent.SWITCH: "0"}) == "squeue 7"


def test_what_is_remembered_is_for_its_user_alone(env: dict[str, str], tmp_path: Path) -> None:
    shell = Clock()
    ask(shell, env)
    (file,) = (tmp_path / "m4ops").glob("*.json")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o660)
    assert ask(shell, env) == "squeue 2", "what somebody else may have written is not believed"
    file.unlink()
    elsewhere = tmp_path / "planted"
    elsewhere.write_text(json.dumps({"time": shell.now, "stdout": "lies", "stderr": ""}))
    elsewhere.chmod(0o600)
    file.symlink_to(elsewhere)
    assert ask(shell, env) == "squeue 3"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_not_believed(env: dict[str, str], tmp_path: Path) -> None:
    shell = Clock()
    ask(shell, env)
    (file,) = (tmp_path / "m4ops").glob("*.json")
    os.chown(file, 12345, -1)
    assert ask(shell, env) == "squeue 2"


def test_a_change_asks_anew_and_makes_the_others_ask_anew(env: dict[str, str]) -> None:
    shell = Clock()
    assert ask(shell, env) == "squeue 1"
    changing = recent.forgetting(shell, env)
    assert changing(("squeue", "-h"), 1.0).stdout == "squeue 2"
    assert ask(shell, env) == "squeue 1"
    changing(("scontrol", "hold", "7"), 1.0)
    assert ask(shell, env) == "squeue 4"


def test_looking_twice_asks_once_and_a_change_in_between_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("M4OPS_QUEUE_AGE", "60")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    run = make_run(tmp_path / "runs", "tr_0")
    shell = Counting(FakeSlurm([Row(array="7", name="tr_0", state="PENDING", reason="Priority")]))
    for command in ("status", "checkpoints", "status"):
        m4ops("--run", str(run), command, slurm=shell)
    assert shell.asked["squeue"] == 1
    assert m4ops("--run", str(run), "hold", "-y", slurm=shell).code == 0
    assert "held" in m4ops("--run", str(run), "status", slurm=shell).out
