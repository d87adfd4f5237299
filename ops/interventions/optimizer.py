"""Start the next resume with fresh optimizer moments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from ops.actions import Action, PatchState, Rewrite, WriteText
from ops.errors import Refused
from ops.interventions import targets
from ops.interventions.wish import CheckpointEdit
from ops.model import OPS_DIR, Checkpoint, Snapshot, Unknown

SWITCH = re.compile(r"^([ \t]*load_optimizer_states[ \t]*:[ \t]*)([Tt]rue|[Yy]es|[Oo]n)\b", re.MULTILINE)


@dataclass(frozen=True)
class ResetOptimizer(CheckpointEdit):
    """Start with fresh optimizer moments: by the trainer's own switch where its config is known, else in the checkpoint."""

    kind: ClassVar[str] = "reset-optimizer"

    def title(self, snapshot: Snapshot) -> str:
        return f"fresh optimizer from {targets.name(snapshot, self.step(snapshot))}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        return self.parked(snapshot, reset(snapshot, self.checkpoint(snapshot), ()))

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        return about(snapshot)


def reset(snapshot: Snapshot, checkpoint: Checkpoint, lr_changes: tuple[Action, ...]) -> tuple[Action, ...]:
    """A fresh optimizer, together with LR changes of the same files.

    With a trainer config named in m4ops.toml its `load_optimizer_states` becomes False; else the moments and steps in
    the checkpoint become zero, on all ranks, and the original files stay in `.m4ops/originals`.
    """
    if snapshot.run.trainer_config is not None:
        return (*lr_changes, _switch(snapshot))
    patches = {a.path: a for a in lr_changes if isinstance(a, PatchState)}
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
        aside = str(snapshot.run.dir / OPS_DIR / "originals" / name)
        rewrites.append(Rewrite(path, aside, file.fingerprint, zero=file.moments, edits=patch.edits if patch else ()))
    if not rewrites:
        raise Refused(f"{checkpoint.name} holds no optimizer moments to reset", str(checkpoint.path))
    return (*patches.values(), *rewrites)


def about(snapshot: Snapshot) -> tuple[str, ...]:
    """What a reset really does."""
    if snapshot.run.trainer_config is not None:
        return (
            f"{snapshot.run.trainer_config}: set load_optimizer_states back to True after the next save, or every restart resets again",
            "with that switch the first resumed step runs with the fresh optimizer's own LR, not the checkpoint's",
        )
    return (
        "moments and steps become zero in the checkpoint; master weights and the LR stay; the originals stay in .m4ops/originals for undo",
    )


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
