"""torchtitan resumes from what m4ops left of its distributed checkpoints: the step, the LR, the moments."""

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from runs import Run, tree
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

TRAINER = Path(__file__).with_name("titan_trainer.py")


def train(run: Run, steps: int, *options: str) -> dict[int, list[float]]:
    """Each step that torchtitan made, and every group's LR in it."""
    record = run.root / "record.jsonl"
    argv = [sys.executable, str(TRAINER), str(run.dir), str(steps), str(record), *options]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return {row["step"]: row["lrs"] for row in map(json.loads, record.read_text().splitlines())}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, dict[int, list[float]]]:
    """Steps 5 to 20, every scheduler's state in full, and the LR of every step."""
    run = Run(tmp_path_factory.mktemp("titan"))
    return run, train(run, 20, "old")


@pytest.fixture
def run(saved: tuple[Run, dict[int, list[float]]], tmp_path: Path) -> Run:
    shutil.copytree(saved[0].dir, tmp_path / saved[0].dir.name)
    return Run(tmp_path)


def tensors(run: Run, step: int) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings(action="ignore"):  # that no process group is there
        loaded = _load_state_dict_from_keys(checkpoint_id=str(run.dir / "checkpoint" / f"step-{step}"))
    flat = {
        f"{top}.{key}": value
        for top, inside in loaded.items()
        if isinstance(inside, dict)
        for key, value in inside.items()
    }
    return {key: value for key, value in flat.items() if isinstance(value, torch.Tensor)}


def test_rewound_with_half_the_lr(run: Run, saved: tuple[Run, dict[int, list[float]]]) -> None:
    before = tree(run.dir)
    run.done("rewind", "--to", "10", "--scale-lr", "0.5", "-y")
    assert sorted(p.name for p in (run.dir / "checkpoint").iterdir()) == ["step-10", "step-5"]
    run.done("undo", "-y")
    assert tree(run.dir) == before
    run.done("rewind", "--to", "10", "--scale-lr", "0.5", "-y")
    steps = train(run, 10, "old")
    assert list(steps) == list(range(11, 21))
    for step, lrs in steps.items():
        assert lrs == [lr * 0.5 for lr in saved[1][step]], step
    assert "starts at step 20" in run.m4ops("status").out


def test_the_weights_come_out(run: Run, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    run.done("extract", "20", "--out", str(tmp_path / "weights"))
    loaded = load_file(tmp_path / "weights" / "model.safetensors")
    with warnings.catch_warnings(action="ignore"):
        saved = _load_state_dict_from_keys(checkpoint_id=str(run.dir / "checkpoint" / "step-20"))
    assert sorted(loaded) == ["0.bias", "0.weight", "1.bias", "1.weight"]
    assert all(torch.equal(tensor, saved[name]) for name, tensor in loaded.items())
    refused = run.m4ops("extract", "20", "--to-unwrapped-model")
    assert refused.code == 1
    assert "--out" in refused.err


def test_from_0_3_on_the_lr_comes_from_the_config(tmp_path: Path) -> None:
    """The scheduler's step alone is saved: an LR in the checkpoint would act on one step, so it is not changed there."""
    run = Run(tmp_path)
    unedited = train(run, 12)
    refused = run.m4ops("scale-lr", "0.5", "-y")
    assert refused.code == 1
    assert "optimizer.lr" in refused.err
    run.done("rewind", "--to", "5", "-y")
    assert train(run, 3) == {step: unedited[step] for step in (6, 7, 8)}
    shutil.copytree(run.dir / "checkpoint" / "step-5", run.dir / "checkpoint" / "step-9.old")
    assert "step-9.old counts as step-9" in run.m4ops("status").out


def test_a_fresh_optimizer_and_a_value_cut_off(run: Run) -> None:
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


def test_only_the_lr_is_another(run: Run) -> None:
    was = tensors(run, 20)
    run.done("scale-lr", "0.25", "-y")
    now = tensors(run, 20)
    assert was
    assert all(torch.equal(value, now[key]) for key, value in was.items())
