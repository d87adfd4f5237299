"""Megatron-LM, nanotron and Composer, whose resume takes what a small file or a link names: it goes on from what m4ops left.

The trainers are in tests/source_trainers.py.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import runs
import torch
from runs import Said, tree

TRAINER = Path(__file__).with_name("source_trainers.py")
POINTER = {"megatron": "latest_checkpointed_iteration.txt", "nanotron": "latest.txt", "composer": "latest-rank0.pt"}
SAVED = {"megatron": "iter_{:07d}", "nanotron": "{}", "composer": "ep0-ba{}-rank0.pt"}


@dataclass(frozen=True)
class Training:
    framework: str
    root: Path

    @property
    def dir(self) -> Path:
        return self.root / "run"

    @property
    def pointer(self) -> Path:
        return self.dir / POINTER[self.framework]

    def at(self, step: int) -> Path:
        return self.dir / SAVED[self.framework].format(step)

    def train(self, *options: str) -> dict[int, list[float]]:
        """Each step that was made, and every group's LR in it."""
        self.dir.mkdir(exist_ok=True)
        record = self.root / "record"
        argv = [sys.executable, str(TRAINER), self.framework, str(self.dir), str(record), *options]
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return {row["step"]: row["lrs"] for row in map(json.loads, record.read_text().splitlines())}

    def says(self) -> str:
        """What the pointer names."""
        if self.framework == "composer":
            return os.readlink(self.pointer).removeprefix("ep0-ba").removesuffix("-rank0.pt")
        return self.pointer.read_text()

    def m4ops(self, *words: str) -> Said:
        return runs.m4ops("--run", str(self.dir), *words)

    def done(self, *words: str) -> str:
        said = self.m4ops(*words)
        assert said.code == 0, said.err
        return said.out


@pytest.fixture(scope="module", params=list(POINTER))
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Training, dict[int, list[float]]]:
    training = Training(request.param, tmp_path_factory.mktemp(request.param))
    return training, training.train()


@pytest.fixture
def run(trained: tuple[Training, dict[int, list[float]]], tmp_path: Path) -> Training:
    shutil.copytree(trained[0].dir, tmp_path / "run", symlinks=True)
    return Training(trained[0].framework, tmp_path)


def test_rewound_with_half_the_lr(trained: tuple[Training, dict[int, list[float]]], run: Training) -> None:
    before, unedited = tree(run.dir), trained[1]
    wish = ("rewind", "--to", "10", "--scale-lr", "0.5", "-y")
    run.done(*wish)
    run.done("undo", "-y")
    assert tree(run.dir) == before
    run.done(*wish)
    assert run.says() == "10"
    assert not run.at(15).exists()
    resumed = run.train("--resume")
    assert list(resumed) == list(range(11, 21))
    for step, lrs in list(resumed.items())[
        run.framework == "nanotron" :
    ]:  # it starts a resume with its warm-up's first LR
        assert lrs == pytest.approx([lr * 0.5 for lr in unedited[step]], rel=1e-12), step


def test_what_is_shown_of_it(run: Training) -> None:
    status = json.loads(run.done("status", "--json"))
    assert status["run"]["layout"] == run.framework
    found = json.loads(run.done("checkpoints", "--json"))["checkpoints"]
    assert [(c["step"], c["complete"]) for c in found] == [(step, True) for step in (5, 10, 15, 20)]
    about = json.loads(run.done("inspect", "10", "--json"))
    assert 10 in [said["step"] for said in about["steps"]]
    assert run.m4ops("verify-checkpoint", "--deep").code == 0


@pytest.mark.parametrize("trained", ["megatron", "nanotron"], indirect=True)
@pytest.mark.parametrize("said", ["", "ten", "7"])
def test_a_pointer_that_cannot_be_followed(run: Training, said: str) -> None:
    run.pointer.write_text(said)
    assert "BROKEN" in run.m4ops("status").out or "pointer-broken" in run.m4ops("status").out
    run.done("rewind", "--to", "latest", "-y")
    assert run.pointer.read_text() == "20"


@pytest.mark.parametrize("trained", ["composer"], indirect=True)
def test_a_link_that_leads_nowhere(run: Training) -> None:
    run.at(20).unlink()
    assert "which is not there" in run.m4ops("status").out
    run.done("rewind", "--to", "latest", "-y")
    assert run.says() == "15"
    assert run.pointer.resolve() == run.at(15)
    run.pointer.unlink()
    run.pointer.write_bytes(b"")
    assert "no symbolic link" in run.m4ops("status").out
    run.done("rewind", "--to", "10", "-y")
    assert run.says() == "10"
    run.done("undo", "-y")
    assert not run.pointer.is_symlink()
    run.pointer.unlink()
    run.done("rewind", "--to", "10", "-y")
    assert run.says() == "10"


def test_a_state_that_is_cut_off(run: Training) -> None:
    saved = run.at(10)
    inside = sorted(saved.rglob("*.pt")) if saved.is_dir() else [saved]
    file = next(path for path in inside if path.parent.name != "model")
    os.truncate(file, file.stat().st_size - 1)
    assert run.m4ops("verify-checkpoint", "10").code == 2
    refused = run.m4ops("rewind", "--to", "10", "-y")
    assert refused.code == 1
    assert file.name in refused.err


@pytest.mark.parametrize("trained", ["megatron"], indirect=True)
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
    for file in run.at(20).rglob("*.pt"):
        state = torch.load(file, weights_only=False)
        state["args"] = argparse.Namespace(**{**vars(state["args"]), **flags})
        torch.save(state, file)
    assert words in run.done("scale-lr", "0.5", "-n")
