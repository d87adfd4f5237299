"""Change the learning rate inside a checkpoint: every LR field, in every file, on every rank.

The scheduler's `base_lrs` and `_last_lr` alone are not enough: with a LambdaLR the first resumed step still runs with
the optimizer's own `lr`, and most other schedulers never read those two again. The project's own experiments
(tests/test_lr_sites.py) show that scaling every LR field present scales the whole future curve.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import ClassVar

from msgspec import Struct
from msgspec.structs import replace

from ops.actions import Action, Edit, PatchState
from ops.errors import BadInput, Refused
from ops.interventions import ds_config, forecast, targets
from ops.interventions.lr_promise import scale_promise, set_promise
from ops.interventions.wish import CheckpointEdit
from ops.model import Checkpoint, Expectation, Snapshot, StateFile


class ScaleLr(CheckpointEdit, frozen=True):
    """Multiply the learning rate that the next resume starts with."""

    kind: ClassVar[str] = "scale-lr"
    factor: float
    again: bool = False
    group: int | None = None

    def title(self, snapshot: Snapshot) -> str:
        which = "" if self.group is None else f" in group {self.group}"
        return f"scale the LR of {targets.name(snapshot, self.step(snapshot))} by {self.factor:g}{which}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        check_factor(self.factor)
        checkpoint = self.checkpoint(snapshot)
        refuse_second(snapshot, checkpoint, self.again)
        return self.parked(snapshot, scaled(snapshot, checkpoint, self.factor, self.group))

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        logged = self.factor if self.group in (None, 0) else 1.0  # the trainer logs the LR of group 0
        checkpoint = self.checkpoint(snapshot)
        return scale_promise(snapshot, checkpoint, now_of(checkpoint), logged)

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        checkpoint = self.checkpoint(snapshot)
        said = forecast.said(checkpoint, scaled(snapshot, checkpoint, self.factor, self.group), snapshot.ds_config)
        return (*said, *about_pointer(snapshot, checkpoint.step), *super().notes(snapshot))


class Aim(Struct, frozen=True):
    """Where the LR shall be: of all groups (measured at the first) or of one; now, or at the schedule's peak."""

    lr: float
    group: int | None = None
    peak: bool = False

    def now(self, snapshot: Snapshot, checkpoint: Checkpoint) -> float:
        """What stands there."""
        if self.peak and self.group is None and ds_config.holds_lr(checkpoint):
            return ds_config.peak(snapshot, checkpoint)
        return (peak if self.peak else current)(checkpoint, self.group or 0)

    @property
    def of(self) -> str:
        return "" if self.group is None else f" of group {self.group}"


class SetLr(CheckpointEdit, frozen=True):
    """Set the current learning rate of the checkpoint, or its schedule's peak; all of the schedule is scaled with it."""

    kind: ClassVar[str] = "set-lr"
    lr: float
    again: bool = False
    group: int | None = None
    peak: bool = False

    @property
    def aim(self) -> Aim:
        return Aim(self.lr, self.group, self.peak)

    def title(self, snapshot: Snapshot) -> str:
        what = ("peak LR" if self.peak else "LR") + self.aim.of
        return f"set the {what} in {targets.name(snapshot, self.step(snapshot))} to {self.lr:g}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        check_lr(self.lr)
        checkpoint = self.checkpoint(snapshot)
        refuse_second(snapshot, checkpoint, self.again)
        return self.parked(snapshot, set_to(snapshot, checkpoint, self.aim))

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        checkpoint = self.checkpoint(snapshot)
        if self.group:
            return scale_promise(snapshot, checkpoint, now_of(checkpoint), 1.0)
        return set_promise(snapshot, checkpoint, current(checkpoint), moved_by(snapshot, checkpoint, self.aim))

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        checkpoint = self.checkpoint(snapshot)
        edits = set_to(snapshot, checkpoint, self.aim)
        said = (*about_set(snapshot, checkpoint, self.aim), *forecast.said(checkpoint, edits, snapshot.ds_config))
        return (*said, *about_pointer(snapshot, checkpoint.step), *super().notes(snapshot))


def moved_by(snapshot: Snapshot, checkpoint: Checkpoint, aim: Aim) -> float:
    """The current LR after the change."""
    now, lr = aim.now(snapshot, checkpoint), aim.lr
    return lr if now == 0 or lr == 0 else current(checkpoint) * (lr / now)


def check_factor(factor: float) -> None:
    """Refuse what is no sensible factor: 0 (that is `set-lr 0`), negative, not finite."""
    if factor == 0:
        raise BadInput(
            "a factor of 0 loses the LR: nothing could scale it back",
            hint="m4ops set-lr 0 sets it to 0, and m4ops undo brings it back",
        )
    if not math.isfinite(factor) or factor < 0:
        raise BadInput(
            f"the factor must be a positive number, not {factor}", hint="m4ops scale-lr 0.75 lowers the LR by a quarter"
        )
    if not 1e-4 <= factor <= 100:
        raise BadInput(f"a factor of {factor:g} is absurd", hint="m4ops set-lr sets the LR itself")


def check_lr(lr: float) -> None:
    """Refuse what is no learning rate."""
    if not math.isfinite(lr) or not 0 <= lr <= 10:
        raise BadInput(f"the LR must lie between 0 and 10, not {lr}", hint="m4ops set-lr 1e-5")


def wished(
    snapshot: Snapshot, checkpoint: Checkpoint, factor: float | None, lr: float | None, again: bool
) -> tuple[Action, ...]:
    """The LR change that another wish carries: `--scale-lr`, `--set-lr`, or none."""
    if factor is not None and lr is not None:
        raise BadInput("--scale-lr and --set-lr exclude each other", hint="give the one that you mean")
    if factor is not None:
        check_factor(factor)
    elif lr is not None:
        check_lr(lr)
    else:
        return ()
    refuse_second(snapshot, checkpoint, again)
    return scaled(snapshot, checkpoint, factor) if factor is not None else set_to(snapshot, checkpoint, Aim(lr or 0.0))


def promised(snapshot: Snapshot, checkpoint: Checkpoint, factor: float | None, lr: float | None) -> Expectation:
    """What the log must show of such a change."""
    if lr is None:
        return scale_promise(snapshot, checkpoint, now_of(checkpoint), factor or 1.0)
    return set_promise(snapshot, checkpoint, current(checkpoint), lr)


def refuse_second(snapshot: Snapshot, checkpoint: Checkpoint, again: bool) -> None:
    """The same checkpoint's LR changed twice is a mistake (0.75² is no 0.75) until `again` says otherwise.

    A checkpoint that was saved anew since is another one.
    """
    for change in targets.since_saved(snapshot, checkpoint):
        if not change.undoes and _changed_lr(change.wish, checkpoint.step) and not again:
            raise Refused(
                f"the LR of {checkpoint.name} was already changed by change {change.id} ({change.title})",
                str(snapshot.run.dir),
                f"m4ops undo {change.id} takes that back; --again changes it once more on top",
            )


def _changed_lr(wish: object, step: int) -> bool:
    said = dict(wish) if isinstance(wish, dict) else {}
    has = (
        said.get("kind") in ("scale-lr", "set-lr") or said.get("scale_lr") is not None or said.get("set_lr") is not None
    )
    return has and str(step) == str(said.get("to", said.get("at")))


def scaled(snapshot: Snapshot, checkpoint: Checkpoint, factor: float, group: int | None = None) -> tuple[Action, ...]:
    """Every LR there is, or every one of a parameter group, times the factor."""
    return changed(snapshot, checkpoint, lambda value: value * factor, group)


def set_to(snapshot: Snapshot, checkpoint: Checkpoint, aim: Aim) -> tuple[Action, ...]:
    """All LRs by the factor that brings the present one (or the peak) to where it shall be; all alike from or to 0."""
    now, lr = aim.now(snapshot, checkpoint), aim.lr
    alike = now == 0 or lr == 0
    return changed(snapshot, checkpoint, lambda v: lr if alike or v == now else v * (lr / now), aim.group)


def changed(
    snapshot: Snapshot, checkpoint: Checkpoint, new: Callable[[float], float], group: int | None
) -> tuple[Action, ...]:
    """One patch a file of the checkpoint, and one of ds_config where DeepSpeed's own scheduler has its LR there."""
    refuse_elsewhere(checkpoint)
    files = targets.states(checkpoint)
    config: tuple[Action, ...] = ()
    if group is None:
        config = ds_config.edits(snapshot, checkpoint, new)
    else:
        files = _of_group(checkpoint, group)
    if not config and not any(f.lr for f in files):
        current(checkpoint)
    patches = (PatchState(str(checkpoint.home / f.file), edits_of(f, new)) for f in files)
    return (*(p for p in patches if p.edits), *config)


def refuse_elsewhere(checkpoint: Checkpoint) -> None:
    """Refuse a change of what no resume takes from the checkpoint."""
    if checkpoint.lr_elsewhere:
        raise Refused(
            f"the LR of a resume comes from elsewhere: {checkpoint.lr_elsewhere}",
            str(checkpoint.path),
            "change it there; a rewind without an LR change works as ever",
        )


def edits_of(file: StateFile, new: Callable[[float], float]) -> tuple[Edit, ...]:
    """The edits of a file's LR fields; a field that keeps its value is left out."""
    pairs = ((site, new(site.value)) for site in file.lr)
    return tuple(Edit(s.label, s.offset, s.value, value, s.kind) for s, value in pairs if value != s.value)


def group_of(label: str) -> int | None:
    """The parameter group that an LR field belongs to; None for one number of all groups (`eta_min`)."""
    found = re.search(r"param_groups\[(\d+)\]", label) or re.search(r"\[(\d+)\]$", label)
    return int(found[1]) if found else None


def _of_group(checkpoint: Checkpoint, group: int) -> tuple[StateFile, ...]:
    """The files with the LR fields of one group alone. Raises Refused where one number stands for all of them."""
    states = targets.states(checkpoint)
    if sharded := next((f.file for f in states if not f.grouped), ""):
        raise Refused(
            "this distributed checkpoint keeps the LR with each parameter, and its groups are not told apart there",
            str(checkpoint.home / sharded),
            "without --group all of them are changed",
        )
    everywhere = next((s for f in states for s in f.lr if s.label.endswith("eta_min") and s.value), None)
    if everywhere or ds_config.holds_lr(checkpoint):
        what = everywhere.label if everywhere else "the LR in ds_config"
        raise Refused(
            f"{what} is one number for all groups: the LR of one of them cannot be changed alone",
            everywhere.file if everywhere else str(checkpoint.path),
            "without --group all of them are changed",
        )
    files = tuple(replace(f, lr=tuple(s for s in f.lr if group_of(s.label) == group)) for f in states)
    if not any(f.lr for f in files):
        _refuse_unknown(checkpoint, group)
    return files


def _refuse_unknown(checkpoint: Checkpoint, group: int) -> None:
    """Refuse a parameter group that a checkpoint with others does not have."""
    known = {g for f in targets.states(checkpoint) for s in f.lr if (g := group_of(s.label)) is not None}
    if known and group not in known:
        raise BadInput(f"there is no parameter group {group}", hint=f"groups: {', '.join(map(str, sorted(known)))}")


def current(checkpoint: Checkpoint, group: int = 0) -> float:
    """The LR of a parameter group, as the next step would use it."""
    sites = [s for f in targets.states(checkpoint) for s in f.lr]
    for ending in (f"param_groups[{group}].lr", f"_last_lr[{group}]", f"base_lrs[{group}]"):
        for site in sites:
            if site.label.endswith(ending):
                return site.value
    _refuse_unknown(checkpoint, group)
    raise Refused(f"{checkpoint.name} holds no LR", str(checkpoint.path), f"m4ops inspect {checkpoint.step}")


def now_of(checkpoint: Checkpoint) -> float | None:
    """The current LR; None where the checkpoint was not looked into."""
    return current(checkpoint) if checkpoint.states else None


def peak(checkpoint: Checkpoint, group: int = 0) -> float:
    """The highest LR of a parameter group's schedule, as its fields have it."""
    _refuse_unknown(checkpoint, group)
    names = ("initial_lr", "max_lr", f"base_lrs[{group}]", f"max_lrs[{group}]")
    sites = (s for f in targets.states(checkpoint) for s in f.lr if group_of(s.label) == group)
    found = [s.value for s in sites if s.label.endswith(names)]
    if not found or ds_config.holds_lr(checkpoint):
        raise Refused(
            "the schedule's peak stands in no file of the checkpoint",
            str(checkpoint.path),
            "without --peak the current LR is set, and the schedule scaled with it",
        )
    return max(found)


def about_set(snapshot: Snapshot, checkpoint: Checkpoint, aim: Aim) -> tuple[str, ...]:
    """What setting means here."""
    now, lr = aim.now(snapshot, checkpoint), aim.lr
    what = ("the schedule's peak" if aim.peak else "the current LR") + aim.of
    if lr == 0:
        return (
            f"{what} is {now:g}; every LR{aim.of} becomes 0 and stays 0 until `m4ops undo`, or `m4ops set-lr back` once the trainer has saved again",
        )
    if now == 0:
        return (
            f"{what} is 0; every LR field{aim.of} becomes {lr:g}, the schedule's peak and its present value alike: `m4ops set-lr back` brings back what a change set to 0, --peak sets the peak alone",
        )
    return (f"{what} is {now:g} and becomes {lr:g}; the whole schedule{aim.of} is scaled by {lr / now:.6g}",)


def about_pointer(snapshot: Snapshot, step: int) -> tuple[str, ...]:
    """A warning when the edited checkpoint is not the one that a resume takes."""
    pointer = snapshot.pointer
    if pointer and pointer.step is not None and pointer.step != step:
        return (
            f"a resume takes {targets.name(snapshot, pointer.step)}, not {targets.name(snapshot, step)}: this changes nothing until you rewind to it",
        )
    return ()
