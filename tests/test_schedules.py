"""The arithmetic of schedules beside the real schedulers: the LR ahead, and what stands in the state at another step."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as t
from torch.optim.swa_utils import SWALR

from ops import schedules
from ops.model import Unknown

RATES = (1e-3, 4e-4)
FIELDS = ("lr", "initial_lr", "max_lr", "min_lr", "swa_lr")
Make = Callable[[torch.optim.Optimizer], Any]
BY_STEP: dict[str, Make] = {
    "StepLR": lambda o: t.StepLR(o, 7, gamma=0.3),
    "MultiStepLR": lambda o: t.MultiStepLR(o, [5, 15, 15], gamma=0.3),
    "ConstantLR": lambda o: t.ConstantLR(o, 0.3, total_iters=18),
    "LinearLR": lambda o: t.LinearLR(o, 0.1, total_iters=24),
    "ExponentialLR": lambda o: t.ExponentialLR(o, 0.93),
    "PolynomialLR": lambda o: t.PolynomialLR(o, total_iters=30, power=2.0),
    "CosineAnnealingLR": lambda o: t.CosineAnnealingLR(o, 12, eta_min=2e-5),
    "CosineAnnealingWarmRestarts": lambda o: t.CosineAnnealingWarmRestarts(o, 6, T_mult=2, eta_min=1e-5),
    "CyclicLR": lambda o: t.CyclicLR(o, 1e-5, [1e-3, 2e-3], 6, mode="triangular2", cycle_momentum=False),
    "OneCycleLR": lambda o: t.OneCycleLR(o, [1e-3, 2e-3], total_steps=60),
    "SequentialLR": lambda o: t.SequentialLR(
        o, [t.LinearLR(o, 0.1, total_iters=6), t.CosineAnnealingLR(o, 20, eta_min=1e-5)], milestones=[14]
    ),
    "ChainedScheduler": lambda o: t.ChainedScheduler([t.ConstantLR(o, 0.5, 12), t.ExponentialLR(o, 0.9)]),
}
BY_PATH: dict[str, Make] = {"SWALR": lambda o: SWALR(o, swa_lr=3e-5, anneal_epochs=15)}
UNTOLD: dict[str, Make] = {
    "LambdaLR": lambda o: t.LambdaLR(o, lambda step: min(1.0, step / 20)),
    "ReduceLROnPlateau": lambda o: t.ReduceLROnPlateau(o, patience=2),
}


@pytest.fixture(autouse=True)
def quiet_torch() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Training:
    def __init__(self, make: Make, steps: int = 0) -> None:
        groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": lr} for lr in RATES]
        self.optimizer = torch.optim.AdamW(groups)
        self.scheduler = make(self.optimizer)
        self.train(steps)

    def train(self, steps: int) -> list[tuple[float, ...]]:
        used = []
        for _ in range(steps):
            used.append(tuple(group["lr"] for group in self.optimizer.param_groups))
            self.optimizer.step()
            self.scheduler.step(*[1.0] if isinstance(self.scheduler, t.ReduceLROnPlateau) else [])
        return used

    @property
    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.scheduler.state_dict()
        return state

    @property
    def groups(self) -> list[dict[str, float]]:
        return [{k: group[k] for k in FIELDS if k in group} for group in self.optimizer.param_groups]


def close(rates: object) -> object:
    return [pytest.approx(list(r), rel=1e-12, abs=0) for r in rates]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [*BY_STEP, *BY_PATH])
def test_the_lr_ahead_is_the_real_schedulers(name: str) -> None:
    for saved in (0, 1, 7, 14, 20):
        training = Training({**BY_STEP, **BY_PATH}[name], saved)
        ahead = schedules.ahead(training.state, training.groups, 20)
        assert ahead, ahead
        assert [list(r) for r in ahead] == close(training.train(20))


@pytest.mark.parametrize("name", BY_STEP)
def test_at_another_step_all_goes_on_as_if_it_had_come_there(name: str) -> None:
    for wanted in (0, 3, 12, 14, 26):
        saved, there = Training(BY_STEP[name], 10), Training(BY_STEP[name], wanted)
        state = schedules.edited(saved.state, schedules.moved(saved.state, wanted).items())
        rates = schedules.at(saved.state, saved.groups, wanted)
        assert rates, rates
        groups = [{**group, "lr": lr} for group, lr in zip(saved.groups, rates, strict=True)]
        ahead = schedules.ahead(state, groups, 20)
        assert ahead, ahead
        assert [list(r) for r in ahead] == [pytest.approx(r, rel=1e-9, abs=1e-15) for r in there.train(20)]


@pytest.mark.parametrize("name", UNTOLD)
def test_what_the_state_does_not_tell_is_unknown_with_the_reason(name: str) -> None:
    training = Training(UNTOLD[name], 10)
    ahead = schedules.ahead(training.state, training.groups, 5)
    assert not ahead
    assert ("lambdas live in the trainer's code" if name == "LambdaLR" else "follows the loss") in ahead.reason
    assert schedules.ahead(training.state, training.groups, 1) == (tuple(g["lr"] for g in training.groups),)
    assert not schedules.at(training.state, training.groups, 5)


@pytest.mark.parametrize("style", ["constant", "linear", "cosine", "inverse-square-root"])
def test_megatrons_lr_at_a_sample_is_the_real_schedulers(style: str) -> None:
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

    groups = [
        {"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.0, **own}
        for own in ({}, {"max_lr": 3e-4, "min_lr": 2e-6})
    ]
    optimizer = torch.optim.SGD(groups)
    wd = {"start_wd": 0.0, "end_wd": 0.0, "wd_incr_steps": 1, "wd_incr_style": "constant"}
    real = OptimizerParamScheduler(optimizer, 0.0, 1e-3, 1e-5, 40, 400, style, **wd)  # type: ignore[arg-type]
    for _ in range(60):
        real.step(increment=8)
        fields = [{k: g[k] for k in ("lr", "max_lr", "min_lr") if k in g} for g in optimizer.param_groups]
        told = schedules.at(real.state_dict(), fields, real.num_steps)
        if real.num_steps <= 40:
            assert isinstance(told, Unknown)
        else:
            assert told == pytest.approx([g["lr"] for g in optimizer.param_groups], rel=1e-12)
