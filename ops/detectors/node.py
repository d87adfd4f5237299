"""Nodes that Slurm lost. The name comes from srun's line: slurmstepd names the first node of the step.

`srun: error: Node failure on NODE`, then `slurmstepd: error: *** STEP … DUE TO NODE FAILURE` (Slurm 20.11 to
22.05).
"""

from __future__ import annotations

from typing import Any

from ops.detectors.evidence import State, where
from ops.model import Finding, LogEvent, Sample, Severity, Snapshot

REMEMBERED = 50
"""Logged rows after which a failure that training survived is history."""


class NodeFailures:
    """The detector, and what it remembers."""

    def __init__(self, state: State) -> None:
        self.failed: dict[str, dict[str, int]] = {node: dict(seen) for node, seen in state.get("failed", {}).items()}
        self.last: int | None = state.get("last")

    def dump(self) -> dict[str, Any]:
        return {"failed": self.failed, "last": self.last}

    def take(self, line: Sample | LogEvent, snapshot: Snapshot) -> None:
        if isinstance(line, Sample):
            self.last = line.step
            _logged(self.failed)
        elif line.kind == "node-failure":
            self.failed.pop("", None)
            self.failed[line.value] = _seen(line, self.last)
        elif line.kind == "node-failure-step" and not any(seen["after"] == 0 for seen in self.failed.values()):
            self.failed[""] = _seen(line, self.last)

    def findings(self, snapshot: Snapshot) -> tuple[Finding, ...]:
        """A `node-failure` for each node lost lately."""
        return tuple(_finding(node, seen, snapshot) for node, seen in self.failed.items())


def _logged(failed: dict[str, dict[str, int]]) -> None:
    for node, seen in list(failed.items()):
        seen["after"] += 1
        if seen["after"] > REMEMBERED:
            del failed[node]


def _seen(event: LogEvent, last: int | None) -> dict[str, int]:
    return {"line": event.line, "offset": event.offset, "step": -1 if last is None else last, "after": 0}


def _finding(node: str, seen: dict[str, int], snapshot: Snapshot) -> Finding:
    name = node or "a node (the log does not say which)"
    when = f"after step {seen['step']}" if seen["step"] >= 0 else "before the first step"
    then = "training went on" if seen["after"] else "nothing was logged since"
    return Finding(
        kind="node-failure",
        severity=Severity.WARNING if seen["after"] else Severity.CRITICAL,
        summary=f"{name} failed {when}; {then}",
        evidence=(where(snapshot, seen["line"], seen["offset"]),),
        step=seen["step"] if seen["step"] >= 0 else None,
        line=seen["line"] or None,
        node=node,
        runbook="node-failure",
        actions=_actions(node, snapshot),
    )


def _actions(node: str, snapshot: Snapshot) -> tuple[str, ...]:
    """A scheduler hands the same faulty node out again."""
    jobs = snapshot.jobs if isinstance(snapshot.jobs, tuple) else ()
    exclude = (f"m4ops exclude {node}",) if node and any(job.pending for job in jobs) else ()
    return (*exclude, "m4ops requeue")
