"""What a change of LR or schedule makes of the next steps, before and after, as far as the saved state tells it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby

from ops import schedules
from ops.actions import Action, PatchState, Rewrite
from ops.interventions import ds_config, targets
from ops.model import Checkpoint, StateFile, Unknown

STEPS = 5
GROUPS = 4
"""Parameter groups shown."""
Values = Mapping[tuple[str, str], float]
"""New numbers by file and label."""


def said(checkpoint: Checkpoint, actions: Sequence[Action], config: str | Unknown) -> tuple[str, ...]:
    """The LR of the next steps before and after these actions, a line a parameter group; what the change needs besides.

    `config`: what ds_config says, to which one of DeepSpeed's own schedulers looks.
    """
    return (
        *_curves(checkpoint, actions, ds_config.texts(actions, config)),
        *((checkpoint.lr_note,) if checkpoint.lr_note else ()),
    )


def _curves(
    checkpoint: Checkpoint, actions: Sequence[Action], configs: tuple[str | Unknown, str | Unknown]
) -> tuple[str, ...]:
    states, new = targets.states(checkpoint), _values(checkpoint, actions)
    before, after = groups(states, {}), groups(states, new)
    if new and not before and not all(f.grouped for f in states):
        return (
            "each parameter has an LR of its own, and they are not all the same: those of the next steps are not shown",
        )
    if not new or not before:
        return ()
    holder = next((f for f in states if f.scheduler is not None), None)
    looks = zip((before, after), ({}, new), configs, strict=True)
    curves = [ahead(holder, rates, edited(holder, values, config), STEPS) for rates, values, config in looks]
    if isinstance(curves[0], Unknown) or isinstance(curves[1], Unknown):
        reason = next(c.reason for c in curves if isinstance(c, Unknown))
        first = ", ".join(dict.fromkeys(f"{a['lr']:.6g} → {b['lr']:.6g}" for a, b in zip(before, after, strict=True)))
        return (
            f"LR of the first resumed step: {first}; those after it cannot be computed here: {reason}{_later(new, states)}",
        )
    lines = []
    for index in range(min(len(before), GROUPS)):
        pairs = (f"{a[index]:.6g} → {b[index]:.6g}" for a, b in zip(*curves, strict=True))
        group = f" of group {index}" if len(before) > 1 else ""
        lines.append(f"LR{group} in the next steps: {', '.join(pairs)}")
    return tuple(lines)


def ahead(
    holder: StateFile | None, rates: Sequence[schedules.Group], state: schedules.State, steps: int
) -> tuple[tuple[float, ...], ...] | Unknown:
    """The LR of each group in the next steps, by the scheduler's state. Without a scheduler it stays."""
    if holder is None or holder.scheduler is None:
        return tuple(tuple(g["lr"] for g in rates) for _ in range(steps))
    if isinstance(stride := holder.stride, Unknown):
        return stride
    found = schedules.ahead(state, rates, (steps - 1) * stride + 1)
    return found if isinstance(found, Unknown) else found[::stride]


def edited(holder: StateFile | None, new: Values, config: str | Unknown) -> schedules.State:
    """The scheduler's state with the new numbers, and what ds_config says of it."""
    if holder is None:
        return {}
    mine = (
        (schedules.own(label), value) for (file, label), value in new.items() if _place(file) == _place(holder.file)
    )
    return ds_config.informed(schedules.edited(holder.scheduler or {}, mine), config)


def groups(states: Sequence[StateFile], new: Values) -> list[dict[str, float]]:
    """The LR fields of each of the optimizer's parameter groups, as the first place that holds them all has them.

    Where each parameter has an LR of its own, one group stands for all; none where they are not all the same.
    """
    for _, files in groupby(states, lambda file: _place(file.file)):
        found: dict[int, dict[str, float]] = {}
        apart = set()
        for file, site in [(f, site) for f in files for site in f.lr]:
            if match := re.search(r"param_groups\[(\d+)\]\.(\w+)$", site.label):
                group = found.setdefault(int(match[1]) if file.grouped else 0, {})
                value = new.get((file.file, site.label), site.value)
                apart |= {match[2]} if not file.grouped and group.get(match[2], value) != value else set()
                group[match[2]] = value
        if apart:
            return []
        if found and all("lr" in group for group in found.values()):
            return [found[index] for index in sorted(found)]
    return []


def _place(file: str) -> str:
    """Where all of an optimizer or scheduler is: in a file, or shared out among those of a distributed checkpoint."""
    return file.rpartition("/")[0] if file.endswith(".distcp") else file


def _values(checkpoint: Checkpoint, actions: Sequence[Action]) -> Values:
    home = str(checkpoint.home)
    patched = [a for a in actions if isinstance(a, PatchState | Rewrite) and a.path.startswith(home)]
    return {(a.path[len(home) + 1 :], e.label): e.after for a in patched for e in a.edits}


def _later(new: Values, states: Sequence[StateFile]) -> str:
    """Where every base LR is changed by one factor, that is the factor of all that follows."""
    old = {(f.file, s.label): s.value for f in states for s in f.lr if "base_lrs[" in s.label}
    factors = {f"{new.get(key, value) / value:.6g}" for key, value in old.items() if value}
    return f"; each is {factors.pop()} × what it would have been" if len(factors) == 1 and factors != {"1"} else ""
