"""The LR in a checkpoint: each place is found, and a resume from the changed bytes trains with the new LR."""

import pickle
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as schedulers

from ops.checkpoints.lr import NotSameLength, appended, as_stored, cut_back, edit, file_sites, lr_sites, rebuilt
from ops.checkpoints.patch import Splice
from ops.checkpoints.torchfile import StateError, structure_problems
from ops.model import LrSite

ROOT = Path(__file__).resolve().parent.parent


def write(path: Path, splices: tuple[Splice, ...], back: bool = False) -> None:
    """What the executor does with splices."""
    raw = bytearray(path.read_bytes())
    for s in splices:
        old, new = (s.new, s.old) if back else (s.old, s.new)
        assert raw[s.offset : s.offset + len(old)] == old
        raw[s.offset : s.offset + len(old)] = new
    path.write_bytes(raw)


def scaled(sites: tuple[LrSite, ...], factor: float) -> list[tuple[LrSite, float]]:
    return [(site, site.value * factor) for site in sites]


def scale(path: Path, factor: float) -> None:
    """Scale every LR of a file, check what a user could check, and that the way back is exact."""
    raw, before = path.read_bytes(), leaves(torch.load(path, weights_only=False))
    splices = edit(path, scaled(file_sites(path), factor))
    write(path, splices)
    after = leaves(torch.load(path, weights_only=False))
    changed = {label for label in before if not same(before[label], after[label])}
    assert changed == {label for label in before if is_lr(label) and before[label] != 0}
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            assert zipped.testzip() is None
    write(path, splices, back=True)
    assert path.read_bytes() == raw
    write(path, splices)


def leaves(tree: Any, label: str = "") -> dict[str, Any]:
    """Every value of a loaded tree by its place."""
    match tree:
        case dict():
            inside = [leaves(v, f"{label}.{k}") for k, v in tree.items()]
        case list() | tuple():
            inside = [leaves(v, f"{label}[{i}]") for i, v in enumerate(tree)]
        case _:
            return {label: tree}
    return {k: v for found in inside for k, v in found.items()}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return type(a) is type(b) and bool(a == b)


def is_lr(label: str) -> bool:
    names = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr", "eta_min", "default_min_lr")
    lists = ("base_lrs[", "_last_lr[", "min_lrs[", "max_lrs[", "_init_lrs[")
    return label.rpartition(".")[2].startswith(lists) or label.rpartition(".")[2] in names or label == ".eps"


# -- the LR a resumed run trains with --------------------------------------------------------------------

Make = Callable[[torch.optim.Optimizer], Any]


def sequential(optimizer: torch.optim.Optimizer) -> Any:
    warm = schedulers.LinearLR(optimizer, 0.1, total_iters=6)
    cosine = schedulers.CosineAnnealingLR(optimizer, 20, eta_min=1e-5)
    return schedulers.SequentialLR(optimizer, [warm, cosine], milestones=[14])


def chained(optimizer: torch.optim.Optimizer) -> Any:
    parts = [schedulers.ConstantLR(optimizer, 0.5, 12), schedulers.ExponentialLR(optimizer, 0.9)]
    return schedulers.ChainedScheduler(parts)


def averaged(optimizer: torch.optim.Optimizer) -> Any:
    from torch.optim.swa_utils import SWALR

    return SWALR(optimizer, swa_lr=3e-5, anneal_epochs=15)


SCHEDULERS: dict[str, Make] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda step: min(1.0, step / 20)),
    "StepLR": lambda o: schedulers.StepLR(o, 7),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 12, eta_min=2e-5),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 9, eta_min=1e-5),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, [1e-3, 2e-3], total_steps=60),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, 1e-5, 1e-3, step_size_up=6, cycle_momentum=False),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=2, min_lr=1e-5),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
    "SWALR": averaged,
}


class Training:
    """Two parameter groups, and the scheduler under test."""

    def __init__(self, make: Make) -> None:
        weights = [torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(2, 2))]
        groups = [{"params": [w], "lr": lr} for w, lr in zip(weights, (1e-3, 4e-4), strict=True)]
        self.weights, self.optimizer = weights, torch.optim.AdamW(groups)
        self.scheduler = make(self.optimizer)

    def train(self, steps: int) -> list[float]:
        """The LR of both groups, as each step used it."""
        used = []
        for _ in range(steps):
            for weight in self.weights:
                weight.grad = torch.ones_like(weight)
            used += [float(group["lr"]) for group in self.optimizer.param_groups]
            self.optimizer.step()
            plateau = isinstance(self.scheduler, schedulers.ReduceLROnPlateau)
            self.scheduler.step(*[1.0] if plateau else [])
        return used

    def save(self, folder: Path) -> None:
        state = folder / "accelerator_state"
        state.mkdir(parents=True)
        torch.save(self.optimizer.state_dict(), state / "optimizer.bin")
        torch.save(self.scheduler.state_dict(), state / "custom_checkpoint_0.pkl")

    def load(self, folder: Path) -> None:
        state = folder / "accelerator_state"
        self.optimizer.load_state_dict(torch.load(state / "optimizer.bin"))
        self.scheduler.load_state_dict(torch.load(state / "custom_checkpoint_0.pkl", weights_only=False))


@pytest.fixture(autouse=True)
def quiet_torch() -> Iterator[None]:
    """Torch warns of its own `SequentialLR.step(epoch)`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_whole_future_lr_is_scaled(tmp_path: Path, name: str) -> None:
    run = Training(SCHEDULERS[name])
    run.train(10)
    run.save(tmp_path)
    future = run.train(25)
    for file in ("optimizer.bin", "custom_checkpoint_0.pkl"):
        scale(tmp_path / "accelerator_state" / file, 0.75)
    resumed = Training(SCHEDULERS[name])
    resumed.load(tmp_path)
    assert resumed.train(25) == pytest.approx([0.75 * lr for lr in future], rel=1e-9)


def test_the_sites_say_where_and_what(tmp_path: Path) -> None:
    run = Training(SCHEDULERS["LambdaLR"])
    run.train(10)
    run.save(tmp_path)
    found = {(s.file, s.label): s.value for s in lr_sites(tmp_path)}
    scheduler, optimizer = "accelerator_state/custom_checkpoint_0.pkl", "accelerator_state/optimizer.bin"
    assert found == {
        (scheduler, "base_lrs[0]"): 1e-3,
        (scheduler, "base_lrs[1]"): 4e-4,
        (scheduler, "_last_lr[0]"): 1e-3 / 2,
        (scheduler, "_last_lr[1]"): 4e-4 / 2,
        (optimizer, "optimizer.param_groups[0].lr"): 1e-3 / 2,
        (optimizer, "optimizer.param_groups[0].initial_lr"): 1e-3,
        (optimizer, "optimizer.param_groups[1].lr"): 4e-4 / 2,
        (optimizer, "optimizer.param_groups[1].initial_lr"): 4e-4,
    }


def test_a_list_two_schedulers_share_is_one_place(tmp_path: Path) -> None:
    run = Training(sequential)
    run.train(3)
    run.save(tmp_path)
    sites = file_sites(tmp_path / "accelerator_state" / "custom_checkpoint_0.pkl")
    state = torch.load(tmp_path / "accelerator_state" / "custom_checkpoint_0.pkl")
    assert state["_last_lr"] is state["_schedulers"][0]["_last_lr"]
    labels = [s.label for s in sites]
    assert "_last_lr[0]" in labels
    assert "_schedulers[0]._last_lr[0]" not in labels
    assert {"_schedulers[0].base_lrs[1]", "_schedulers[1].eta_min"} <= set(labels)
    assert len({s.offset for s in sites}) == len(sites)


# -- how an LR may be stored -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_an_lr_kept_as_a_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    path, pool = tmp_path / "optimizer.bin", torch.linspace(1, 2, 50).to(dtype)
    groups = [{"lr": torch.tensor(1e-3, dtype=dtype), "other": 7.0}, {"lr": pool[7], "pool": pool}]
    torch.save({"state": {}, "param_groups": groups}, path)
    sites = file_sites(path)
    assert [s.kind for s in sites] == [f"tensor-{dtype}".replace("torch.", "")] * 2
    wanted = [(site, value) for site, value in zip(sites, (7.5e-4, 0.1234567), strict=True)]
    write(path, edit(path, wanted))
    first, second = torch.load(path)["param_groups"]
    assert torch.equal(first["lr"], torch.tensor(7.5e-4, dtype=dtype))
    assert torch.equal(second["lr"], torch.tensor(0.1234567, dtype=dtype))
    assert torch.equal(second["pool"][8:], pool[8:])
    assert [s.value for s in file_sites(path)] == [as_stored(s.kind, v) for s, v in wanted]
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None


@pytest.mark.parametrize("options", [{}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}])
def test_an_integer_lr_needs_a_new_file_and_the_way_back_is_exact(tmp_path: Path, options: Any) -> None:
    path = tmp_path / "optimizer.bin"
    group = {"lr": 1, "initial_lr": 2, "weight_decay": 0.1}
    weights = torch.rand(300)
    torch.save({"param_groups": [group], "state": {0: {"exp_avg": weights}}}, path, **options)
    original, sites = path.read_bytes(), file_sites(path)
    with pytest.raises(NotSameLength, match="takes 2 bytes"):
        edit(path, scaled(sites, 0.75))
    path.write_bytes(rebuilt(path, scaled(sites, 0.75)))
    loaded = torch.load(path, weights_only=False)
    assert loaded["param_groups"] == [{"lr": 0.75, "initial_lr": 1.5, "weight_decay": 0.1}]
    assert torch.equal(loaded["state"][0]["exp_avg"], weights)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            assert zipped.testzip() is None
            starts = {i.header_offset + len(i.filename) + 30 + padding(path, i) for i in zipped.infolist()}
        assert {start % 64 for start in starts} == {0}
        assert torch.equal(torch.load(path, mmap=True, weights_only=False)["state"][0]["exp_avg"], weights)
    back = [(LrSite(s.file, s.label, s.value * 0.75, s.kind, s.offset), s.value) for s in sites]
    assert rebuilt(path, back) == original


def padding(path: Path, info: zipfile.ZipInfo) -> int:
    """The length of the extra field of a record's local header."""
    return int.from_bytes(path.read_bytes()[info.header_offset + 28 :][:2], "little")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_an_integer_in_a_plain_pickle(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "scheduler.bin"
    path.write_bytes(pickle.dumps({"last_epoch": 3, "base_lrs": [1, 2.0, 3]}, protocol))
    new = rebuilt(path, scaled(file_sites(path), 0.75))
    # The unpickler written in Python checks the frames of protocol 4, the C one does not.
    assert pickle._loads(new)["base_lrs"] == [0.75, 1.5, 2.25]  # type: ignore[attr-defined]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rounding_is_that_of_torch(dtype: str) -> None:
    ties = [1 + k * 2.0**-11 for k in range(64)] + [2.0**-8 * (1 + k * 2.0**-8) for k in range(64)]
    for value in [*ties, 1e-4, 3.3e-5, 0.0, 1e-7, 0.1]:
        assert as_stored(f"tensor-{dtype}", value) == torch.tensor(value, dtype=getattr(torch, dtype)).item()


def test_an_integer_takes_another_integer_in_place(tmp_path: Path) -> None:
    path = tmp_path / "optimizer.bin"
    torch.save({"param_groups": [{"lr": 300, "initial_lr": 4}], "state": {}}, path)
    write(path, edit(path, scaled(file_sites(path), 0.5)))
    assert torch.load(path)["param_groups"] == [{"lr": 150, "initial_lr": 2}]


def test_a_rebuilt_file_without_a_change_is_the_same_file(tmp_path: Path) -> None:
    run = Training(SCHEDULERS["LambdaLR"])
    run.train(2)
    run.save(tmp_path)
    for path in (tmp_path / "accelerator_state").iterdir():
        assert rebuilt(path, []) == path.read_bytes()
        splices = edit(path, scaled(file_sites(path), 0.5))
        same_length = rebuilt(path, scaled(file_sites(path), 0.5))
        write(path, splices)
        assert path.read_bytes() == same_length


def test_a_large_file_is_not_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "optimizer.bin"
    torch.save({"param_groups": [{"lr": 1}], "state": {0: {"exp_avg": torch.zeros(300_000)}}}, path)
    with pytest.raises(StateError, match="too large"):
        rebuilt(path, scaled(file_sites(path), 0.75))


def test_a_large_file_gets_a_new_end_and_loses_it_again(tmp_path: Path) -> None:
    path = tmp_path / "optimizer.bin"
    groups = [{"lr": 1, "initial_lr": torch.tensor(0.5)}, {"lr": 0.25}]
    moments = {0: {"exp_avg": torch.rand(300_000)}}
    torch.save({"param_groups": groups, "state": moments}, path)
    raw, sites = path.read_bytes(), file_sites(path)
    *inside, end = appended(path, scaled(sites, 0.75))
    assert (end.offset, end.old, len(end.new) < 4000) == (len(raw), b"", True)
    write(path, (*inside, end))
    for how in ({}, {"mmap": True}, {"weights_only": True}):
        loaded = torch.load(path, **how)
        assert [g["lr"] for g in loaded["param_groups"]] == [0.75, 0.1875]
        assert loaded["param_groups"][0]["initial_lr"] == torch.tensor(0.375)
        assert torch.equal(loaded["state"][0]["exp_avg"], moments[0]["exp_avg"])
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None
    assert structure_problems(path) == ()
    assert cut_back(path, [(site, 3 * site.value) for site in file_sites(path)]) is None
    back = cut_back(path, [(now, was.value) for now, was in zip(file_sites(path), sites, strict=True)])
    assert back and back[-1].new == b""
    write(path, back)
    assert path.read_bytes() == raw


@pytest.mark.parametrize("protocol", [2, 4])
def test_an_lr_kept_as_a_numpy_scalar(tmp_path: Path, protocol: int) -> None:
    import numpy as np

    path = tmp_path / "scheduler.bin"
    state = {"last_epoch": 3, "base_lrs": [np.float64(0.1), np.float64(3e-4)], "_last_lr": [np.float32(0)]}
    torch.save(state, path, pickle_protocol=protocol)
    path.write_bytes(rebuilt(path, scaled(file_sites(path), 0.75)))
    loaded = torch.load(path, weights_only=False)
    assert loaded["base_lrs"] == [0.1 * 0.75, 3e-4 * 0.75]
    assert type(loaded["base_lrs"][0]) is np.float64
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() is None


@pytest.mark.parametrize("options", [{"pickle_protocol": 5}, {"_use_new_zipfile_serialization": False}])
def test_other_containers_are_patched_too(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "optimizer.bin"
    run = Training(SCHEDULERS["OneCycleLR"])
    run.train(2)
    torch.save(run.optimizer.state_dict(), path, **options)
    scale(path, 0.5)


# -- what is refused -------------------------------------------------------------------------------------


def test_a_value_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "scheduler.bin"
    torch.save({"last_epoch": 3, "base_lrs": [0.1]}, path)
    edits = scaled(file_sites(path), 0.5)
    write(path, edit(path, edits))
    with pytest.raises(StateError, match=r"0\.05, not 0\.1"):
        edit(path, edits)
    with pytest.raises(StateError, match="no learning rate"):
        edit(path, [(site, float("nan")) for site in file_sites(path)])


def test_an_object_that_is_no_scheduler_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "custom_checkpoint_0.pkl"
    torch.save({"lr": 0.1, "eta_min": 0.2, "weights": torch.ones(2)}, path)
    assert file_sites(path) == ()
    torch.save({"wrapped": {"scheduler": {"last_epoch": 1, "base_lrs": [0.1], "lr": 5.0}}, "lr": 1.0}, path)
    assert [s.label for s in file_sites(path)] == ["wrapped.scheduler.base_lrs[0]"]


def test_the_lr_that_adafactor_computes_itself_is_not_pretended_to_change(tmp_path: Path) -> None:
    path = tmp_path / "optimizer.bin"
    torch.save({"state": {}, "param_groups": [{"lr": 1e-3, "relative_step": True}]}, path)
    with pytest.raises(StateError, match="computes its own LR"):
        file_sites(path)


def test_a_scheduler_that_follows_the_loss_keeps_its_whole_scale(tmp_path: Path) -> None:
    """transformers' GreedyLR returns to `_init_lrs`, and both it and ReduceLROnPlateau take no step below `eps`."""
    path = tmp_path / "custom_checkpoint_0.pkl"
    state = {"min_lrs": [1e-4], "max_lrs": [1.0], "_init_lrs": [1e-2], "_last_lr": [5e-3], "eps": 1e-8, "last_epoch": 3}
    torch.save({**state, "factor": 0.5, "threshold": 1e-6}, path)
    scale(path, 0.5)
    scaled_state = torch.load(path)
    assert scaled_state["eps"] == 5e-9
    assert scaled_state["_init_lrs"] == [5e-3]
    assert scaled_state["threshold"] == 1e-6


def test_an_lr_of_an_unknown_form_is_an_error_not_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "optimizer.bin"
    torch.save({"state": {}, "param_groups": [{"lr": complex(1, 0)}]}, path)
    with pytest.raises(StateError, match=r"param_groups\[0\]\.lr is stored in a way"):
        file_sites(path)


def test_damage_is_not_papered_over(tmp_path: Path) -> None:
    """A flipped bit stays visible to `testzip` after the LR was changed in the same record."""
    path = tmp_path / "scheduler.bin"
    torch.save({"last_epoch": 3, "base_lrs": [0.1], "text": "M" * 50}, path)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"M" * 50, b"M" * 49 + b"L"))
    write(path, edit(path, scaled(file_sites(path), 0.5)))
    with zipfile.ZipFile(path) as zipped:
        assert zipped.testzip() == "scheduler/data.pkl"
    with pytest.raises(StateError, match="damaged"):
        rebuilt(path, scaled(file_sites(path), 0.5))


# -- real and DeepSpeed directories ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def accelerate_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from accelerate import Accelerator

    folder = tmp_path_factory.mktemp("accelerate")
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = schedulers.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(scheduler)
    for _ in range(3):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        scheduler.step()
    accelerator.save_state(str(folder / "accelerator_state"))
    return folder


def test_a_checkpoint_accelerate_saved(accelerate_state: Path) -> None:
    sites = lr_sites(accelerate_state)
    assert {(s.label, s.value) for s in sites} == {
        ("base_lrs[0]", 1e-3),
        ("_last_lr[0]", 1e-3 / 4),
        ("optimizer.param_groups[0].lr", 1e-3 / 4),
        ("optimizer.param_groups[0].initial_lr", 1e-3),
    }
    for name in sorted({s.file for s in sites}):
        scale(accelerate_state / name, 0.75)
    halved = [s.value for s in lr_sites(accelerate_state)]
    assert halved == [s.value * 0.75 for s in sites]


def deepspeed_state(folder: Path, stage: int, lr_scheduler: Any = None) -> None:
    """The files of two ranks as DeepSpeed names and nests them."""
    state = folder / "accelerator_state"
    shards = state / "pytorch_model"
    shards.mkdir(parents=True)
    scheduler = {"last_epoch": 4, "_step_count": 5, "base_lrs": [1e-4], "_last_lr": [8e-5], "lr_lambdas": [None]}
    torch.save(scheduler, state / "custom_checkpoint_0.pkl")
    for rank in range(2):
        moments = {"step": torch.tensor(4.0), "exp_avg": torch.rand(64), "exp_avg_sq": torch.rand(64)}
        group = {"lr": 8e-5, "initial_lr": 1e-4, "betas": (0.9, 0.95)}
        optimizer = {"state": {0: moments}, "param_groups": [group]}
        master = [torch.rand(64)]
        inner = {
            3: {"optimizer_state_dict": optimizer, "fp32_flat_groups": master, "zero_stage": 3},
            1: {"base_optimizer_state": optimizer, "single_partition_of_fp32_groups": master, "zero_stage": 1},
        }[stage]
        name = f"zero_pp_rank_{rank}_mp_rank_00"
        shard = {"optimizer_state_dict": inner, "ds_config": {"lr": 1.0}, "ds_version": "0.19.8"}
        torch.save(shard, shards / f"bf16_{name}_optim_states.pt")
        if stage == 3 or rank == 0:
            model = {"module": {"w": torch.zeros(0)}, "lr_scheduler": lr_scheduler, "optimizer": None}
            torch.save(model, shards / f"{name if stage == 3 else 'mp_rank_00'}_model_states.pt")
    (shards / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt.orig").write_bytes(b"a copy somebody made")


@pytest.mark.parametrize("stage", [1, 3])
def test_every_rank_of_deepspeed_is_changed(tmp_path: Path, stage: int) -> None:
    deepspeed_state(tmp_path, stage)
    sites = lr_sites(tmp_path)
    where = "optimizer_state_dict." + ("optimizer_state_dict" if stage == 3 else "base_optimizer_state")
    shard = "accelerator_state/pytorch_model/bf16_zero_pp_rank_{}_mp_rank_00_optim_states.pt"
    expected = {("accelerator_state/custom_checkpoint_0.pkl", f"{field}[0]") for field in ("base_lrs", "_last_lr")}
    for rank in range(2):
        expected |= {(shard.format(rank), f"{where}.param_groups[0].{field}") for field in ("lr", "initial_lr")}
    assert {(s.file, s.label) for s in sites} == expected
    for name in sorted({s.file for s in sites}):
        path = tmp_path / name
        write(path, edit(path, [(s, s.value * 0.75) for s in sites if s.file == name]))
        with zipfile.ZipFile(path) as zipped:
            assert zipped.testzip() is None
    assert [s.value for s in lr_sites(tmp_path)] == [s.value * 0.75 for s in sites]
    loaded = torch.load(tmp_path / shard.format(1))
    assert loaded["ds_config"] == {"lr": 1.0}
    assert leaves(loaded)[f".{where}.param_groups[0].lr"] == 8e-5 * 0.75


def test_a_scheduler_deepspeed_holds_is_changed(tmp_path: Path) -> None:
    deepspeed_state(tmp_path, 1, lr_scheduler={"last_epoch": 4, "base_lrs": [1e-4], "_last_lr": [8e-5]})
    labels = [s.label for s in lr_sites(tmp_path)]
    assert "lr_scheduler.base_lrs[0]" in labels


def test_an_empty_or_torn_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no optimizer or scheduler"):
        lr_sites(tmp_path)
    deepspeed_state(tmp_path, 3)
    shard = next(tmp_path.rglob("*rank_1*optim_states.pt"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(StateError) as caught:
        lr_sites(tmp_path)
    assert caught.value.where == str(shard)


def test_torch_is_not_needed(accelerate_state: Path) -> None:
    program = (
        "import sys, pathlib; from ops.checkpoints import lr, moments; "
        "folder = pathlib.Path(sys.argv[1]); sites = lr.lr_sites(folder); "
        "lr.edit(folder / sites[0].file, [(sites[0], 0.5)]); "
        "moments.zeroing(folder / 'accelerator_state' / 'optimizer.bin'); "
        "print(len(sites), 'torch' in sys.modules, 'numpy' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(accelerate_state)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["4", "False", "False"]
