"""The learning rate of the next steps, and of any step, from what a scheduler and its optimizer saved.

The arithmetic of torch's schedulers on plain values: what `step()` does to a group's LR (`ahead`), and what stands in
the state at another step (`moved`). Source: pytorch `torch/optim/lr_scheduler.py` (`get_lr`, `_get_closed_form_lr`),
`torch/optim/swa_utils.py` (SWALR). bench/lr_exactness.py holds it against the real ones.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from math import cos, floor, pi
from typing import Any

from ops.model import Unknown

State = Mapping[str, Any]
"""A scheduler's state dict: numbers, texts, lists and mappings."""
Group = Mapping[str, float]
"""The LR fields of one of the optimizer's parameter groups."""
COUNTERS = ("last_epoch", "_step_count", "T_cur", "T_i", "last_batch_iteration", "num_steps")
"""Where a scheduler says how far it is."""
_HELD = re.compile(r"(?:(?:app\.)?lr_schedulers?(?:\[\d+\])?|opt_param_scheduler|state\.schedulers\.\w+)\.")
"""How a label begins in a file that holds more than a scheduler: DeepSpeed's, Lightning's, Megatron-LM's, Composer's."""
_INNER = re.compile(r"(?:^|\.)_schedulers\[")
IN_CODE = "LambdaLR or MultiplicativeLR"
DEEPSPEED = "DeepSpeed's own scheduler"
MEGATRON = "Megatron-LM's scheduler"
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("SequentialLR", ("_schedulers", "_milestones")),
    ("ChainedScheduler", ("_schedulers",)),
    (IN_CODE, ("lr_lambdas",)),
    ("GreedyLR", ("patience", "num_good_epochs", "min_lrs")),
    ("ReduceLROnPlateau", ("patience", "min_lrs")),
    ("OneCycleLR", ("_schedule_phases",)),
    ("CyclicLR", ("max_lrs", "total_size")),
    ("CosineAnnealingWarmRestarts", ("T_0", "T_i")),
    ("CosineAnnealingLR", ("T_max",)),
    ("SWALR", ("anneal_epochs",)),
    ("StepLR", ("step_size", "gamma")),
    ("MultiStepLR", ("milestones", "gamma")),
    ("LinearLR", ("start_factor", "end_factor")),
    ("ConstantLR", ("factor", "total_iters")),
    ("PolynomialLR", ("power", "total_iters")),
    ("ExponentialLR", ("gamma",)),
    (DEEPSPEED, ("last_batch_iteration",)),
    (MEGATRON, ("lr_decay_style", "num_steps")),
)  # fmt: skip


_OF_ALL = {"base_lrs", "last_epoch", "_step_count", "_is_initial", "_get_lr_called_within_step", "_last_lr", "verbose"}
"""What every scheduler of torch saves; one that saves no more has its formula in code (DCP leaves out empty `lr_lambdas`)."""


class Unforeseen(Exception):
    """The LR cannot be told from the state; says why."""


def kind(state: State) -> str:
    """The class that saves such fields; empty for one that m4ops does not know."""
    in_code = IN_CODE if "last_epoch" in state and state.keys() <= _OF_ALL else ""
    return next((name for name, fields in _KINDS if all(f in state for f in fields)), in_code)


def ahead(state: State, groups: Sequence[Group], steps: int) -> tuple[tuple[float, ...], ...] | Unknown:
    """The LR of each group in each of the next optimizer steps; the first is the optimizer's own."""
    held, now = deepcopy(dict(state)), [dict(g) for g in groups]
    found = [tuple(g["lr"] for g in now)]
    try:
        for _ in range(steps - 1):
            _step(held, now)
            found.append(tuple(g["lr"] for g in now))
    except Unforeseen as why:
        return Unknown(str(why))
    except (KeyError, TypeError, ValueError, ZeroDivisionError, IndexError, OverflowError) as error:
        return Unknown(f"its state is not what {kind(state) or 'such a scheduler'} saves ({error})")
    return tuple(found)


def own(label: str) -> str:
    """A label without what holds the scheduler in its file."""
    return label[match.end() :] if (match := _HELD.match(label)) else label


def inner(label: str) -> bool:
    """Whether a label is of a scheduler within another."""
    return _INNER.search(label) is not None


def edited(state: State, values: Iterable[tuple[str, float]]) -> dict[str, Any]:
    """The state with other numbers at these labels (`_schedulers[0].base_lrs[1]`); those it does not have are let be."""
    held = deepcopy(dict(state))
    for label, value in values:
        *way, last = [int(k) if k.isdigit() else k for k in re.findall(r"[^.\[\]]+", label)]
        node: Any = held
        try:
            for key in way:
                node = node[key]
            node[last] = value
        except (KeyError, IndexError, TypeError):
            continue
    return held


def moved(state: State, epoch: int) -> dict[str, float]:
    """Where the counters stand at `epoch`, by label. Raises Unforeseen for one whose place the state does not tell."""
    return dict(_places(state, epoch, ""))


def stands_at(state: State) -> int | None:
    """How many steps the scheduler says it has made; None where it counts none of its own."""
    last = state.get("last_epoch") if kind(state) != DEEPSPEED else state["last_batch_iteration"] + 1
    return last if isinstance(last, int) else None


def at(state: State, groups: Sequence[Group], epoch: int) -> tuple[float, ...] | Unknown:
    """The LR of each group when the scheduler stands at `epoch`."""
    try:
        return tuple(_closed(state, group, index, epoch) for index, group in enumerate(groups))
    except Unforeseen as why:
        return Unknown(str(why))
    except (KeyError, TypeError, ValueError, ZeroDivisionError, IndexError, OverflowError) as error:
        return Unknown(f"its state is not what {kind(state) or 'such a scheduler'} saves ({error})")


# -- one step on -----------------------------------------------------------------------------------------


def _step(s: dict[str, Any], groups: list[dict[str, float]], first: bool = False) -> None:
    """What `step()` changes; `first`: what a SequentialLR does to the scheduler it changes to."""
    name = kind(s)
    if name == "ChainedScheduler":
        for inside in s["_schedulers"]:
            _step(inside, groups)
        return
    if name == MEGATRON:
        raise Unforeseen(_why(name))
    if name == DEEPSPEED:
        s["last_batch_iteration"] += 1
        for index, group in enumerate(groups):
            group["lr"] = _deepspeeds(s, index, s["last_batch_iteration"] + 1)
        return
    s["_step_count"] = s.get("_step_count", 0) + (not first)
    s["last_epoch"] = 0 if first else s["last_epoch"] + 1
    if name == "SequentialLR":
        index = bisect_right(s["_milestones"], s["last_epoch"])
        _step(s["_schedulers"][index], groups, index > 0 and s["_milestones"][index - 1] == s["last_epoch"])
        return
    if name == "CosineAnnealingWarmRestarts" and not first:
        s["T_cur"] += 1
        if s["T_cur"] >= s["T_i"]:
            s["T_cur"], s["T_i"] = s["T_cur"] % s["T_i"], s["T_i"] * s["T_mult"]
    rates = [_next(s, name, g, i, first) for i, g in enumerate(groups)]
    for group, rate in zip(groups, rates, strict=True):
        group["lr"] = rate


def _next(s: State, name: str, group: Group, index: int, first: bool) -> float:
    formula = _CLOSED if first or name in ("OneCycleLR", "CyclicLR") else _FROM_THE_LAST
    if name not in formula:
        raise Unforeseen(_why(name))
    return float(formula[name](s, _told(s, group, index), s["last_epoch"]))


def _told(s: State, group: Group, index: int) -> Group:
    """The group with what the scheduler keeps of it: `base`, and a CyclicLR's `high`."""
    kept = ((name, s.get(key)) for name, key in (("base", "base_lrs"), ("high", "max_lrs")))
    return {**group, **{name: float(rates[index]) for name, rates in kept if rates}}


def _why(name: str) -> str:
    told = {
        IN_CODE: "its lambdas live in the trainer's code",
        "ReduceLROnPlateau": "it follows the loss",
        "GreedyLR": "it follows the loss",
        DEEPSPEED: "its formula lives in ds_config",
        MEGATRON: "it counts samples, and how many the next steps take is not saved",
        "SWALR": "it depends on the LR before it",
        "": "m4ops does not know this scheduler",
    }
    return told.get(name, f"{name} depends on the steps before it")


def _linear_next(s: State, group: Group, epoch: int) -> float:
    if epoch == 0:
        return group["lr"] * float(s["start_factor"])
    if epoch > s["total_iters"]:
        return group["lr"]
    rise = s["end_factor"] - s["start_factor"]
    return group["lr"] * float(1.0 + rise / (s["total_iters"] * s["start_factor"] + (epoch - 1) * rise))


def _constant_next(s: State, group: Group, epoch: int) -> float:
    if epoch == 0:
        return group["lr"] * float(s["factor"])
    return group["lr"] * (1.0 / s["factor"]) if epoch == s["total_iters"] else group["lr"]


def _polynomial_next(s: State, group: Group, epoch: int) -> float:
    total = s["total_iters"]
    if epoch > total:
        return group["lr"]
    return group["lr"] * float(((1.0 - epoch / total) / (1.0 - (epoch - 1) / total)) ** s["power"])


def _cosine_next(s: State, group: Group, epoch: int) -> float:
    low, length = s["eta_min"], s["T_max"]
    if s["_step_count"] == 1 and epoch > 0:
        return float(low + (group["base"] - low) * (1 + cos(epoch * pi / length)) / 2)
    if (epoch - 1 - length) % (2 * length) == 0:
        return float(group["lr"] + (group["base"] - low) * (1 - cos(pi / length)) / 2)
    ratio = (1 + cos(pi * epoch / length)) / (1 + cos(pi * (epoch - 1) / length))
    return float(ratio * (group["lr"] - low) + low)


def _swa_next(s: State, group: Group, epoch: int) -> float:
    length, step = s["anneal_epochs"], s["_step_count"] - 1
    step = step if length else max(1, step)
    before, now = (_annealed(s, max(0.0, min(1.0, n / max(1, length)))) for n in (step - 1, step))
    start = group["swa_lr"] if before == 1 else (group["lr"] - before * group["swa_lr"]) / (1 - before)
    return group["swa_lr"] * now + start * (1 - now)


def _annealed(s: State, part: float) -> float:
    return part if s["_anneal_strategy"] == "linear" else (1 - cos(pi * part)) / 2


def _restarting(s: State, group: Group, epoch: int) -> float:
    low = s["eta_min"]
    return float(low + (group["base"] - low) * (1 + cos(pi * s["T_cur"] / s["T_i"])) / 2)


Formula = Callable[[State, Group, int], float]
_FROM_THE_LAST: dict[str, Formula] = {
    "StepLR": lambda s, g, e: g["lr"] * (s["gamma"] if e and e % s["step_size"] == 0 else 1.0),
    "MultiStepLR": lambda s, g, e: g["lr"] * s["gamma"] ** s["milestones"].get(e, 0),
    "ExponentialLR": lambda s, g, e: g["lr"] * s["gamma"],
    "ConstantLR": _constant_next,
    "LinearLR": _linear_next,
    "PolynomialLR": _polynomial_next,
    "CosineAnnealingLR": _cosine_next,
    "SWALR": _swa_next,
    "CosineAnnealingWarmRestarts": _restarting,
}
"""From the group's LR to its next one."""


# -- at any step -----------------------------------------------------------------------------------------


def _closed(s: State, group: Group, index: int, epoch: int) -> float:
    name = kind(s)
    if name == "SequentialLR":
        active = bisect_right(s["_milestones"], epoch)
        begin = s["_milestones"][active - 1] if active else 0
        return _closed(s["_schedulers"][active], group, index, epoch - begin)
    if name == "ChainedScheduler":
        return _chained(s, group, index, epoch)
    if name == DEEPSPEED:
        return _deepspeeds(s, index, epoch)
    if name not in _CLOSED:
        raise Unforeseen(_why(name))
    return float(_CLOSED[name](s, _told(s, group, index), epoch))


def _deepspeeds(s: State, index: int, epoch: int) -> float:
    """Of a state that holds the config's `type` and `params` as well (`ops.interventions.ds_config.informed`)."""
    if "params" not in s:
        raise Unforeseen(_why(DEEPSPEED))
    from ops import deepspeed_rates

    try:
        return deepspeed_rates.rate(s["type"], s["params"], index, epoch)
    except deepspeed_rates.Missing as why:
        raise Unforeseen(str(why)) from None


def _chained(s: State, group: Group, index: int, epoch: int) -> float:
    """The product of what each does to its base LR, where each does nothing but multiply."""
    if any(kind(inside) not in _FACTORS for inside in s["_schedulers"]):
        raise Unforeseen("a ChainedScheduler of others than factors depends on the steps before it")
    rate = base = float(s["_schedulers"][0]["base_lrs"][index])
    for inside in s["_schedulers"]:
        rate *= _closed(inside, group, index, epoch) / base
    return rate


def _one_cycle(s: State, group: Group, epoch: int) -> float:
    if epoch > s["total_steps"]:
        raise Unforeseen(f"a OneCycleLR of {s['total_steps']} steps ends before")
    begin = 0.0
    for phase in s["_schedule_phases"]:
        end = phase["end_step"]
        if epoch <= end or phase is s["_schedule_phases"][-1]:
            low, high = group[phase["start_lr"]], group[phase["end_lr"]]
            part = (epoch - begin) / (end - begin)
            if s["_anneal_func_type"] == "linear":
                return float((high - low) * part + low)
            return high + (low - high) / 2.0 * (cos(pi * float(part)) + 1)
        begin = end
    raise ValueError("no phase")


def _cyclic(s: State, group: Group, epoch: int) -> float:
    if s.get("_scale_fn_custom") is not None or s["mode"] not in ("triangular", "triangular2", "exp_range"):
        raise Unforeseen("its scale_fn lives in the trainer's code")
    cycle = floor(1 + epoch / s["total_size"])
    x = 1.0 + epoch / s["total_size"] - cycle
    rise = x / s["step_ratio"] if x <= s["step_ratio"] else (x - 1) / (s["step_ratio"] - 1)
    scale = {"triangular": 1.0, "triangular2": 1 / 2.0 ** (cycle - 1), "exp_range": s["gamma"] ** epoch}
    return float(group["base"] + (group["high"] - group["base"]) * rise * scale[s["mode"]])


def _restarted(s: State, group: Group, epoch: int) -> float:
    cur, length = _restart(s, epoch)
    return _restarting({**s, "T_cur": cur, "T_i": length}, group, epoch)


def _megatron(s: State, group: Group, samples: int) -> float:
    """As `megatron/core/optimizer_param_scheduler.py` (`get_lr`) has it, where the state holds all of it."""
    warm, end, style = s["lr_warmup_steps"], s["lr_decay_steps"], s["lr_decay_style"]
    high, low = group.get("max_lr", s["max_lr"]), group.get("min_lr", s["min_lr"])
    if warm and samples <= warm:
        raise Unforeseen("the LR that its warm-up begins with (--lr-warmup-init) is not saved")
    if style == "constant":
        return float(high)
    if samples > end:
        return float(low)
    if style == "inverse-square-root":
        return float(max(low, high * (max(warm, 1) ** 0.5) / (max(samples, 1) ** 0.5)))
    if style not in ("linear", "cosine"):
        raise Unforeseen(f"not all of a {style} schedule is saved")
    part = (samples - warm) / (end - warm)
    return float(low + (1.0 - part if style == "linear" else 0.5 * (cos(pi * part) + 1.0)) * (high - low))


_FACTORS: dict[str, Formula] = {
    "StepLR": lambda s, g, e: g["base"] * s["gamma"] ** (e // s["step_size"]),
    "MultiStepLR": lambda s, g, e: g["base"] * s["gamma"] ** sum(n for m, n in s["milestones"].items() if m <= e),
    "ExponentialLR": lambda s, g, e: g["base"] * s["gamma"] ** e,
    "ConstantLR": lambda s, g, e: g["base"] * (1 if e >= s["total_iters"] else s["factor"]),
    "LinearLR": lambda s, g, e: (
        g["base"]
        * (s["start_factor"] + (s["end_factor"] - s["start_factor"]) * min(s["total_iters"], e) / s["total_iters"])
    ),
    "PolynomialLR": lambda s, g, e: g["base"] * (1.0 - min(s["total_iters"], e) / s["total_iters"]) ** s["power"],
}
_CLOSED: dict[str, Formula] = {
    **_FACTORS,
    "CosineAnnealingLR": lambda s, g, e: s["eta_min"] + (g["base"] - s["eta_min"]) * (1 + cos(pi * e / s["T_max"])) / 2,
    "CosineAnnealingWarmRestarts": _restarted,
    "OneCycleLR": _one_cycle,
    "CyclicLR": _cyclic,
    MEGATRON: _megatron,
}
"""The LR by the step alone."""


# -- counters --------------------------------------------------------------------------------------------


def _places(s: State, epoch: int, label: str) -> Iterable[tuple[str, float]]:
    name = kind(s)
    if not name:
        raise Unforeseen(_why(name))
    if name in ("ReduceLROnPlateau", "GreedyLR"):
        raise Unforeseen(f"{name} has no schedule: {_why(name)}")
    yield from ((f"{label}{key}", value) for key, value in _counted(s, name, epoch).items() if key in s)
    if name == "SequentialLR":
        begins = [0, *s["_milestones"]]
        for index, inside in enumerate(s["_schedulers"]):
            end = begins[index + 1] - 1 if index + 1 < len(begins) else epoch
            yield from _places(inside, max(0, min(epoch, end) - begins[index]), f"{label}_schedulers[{index}].")
    elif name == "ChainedScheduler":
        for index, inside in enumerate(s["_schedulers"]):
            yield from _places(inside, epoch, f"{label}_schedulers[{index}].")


def _counted(s: State, name: str, epoch: int) -> dict[str, float]:
    if name == DEEPSPEED:
        return {"last_batch_iteration": epoch - 1}
    if name == MEGATRON:
        return {"num_steps": epoch}
    counts: dict[str, float] = {"last_epoch": epoch, "_step_count": epoch + 1}
    if name == "CosineAnnealingWarmRestarts":
        counts["T_cur"], counts["T_i"] = _restart(s, epoch)
    return counts


def _restart(s: State, epoch: int) -> tuple[float, float]:
    """How far the cycle that `epoch` lies in has come, and how long it is."""
    length = s["T_0"]
    if s["T_mult"] == 1:
        return epoch % length, length
    while epoch >= length:
        epoch, length = epoch - length, length * s["T_mult"]
    return epoch, length
