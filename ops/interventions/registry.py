"""From a plan's JSON back to its wish, so that it can be planned again."""

from __future__ import annotations

from typing import Any

from ops.errors import BadInput
from ops.interventions import evaluations, exclude, jobs, learning_rate, optimizer, rewind, schedule, wandb_run
from ops.interventions.wish import Wish

KINDS: tuple[type[Any], ...] = (
    rewind.Rewind,
    learning_rate.ScaleLr,
    learning_rate.SetLr,
    schedule.LrBack,
    schedule.ShiftSchedule,
    wandb_run.ResetWandb,
    evaluations.TrimEvals,
    optimizer.ResetOptimizer,
    jobs.Hold,
    jobs.Release,
    jobs.Requeue,
    jobs.Cancel,
    jobs.Stop,
    jobs.Save,
    exclude.Exclude,
)


def wish_of(data: dict[str, Any]) -> Wish:
    """The wish that a plan's JSON holds. Raises BadInput."""
    fields = dict(data)
    kind = fields.pop("kind", "")
    for candidate in KINDS:
        if candidate.kind == kind:
            try:
                wish: Wish = candidate(**fields)
            except TypeError as error:
                raise BadInput(f"the wish of this plan is no {kind}: {error}") from None
            return wish
    raise BadInput(f"no wish of kind {kind!r} can be planned again")
