"""How things end on a real Slurm cluster, and what m4ops says of it: nodes, limits, people, the controller."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from live_run import LiveRun, files
from slurm_lab import Cluster


@pytest.fixture
def run(slurm: Cluster) -> LiveRun:
    return LiveRun(slurm).make()


def findings(run: LiveRun) -> dict[str, dict[str, str]]:
    """What `m4ops check` finds, by kind."""
    said = run.m4ops("check", "--json")
    return {f["kind"]: f for f in json.loads(said.out)["findings"]}


# --- what ends a job ----------------------------------------------------------------------------------------


def test_the_time_limit_is_read_from_the_log(run: LiveRun) -> None:
    """A minute: Slurm knows no shorter limit. Most of it is spent asleep."""
    job = run.train("-N2", "--time=1")
    run.sees(lambda: job not in run.queue(), limit=100)
    assert "DUE TO TIME LIMIT" in run.log
    absent = findings(run)["job-absent"]
    assert "DUE TO TIME LIMIT" in str(absent["evidence"])


def test_a_node_that_dies_in_the_middle_of_a_step_is_named(run: LiveRun) -> None:
    job = run.train("-N3")
    run.trains(3)
    run.cluster.kill("n2")
    run.sees(lambda: "Node failure on n2" in run.log)
    run.sees(lambda: run.queue().get(job, ("",))[0] == "PENDING")
    said = run.m4ops("check")
    assert said.code == 2
    assert "n2 failed after step" in said.out
    assert findings(run)["node-failure"]["node"] == "n2"
    assert int(run.told(job, "Restarts")) == 1


def test_a_dead_batch_host_leaves_no_line_and_the_job_comes_back(run: LiveRun) -> None:
    job = run.train("-N2")
    run.trains(3)
    run.cluster.kill("n1")
    run.sees(lambda: run.queue()[job][0] == "PENDING")
    assert "error" not in run.log
    assert "a requeued job waits" in run.screen() or "NODE_FAIL" in run.screen()
    run.cluster.revive("n1", tied=True)
    run.trains(2)
    assert run.told(job, "Restarts") == "1"


def test_a_frozen_node_is_named_as_a_dead_one_is(run: LiveRun) -> None:
    run.train("-N3")
    run.trains(3)
    run.cluster.freeze("n3")
    run.sees(lambda: "Node failure on n3" in run.log)
    assert findings(run)["node-failure"]["node"] == "n3"


def test_a_cancelled_job_is_missed_with_its_last_words(run: LiveRun) -> None:
    job = run.train("-N2")
    run.trains(3)
    run.cluster.ask("scancel", job)
    run.sees(lambda: job not in run.queue())
    said = run.m4ops("check")
    assert said.code == 2
    assert "no job of tr_live is running or queued" in said.out
    assert "CANCELLED AT" in str(findings(run)["job-absent"]["evidence"])


def test_a_job_that_gives_way_to_an_urgent_one_comes_back(run: LiveRun) -> None:
    job = run.train("-N3", "--exclusive")
    run.trains(2)
    run.sbatch("-N3", "--exclusive", "-p", "urgent", "--job-name=urgent", wrap="sleep 1")
    run.sees(lambda: "DUE TO PREEMPTION" in run.log)
    run.sees(lambda: run.queue().get(job, ("",))[0] == "RUNNING")
    assert run.told(job, "Restarts") == "1"


# --- a controller that does not answer ----------------------------------------------------------------------


def controller_killed(run: LiveRun) -> None:
    run.cluster.kill("slurmctld")


def controller_frozen(run: LiveRun) -> None:
    run.cluster.freeze("slurmctld")


@pytest.mark.parametrize(
    ("fail", "reason"),
    [(controller_killed, "Unable to contact slurm controller"), (controller_frozen, "Socket timed out")],
)
def test_without_a_controller_all_is_unknown_and_nothing_is_changed(
    run: LiveRun, fail: Callable[[LiveRun], None], reason: str
) -> None:
    """The lab's clients give up after 3 s (MessageTimeout); m4ops must not take much longer."""
    run.train("--array=1-3%1", "-N1")
    run.trains(2)
    fail(run)
    said, seconds = run.timed("status")
    assert said.code == 0 and seconds < 6
    assert "UNKNOWN" in said.out and reason in " ".join(said.out.split())
    said, seconds = run.timed("check")
    assert said.code == 3 and seconds < 6
    before = files(run)
    for words in ("hold", "stop"):
        said, seconds = run.timed(words, "-y")
        assert said.code == 1 and seconds < 6
        assert "the queue is UNKNOWN" in said.err and reason in said.err
    assert files(run) == before
    run.cluster.revive("slurmctld", tied=True)
    assert json.loads(run.done("history", "--json").out)["changes"] == []
    run.done("hold", "-y")


@pytest.mark.parametrize("fail", [controller_killed, controller_frozen])
def test_an_order_that_got_no_answer_leaves_a_change_that_can_be_undone(
    run: LiveRun, tmp_path: Path, fail: Callable[[LiveRun], None]
) -> None:
    """The controller dies after the plan was made: whether it still heard the order, nobody can tell."""
    array = run.train("--array=1-3%1", "--begin=now+1hour")
    plan = tmp_path / "plan.json"  # the order is still to come
    run.done("hold", "--out", str(plan))
    fail(run)
    said, seconds = run.timed("apply", str(plan), "-y")
    assert said.code == 2 and seconds < 20
    assert f"is unfinished: `hold job {array}` failed" in said.err and "whether it was heard is UNKNOWN" in said.err
    run.cluster.revive("slurmctld", tied=True)
    changes = json.loads(run.done("history", "--json").out)["changes"]
    assert [c["status"] for c in changes] == ["unfinished"]
    run.done("undo", "1", "-y")
    assert not any(reason.startswith("JobHeld") for _, reason in run.queue().values())


def test_a_controller_that_restarts_while_a_job_is_stopped_does_no_harm(trained: Path, run: LiveRun) -> None:
    run.adopt(trained)
    array = run.train("--array=1-5%1", "-N2")
    run.sees(lambda: "iteration: 43/" in run.log)
    with run.start("rewind", "--to", "20", "--restart", "-y") as command:
        run.sees(lambda: (run.dir / "kill").exists())
        run.cluster.stop("slurmctld")
        run.sees(lambda: "** Kill switch activated" in run.log)
        run.cluster.revive("slurmctld", tied=True)
        out, _ = command.communicate(timeout=60)
        assert command.returncode == 0, out
    run.sees(lambda: f"Resuming from {run.dir}/opt_step-20" in run.log)
    assert run.queue()[f"{array}_2"][0] == "RUNNING"


def test_a_controller_that_dies_before_the_release_leaves_a_change_that_can_be_finished(
    trained: Path, run: LiveRun, tmp_path: Path
) -> None:
    run.adopt(trained)
    array = run.train("--array=1-3%1", "--hold", "-N1")
    said = run.m4ops("rewind", "--to", "20", "--restart", "-y", path=dies_at(run, tmp_path, "release"))
    assert said.code == 2, said.err
    assert "is unfinished: `release job" in said.err
    assert "m4ops undo 1 takes back what was done, m4ops apply 1 goes on" in " ".join(said.err.split())
    assert not (run.dir / "opt_step-40").exists()
    run.cluster.revive("slurmctld", tied=True)
    assert run.queue()[f"{array}_[1-3%1]"][1] == "JobHeldUser"
    run.done("apply", "1", "-y")
    run.sees(lambda: f"Resuming from {run.dir}/opt_step-20" in run.log)


def dies_at(run: LiveRun, folder: Path, verb: str) -> str:
    """A folder whose scontrol kills the controller at the moment of an order, and then gives the order."""
    shim = folder / "scontrol"
    shim.write_text(
        f'#!/bin/sh\n[ "$1" != {verb} ] || kill -{signal.SIGKILL.value} $(cat {run.cluster.folder}/run/slurmctld.pid)\n'
        'exec /usr/bin/scontrol "$@"\n'
    )
    shim.chmod(0o755)
    return str(folder)


def test_a_dead_munge_is_unknown_within_the_time_limit(run: LiveRun) -> None:
    """The client itself would try for 49 s."""
    run.cluster.kill("munged")
    said, seconds = run.timed("status")
    assert said.code == 0 and seconds < reader_limit() + 3
    assert "did not answer within" in " ".join(said.out.split()) or "Munge" in said.out


def reader_limit() -> float:
    from ops import slurm

    return slurm.TIMEOUT
