"""`m4ops inspect` and `m4ops verify-checkpoint` on a really trained run (ZeRO: tests/test_deepspeed.py)."""

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import damage
import pytest
import runs
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from runs import Run
from safetensors.torch import save_file

from ops.checkpoints import deep, verify
from ops.checkpoints.deep import PIECE, faults, not_finite
from ops.model import Checkpoint


def verdict(run: Path, *words: str) -> str:
    """The verdict of the JSON, which must be the exit code's."""
    said = runs.m4ops("--run", str(run), "verify-checkpoint", "--json", *words)
    found = json.loads(said.out)
    assert found["exit_code"] == said.code
    return str(found["verdict"])


def test_good_checkpoints_are_sound_also_after_m4ops_changed_them(run: Run) -> None:
    for change in ((), ("scale-lr", "0.5", "-y"), ("reset-optimizer", "-y"), ("set-lr", "1e-3", "--again", "-y")):
        if change:
            run.done(*change)
        said = run.done("verify-checkpoint", "--deep", *map(str, runs.STEPS))
        assert said.out.split("\n")[:-1] == [
            f"{f'opt_step-{step}':<16} sound to the last byte of states and weights" for step in runs.STEPS
        ]


@pytest.mark.parametrize("kind", damage.OF_ANY, ids=lambda kind: kind.__name__)
def test_damage_is_seen_at_once(run: Run, kind: damage.Damage) -> None:
    kind(run.dir / "opt_step-20", run.dir / "opt_step-10")
    assert verdict(run.dir, "20") == "CRITICAL"
    assert verdict(run.dir, "30") == "OK"


@pytest.mark.parametrize("kind", damage.IN_THE_DATA, ids=lambda kind: kind.__name__)
def test_damage_in_the_data_is_seen_when_every_byte_is_read(run: Run, kind: damage.Damage) -> None:
    kind(run.dir / "opt_step-20", run.dir / "opt_step-10")
    assert verdict(run.dir, "20") == "OK"
    assert verdict(run.dir, "20", "--deep") == "CRITICAL"


def test_a_tensor_without_bytes_is_seen(run: Run) -> None:
    path = run.state(20, "optimizer.bin")
    key = path.read_bytes().index(b"X\x01\x00\x00\x000") + 5  # of a storage: "0"
    damage.put(path, key, b"~")
    (fault,) = faults_of(run, "20")
    assert fault["file"] == "accelerator_state/optimizer.bin"
    assert "are not all there" in fault["what"]


def test_a_mixture_of_two_steps_is_suspect(run: Run) -> None:
    shutil.copy(run.state(40, "optimizer.bin"), run.state(20, "optimizer.bin"))
    assert verdict(run.dir, "20") == "WARNING"
    shutil.copy(run.state(10), run.state(30))
    said = run.m4ops("verify-checkpoint", "30")
    assert (said.code, "its scheduler stands at 10" in said.out) == (1, True)


def test_weights_of_another_step_are_suspect_unless_nothing_is_learned(run: Run) -> None:
    shutil.copy(run.state(10, "model.safetensors"), run.state(20, "model.safetensors"))
    (fault,) = faults_of(run, "20")
    assert fault["file"] == "accelerator_state/model.safetensors"
    assert "the very same tensors as that of opt_step-10" in fault["what"]
    run.done("set-lr", "0", "--at", "20", "-y")
    assert verdict(run.dir, "20") == "OK"


def test_what_the_neighbours_have_is_missed(run: Run) -> None:
    for step in runs.STEPS:
        shutil.copy(run.state(step), run.state(step, "scheduler.bin"))
        with (run.dir / f"opt_step-{step}" / "resumable_states" / "rank_1.json").open("w") as state:
            state.write("{}")
    run.state(30, "scheduler.bin").unlink()
    run.state(30, "random_states_0.pkl").unlink()
    told = {(fault["file"], fault["sure"]): fault["what"] for fault in faults_of(run, "30")}
    assert "opt_step-20 and opt_step-40 have it" in told["accelerator_state/scheduler.bin", False]
    assert "random state of process 0" in told["", False]


def test_a_recipe_that_changed_the_scheduler_alone_is_named(run: Run) -> None:
    path = run.state(30)
    state = torch.load(path, weights_only=False)
    for name in ("base_lrs", "_last_lr"):
        state[name] = [lr / 2 for lr in state[name]]
    torch.save(state, path)
    said = run.m4ops("verify-checkpoint", "30")
    assert said.code == 1
    assert "the LR of group 0 is " in said.out


def test_weights_of_safetensors_are_searched_and_measured(run: Run) -> None:
    path = run.state(20, "model.safetensors")
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    damage.put(path, start, struct.pack("<f", float("nan")))
    assert "NaN in " in run.m4ops("verify-checkpoint", "--deep", "20").out
    path.write_bytes(raw[:-1])
    assert "model.safetensors: cut off" in run.m4ops("verify-checkpoint", "20").out


def test_what_was_read_is_remembered_until_it_changes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(path: Path, *rest: object) -> object:
        read.append(path.name)
        return faults(path, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(deep, "faults", noted)
    damage.hole(run.dir / "opt_step-20", run.dir / "opt_step-10")
    assert verdict(run.dir, "--deep", "20") == "CRITICAL"
    first = sorted(read)
    assert {"optimizer.bin", "model.safetensors", "custom_checkpoint_0.pkl"} <= set(first)
    assert verdict(run.dir, "--deep", "20") == "CRITICAL"
    assert sorted(read) == first
    path = run.state(20, "optimizer.bin")
    path.write_bytes(run.state(10, "optimizer.bin").read_bytes())
    assert verdict(run.dir, "--deep", "20") == "WARNING"  # sound, and of another step
    assert read[len(first) :] == ["optimizer.bin"]


def looks(run: Run) -> dict[int, dict[str, object] | None]:
    """What `m4ops checkpoints` knows of each: its newest look, or None."""
    found = json.loads(run.done("checkpoints", "--json").out)["checkpoints"]
    return {c["step"]: c["checked"] for c in found}


def test_checkpoints_looks_at_the_newest_and_remembers_the_others_while_they_are_the_same(run: Run) -> None:
    first = looks(run)
    assert [step for step, look in first.items() if look] == [20, 30, 40]
    assert verdict(run.dir, "10", "--deep") == "OK"
    known = looks(run)
    assert [bool(look and look["deep"]) for look in known.values()] == [True, False, False, False]
    assert looks(run) == known  # nothing was looked at once more
    assert ", every byte " in run.done("checkpoints").out
    os.utime(run.state(10, "optimizer.bin"))
    os.utime(run.state(30, "optimizer.bin"))
    later = looks(run)
    assert later[10] is None
    assert later[20] == known[20] != later[30]


def test_a_file_under_another_name_is_refused_and_a_stray_one_explained(run: Run) -> None:
    shutil.copy(run.state(20, "random_states_0.pkl"), run.state(20, "optimizer.bin"))
    said = run.m4ops("rewind", "--to", "20", "-y")
    assert said.code == 1
    assert "optimizer.bin: was saved as random_states_0.bin: another file's content under this name" in said.err
    shutil.copy(run.state(30), run.state(30).with_name("custom_checkpoint_0.pkl.orig"))
    told = run.m4ops("verify-checkpoint", "30").out
    assert "Accelerate up to 0.20.3 then loads no scheduler, in silence" in " ".join(told.split())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_what_is_not_finite_is_found_and_nothing_else(dtype: str) -> None:
    kind, by_numpy = getattr(torch, dtype), deep.finite_here()
    assert by_numpy
    largest = torch.finfo(kind).max
    healthy = torch.cat([torch.randn(1000).to(kind), torch.tensor([largest, -largest, 0.0, -0.0, 65000.0], dtype=kind)])
    for bad, name in ((float("nan"), "NaN"), (float("inf"), "Inf"), (float("-inf"), "Inf")):
        for at in (0, 500, len(healthy) - 1):
            broken = healthy.clone()
            broken[at] = bad
            assert not_finite(raw_bytes(broken), dtype) == name
            assert not by_numpy(memoryview(raw_bytes(broken)), dtype)
    assert not_finite(raw_bytes(healthy), dtype) == ""
    assert by_numpy(memoryview(raw_bytes(healthy)), dtype)


def raw_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy())


@pytest.mark.parametrize("crc32", [deep.crc32_here(), zlib.crc32], ids=["isal", "zlib"])
def test_a_record_of_several_pieces_has_one_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crc32: Callable[[memoryview, int], int]
) -> None:
    monkeypatch.setattr(deep, "crc32_here", lambda: crc32)
    path = tmp_path / "optimizer.bin"
    torch.save({"state": {}, "param_groups": [], "w": torch.rand(PIECE // 4 + 300_077)}, path)
    told: list[int] = []
    assert faults(path, "optimizer.bin", True, told.append) == ()
    assert sum(told) >= PIECE + 1_200_000
    damage.put(path, PIECE + 5000, b"\x00\x01\x02\x03\x04")
    (fault,) = faults(path, "optimizer.bin", True, told.append)
    assert "not those that were written (CRC-32): w" in fault.what


def test_inspect_tells_what_a_checkpoint_is(run: Run) -> None:
    said = json.loads(run.done("inspect", "20", "--json").out)
    rates = {site["label"]: site["value"] for site in said["lr"] if site["file"].endswith("optimizer.bin")}
    loaded = torch.load(run.state(20, "optimizer.bin"))["param_groups"]
    assert [rates[f"optimizer.param_groups[{i}].lr"] for i in (0, 1)] == [group["lr"] for group in loaded]
    assert said["optimizers"] == ["AdamW"]
    assert said["schedulers"] == ["LambdaLR or MultiplicativeLR"]
    assert {pair["step"] for pair in said["steps"]} == {20}
    assert (said["engine"], said["world"]) == ("Accelerate", 1)
    assert said["weights"] == [{"part": "weights", "dtype": "float32", "elements": 6 * 16 + 16 + 16 * 2 + 2}]
    sizes = {entry["file"]: entry["size_bytes"] for entry in said["files"]}
    name = "accelerator_state/optimizer.bin"
    assert sizes[name] == os.path.getsize(run.state(20, "optimizer.bin"))
    assert "AdamW" in run.done("inspect").out


def test_a_step_that_is_not_there_is_an_error_with_the_nearest(run: Run) -> None:
    said = run.m4ops("inspect", "25")
    assert said.code == 1
    assert "20" in said.err and "30" in said.err


def told(run: Run) -> dict[str, dict[str, Any]]:
    """What `m4ops check` says of the run, by kind."""
    return {finding["kind"]: finding for finding in json.loads(run.m4ops("check", "--json").out)["findings"]}


def test_check_and_status_tell_that_the_next_resume_takes_a_damaged_checkpoint(run: Run) -> None:
    assert "checkpoint-damaged" not in told(run)
    damage.truncated(run.dir / "opt_step-40", run.dir / "opt_step-10")
    damage.emptied(run.dir / "opt_step-30", run.dir / "opt_step-10")
    before = run.tree()
    finding = told(run)["checkpoint-damaged"]
    assert (finding["severity"], finding["step"]) == ("CRITICAL", 40)
    assert "opt_step-40" in finding["summary"] and "optimizer.bin" in finding["summary"]
    assert finding["actions"][0] == "m4ops rewind --to 20 --keep-wandb-run"
    status = json.loads(run.m4ops("status", "--json").out)
    assert "optimizer.bin" in status["pointer"]["problem"]
    assert "checkpoint-damaged" in {f["kind"] for f in status["findings"]}
    assert run.tree() == before
    run.done(*finding["actions"][0].split()[1:], "-y")
    assert "checkpoint-damaged" not in told(run)


def test_what_every_byte_showed_is_told_until_the_checkpoint_is_another(run: Run) -> None:
    sound = run.state(40, "optimizer.bin").read_bytes()
    damage.flipped_bit(run.dir / "opt_step-40", run.dir / "opt_step-10")
    assert "checkpoint-damaged" not in told(run)
    assert verdict(run.dir, "40", "--deep") == "CRITICAL"
    assert "CRC-32" in told(run)["checkpoint-damaged"]["summary"]
    run.state(40, "optimizer.bin").write_bytes(sound)
    assert "checkpoint-damaged" not in told(run)


def test_a_checkpoint_that_is_the_same_is_not_looked_at_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    look = verify.faults

    def noted(checkpoint: Checkpoint) -> tuple[verify.Fault, ...]:
        looked.append(checkpoint.name)
        return look(checkpoint)

    monkeypatch.setattr(verify, "faults", noted)
    run.done("status")
    told(run)
    run.done("status")
    told(run)
    assert looked == ["opt_step-40"]
    damage.truncated(run.dir / "opt_step-40", run.dir / "opt_step-10")
    assert told(run)["checkpoint-damaged"]["actions"][0] == "m4ops rewind --to 30 --keep-wandb-run"
    assert looked == ["opt_step-40", "opt_step-40", "opt_step-30"]


def faults_of(run: Run, *words: str) -> list[dict[str, Any]]:
    """What verify-checkpoint tells of one checkpoint."""
    (found,) = json.loads(run.m4ops("verify-checkpoint", "--json", *words).out)["checkpoints"]
    return list(found["faults"])


def test_a_damaged_file_is_told_of_once(run: Run) -> None:
    damage.truncated(run.dir / "opt_step-20", run.dir / "opt_step-10")
    assert [fault["file"] for fault in faults_of(run, "20")] == ["accelerator_state/optimizer.bin"]


def test_what_lies_beside_the_states_is_read_too_and_keeps_no_resume_from_starting(run: Run) -> None:
    place = run.dir / "opt_step-40"
    weights = {f"layer_{i}": torch.rand(100, 30) for i in range(4)}
    split = split_torch_state_dict_into_shards(weights, max_shard_size=25_000)
    for name, tensors in split.filename_to_tensors.items():
        save_file({tensor: weights[tensor] for tensor in tensors}, place / "unwrapped_model" / name)
    index = place / "unwrapped_model" / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": split.metadata, "weight_map": split.tensor_to_filename}))
    assert verdict(run.dir, "40", "--deep") == "OK"
    first, second = sorted((place / "unwrapped_model").glob("*.safetensors"))

    damage.put(first, first.stat().st_size - 4, struct.pack("<f", float("nan")))
    damage.flipped_bit_of(place / "resumable_states" / "rank_0.pt")
    found = {fault["file"]: fault for fault in faults_of(run, "40", "--deep")}
    assert found.keys() == {f"unwrapped_model/{first.name}", "resumable_states/rank_0.pt"}
    assert "NaN in layer_" in found[f"unwrapped_model/{first.name}"]["what"]
    assert "CRC-32" in found["resumable_states/rank_0.pt"]["what"]
    assert not any(fault["resumed"] for fault in found.values())
    assert "checkpoint-damaged" not in told(run)
    assert " suspect" in run.done("status").out

    second.unlink()
    (place / "resumable_states" / "resumable_states_0.json").write_text('{"seed": 1')
    files = [fault["file"] for fault in faults_of(run, "40")]
    assert files == ["resumable_states/resumable_states_0.json", f"unwrapped_model/{index.name}"]
    (place / "unwrapped_model" / "started-convert-checkpoint").touch()  # as long as it is written, it is not judged
    assert not [fault for fault in faults_of(run, "40", "--deep") if fault["sure"] and "unwrapped" in fault["file"]]
