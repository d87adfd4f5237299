"""When the disk is full, by what the run's saves take and by how often it saves."""

import json
import os
from pathlib import Path

import pytest
from runs import Run

from ops import disk
from ops.model import Checkpoint, Disk, Unknown

GB = 10**9
HOUR = 3600.0


def test_what_runs_out_first_decides_when() -> None:
    roomy = Disk(free=25 * GB, inodes=10_000, save_bytes=10 * GB, save_files=100, interval=HOUR, last=0.0)
    assert (roomy.saves_left, roomy.scarce) == (2, "bytes")
    assert roomy.seconds_left(0.0) == 3 * HOUR  # two fit, the third does not
    assert roomy.seconds_left(HOUR / 2) == 2.5 * HOUR
    assert roomy.seconds_left(100 * HOUR) == 2 * HOUR  # of a run that saves no more
    few = Disk(free=25 * GB, inodes=150, save_bytes=10 * GB, save_files=100, interval=HOUR, last=0.0)
    assert (few.saves_left, few.scarce) == (1, "inodes")
    assert Disk(free=25 * GB, save_bytes=10 * GB, save_files=100).saves_left == 2  # a file system without inodes
    assert Disk(free=GB).saves_left is None
    assert Disk(free=GB, save_bytes=GB).seconds_left(0.0) is None


def test_the_pace_and_the_size_are_those_of_the_newest_saves(tmp_path: Path) -> None:
    found = []
    for number, (saved, size) in enumerate([(0, 9), (50, 9), (60, 5), (70, 8), (80, 1)]):
        path = tmp_path / f"opt_step-{number}"
        (path / "accelerator_state").mkdir(parents=True)
        (path / "accelerator_state" / "weights").write_bytes(os.urandom(size * 8192))
        found.append(Checkpoint(number, path, saved=float(saved)))
    torn = Checkpoint(9, tmp_path / "opt_step-9", ("finished-saving is missing",), saved=81.0)
    seen = disk.read(tmp_path, (*found, torn))
    assert isinstance(seen, Disk)
    assert (seen.save_bytes, seen.save_files) == (8 * 8192, 3)
    assert (seen.interval, seen.last) == (10.0, 80.0)
    assert 0 < seen.free <= os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize * 2
    assert isinstance(disk.read(tmp_path / "gone", ()), Unknown)
    assert disk.read(tmp_path, Unknown("no access")) == Disk(seen.free, seen.inodes)


def test_status_and_checkpoints_say_when_no_save_fits(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (10, 20, 30, 40):
        os.utime(run.dir / f"opt_step-{step}" / "finished-saving", (1_700_000_000 + 60 * step,) * 2)
    told = json.loads(run.m4ops("checkpoints", "--json").out)["disk"]
    assert told["save_interval_seconds"] == 600
    assert told["save_bytes"] > 0
    assert "more fit" in run.m4ops("status").out and "no room" not in run.m4ops("status").out  # for years
    about = os.statvfs(run.dir)
    full = os.statvfs_result((*about[:4], 2 * told["save_bytes"] // about.f_frsize, *about[5:]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    for command in ("status", "checkpoints"):
        said = run.m4ops(command).out
        assert "2 more fit" in said
        assert "no room for a save in 20 min, at one every 10 min" in said
    assert 'm4ops prune --keep "last 2" would free' in said and "(2 checkpoints): 2 more saves" in said
    (run.dir / "m4ops.toml").write_text('keep = ["last 3"]')
    assert "(1 checkpoint): 1 more save" in run.m4ops("checkpoints").out
    run.done("prune", "-y")
    assert "m4ops prune --empty-trash would free" in run.m4ops("checkpoints").out
