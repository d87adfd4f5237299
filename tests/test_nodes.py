"""Nodes that fail a run: counted once each whoever tells of them, reported, and kept away from the run's jobs."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm, Row
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import Said, m4ops
from slurm_lab import Cluster
from slurm_lab.processes import until

from ops import nodes
from ops.hostlist import compress, expand
from ops.logs import reader, rotated
from ops.model import Attempt, LogEvent, LogView
from ops.shell import Answer

STEP = "iteration: {:8d}/500000   0% | elapsed time: 00:00:01 | per_token_loss: 2.1 | lr: 1.000E-05 |\n"
LOST = """\
srun: error: Node failure on n2
slurmstepd-n1: error: *** STEP 30.0 ON n1 CANCELLED AT {0} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
slurmstepd-n1: error: *** JOB 30 ON n1 CANCELLED AT {0} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***
srun: error: n3: task 2: Terminated
"""
"""What the log says of a node that dies, by Slurm 22.05."""


def log_of(tmp_path: Path, *texts: str) -> LogView:
    path = tmp_path / "main_log.txt"
    path.write_text("".join(texts))
    log = reader.read_log(path)
    assert isinstance(log, LogView)
    return log


def at(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def test_the_failed_node_is_the_one_srun_names_with_its_job_and_time(tmp_path: Path) -> None:
    (failure,) = nodes.follow(nodes.Scan(), log_of(tmp_path, STEP.format(25), LOST.format(at(1e9)))).failures
    assert (failure.node, failure.what, failure.job, failure.time, failure.step) == ("n2", "lost", "30", 1e9, 25)
    (turned,) = nodes.follow(
        nodes.Scan(), log_of(tmp_path, *reversed(LOST.format(at(1e9)).splitlines(keepends=True)[:2]))
    ).failures
    assert (turned.node, turned.job, turned.time) == ("n2", "30", 1e9)


def test_a_log_read_in_pieces_tells_the_same(tmp_path: Path) -> None:
    text = STEP.format(25) + LOST.format(at(1e9)) + STEP.format(50) + LOST.format(at(2e9)).replace("n2", "n3")
    whole = nodes.follow(nodes.Scan(), log_of(tmp_path, text))
    path, scan, cursor = tmp_path / "grows.txt", nodes.Scan(), None
    for end in range(0, len(text) + 1, 97):
        path.write_text(text[: end if end + 97 <= len(text) else None])
        read = rotated.read_new(path, cursor)
        assert isinstance(read, tuple)
        scan = nodes.follow(nodes.from_json(json.loads(json.dumps(nodes.to_json(scan)))), read[0])
        cursor = read[1]
    assert [(f.node, f.job, f.time, f.step) for f in scan.failures] == [
        (f.node, f.job, f.time, f.step) for f in whole.failures
    ]
    assert [f.node for f in scan.failures] == ["n2", "n3"]


def test_the_first_task_to_die_is_named_and_what_follows_or_was_meant_is_not(tmp_path: Path) -> None:
    died = "srun: error: n3: task 5: Exited with exit code 1\nsrun: error: n1: tasks 0-1: Exited with exit code 1\n"
    meant = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n"
    log = log_of(
        tmp_path, STEP.format(25), died, STEP.format(50), meant, died, STEP.format(75), LOST.format(at(1)), died
    )
    found = [(f.node, f.what, f.rank) for f in nodes.follow(nodes.Scan(), log).failures]
    assert found == [("n3", "task died", 5), ("n2", "lost", None)]


def test_a_task_that_dies_of_another_nodes_loss_is_no_failure_of_its_node(tmp_path: Path) -> None:
    """A collective fails at once where the others run; Slurm notices the node itself seconds or minutes later."""
    died = (
        "srun: error: n1: task 0: Exited with exit code 1\nsrun: launch/slurm: _step_signal: Terminating StepId=2.0\n"
    )
    log = log_of(tmp_path, STEP.format(25), died, STEP.format(50), died, LOST.format(at(1)))
    found = [(f.node, f.what, f.step) for f in nodes.follow(nodes.Scan(), log).failures]
    assert found == [("n1", "task died", 25), ("n2", "lost", 50)]


def test_xid_codes_are_counted_by_the_node_whose_kernel_said_them(tmp_path: Path) -> None:
    text = "May 19 07:08:57 ip-1 kernel: [680111.6] NVRM: Xid (PCI:0000:10:1c): 63, pid=1850, row remapping"
    log = LogView(tmp_path / "log", 1, 0.0, (), (LogEvent("xid-63", 4, 99, text), LogEvent("xid-63", 5, 199, text)))
    (history,) = nodes.histories(nodes.follow(nodes.Scan(), log).failures)
    assert (history.node, [f.what for f in history.failures], history.lost) == ("ip-1", ["xid 63", "xid 63"], ())


def attempt(end: float, *failed: str, raw: str = "30", on: str = "n[1-3]") -> Attempt:
    return Attempt(raw, raw, end - 100, on, "NODE_FAIL", "0:0", end, failed)


def test_a_failure_that_both_tell_of_is_one(tmp_path: Path) -> None:
    logged = nodes.follow(nodes.Scan(), log_of(tmp_path, LOST.format(at(1e9)))).failures
    (one,) = nodes.joined(logged, [attempt(1e9 + 3, "n2")])
    assert "Node failure on n2" in one.evidence and "sacct" in one.evidence
    (unnamed,) = nodes.joined(logged, [attempt(1e9 + 3)])
    assert unnamed.node == "n2", "the log tells which of the job's nodes it was"
    batch = nodes.joined(logged, [attempt(1e9 + 3, "n2"), attempt(1e9 + 900, "n1")])
    assert [f.node for f in batch] == ["n2", "n1"]
    reused = nodes.joined(logged, [attempt(1e9 + 86400, "n2")])
    assert len(reused) == 2, "the same id a day later is another job"
    nameless = nodes.joined((), [attempt(1e9)])
    assert [(f.node, f.nodes) for f in nameless] == [("", "n[1-3]")]


NODE = st.from_regex(r"[a-z]{1,3}-?[0-9]{0,4}", fullmatch=True)


@settings(max_examples=60)
@given(st.sets(NODE, max_size=8))
def test_a_folded_list_of_nodes_is_the_same_nodes(names: set[str]) -> None:
    assert set(expand(compress(names))) == names


def test_lists_as_slurm_writes_them() -> None:
    assert expand("n[1-3,07],login2,r[1-2]c[8-9]") == (
        "n1",
        "n2",
        "n3",
        "n07",
        "login2",
        "r1c8",
        "r1c9",
        "r2c8",
        "r2c9",
    )
    assert expand("None assigned") == expand("(null)") == expand("") == ()
    assert compress(["n10", "n2", "n1", "n3", "x"]) == "n[1-3,10],x"


class Exclusions(FakeSlurm):
    """A queue whose jobs need two nodes of n1…n4, which takes ExcNodeList; or says so and does not (`deaf`)."""

    deaf = False
    down_nodes: tuple[str, ...] = ()

    def __init__(self, rows: list[Row]) -> None:
        super().__init__(rows)
        self.excluded = {row.array: "" for row in self.rows}

    def __call__(self, argv: Sequence[str], timeout: float) -> Answer:
        if argv[0] == "sinfo":
            state = {name: "down*" if name in self.down_nodes else "allocated" for name in ("n1", "n2", "n3", "n4")}
            lines = [f"{name}|train|{now}|root|Unknown|none" for name, now in state.items()]
            return Answer(0, "\n".join([*lines, "g1|other|idle|root|Unknown|none"]) + "\n", "")
        if argv[:2] == ("scontrol", "update"):
            array = argv[2].removeprefix("jobid=")
            if not self.deaf:
                self.excluded[array] = argv[3].removeprefix("ExcNodeList=")
            self.orders.append(("exclude", argv[3]))
            return Answer(0, "", "")
        if argv[:2] == ("scontrol", "-o"):
            lines = [
                f"JobId={r.array} JobName=x ExcNodeList=fake JobState={r.state} Partition=train ReqNodeList=(null) "
                f"ExcNodeList={self.excluded[r.array] or '(null)'} NumNodes=2-2 "
                for r in self.rows
                if r.array == argv[4]
            ]
            return (
                Answer(0, "\n".join(lines), "")
                if lines
                else Answer(1, "", "slurm_load_jobs error: Invalid job id specified")
            )
        return super().__call__(argv, timeout)


@pytest.fixture
def world(tmp_path: Path) -> tuple[Path, Exclusions, Callable[..., Said]]:
    run = tmp_path / "tr_0"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "main_log.txt").write_text(STEP.format(25))
    rows = [Row("7", "1", name="tr_0"), Row("7", "2-9%1", "PENDING", "JobArrayTaskLimit", "tr_0")]
    slurm = Exclusions(rows)
    return run, slurm, lambda *words: m4ops("--run", str(run), *words, slurm=slurm)


def test_exclude_tells_slurm_remembers_for_the_next_submit_and_is_taken_back(world) -> None:
    run, slurm, call = world
    said = call("exclude", "n2", "--why", "xid 79", "-y")
    assert said.code == 0, said.err
    assert slurm.excluded["7"] == "n2" and nodes.excluded(run) == ("n2",)
    assert "job 7: ExcNodeList empty → n2" in said.out and "job 7_1 runs on n[1-2]".replace("n[1-2]", "n2") in said.out
    assert call("exclude", "n[3]", "-y").code == 0
    assert set(expand(slurm.excluded["7"])) == {"n2", "n3"} and nodes.excluded(run) == ("n2", "n3")
    assert "is excluded already" in call("exclude", "n2", "-y").err
    assert call("undo", "-y").code == 0
    assert slurm.excluded["7"] == "n2" and nodes.excluded(run) == ("n2",)
    assert call("undo", "1", "-y").code == 0
    assert slurm.excluded["7"] == "" and not (run / ".m4ops" / "exclude").exists()


def test_exclude_refuses_to_go_below_what_the_job_needs(world) -> None:
    run, slurm, call = world
    slurm.down_nodes = ("n4",)
    said = call("exclude", "n2", "n3", "-y")
    assert said.code == 1 and "needs 2 nodes" in said.err and "3 usable" in said.err and "1 would be left" in said.err
    assert slurm.orders == [] and not (run / ".m4ops" / "exclude").exists()
    assert "no node n9" in call("exclude", "n9", "-y").err


def test_what_slurm_did_not_take_is_no_change(world) -> None:
    run, slurm, call = world
    slurm.deaf = True
    said = call("exclude", "n2", "-y")
    assert said.code == 1 and "Slurm did not take it" in said.err and "rolled back" in said.err
    assert not (run / ".m4ops" / "exclude").exists()


def test_somebody_elses_exclusion_since_the_plan_is_drift(world, tmp_path: Path) -> None:
    run, slurm, call = world
    assert call("exclude", "n2", "--out", str(tmp_path / "plan.json")).code == 0
    slurm.excluded["7"] = "n4"
    said = call("apply", str(tmp_path / "plan.json"), "-y")
    assert said.code == 1 and "job 7 excludes n4" in said.err
    assert slurm.excluded["7"] == "n4" and not (run / ".m4ops" / "exclude").exists()


def test_with_nothing_in_the_queue_the_next_submit_is_meant(world) -> None:
    run, slurm, call = world
    slurm.rows = []
    said = call("exclude", "n2", "-y")
    assert said.code == 0 and "next m4ops submit" in said.out and nodes.excluded(run) == ("n2",)


def test_nodes_says_what_it_could_not_read(world) -> None:
    run, _, call = world
    (run / "logs" / "main_log.txt").write_text(STEP.format(25) + LOST.format(at(1e9)))
    said = call("nodes")
    assert "Slurm's records: UNKNOWN" in said.out
    assert [line.split()[:2] for line in said.out.splitlines() if line.startswith("n")] == [["n2", "1"]]
    report = call("nodes", "report", "n2")
    assert report.code == 0 and "srun: error: Node failure on n2" in report.out and "step 25" in report.out
    assert "n2" in call("nodes", "report", "n4").err


def test_a_node_that_dies_on_a_real_cluster_is_found_reported_and_excluded(
    slurm_lab, monkeypatch, tmp_path: Path
) -> None:
    """n2 dies under a task of an array: the log and Slurm's records tell of one failure, and the rest of the array
    never gets n2 again."""
    cluster: Cluster = slurm_lab(nodes=4, dbd=True, extra=("SlurmdTimeout=2", "MessageTimeout=2"))
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    run = tmp_path / "tr_0"
    (run / "logs").mkdir(parents=True)
    log = run / "logs" / "main_log.txt"
    call = _real(run)
    wrap = f"--wrap=srun bash -c 'touch {tmp_path}/up.$SLURM_JOB_ID.$SLURM_PROCID; sleep 61'"
    array = cluster.ask(
        "sbatch", "--parsable", "--array=1-3%1", "-N3", "--no-requeue", "--open-mode=append", "-Jtr_0", f"-o{log}", wrap
    )
    assert until(lambda: len(list(tmp_path.glob("up.*"))) == 3)
    call("check")
    cluster.kill("n2")
    assert until(lambda: cluster.ask("squeue", "-h", "-tR", "-o%K") != "1")
    assert call("hold", "-y").code == 0
    found: dict[str, Any] = {}

    def both_have_told() -> bool:  # slurmdbd and srun say it some seconds after the queue
        found.update(json.loads(call("nodes", "--json").out))
        failures = [f for n in found["nodes"] for f in n["failures"]]
        return len(failures) == 1 and len(failures[0]["evidence"]) == 2

    assert until(both_have_told), found["nodes"]
    assert [(n["node"], n["lost"]) for n in found["nodes"]] == [("n2", 1)] and not found["unknown"]
    evidence = "\n".join(found["nodes"][0]["failures"][0]["evidence"])
    assert "srun: error: Node failure on n2" in evidence and "NODE_FAIL" in evidence
    assert "n2" in call("nodes", "report", "n2").out
    assert "needs 3 nodes" in call("exclude", "n1", "n3", "-y").err
    said = call("exclude", "n2", "-y")
    assert said.code == 0, said.err
    listed = cluster.ask("scontrol", "-o", "show", "job", array)
    pending = [line for line in listed.splitlines() if "JobState=PENDING" in line]
    assert pending and all("ExcNodeList=n2 " in line for line in pending)
    assert call("undo", "-y").code == 0
    assert "ExcNodeList=n2" not in cluster.ask("scontrol", "-o", "show", "job", array)


def _real(run: Path) -> Callable[..., Said]:
    from ops import shell

    return lambda *words: m4ops("--run", str(run), *words, slurm=shell.run)
