"""Every scheduler of torch, and of transformers, as the exactness bench resumes them: by name, how to make one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import lr_scheduler as t
from torch.optim.swa_utils import SWALR

Make = Callable[[torch.optim.Optimizer], Any]
BY_LOSS = ("ReduceLROnPlateau", "get_reduce_on_plateau_schedule", "get_greedy_schedule")
RATES = (1e-3, 4e-4)
"""Of the two parameter groups."""


def sequential(o: torch.optim.Optimizer) -> Any:
    warm = t.LinearLR(o, 0.1, total_iters=6)
    return t.SequentialLR(o, [warm, t.CosineAnnealingLR(o, 20, eta_min=1e-5)], milestones=[14])


def sequential_thrice(o: torch.optim.Optimizer) -> Any:
    parts = [t.ConstantLR(o, 0.5, 4), t.ExponentialLR(o, 0.9), t.CosineAnnealingWarmRestarts(o, 5, eta_min=2e-5)]
    return t.SequentialLR(o, parts, milestones=[5, 16])


def chained(o: torch.optim.Optimizer) -> Any:
    return t.ChainedScheduler([t.ConstantLR(o, 0.5, 12), t.ExponentialLR(o, 0.9)])


def chained_sequential(o: torch.optim.Optimizer) -> Any:
    return t.ChainedScheduler([sequential(o), t.MultiStepLR(o, [12, 20], gamma=0.3)])


TORCH: dict[str, Make] = {
    "LambdaLR": lambda o: t.LambdaLR(o, lambda step: min(1.0, step / 20)),
    "LambdaLR, one lambda a group": lambda o: t.LambdaLR(o, [lambda s: 0.9**s, lambda s: 1 / (1 + s)]),
    "MultiplicativeLR": lambda o: t.MultiplicativeLR(o, lambda step: 0.95),
    "StepLR": lambda o: t.StepLR(o, 7),
    "MultiStepLR": lambda o: t.MultiStepLR(o, [5, 15, 25], gamma=0.3),
    "ConstantLR": lambda o: t.ConstantLR(o, 0.3, total_iters=18),
    "LinearLR": lambda o: t.LinearLR(o, 0.1, total_iters=24),
    "ExponentialLR": lambda o: t.ExponentialLR(o, 0.93),
    "PolynomialLR": lambda o: t.PolynomialLR(o, total_iters=30, power=2.0),
    "CosineAnnealingLR": lambda o: t.CosineAnnealingLR(o, 16),
    "CosineAnnealingLR, eta_min": lambda o: t.CosineAnnealingLR(o, 16, eta_min=2e-5),
    "CosineAnnealingWarmRestarts": lambda o: t.CosineAnnealingWarmRestarts(o, 9),
    "CosineAnnealingWarmRestarts, eta_min": lambda o: t.CosineAnnealingWarmRestarts(o, 9, T_mult=2, eta_min=1e-5),
    "CyclicLR, triangular": lambda o: t.CyclicLR(o, 1e-5, 1e-3, step_size_up=6, cycle_momentum=False),
    "CyclicLR, triangular2": lambda o: t.CyclicLR(o, 1e-5, 1e-3, 6, mode="triangular2", cycle_momentum=False),
    "CyclicLR, exp_range": lambda o: t.CyclicLR(o, 1e-5, 1e-3, 6, mode="exp_range", gamma=0.97, cycle_momentum=False),
    "OneCycleLR": lambda o: t.OneCycleLR(o, [1e-3, 2e-3], total_steps=60),
    "OneCycleLR, three phases": lambda o: t.OneCycleLR(
        o, 1e-3, total_steps=40, three_phase=True, anneal_strategy="linear"
    ),
    "SequentialLR": sequential,
    "SequentialLR of three": sequential_thrice,
    "ChainedScheduler": chained,
    "ChainedScheduler of a SequentialLR": chained_sequential,
    "ReduceLROnPlateau": lambda o: t.ReduceLROnPlateau(o, patience=2, min_lr=1e-5),
    "SWALR": lambda o: SWALR(o, swa_lr=3e-5, anneal_epochs=15),
    "SWALR, linear": lambda o: SWALR(o, swa_lr=3e-5, anneal_epochs=15, anneal_strategy="linear"),
}


def of_transformers() -> dict[str, Make]:
    """Every `get_*` schedule of transformers with an LR of its own (`get_adafactor_schedule` only shows another's)."""
    from transformers import optimization as h

    return {
        "get_constant_schedule": lambda o: h.get_constant_schedule(o),
        "get_constant_schedule_with_warmup": lambda o: h.get_constant_schedule_with_warmup(o, 20),
        "get_linear_schedule_with_warmup": lambda o: h.get_linear_schedule_with_warmup(o, 5, 40),
        "get_cosine_schedule_with_warmup": lambda o: h.get_cosine_schedule_with_warmup(o, 5, 40),
        "get_cosine_with_hard_restarts_schedule_with_warmup": lambda o: (
            h.get_cosine_with_hard_restarts_schedule_with_warmup(o, 5, 40, num_cycles=3)
        ),
        "get_polynomial_decay_schedule_with_warmup": lambda o: h.get_polynomial_decay_schedule_with_warmup(
            o, 5, 30, lr_end=1e-5, power=2.0
        ),
        "get_inverse_sqrt_schedule": lambda o: h.get_inverse_sqrt_schedule(o, 5),
        "get_cosine_with_min_lr_schedule_with_warmup": lambda o: h.get_cosine_with_min_lr_schedule_with_warmup(
            o, 5, 30, min_lr=1e-5
        ),
        "get_cosine_with_min_lr_schedule_with_warmup_lr_rate": lambda o: (
            h.get_cosine_with_min_lr_schedule_with_warmup_lr_rate(o, 12, 30, min_lr_rate=0.1, warmup_lr_rate=0.2)
        ),
        "get_wsd_schedule": lambda o: h.get_wsd_schedule(o, 5, 10, num_stable_steps=12, min_lr_ratio=0.1),
        "get_reduce_on_plateau_schedule": lambda o: h.get_reduce_on_plateau_schedule(o, patience=2, min_lr=1e-5),
        "get_greedy_schedule": lambda o: h.get_greedy_schedule(
            o, patience=2, factor=0.5, min_lr=1e-4, max_lr=1.0, reset_start=2
        ),
    }


def steps_by_loss(scheduler: Any) -> bool:
    """Whether the scheduler's step wants the loss."""
    return type(scheduler).__name__ in ("ReduceLROnPlateau", "GreedyLR")
