"""Change the learning rate inside a checkpoint: every LR field, in every file, on every rank.

The scheduler's `base_lrs` and `_last_lr` alone are not enough: with a LambdaLR the first resumed step still runs with
the optimizer's own `lr`, and most other schedulers never read those two again. The project's own experiments
(tests/test_lr_sites.py) show that scaling every LR field present scales the whole future curve.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import ClassVar

from ops.actions import Action, Edit, PatchState
from ops.errors import BadInput, Refused
from ops.interventions import targets
from ops.interventions.wish import CheckpointEdit
from ops.model import Checkpoint, Expectation, LogView, LrSite, Sample, Snapshot, StateFile

EXPECTED_POINTS = 40
CHANGING = ("scale-lr", "set-lr", "rewind")


@dataclass(frozen=True)
class ScaleLr(CheckpointEdit):
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
        return self.parked(snapshot, scaled(checkpoint, self.factor, self.group))

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        logged = self.factor if self.group in (None, 0) else 1.0  # the trainer logs the LR of group 0
        return scale_promise(snapshot, self.checkpoint(snapshot), logged)

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        return (*about_pointer(snapshot, self.step(snapshot)), *super().notes(snapshot))


@dataclass(frozen=True)
class SetLr(CheckpointEdit):
    """Set the current learning rate of the checkpoint; the schedule from there on is scaled by the same factor."""

    kind: ClassVar[str] = "set-lr"
    lr: float
    again: bool = False

    def title(self, snapshot: Snapshot) -> str:
        return f"set the LR of {targets.name(snapshot, self.step(snapshot))} to {self.lr:g}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        check_lr(self.lr)
        checkpoint = self.checkpoint(snapshot)
        refuse_second(snapshot, checkpoint, self.again)
        return self.parked(snapshot, set_to(checkpoint, self.lr))

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        return set_promise(snapshot, self.checkpoint(snapshot), self.lr)

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        said = (*about_set(self.checkpoint(snapshot), self.lr), *about_pointer(snapshot, self.step(snapshot)))
        return (*said, *super().notes(snapshot))


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


def refuse_second(snapshot: Snapshot, checkpoint: Checkpoint, again: bool) -> None:
    """The same checkpoint's LR changed twice is a mistake (0.75² is no 0.75) until `again` says otherwise.

    A checkpoint that was saved anew since is another one.
    """
    step, saved = checkpoint.step, checkpoint.saved or 0.0
    for change in snapshot.history or ():
        stands = change.status == "applied" and not change.undoes and change.time > saved
        if stands and _changed_lr(change.wish, step) and not again:
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


def scaled(checkpoint: Checkpoint, factor: float, group: int | None = None) -> tuple[Action, ...]:
    """One patch a file: every LR in it, or every one of a parameter group, times the factor."""
    if group is None:
        return _patches(checkpoint, lambda _file, value: value * factor)
    files = [replace(f, lr=_of_group(f, group)) for f in targets.states(checkpoint)]
    if not any(f.lr for f in files):
        known = {g for f in targets.states(checkpoint) for s in f.lr if (g := group_of(s.label)) is not None}
        raise BadInput(f"there is no parameter group {group}", hint=f"groups: {', '.join(map(str, sorted(known)))}")
    patches = (PatchState(str(checkpoint.home / f.file), edits_of(f, lambda _f, v: v * factor)) for f in files)
    return tuple(p for p in patches if p.edits)


def group_of(label: str) -> int | None:
    """The parameter group that an LR field belongs to; None for one number of all groups (`eta_min`)."""
    found = re.search(r"param_groups\[(\d+)\]", label) or re.search(r"\[(\d+)\]$", label)
    return int(found[1]) if found else None


def _of_group(file: StateFile, group: int) -> tuple[LrSite, ...]:
    """The LR fields of one group. Raises Refused where one number stands for all of them and is not 0."""
    for site in file.lr:
        if site.label.rpartition(".")[2] == "eta_min" and site.value:
            raise Refused(
                f"{site.label} is one number for all groups: the LR of one of them cannot be scaled alone",
                file.file,
                "without --group all of them are scaled",
            )
    return tuple(s for s in file.lr if group_of(s.label) == group)


def set_to(checkpoint: Checkpoint, lr: float) -> tuple[Action, ...]:
    """One patch a file, so that the current LR is `lr`: all LRs by the same factor, or all alike from or to 0."""
    now = current(checkpoint)
    return _patches(checkpoint, lambda _file, value: lr if now == 0 or lr == 0 else value * (lr / now))


def current(checkpoint: Checkpoint) -> float:
    """The LR of the first parameter group, as the next step would use it."""
    sites = [s for f in targets.states(checkpoint) for s in f.lr]
    for ending in ("param_groups[0].lr", "_last_lr[0]", "base_lrs[0]"):
        for site in sites:
            if site.label.endswith(ending):
                return site.value
    raise Refused(
        f"{checkpoint.name} holds no LR",
        str(checkpoint.path),
        "with DeepSpeed's own schedulers the LR lives in ds_config",
    )


def _patches(checkpoint: Checkpoint, new: object) -> tuple[Action, ...]:
    files = [f for f in targets.states(checkpoint) if f.lr]
    if not files:
        current(checkpoint)
    patches = (PatchState(str(checkpoint.home / f.file), edits_of(f, new)) for f in files)
    return tuple(p for p in patches if p.edits)


def edits_of(file: StateFile, new: object) -> tuple[Edit, ...]:
    """The edits of a file's LR fields; a field that keeps its value is left out."""
    pairs = ((site, new(file, site.value)) for site in file.lr)  # type: ignore[operator]
    return tuple(Edit(s.label, s.offset, s.value, value, s.kind) for s, value in pairs if value != s.value)


def scale_promise(snapshot: Snapshot, checkpoint: Checkpoint, factor: float) -> Expectation:
    """What the log must show: the LRs that this checkpoint's own branch logged beyond it, times the factor.

    An earlier change that no training has followed yet promised those LRs already; then its promise is scaled. Where no
    branch beyond the checkpoint fits the LR it holds, that LR stands for it, with room for the schedule's slope.
    """
    step, log = checkpoint.step, snapshot.log
    samples = [s for s in log.samples if s.lr is not None] if isinstance(log, LogView) else []
    earlier = _untested(snapshot, step, samples[-1].offset if samples else -1)
    if earlier is not None:
        return replace(earlier, lr=tuple((s, lr * factor) for s, lr in earlier.lr), wandb_new=None, wandb_id="")
    now = current(checkpoint) if checkpoint.states else None
    for branch in reversed(_beyond(samples, step)):
        if now is None or _fits(branch, step, now):
            points = tuple((s, lr * factor) for s, lr in branch if s > step)
            return Expectation(resume_step=step, lr=points[:EXPECTED_POINTS])
    if now is None:
        return Expectation(resume_step=step)
    return Expectation(resume_step=step, lr=((step, now * factor),), lr_tolerance=0.1)


def _beyond(samples: list[Sample], step: int) -> list[list[tuple[int, float]]]:
    """(step, LR) of each stretch of the log that passes `step`, from the last point at or before it on."""
    branches: list[list[tuple[int, float]]] = [[]]
    for sample in samples:
        if branches[-1] and sample.step <= branches[-1][-1][0]:
            branches.append([])
        branches[-1].append((sample.step, sample.lr or 0.0))
    cut = ([p for p in b if p[0] > step] for b in branches)
    before = ([p for p in b if p[0] <= step][-1:] for b in branches)
    return [start + rest for start, rest in zip(before, cut, strict=True) if rest]


def _fits(branch: list[tuple[int, float]], step: int, now: float) -> bool:
    """Whether the branch logged, about `step`, the LR that the checkpoint holds."""
    (s0, lr0), (s1, lr1) = branch[0], branch[min(1, len(branch) - 1)]
    near = [lr0, lr1] if s0 <= step else [lr0, lr0 - (lr1 - lr0) * (s0 - step) / (s1 - s0 or 1)]
    return 0.98 * min(near) <= now <= 1.02 * max(near)


def _untested(snapshot: Snapshot, step: int, last_logged: int) -> Expectation | None:
    """The promise of the newest change of this checkpoint's LR after which nothing was logged."""
    for change in reversed(snapshot.history or ()):
        promise = change.expectation
        fresh = change.log_offset is not None and change.log_offset > last_logged
        if change.status == "applied" and fresh and promise is not None and promise.resume_step == step and promise.lr:
            return promise
    return None


def set_promise(snapshot: Snapshot, checkpoint: Checkpoint, lr: float) -> Expectation:
    """As `scale_promise`, for an LR set to a value."""
    now = current(checkpoint)
    if lr == 0 or now == 0:
        return Expectation(resume_step=checkpoint.step, lr=((checkpoint.step, lr),), lr_tolerance=0.1)
    return scale_promise(snapshot, checkpoint, lr / now)


def about_set(checkpoint: Checkpoint, lr: float) -> tuple[str, ...]:
    """What setting means here."""
    now = current(checkpoint)
    if lr == 0:
        return (f"the current LR is {now:g}; every LR becomes 0 and stays 0 until `m4ops undo` or `m4ops set-lr`",)
    if now == 0:
        return (f"the current LR is 0; every LR field becomes {lr:g}: the schedule's peak and its present value alike",)
    return (f"the current LR is {now:g}; the whole schedule from here on is scaled by {lr / now:.6g}",)


def about_pointer(snapshot: Snapshot, step: int) -> tuple[str, ...]:
    """A warning when the edited checkpoint is not the one that a resume takes."""
    pointer = snapshot.pointer
    if pointer and pointer.step is not None and pointer.step != step:
        return (
            f"a resume takes {targets.name(snapshot, pointer.step)}, not {targets.name(snapshot, step)}: this changes nothing until you rewind to it",
        )
    return ()
