"""A job's attempts: each time Slurm started it, on which nodes, and how that ended, as sacct(1) of Slurm 22.05 tells it.

A requeued job is one job with several attempts, and ids are used again after a crash of the controller: so an attempt is
known by its id and its start. Which node failed sacct does not say; the node events of `sacctmgr show event` do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from ops.hostlist import expand
from ops.model import Attempt, Job, Unknown
from ops.shell import Shell

TIMEOUT = 30.0
"""Seconds for slurmdbd, which may have years to search."""
PATIENCE = 6 * 3600.0
"""Seconds after which an attempt that accounting does not tell of is no longer asked for."""
SAME = 5.0
"""Seconds between a node's failure and the end it brought to a job, both told by slurmctld."""
KEPT = 200
"""Ended attempts that are remembered of a run, besides those that a node ended."""
_FIELDS = ("JobIDRaw", "JobID", "State", "ExitCode", "NodeList", "Submit", "Start", "End", "User", "JobName")


class Ledger(Struct, frozen=True):
    """What is remembered of a run's attempts: those that ran when it was last looked at, and those that ended."""

    running: tuple[Attempt, ...] = ()
    gone: Mapping[str, float] = field(default_factory=dict)
    """Attempts (`raw_id start`) that left the queue and are not accounted for yet, and when they were missed."""
    ended: tuple[Attempt, ...] = ()
    asked: float = 0.0
    """Up to when accounting was searched for the whole run."""


def advance(ledger: Ledger, jobs: tuple[Job, ...] | Unknown, now: float) -> Ledger:
    """The ledger after a look at the queue. An unknown queue changes nothing."""
    if isinstance(jobs, Unknown):
        return ledger
    running = tuple(Attempt(j.raw_id, j.id, j.start, j.nodes) for j in jobs if j.running and j.start)
    there, known = {a.key for a in running}, {a.key for a in ledger.ended}
    missed = {_name(a): now for a in ledger.running if a.key not in there | known}
    waiting = {name: since for name, since in ledger.gone.items() if now - since < PATIENCE}
    return replace(ledger, running=running, gone=missed | waiting)


def wanted(ledger: Ledger) -> tuple[str, ...]:
    """The ids that accounting must be asked for."""
    return tuple(dict.fromkeys(name.split()[0] for name in ledger.gone))


def answered(ledger: Ledger, told: Iterable[Attempt]) -> Ledger:
    """The ledger with what accounting told of attempts that have ended."""
    ended = {a.key: a for a in ledger.ended}
    for attempt in told:
        if attempt.end is not None:
            before = ended.get(attempt.key)
            ended[attempt.key] = replace(attempt, failed=attempt.failed or (before.failed if before else ()))
    names = {_name(a) for a in ended.values()}
    gone = {name: since for name, since in ledger.gone.items() if name not in names}
    inorder = sorted(ended.values(), key=lambda a: a.start)
    newest = {a.key for a in inorder[-KEPT:]}
    kept = tuple(a for a in inorder if a.state == "NODE_FAIL" or a.key in newest)
    return replace(ledger, gone=gone, ended=kept)


def told(shell: Shell, ids: Sequence[str], since: float) -> tuple[Attempt, ...] | Unknown:
    """Every attempt of these jobs, of all runs at once: one `sacct`. Unknown where there is no accounting."""
    return _sacct(shell, ("-j", ",".join(ids)), since)


def named(shell: Shell, name: str, user: str, since: float) -> tuple[Attempt, ...] | Unknown:
    """Every attempt of the user's jobs of that name: one `sacct`."""
    return _sacct(shell, ("-u", user, f"--name={name}"), since)


def _sacct(shell: Shell, which: Sequence[str], since: float) -> tuple[Attempt, ...] | Unknown:
    argv = ("sacct", "-D", "-X", "-P", "-n", "-S", moment(since), f"--format={','.join(_FIELDS)}", *which)
    answer = shell(argv, TIMEOUT)
    if answer.returncode != 0:
        lines = (answer.stderr or answer.stdout).strip().splitlines()
        return Unknown(lines[-1] if lines else f"sacct ended with {answer.returncode}")
    return parse(answer.stdout)


def parse(text: str) -> tuple[Attempt, ...]:
    """The attempts of `sacct -P -n`; what never started is none. The name, which may hold a `|`, is the last field."""
    rows = (line.split("|", len(_FIELDS) - 1) for line in text.splitlines())
    return tuple(_attempt(row) for row in rows if len(row) == len(_FIELDS) and _time(row[6]))


def _attempt(row: Sequence[str]) -> Attempt:
    raw, identity, state, code, nodes, _, start, end, *_ = row
    over = None if state.startswith(("RUNNING", "PENDING", "SUSPENDED")) else _time(end)
    return Attempt(raw, identity, _time(start) or 0.0, nodes, state.partition(" ")[0], code, over)


def blamed(shell: Shell, attempts: Iterable[Attempt]) -> tuple[Attempt, ...]:
    """The attempts, each that ended by NODE_FAIL with the nodes that went down just then: one question for all.

    From slurmdbd's node events, else from what `sinfo` says of nodes that are still down.
    """
    known = tuple(attempts)
    open_ = [a for a in known if a.state == "NODE_FAIL" and not a.failed and a.end is not None]
    if not open_:
        return known
    downs = _events(shell, min(a.end or 0.0 for a in open_) - 60)
    return tuple(_blame(a, downs) if a in open_ else a for a in known)


Down = tuple[str, float, str]
"""A node, when it went down, and why."""


def _blame(attempt: Attempt, downs: Sequence[Down]) -> Attempt:
    nodes = set(expand(attempt.nodes))
    found = [d for d in downs if d[0] in nodes and abs(d[1] - (attempt.end or 0.0)) <= SAME]
    return replace(attempt, failed=tuple(dict.fromkeys(d[0] for d in found)), why=found[0][2] if found else "")


def _events(shell: Shell, since: float) -> list[Down]:
    form = "format=NodeName,TimeStart,State,Reason"
    answer = shell(("sacctmgr", "-P", "-n", "show", "event", f"start={moment(since)}", form), TIMEOUT)
    if answer.returncode == 0:
        rows = (line.split("|", 3) for line in answer.stdout.splitlines())
        return [(r[0], _time(r[1]) or 0.0, r[3]) for r in rows if len(r) == 4 and r[0] and _is_down(r[2])]
    answer = shell(("sinfo", "-h", "-N", "-o", "%N|%H|%T|%E"), TIMEOUT)
    rows = (line.split("|", 3) for line in (answer.stdout if answer.returncode == 0 else "").splitlines())
    return [(r[0], _time(r[1]) or 0.0, r[3]) for r in rows if len(r) == 4 and _is_down(r[2])]


def _is_down(state: str) -> bool:
    return re.match(r"down|fail", state, re.IGNORECASE) is not None


def moment(seconds: float) -> str:
    """A time as Slurm's commands take it: local, without offset."""
    return datetime.fromtimestamp(max(seconds, 0.0), UTC).astimezone().strftime("%Y-%m-%dT%H:%M:%S")


def _time(text: str) -> float | None:
    """Seconds of an epoch (SLURM_TIME_FORMAT=%s) or of Slurm's usual local time."""
    if text.isdigit():
        return float(text) or None
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").astimezone().timestamp()
    except ValueError:
        return None


def _name(attempt: Attempt) -> str:
    return f"{attempt.raw_id} {attempt.start:.0f}"


def to_json(ledger: Ledger) -> dict[str, object]:
    """The ledger as plain JSON."""
    plain: dict[str, object] = to_builtins(ledger)
    return plain


def from_json(data: Mapping[str, Any]) -> Ledger:
    """The ledger that `to_json` wrote; an empty one for anything else, for accounting can be asked again."""
    try:
        return Ledger(
            running=tuple(_restored(a) for a in data["running"]),
            gone={str(k): float(v) for k, v in data["gone"].items()},
            ended=tuple(_restored(a) for a in data["ended"]),
            asked=float(data["asked"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return Ledger()


def _restored(data: Mapping[str, Any]) -> Attempt:
    return Attempt(**{**data, "failed": tuple(data["failed"])})
