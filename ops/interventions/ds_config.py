"""DeepSpeed's own schedulers: their LR lives in ds_config, which the next job reads, and not in the checkpoint.

Source: DeepSpeed `runtime/lr_schedules.py`: WarmupLR, WarmupDecayLR, OneCycle and LRRangeTest take their LRs from
`scheduler.params`; WarmupCosineLR multiplies the LR that the optimizer was made with. Their state is a step alone.
transformers `integrations/deepspeed.py` (`trainer_config_process`): HF Trainer compares `warmup_max_lr` and the optimizer's
`lr` with its own `learning_rate`, and takes "auto" for that (for 0, as `warmup_min_lr`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from ops import jsontext, schedules
from ops.actions import Action, WriteText
from ops.errors import BadInput, Refused
from ops.interventions import targets
from ops.model import Change, Checkpoint, Snapshot, Unknown

PEAKS = ("warmup_max_lr", "cycle_max_lr", "lr_range_test_min_lr")
"""One of them must stand there: a default of DeepSpeed's in its place could not be changed."""
OTHERS = ("warmup_min_lr", "cycle_min_lr")
BY_RATIO = "WarmupCosineLR"
PEAK = {
    "WarmupLR": ("scheduler", "warmup_max_lr"),
    "WarmupDecayLR": ("scheduler", "warmup_max_lr"),
    "OneCycle": ("scheduler", "cycle_max_lr"),
    BY_RATIO: ("optimizer", "lr"),
}
"""Where the highest LR of a schedule stands: section and name. A LRRangeTest rises without end."""
WHY = "the LR of DeepSpeed's own scheduler"


def holds_lr(checkpoint: Checkpoint) -> bool:
    """Whether the scheduler that was saved is one of DeepSpeed's own."""
    return any(schedules.kind(f.scheduler or {}) == schedules.DEEPSPEED for f in targets.states(checkpoint))


def edits(snapshot: Snapshot, checkpoint: Checkpoint, new: Callable[[float], float]) -> tuple[Action, ...]:
    """The change of the config that goes with a change of the LR; none where the checkpoint holds it all."""
    return _written(snapshot, checkpoint, lambda text: changed(text, new)) if holds_lr(checkpoint) else ()


def brought_back(snapshot: Snapshot, checkpoint: Checkpoint, change: Change) -> tuple[Action, ...]:
    """The change of the config that brings back the LRs that a change set to 0 in it, where they are 0 still."""
    if not holds_lr(checkpoint):
        return ()
    before = change.texts.get(str(snapshot.run.ds_config), "")
    if not before:
        raise Refused(
            f"change {change.id} set the LR to 0 in another ds_config than m4ops.toml names",
            str(snapshot.run.ds_config or snapshot.run.dir),
            f"m4ops undo {change.id} --dry-run shows in which, and what stood there",
        )
    return _written(snapshot, checkpoint, lambda text: restored(text, before))


def peak(snapshot: Snapshot, checkpoint: Checkpoint) -> float:
    """The highest LR of the schedule's first group, as the config has it."""
    path, text = _text(snapshot, checkpoint)
    try:
        kind = json.loads(jsontext.value(jsontext.value(text, "scheduler"), "type"))
        if kind not in PEAK:
            raise BadInput(f"{kind} has none")
        section, name = PEAK[kind]
        value = json.loads(jsontext.value(jsontext.value(jsontext.value(text, section), "params"), name))
        first = value[0] if isinstance(value, list) and value else value
        if isinstance(first, bool) or not isinstance(first, int | float):
            raise BadInput(f"{name} is {json.dumps(value)}, which the trainer fills in")
    except BadInput as error:
        raise Refused(
            f"the schedule's peak cannot be told from ds_config: {error.what}",
            path,
            "without --peak the current LR is set, and the schedule scaled with it",
        ) from None
    return float(first)


def informed(state: schedules.State, text: str | Unknown) -> schedules.State:
    """The state of one of DeepSpeed's own schedulers with what the config says of it; any other as it is."""
    if schedules.kind(state) != schedules.DEEPSPEED or not isinstance(text, str):
        return state
    try:
        said = json.loads(text)
        scheduler = said["scheduler"]
        params = dict(scheduler.get("params", {}))
        if scheduler["type"] == BY_RATIO:
            params["lr"] = said["optimizer"]["params"]["lr"]
        return {**state, "type": scheduler["type"], "params": params}
    except (ValueError, KeyError, TypeError, AttributeError):
        return state


def texts(actions: Iterable[Action], text: str | Unknown) -> tuple[str | Unknown, str | Unknown]:
    """The config before and after these actions."""
    for action in actions:
        if isinstance(action, WriteText) and action.why == WHY and action.after is not None:
            return action.before or "", action.after
    return text, text


def _written(snapshot: Snapshot, checkpoint: Checkpoint, new: Callable[[str], str]) -> tuple[Action, ...]:
    path, text = _text(snapshot, checkpoint)
    try:
        after = new(text)
    except BadInput as error:
        raise Refused(
            f"the LR cannot be changed in ds_config: {error.what}",
            path,
            "write the number into ds_config (with HF Trainer it must be its learning_rate), then do this again",
        ) from None
    return (WriteText(path, text, after, WHY),) if after != text else ()


def _text(snapshot: Snapshot, checkpoint: Checkpoint) -> tuple[str, str]:
    """Where the config is, and what stands in it. Raises Refused."""
    path = snapshot.run.ds_config
    if path is None:
        raise Refused(
            "the scheduler is DeepSpeed's own: its LR comes from ds_config, and the checkpoint holds only its step",
            str(checkpoint.path),
            'say in m4ops.toml which one the next job will read: ds_config = "…/ds_config.json"',
        )
    if not isinstance(snapshot.ds_config, str):
        raise Refused(f"the ds_config is UNKNOWN: {snapshot.ds_config.reason}", str(path))
    return str(path), snapshot.ds_config


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


def restored(text: str, before: str) -> str:
    """The config's text with the LRs of an earlier one wherever they are 0 now. Raises BadInput where it has another scheduler."""
    kinds = [json.loads(jsontext.value(jsontext.value(t, "scheduler"), "type")) for t in (text, before)]
    if kinds[0] != kinds[1]:
        raise BadInput(f"it has a {kinds[0]} now, and had a {kinds[1]} when its LR was set to 0")
    for section, names in (("scheduler", (*PEAKS, *OTHERS)), ("optimizer", ("lr",))):
        if not all("params" in json.loads(t).get(section, {}) for t in (text, before)):
            continue
        now = jsontext.value(text, section)
        params, old = jsontext.value(now, "params"), jsontext.value(jsontext.value(before, section), "params")
        for name in (n for n in names if n in json.loads(params) and n in json.loads(old)):
            value = json.loads(params)[name]
            if not any(value if isinstance(value, list) else [value]):
                params = jsontext.replaced(params, name, jsontext.value(old, name))
        text = jsontext.replaced(text, section, jsontext.replaced(now, "params", params))
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
