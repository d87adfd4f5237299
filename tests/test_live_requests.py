"""What a teammate asks for, live: a second user of the machine, the owner's check, and a real Slurm that obeys the owner."""

import json
import os
import stat
from pathlib import Path

import pytest
from live_run import LiveRun
from slurm_lab import Cluster

MATE, STRANGER = "nobody", "daemon"


@pytest.fixture
def run(slurm: Cluster) -> LiveRun:
    """Root's run, as an owner opens it to a team: the group may write, and anybody may leave a request."""
    made = LiveRun(slurm).make()
    with (made.dir / "m4ops.toml").open("a") as config:
        config.write(f'operators = ["{MATE}"]\n')
    requests = made.dir / ".m4ops" / "requests"
    requests.mkdir(parents=True)
    requests.chmod(0o1777)
    for folder in (made.dir, made.dir / ".m4ops"):
        folder.chmod(0o2775)
    return made


def asks(run: LiveRun, verb: str) -> None:
    """The teammate asks, the owner's next tick answers."""
    said = run.m4ops("request", verb, "--why", f"because of {verb}", user=MATE)
    assert said.code == 0 and f"asked root to {verb}" in said.err, said.err
    told = run.m4ops("check").err
    assert f"request of {MATE} to {verb} (because of {verb}): done: change" in told, told


def test_a_teammate_saves_stops_and_starts_a_run_of_somebody_else(run: LiveRun) -> None:
    array = run.train("--array=1-9%1", "-N2")
    run.trains(2)
    refused = run.m4ops("hold", "-y", user=MATE)
    assert refused.code == 1 and "root" in refused.err, "by themselves they may not"

    asks(run, "save")
    assert "** Saving finished at" in run.log
    asks(run, "hold")
    assert run.queue()[f"{array}_[2-9%1]"][1].startswith("JobHeld")
    run.trains(1)
    asks(run, "stop")
    assert list(run.queue()) == [f"{array}_[2-9%1]"], "the running task has saved and ended"
    pointed = Path((run.dir / "latest_opt_step_dir").read_text())
    asks(run, "release")
    run.sees(lambda: f"Resuming from {pointed}" in run.log)
    run.trains(1)

    shown = run.done("request", user=MATE).out
    assert [line.split()[:3] for line in shown.splitlines()[1:]] == [
        ["done", verb, MATE] for verb in ("save", "hold", "stop", "release")
    ]
    titles = [c["title"] for c in json.loads(run.done("history", "--json").out)["changes"]]
    assert [f"asked for by {MATE}: because of" in title for title in titles] == [True] * 4
    for path in (run.dir / ".m4ops", run.dir / ".m4ops" / "journal.jsonl"):
        assert path.stat().st_mode & stat.S_IWGRP, f"{path} was the group's to write"


def test_nobody_else_gets_their_way_not_even_with_a_forged_file(run: LiveRun) -> None:
    array = run.train("--array=1-3%1", "-N1")
    run.trains(1)
    said = run.m4ops("request", "stop", "--why", "I would like to", user=STRANGER)
    assert said.code == 1 and f"{STRANGER} is not among the operators" in said.err

    run.m4ops("request", "hold", "--why", "x", user=MATE)
    (left,) = (run.dir / ".m4ops" / "requests").glob("*.json")
    assert left.stat().st_uid == 65534
    text = json.loads(left.read_text())
    left.unlink()
    forged = left.with_name(f"{int(left.name[:13]) + 1:013d}{left.name[13:]}")
    forged.write_text(json.dumps({**text, "user": MATE, "uid": 65534, "verb": "stop"}))
    os.chown(forged, 1, 1)
    late = left.with_name(f"{int(left.name[:13]) + 2:013d}{left.name[13:]}")
    late.write_text(json.dumps({**text, "expires": text["time"]}))
    os.chown(late, 65534, 65534)
    told = run.m4ops("check").err
    assert f"request of {STRANGER} to stop (x): refused: {STRANGER} is not among the operators" in told
    assert f"request of {MATE} to hold (x): expired" in told
    assert run.queue()[f"{array}_[2-3%1]"][1] == "JobArrayTaskLimit"
    run.trains(1)
