"""Ray Train's snapshot names every checkpoint, and each must be there (tests/ray_trainer.py).

That its own checkpoint manager goes on from each change as promised is in tests/test_layout_changes.py.
"""

import json
from pathlib import Path

from trainings import Trained


def test_a_checkpoint_that_is_listed_and_gone(trainings: Trained, tmp_path: Path) -> None:
    run = trainings.by("ray_train")[0].copied(tmp_path)
    (run.dir / "checkpoint_2026-01-01_00-00-20.000000").rename(tmp_path / "lost")
    assert "Ray refuses to start" in run.done("status")
    found = json.loads(run.done("checkpoints", "--json"))["checkpoints"]
    assert [(c["step"], c["complete"]) for c in found] == [(0, True), (1, True), (2, True), (3, False)]
    (tmp_path / "lost").rename(run.dir / "checkpoint_2026-01-01_00-00-20.000000")
    assert "Ray refuses" not in run.done("status")
