"""Ray Train's own checkpoint manager goes on from what m4ops left (tests/ray_trainer.py)."""

import json
import subprocess
import sys
from pathlib import Path

from runs import Run, tree

TRAINER = Path(__file__).with_name("ray_trainer.py")


def train(run: Run) -> dict[int, list[float]]:
    """Each step that was made, and every group's LR in it."""
    record = run.root / "record"
    argv = [sys.executable, str(TRAINER), str(run.root), run.dir.name, str(record)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {row["step"]: row["lrs"] for row in map(json.loads, record.read_text().splitlines())}


def test_rewound_with_half_the_lr(tmp_path: Path) -> None:
    run = Run(tmp_path)
    unedited, before = train(run), tree(run.dir)
    run.done("rewind", "--to", "1", "--scale-lr", "0.5", "-y")
    run.done("undo", "-y")
    assert tree(run.dir) == before
    (run.dir / "checkpoint_2026-01-01_00-00-20.000000").rename(tmp_path / "lost")
    assert "Ray refuses to start" in run.m4ops("status").out
    found = json.loads(run.done("checkpoints", "--json").out)["checkpoints"]
    assert [(c["step"], c["complete"]) for c in found] == [(0, True), (1, True), (2, True), (3, False)]
    (tmp_path / "lost").rename(run.dir / "checkpoint_2026-01-01_00-00-20.000000")
    run.done("rewind", "--to", "1", "--scale-lr", "0.5", "-y")
    resumed = train(run)
    assert list(resumed) == list(range(11, 21))
    assert all(lrs == [lr * 0.5 for lr in unedited[step]] for step, lrs in resumed.items())
