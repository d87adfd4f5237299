"""Keep the run away from nodes: what waits of it now, and the next submit."""

from __future__ import annotations

from pathlib import PurePath
from typing import ClassVar

from ops.actions import Action, Schedule, WriteText
from ops.errors import Refused
from ops.hostlist import compress, expand, natural
from ops.interventions import jobs
from ops.interventions.wish import Simple
from ops.model import OPS_DIR, Snapshot, Unknown
from ops.placement import Placed, Placement


class Exclude(Simple, frozen=True):
    """Set ExcNodeList of the run's waiting jobs, and remember the nodes for the next submit."""

    kind: ClassVar[str] = "exclude"
    asks_nodes: ClassVar[bool] = True
    nodes: tuple[str, ...]
    """Node names or host lists (`n[1-3]`)."""
    why: str = ""

    def title(self, snapshot: Snapshot) -> str:
        return f"exclude {compress(self.names)} from {snapshot.run.name}" + (f": {self.why}" if self.why else "")

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted({n for text in self.nodes for n in expand(text)}, key=natural))

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        placement = _known(snapshot)
        self._refuse_strange(placement, snapshot)
        remembered = (placement.remembered or "").split()
        all_of_them = sorted({*remembered, *self.names}, key=natural)
        orders = []
        for job, before in _by_job(placement.jobs).items():
            after = {*expand(before), *self.names}
            if after != set(expand(before)):
                orders.append(Schedule("exclude", job, self.why, before, compress(after)))
        self._refuse_too_many(placement, all_of_them, snapshot)
        notes = _note(snapshot, placement, all_of_them) if set(all_of_them) != set(remembered) else ()
        if not orders and not notes:
            raise Refused(f"{compress(self.names)} is excluded already", snapshot.run.name, "m4ops nodes")
        return (*orders, *notes)

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        mine = [j for j in jobs.own(snapshot) if j.running]
        there = [(j, sorted({*expand(j.nodes)} & {*self.names}, key=natural)) for j in mine]
        told = tuple(
            f"job {j.id} runs on {compress(nodes)} and stays there: m4ops requeue {j.id}, then exclude again"
            for j, nodes in there
            if nodes
        )
        waits = any(j.pending for j in jobs.own(snapshot))
        return (
            told if waits else (*told, "nothing of the run waits: the nodes are remembered for the next m4ops submit")
        )

    def _refuse_strange(self, placement: Placement, snapshot: Snapshot) -> None:
        known = {state.name for state in placement.nodes}
        if not self.names:
            raise Refused("no node is named", snapshot.run.name, "m4ops exclude n2, or m4ops exclude n[2-4]")
        for name in self.names:
            if name not in known:
                raise Refused(f"the cluster has no node {name}", "sinfo", "m4ops nodes names those that failed")

    def _refuse_too_many(self, placement: Placement, excluded: list[str], snapshot: Snapshot) -> None:
        for job in placement.jobs:
            partitions = job.partition.split(",")
            usable = {n.name for n in placement.nodes if n.usable and n.partition in partitions}
            left = usable - {*excluded, *expand(job.excluded)}
            if len(left) < job.nodes:
                raise Refused(
                    f"job {job.job} needs {job.nodes} nodes, and of the {len(usable)} usable ones of partition "
                    f"{job.partition} {len(left)} would be left: it would wait for ever",
                    snapshot.run.name,
                    "exclude fewer nodes, or have a node repaired: m4ops nodes report NODE",
                )


def _known(snapshot: Snapshot) -> Placement:
    jobs.own(snapshot)
    if isinstance(snapshot.placement, Unknown):
        raise Refused(
            f"where the run's jobs may go is UNKNOWN: {snapshot.placement.reason}", snapshot.run.name, "ask again"
        )
    return snapshot.placement


def _by_job(placed: tuple[Placed, ...]) -> dict[str, str]:
    """What each job or array excludes now; parts of an array that differ are brought together."""
    found: dict[str, set[str]] = {}
    for part in placed:
        found.setdefault(part.job, set()).update(expand(part.excluded))
    return {job: compress(names) for job, names in found.items()}


def _note(snapshot: Snapshot, placement: Placement, names: list[str]) -> tuple[Action, ...]:
    path = str(PurePath(snapshot.run.dir) / OPS_DIR / "exclude")
    text = "".join(f"{name}\n" for name in names)
    return (WriteText(path, placement.remembered, text, "for the next m4ops submit"),)
