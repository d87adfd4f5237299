"""The nodes that failed a run: a table, JSON, and a report to paste into a ticket for the cluster's admins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from msgspec import to_builtins

from ops.model import Run, Unknown
from ops.placement import Failure, NodeHistory
from ops.views import words
from ops.views.words import clean, paint

Gaps = Sequence[tuple[str, Unknown]]
"""What could not be read: its name and the reason."""
NO_NAME = "UNKNOWN"


def nodes_text(run: Run, histories: Sequence[NodeHistory], excluded: Sequence[str], gaps: Gaps, color: bool) -> str:
    """Failures by node, the worst first."""
    lines = [paint(f"{name}: UNKNOWN ({clean(why.reason)})", "magenta", color) for name, why in gaps]
    if not histories:
        lines.append(f"no node failed {clean(run.name)}" + (", as far as could be read" if gaps else ""))
    else:
        rows: list[tuple[str, ...]] = [("NODE", "LOST", "XID", "DIED FIRST", "LAST", "STATE", "")]
        rows += [_cells(history, history.node in excluded) for history in histories]
        head, *table = words.table(rows, right=(1,))
        lines += [paint(head, "bold", color), *table]
    if excluded:
        lines.append(f"the next m4ops submit excludes {', '.join(map(clean, excluded))}")
    return "\n".join(lines)


def _cells(history: NodeHistory, excluded: bool) -> tuple[str, ...]:
    codes = Counter(f.what.removeprefix("xid ") for f in history.failures if f.what.startswith("xid "))
    ranks = Counter(f.rank for f in history.failures if f.rank is not None)
    state = history.state
    now = f"{state.state}" + (f" ({state.reason})" if state.reason else "") if state else NO_NAME
    return (
        clean(history.node) or NO_NAME,
        str(len(history.lost)),
        ", ".join(f"{code} {n} x" if n > 1 else code for code, n in codes.items()) or "-",
        ", ".join(f"task {rank}" + (f" {n} x" if n > 1 else "") for rank, n in ranks.items()) or "-",
        _when(history.failures[-1]),
        clean(now),
        "excluded" if excluded else "",
    )


def _when(failure: Failure) -> str:
    step = f"step {failure.step}" if failure.step is not None else ""
    return ", ".join(filter(None, (words.clock(failure.time) if failure.time else "", step))) or NO_NAME


def nodes_json(run: Run, histories: Sequence[NodeHistory], excluded: Sequence[str], gaps: Gaps) -> dict[str, Any]:
    """`m4ops.nodes/1`: failures by node over the run's life.

    - `schema`; `run`: {`name`, `dir`}; `excluded`: nodes the next submit excludes
    - `unknown`: {source: reason} of what could not be read
    - `nodes`: list of {`node` (empty: nothing tells which one), `lost`: how often Slurm lost it, `xid`: {code: times},
      `last_seen`, `state`: null or {`state`, `reason`, `user`, `since`}, `failures`: list of {`what`, `time`, `step`
      (the last one logged before), `job`, `rank` (the task that died first), `nodes` of the job, `evidence`: lines}}
    """
    return {
        "schema": "m4ops.nodes/1",
        "run": {"name": run.name, "dir": run.dir},
        "excluded": list(excluded),
        "unknown": {name: why.reason for name, why in gaps},
        "nodes": [_node(history) for history in histories],
    }


def _node(history: NodeHistory) -> dict[str, Any]:
    state = history.state
    codes = Counter(f.what.removeprefix("xid ") for f in history.failures if f.what.startswith("xid "))
    return {
        "node": history.node,
        "lost": len(history.lost),
        "xid": dict(codes),
        "last_seen": words.iso(history.failures[-1].time),
        "state": state
        and {"state": state.state, "reason": state.reason, "user": state.user, "since": words.iso(state.since)},
        "failures": [_failure(f) for f in history.failures],
    }


def _failure(failure: Failure) -> dict[str, Any]:
    data = {k: v for k, v in to_builtins(failure).items() if k != "node"}
    return {**data, "time": words.iso(failure.time), "evidence": failure.evidence.splitlines()}


def report_text(run: Run, user: str, history: NodeHistory, excluded: bool) -> str:
    """What the admins need, ready to paste: which node, how often, when, under which job, with the lines that say so."""
    count = len(history.failures)
    lines = [
        f"Node {clean(history.node)}: {words.count(count, 'failure')} under {clean(run.name)}, last {_when(history.failures[-1])}",
        "",
        f"The job runs as user {clean(user)}. Times are UTC.",
        f"State of the node now: {_cells(history, False)[5]}",
    ]
    for number, failure in enumerate(history.failures, 1):
        what = "Slurm lost the node" if failure.what == "lost" else failure.what
        job = (
            f", job {clean(failure.job)}" + (f" on {clean(failure.nodes)}" if failure.nodes else "")
            if failure.job
            else ""
        )
        lines += ["", f"{number}. {_when(failure)}: {clean(what)}{job}"]
        lines += [f"   {clean(line)}" for line in failure.evidence.splitlines()]
    ours = "We exclude it from this run's jobs" if excluded else "We have not excluded it from our jobs yet"
    return "\n".join([*lines, "", f"{ours}; please check it, and drain it if the fault is its own."])
