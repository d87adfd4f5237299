"""The LR of DeepSpeed's own schedulers at any step, from what ds_config says of them; their state tells the step alone.

Source: DeepSpeed `runtime/lr_schedules.py` (`get_lr` of each class). tests/test_schedule_changes.py holds it against the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import cos, floor, isclose, log, pi
from typing import Any

Params = Mapping[str, Any]
"""`scheduler.params` of ds_config; for a WarmupCosineLR with the optimizer's `lr`."""


class Missing(Exception):
    """The config does not say it."""


def rate(kind: str, params: Params, group: int, done: int) -> float:
    """The LR of a parameter group when the scheduler has made `done` steps. Raises Missing."""
    if kind not in _RATES:
        raise Missing(f"m4ops does not know DeepSpeed's {kind}")
    return _RATES[kind](params, group, done - 1)


def _number(params: Params, name: str, default: float | None = None, group: int = 0) -> float:
    value = params.get(name, default)
    if isinstance(value, list):
        value = value[group] if group < len(value) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Missing(f"ds_config says no number for {name}" + (f", but {value!r}" if name in params else ""))
    return float(value)


def _warmed(params: Params, last: int) -> float | None:
    """How far the warm-up has come; None after it."""
    steps = max(2, int(_number(params, "warmup_num_steps", 1000)))
    if last >= steps:
        return None
    linear = params.get("warmup_type") == "linear"
    return last / steps if linear else 1.0 / log(steps) * log(last + 1)


def _warmup(params: Params, group: int, last: int) -> float:
    low = _number(params, "warmup_min_lr", 0.0, group)
    if last < 0:
        return low
    gamma = _warmed(params, last)
    return low + (_number(params, "warmup_max_lr", None, group) - low) * (1.0 if gamma is None else gamma)


def _warmup_decay(params: Params, group: int, last: int) -> float:
    if last < 0 or _warmed(params, last) is not None:
        return _warmup({"warmup_max_lr": 0.001, **params}, group, last)
    low, high = _number(params, "warmup_min_lr", 0.0, group), _number(params, "warmup_max_lr", 0.001, group)
    total, steps = _number(params, "total_num_steps"), max(2, int(_number(params, "warmup_num_steps", 1000)))
    return low + (high - low) * max(0.0, (total - last) / max(1.0, total - steps))


def _warmup_cosine(params: Params, group: int, last: int) -> float:
    rate = _number(params, "lr")
    if last < 0:
        return 0.0
    if (gamma := _warmed(params, last)) is not None:
        least = _number(params, "warmup_min_ratio", 0.0)
        return rate * (least + gamma * (1.0 - least))
    least, steps = _number(params, "cos_min_ratio", 0.0001), max(2, int(_number(params, "warmup_num_steps", 1000)))
    part = min(1.0, (last - steps + 1) / max(1, _number(params, "total_num_steps") - steps))
    return rate * max(0.0, least + (1.0 - least) * ((1 + cos(pi * part)) / 2))


def _range_test(params: Params, group: int, last: int) -> float:
    interval = (last + 1) / _number(params, "lr_range_test_step_size", 2000)
    interval = floor(interval) if params.get("lr_range_test_staircase") else interval
    rise = 1 + _number(params, "lr_range_test_step_rate", 1.0) * interval
    return _number(params, "lr_range_test_min_lr", 1e-3, group) * rise


def _one_cycle(params: Params, group: int, last: int) -> float:
    low, high = _number(params, "cycle_min_lr", None, group), _number(params, "cycle_max_lr", None, group)
    first = _number(params, "cycle_first_step_size", 2000)
    second = (
        _number(params, "cycle_second_step_size", first) if params.get("cycle_second_step_size") is not None else first
    )
    total = first + second
    if last < 0:
        return low
    if last >= total:
        fall, every = _number(params, "decay_lr_rate", 0.0), _number(params, "decay_step_size", 0)
        still = isclose(fall, 0) or isclose(every, 0)
        return low if still else low / (1 + fall * ((last - total + 1) / every))
    x = 1.0 + (last + 1) / total - floor(1 + (last + 1) / total)
    ratio = first / total
    rise = x / ratio if x <= ratio else (x - 1) / (ratio - 1)
    stairs = params.get("cycle_first_stair_count", 0)
    if x > ratio and params.get("cycle_second_stair_count") is not None:
        stairs = params["cycle_second_stair_count"]
    if stairs:
        at = (last + 1) % total
        rise = floor(at * stairs / first if at <= first else (total - at) * stairs / second) / stairs
    return low + (high - low) * rise


_RATES: dict[str, Callable[[Params, int, int], float]] = {
    "WarmupLR": _warmup,
    "WarmupDecayLR": _warmup_decay,
    "WarmupCosineLR": _warmup_cosine,
    "LRRangeTest": _range_test,
    "OneCycle": _one_cycle,
}
