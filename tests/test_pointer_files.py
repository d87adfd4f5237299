"""Megatron-LM, nanotron and Composer, whose resume takes what a small file or a link names (tests/source_trainers.py).

That they go on as promised from each change is in tests/test_layout_changes.py.
"""

import argparse
import json
import os
from pathlib import Path

import pytest
import torch
from trainings import PROGRAMS, Trained, Training

POINTER = {"megatron": "latest_checkpointed_iteration.txt", "nanotron": "latest.txt", "composer": "latest-rank0.pt"}
SAVED = {"megatron": "iter_{:07d}", "nanotron": "{}", "composer": "ep0-ba{}-rank0.pt"}


@pytest.fixture(params=PROGRAMS["source_trainers.py"])
def run(request: pytest.FixtureRequest, trainings: Trained, tmp_path: Path) -> Training:
    return trainings.by(request.param)[0].copied(tmp_path)


def pointer(run: Training) -> Path:
    return run.dir / POINTER[run.framework]


def saved(run: Training, step: int) -> Path:
    return run.dir / SAVED[run.framework].format(step)


def says(run: Training) -> str:
    """What the pointer names."""
    if run.framework == "composer":
        return os.readlink(pointer(run)).removeprefix("ep0-ba").removesuffix("-rank0.pt")
    return pointer(run).read_text()


def test_a_rewind_is_a_change_of_the_pointer(run: Training) -> None:
    run.done("rewind", "--to", "10", "-y")
    assert says(run) == "10"
    assert not saved(run, 15).exists()


def test_what_is_shown_of_it(run: Training) -> None:
    status = json.loads(run.done("status", "--json"))
    assert status["run"]["layout"] == run.framework
    found = json.loads(run.done("checkpoints", "--json"))["checkpoints"]
    assert [(c["step"], c["complete"]) for c in found] == [(step, True) for step in (5, 10, 15, 20)]
    about = json.loads(run.done("inspect", "10", "--json"))
    assert 10 in [said["step"] for said in about["steps"]]
    scheduler = "Megatron-LM's scheduler" if run.framework == "megatron" else "LambdaLR or MultiplicativeLR"
    assert about["schedulers"] == [scheduler]
    ranks = 2 if run.framework == "megatron" else 1
    assert about["weights"] == [{"part": "weights", "dtype": "float32", "elements": 10 * ranks}]
    assert run.m4ops("verify-checkpoint", "--deep").code == 0


@pytest.mark.parametrize("run", ["megatron", "nanotron"], indirect=True)
@pytest.mark.parametrize("said", ["", "ten", "7"])
def test_a_pointer_that_cannot_be_followed(run: Training, said: str) -> None:
    pointer(run).write_text(said)
    assert "BROKEN" in run.m4ops("status").out or "pointer-broken" in run.m4ops("status").out
    run.done("rewind", "--to", "latest", "-y")
    assert pointer(run).read_text() == "20"


@pytest.mark.parametrize("run", ["composer"], indirect=True)
def test_a_link_that_leads_nowhere(run: Training) -> None:
    saved(run, 20).unlink()
    assert "which is not there" in run.m4ops("status").out
    run.done("rewind", "--to", "latest", "-y")
    assert says(run) == "15"
    assert pointer(run).resolve() == saved(run, 15)
    pointer(run).unlink()
    pointer(run).write_bytes(b"")
    assert "no symbolic link" in run.m4ops("status").out
    run.done("rewind", "--to", "10", "-y")
    assert says(run) == "10"
    run.done("undo", "-y")
    assert not pointer(run).is_symlink()
    pointer(run).unlink()
    run.done("rewind", "--to", "10", "-y")
    assert says(run) == "10"


def test_a_state_that_is_cut_off(run: Training) -> None:
    place = saved(run, 10)
    inside = sorted(place.rglob("*.pt")) if place.is_dir() else [place]
    file = next(path for path in inside if path.parent.name != "model")
    os.truncate(file, file.stat().st_size - 1)
    assert run.m4ops("verify-checkpoint", "10").code == 2
    refused = run.m4ops("rewind", "--to", "10", "-y")
    assert refused.code == 1
    assert file.name in refused.err


@pytest.mark.parametrize("run", ["megatron"], indirect=True)
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"use_checkpoint_opt_param_scheduler": False}, "AssertionError"),
        (
            {"use_checkpoint_opt_param_scheduler": False, "override_opt_param_scheduler": True},
            "--override-opt_param-scheduler",
        ),
    ],
)
def test_megatron_is_told_by_its_flags_whose_lr_counts(run: Training, flags: dict[str, bool], words: str) -> None:
    for file in saved(run, 20).rglob("*.pt"):
        state = torch.load(file, weights_only=False)
        state["args"] = argparse.Namespace(**{**vars(state["args"]), **flags})
        torch.save(state, file)
    assert words in run.done("scale-lr", "0.5", "-n")


@pytest.mark.parametrize("run", ["megatron"], indirect=True)
def test_megatrons_schedule_is_moved_in_samples_also_when_it_was_moved_before(run: Training) -> None:
    for step in (5, 30, 8):
        run.done("shift-schedule", "--to-step", str(step), "-y")
        for file in saved(run, 20).rglob("*.pt"):
            assert torch.load(file, weights_only=False)["opt_param_scheduler"]["num_steps"] == 4 * step
    run.done("shift-schedule", "--to-step", "0", "-y")
    refused = run.m4ops("shift-schedule", "--to-step", "8", "-y")
    assert (refused.code, "0 samples after 0 steps" in refused.err) == (1, True)
