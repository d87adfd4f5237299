"""One look at many runs: one `squeue`, at most one `sacct`, and what is remembered of each run's attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ops import attempts, fleet, slurm, snapshot, state
from ops.attempts import Ledger
from ops.model import Attempt, Run, Snapshot, Unknown
from ops.shell import Shell

LEDGER = "attempts.json"
MARGIN = 86400.0
"""Seconds before an attempt was missed from which accounting is searched: more than sacct's own default of today."""


@dataclass(frozen=True)
class Seen:
    """A run as it was seen, and the ledger of its attempts."""

    snapshot: Snapshot
    ledger: Ledger
    changed: bool = True
    """Whether the ledger is another one than was kept."""


def look(runs: Sequence[Run], shell: Shell, now: float, keeping: bool = True) -> tuple[Seen, ...]:
    """Every run at one instant, in their order. `keeping`: also ask for the ends of attempts that left the queue.

    One `squeue` for all runs of a cluster; `sacct` once, and only when an attempt that was seen running is gone.
    """
    found: dict[Path, Seen] = {}
    for cluster in dict.fromkeys(run.cluster for run in runs):
        group = [run for run in runs if run.cluster == cluster]
        found |= _cluster(group, slurm.on(cluster, shell), now, keeping)
    return tuple(found[run.dir] for run in runs)


def _cluster(runs: Sequence[Run], shell: Shell, now: float, keeping: bool) -> dict[Path, Seen]:
    owners = {run.dir: snapshot.owner(run) for run in runs}
    jobs = fleet.share(runs, owners, slurm.queue(shell))
    before = {run.dir: remembered(run) for run in runs}
    ledgers = {run.dir: attempts.advance(before[run.dir], jobs[run.dir], now) for run in runs}
    told = _told(ledgers, shell, now) if keeping else ()
    seen = {}
    for run in runs:
        ledger = ledgers[run.dir]
        if not isinstance(told, Unknown):
            names = set(attempts.wanted(ledger))
            ledger = attempts.answered(ledger, (a for a in told if a.raw_id in names))
        picture = snapshot.read(run, shell, now, known=jobs[run.dir])
        ended = told if isinstance(told, Unknown) and ledger.gone and not ledger.ended else ledger.ended
        seen[run.dir] = Seen(replace(picture, attempts=ended), ledger, ledger != before[run.dir])
    return seen


def _told(ledgers: Mapping[Path, Ledger], shell: Shell, now: float) -> tuple[Attempt, ...] | Unknown:
    ids = sorted({raw for ledger in ledgers.values() for raw in attempts.wanted(ledger)})
    if not ids:
        return ()
    since = min(when for ledger in ledgers.values() for when in ledger.gone.values())
    told = attempts.told(shell, ids, min(since, now) - MARGIN)
    return told if isinstance(told, Unknown) else attempts.blamed(shell, told)


def remembered(run: Run) -> Ledger:
    """The run's ledger as it was last kept."""
    return attempts.from_json(state.kept(run, LEDGER))


def keep(run: Run, seen: Seen) -> None:
    """Keep the ledger where it changed. Raises OpsError when the disk does not take it. Hold the run's lease."""
    if seen.changed:
        state.keep(run, LEDGER, attempts.to_json(seen.ledger))
