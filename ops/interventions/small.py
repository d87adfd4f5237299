"""Wishes about one file each: a new wandb run, the evaluations rolled back, a fresh optimizer."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ops import jsontext
from ops.actions import Action, PatchState, Rewrite, SetJson, WriteText
from ops.errors import Refused
from ops.interventions import Simple, parking, targets
from ops.interventions.parking import Parking
from ops.model import OPS_DIR, RESUME_INFOS, Checkpoint, Evals, Expectation, Snapshot

SWITCH = re.compile(r"^([ \t]*load_optimizer_states[ \t]*:[ \t]*)([Tt]rue|[Yy]es|[Oo]n)\b", re.MULTILINE)


@dataclass(frozen=True)
class ResetWandb(Simple):
    """Give the next resume a wandb run of its own: the id in the checkpoint becomes empty."""

    kind: ClassVar[str] = "reset-wandb"
    at: int | None = None
    hold: bool = False
    restart: bool = False
    assume_stopped: bool = False

    def title(self, snapshot: Snapshot) -> str:
        return f"new wandb run from opt_step-{self._step(snapshot)}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        checkpoint = targets.resumable(snapshot, self._step(snapshot))
        change = emptied_wandb(checkpoint)
        if not change:
            raise Refused(f"the wandb id of opt_step-{checkpoint.step} is empty already: the next resume makes a new run", str(checkpoint.path))
        before, after = parking.around(snapshot, Parking(self.hold, self.restart, self.assume_stopped))
        return (*before, *change, *after)

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        checkpoint = targets.resumable(snapshot, self._step(snapshot))
        old = checkpoint.wandb_id if isinstance(checkpoint.wandb_id, str) else ""
        return Expectation(resume_step=checkpoint.step, wandb_new=True, wandb_id=old)

    def _step(self, snapshot: Snapshot) -> int:
        return targets.pointed(snapshot) if self.at is None else self.at


@dataclass(frozen=True)
class TrimEvals(Simple):
    """Roll the evaluations back: the file keeps the steps up to N, the whole of it stays as a numbered archive."""

    kind: ClassVar[str] = "trim-evals"
    to: int

    def title(self, snapshot: Snapshot) -> str:
        return f"roll the evaluations back to step {self.to}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        if not isinstance(snapshot.evals, Evals):
            raise Refused(f"the evaluations are UNKNOWN: {snapshot.evals.reason}")
        if not beyond(snapshot.evals, self.to):
            raise Refused(f"no evaluation lies beyond step {self.to}", str(snapshot.evals.path), "m4ops evals")
        from ops.interventions.rewind import experiment

        return (rollback(snapshot.evals, self.to, experiment(snapshot)),)

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        from ops.interventions.rewind import about_evals

        return about_evals(snapshot, self.to)


@dataclass(frozen=True)
class ResetOptimizer(Simple):
    """Start with fresh optimizer moments: by the trainer's own switch where its config is known, else in the checkpoint."""

    kind: ClassVar[str] = "reset-optimizer"
    at: int | None = None
    hold: bool = False
    restart: bool = False
    assume_stopped: bool = False

    def title(self, snapshot: Snapshot) -> str:
        return f"fresh optimizer from opt_step-{self._step(snapshot)}"

    def inspects(self, snapshot: Snapshot) -> frozenset[int]:
        return frozenset({self._step(snapshot)})

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        checkpoint = targets.resumable(snapshot, self._step(snapshot))
        before, after = parking.around(snapshot, Parking(self.hold, self.restart, self.assume_stopped))
        return (*before, *reset(snapshot, checkpoint, ()), *after)

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        return about_reset(snapshot)

    def _step(self, snapshot: Snapshot) -> int:
        return targets.pointed(snapshot) if self.at is None else self.at


def emptied_wandb(checkpoint: Checkpoint) -> tuple[Action, ...]:
    """`wandb_run_id` emptied in the checkpoint's `resume_run_infos.json`; nothing if it is."""
    if not isinstance(checkpoint.infos, str):
        raise Refused(f"{RESUME_INFOS} of opt_step-{checkpoint.step} is UNKNOWN: {checkpoint.infos.reason}", str(checkpoint.path))
    now = jsontext.value(checkpoint.infos, "wandb_run_id")
    return () if now == '""' else (SetJson(str(checkpoint.path / RESUME_INFOS), "wandb_run_id", now, '""'),)


def beyond(evals: Evals, step: int) -> tuple[int, ...]:
    """Line numbers of evaluations of later steps."""
    return tuple(e.line for e in evals.lines if e.step is not None and e.step > step)


def rollback(evals: Evals, step: int, number: int) -> Rewrite:
    """Keep the lines up to `step` and all whose step cannot be told; the original becomes archive number `number`."""
    gone = set(beyond(evals, step))
    kept = [e.line for e in evals.lines if e.line not in gone]
    archive = evals.path.with_name(f"{evals.path.name.removesuffix('.jsonl')}_archive_exp_{number}.jsonl")
    return Rewrite(str(evals.path), str(archive), evals.fingerprint, keep=ranges(kept), why=f"steps up to {step}")


def ranges(lines: list[int]) -> tuple[tuple[int, int], ...]:
    """Ascending line numbers as inclusive ranges."""
    found: list[tuple[int, int]] = []
    for line in lines:
        if found and found[-1][1] == line - 1:
            found[-1] = (found[-1][0], line)
        else:
            found.append((line, line))
    return tuple(found)


def reset(snapshot: Snapshot, checkpoint: Checkpoint, lr_changes: tuple[Action, ...]) -> tuple[Action, ...]:
    """A fresh optimizer, together with LR changes of the same files.

    With a trainer config named in m4ops.toml its `load_optimizer_states` becomes False; else the moments and steps in
    the checkpoint become zero, on all ranks, and the original files stay in `.m4ops/originals`.
    """
    if snapshot.run.trainer_config is not None:
        return (*lr_changes, _switch(snapshot))
    patches = {a.path: a for a in lr_changes if isinstance(a, PatchState)}
    rewrites: list[Action] = []
    for file in (f for f in targets.states(checkpoint) if f.moments):
        path = str(checkpoint.path / file.file)
        patch = patches.pop(path, None)
        name = f"opt_step-{checkpoint.step}-{file.file.replace('/', '-')}-{snapshot.now:.0f}"
        aside = str(snapshot.run.dir / OPS_DIR / "originals" / name)
        rewrites.append(Rewrite(path, aside, file.fingerprint, zero=file.moments, edits=patch.edits if patch else ()))
    if not rewrites:
        raise Refused(f"opt_step-{checkpoint.step} holds no optimizer moments to reset", str(checkpoint.path))
    return (*patches.values(), *rewrites)


def about_reset(snapshot: Snapshot) -> tuple[str, ...]:
    """What a reset really does."""
    if snapshot.run.trainer_config is not None:
        return (
            f"{snapshot.run.trainer_config}: set load_optimizer_states back to True after the next save, or every restart resets again",
            "with that switch the first resumed step runs with the fresh optimizer's own LR, not the checkpoint's",
        )
    return ("moments and steps become zero in the checkpoint; master weights and the LR stay; the originals stay in .m4ops/originals for undo",)


def _switch(snapshot: Snapshot) -> Action:
    text, path = snapshot.trainer_config, str(snapshot.run.trainer_config)
    if not isinstance(text, str):
        raise Refused(f"the trainer's config is UNKNOWN: {text.reason}", path)
    if not SWITCH.search(text):
        raise Refused("`load_optimizer_states: True` does not stand in the trainer's config", path, "is it the config that the next job will read?")
    return WriteText(path, text, SWITCH.sub(r"\1False", text, count=1), "load_optimizer_states")
