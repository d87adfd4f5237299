"""HF Trainer, Accelerate's automatic naming and Lightning: the library itself resumes from what m4ops left.

Each is trained once by a process of its own (tests/framework_trainers.py), 20 steps with a save every five, and copied for each
test.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import runs
from runs import Said, changed, tree

TRAINER = Path(__file__).with_name("framework_trainers.py")
WANTED = {"hf_trainer": "10", "accelerate": "1", "lightning": "10"}
"""What the checkpoint after step 10 is called in each."""


@dataclass(frozen=True)
class Step:
    """What the optimizer really had when it made this step."""

    step: int
    lrs: list[float]
    digest: str


@dataclass(frozen=True)
class Training:
    """A folder that a framework trained in, and what it did."""

    framework: str
    root: Path

    @property
    def dir(self) -> Path:
        return self.root / "run"

    def train(self, *options: str) -> dict[int, Step]:
        """Train, and give each optimizer step by its number."""
        record = self.root / f"record{len(list(self.root.glob('record*')))}"
        command = [sys.executable, str(TRAINER), self.framework, str(self.dir), str(record), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        return {s.step: s for s in (Step(**json.loads(line)) for line in record.read_text().splitlines())}

    def m4ops(self, *words: str) -> Said:
        return runs.m4ops("--run", str(self.dir), *words)

    def done(self, *words: str) -> str:
        said = self.m4ops(*words)
        assert said.code == 0, said.err
        return said.out


@pytest.fixture(scope="module", params=list(WANTED))
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Training, dict[int, Step]]:
    training = Training(request.param, tmp_path_factory.mktemp(request.param))
    return training, training.train()


@pytest.fixture
def copied(trained: tuple[Training, dict[int, Step]], tmp_path: Path) -> Training:
    shutil.copytree(trained[0].dir, tmp_path / "run")
    return Training(trained[0].framework, tmp_path)


def test_rewound_with_half_the_lr_the_library_resumes_as_promised(
    trained: tuple[Training, dict[int, Step]], copied: Training
) -> None:
    unedited, before = trained[1], tree(copied.dir)
    wish = ("rewind", "--to", WANTED[copied.framework], "--scale-lr", "0.5", "-y")
    copied.done(*wish)
    assert changed(before, tree(copied.dir))
    copied.done("undo", "-y")
    assert changed(before, tree(copied.dir)) == set()
    copied.done(*wish)
    assert "· ok" in copied.done("status").partition("pointer")[2].partition("\n")[0]
    resumed = copied.train("--resume")
    assert list(resumed) == list(range(11, 21))
    for number, step in resumed.items():
        assert step.lrs == pytest.approx([lr * 0.5 for lr in unedited[number].lrs], rel=1e-12), f"step {number}"
    assert resumed[11].digest == unedited[11].digest  # weights and moments as they were
    assert resumed[12].digest != unedited[12].digest
    assert copied.m4ops("verify-checkpoint").code == 0


def test_what_is_shown_of_it(copied: Training) -> None:
    status, found = json.loads(copied.done("status", "--json")), json.loads(copied.done("checkpoints", "--json"))
    assert status["run"]["layout"] == copied.framework
    assert [c["step"] for c in found["checkpoints"]] == (
        [0, 1, 2, 3] if copied.framework == "accelerate" else [5, 10, 15, 20]
    )
    assert all(c["complete"] and c["wandb_id"] is None for c in found["checkpoints"])
    about = json.loads(copied.done("inspect", WANTED[copied.framework], "--json"))
    assert about["layout"] == copied.framework
    assert 10 in [s["step"] for s in about["steps"]]
    labels = " ".join(site["label"] for site in about["lr"])
    assert "param_groups[1].initial_lr" in labels
    assert "base_lrs[0]" in labels
    assert "hyper_parameters" not in labels  # Lightning's note of what the module was made with: no resume reads it
    sound = copied.m4ops("verify-checkpoint", "--deep")
    assert (sound.code, sound.out.count("sound")) == (0, 3)


def test_a_damaged_file_is_found_and_no_rewind_goes_there(copied: Training) -> None:
    patterns = (f"*[-_]{WANTED[copied.framework]}/optimizer.*", f"*step={WANTED[copied.framework]}.ckpt")
    file = next(path for pattern in patterns for path in copied.dir.rglob(pattern))
    os.truncate(file, file.stat().st_size - 1)
    step = WANTED[copied.framework]
    assert copied.m4ops("verify-checkpoint", step).code == 2
    refused = copied.m4ops("rewind", "--to", step, "-y")
    assert refused.code == 1
    assert file.name in refused.err


def test_a_fresh_optimizer(copied: Training) -> None:
    before = tree(copied.dir)
    copied.done("rewind", "--to", WANTED[copied.framework], "--reset-optimizer", "-y")
    about = json.loads(copied.done("inspect", "--json"))
    assert {s["step"] for s in about["steps"] if s["by"] == "the optimizer"} == {0}
    copied.done("undo", "-y")
    assert changed(before, tree(copied.dir)) == set()


def test_pruned_by_rule(copied: Training) -> None:
    copied.done("prune", "--keep", "last 2", "-y")
    left = json.loads(copied.done("checkpoints", "--json"))["checkpoints"]
    assert [c["step"] for c in left] == ([2, 3] if copied.framework == "accelerate" else [15, 20])


def test_a_later_checkpoint_cannot_stay_where_the_highest_is_taken(copied: Training) -> None:
    refused = copied.m4ops("rewind", "--to", WANTED[copied.framework], "--keep-discarded", "-y")
    assert refused.code != 0
    assert "without --keep-discarded" in refused.err


@pytest.mark.parametrize("trained", ["hf_trainer"], indirect=True)
def test_an_edited_checkpoint_keeps_its_place_in_the_order_of_time(copied: Training) -> None:
    """HF Trainer deletes the folder with the oldest time first: an edit must not make an old checkpoint the newest."""
    found = json.loads(copied.done("checkpoints", "--json"))["checkpoints"]
    folders = [Path(c["path"]) for c in found]
    for age, folder in enumerate(reversed(folders)):
        os.utime(folder, (1e9, 1e9 - 60 * age))
    before = [f.stat().st_mtime_ns for f in folders]
    first, second = (str(c["step"]) for c in found[:2])
    copied.done("scale-lr", "0.5", "--at", first, "-y")
    copied.done("reset-optimizer", "--at", second, "-y")
    assert [f.stat().st_mtime_ns for f in folders] == before
    copied.done("undo", "-y")
    copied.done("undo", "-y")
    assert [f.stat().st_mtime_ns for f in folders] == before


@pytest.mark.parametrize("trained", ["accelerate"], indirect=True)
def test_what_accelerate_would_take_for_a_checkpoint_goes_with_a_rewind(copied: Training) -> None:
    saves = copied.dir / "checkpoints"
    shutil.copytree(saves / "checkpoint_3", saves / "checkpoint_7.bak")
    assert "checkpoint_7.bak has the highest number" in copied.done("status")
    copied.done("rewind", "--to", "2", "-y")
    assert sorted(os.listdir(saves)) == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]
    assert sorted(os.listdir(copied.dir / "discarded" / "exp_1")) == ["checkpoint_3", "checkpoint_7.bak"]


@pytest.mark.parametrize("trained", ["lightning"], indirect=True)
def test_the_copy_that_lightning_resumes_from_is_taken_back_only_while_it_is_that(copied: Training) -> None:
    wish = ("rewind", "--to", "10", "--reset-optimizer", "--scale-lr", "0.5", "-y")
    copied.done(*wish)
    last, own = copied.dir / "last-v1.ckpt", copied.dir / "epoch=0-step=10.ckpt"
    assert last.read_bytes() == own.read_bytes()
    kept = last.read_bytes()
    shutil.copyfile(copied.dir / "discarded" / "exp_1" / "last.ckpt", last)  # as if the training had saved again
    refused = copied.m4ops("undo", "-y")
    assert refused.code == 1
    assert "another file than the copy" in refused.err
    last.write_bytes(kept)
    copied.done("undo", "-y")


@pytest.mark.parametrize("trained", ["lightning"], indirect=True)
def test_under_slurm_lightning_takes_the_highest_hpc_file(copied: Training) -> None:
    for number, step in ((1, 15), (2, 20)):
        shutil.copyfile(copied.dir / f"epoch=0-step={step}.ckpt", copied.dir / f"hpc_ckpt_{number}.ckpt")
    assert "step 20" in copied.done("status")
    copied.done("rewind", "--to", "10", "-y")
    assert "step 10" in copied.done("status")
    copied.done("undo", "-y")
    copied.done("rewind", "--to", "15", "-y")
    assert sorted(p.name for p in copied.dir.glob("hpc*")) == ["hpc_ckpt_1.ckpt"]
    assert (copied.dir / "last-v1.ckpt").read_bytes() == (copied.dir / "hpc_ckpt_1.ckpt").read_bytes()
    shutil.copyfile(copied.dir / "hpc_ckpt_1.ckpt", copied.dir / "hpc_ckpt_9.ckpt.bak")
    assert "looks for that hpc_ckpt_K.ckpt" in copied.done("status")
    copied.done("rewind", "--to", "15", "-y")
    assert "step 15 · ok" in copied.done("status").replace("a resume starts at ", "")


@pytest.mark.parametrize("trained", ["lightning"], indirect=True)
def test_an_edit_of_an_older_last_file_does_not_make_it_the_newest(copied: Training) -> None:
    older = copied.dir / "last-v1.ckpt"
    shutil.copyfile(copied.dir / "epoch=0-step=10.ckpt", older)
    os.utime(older, (1e9, 1e9))
    for wish in (("scale-lr", "0.5"), ("reset-optimizer",)):
        copied.done(*wish, "--at", "10", "-y")
        assert "step 20 · ok" in copied.done("status").replace("a resume starts at ", "")
    assert older.stat().st_mtime > 1e9  # and yet a copy of it is seen to be stale
