"""Jobs that wait for what does not come by itself, on a real cluster: each is found, in words, and what is advised helps."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from live_run import ROOT, LiveRun
from slurm_lab import Cluster

from ops import recent
from ops.catalogue.reasons import reason_of

Findings = dict[str, dict[str, Any]]


class Waiting(NamedTuple):
    """A run, its only job, and why that waits."""

    run: LiveRun
    job: str

    @property
    def now(self) -> tuple[str, str]:
        """State and reason as Slurm has them now."""
        return self.run.queue().get(self.job, ("GONE", ""))


@pytest.fixture(scope="module")
def cluster(lasting_lab: Callable[..., Cluster], tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Four nodes with accounting and limits; n4's prolog fails, n3 is drained, n2's feature went after it was asked for."""
    prolog = tmp_path_factory.mktemp("prolog") / "prolog"
    prolog.write_text('#!/bin/sh\n[ "$SLURMD_NODENAME" != n4 ]\n')
    prolog.chmod(0o755)
    made = lasting_lab(
        nodes=4, dbd=True, extra=(f"Prolog={prolog}", "AccountingStorageEnforce=associations,limits,qos,safe")
    )
    ask = made.ask
    ask("sacctmgr", "-i", "add", "qos", "small", "MaxTRESPerJob=node=1")
    ask("sacctmgr", "-i", "add", "qos", "spent", "GrpTRESMins=cpu=1")
    ask("sacctmgr", "-i", "add", "qos", "none", "MaxSubmitJobsPerUser=0")
    ask("sacctmgr", "-i", "add", "account", "lab", "qos=normal,small,spent,none")
    ask("sacctmgr", "-i", "add", "user", "root", "nobody", "account=lab")
    return made


@pytest.fixture(scope="module")
def runs(cluster: Cluster) -> dict[str, Waiting]:
    """One run for each reason, by it; all of them wait."""
    ask, made = cluster.ask, {}

    def run(reason: str, *flags: str, user: str = "") -> None:
        its = LiveRun(cluster, re.sub(r"\W+", "_", reason)).make()
        if user:
            shutil.chown(its.dir, user)
        made[reason] = Waiting(its, its.sbatch("-t1", *flags, user=user))

    failed = cluster.ask("sbatch", "--parsable", "-o/dev/null", "-wn1", "--wrap=false")
    run("DependencyNeverSatisfied", "-wn1", f"--dependency=afterok:{failed}")
    run("JobHeldAdmin", "--begin=now+1hour", user="nobody")
    ask("scontrol", "hold", made["JobHeldAdmin"].job)
    run("launch failed requeued held", "-wn4")
    ask("scontrol", "update", "nodename=n2", "activefeatures=a100", "availablefeatures=a100")
    run("BadConstraints", "-Ca100", "--begin=now+2")
    ask("scontrol", "update", "nodename=n2", "activefeatures=", "availablefeatures=")
    ask("scontrol", "update", "nodename=n3", "state=drain", "reason=burnt")
    run("ReqNodeNotAvail", "-wn3")
    run("PartitionTimeLimit", "-pdebug", "-t10")
    run("PartitionNodeLimit", "-pdebug", "-N2")
    ask("scontrol", "update", "partitionname=scavenge", "state=down")
    run("PartitionDown", "-pscavenge")
    run("QOSMaxNodePerJobLimit", "-Alab", "-qsmall", "-N2")
    run("QOSGrpCPUMinutesLimit", "-Alab", "-qspent", "-wn1", "-n4", "-t60")
    for reason, each in made.items():
        each.run.sees(lambda reason=reason, each=each: each.now[1].startswith(reason))
    return made


@pytest.fixture(scope="module")
def checked(cluster: Cluster, runs: dict[str, Waiting]) -> dict[str, Findings]:
    """What one check of all runs finds: for each reason the findings by kind."""
    some = next(iter(runs.values())).run
    argv = [sys.executable, "-m", "ops.cli", "check", "--all", "--json"]
    env = some.env | {"M4OPS_ROOTS": str(cluster.jobs)}
    said = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert said.returncode == 2, said.stderr
    of = {Path(r["run"]["dir"]).name: {f["kind"]: f for f in r["findings"]} for r in json.loads(said.stdout)["runs"]}
    return {reason: of[each.run.name] for reason, each in runs.items()}


WORDS = {
    "DependencyNeverSatisfied": ("CRITICAL", "the job it depends on did not end as asked"),
    "launch failed requeued held": ("CRITICAL", "its start failed (node or prolog)"),
    "BadConstraints": ("CRITICAL", "no node of the cluster can satisfy what it asks for"),
    "ReqNodeNotAvail": ("WARNING", "a node it needs is down, drained or reserved"),
    "PartitionTimeLimit": ("CRITICAL", "asks for more time than its partition gives"),
    "PartitionNodeLimit": ("CRITICAL", "needs 2 nodes, and 1 of partition debug are usable"),
    "PartitionDown": ("WARNING", "its partition is down"),
    "QOSMaxNodePerJobLimit": ("CRITICAL", "asks for more nodes than its QOS may have in one job"),
    "QOSGrpCPUMinutesLimit": ("CRITICAL", "the CPU minutes of its QOS are used up"),
}


@pytest.mark.parametrize("reason", WORDS)
def test_a_job_that_does_not_start_by_itself_is_found_in_words(checked: dict[str, Findings], reason: str) -> None:
    found = checked[reason]["job-stuck"]
    assert (found["severity"], True) == (WORDS[reason][0], WORDS[reason][1] in found["summary"]), found
    assert reason in found["evidence"][0] and found["actions"]


def test_what_an_administrator_holds_is_not_advised_to_be_released(
    checked: dict[str, Findings], runs: dict[str, Waiting]
) -> None:
    """Root, who checks here, is an administrator; the owner is not, and is told so also when he tries."""
    run, _ = held = runs["JobHeldAdmin"]
    assert checked["JobHeldAdmin"]["job-held"]["actions"] == ["m4ops release"]
    for path in run.dir.rglob("*"):  # what root's check left there
        shutil.chown(path, "nobody")
    shown = run.m4ops("status", user="nobody")
    assert "by an administrator, who alone can release it" in " ".join(shown.out.split())
    assert "m4ops release" not in shown.out
    tried = run.m4ops("release", "-y", user="nobody")
    assert tried.code == 1 and "denied" in tried.err and "ask them" in tried.err
    assert held.now == ("PENDING", "JobHeldAdmin")


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("DependencyNeverSatisfied", "dependency="),
        ("BadConstraints", "features="),
        ("ReqNodeNotAvail", "reqnodelist="),
        ("PartitionTimeLimit", "timelimit="),
        ("QOSGrpCPUMinutesLimit", "qos="),
    ],
)
def test_what_is_advised_lets_the_job_go(
    checked: dict[str, Findings], runs: dict[str, Waiting], reason: str, command: str
) -> None:
    waiting = runs[reason]
    released = waiting.run.m4ops("release", "-y")
    assert released.code == 1 and "no job of this run is held" in released.err and WORDS[reason][1] in released.err
    advised = next(a for a in checked[reason]["job-stuck"]["actions"] if command in a)
    waiting.run.cluster.ask(*advised.replace("HH:MM:SS", "00:01:00").replace("NAME", "normal").split())
    waiting.run.sees(lambda: waiting.now[0] == "RUNNING")


def test_a_failed_launch_is_released_when_the_node_is_mended(runs: dict[str, Waiting]) -> None:
    run, job = failed = runs["launch failed requeued held"]
    run.cluster.ask("scontrol", "update", f"jobid={job}", "reqnodelist=")
    run.done("release", "-y")
    run.sees(lambda: failed.now[0] == "RUNNING")


def test_every_accounting_limit_this_slurm_knows_has_words() -> None:
    library = next(Path("/usr/lib").rglob("libslurmfull.so"))
    codes = set(re.findall(rb"\0((?:(?:Assoc|QOS)(?:Grp|Max|Min)|Max\w+PerAccount)\w*)\0", library.read_bytes()))
    assert len(codes) > 50
    assert [code for code in codes if not reason_of(code.decode())] == []


REFUSED = {
    "--account=nope": ("Invalid account", "sacctmgr show assoc"),
    "--qos=nope": ("Invalid qos", "sacctmgr show assoc"),
    "--partition=nope": ("Invalid partition name", "sinfo -s"),
    "--array=1-200000": ("Invalid job array", "MaxArraySize"),
    "--constraint=nope": ("Invalid feature", "sinfo -o"),
    "--account=lab --qos=none": (
        "QOSMaxSubmitJobPerUserLimit",
        "its user has as many jobs queued in this QOS as allowed",
    ),
}


def test_what_slurm_refuses_makes_no_job_and_names_the_way_on(cluster: Cluster) -> None:
    run = LiveRun(cluster, "refused").make()
    asked = {flags: LiveRun(cluster, f"refused/{i}").make() for i, flags in enumerate(REFUSED)}
    began = {flags: each.start("submit", "-y", "--", *flags.split(), TRAIN_CMD="true") for flags, each in asked.items()}
    for flags, command in began.items():
        said = command.communicate(timeout=120)[0]
        assert command.returncode == 1 and "no job was made" in said, said
        assert all(words in " ".join(said.split()) for words in REFUSED[flags]), said
        assert not list(asked[flags].dir.glob(".m4ops/submitted/*"))
    assert not [name for name in cluster.ask("squeue", "-h", "-o", "%Z").splitlines() if name.startswith(str(run.dir))]


def test_without_accounting_the_queue_is_judged_and_only_the_records_are_unknown(cluster: Cluster) -> None:
    run = LiveRun(cluster, "no_accounting").make()
    job = run.sbatch("-wn2", "--no-requeue", wrap="sleep 2")
    run.sees(lambda: run.queue()[job][0] == "RUNNING")
    assert run.m4ops("check").code == 0
    cluster.stop("slurmdbd")
    run.sees(lambda: job not in run.queue())
    recent.forget(run.env)
    said = run.m4ops("check", "--json")
    kinds = {f["kind"] for f in json.loads(said.out)["findings"]}
    assert said.code == 1 and kinds == {"job-absent"}, said.out
    nodes = run.m4ops("nodes")
    assert "UNKNOWN" in nodes.out and "Connection refused" in " ".join(nodes.out.split()), nodes.out
    run.sbatch("--begin=now+1hour")
    recent.forget(run.env)
    assert run.m4ops("check").code == 0
    cluster.revive("slurmdbd", tied=True)
    run.sees(lambda: "UNKNOWN" not in run.m4ops("nodes").out)
