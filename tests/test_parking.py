"""One plan that stops the run, edits it and lets it go again: also when it is interrupted, or fails, on the way."""

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm, Row
from runs import Run

from ops.shell import Answer

RESTART = ("rewind", "--to", "20", "--scale-lr", "0.5", "--restart", "-y")
RUNNING, WAITING = Row(task="3"), Row(task="4-9%1", state="PENDING", reason="Priority")


class Obedient(FakeSlurm):
    """A queue whose running task ends when it sees the kill switch; `ending` happens just before."""

    kill = Path()
    ending: Callable[[], None] = staticmethod(lambda: None)

    def __call__(self, argv: Sequence[str], timeout: float) -> Answer:
        if self.kill.exists() and any(row.state == "RUNNING" for row in self.rows):
            self.rows = [row for row in self.rows if row.state != "RUNNING"]
            self.ending()
        return super().__call__(argv, timeout)

    @property
    def held(self) -> list[bool]:
        return [row.reason == "JobHeldUser" for row in self.rows if row.state == "PENDING"]


@pytest.fixture
def live(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The run with a running task and a queued rest; its trainer knows a kill switch. Nobody really sleeps."""
    (run.dir / "m4ops.toml").write_text('kill_switch = "../kill"\n')
    run.slurm = Obedient([RUNNING, WAITING])
    run.slurm.kill = kill(run)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    return run


def kill(run: Run) -> Path:
    return run.root / "kill"


def queue(run: Run) -> Obedient:
    assert isinstance(run.slurm, Obedient)
    return run.slurm


def test_stop_edit_and_restart(live: Run) -> None:
    before = live.tree()
    live.done(*RESTART)
    assert queue(live).orders == [("hold", "100"), ("release", "100")]
    assert queue(live).held == [False]
    assert not kill(live).exists()
    assert live.pointer.read_text().endswith("opt_step-20")
    live.done("undo", "-y")
    assert live.tree() == before
    assert queue(live).orders[2:] == [("hold", "100"), ("release", "100")]


def test_without_a_kill_switch_the_task_is_requeued_by_its_id(live: Run) -> None:
    (live.dir / "m4ops.toml").unlink()
    live.done("rewind", "--to", "20", "--hold", "-y")
    assert queue(live).orders == [("hold", "100"), ("requeuehold", "100_3")]
    assert queue(live).held == [True, True]


def test_what_the_job_saved_while_it_ended_is_discarded_too(live: Run) -> None:
    def save() -> None:
        shutil.copytree(live.dir / "opt_step-40", live.dir / "opt_step-45")
        text = live.infos(45).read_text().replace('"resume_opt_step": 40', '"resume_opt_step": 45')
        live.infos(45).write_text(text)
        live.pointer.write_text(str(live.dir / "opt_step-45"))

    queue(live).ending = save
    live.done(*RESTART)
    assert sorted(p.name for p in (live.dir / "discarded" / "exp_1").iterdir())[-1] == "opt_step-45"
    live.done("undo", "-y")
    assert live.pointer.read_text().endswith("opt_step-45")
    assert (live.dir / "opt_step-45").is_dir()


def interrupt(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while m4ops waits for the job, which does not end."""

    def sleep(seconds: float) -> None:
        raise KeyboardInterrupt

    queue(run).kill = run.root / "nowhere"
    with monkeypatch.context() as patch:
        patch.setattr("time.sleep", sleep)
        said = run.m4ops(*RESTART)
    assert said.code == 2
    assert "change 1 is unfinished: it was interrupted" in said.err
    assert "m4ops undo 1" in said.err and "m4ops apply 1" in said.err
    assert kill(run).exists()
    assert queue(run).held == [True]
    queue(run).kill = kill(run)


def test_interrupted_while_it_waits_and_taken_back(live: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = live.tree()
    interrupt(live, monkeypatch)
    said = live.m4ops("rewind", "--to", "10", "--restart", "-y")
    assert said.code == 2
    assert "change 1" in said.err and "unfinished" in said.err
    live.done("undo", "-y")
    assert live.tree() == before
    assert queue(live).held == [False]


def test_interrupted_while_it_waits_and_gone_on_with(live: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = live.tree()
    interrupt(live, monkeypatch)
    live.done("apply", "1", "-y")
    assert live.pointer.read_text().endswith("opt_step-20")
    assert queue(live).held == [False]
    assert not kill(live).exists()
    live.done("undo", "-y")
    assert live.tree() == before


def test_the_switch_removed_by_hand_while_it_waits(live: Run) -> None:
    queue(live).ending = kill(live).unlink
    live.done(*RESTART)
    assert live.pointer.read_text().endswith("opt_step-20")


def failing_at(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be renamed to a file of that name."""
    replace = os.replace

    def refuse(source: Any, target: Any) -> None:
        if Path(target).name == name and "-old" not in str(source):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse)


@pytest.mark.parametrize("way", ["undo", "apply"])
def test_an_edit_that_fails_after_the_stop(live: Run, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    before = live.tree()
    with monkeypatch.context() as patch:
        failing_at("latest_opt_step_dir", patch)
        said = live.m4ops(*RESTART)
    assert said.code == 2
    assert "Input/output error" in said.err and "put back" in said.err
    assert live.tree() == before
    assert queue(live).held == [True], "nothing may start meanwhile"
    live.done(way, "1", "-y")
    assert queue(live).held == [False]
    assert not kill(live).exists()
    if way == "undo":
        assert live.tree() == before
    else:
        assert live.pointer.read_text().endswith("opt_step-20")
        live.done("undo", "-y")
        assert live.tree() == before


def test_an_edit_that_fails_where_only_a_hold_went_before(live: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    queue(live).rows = [WAITING]
    before = live.tree()
    with monkeypatch.context() as patch:
        failing_at("latest_opt_step_dir", patch)
        said = live.m4ops(*RESTART)
    assert said.code == 1
    assert "rolled back" in said.err
    assert live.tree() == before
    assert queue(live).held == [False]


def test_a_release_that_fails_leaves_the_edits_and_says_so(live: Run) -> None:
    queue(live).rows = [WAITING]
    before = live.tree()

    def silent(verb: str, job: str) -> None:
        queue(live).down = verb == "hold"

    queue(live).on_order = silent
    said = live.m4ops(*RESTART)
    assert said.code == 2
    assert "Unable to contact slurm controller" in said.err
    assert "not done: \n    release job 100" in said.err
    assert said.err.count("    release job 100") == 1
    assert live.pointer.read_text().endswith("opt_step-20")
    queue(live).down, queue(live).on_order = False, lambda verb, job: None
    live.done("apply", "1", "-y")
    assert queue(live).held == [False]
    live.done("undo", "-y")
    assert live.tree() == before


def test_a_finish_is_refused_while_a_job_runs(live: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        failing_at("latest_opt_step_dir", patch)
        live.m4ops(*RESTART)
    queue(live).rows.append(Row(task="4"))
    before = live.tree()
    said = live.m4ops("apply", "1", "-y")
    assert said.code == 1
    assert "not parked" in said.err
    assert live.tree() == before
