"""Resetting an optimizer in its file: the moments become a fresh optimizer's, all else stays bit for bit."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from ops.checkpoints.lr import file_sites
from ops.checkpoints.moments import moment_ranges, zeroing
from ops.checkpoints.torchfile import StateError

FORMATS = [{}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}]


def reset(path: Path, factor: float = 1.0) -> None:
    """What the executor does: zeros into the ranges, then the splices. LRs are scaled in the same go."""
    edits = [(site, site.value * factor) for site in file_sites(path)] if factor != 1 else []
    ranges, splices = zeroing(path, edits)
    assert ranges == moment_ranges(path)
    raw = bytearray(path.read_bytes())
    for span in ranges:
        raw[span.offset : span.offset + span.length] = bytes(span.length)
    for splice in splices:
        assert raw[splice.offset : splice.offset + len(splice.old)] == splice.old
        raw[splice.offset : splice.offset + len(splice.old)] = splice.new
    path.write_bytes(raw)
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            assert zipped.testzip() is None


def trained(path: Path, make: Any, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(7, 5)
    optimizer = make(model.parameters())
    for _ in range(3):
        model(torch.rand(2, 7)).sum().backward()
        optimizer.step()
    torch.save(optimizer.state_dict(), path, **options)
    return optimizer.state_dict()


@pytest.mark.parametrize("options", FORMATS)
def test_moments_and_steps_become_zero(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "optimizer.bin"
    before = trained(path, lambda p: torch.optim.AdamW(p, lr=1e-3, amsgrad=True), **options)
    reset(path, 0.5)
    after = torch.load(path, weights_only=False)
    assert after["state"].keys() == before["state"].keys()
    for index, state in after["state"].items():
        assert set(state) == {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
        for key, value in state.items():
            assert value.shape == before["state"][index][key].shape
            assert before["state"][index][key].any()
            assert not value.any(), key
    assert after["param_groups"] == [{**before["param_groups"][0], "lr": 5e-4}]


def test_the_next_steps_are_those_of_a_fresh_optimizer(tmp_path: Path) -> None:
    path, weights = tmp_path / "optimizer.bin", torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([weights])
    for _ in range(4):
        weights.grad = torch.rand(4)
        optimizer.step()
    torch.save(optimizer.state_dict(), path)
    reset(path)
    twins = [torch.nn.Parameter(weights.detach().clone()) for _ in range(2)]
    resumed, fresh = (torch.optim.AdamW([w]) for w in twins)
    resumed.load_state_dict(torch.load(path))
    for _ in range(3):
        for twin in twins:
            twin.grad = twin.detach() * 0.3
        resumed.step()
        fresh.step()
    assert torch.equal(*twins)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
        lambda p: torch.optim.Adamax(p),
        lambda p: torch.optim.Adadelta(p),
    ],
)
def test_other_optimizers(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "optimizer.bin"
    trained(path, make)
    reset(path)
    assert not any(v.any() for s in torch.load(path)["state"].values() for v in s.values())


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("steps", ["tensor", "number"])
def test_master_weights_of_a_shard_stay(tmp_path: Path, stage: int, steps: str) -> None:
    master = torch.rand(64)
    group: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.95)}
    state: dict[str, Any] = {"exp_avg": torch.rand(64), "exp_avg_sq": torch.rand(64)}
    state["step"] = torch.tensor(4.0) if steps == "tensor" else 70_000
    if steps == "number":
        group["step"] = 300
    optimizer = {"state": {0: state}, "param_groups": [group]}
    inner = {
        3: {"optimizer_state_dict": optimizer, "fp32_flat_groups": [master]},
        1: {"base_optimizer_state": optimizer, "single_partition_of_fp32_groups": [master]},
    }[stage]
    path = tmp_path / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    torch.save({"optimizer_state_dict": inner, "ds_version": "0.19.8"}, path)
    reset(path, 0.5)
    after = torch.load(path)["optimizer_state_dict"]
    inner_key, masters = list(inner)
    assert torch.equal(after[masters][0], master)
    assert after[inner_key]["param_groups"][0]["lr"] == 5e-5
    assert after[inner_key]["param_groups"][0].get("step", 0) == 0
    found = after[inner_key]["state"][0]
    assert not found["exp_avg"].any()
    assert not found["exp_avg_sq"].any()
    assert float(found["step"]) == 0


def test_memory_shared_with_weights_is_refused(tmp_path: Path) -> None:
    path, pool = tmp_path / "optimizer.bin", torch.rand(20)
    state = {0: {"exp_avg": pool[:10]}}
    torch.save({"state": state, "param_groups": [{"lr": 0.1}], "master": pool[10:]}, path)
    with pytest.raises(StateError, match=r"state\[0\]\.exp_avg shares its memory"):
        moment_ranges(path)
    torch.save({"state": state, "param_groups": [{"lr": 0.1}]}, path)
    assert [(s.label, s.length) for s in moment_ranges(path)] == [("optimizer.state[0].exp_avg", 80)]


@pytest.mark.parametrize(
    "state", [{"z": torch.rand(2)}, {"mu_product": torch.ones(())}, {"master_param": torch.rand(2)}, {"k": 3}]
)
def test_a_state_that_may_not_start_at_zero_is_refused(tmp_path: Path, state: dict[str, Any]) -> None:
    path = tmp_path / "optimizer.bin"
    torch.save({"state": {0: {"exp_avg": torch.rand(2), **state}}, "param_groups": [{"lr": 0.1}]}, path)
    with pytest.raises(StateError, match=f"{next(iter(state))}: m4ops does not know"):
        zeroing(path)


def test_a_file_without_an_optimizer_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "optimizer.bin"
    torch.save({"module": {"w": torch.ones(2)}}, path)
    with pytest.raises(StateError, match="no optimizer state"):
        moment_ranges(path)
