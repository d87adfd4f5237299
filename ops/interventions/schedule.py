"""Where a checkpoint's schedule stands: moved to another step, or brought back from an LR of 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from ops import schedules
from ops.actions import Action, Edit, PatchState
from ops.errors import BadInput, Refused
from ops.interventions import ds_config, forecast, targets
from ops.interventions.learning_rate import about_pointer, check_lr, current, refuse_elsewhere
from ops.interventions.wish import CheckpointEdit
from ops.model import Change, Checkpoint, Expectation, LrSite, Snapshot, StateFile, Unknown

Values = dict[tuple[str, str], float]
"""New numbers by file and label."""


class ShiftSchedule(CheckpointEdit, frozen=True):
    """Let the LR schedule go on from another step: after a trainer lost the scheduler's state, or to jump ahead."""

    kind: ClassVar[str] = "shift-schedule"
    to_step: int
    lr: float | None = None

    def title(self, snapshot: Snapshot) -> str:
        return f"let the schedule of {targets.name(snapshot, self.step(snapshot))} go on from step {self.to_step}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        if self.to_step < 0:
            raise BadInput(
                f"--to-step {self.to_step}: a step is not negative", hint="m4ops inspect says where it stands"
            )
        if self.lr is not None:
            check_lr(self.lr)
        checkpoint = self.checkpoint(snapshot)
        refuse_elsewhere(checkpoint)
        return self.parked(snapshot, patches(checkpoint, self.values(snapshot, checkpoint)))

    def values(self, snapshot: Snapshot, checkpoint: Checkpoint) -> Values:
        """The counters of every scheduler file, and the LR of the step where the state tells it."""
        states = targets.states(checkpoint)
        found: Values = {}
        for holder in _holders(checkpoint):
            state = holder.scheduler or {}
            try:
                places = schedules.moved(state, self.to_step * _each(snapshot, state, checkpoint))
            except schedules.Unforeseen as why:
                raise Refused(f"the schedule cannot be moved: {why}", holder.file) from None
            known = {schedules.own(s.label): s.label for s in holder.counters}
            found |= {(holder.file, known[label]): value for label, value in places.items() if label in known}
        return found | rates(states, self.rates(snapshot, checkpoint) or ())

    def rates(self, snapshot: Snapshot, checkpoint: Checkpoint) -> tuple[float, ...] | Unknown:
        """The LR of each group in the first resumed step."""
        groups, state = forecast.groups(targets.states(checkpoint), {}), _holders(checkpoint)[0].scheduler or {}
        if not groups and not all(f.grouped for f in targets.states(checkpoint)):
            return self._apart(checkpoint)
        if self.lr is None:
            return schedules.at(
                ds_config.informed(state, snapshot.ds_config), groups, self.to_step * _each(snapshot, state, checkpoint)
            )
        now = groups[0]["lr"] if groups else 0.0
        return tuple(g["lr"] * self.lr / now if now else self.lr for g in groups)

    def _apart(self, checkpoint: Checkpoint) -> Unknown:
        """Of parameters whose LRs are not all the same. Raises Refused where one is given for all."""
        what = "each parameter has an LR of its own, and they are not all the same"
        if self.lr is not None:
            raise Refused(
                f"{what}: --lr cannot be that of all", str(checkpoint.path), "without --lr they stay as they are"
            )
        return Unknown(what)

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        checkpoint = self.checkpoint(snapshot)
        first = self.rates(snapshot, checkpoint)
        points = ((checkpoint.step, first[0]),) if first else ()
        return Expectation(resume_step=checkpoint.step, lr=points, lr_tolerance=0.1)

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        checkpoint = self.checkpoint(snapshot)
        state, first = _holders(checkpoint)[0].scheduler or {}, self.rates(snapshot, checkpoint)
        edits = patches(checkpoint, self.values(snapshot, checkpoint))
        said = [*forecast.said(checkpoint, edits, snapshot.ds_config)]
        if isinstance(first, Unknown) and schedules.kind(state) == schedules.MEGATRON:
            said.append(
                f"Megatron-LM computes the first resumed step's LR from that; it cannot be told here: {first.reason}"
            )
        elif isinstance(first, Unknown):
            said.append(
                f"the first resumed step still runs with the optimizer's LR, {current(checkpoint):g} (--lr sets another): "
                f"the LR of step {self.to_step} cannot be computed here: {first.reason}"
            )
        if (each := _each(snapshot, state, checkpoint)) > 1:
            said.append(f"this scheduler counts {each} for each optimizer step: it is set to {self.to_step * each}")
        elif snapshot.run.layout.counts_saves:
            said.append(
                f"{checkpoint.name} does not say its step: --to-step is the scheduler's own, and it stands at {_count(state)}"
            )
        return (*said, *about_pointer(snapshot, checkpoint.step), *super().notes(snapshot))


class LrBack(CheckpointEdit, frozen=True):
    """Bring back the LR that a change set to 0, from the journal, where the schedule stands by now."""

    kind: ClassVar[str] = "lr-back"

    def title(self, snapshot: Snapshot) -> str:
        return f"bring back the LR of {targets.name(snapshot, self.step(snapshot))}, 0 since change {_zeroing(snapshot).id}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        checkpoint = self.checkpoint(snapshot)
        return self.parked(snapshot, self.edits(snapshot, checkpoint))

    def edits(self, snapshot: Snapshot, checkpoint: Checkpoint) -> tuple[Action, ...]:
        config = ds_config.brought_back(snapshot, checkpoint, _zeroing(snapshot))
        return (*patches(checkpoint, self.values(snapshot, checkpoint)), *config)

    def values(self, snapshot: Snapshot, checkpoint: Checkpoint) -> Values:
        """What each LR was before; the present one as the schedule has it at this step, where its state tells that."""
        change, states = _zeroing(snapshot), targets.states(checkpoint)
        found: Values = {}
        for file in states:
            name = file.file.rpartition("/")[2]
            zeros = (s for s in file.lr if s.value == 0)
            found |= {
                (file.file, s.label): change.zeroed[name, s.label] for s in zeros if (name, s.label) in change.zeroed
            }
        if not found:
            raise Refused(f"no LR of {checkpoint.name} that change {change.id} set to 0 is 0 now", str(checkpoint.path))
        holder = next((f for f in states if f.scheduler is not None), None)
        epoch = schedules.stands_at(holder.scheduler or {}) if holder else None
        if epoch is None:
            return found
        config = ds_config.texts(ds_config.brought_back(snapshot, checkpoint, change), snapshot.ds_config)[1]
        state = forecast.edited(holder, found, config)
        return found | rates(states, schedules.at(state, forecast.groups(states, found), epoch) or ())

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        checkpoint = self.checkpoint(snapshot)
        groups = forecast.groups(targets.states(checkpoint), self.values(snapshot, checkpoint))
        points = ((checkpoint.step, groups[0]["lr"]),) if groups else ()
        return Expectation(resume_step=checkpoint.step, lr=points, lr_tolerance=0.1)

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        checkpoint = self.checkpoint(snapshot)
        said = forecast.said(checkpoint, self.edits(snapshot, checkpoint), snapshot.ds_config)
        return (*said, *about_pointer(snapshot, checkpoint.step), *super().notes(snapshot))


def patches(checkpoint: Checkpoint, values: Mapping[tuple[str, str], float]) -> tuple[Action, ...]:
    """One patch a file that sets these numbers."""
    made = []
    for file in targets.states(checkpoint):
        sites = [s for s in (*file.lr, *file.counters) if values.get((file.file, s.label), s.value) != s.value]
        edits = tuple(Edit(s.label, s.offset, s.value, values[file.file, s.label], s.kind) for s in sites)
        made += [PatchState(str(checkpoint.home / file.file), edits)] if edits else []
    return tuple(made)


def rates(states: Sequence[StateFile], wanted: Sequence[float]) -> Values:
    """The present LR of each group, wherever it stands: in the optimizer on every rank, and as the scheduler's last."""
    found: Values = {}
    for file in states:
        for index, rate in enumerate(wanted):
            ends = (
                (f"param_groups[{index}].lr", f"_last_lr[{index}]") if file.grouped else ("].lr", f"_last_lr[{index}]")
            )
            found |= {(file.file, s.label): rate for s in file.lr if s.label.endswith(ends) and _outer(s)}
    return found


def _outer(site: LrSite) -> bool:
    return not schedules.inner(site.label)


def _holders(checkpoint: Checkpoint) -> list[StateFile]:
    """The files with the scheduler's state: one, or several that say the same. Raises Refused where they do not."""
    found = [f for f in targets.states(checkpoint) if f.scheduler is not None]
    if not found or any(f.scheduler != found[0].scheduler for f in found):
        what = f"{len(found)} schedulers that differ" if found else "no scheduler that m4ops can move"
        raise Refused(f"{checkpoint.name} holds {what}", str(checkpoint.path), f"m4ops inspect {checkpoint.step}")
    return found


def _each(snapshot: Snapshot, state: schedules.State, checkpoint: Checkpoint) -> int:
    """How often the scheduler counts for one optimizer step.

    Accelerate steps a prepared one once for every process; Megatron-LM's counts samples. Raises Refused.
    """
    count, shifted = _count(state), _shifted_to(snapshot, checkpoint)
    if not isinstance(count, int):
        return 1
    if snapshot.run.layout.counts_saves and shifted is None:  # then the optimizer's own count is all that says a step
        stride = _holders(checkpoint)[0].stride
        return stride if isinstance(stride, int) else 1
    step = checkpoint.step if shifted is None else shifted
    if schedules.kind(state) == schedules.MEGATRON and (not step or count % step):
        raise Refused(
            f"the schedule stands at {count} samples after {step} steps: batches of one size do not make that",
            str(checkpoint.path),
            "scale-lr and set-lr change the LR whatever the batches were",
        )
    return count // step if step and count > step and count % step == 0 else 1


def _shifted_to(snapshot: Snapshot, checkpoint: Checkpoint) -> int | None:
    """The optimizer step at which an earlier shift left the schedule."""
    for change in targets.since_saved(snapshot, checkpoint):
        if change.wish.get("kind") == ShiftSchedule.kind and change.wish.get("at") == checkpoint.step:
            return int(str(change.wish["to_step"]))
    return None


def _count(state: schedules.State) -> object:
    """How far the scheduler says it is."""
    return state.get("last_epoch", state.get("num_steps"))


def _zeroing(snapshot: Snapshot) -> Change:
    """The newest change that stands and set an LR to 0. Raises Refused."""
    for change in reversed(snapshot.history or ()):
        if change.status == "applied" and change.zeroed:
            return change
    raise Refused("no change of this run set the LR to 0", str(snapshot.run.dir), "m4ops history")
