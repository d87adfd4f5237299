"""Give the next resume a wandb run of its own."""

from __future__ import annotations

from typing import ClassVar

from ops import jsontext
from ops.actions import Action, SetJson
from ops.errors import Refused
from ops.interventions import targets
from ops.interventions.wish import CheckpointEdit
from ops.model import RESUME_INFOS, Checkpoint, Expectation, Snapshot, Unknown


class ResetWandb(CheckpointEdit, frozen=True):
    """Give the next resume a wandb run of its own: the id in the checkpoint becomes empty."""

    kind: ClassVar[str] = "reset-wandb"

    def title(self, snapshot: Snapshot) -> str:
        return f"new wandb run from {targets.name(snapshot, self.step(snapshot))}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        checkpoint = self.checkpoint(snapshot)
        change = emptied(checkpoint)
        if not change:
            raise Refused(
                f"the wandb id of {checkpoint.name} is empty already: the next resume makes a new run",
                str(checkpoint.path),
            )
        return self.parked(snapshot, change)

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        checkpoint = self.checkpoint(snapshot)
        old = checkpoint.wandb_id if isinstance(checkpoint.wandb_id, str) else ""
        return Expectation(resume_step=checkpoint.step, wandb_new=True, wandb_id=old)


def emptied(checkpoint: Checkpoint) -> tuple[Action, ...]:
    """`wandb_run_id` emptied in the checkpoint's `resume_run_infos.json`; nothing if it is."""
    if checkpoint.infos is None:
        raise Refused(f"{checkpoint.name} holds no wandb id: this layout has none", str(checkpoint.path))
    if isinstance(checkpoint.infos, Unknown):
        raise Refused(
            f"{RESUME_INFOS} of {checkpoint.name} is UNKNOWN: {checkpoint.infos.reason}", str(checkpoint.path)
        )
    now = jsontext.value(checkpoint.infos, "wandb_run_id")
    return () if now == '""' else (SetJson(str(checkpoint.path / RESUME_INFOS), "wandb_run_id", now, '""'),)
