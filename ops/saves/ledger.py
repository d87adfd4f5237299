"""What was tried with which checkpoint: one small file a step, written by whoever holds that step's lease.

If it is lost nothing is: what a step leaves in the checkpoint (weights, markers) tells that it was done, and what leaves
nothing there is done once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ops import state
from ops.checkpoints import layouts
from ops.model import Checkpoint, Run
from ops.saves.declared import Step

PAUSE = 300.0
"""Seconds after a first failure until it is tried again; then twice as long each time."""
LONGEST = 3600.0
"""Seconds between two tries at most: what failed for a night goes on within the hour."""


class Record(Struct, frozen=True):
    """One step of one checkpoint. A try is noted before it is made, so that a crash counts as one."""

    tries: int = 0
    began: float = 0.0
    done: float | None = None
    error: str = ""
    job: str = ""
    """The job that does it, while it is not known how that ended; `?`: whether it was submitted is not known."""
    said: str = ""

    def begun(self, now: float) -> Record:
        """The next try."""
        return Record(self.tries + 1, now, error="it was cut short: the process that did it is gone")

    def ended(self, now: float, said: str) -> Record:
        return replace(self, done=now, error="", said=said, job="")

    def failed(self, error: str) -> Record:
        return replace(self, error=error, job="")

    @property
    def next_try(self) -> float:
        """When it may be tried again."""
        return self.began + min(PAUSE * 2.0 ** max(0, self.tries - 1), LONGEST) if self.tries else 0.0


Records = Mapping[str, Record]


def key(checkpoint: Checkpoint) -> str:
    """What tells a save from a later one of the same step."""
    return f"{checkpoint.step}@{checkpoint.saved or 0.0:.6f}"


def step_of(name: str) -> int:
    """The step of a key."""
    return int(name.partition("@")[0])


def load(run: Run, step: Step) -> Records:
    """The records of a step; what cannot be read was never tried."""
    found = {}
    for name, data in state.kept(run, _file(step.name)).items():
        try:
            found[name] = _record(data)
            step_of(name)
        except (TypeError, ValueError, KeyError, AttributeError):
            found.pop(name, None)
    return found


def keep(run: Run, step: Step, checkpoint: Checkpoint, record: Record) -> Record:
    """Keep one record, and those of checkpoints that are still there. Hold the step's lease. Raises OpsError."""
    home = layouts.home(run)
    there = {n: r for n, r in load(run, step).items() if (home / run.layout.called(step_of(n))).exists()}
    state.keep(run, _file(step.name), {n: to_builtins(r) for n, r in {**there, key(checkpoint): record}.items()})
    return record


def _file(name: str) -> str:
    return f"saves-{name}.json"


def _record(data: Any) -> Record:
    done = data["done"]
    return Record(
        int(data["tries"]),
        float(data["began"]),
        None if done is None else float(done),
        str(data["error"]),
        str(data["job"]),
        str(data["said"]),
    )


# -- since when ------------------------------------------------------------------------------------------

SINCE = "saves.json"


def since(run: Run) -> float | None:
    """From when on saves are looked after; None: nobody did yet, or it was lost."""
    try:
        return float(state.kept(run, SINCE)["since"])
    except (KeyError, TypeError, ValueError):
        return None


def begin(run: Run, when: float) -> None:
    """Look after saves from then on. Raises OpsError."""
    state.keep(run, SINCE, {"since": when})
