"""Runs on two clusters of one slurmdbd: both have a job 1, and each order reaches the one that is meant."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from live_run import ROOT, LiveRun
from slurm_lab import Cluster


@pytest.fixture
def clusters(slurm_lab: Callable[..., Cluster]) -> tuple[Cluster, Cluster]:
    """`lab`, whose SLURM_CONF the user has, and `other`, which its slurmdbd knows."""
    lab = slurm_lab(nodes=2, dbd=True)
    known = dict(line.split("=", 1) for line in lab.conf.read_text().splitlines() if "=" in line)
    shared = [f"{key}={known[key]}" for key in known if key == "AuthInfo" or key.startswith("AccountingStorage")]
    lab.ask("sacctmgr", "-i", "add", "cluster", "other")
    return lab, slurm_lab(nodes=2, extra=("ClusterName=other", *shared))


def checked(clusters: tuple[Cluster, Cluster], folder: Path) -> tuple[dict[str, list[str]], list[str]]:
    """By run, what one check of all finds; and how squeue was called."""
    shims, calls = folder / "bin", folder / "asked"
    shims.mkdir(exist_ok=True)
    (shims / "squeue").write_text(f'#!/bin/sh\necho "$@" >>{calls}\nexec /usr/bin/squeue "$@"\n')
    (shims / "squeue").chmod(0o755)
    calls.unlink(missing_ok=True)
    env = clusters[0].env | {"M4OPS_ROOTS": str(clusters[0].jobs), "M4OPS_QUEUE_AGE": "0"}
    argv = [sys.executable, "-m", "ops.cli", "check", "--all", "--json"]
    env["PATH"] = f"{shims}:{env['PATH']}"
    said = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60)
    runs = json.loads(said.stdout)["runs"]
    asked = [line.partition(" -o ")[0] for line in calls.read_text().splitlines()]
    return {r["run"]["name"]: [f["kind"] for f in r["findings"]] for r in runs}, asked


def test_runs_of_two_clusters_are_asked_together_and_acted_on_apart(
    clusters: tuple[Cluster, Cluster], tmp_path: Path
) -> None:
    lab, other = clusters
    here, there = LiveRun(lab, "tr_here").make(), LiveRun(lab, "tr_there").make()
    for run, cluster in ((here, "lab"), (there, "other")):
        (run.dir / "m4ops.toml").write_text(f'cluster = "{cluster}"\n')
        assert run.sbatch(f"-M{cluster}", "--begin=now+1hour").partition(";")[0] == "1"
    assert checked(clusters, tmp_path) == ({"tr_here": [], "tr_there": []}, ["-M lab,other"])

    there.done("hold", "-y")
    reasons = [c.ask("squeue", "-h", "-o", "%r") for c in clusters]
    assert reasons == ["BeginTime", "JobHeldAdmin"]
    assert checked(clusters, tmp_path)[0] == {"tr_here": [], "tr_there": ["job-held"]}
    assert "n1" in there.done("exclude", "n1", "-y").out
    assert [("ExcNodeList=n1 " in c.ask("scontrol", "-o", "show", "job", "1")) for c in clusters] == [False, True]

    assert "UNKNOWN" not in there.done("nodes").out
    other.kill("slurmctld")
    assert checked(clusters, tmp_path)[0] == {"tr_here": [], "tr_there": ["queue-unknown"]}
    said = there.m4ops("hold", "-y")
    assert said.code == 1 and "UNKNOWN" in said.err and "other" in said.err
    other.revive("slurmctld", tied=True)

    there.done("cancel", "-y")
    submitted = there.start("submit", "-y", "--again", "--", "--begin=now+1hour", TRAIN_CMD="true")
    assert "job 2 is submitted" in submitted.communicate(timeout=120)[0]
    assert [c.ask("squeue", "-h", "-o", "%i") for c in clusters] == ["1", "2"]
