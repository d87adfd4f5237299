"""Copies that somebody made beside the checkpoints: what m4ops says of them, and what the frameworks really do."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from runs import Run
from torch.distributed import checkpoint as dcp
from transformers import TrainingArguments
from transformers.trainer_utils import get_last_checkpoint, rotate_checkpoints


def seen(folder: Path) -> dict[str, Any]:
    """The pointer as `m4ops checkpoints` tells it, with the effect of each stray by its name, and the findings of `check`."""
    pointer = json.loads(runs.m4ops("--run", str(folder), "checkpoints", "--json").out)["pointer"]
    strays = {Path(stray["path"]).name: stray["effect"] for stray in pointer["strays"]}
    findings = json.loads(runs.m4ops("--run", str(folder), "check", "--json").out)["findings"]
    return {**pointer, "strays": strays, "findings": {finding["kind"]: finding for finding in findings}}


def test_copies_of_m4s_checkpoints_and_where_they_do_no_harm(run: Run) -> None:
    for name in ("opt_step-40.bad", "opt_step-40 copy", "old_opt_step-30", "discarded/opt_step-10.orig"):
        (run.dir / name).mkdir(parents=True)
    (run.dir / "opt_step-10.txt").touch()
    found = seen(run.dir)
    assert found["strays"].keys() == {"opt_step-40.bad", "opt_step-40 copy", "old_opt_step-30"}
    assert "ValueError" in found["strays"]["opt_step-40.bad"]
    assert "step 30" in found["strays"]["old_opt_step-30"]
    finding = found["findings"]["stray-checkpoint"]
    assert finding["severity"] == "WARNING"
    (command,) = finding["actions"]
    subprocess.run(["sh", "-c", command], check=True)
    assert seen(run.dir)["strays"] == {}
    assert "stray-checkpoint" not in seen(run.dir)["findings"]


def accelerator(folder: Path, total_limit: int | None = None) -> Accelerator:
    naming = ProjectConfiguration(str(folder), automatic_checkpoint_naming=True, total_limit=total_limit)
    made = Accelerator(cpu=True, project_config=naming)
    model = torch.nn.Linear(2, 1)
    made.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    return made


def test_copies_of_accelerates_checkpoints(tmp_path: Path) -> None:
    trainer = accelerator(tmp_path)
    for _ in range(3):
        trainer.save_state()
    saves = tmp_path / "checkpoints"
    assert seen(tmp_path)["strays"] == {}
    shutil.copytree(saves / "checkpoint_0", saves / "checkpoint_0_old")
    found = seen(tmp_path)
    assert (found["step"], found["problem"]) == (2, "")
    assert "total_limit deletes it" in found["strays"]["checkpoint_0_old"]
    assert "stray-checkpoint" in found["findings"]
    limited = accelerator(tmp_path, total_limit=3)
    limited.project_configuration.iteration = 3
    limited.save_state()
    assert not (saves / "checkpoint_0_old").exists() and not (saves / "checkpoint_0").exists()

    (saves / "checkpoint_3").rename(saves / "kept")
    shutil.copytree(saves / "checkpoint_2", saves / "checkpoint_2.rewound")
    (saves / "kept").rename(tmp_path / "kept")
    listed = sorted(os.listdir(saves))
    taken: list[str] = []
    for order in (listed, listed[::-1]):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("accelerate.accelerator.os.listdir", lambda _, order=order: order)
            patch.setattr("accelerate.accelerator.load_accelerator_state", lambda at, *_, **__: taken.append(at) or {})
            accelerator(tmp_path).load_state()
    assert {Path(place).name for place in taken} == {"checkpoint_2", "checkpoint_2.rewound"}
    found = seen(tmp_path)
    assert "which of them load_state takes is chance" in found["problem"]
    assert found["findings"]["pointer-broken"]["severity"] == "CRITICAL"
    (saves / "notes").touch()
    assert "IndexError" in seen(tmp_path)["problem"]
    with pytest.raises(IndexError):
        accelerator(tmp_path).load_state()


def hf_trainer(folder: Path, steps: tuple[int, ...], limit: int | None) -> None:
    for step in steps:
        place = folder / f"checkpoint-{step}"
        place.mkdir()
        (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))
        torch.save(TrainingArguments(output_dir=str(folder), save_total_limit=limit), place / "training_args.bin")
        for name in ("optimizer.pt", "scheduler.pt", "pytorch_model.bin"):
            torch.save({}, place / name)
        os.utime(place, (step, step))


@pytest.mark.parametrize("limit", [None, 2])
def test_copies_of_the_trainers_checkpoints(tmp_path: Path, limit: int | None) -> None:
    hf_trainer(tmp_path, (10, 20), limit)
    shutil.copytree(tmp_path / "checkpoint-10", tmp_path / "checkpoint-10.bak")  # with the times of what was copied
    for name in ("tmp-checkpoint-30", "old-checkpoint-5"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-notes.txt").touch()
    found = seen(tmp_path)
    assert (found["step"], found["problem"]) == (20, "")
    assert get_last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-20")
    assert list(found["strays"]) == ([] if limit is None else ["checkpoint-10.bak"])
    assert ("stray-checkpoint" in found["findings"]) == (limit is not None)
    rotate_checkpoints(str(tmp_path), save_total_limit=limit and 1, use_mtime=True)
    assert (tmp_path / "checkpoint-10.bak").exists() == (limit is None)
    assert (tmp_path / "tmp-checkpoint-30").exists() and (tmp_path / "old-checkpoint-5").exists()


def test_copies_of_torchtitans_checkpoints(tmp_path: Path) -> None:
    for step in (5, 10):
        state = {"w": torch.rand(3), "train_state": {"step": step}}
        dcp.save(state, checkpoint_id=str(tmp_path / f"step-{step}"), no_dist=True)
    (tmp_path / "step-5.old").mkdir()
    shutil.copytree(tmp_path / "step-10", tmp_path / "my-step-10")
    found = seen(tmp_path)
    assert (found["step"], found["problem"]) == (10, "")
    assert found["strays"].keys() == {"step-5.old", "my-step-10"}
    (tmp_path / "step-10").rename(tmp_path / "ten")
    assert "my-step-10 counts as step-10, which is not there" in seen(tmp_path)["problem"]
