"""Weights out of real checkpoints: the bytes DeepSpeed's converter writes, whatever happens on the way."""

import errno
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import runs
from runs import Run

from ops import extract
from ops.checkpoints import cast, safetensors
from ops.checkpoints.torchfile import StateError
from ops.checkpoints.weights import weights_of
from ops.errors import Busy, Drift, OpsError, Refused
from ops.extract import copying

pytestmark = pytest.mark.xdist_group("deepspeed")
SAVED = ("z1_bf16_w3", "z2_bf16_w3", "z2_fp32_w3", "z3_bf16_w3", "z3_fp32_w3")
TIED = ("z1_tied_w3", "z2_tied_w3", "z3_tied_w3")
SMALL = 600
"""Bytes of one file where a checkpoint is written as several."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of the real engine with 3 ranks (bench/extract_exactness.py has 1, 2 and 8), and DeepSpeed's output."""
    root = tmp_path_factory.mktemp("zero")
    saver = Path(__file__).with_name("zero_checkpoints.py")
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(saver), str(root), *SAVED, *TIED, "dcp_w3"],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return root


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Run:
    """An m4 run with one ZeRO-3 checkpoint of three ranks, step 4."""
    run = Run(tmp_path)
    shutil.copytree(saved / "z3_bf16_w3" / "accelerator_state", run.dir / "opt_step-4" / "accelerator_state")
    (run.dir / "opt_step-4" / "unwrapped_model").mkdir()
    (run.dir / "opt_step-4" / "unwrapped_model" / "config.json").write_text("{}")
    (run.dir / "opt_step-4" / "resume_run_infos.json").write_text(json.dumps({"resume_opt_step": 4}))
    (run.dir / "opt_step-4" / "finished-saving").touch()
    (run.dir / "opt_step-4" / "accelerator_state" / "custom_checkpoint_0.pkl").touch()
    run.pointer.write_text(str(run.dir / "opt_step-4"))
    return run


def job(checkpoint: Path, tmp_path: Path, dtype: str = "fp32", limit: int = extract.SHARD) -> extract.Job:
    return extract.job(weights_of(checkpoint), tmp_path / "out", tmp_path / "staging", DTYPES[dtype], limit)


def names(folder: Path) -> set[str]:
    """Every file and folder below, some of which may vanish meanwhile."""
    return {
        os.path.relpath(os.path.join(at, name), folder)
        for at, dirs, files in os.walk(folder)
        for name in (*dirs, *files)
    }


def content(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SAVED)
def test_the_files_are_those_of_deepspeeds_converter(saved: Path, tmp_path: Path, name: str, dtype: str) -> None:
    theirs = content(saved / name / dtype)
    done = extract.extract(job(saved / name, tmp_path, dtype))
    assert theirs.keys() == {"model.safetensors"}
    assert content(tmp_path / "out") == theirs
    assert {p.name for p in done.files} == theirs.keys()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_several_files_and_their_index_are_those_of_deepspeeds_converter(saved: Path, tmp_path: Path) -> None:
    extract.extract(job(saved / "z3_bf16_w3", tmp_path, "fp32", SMALL))
    theirs = content(saved / "z3_bf16_w3" / "several")
    assert len(theirs) > 3
    assert content(tmp_path / "out") == theirs


@pytest.mark.parametrize("name", ["z1_bf16_w3", "z2_bf16_w3", "z3_bf16_w3", "z2_fp32_w3"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bytes_are_the_same_without_numpy_and_without_the_kernels_copy(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str
) -> None:
    def refused(*_: int) -> int:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(cast, "_numpy", lambda: None)
    monkeypatch.setattr(copying, "_kernel_copy", refused)
    monkeypatch.setattr(copying, "BLOCK", 64)
    monkeypatch.setattr(copying, "CHUNK", 16)
    extract.extract(job(saved / name, tmp_path, dtype))
    assert content(tmp_path / "out") == content(saved / name / dtype)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_tied_weight_is_written_once_and_no_frozen_one_is_lost(saved: Path, tmp_path: Path, stage: int) -> None:
    import torch
    from safetensors.torch import load_file

    work = job(saved / f"z{stage}_tied_w3", tmp_path)
    extract.extract(work)
    ours = load_file(tmp_path / "out" / "model.safetensors")
    theirs = torch.load(saved / f"z{stage}_tied_w3" / "weights.bin", weights_only=True)
    assert work.weights.tied == (("head.weight", "embed.weight"),)
    assert torch.equal(theirs.pop("head.weight"), theirs["embed.weight"])
    assert ours.keys() - theirs.keys() == set(work.weights.unlisted)
    assert all(
        torch.equal(ours[name], tensor.float() if tensor.is_floating_point() else tensor)
        for name, tensor in theirs.items()
    )
    frozen = {"layers.2.weight", "layers.2.bias"}
    assert set(work.weights.unlisted) == (frozen if stage == 1 else set())
    state = saved / f"z{stage}_tied_w3" / "accelerator_state" / "pytorch_model"
    if stage < 3:
        module = torch.load(state / "mp_rank_00_model_states.pt", weights_only=False)["module"]
        assert all(torch.equal(ours[name], module[name].float()) for name in frozen)


def test_numbers_are_rounded_as_torch_rounds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    draw = random.Random(7)
    odd = (
        0,
        1 << 31,
        0x7F800000,
        0xFF800000,
        0x7F7FFFFF,
        0x3F808000,
        0x3F818000,
        0x3F808001,
        1,
        0x00008000,
        0x80018000,
    )
    words = [*odd, *(draw.getrandbits(32) for _ in range(4000))]
    wide = torch.frombuffer(bytearray(struct.pack(f"<{len(words)}I", *words)), dtype=torch.float32)
    for numpy_there in (True, False):
        if not numpy_there:
            monkeypatch.setattr(cast, "_numpy", lambda: None)
        for source in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
            given = wide.to(source)
            data = bytearray(given.view(torch.uint8).numpy().tobytes())
            for target in (torch.float32, torch.bfloat16):
                turn = cast.cast(str(source)[6:], str(target)[6:])
                made = torch.frombuffer(bytearray(turn(data) if turn else data), dtype=target)
                assert torch.equal(made.isnan(), given.isnan())
                real = ~given.isnan()
                bits = torch.int32 if target == torch.float32 else torch.int16
                assert torch.equal(made[real].view(bits), given[real].to(torch.float32).to(target).view(bits))


def test_interrupted_work_goes_on_where_it_ended(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "BLOCK", 128)
    monkeypatch.setattr(copying, "WORKERS", 1)
    work = job(saved / "z3_bf16_w3", tmp_path)

    def interrupt(there: int) -> None:
        if there > work.size // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract.extract(work, interrupt)
    assert not (tmp_path / "out").exists()
    with (tmp_path / "staging" / "done").open("a") as log:
        log.write("0 99")  # a line that a crash cut off
    seen: list[int] = []
    done = extract.extract(work, seen.append)
    assert seen[0] > work.size // 2
    assert 0 < done.copied <= work.size - seen[0]
    assert content(tmp_path / "out") == content(saved / "z3_bf16_w3" / "fp32")


def test_nothing_is_kept_of_a_checkpoint_that_changes_meanwhile(run: Run, tmp_path: Path) -> None:
    work = job(run.dir / "opt_step-4", tmp_path)
    with pytest.raises(Drift, match="changed while"):
        extract.extract(work, lambda _: os.utime(work.weights.files[0]))
    assert not (tmp_path / "out").exists()
    assert extract.extract(job(run.dir / "opt_step-4", tmp_path)).copied == work.size - len(work.files[0].header)


@pytest.mark.parametrize("damage", ["missing", "cut", "swapped"])
def test_a_torn_checkpoint_is_refused(run: Run, damage: str) -> None:
    shards = run.dir / "opt_step-4" / "accelerator_state" / "pytorch_model"
    shard = shards / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    if damage == "missing":
        shard.unlink()
    elif damage == "cut":
        os.truncate(shard, shard.stat().st_size - 700)
    else:
        other = shards.parent.parent.parent / "elsewhere"
        other.mkdir()
        shutil.move(shards / "zero_pp_rank_0_mp_rank_00_model_states.pt", other)
    said = run.m4ops("extract", "4", "--out", str(run.root / "weights"))
    assert said.code == 1
    assert "opt_step-4" in said.err
    assert not (run.root / "weights").exists()
    assert [p.name for p in run.root.iterdir()] == [run.dir.name]


def test_unwrapped_model_holds_what_its_contract_names_at_every_moment(saved: Path, run: Run) -> None:
    model = run.dir / "opt_step-4" / "unwrapped_model"
    before = runs.tree(run.dir / "opt_step-4")
    seen: set[str] = set()
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.update(names(run.dir / "opt_step-4"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run.done("extract", "4", "--to-unwrapped-model")
    finally:
        stop.set()
        watcher.join()
    after = runs.tree(run.dir / "opt_step-4")
    assert runs.changed(before, after) == {"unwrapped_model/model.safetensors"}
    assert seen - before.keys() <= {"unwrapped_model/model.safetensors", "unwrapped_model/started-convert-checkpoint"}
    assert "__metadata__" in (model / "model.safetensors").read_bytes()[:200].decode("latin1")
    weights = {(s.name, s.dtype) for s in safetensors.read(model / "model.safetensors")}
    assert ("embed.weight", "bfloat16") in weights
    assert not list((run.dir / ".m4ops" / "extract").iterdir())
    again = run.m4ops("extract", "4", "--to-unwrapped-model")
    assert again.code == 1
    assert "weights are there already: model.safetensors" in again.err


def test_a_conversion_of_somebody_else_is_respected_until_it_is_stale(run: Run) -> None:
    marker = run.dir / "opt_step-4" / "unwrapped_model" / "started-convert-checkpoint"
    marker.touch()
    said = run.m4ops("extract", "4", "--to-unwrapped-model")
    assert said.code == 1
    assert str(marker) in said.err
    assert marker.exists()
    os.utime(marker, (time.time() - 7300,) * 2)
    run.done("extract", "4", "--to-unwrapped-model")
    assert not marker.exists()


def test_all_missing_weights_are_written_and_only_those(run: Run) -> None:
    shutil.copytree(run.dir / "opt_step-4", run.dir / "opt_step-8")
    shutil.copytree(run.dir / "opt_step-4", run.dir / "opt_step-12")
    for step in (4, 8):
        infos = {"train_logs": {}, "wandb_run_id": "", "seed": 1, "resume_opt_step": step, "resume_epoch": 0}
        (run.dir / f"opt_step-{step}" / "resume_run_infos.json").write_text(json.dumps({**infos, "gbs_running": {}}))
    for checkpoint in run.dir.glob("opt_step-*"):
        infos = json.loads((checkpoint / "resume_run_infos.json").read_text())
        infos["gbs_running"] = dict.fromkeys(
            ("global_batch_size_current", "global_seen_samples", "next_goal_samples", "grad_acc_size_current"), 1
        )
        (checkpoint / "resume_run_infos.json").write_text(json.dumps(infos))
    (run.dir / "opt_step-12" / "finished-saving").unlink()
    (run.dir / "opt_step-4" / "unwrapped_model" / "pytorch_model.bin").touch()
    run.done("extract", "--all-missing")
    there = [extract.held(run.dir / f"opt_step-{step}" / "unwrapped_model") for step in (4, 8, 12)]
    assert there == [("pytorch_model.bin",), ("model.safetensors",), ()]
    said = run.m4ops("extract", "12", "--out", str(run.root / "weights"))
    assert said.code == 1
    assert "finished-saving is missing" in said.err


def test_deepspeeds_own_converter_agrees(run: Run) -> None:
    out = run.root / "weights"
    said = run.done("extract", "4", "--out", str(out), "--check-with-deepspeed")
    assert "identical with DeepSpeed's: 14 tensors" in said.err
    assert sorted(p.name for p in run.root.iterdir()) == [run.dir.name, "weights"]


def test_two_at_once_do_not_mix(run: Run, tmp_path: Path) -> None:
    work = job(run.dir / "opt_step-4", tmp_path)
    busy: list[OpsError] = []

    def second(_: int) -> None:
        with pytest.raises(Busy) as error:
            extract.extract(work)
        busy.append(error.value)

    extract.extract(work, second)
    assert "extract to" in str(busy[0])


def test_no_room_is_said_before_anything_is_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="are free"):
        extract.extract(job(run.dir / "opt_step-4", tmp_path))
    assert not (tmp_path / "out").exists()


def test_a_plain_checkpoint_gives_its_own_weights(trained: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    checkpoint = trained / runs.NAME / "opt_step-40"
    source = load_file(checkpoint / "accelerator_state" / "model.safetensors")
    for dtype in (torch.float32, torch.bfloat16):
        out = tmp_path / str(dtype)
        extract.extract(extract.job(weights_of(checkpoint), out, tmp_path / "staging", str(dtype)[6:]))
        ours = load_file(out / "model.safetensors")
        assert ours.keys() == source.keys()
        assert all(torch.equal(ours[name], tensor.to(dtype)) for name, tensor in source.items())


def test_an_old_plain_checkpoint_too(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    weight = torch.randn(5, 7)
    half = torch.randn(4, 6).half().t()
    state = {"embed": weight, "half": half, "double": torch.randn(3).double(), "head": weight, "count": torch.tensor(3)}
    torch.save(state, tmp_path / "pytorch_model.bin")
    work = job(tmp_path, tmp_path / "x")
    extract.extract(work)
    ours = load_file(tmp_path / "x" / "out" / "model.safetensors")
    assert work.weights.tied == (("head", "embed"),)
    assert torch.equal(ours.pop("count"), state["count"])
    assert all(torch.equal(tensor, state[name].float()) for name, tensor in ours.items())
    assert ours.keys() == {"embed", "half", "double"}


def test_tensors_cut_among_ranks_by_dcp_are_put_together(saved: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    checkpoint = tmp_path / "checkpoint_0"  # as Accelerate saves FSDP's shards
    shutil.copytree(saved / "dcp_w3" / "sharded", checkpoint / "pytorch_model_fsdp_0")
    whole = torch.load(saved / "dcp_w3" / "weights.bin", weights_only=True)
    for place in (checkpoint, checkpoint / "pytorch_model_fsdp_0"):
        out = tmp_path / f"from-{place.name}"
        said = runs.m4ops("extract", str(place), "--out", str(out))
        assert said.code == 0, said.err
        ours = load_file(out / "model.safetensors")
        assert ours.keys() == whole.keys()
        assert all(torch.equal(ours[name], tensor) for name, tensor in whole.items())
    part = next((checkpoint / "pytorch_model_fsdp_0").glob("*.distcp"))
    os.truncate(part, part.stat().st_size - 50)
    with pytest.raises(StateError, match=part.name):
        weights_of(checkpoint)


def test_lightnings_file_gives_the_state_dict_of_its_module(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(7, 3), "head": torch.nn.Linear(3, 7, bias=False)})
    model["head"].weight = model["embed"].weight
    state = {f"model.{k}": v for k, v in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters()).state_dict()
    saved = {"epoch": 0, "global_step": 3, "pytorch-lightning_version": "2.6.6", "state_dict": state}
    torch.save({**saved, "optimizer_states": [optimizer], "lr_schedulers": []}, tmp_path / "last.ckpt")
    out = tmp_path / "weights"
    said = runs.m4ops("extract", str(tmp_path / "last.ckpt"), "--out", str(out), "--dtype", "bf16")
    assert said.code == 0, said.err
    assert "model.head.weight is left out: it is model.embed.weight" in said.err
    ours = load_file(out / "model.safetensors")
    assert ours.keys() == {"model.embed.weight"}
    assert torch.equal(ours["model.embed.weight"], model["embed"].weight.bfloat16())
    torch.save(state, tmp_path / "other.ckpt")
    with pytest.raises(StateError, match="no checkpoint of Lightning"):
        weights_of(tmp_path / "other.ckpt")


def test_weights_kept_in_another_way_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no weights here"):
        weights_of(tmp_path)


@pytest.mark.parametrize("words", [(), ("4",), ("4", "--all-missing"), ("4", "--out", "x", "--max-shard-size", "5")])
def test_half_a_wish_is_refused(run: Run, words: tuple[str, ...]) -> None:
    said = run.m4ops("extract", *words)
    assert said.code == 1
    assert "next:" in said.err
