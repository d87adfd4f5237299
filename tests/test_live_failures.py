"""How things end on a real Slurm cluster, and what m4ops says of it: nodes, limits, people, the controller."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from live_run import TRAINER, LiveRun, files
from slurm_lab import Cluster

from ops import recent


@pytest.fixture
def run(slurm: Cluster) -> LiveRun:
    return LiveRun(slurm).make()


def findings(run: LiveRun) -> dict[str, dict[str, str]]:
    """What `m4ops check` finds, by kind."""
    said = run.m4ops("check", "--json")
    told = json.loads(said.out)
    return {f["kind"]: f for f in (*told["findings"], *told["noted"])}


# --- what ends a job ----------------------------------------------------------------------------------------


def test_what_ends_jobs_of_a_chain_is_told_and_is_no_alarm(trained: Path, slurm_lab: Callable[..., Cluster]) -> None:
    """Five runs at once: two meet their time limit, one of them warned of it; two give way to an urgent job; one loses the
    node of its batch script, of which its log says nothing.

    Slurm knows no limit below a minute, but its administrator may move a job's end; it looks twice a minute.
    """
    cluster = slurm_lab(nodes=6, dbd=True)
    names = ("tr_limit", "tr_warned", "tr_requeued", "tr_cancelled", "tr_headless")
    limit, warned, requeued, cancelled, headless = (LiveRun(cluster, name).make() for name in names)
    job = limit.train("-wn1", "--time=1")
    warned.adopt(trained, newest=1)  # of one save nobody knows when the next is due
    words = ("submit", "-y", "--", "-wn2", "--time=10", "--signal=B:USR1@120")
    command = f"bash {TRAINER}"
    with warned.start(*words, TRAIN_CMD=command) as submitted:
        out = submitted.communicate(timeout=120)[0]
    own = out.partition("job ")[2].partition(" is submitted")[0].rpartition(" ")[2]
    first = requeued.train("-wn3", "--exclusive")
    array = cancelled.train("-wn4", "--exclusive", "-pscavenge", "--array=1-2%1")
    headless.train("-wn[5-6]")
    for each in (limit, warned, requeued, cancelled, headless):
        each.trains()
        recent.forget(each.env)
        assert each.m4ops("check").code == 0
    cluster.kill("n5")
    cluster.ask("scontrol", "update", f"jobid={job}", "endtime=now+1")
    cluster.ask("scontrol", "update", f"jobid={own}", "endtime=now+100")

    cluster.ask("sbatch", "-purgent", "-wn[3-4]", "-N2", "--exclusive", "-o/dev/null", "--wrap=sleep 1")
    requeued.sees(lambda: requeued.told(first, "Restarts") == "1" and requeued.queue()[first][0] == "RUNNING")
    cancelled.sees(lambda: cancelled.queue().get(f"{array}_2", ("",))[0] == "RUNNING")
    for each, goes_on in ((requeued, first), (cancelled, f"{array}_2")):
        each.sees(lambda each=each: "preempted" in findings(each))
        end = findings(each)["preempted"]
        assert end["severity"] == "OK" and each.m4ops("check").code == 0
        assert f"noted {end['summary']}" in each.screen()
        assert "PREEMPTED" in end["evidence"][0] and f"{goes_on} goes on" in end["summary"]

    limit.sees(lambda: job not in limit.queue())
    output = (cluster.jobs / f"{limit.name}_{job}.out").read_text()
    assert f"JOB {job} ON n1 CANCELLED AT" in output and "DUE TO TIME LIMIT" in output
    limit.sees(lambda: "time-limit" in findings(limit))
    assert f"sacct: job {job} TIMEOUT on n1" in findings(limit)["job-absent"]["evidence"][1]

    headless.sees(lambda: "node-failure" in findings(headless))
    assert findings(headless)["node-failure"]["node"] == "n5" and "error" not in headless.log
    lost = json.loads(headless.done("nodes", "--json").out)["nodes"]
    assert [(node["node"], node["lost"], node["state"]["state"]) for node in lost] == [("n5", 1, "down*")]
    assert "NODE_FAIL on n[5-6]" in headless.done("nodes", "report", "n5").out

    warned.sees(lambda: warned.told(own, "Restarts") == "1")
    assert warned.log.index("the save switch is set") < warned.log.index("** Saving finished")
    assert "could not" not in warned.log
    warned.sees(lambda: warned.log.count(f"Resuming from {warned.dir}/opt_step-") == 2)
    assert warned.m4ops("check").code == 0


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

    for each, node in ((dead, "n2"), (frozen, "n6")):
        each.sees(lambda each=each: "DUE TO NODE FAILURE" in each.log)
        each.sees(lambda each=each: each.queue()[jobs[each]][0] == "PENDING")
        # On a loaded machine srun is killed before it names the node.
        named = node if f"Node failure on {node}" in each.log else ""
        said = each.m4ops("check")
        assert f"{named or 'a node (the log does not say which)'} failed after step" in said.out
        assert said.code == (1 if "training went on" in said.out else 2)  # a node may log a row more while it is ended
        assert findings(each)["node-failure"]["node"] == named

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
    said = {word: " ".join(command.communicate(timeout=120)[0].split()) for word, command in orders.items()}
    assert time.monotonic() - began < 30  # some 4 s on an idle machine
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


@pytest.mark.parametrize("signal_name", ["KILL", "STOP"])
def test_an_order_that_got_no_answer_leaves_a_change_that_can_be_undone(
    run: LiveRun, tmp_path: Path, signal_name: str
) -> None:
    """The controller dies, or hangs, under the order: whether it still heard it, nobody can tell."""
    array = run.train("--array=1-3%1", "--begin=now+1hour")
    said = run.m4ops("hold", "-y", path=dies_at(run, tmp_path, f"hold {array}", signal_name))
    assert said.code == 2, said.err
    assert f"is unfinished: `hold job {array}` failed" in said.err and "whether it was heard is UNKNOWN" in said.err
    run.cluster.revive("slurmctld", tied=True)
    changes = json.loads(run.done("history", "--json").out)["changes"]
    assert [c["status"] for c in changes] == ["unfinished"]
    run.done("undo", "1", "-y")
    assert not any(reason.startswith("JobHeld") for _, reason in run.queue().values())


def test_of_two_orders_the_one_that_failed_is_told_from_the_one_that_was_carried_out(
    run: LiveRun, tmp_path: Path
) -> None:
    """A killed controller may have forgotten the first again: finishing the change gives it once more."""
    first, second = (run.train("--array=1-3%1", "--begin=now+1hour") for _ in range(2))
    run.cluster.stop("slurmctld")  # so that it has saved both jobs
    run.cluster.revive("slurmctld", tied=True)
    said = run.m4ops("hold", "-y", path=dies_at(run, tmp_path, f"hold {second}"))
    told = said.err.split("\n")
    assert said.code == 2, said.err
    assert told[told.index("  done: ") + 1 :][:1] == [f"    hold job {first}"], said.err
    assert f"    hold job {second}" in told[told.index("  not done: ") :]
    run.cluster.revive("slurmctld", tied=True)
    run.done("apply", "1", "-y")
    assert {reason for _, reason in run.queue().values()} == {"JobHeldAdmin"}
    run.done("undo", "1", "-y")
    assert "JobHeldAdmin" not in str(run.queue())


def test_an_id_that_a_controller_gave_anew_is_not_taken_for_the_runs_job(run: LiveRun, tmp_path: Path) -> None:
    """A controller without its state begins again with job 1: somebody else's. No plan made for the old one touches it."""
    lost = run.train("--array=1-3%1", "--begin=now+1hour")
    run.done("hold", "-y")
    for verb in ("release", "cancel"):
        run.done(verb, "--out", str(tmp_path / f"{verb}.json"))
    run.cluster.kill("slurmctld")
    shutil.rmtree(run.cluster.folder / "state")
    (run.cluster.folder / "state").mkdir()
    run.cluster.revive("slurmctld", tied=True)
    other = LiveRun(run.cluster, "tr_other").make()
    assert other.sbatch("--begin=now+1hour", "-H") == lost
    for words in (("release.json",), ("cancel.json",)):
        assert "no job of this run any more" in run.done("apply", *(str(tmp_path / w) for w in words), "-y").err
    assert "no job of this run any more" in run.done("undo", "1", "-y").err
    assert other.queue() == {lost: ("PENDING", "JobHeldUser")}
    assert "no job of tr_live is running or queued" in run.m4ops("check").out


def test_a_slow_controller_is_waited_for(run: LiveRun) -> None:
    """Frozen for a second, while the lab's clients wait for three."""
    run.sbatch("--begin=now+1hour")
    run.cluster.freeze("slurmctld")
    with run.start("status") as command:
        time.sleep(1)
        run.cluster.thaw("slurmctld")
        out, _ = command.communicate(timeout=120)
    assert command.returncode == 0 and "PENDING" in out and "jobs         UNKNOWN" not in out, out


def test_a_controller_that_restarts_while_a_job_is_stopped_does_no_harm(trained: Path, run: LiveRun) -> None:
    run.adopt(trained)
    array = run.train("--array=1-5%1", "-N2")
    run.sees(lambda: "iteration: 43/" in run.log)
    with run.start("rewind", "--to", "20", "--restart", "-y") as command:
        run.sees(lambda: (run.dir / "kill").exists())
        run.cluster.stop("slurmctld")
        run.sees(lambda: "** Kill switch activated" in run.log)
        run.cluster.revive("slurmctld", tied=True)
        out, _ = command.communicate(timeout=120)
        assert command.returncode == 0, out
    run.sees(lambda: f"Resuming from {run.dir}/opt_step-20" in run.log)
    assert run.queue()[f"{array}_2"][0] == "RUNNING"


def test_a_controller_that_dies_before_the_release_leaves_a_change_that_can_be_finished(
    trained: Path, run: LiveRun, tmp_path: Path
) -> None:
    run.adopt(trained)
    array = run.train("--array=1-3%1", "--hold", "-N1")
    said = run.m4ops("rewind", "--to", "20", "--restart", "-y", path=dies_at(run, tmp_path, f"release {array}"))
    assert said.code == 2, said.err
    assert "is unfinished: `release job" in said.err
    assert "m4ops undo 1 takes back what was done, m4ops apply 1 goes on" in " ".join(said.err.split())
    assert not (run.dir / "opt_step-40").exists()
    run.cluster.revive("slurmctld", tied=True)
    assert run.queue()[f"{array}_[1-3%1]"][1] == "JobHeldUser"
    run.done("apply", "1", "-y")
    run.sees(lambda: f"Resuming from {run.dir}/opt_step-20" in run.log)


def dies_at(run: LiveRun, folder: Path, order: str, signal_name: str = "KILL") -> str:
    """A folder whose scontrol kills or freezes the controller at the moment of an order, and then gives the order."""
    shim = folder / "scontrol"
    shim.write_text(
        f'#!/bin/sh\n[ "$*" != "{order}" ] || kill -{signal_name} $(cat {run.cluster.folder}/run/slurmctld.pid)\n'
        'exec /usr/bin/scontrol "$@"\n'
    )
    shim.chmod(0o755)
    return str(folder)


def test_a_client_that_would_hang_is_unknown_within_the_time_limit(run: LiveRun, tmp_path: Path) -> None:
    """Left alone, clients try for 49 s without munge, and for 59 s with a SLURM_CONF that does not exist."""
    from ops import slurm

    run.cluster.kill("munged")
    began = time.monotonic()
    lost = {"SLURM_CONF": str(tmp_path / "nowhere.conf")}
    asked = [run.start("check", "--json"), run.start("status"), run.start("check", "--json", **lost)]
    no_munge, shown, no_conf = (command.communicate(timeout=120)[0] for command in asked)
    assert time.monotonic() - began < slurm.TIMEOUT + 25  # left alone: 49 s and more
    assert [command.returncode for command in asked] == [3, 0, 3]
    assert "UNKNOWN" in shown and "did not answer within 15 s" in " ".join(shown.split())
    for told in (no_munge, no_conf):
        assert "queue-unknown" in told and "did not answer within 15 s" in told
