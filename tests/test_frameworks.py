"""What m4ops shows of HF Trainer's, Accelerate's and Lightning's checkpoints, and what it keeps in mind of each when it edits them.

That the library resumes from each change as promised is in tests/test_layout_changes.py.
"""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
import torch
from runs import tree
from trainings import PROGRAMS, Trained, Training

AT = 10


@pytest.fixture(params=PROGRAMS["framework_trainers.py"])
def copied(request: pytest.FixtureRequest, trainings: Trained, tmp_path: Path) -> Training:
    return trainings.by(request.param)[0].copied(tmp_path)


def test_what_is_shown_of_it(copied: Training) -> None:
    status, found = json.loads(copied.done("status", "--json")), json.loads(copied.done("checkpoints", "--json"))
    assert status["run"]["layout"] == copied.framework
    assert (status["evals"], status["kill_switch"]) == (None, {"path": None, "set": False})  # it has none: not UNKNOWN
    shown = copied.done("status")
    assert "kill switch" not in shown
    assert 'none; m4ops.toml can name a file of them: evals = "…"' in shown
    assert [c["step"] for c in found["checkpoints"]] == (
        [0, 1, 2, 3] if copied.framework == "accelerate" else [5, 10, 15, 20]
    )
    assert all(c["complete"] and c["wandb_id"] is None for c in found["checkpoints"])
    assert "this run has no evaluations file" in copied.m4ops("trim-evals", "--to", "5").err
    about = json.loads(copied.done("inspect", copied.called(AT), "--json"))
    assert about["layout"] == copied.framework
    assert 10 in [s["step"] for s in about["steps"]]
    labels = " ".join(site["label"] for site in about["lr"])
    assert "param_groups[1].initial_lr" in labels
    assert "base_lrs[0]" in labels
    assert "hyper_parameters" not in labels  # Lightning's note of what the module was made with: no resume reads it
    sound = copied.m4ops("verify-checkpoint", "--deep")
    assert (sound.code, sound.out.count("sound")) == (0, 3)


def test_a_damaged_file_is_found_and_no_rewind_goes_there(copied: Training) -> None:
    patterns = (f"*[-_]{copied.called(AT)}/optimizer.*", f"*step={copied.called(AT)}.ckpt")
    file = next(path for pattern in patterns for path in copied.dir.rglob(pattern))
    os.truncate(file, file.stat().st_size - 1)
    step = copied.called(AT)
    assert copied.m4ops("verify-checkpoint", step).code == 2
    refused = copied.m4ops("rewind", "--to", step, "-y")
    assert refused.code == 1
    assert file.name in refused.err


def test_pruned_by_rule(copied: Training) -> None:
    copied.done("prune", "--keep", "last 2", "-y")
    left = json.loads(copied.done("checkpoints", "--json"))["checkpoints"]
    assert [c["step"] for c in left] == ([2, 3] if copied.framework == "accelerate" else [15, 20])


def test_a_later_checkpoint_cannot_stay_where_the_highest_is_taken(copied: Training) -> None:
    refused = copied.m4ops("rewind", "--to", copied.called(AT), "--keep-discarded", "-y")
    assert refused.code != 0
    assert "without --keep-discarded" in refused.err


@pytest.mark.parametrize("copied", ["lightning"], indirect=True)
def test_a_checkpoint_is_changed_twice_in_the_second_in_which_it_was_saved(copied: Training) -> None:
    """Lightning resumes from the newest file: an edit moves its time on by a second, and no further than it must."""
    files = sorted(copied.dir.glob("*.ckpt"), key=lambda file: file.stat().st_mtime_ns)
    now = time.time_ns()
    for age, file in enumerate(reversed(files)):
        os.utime(file, ns=(now, now - age * 10**6))
    before = tree(copied.dir)
    copied.done("scale-lr", "0.5", "-y")
    assert "was already changed" in copied.m4ops("scale-lr", "0.5", "-y").err
    copied.done("scale-lr", "0.5", "--again", "-y")
    assert "was already changed" in copied.m4ops("set-lr", "1e-4", "-y").err
    copied.done("undo", "-y")
    assert "was already changed" in copied.m4ops("scale-lr", "0.5", "-y").err
    copied.done("undo", "-y")
    assert tree(copied.dir) == before
    assert sorted(files, key=lambda file: file.stat().st_mtime_ns) == files
    copied.done("reset-optimizer", "-y")
    copied.done("undo", "-y")
    assert sorted(files, key=lambda file: file.stat().st_mtime_ns) == files
    copied.done("scale-lr", "0.5", "-y")


@pytest.mark.parametrize("copied", ["hf_trainer"], indirect=True)
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


@pytest.mark.parametrize("copied", ["hf_trainer"], indirect=True)
def test_without_a_log_its_checkpoint_tells_loss_and_lr(copied: Training) -> None:
    told = json.loads(copied.done("status", "--json"))
    assert (told["progress"]["step"], told["progress"]["total"]) == (20, 20)
    assert told["progress"]["loss"] > 0 and told["progress"]["lr"] is not None
    assert told["log"]["samples_from"].endswith("checkpoint-20/trainer_state.json")
    points = json.loads(copied.done("plot", "--json"))["branches"][0]["live"]
    assert [step for step, _ in points] == list(range(1, 21))


@pytest.mark.parametrize("copied", ["accelerate"], indirect=True)
def test_what_accelerate_would_take_for_a_checkpoint_goes_with_a_rewind(copied: Training) -> None:
    saves = copied.dir / "checkpoints"
    shutil.copytree(saves / "checkpoint_3", saves / "checkpoint_7.bak")
    assert "checkpoint_7.bak has the highest number" in copied.done("status")
    copied.done("rewind", "--to", "2", "-y")
    assert sorted(os.listdir(saves)) == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]
    assert sorted(os.listdir(copied.dir / "discarded" / "exp_1")) == ["checkpoint_3", "checkpoint_7.bak"]


@pytest.mark.parametrize("copied", ["lightning"], indirect=True)
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


@pytest.mark.parametrize("copied", ["lightning"], indirect=True)
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


@pytest.mark.parametrize("copied", ["lightning"], indirect=True)
def test_an_edit_of_an_older_last_file_does_not_make_it_the_newest(copied: Training) -> None:
    older = copied.dir / "last-v1.ckpt"
    shutil.copyfile(copied.dir / "epoch=0-step=10.ckpt", older)
    os.utime(older, (1e9, 1e9))
    for wish in (("scale-lr", "0.5"), ("reset-optimizer",)):
        copied.done(*wish, "--at", "10", "-y")
        assert "step 20 · ok" in copied.done("status").replace("a resume starts at ", "")
    assert older.stat().st_mtime > 1e9  # and yet a copy of it is seen to be stale


@pytest.mark.parametrize("copied", ["hf_trainer"], indirect=True)
def test_what_somebody_laid_into_a_checkpoint_is_no_damage(copied: Training) -> None:
    place = copied.dir / "checkpoint-20"
    torch.save({"logits": torch.tensor([float("-inf"), float("nan")] * 64)}, place / "eval_logits.pt")
    (place / "tokens.bin").write_bytes(b"\x01\x02 no torch file")
    found = json.loads(copied.m4ops("verify-checkpoint", "--deep", "20", "--json").out)
    assert found["verdict"] == "WARNING"
    (seen,) = found["checkpoints"]
    assert {fault["file"] for fault in seen["faults"]} == {"eval_logits.pt", "tokens.bin"}
    told = json.loads(copied.m4ops("check", "--json").out)["findings"]
    assert "checkpoint-damaged" not in {finding["kind"] for finding in told}
    os.truncate(place / "optimizer.pt", 100)
    told = json.loads(copied.m4ops("check", "--json").out)["findings"]
    assert "checkpoint-damaged" in {finding["kind"] for finding in told}
