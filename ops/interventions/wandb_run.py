"""Give the next resume a wandb run of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ops import jsontext
from ops.actions import Action, SetJson
from ops.errors import Refused
from ops.interventions import parking, targets
from ops.interventions.parking import Parking
from ops.interventions.wish import Simple
from ops.model import RESUME_INFOS, Checkpoint, Expectation, Snapshot


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
        change = emptied(checkpoint)
        if not change:
            raise Refused(
                f"the wandb id of opt_step-{checkpoint.step} is empty already: the next resume makes a new run",
                str(checkpoint.path),
            )
        before, after = parking.around(snapshot, Parking(self.hold, self.restart, self.assume_stopped))
        return (*before, *change, *after)

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        checkpoint = targets.resumable(snapshot, self._step(snapshot))
        old = checkpoint.wandb_id if isinstance(checkpoint.wandb_id, str) else ""
        return Expectation(resume_step=checkpoint.step, wandb_new=True, wandb_id=old)

    def resolved(self, snapshot: Snapshot) -> Any:
        return replace(self, at=self._step(snapshot))

    def _step(self, snapshot: Snapshot) -> int:
        return targets.pointed(snapshot) if self.at is None else self.at


def emptied(checkpoint: Checkpoint) -> tuple[Action, ...]:
    """`wandb_run_id` emptied in the checkpoint's `resume_run_infos.json`; nothing if it is."""
    if not isinstance(checkpoint.infos, str):
        raise Refused(
            f"{RESUME_INFOS} of opt_step-{checkpoint.step} is UNKNOWN: {checkpoint.infos.reason}", str(checkpoint.path)
        )
    now = jsontext.value(checkpoint.infos, "wandb_run_id")
    return () if now == '""' else (SetJson(str(checkpoint.path / RESUME_INFOS), "wandb_run_id", now, '""'),)
