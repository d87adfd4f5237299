"""The nodes of a run: which failed over its life, by the log and by Slurm's records, and which its jobs shall not get.

In the log the failed node is the one of `srun: error: Node failure on NODE`; the node after `ON` in slurmstepd's line is
the first of the step. When the first node itself dies, the log says nothing: then only Slurm's records tell (22.05).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ops.catalogue.reasons import reason_of
from ops.errors import Drift, OpsError, Unreachable
from ops.hostlist import expand, natural
from ops.model import OPS_DIR, Attempt, Job, LogEvent, LogView, Sample, Unknown
from ops.placement import Failure, NodeHistory, NodeState, Placed, Placement
from ops.shell import Answer, Shell

TIMEOUT = 15.0
NEAR = 120.0
"""Seconds between slurmstepd's clock and slurmctld's for what is one failure."""
FILE = "exclude"
"""In `.m4ops`: nodes that no job of the run shall get, one a line; `m4ops submit` passes them on."""
_STEP = re.compile(r"(?:STEP|JOB) (\d+)\S* ON \S+ CANCELLED AT (\S+) DUE TO NODE FAILURE")
_TASK = re.compile(r"srun: error: (\S+): tasks? (\d+)[\d,\-]*: (?!Terminated)")
_XID = re.compile(r"(?:(\S+) kernel: .*)?NVRM: Xid \([^)]*\): (\d+)")
_ENDINGS = {"time-limit", "preempted", "requeued", "cancelled", "sigterm", "kill-switch", "time-over", "max-steps"}
"""What ends a job on purpose: tasks that die after it are no failure."""


class Scan(Struct, frozen=True):
    """What the log told so far; `open` while no step was logged since the last failure or ending."""

    failures: tuple[Failure, ...] = ()
    step: int | None = None
    time: float | None = None
    open: bool = False
    ending: tuple[str, float | None] = ("", None)
    """Job and time of the step that slurmstepd ended for a node failure, before or after srun names the node."""


def follow(scan: Scan, log: LogView) -> Scan:
    """The scan after these lines of the log."""
    lines: list[Sample | LogEvent] = sorted([*log.samples, *log.events], key=lambda line: line.offset)
    for line in lines:
        if isinstance(line, Sample):
            scan = replace(scan, step=line.step, time=line.time or scan.time, open=False, ending=("", None))
        else:
            scan = _event(scan, line, log.path)
    return scan


def _event(scan: Scan, event: LogEvent, path: Path) -> Scan:
    if found := _STEP.search(event.text):
        job, time = found[1], _local(found[2])
        same = [f.what == "lost" and f.step == scan.step and not f.job and scan.open for f in scan.failures]
        timed = (replace(f, job=job, time=time) if s else f for f, s in zip(scan.failures, same, strict=True))
        return replace(scan, failures=tuple(timed), ending=(job, time), open=True)
    failure = _failure(scan, event, f"{path}:{event.line}" if event.line else str(path))
    failures = scan.failures
    if failure:
        failures = (*(f for f in failures if not _brought(scan, f, failure)), failure)
    return replace(scan, failures=failures, open=scan.open or failure is not None or event.kind in _ENDINGS)


def _brought(scan: Scan, earlier: Failure, later: Failure) -> bool:
    """Whether a task died because the node was lost: Slurm notices that after a while, the other tasks at once."""
    return scan.open and later.what == "lost" and earlier.what == "task died" and earlier.step == scan.step


def _failure(scan: Scan, event: LogEvent, where: str) -> Failure | None:
    from ops.secrecy import redact

    told = f"{where} {redact(event.text)[:200]}"
    if event.kind == "node-failure":
        job, time = scan.ending
        return Failure(event.value or event.node, "lost", told, time or scan.time, scan.step, job)
    if (xid := _XID.search(event.text)) and (node := xid[1] or event.node):
        return Failure(node, f"xid {xid[2]}", told, scan.time, scan.step)
    if not scan.open and (task := _TASK.search(event.text)):
        return Failure(task[1], "task died", told, scan.time, scan.step, rank=int(task[2]))
    return None


def _local(text: str) -> float | None:
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").astimezone().timestamp()
    except ValueError:
        return None


def joined(logged: Iterable[Failure], attempts: Iterable[Attempt]) -> tuple[Failure, ...]:
    """The failures of the log and of Slurm's records, each once, in the order of their times."""
    failures, taken = list(logged), set()
    for attempt in attempts:
        for node in (attempt.failed or ("",)) if attempt.state == "NODE_FAIL" else ():
            at = next((i for i, f in enumerate(failures) if i not in taken and _same(f, attempt, node)), None)
            told = f"sacct: job {attempt.id} NODE_FAIL on {attempt.nodes}" + (f"; {attempt.why}" if attempt.why else "")
            if at is None:
                failures.append(Failure(node, "lost", told, attempt.end, None, attempt.id, nodes=attempt.nodes))
                taken.add(len(failures) - 1)
            else:
                both = f"{failures[at].evidence}\n{told}"
                failures[at] = replace(
                    failures[at], evidence=both, time=attempt.end, job=attempt.id, nodes=attempt.nodes
                )
                taken.add(at)
    return tuple(sorted(failures, key=lambda f: (f.time is not None, f.time or 0.0)))


def _same(failure: Failure, attempt: Attempt, node: str) -> bool:
    if failure.what != "lost" or (failure.node != node if node else failure.node not in expand(attempt.nodes)):
        return False
    if failure.job and failure.job != attempt.raw_id:
        return False
    timed = failure.job and failure.time is not None and attempt.end is not None
    return not timed or abs((failure.time or 0.0) - (attempt.end or 0.0)) <= NEAR


def histories(failures: Iterable[Failure], states: Sequence[NodeState] = ()) -> tuple[NodeHistory, ...]:
    """The failures by node, the node with most first."""
    by_node: dict[str, list[Failure]] = {}
    for failure in failures:
        by_node.setdefault(failure.node, []).append(failure)
    known = {s.name: s for s in states}
    found = (NodeHistory(node, tuple(of), known.get(node)) for node, of in by_node.items())
    return tuple(sorted(found, key=lambda h: (-len(h.lost), -len(h.failures), natural(h.node))))


def states(shell: Shell) -> tuple[NodeState, ...] | Unknown:
    """Every node of every partition: one `sinfo`."""
    answer = shell(("sinfo", "-h", "-N", "-o", "%N|%R|%T|%u|%H|%E"), TIMEOUT)
    if answer.returncode != 0:
        return Unknown(_words(answer) or f"sinfo ended with {answer.returncode}")
    rows = (line.split("|", 5) for line in answer.stdout.splitlines())
    return tuple(
        NodeState(name, partition, state, "" if why == "none" else why, user, float(at) if at.isdigit() else None)
        for name, partition, state, user, at, why in (row for row in rows if len(row) == 6)
    )


def for_waiting(jobs: tuple[Job, ...] | Unknown, shell: Shell) -> tuple[NodeState, ...] | Unknown:
    """The nodes, where a job waits for nodes; nobody is asked where none does."""
    reasons = (reason_of(job.reason) for job in jobs or () if job.pending)
    return states(shell) if any(r.nodes for r in reasons if r) else Unknown("not asked")


def remembered(run_dir: Path) -> str | None:
    """The text of `.m4ops/exclude`; None without one. Raises OSError."""
    try:
        return (run_dir / OPS_DIR / FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def excluded(run_dir: Path) -> tuple[str, ...]:
    """The nodes that no job of the run shall get. Raises OSError."""
    return tuple((remembered(run_dir) or "").split())


def placement(run_dir: Path, jobs: tuple[Job, ...] | Unknown, shell: Shell) -> Placement | Unknown:
    """Where the run's waiting jobs may go: one `sinfo`, one `scontrol` for each array."""
    nodes = states(shell)
    if isinstance(nodes, Unknown):
        return nodes
    waiting: list[Placed] = []
    for array in dict.fromkeys(j.array_id for j in jobs or () if j.pending):
        found = placed(shell, array)
        if isinstance(found, Unknown):
            return found
        waiting += found
    try:
        return Placement(tuple(waiting), nodes, remembered(run_dir))
    except (OSError, UnicodeDecodeError) as error:
        return Unknown(f"{run_dir / OPS_DIR / FILE}: {error}")


def placed(shell: Shell, job: str) -> tuple[Placed, ...] | Unknown:
    """The waiting parts of a job or array as `scontrol show job` describes them, and what they exclude."""
    answer = shell(("scontrol", "-o", "show", "job", job), TIMEOUT)
    if answer.returncode != 0:
        return Unknown(_words(answer) or f"scontrol ended with {answer.returncode}")
    return tuple(found for line in answer.stdout.splitlines() if (found := _placed(job, line)))


def _placed(job: str, line: str) -> Placed | None:
    state = re.search(r" JobState=(\S+)", line)
    nodes = re.search(r" ReqNodeList=\S* ExcNodeList=(\S*)", line)
    count, partition = re.search(r" NumNodes=(\d+)", line), re.search(r" Partition=(\S+)", line)
    if not (state and nodes and state[1] == "PENDING"):
        return None
    listed = "" if nodes[1] == "(null)" else nodes[1]
    return Placed(job, partition[1] if partition else "", int(count[1]) if count else 0, listed)


def exclude(shell: Shell, job: str, before: str, after: str) -> None:
    """Set the nodes a waiting job shall not get, and prove by reading back that Slurm took it.

    What starts meanwhile keeps its nodes. Raises Drift when the job excludes neither `before` nor `after`.
    """
    held, wanted = set(expand(before)), set(expand(after))
    for found in _asked(shell, job):
        if set(expand(found.excluded)) not in (held, wanted):
            raise Drift(
                f"job {job} excludes {found.excluded or 'no node'}, not {before or 'none'}", job, "plan it anew"
            )
    answer = shell(("scontrol", "update", f"jobid={job}", f"ExcNodeList={after}"), TIMEOUT)
    # A task of an array that runs already makes scontrol fail though all that waits was changed: the queue decides.
    if any(set(expand(found.excluded)) != wanted for found in _asked(shell, job)):
        raise OpsError(f"Slurm did not take it: {_words(answer)}", f"job {job}", f"scontrol show job {job}")


def _asked(shell: Shell, job: str) -> tuple[Placed, ...]:
    found = placed(shell, job)
    if not isinstance(found, Unknown):
        return found
    if "Invalid job id" in found.reason:
        return ()
    raise Unreachable(
        f"Slurm cannot be asked about job {job}: {found.reason}", f"job {job}", f"scontrol show job {job}"
    )


def _words(answer: Answer) -> str:
    lines = (answer.stderr or answer.stdout).strip().splitlines()
    return lines[0] if lines else ""


def to_json(scan: Scan) -> dict[str, Any]:
    """The scan as plain JSON."""
    plain: dict[str, Any] = to_builtins(scan)
    return plain


def from_json(data: dict[str, Any]) -> Scan:
    """The scan that `to_json` wrote. Raises KeyError, TypeError, ValueError for anything else."""
    failures = tuple(Failure(**f) for f in data["failures"])
    job, time = data["ending"]
    return Scan(**{**data, "failures": failures, "ending": (str(job), time)})
