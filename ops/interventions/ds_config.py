"""DeepSpeed's own schedulers: their LR lives in ds_config, which the next job reads, and not in the checkpoint.

Source: DeepSpeed `runtime/lr_schedules.py`: WarmupLR, WarmupDecayLR, OneCycle and LRRangeTest take their LRs from
`scheduler.params`; WarmupCosineLR multiplies the LR that the optimizer was made with. Their state is a step alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ops import jsontext, schedules
from ops.actions import Action, WriteText
from ops.errors import BadInput, Refused
from ops.interventions import targets
from ops.model import Checkpoint, Snapshot

LR_PARAMS = ("warmup_min_lr", "warmup_max_lr", "cycle_min_lr", "cycle_max_lr", "lr_range_test_min_lr")
BY_RATIO = "WarmupCosineLR"


def holds_lr(checkpoint: Checkpoint) -> bool:
    """Whether the scheduler that was saved is one of DeepSpeed's own."""
    return any(schedules.kind(f.scheduler or {}) == schedules.DEEPSPEED for f in targets.states(checkpoint))


def edits(snapshot: Snapshot, checkpoint: Checkpoint, new: Callable[[float], float]) -> tuple[Action, ...]:
    """The change of the config that goes with a change of the LR; none where the checkpoint holds it all."""
    if not holds_lr(checkpoint):
        return ()
    path = snapshot.run.ds_config
    if path is None:
        raise Refused(
            "the scheduler is DeepSpeed's own: its LR comes from ds_config, and the checkpoint holds only its step",
            str(checkpoint.path),
            'say in m4ops.toml which one the next job will read: ds_config = "…/ds_config.json"',
        )
    if not isinstance(snapshot.ds_config, str):
        raise Refused(f"the ds_config is UNKNOWN: {snapshot.ds_config.reason}", str(path))
    try:
        text = changed(snapshot.ds_config, new)
    except BadInput as error:
        raise Refused(
            f"the LR cannot be changed in ds_config: {error.what}",
            str(path),
            "change it there, or in what generates it, then give --again with the config out of m4ops.toml",
        ) from None
    return (WriteText(str(path), snapshot.ds_config, text, "the LR of DeepSpeed's own scheduler"),)


def changed(text: str, new: Callable[[float], float]) -> str:
    """The config's text with other LRs and every other byte as it was. Raises BadInput where it holds none."""
    scheduler = jsontext.value(text, "scheduler")
    kind = json.loads(jsontext.value(scheduler, "type"))
    if kind == BY_RATIO:
        optimizer = jsontext.value(text, "optimizer")
        return jsontext.replaced(text, "optimizer", _with(optimizer, ("lr",), new))
    return jsontext.replaced(text, "scheduler", _with(scheduler, LR_PARAMS, new))


def _with(section: str, names: tuple[str, ...], new: Callable[[float], float]) -> str:
    params = jsontext.value(section, "params")
    found = [name for name in names if name in json.loads(params)]
    if not found:
        raise BadInput(f"its params hold none of {', '.join(names)}")
    for name in found:
        params = jsontext.replaced(params, name, _rates(name, jsontext.value(params, name), new))
    return jsontext.replaced(section, "params", params)


def _rates(name: str, source: str, new: Callable[[float], float]) -> str:
    value = json.loads(source)
    rates = value if isinstance(value, list) else [value]
    if not all(isinstance(r, int | float) and not isinstance(r, bool) for r in rates):
        raise BadInput(f"{name} is {source}, which the trainer fills in")
    told = [json.dumps(new(float(r)) if r else r) for r in rates]
    return f"[{', '.join(told)}]" if isinstance(value, list) else told[0]
