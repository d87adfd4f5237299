"""Start the next resume with fresh optimizer moments."""

from __future__ import annotations

import re
from typing import ClassVar

from ops.actions import Action, PatchState, Rewrite, WriteText
from ops.errors import Refused
from ops.interventions import forecast, targets
from ops.interventions import learning_rate as lr
from ops.interventions.wish import CheckpointEdit
from ops.model import OPS_DIR, Checkpoint, Expectation, Snapshot, Unknown

SWITCH = re.compile(r"^([ \t]*load_optimizer_states[ \t]*:[ \t]*)([Tt]rue|[Yy]es|[Oo]n)\b", re.MULTILINE)


class ResetOptimizer(CheckpointEdit, frozen=True):
    """Start with fresh optimizer moments: by the trainer's own switch where its config is known, else in the checkpoint."""

    kind: ClassVar[str] = "reset-optimizer"
    scale_lr: float | None = None
    set_lr: float | None = None
    in_checkpoint: bool = False
    originals: bool = True
    again: bool = False

    @property
    def resets(self) -> bool:
        return True

    def title(self, snapshot: Snapshot) -> str:
        extra = f" with LR × {self.scale_lr:g}" if self.scale_lr is not None else ""
        extra += f" with LR = {self.set_lr:g}" if self.set_lr is not None else ""
        return f"fresh optimizer from {targets.name(snapshot, self.step(snapshot))}{extra}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        checkpoint = self.checkpoint(snapshot)
        changes = self._lr(snapshot, checkpoint)
        return self.parked(snapshot, reset(snapshot, checkpoint, changes, self.in_checkpoint, self.originals))

    def _lr(self, snapshot: Snapshot, checkpoint: Checkpoint) -> tuple[Action, ...]:
        return lr.wished(snapshot, checkpoint, self.scale_lr, self.set_lr, self.again)

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        if self.scale_lr is None and self.set_lr is None:
            return None
        return lr.promised(snapshot, self.checkpoint(snapshot), self.scale_lr, self.set_lr)

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        checkpoint = self.checkpoint(snapshot)
        said = about(snapshot, self.in_checkpoint, self.originals)
        return (
            *said,
            *forecast.said(checkpoint, self._lr(snapshot, checkpoint), snapshot.ds_config),
            *super().notes(snapshot),
        )


def reset(
    snapshot: Snapshot,
    checkpoint: Checkpoint,
    lr_changes: tuple[Action, ...],
    in_checkpoint: bool = False,
    originals: bool = True,
) -> tuple[Action, ...]:
    """A fresh optimizer, together with LR changes of the same files.

    With a trainer config named in m4ops.toml its `load_optimizer_states` becomes False, unless `in_checkpoint`; else the
    moments and steps in the checkpoint become zero, on all ranks, and the `originals` stay in `.m4ops/originals`.
    """
    if snapshot.run.trainer_config is not None and not in_checkpoint:
        return (*lr_changes, _switch(snapshot))
    patches = {a.path: a for a in lr_changes if isinstance(a, PatchState)}
    others = tuple(a for a in lr_changes if not isinstance(a, PatchState))
    rewrites: list[Action] = []
    for file in targets.states(checkpoint):
        if isinstance(file.moments, Unknown):
            raise Refused(
                f"the optimizer cannot be reset in the checkpoint: {file.moments.reason}",
                file.file,
                "name trainer_config in m4ops.toml",
            )
        if not file.moments:
            continue
        path = str(checkpoint.home / file.file)
        patch = patches.pop(path, None)
        name = f"{checkpoint.name}-{file.file.replace('/', '-')}-{snapshot.now:.0f}"
        aside = str(snapshot.run.dir / OPS_DIR / "originals" / name) if originals else ""
        edits = patch.edits if patch else ()
        rewrites.append(Rewrite(path, aside, file.fingerprint, zero=file.moments, edits=edits, stored=originals))
    if not rewrites:
        raise Refused(f"{checkpoint.name} holds no optimizer moments to reset", str(checkpoint.path))
    return (*patches.values(), *rewrites, *others)


def about(snapshot: Snapshot, in_checkpoint: bool = False, originals: bool = True) -> tuple[str, ...]:
    """What a reset really does."""
    if snapshot.run.trainer_config is not None and not in_checkpoint:
        return (
            f"{snapshot.run.trainer_config}: set load_optimizer_states back to True after the next save, or every restart resets again",
            "with that switch the first resumed step runs with the fresh optimizer's own LR, not the checkpoint's; where weights "
            "are trained in bf16, their fp32 masters are made anew from bf16 (reset-optimizer --in-checkpoint keeps both)",
        )
    kept = (
        "the originals stay in .m4ops/originals for undo (--no-originals keeps none)"
        if originals
        else "the originals are not kept: no undo brings the moments back"
    )
    return (f"moments and steps become zero in the checkpoint; master weights and the LR stay; {kept}",)


def _switch(snapshot: Snapshot) -> Action:
    text, path = snapshot.trainer_config, str(snapshot.run.trainer_config)
    if not isinstance(text, str):
        raise Refused(f"the trainer's config is UNKNOWN: {text.reason}", path)
    if not SWITCH.search(text):
        raise Refused(
            "`load_optimizer_states: True` does not stand in the trainer's config",
            path,
            "is it the config that the next job will read?",
        )
    return WriteText(path, text, SWITCH.sub(r"\1False", text, count=1), "load_optimizer_states")
