"""Whose checkpoints a folder holds, and what m4ops says where it cannot tell."""

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import runs
import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

from ops import evals
from ops.checkpoints import layouts
from ops.discovery import describe
from ops.errors import BadInput
from ops.model import Evals


def test_a_layout_that_nobody_knows_is_told_with_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "m4ops.toml").write_text('layout = "m5"\n')
    with pytest.raises(BadInput, match="no layout `m5`") as told:
        describe(tmp_path)
    assert "m4" in told.value.hint


def test_a_folder_without_checkpoints_is_an_m4_run_that_has_none_yet(tmp_path: Path) -> None:
    run, _ = describe(tmp_path)
    assert run.layout.name == "m4"
    assert layouts.read(run) == ()


def hf_trainer(folder: Path, step: int, state: str = '{"global_step": %d}') -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "trainer_state.json").write_text(state % step)
    return checkpoint


def test_two_layouts_in_one_folder_are_an_error_until_one_is_named(tmp_path: Path) -> None:
    hf_trainer(tmp_path, 5)
    save = tmp_path / "checkpoints" / "checkpoint_0"
    save.mkdir(parents=True)
    (save / "random_states_0.pkl").touch()
    with pytest.raises(BadInput, match="hf_trainer and accelerate both claim") as told:
        describe(tmp_path)
    assert "layout = " in told.value.hint
    (tmp_path / "m4ops.toml").write_text('layout = "accelerate"\n')
    assert describe(tmp_path)[0].layout.name == "accelerate"


def test_an_m4_run_stays_one_whatever_else_lies_in_it(tmp_path: Path) -> None:
    hf_trainer(tmp_path, 5)
    (tmp_path / "opt_step-10").mkdir()
    assert describe(tmp_path)[0].layout.name == "m4"


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        ('{\n  "epoch": 1.0,\n  "global_step": 6,\n  "log_history": []\n}', "says global_step 6, the folder says 5"),
        ('{\n  "epoch": 1.0,\n  "global_step": 5,\n  "log_his', "torn"),
        ('{\n  "epoch": 1.0\n}', "torn"),
        ("[]", "torn"),
        ("", "torn"),
    ],
)
def test_a_trainer_state_that_does_not_say_the_step(tmp_path: Path, state: str, problem: str) -> None:
    (hf_trainer(tmp_path, 5) / "trainer_state.json").write_text(state)
    run, _ = describe(tmp_path)
    (found,) = layouts.read(run) or ()
    assert problem in "; ".join(found.problems)


def test_a_trainer_state_torn_in_its_middle_is_seen_by_who_looks_into_it(tmp_path: Path) -> None:
    hf_trainer(tmp_path, 5, '{\n  "global_step": %d,\n  "log_history": [\0\0\0\0]\n}')
    found = layouts.read(describe(tmp_path)[0], frozenset({5})) or ()
    assert any("trainer_state.json is torn" in problem for problem in found[0].problems), found


def test_a_copy_of_a_state_file_beside_it_is_told_and_does_no_harm(tmp_path: Path) -> None:
    checkpoint = hf_trainer(tmp_path, 5)
    before = layouts.read(describe(tmp_path)[0]) or ()
    for name in ("scheduler.pt.orig", "rng_state_0.pth~", "model.safetensors.index.json"):
        (checkpoint / name).touch()
    found = layouts.read(describe(tmp_path)[0]) or ()
    assert before[0].idle == ()
    assert (found[0].idle, found[0].stray) == (("rng_state_0.pth~", "scheduler.pt.orig"), ())


def test_what_a_resume_of_hf_trainer_would_lose_in_silence_is_a_problem(tmp_path: Path) -> None:
    hf_trainer(tmp_path, 5)
    (found,) = layouts.read(describe(tmp_path)[0]) or ()
    told = "; ".join(found.problems)
    assert "fresh optimizer, and does not say so" in told
    assert "LR schedule anew, and does not say so" in told
    assert "weights (model.safetensors) are missing" in told


def test_the_table_of_the_documentation_names_layouts_that_there_are() -> None:
    text = (Path(__file__).parent.parent / "docs" / "layouts.md").read_text()
    named = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert set(named) <= set(layouts.NAMES)
    assert {"m4", "hf_trainer", "accelerate", "lightning"} <= set(named)


@pytest.mark.parametrize(
    ("layout", "model", "step"),
    [
        ("m4", "/runs/tr/opt_step-500/unwrapped_model", 500),
        ("m4", "/runs/tr/opt_step-500/", 500),
        ("m4", "/runs/tr/checkpoint-500", None),
        ("hf_trainer", "/runs/tr/checkpoint-500", 500),
        ("hf_trainer", "/runs/tr/checkpoint-500.bak", None),
        ("accelerate", "checkpoints/../checkpoints/checkpoint_3", 3),
        ("lightning", "/runs/tr/epoch=0-step=500.ckpt", 500),
        ("lightning", "/runs/tr/last.ckpt", None),
        ("torchtitan", "/runs/tr/checkpoint/step-500/hf", 500),
        ("megatron", "/runs/tr/iter_0000500", 500),
        ("composer", "/runs/tr/ep0-ba500-rank0.pt", 500),
        ("nanotron", "/runs/2024/model", None),
        ("ray_train", "/runs/tr/checkpoint_2026-01-01_00-00-20.000000", None),
    ],
)
def test_an_evaluation_is_of_the_checkpoint_that_its_model_lies_in(
    tmp_path: Path, layout: str, model: str, step: int | None
) -> None:
    (tmp_path / "evals.jsonl").write_text(json.dumps({"model_name_or_path": model, "task": "t", "score": "{}"}) + "\n")
    found = evals.read(tmp_path / "evals.jsonl", layouts.named(layout).LAYOUT)
    assert isinstance(found, Evals)
    assert [line.step for line in found.lines] == [step]


def test_evaluations_beyond_a_rewind_are_rolled_back_whatever_the_checkpoints_are_called(tmp_path: Path) -> None:
    for step in (5, 10):
        place = hf_trainer(tmp_path, step)
        for name in ("optimizer.pt", "scheduler.pt", "pytorch_model.bin"):
            torch.save(
                {"base_lrs": [1e-4]} if name == "scheduler.pt" else {"param_groups": [{"lr": 1e-4}]}, place / name
            )
    lines = [
        json.dumps({"model_name_or_path": f"{tmp_path}/checkpoint-{n}", "task": "t", "score": "{}"}) for n in (5, 10)
    ]
    (tmp_path / "evals.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "m4ops.toml").write_text('evals = "evals.jsonl"\n')
    said = runs.m4ops("--run", str(tmp_path), "rewind", "--to", "5", "-y")
    assert said.code == 0, said.err
    assert (tmp_path / "evals.jsonl").read_text() == lines[0] + "\n"


def fsdp(place: Path) -> torch.optim.Optimizer:
    """A sharded state as accelerate's `utils/fsdp_utils.py` writes it: a distributed checkpoint each, and a scheduler."""
    net = torch.nn.Linear(6, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50)
    for _ in range(5):
        net(torch.ones(4, 6)).sum().backward()
        optimizer.step()
        schedule.step()
    weights, state = get_state_dict(net, optimizer)
    with warnings.catch_warnings(action="ignore"):  # that no process group is there
        checkpoint.save({"model": weights}, checkpoint_id=str(place / "pytorch_model_fsdp_0"), no_dist=True)
        checkpoint.save({"optimizer": state}, checkpoint_id=str(place / "optimizer_0"), no_dist=True)
    torch.save(schedule.state_dict(), place / "scheduler.pt")
    return optimizer


def test_a_sharded_fsdp_state_is_complete_and_its_lr_is_changed(tmp_path: Path) -> None:
    place = hf_trainer(tmp_path, 5)
    fsdp(place)
    before = runs.tree(tmp_path)

    def done(*words: str) -> str:
        said = runs.m4ops("--run", str(tmp_path), *words)
        assert said.code == 0, said.err
        return said.out

    assert "complete" in done("checkpoints")
    assert json.loads(done("inspect", "--json"))["weights"] == [{"part": "weights", "dtype": "float32", "elements": 14}]
    done("scale-lr", "0.25", "-y")
    with warnings.catch_warnings(action="ignore"):
        loaded = _load_state_dict_from_keys(checkpoint_id=str(place / "optimizer_0"))
    assert {v for k, v in flat(loaded) if k.endswith(".lr")} == {0.00025}
    assert torch.load(place / "scheduler.pt")["base_lrs"] == [0.00025]
    done("undo", "-y")
    now = runs.tree(tmp_path)
    assert {k: v for k, v in now.items() if "checkpoint-5" in k} == {
        k: v for k, v in before.items() if "checkpoint-5" in k
    }
    shard = place / "pytorch_model_fsdp_0" / "__0_0.distcp"
    os.truncate(shard, shard.stat().st_size - 1)
    (damaged,) = json.loads(runs.m4ops("--run", str(tmp_path), "verify-checkpoint", "--json").out)["checkpoints"]
    assert [fault["file"] for fault in damaged["faults"]] == ["pytorch_model_fsdp_0/__0_0.distcp"]
    shard.unlink()
    assert "__0_0.distcp: missing" in " ".join(runs.m4ops("--run", str(tmp_path), "checkpoints").out.split())


def test_megatrons_distributed_format_is_known_by_its_config(tmp_path: Path) -> None:
    place = tmp_path / "iter_0000005"
    with warnings.catch_warnings(action="ignore"):  # that no process group is there
        checkpoint.save({"model.w": torch.rand(8, 4)}, checkpoint_id=str(place), no_dist=True)
    torch.save({"iteration": 5, "opt_param_scheduler": {"max_lr": 1e-3, "num_steps": 20}}, place / "common.pt")
    (place / "metadata.json").write_text('{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5")
    for name in ("__7_0.distcp", "extra.pt"):  # Megatron loads neither
        (place / name).write_bytes(b"x")

    def verdict() -> str:
        return str(
            json.loads(runs.m4ops("--run", str(tmp_path), "verify-checkpoint", "--deep", "--json").out)["verdict"]
        )

    assert verdict() == "WARNING"
    (place / "extra.pt").unlink()
    assert verdict() == "OK"
    (place / "metadata.json").unlink()  # "… is not a distributed checkpoint"
    assert verdict() == "CRITICAL"


def flat(node: object, label: str = "") -> Iterator[tuple[str, object]]:
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    yield label, node if isinstance(node, float) else None
    for key, inside in pairs:
        yield from flat(inside, f"{label}.{key}")


def test_a_sharded_ckpt_of_lightning_is_told_from_a_folder_that_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "epoch=0-step=10.ckpt").mkdir()
    said = runs.m4ops("--run", str(tmp_path), "status")
    assert said.code != 0
    assert "FSDP or DeepSpeed strategy" in said.err
