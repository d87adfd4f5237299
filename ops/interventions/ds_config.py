"""DeepSpeed's own schedulers: their LR lives in ds_config, which the next job reads, and not in the checkpoint.

Source: DeepSpeed `runtime/lr_schedules.py`: WarmupLR, WarmupDecayLR, OneCycle and LRRangeTest take their LRs from
`scheduler.params`; WarmupCosineLR multiplies the LR that the optimizer was made with. Their state is a step alone.
transformers `integrations/deepspeed.py` (`trainer_config_process`): HF Trainer compares `warmup_max_lr` and the optimizer's
`lr` with its own `learning_rate`, and takes "auto" for that (for 0, as `warmup_min_lr`).
"""

from __future__ import annotations

import json
from collections.abc import Callable

from ops import jsontext, schedules
from ops.actions import Action, WriteText
from ops.errors import BadInput, Refused
from ops.interventions import targets
from ops.model import Checkpoint, Snapshot

PEAKS = ("warmup_max_lr", "cycle_max_lr", "lr_range_test_min_lr")
"""One of them must stand there: a default of DeepSpeed's in its place could not be changed."""
OTHERS = ("warmup_min_lr", "cycle_min_lr")
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
            "write the number into ds_config (with HF Trainer it must be its learning_rate), then do this again",
        ) from None
    return (WriteText(str(path), snapshot.ds_config, text, "the LR of DeepSpeed's own scheduler"),)


def changed(text: str, new: Callable[[float], float]) -> str:
    """The config's text with other LRs and every other byte as it was. Raises BadInput where it holds none."""
    scheduler = jsontext.value(text, "scheduler")
    by_ratio = json.loads(jsontext.value(scheduler, "type")) == BY_RATIO
    if not by_ratio:
        text = jsontext.replaced(text, "scheduler", _with(scheduler, PEAKS, OTHERS, new))
    if by_ratio or "optimizer" in json.loads(text):
        needed, others = (("lr",), ()) if by_ratio else ((), ("lr",))
        text = jsontext.replaced(text, "optimizer", _with(jsontext.value(text, "optimizer"), needed, others, new))
    return text


def _with(section: str, needed: tuple[str, ...], others: tuple[str, ...], new: Callable[[float], float]) -> str:
    """A section with other LRs in its params. One of the `needed` must be there, as a number; the `others` may be "auto"."""
    if not needed and "params" not in json.loads(section):
        return section
    params = jsontext.value(section, "params")
    there = json.loads(params)
    if needed and there.keys().isdisjoint(needed):
        raise BadInput(f"its params hold none of {', '.join(needed)}")
    for name in (n for n in (*needed, *others) if n in there):
        if not (name in others and there[name] == "auto"):
            params = jsontext.replaced(params, name, _rates(name, jsontext.value(params, name), new))
    return jsontext.replaced(section, "params", params)


def _rates(name: str, source: str, new: Callable[[float], float]) -> str:
    value = json.loads(source)
    rates = value if isinstance(value, list) else [value]
    if not all(isinstance(r, int | float) and not isinstance(r, bool) for r in rates):
        raise BadInput(f"{name} is {source}, which the trainer fills in")
    told = [json.dumps(new(float(r)) if r else r) for r in rates]
    return f"[{', '.join(told)}]" if isinstance(value, list) else told[0]
