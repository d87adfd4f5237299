"""How things end on a real Slurm cluster, and what m4ops says of it: nodes, limits, people, the controller."""

import json
import signal
import time
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


def test_a_job_that_reached_its_time_limit_is_missed(run: LiveRun) -> None:
    """Slurm knows no limit below a minute, but its administrator may move a job's end; it looks twice a minute."""
    job = run.train("-N2", "--time=1")
    run.trains()
    run.cluster.ask("scontrol", "update", f"jobid={job}", "endtime=now+1")
    run.sees(lambda: job not in run.queue(), limit=60)
    output = (run.cluster.jobs / f"{run.name}_{job}.out").read_text()
    assert f"JOB {job} ON n1 CANCELLED AT" in output and "DUE TO TIME LIMIT" in output
    absent = findings(run)["job-absent"]
    if "DUE TO TIME LIMIT" in run.log:  # the step's line comes through srun, unless srun is killed first
        assert "DUE TO TIME LIMIT" in str(absent["evidence"])


def test_each_failed_node_is_named_and_a_batch_host_leaves_no_line(slurm_lab: Callable[..., Cluster]) -> None:
    """Three runs at once: one loses a node, one a node that hangs, one the node of its batch script."""
    cluster = slurm_lab(nodes=8)
    dead, frozen, headless = (LiveRun(cluster, name).make() for name in ("tr_dead", "tr_frozen", "tr_headless"))
    jobs = {
        dead: dead.train("--nodelist=n[1-3]"),
        frozen: frozen.train("--nodelist=n[4-6]"),
        headless: headless.train("--nodelist=n[7-8]"),
    }
    for each in jobs:
        each.trains(3)
    cluster.kill("n2")
    cluster.freeze("n6")
    cluster.kill("n7")

    dead.sees(lambda: "Node failure on n2" in dead.log)
    dead.sees(lambda: dead.queue()[jobs[dead]][0] == "PENDING")
    said = dead.m4ops("check")
    assert said.code == 2
    assert "n2 failed after step" in said.out
    assert findings(dead)["node-failure"]["node"] == "n2"

    frozen.sees(lambda: "Node failure on n6" in frozen.log)
    assert findings(frozen)["node-failure"]["node"] == "n6"

    headless.sees(lambda: headless.queue()[jobs[headless]][0] == "PENDING")
    assert "error" not in headless.log
    assert "node-failure" not in findings(headless)
    cluster.revive("n7", tied=True)
    headless.trains(2)
    assert [each.told(job, "Restarts") for each, job in jobs.items()] == ["1", "1", "1"]


def test_a_cancelled_job_is_missed_with_its_last_words(run: LiveRun) -> None:
    job = run.train("-N2")
    run.trains(3)
    run.cluster.ask("scancel", job)
    run.sees(lambda: job not in run.queue())
    said = run.m4ops("check")
    assert said.code == 2
    assert "no job of tr_live is running or queued" in said.out
    if "CANCELLED AT" in run.log:  # the step's line comes through srun, unless srun is killed first
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
    before = files(run)
    fail(run)
    began = time.monotonic()
    orders = {word: run.start(word, *more) for word, *more in (("status",), ("check",), ("hold", "-y"), ("stop", "-y"))}
    said = {word: " ".join(command.communicate(timeout=30)[0].split()) for word, command in orders.items()}
    assert time.monotonic() - began < 8
    assert {word: command.returncode for word, command in orders.items()} == {
        "status": 0,
        "check": 3,
        "hold": 1,
        "stop": 1,
    }
    for word in ("status", "hold", "stop"):  # check tells of a silent controller at its second tick
        assert reason in said[word] and "UNKNOWN" in said[word]
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
