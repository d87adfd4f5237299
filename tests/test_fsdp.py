"""FSDP's state as Accelerate and HF Trainer save it, sharded and whole, by three real ranks (tests/fsdp_trainers.py)."""

import json
import os
import shutil
from pathlib import Path

import torch
from runs import tree
from test_layout_changes import resumed_as_promised
from trainings import PROGRAMS, Trained, Training

KINDS = PROGRAMS["fsdp_trainers.py"]
ELEMENTS = 8 * 4 + 8 + 2 * 8 + 2


def test_fsdps_state_is_known_changed_and_resumed_from(trainings: Trained, tmp_path: Path) -> None:
    """One test, so that parallel workers do not each train for their share."""
    for kind in KINDS:
        it_is_shown(trainings.by(kind)[0].copied(tmp_path / kind))
    the_weights_come_out_the_same_sharded_and_whole(trainings, tmp_path)
    each_ranks_own_file_is_changed(trainings.by("accelerate-fsdp2")[0].root / "by-rank", tmp_path / "by-rank")
    a_file_of_another_save_is_seen(Training("hf_trainer-fsdp2", tmp_path / "hf_trainer-fsdp2"))
    resumed_as_promised("fsdp_trainers.py", trainings, tmp_path)


def it_is_shown(run: Training) -> None:
    assert json.loads(run.done("status", "--json"))["run"]["layout"] == run.layout
    found = json.loads(run.done("checkpoints", "--json"))["checkpoints"]
    assert [(c["step"], c["complete"]) for c in found] == [(int(run.called(n)), True) for n in (5, 10, 15, 20)]
    assert "nothing loads it" not in run.done("checkpoints")
    about = json.loads(run.done("inspect", run.called(10), "--json"))
    assert (about["world"], about["optimizers"]) == (3, ["AdamW"])
    assert about["weights"] == [{"part": "weights", "dtype": "float32", "elements": ELEMENTS}]
    assert {"by": "the optimizer", "step": 10} in about["steps"]
    labels = {site["label"] for site in about["lr"]}
    assert {f"optimizer.param_groups[{n}].{name}" for n in (0, 1) for name in ("lr", "initial_lr")} <= labels
    assert run.done("verify-checkpoint", "--deep", run.called(10)).count("sound to the last byte") == 1


def each_ranks_own_file_is_changed(root: Path, place: Path) -> None:
    run = Training("accelerate-fsdp2", root).copied(place)
    files = [run.dir / "checkpoints" / "checkpoint_0" / f"optimizer_0_rank{rank}.bin" for rank in range(3)]
    assert "lies there" not in run.done("checkpoints")
    before = tree(run.dir)
    run.done("scale-lr", "0.5", "-y")
    for file in files:
        groups = torch.load(file, weights_only=False)["param_groups"]
        assert [group["initial_lr"] for group in groups] == [5e-4, 1.5e-3]
    run.done("undo", "-y")
    assert tree(run.dir) == before
    assert "a rank's parts" in run.m4ops("extract", "0", "--out", str(place / "weights")).err
    assert "the optimizer cannot be reset in the checkpoint" in run.m4ops("reset-optimizer", "-y").err


def a_file_of_another_save_is_seen(run: Training) -> None:
    """The other save is there, or it is gone: then the optimizer's steps tell."""
    before, after = run.dir / "checkpoint-5", run.dir / "checkpoint-10"
    for rank, name in enumerate(("optimizer_0/__0_0.distcp", "optimizer_0/__1_0.distcp", "optimizer_0/__2_0.distcp")):
        kept = (after / name).read_bytes()
        shutil.copyfile(before / name, after / name)
        refused = run.m4ops("rewind", "--to", "10", "-y")
        assert f"{name}: holds the very same tensors as that of checkpoint-5" in " ".join(refused.err.split())
        before.rename(run.root / "aside")
        said = run.m4ops("verify-checkpoint", "10")
        assert (said.code, f"5 in __{rank}_0.distcp" in " ".join(said.out.split())) == (1, True)
        (run.root / "aside").rename(before)
        (after / name).write_bytes(kept)
    weights = "pytorch_model_fsdp_0/__1_0.distcp"
    shutil.copyfile(before / weights, after / weights)
    os.utime(after / weights, (1e9, 1e9))
    said = " ".join(run.m4ops("verify-checkpoint", "10").out.split())
    assert f"{weights}: holds the very same tensors as that of checkpoint-5" in said
    assert f"{weights}: was written before checkpoint-5 was saved" in said


def the_weights_come_out_the_same_sharded_and_whole(trainings: Trained, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    whole = trainings.by("accelerate-fsdp2-full")[0]
    saved = torch.load(whole.dir / "checkpoints" / "checkpoint_3" / "pytorch_model_fsdp.bin")
    for kind in KINDS:
        run = Training(kind, tmp_path / kind)
        run.done("extract", run.called(20), "--out", str(tmp_path / f"{kind}-weights"))
        loaded = load_file(tmp_path / f"{kind}-weights" / "model.safetensors")
        assert {name: tensor.shape for name, tensor in loaded.items()} == {n: t.shape for n, t in saved.items()}, kind
        if kind in ("accelerate-fsdp2", "accelerate-fsdp2-full"):  # the others were trained in another way
            assert all(torch.equal(tensor, saved[name]) for name, tensor in loaded.items()), kind
