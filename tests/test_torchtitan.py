"""torchtitan's distributed checkpoints (tests/titan_trainer.py): what is changed in them, and what their reader then loads.

That torchtitan resumes from each change as promised is in tests/test_layout_changes.py.
"""

import json
import math
import os
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import tree
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from trainings import Trained, Training

from ops.executor import files


@pytest.fixture
def run(trainings: Trained, tmp_path: Path) -> Training:
    """Every scheduler's state in full."""
    return trainings.by("torchtitan-old")[0].copied(tmp_path)


def tensors(run: Training, step: int) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings(action="ignore"):  # that no process group is there
        loaded = _load_state_dict_from_keys(checkpoint_id=str(run.dir / "checkpoint" / f"step-{step}"))
    flat = {
        f"{top}.{key}": value
        for top, inside in loaded.items()
        if isinstance(inside, dict)
        for key, value in inside.items()
    }
    return {key: value for key, value in flat.items() if isinstance(value, torch.Tensor)}


def test_the_weights_come_out(run: Training, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run.done("extract", "20", "--out", str(tmp_path / "weights"))
    loaded = load_file(tmp_path / "weights" / "model.safetensors")
    with warnings.catch_warnings(action="ignore"):
        saved = _load_state_dict_from_keys(checkpoint_id=str(run.dir / "checkpoint" / "step-20"))
    assert sorted(loaded) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert all(torch.equal(tensor, saved[name]) for name, tensor in loaded.items())
    weights = json.loads(run.done("inspect", "--json"))["weights"]
    assert weights == [{"part": "weights", "dtype": "float32", "elements": sum(t.numel() for t in loaded.values())}]
    refused = run.m4ops("extract", "20", "--to-unwrapped-model")
    assert refused.code == 1
    assert "--out" in refused.err


def test_a_rewind_leaves_what_torchtitan_takes_for_the_last(trainings: Trained, tmp_path: Path) -> None:
    run = trainings.by("torchtitan")[0].copied(tmp_path)
    run.done("rewind", "--to", "10", "-y")
    assert sorted(p.name for p in (run.dir / "checkpoint").iterdir()) == ["step-10", "step-5"]
    shutil.copytree(run.dir / "checkpoint" / "step-5", run.dir / "checkpoint" / "step-12.old")
    assert "step-12.old counts as step-12" in run.done("status")


def test_the_weights_alone_are_no_checkpoint_to_resume_from(run: Training) -> None:
    with warnings.catch_warnings(action="ignore"):
        checkpoint.save({"w": torch.ones(2)}, checkpoint_id=str(run.dir / "checkpoint" / "step-25"), no_dist=True)
    found = json.loads(run.done("checkpoints", "--json"))["checkpoints"]
    assert [(c["step"], c["complete"]) for c in found][-2:] == [(20, True), (25, False)]
    assert "the weights alone" in run.m4ops("rewind", "--to", "25", "-y").err
    (folder := run.dir / "checkpoint" / "step-30").mkdir()
    (folder / "model.safetensors.index.json").write_text("{}")
    assert "step-30, which holds the weights alone" in json.loads(run.done("status", "--json"))["pointer"]["problem"]
    run.done("rewind", "--to", "20", "-y")
    pointer = json.loads(run.done("status", "--json"))["pointer"]
    assert (pointer["step"], pointer["problem"]) == (20, "")


def test_a_fresh_optimizer_and_a_value_cut_off(run: Training) -> None:
    run.done("reset-optimizer", "-y")
    now = tensors(run, 20)
    moments = {key: value for key, value in now.items() if ".state" in key}
    assert moments
    assert not any(value.any() for value in moments.values())
    file = run.dir / "checkpoint" / "step-20" / "__0_0.distcp"
    assert run.m4ops("verify-checkpoint", "20", "--deep").code == 0
    at = file.read_bytes().rindex(b"/data/0") + 200
    with file.open("r+b") as damaged:
        damaged.seek(at)
        damaged.write(b"\xff\xff\xff\xff")
    assert run.m4ops("verify-checkpoint", "20", "--deep").code == 2
    os.truncate(file, file.stat().st_size - 1)
    assert "cut off" in run.m4ops("rewind", "--to", "20", "--keep-discarded").err
    assert run.m4ops("verify-checkpoint", "20").code == 2


def test_only_the_lr_is_another(run: Training) -> None:
    was = tensors(run, 20)
    run.done("scale-lr", "0.25", "-y")
    now = tensors(run, 20)
    assert was
    assert all(torch.equal(value, now[key]) for key, value in was.items())


@pytest.mark.parametrize("small", [1 << 20, 0])
def test_a_count_grows_in_the_room_that_its_value_has(
    small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file that is made anew, and in one of a size that is written in its place."""
    monkeypatch.setattr(files, "SMALL", small)
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000)
    for _ in range(300):
        optimizer.step()
        schedule.step()
    with warnings.catch_warnings(action="ignore"):
        state = {"optimizer": optimizer.state_dict(), "lr_scheduler": schedule.state_dict()}
        checkpoint.save(state, checkpoint_id=str(tmp_path / "run" / "step-300"), no_dist=True)
    run = Training("dcp", tmp_path)
    before = tree(run.dir)
    for step in (5, 70000, 300, 60000):
        run.done("shift-schedule", "--to-step", str(step), "-y")
        about = json.loads(run.done("inspect", "--json"))
        assert about["layout"] == "dcp"  # torchtitan calls its folders so, but keeps a state of its own in them
        assert {"by": "the scheduler", "step": step} in about["steps"]
        assert run.m4ops("verify-checkpoint", "--deep").code == 0
        with warnings.catch_warnings(action="ignore"):
            loaded = _load_state_dict_from_keys(checkpoint_id=str(run.dir / "step-300"))
        assert loaded["lr_scheduler"]["last_epoch"] == step
        assert loaded["lr_scheduler"]["_step_count"] == step + 1
    for _ in range(4):
        run.done("undo", "-y")
    assert tree(run.dir) == before


@pytest.mark.parametrize("one_file", [True, False])
def test_what_torch_itself_saved_is_scaled_undone_loaded_and_rewound(one_file: bool, tmp_path: Path) -> None:
    """All in one file; and each value in a file of its own, as many ranks share out what they hold alike.

    The latter is called as torch's own tutorial of distributed checkpoints calls it.
    """
    top, moments_key = ("app.", "optim") if not one_file else ("", "optimizer")
    net = torch.nn.Linear(6, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100, 1e-4)

    def state() -> dict[str, object]:
        weights, moments = get_state_dict(net, optimizer)
        found = {"model": weights, moments_key: moments, "lr_scheduler": schedule.state_dict()}
        return {"app": found} if top else found

    def train(steps: int) -> list[float]:
        used = []
        for _ in range(steps):
            used.append(optimizer.param_groups[0]["lr"])
            net(torch.ones(4, 6)).sum().backward()
            optimizer.step()
            schedule.step()
        return used

    def curve(step: int) -> float:
        return 1e-4 + (1e-3 - 1e-4) * (1 + math.cos(math.pi * step / 100)) / 2

    def resumed() -> list[float]:
        held: dict[str, Any] = state()
        with warnings.catch_warnings(action="ignore"):
            checkpoint.load(held, checkpoint_id=str(run.dir / "checkpoint_10"), no_dist=True)
        held = held["app"] if top else held
        set_state_dict(net, optimizer, model_state_dict=held["model"], optim_state_dict=held[moments_key])
        schedule.load_state_dict(held["lr_scheduler"])
        return train(5)

    run = Training("dcp", tmp_path)
    run.dir.mkdir()
    plain = []
    for step in (5, 10, 15):
        plain = train(5)
        with warnings.catch_warnings(action="ignore"):
            writer = checkpoint.FileSystemWriter(run.dir / f"checkpoint_{step}", single_file_per_rank=one_file)
            checkpoint.save(state(), storage_writer=writer, no_dist=True)
    before = tree(run.dir)
    about = json.loads(run.done("inspect", "--json"))
    assert (about["layout"], about["optimizers"]) == ("dcp", ["AdamW"])
    assert f"{top}{moments_key}.param_groups[0].lr" in [site["label"] for site in about["lr"]]
    from safetensors.torch import load_file

    run.done("extract", "15", "--out", str(tmp_path / "weights"))
    assert load_file(tmp_path / "weights" / "model.safetensors").keys() == {"weight", "bias"}
    assert about["weights"] == [{"part": "weights", "dtype": "float32", "elements": 14}]
    run.done("rewind", "--to", "10", "-y")
    assert sorted(p.name for p in run.dir.glob("checkpoint_*")) == ["checkpoint_10", "checkpoint_5"]
    planned = run.done("scale-lr", "0.25", "-y")
    shown = re.findall(r"→ ([\d.e-]+)", " ".join(planned.split()).partition("LR in the next steps: ")[2])[:5]
    assert [float(lr) for lr in shown] == pytest.approx([lr / 4 for lr in plain], rel=1e-5)
    assert resumed() == pytest.approx([lr / 4 for lr in plain], rel=1e-12)
    run.done("undo", "-y")
    run.done("reset-optimizer", "-y")
    assert resumed()[0] == plain[0]
    assert max(float(state["step"]) for state in optimizer.state.values()) == 5
    run.done("undo", "-y")
    run.done("shift-schedule", "--to-step", "300", "-y")
    assert resumed()[0] == pytest.approx(curve(300), rel=1e-12)
    run.done("undo", "-y")
    assert resumed() == plain
    run.done("undo", "-y")
    assert tree(run.dir) == before
    (run.dir / "checkpoint_15" / ".metadata").unlink()
    said = " ".join(run.m4ops("checkpoints").out.split())
    assert "the save did not end" in said
    assert "checkpoint_10" in json.loads(run.done("inspect", "--json"))["path"]
