"""One look at many runs: one `squeue`, at most one `sacct`, and what is remembered of each run's attempts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ops import attempts, checked, fleet, nodes, slurm, snapshot, state
from ops.attempts import Ledger
from ops.errors import BadInput, OpsError
from ops.logs import rotated
from ops.logs.cursor import Cursor
from ops.model import Attempt, Run, Snapshot, Unknown
from ops.placement import Failure, NodeState
from ops.shell import Shell

LEDGER = "attempts.json"
NODES = "nodes.json"
LEASE = 300.0
"""Seconds a tick may be silent before another takes its place."""
LATE = 3600.0
"""Seconds for which the node that ended an attempt is asked for again: slurmdbd hears of it late."""
MARGIN = 86400.0
"""Seconds before an attempt was missed from which accounting is searched: more than sacct's own default of today."""


class Seen(Struct, frozen=True):
    """A run as it was seen, but for its log, and the ledger of its attempts."""

    snapshot: Snapshot
    ledger: Ledger
    changed: bool = True
    """Whether the ledger is another one than was kept."""


def look(runs: Sequence[Run], shell: Shell, now: float, keeping: bool = True) -> tuple[Seen | OSError, ...]:
    """Every run at one instant, in their order; the error of one that could not be looked at. `keeping`: also ask for the ends of attempts that left the queue.

    One `squeue` for all runs, however many clusters m4ops.toml names; for each cluster `sacct` once, and only when an attempt that was seen running is gone; `sinfo`
    once, and only when a job waits for nodes.
    """
    found: dict[Path, Seen | OSError] = {}
    for cluster, queued in slurm.queues(shell, tuple(dict.fromkeys(run.cluster for run in runs))).items():
        group = [run for run in runs if run.cluster == cluster]
        found |= _cluster(group, queued, slurm.on(cluster, shell), now, keeping)
    return tuple(found[run.dir] for run in runs)


def _cluster(
    runs: Sequence[Run], queued: fleet.Jobs, shell: Shell, now: float, keeping: bool
) -> dict[Path, Seen | OSError]:
    owners = {run.dir: snapshot.owner(run) for run in runs}
    jobs = fleet.share(runs, owners, queued)
    before = {run.dir: remembered(run) for run in runs}
    ledgers = {run.dir: attempts.advance(before[run.dir], jobs[run.dir], now) for run in runs}
    told = _told(ledgers, shell, now) if keeping else ()
    states = nodes.for_waiting(tuple(job for each in jobs.values() for job in each or ()), shell)
    seen: dict[Path, Seen | OSError] = {}
    for run in runs:
        ledger = ledgers[run.dir]
        if not isinstance(told, Unknown):
            names, known = set(attempts.wanted(ledger)), {a.key for a in ledger.ended}
            ledger = attempts.answered(ledger, (a for a in told if a.raw_id in names or a.key in known))
        try:
            picture = checked.resumed_next(snapshot.beside_log(run, now, jobs[run.dir]))
        except OSError as error:
            seen[run.dir] = error
            continue
        ended = told if isinstance(told, Unknown) and ledger.gone and not ledger.ended else ledger.ended
        seen[run.dir] = Seen(replace(picture, attempts=ended, nodes=states), ledger, ledger != before[run.dir])
    return seen


def _told(ledgers: Mapping[Path, Ledger], shell: Shell, now: float) -> tuple[Attempt, ...] | Unknown:
    """What became of the attempts that are gone, and which node ended those of which it was not known yet."""
    ids = sorted({raw for ledger in ledgers.values() for raw in attempts.wanted(ledger)})
    told: tuple[Attempt, ...] | Unknown = ()
    if ids:
        since = min(when for ledger in ledgers.values() for when in ledger.gone.values())
        told = attempts.told(shell, ids, min(since, now) - MARGIN)
    late = (a for ledger in ledgers.values() for a in ledger.ended if now - (a.end or 0.0) < LATE)
    return told if isinstance(told, Unknown) else attempts.blamed(shell, (*told, *late))


def remembered(run: Run) -> Ledger:
    """The run's ledger as it was last kept."""
    return attempts.from_json(state.kept(run, LEDGER))


def keep(run: Run, seen: Seen) -> None:
    """Keep the ledger where it changed. Raises OpsError when the disk does not take it. Hold the run's lease."""
    if seen.changed:
        state.keep(run, LEDGER, attempts.to_json(seen.ledger))


class Life(Struct, frozen=True):
    """What failed under a run since its beginning, and what could not be asked."""

    failures: tuple[Failure, ...]
    states: tuple[NodeState, ...] | Unknown
    accounting: Unknown | None = None
    """Why Slurm's records are missing; None: they are there."""
    log: Unknown | None = None


def life(run: Run, shell: Shell, now: float) -> Life:
    """The run's failures over its life, from the log's new lines, one `sacct`, and what was kept of earlier looks."""
    shell = slurm.on(run.cluster, shell)
    scan, cursor, unread = _scanned(run)
    ledger = remembered(run)
    since = ledger.asked - MARGIN if ledger.asked else _beginning(run, now)
    told = attempts.named(shell, run.name, snapshot.owner(run), since)
    if not isinstance(told, Unknown):
        ledger = replace(attempts.answered(ledger, attempts.blamed(shell, told)), asked=now)
    with suppress(OpsError), state.lease(run, "tick", LEASE):  # else the next look reads the same again
        state.keep(run, NODES, {"scan": nodes.to_json(scan), "cursor": cursor})
        state.keep(run, LEDGER, attempts.to_json(ledger))
    failures = nodes.joined(scan.failures, ledger.ended)
    return Life(failures, nodes.states(shell), told if isinstance(told, Unknown) else None, unread)


def _scanned(run: Run) -> tuple[nodes.Scan, Mapping[str, Any], Unknown | None]:
    kept = state.kept(run, NODES)
    try:
        scan, cursor = nodes.from_json(kept["scan"]), Cursor.from_json(json.dumps(kept["cursor"]))
    except (KeyError, TypeError, ValueError, BadInput):
        scan, cursor = nodes.Scan(), None
    if run.log is None:
        return scan, kept.get("cursor", {}), snapshot.NO_LOG
    begun = False
    try:
        for log, after in rotated.read_batches(run.log, cursor, earlier=run.earlier_logs):
            if after.restarted and not begun:
                begun, scan = True, nodes.Scan()
            scan, cursor = nodes.follow(scan, log), after
    except OSError as error:
        return scan, to_builtins(cursor) if cursor else {}, Unknown(f"log {run.log}: {error.strerror or error}")
    return scan, to_builtins(cursor), None


def _beginning(run: Run, now: float) -> float:
    """When the run's oldest file was written, less a day: before that it had no job."""
    with suppress(OSError):
        return min((entry.stat().st_mtime for entry in run.dir.iterdir()), default=now) - MARGIN
    return now - MARGIN
