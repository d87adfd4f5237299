"""What a wish is. Each is a frozen struct; its actions and expectation are pure functions of a snapshot.

`plan_for` turns a wish into a plan. A wish refuses (`ops.errors.Refused`) rather than plan what is unsafe.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ops.actions import Action, PatchState, Rewrite
from ops.interventions import copies, parking, targets
from ops.interventions.parking import Parking
from ops.model import Checkpoint, Expectation, Snapshot
from ops.plan import Cost, Plan


class Wish(Protocol):
    """What every intervention offers."""

    kind: ClassVar[str]
    asks_nodes: ClassVar[bool]
    """Whether `actions` needs the snapshot's placement."""

    @property
    def resets(self) -> bool:
        """Whether `actions` needs the optimizer's moments, and the fingerprints, of what is inspected."""

    def resolved(self, snapshot: Snapshot) -> Wish:
        """The wish with its target a plain step: `latest` and `-1` mean another one after the job saved once more."""
        ...

    def title(self, snapshot: Snapshot) -> str: ...
    def inspects(self, snapshot: Snapshot) -> frozenset[int]:
        """Steps whose checkpoint states must have been read for `actions`."""
        ...

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]: ...
    def expect(self, snapshot: Snapshot) -> Expectation | None: ...
    def cost(self, snapshot: Snapshot) -> Cost: ...
    def notes(self, snapshot: Snapshot) -> tuple[str, ...]: ...


class Simple(Struct, frozen=True):
    """What most wishes answer: nothing to resolve, to inspect, to promise, to pay or to say."""

    asks_nodes: ClassVar[bool] = False

    @property
    def resets(self) -> bool:
        return False

    def resolved(self, snapshot: Snapshot) -> Any:
        return self

    def inspects(self, snapshot: Snapshot) -> frozenset[int]:
        return frozenset()

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        return None

    def cost(self, snapshot: Snapshot) -> Cost:
        return Cost()

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        return ()


class Edit(Simple, frozen=True, kw_only=True):
    """A wish that edits a run's state: only while nothing of it runs or may start."""

    hold: bool = False
    restart: bool = False
    assume_stopped: bool = False

    def parked(self, snapshot: Snapshot, edits: tuple[Action, ...]) -> tuple[Action, ...]:
        """The edits, between what parks the run and what lets it go. Raises Refused where neither was wished."""
        before, after = parking.around(snapshot, self.parking)
        return (*before, *edits, *after)

    @property
    def parking(self) -> Parking:
        return Parking(self.hold, self.restart, self.assume_stopped)


class CheckpointEdit(Edit, frozen=True, kw_only=True):
    """An edit of one checkpoint: `at` a step, by default the one that a resume takes."""

    at: int | None = None

    def resolved(self, snapshot: Snapshot) -> Any:
        """A job that is stopped first saves once more: then the checkpoint is not known before it has ended."""
        return self if parking.stops(snapshot, self.parking) else replace(self, at=self.step(snapshot))

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        if self.at is None and parking.stops(snapshot, self.parking):
            return ("the job saves while it ends: what follows is planned again then, for the checkpoint it leaves",)
        return ()

    def inspects(self, snapshot: Snapshot) -> frozenset[int]:
        return frozenset({self.step(snapshot)})

    def step(self, snapshot: Snapshot) -> int:
        return targets.pointed(snapshot) if self.at is None else self.at

    def checkpoint(self, snapshot: Snapshot) -> Checkpoint:
        """The checkpoint to edit, complete and sound. Raises Refused."""
        return targets.resumable(snapshot, self.step(snapshot))


def plan_for(wish: Wish, snapshot: Snapshot, command: str) -> Plan:
    """The plan of a resolved wish. Raises Refused, BadInput."""
    return Plan(
        run=str(snapshot.run.dir),
        title=wish.title(snapshot),
        actions=copies.retracted(_in_turn(wish.actions(snapshot), snapshot), snapshot),
        command=command,
        wish={"kind": wish.kind, **to_builtins(wish)},
        expectation=None if snapshot.run.layout.counts_saves else wish.expect(snapshot),
        cost=wish.cost(snapshot),
        notes=wish.notes(snapshot),
        created=snapshot.now,
        user=snapshot.user,
    )


def _in_turn(actions: tuple[Action, ...], snapshot: Snapshot) -> tuple[Action, ...]:
    """Where checkpoints are files, their time says when they were saved, or which a resume takes: an edit leaves it alike."""
    if not any(c.files for c in snapshot.checkpoints or ()):
        return actions
    return tuple(replace(a, in_turn=1) if isinstance(a, PatchState | Rewrite) else a for a in actions)
