"""A checkpoint that is edited is no longer what was uploaded: the marker that says so goes, and an undo brings it back."""

from __future__ import annotations

from pathlib import PurePath

from ops import actions as act
from ops.actions import Action, WriteText
from ops.model import Checkpoint, Snapshot

MARKER = "finished-upload-checkpoint"
"""Clean-up scripts, and `until uploaded` of `m4ops prune`, take it as leave to delete the checkpoint."""


def retracted(actions: tuple[Action, ...], snapshot: Snapshot) -> tuple[Action, ...]:
    """The actions, each first edit of an uploaded checkpoint's content preceded by the removal of its marker."""
    uploaded = [c for c in snapshot.checkpoints or () if MARKER in c.markers]
    told: list[Action] = []
    for action in actions:
        for checkpoint in uploaded:
            marker = WriteText(str(checkpoint.path / MARKER), "", None, "the copy in the store is stale from now on")
            if _edits(action, checkpoint) and marker not in told:
                told.append(marker)
        told.append(action)
    return tuple(told)


def _edits(action: Action, checkpoint: Checkpoint) -> bool:
    edit = isinstance(action, act.PatchState | act.SetJson | act.Rewrite | act.WriteText)
    return edit and any(PurePath(path).is_relative_to(checkpoint.path) for path in act.paths(action))
