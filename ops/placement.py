"""Words about nodes: what one did to a run, how it is now, and which ones a waiting job may get."""

from __future__ import annotations

from msgspec import Struct


class Failure(Struct, frozen=True):
    """Something that a node did to the run. `node` is empty where nothing tells which of `nodes` it was."""

    node: str
    what: str
    """`lost` (Slurm's word: Node failure), `task died` (the first of its incident), `xid 79`, …"""
    evidence: str
    time: float | None = None
    step: int | None = None
    """The last step logged before it."""
    job: str = ""
    rank: int | None = None
    """The task that died first, as srun counts them."""
    nodes: str = ""
    """Where the job ran."""


class NodeState(Struct, frozen=True):
    """A node in one partition, as sinfo tells it."""

    name: str
    partition: str
    state: str
    reason: str = ""
    user: str = ""
    since: float | None = None

    @property
    def usable(self) -> bool:
        """Whether a job can ever get it as things stand: neither down nor drained nor failing."""
        words = self.state.lower().rstrip("*~#!%$@^-")
        return not self.state.endswith("*") and not words.startswith(("down", "drain", "fail", "maint", "unk", "inval"))


class NodeHistory(Struct, frozen=True):
    """What a node did to the run over its life, and how it is now."""

    node: str
    failures: tuple[Failure, ...]
    state: NodeState | None = None

    @property
    def lost(self) -> tuple[Failure, ...]:
        return tuple(f for f in self.failures if f.what == "lost")


class Placed(Struct, frozen=True):
    """What waits of a job or array: where it may go, and how many nodes it needs."""

    job: str
    partition: str
    nodes: int
    excluded: str = ""
    """ExcNodeList as Slurm writes it."""


class Placement(Struct, frozen=True):
    """The run's waiting jobs, the cluster's nodes, and the text of `.m4ops/exclude` (None: no such file)."""

    jobs: tuple[Placed, ...]
    nodes: tuple[NodeState, ...]
    remembered: str | None = None
