"""An operator's wishes. Each is a frozen dataclass; its actions and expectation are pure functions of a snapshot.

`plan_for` turns a wish into a plan. A wish refuses (`ops.errors.Refused`) rather than plan what is unsafe.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, ClassVar, Protocol

from ops.actions import Action
from ops.errors import BadInput
from ops.model import Expectation, Snapshot
from ops.plan import Cost, Plan


class Wish(Protocol):
    """What every intervention offers."""

    kind: ClassVar[str]

    def title(self, snapshot: Snapshot) -> str: ...
    def inspects(self, snapshot: Snapshot) -> frozenset[int]:
        """Steps whose checkpoint states must have been read for `actions`."""
        ...

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]: ...
    def expect(self, snapshot: Snapshot) -> Expectation | None: ...
    def cost(self, snapshot: Snapshot) -> Cost: ...
    def notes(self, snapshot: Snapshot) -> tuple[str, ...]: ...


class Simple:
    """What most wishes answer: nothing to inspect, to promise, to pay or to say."""

    def inspects(self, snapshot: Snapshot) -> frozenset[int]:
        return frozenset()

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        return None

    def cost(self, snapshot: Snapshot) -> Cost:
        return Cost()

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        return ()


def plan_for(wish: Wish, snapshot: Snapshot, command: str) -> Plan:
    """The plan of a wish. Raises Refused, BadInput."""
    return Plan(
        run=str(snapshot.run.dir),
        title=wish.title(snapshot),
        actions=wish.actions(snapshot),
        command=command,
        wish={"kind": wish.kind, **asdict(wish)},  # type: ignore[call-overload]
        expectation=wish.expect(snapshot),
        cost=wish.cost(snapshot),
        notes=wish.notes(snapshot),
        created=snapshot.now,
        user=snapshot.user,
    )


def wish_of(data: dict[str, Any]) -> Wish:
    """The wish that a plan's JSON holds. Raises BadInput."""
    from ops.interventions import jobs, learning_rate, rewind, small

    kinds = (
        rewind.Rewind, learning_rate.ScaleLr, learning_rate.SetLr, small.ResetWandb, small.TrimEvals, small.ResetOptimizer,
        jobs.Hold, jobs.Release, jobs.Requeue, jobs.Stop, jobs.Save,
    )  # fmt: skip
    fields = dict(data)
    kind = fields.pop("kind", "")
    for candidate in kinds:
        if candidate.kind == kind:
            wish: Wish = candidate(**fields)
            return wish
    raise BadInput(f"no wish of kind {kind!r} can be planned again")
