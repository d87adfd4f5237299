"""Who may start now, and why the others wait: pure, so that squeue and the runner cannot disagree."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from ops.demo.scheduler.ranges import hostnames
from ops.demo.scheduler.state import Table
from ops.demo.scheduler.words import COMPLETED, PENDING, RUNNING, Key, Task, host, slots

_TERM = re.compile(
    r"(after|afterany|afterok|afternotok|aftercorr):(\d+(?:_\d+)?(?:\+\d+)?(?::\d+(?:_\d+)?(?:\+\d+)?)*)"
)
WAITING, MET, FAILED_FOR_GOOD = "unfulfilled", "", "failed"


@dataclass(frozen=True)
class Outlook:
    """The tasks to start now, in order, and the reason of every pending one."""

    starts: list[Task] = field(default_factory=list)
    reasons: dict[Key, str] = field(default_factory=dict)


def outlook(table: Table, now: float) -> Outlook:
    """Go through the pending tasks by priority, as Slurm's main scheduler does."""
    result = Outlook()
    active = Counter(t.array_id for t in table.tasks.values() if t.state == RUNNING)
    used, full = active.total(), False
    pending = (t for t in table.tasks.values() if t.state == PENDING)
    for task in sorted(pending, key=lambda t: (-t.priority, t.key)):
        reason = _blocked(table, task, now)
        throttle = table.specs[task.array_id].throttle
        if not reason and throttle and active[task.array_id] >= throttle:
            reason = "JobArrayTaskLimit"
        if not reason and used >= slots():
            reason, full = "Priority" if full else "Resources", True
        if not reason:
            result.starts.append(task)
            active[task.array_id] += 1
            used += 1
        result.reasons[task.key] = reason or "None"
    return result


def _blocked(table: Table, task: Task, now: float) -> str:
    if task.held:
        return task.held
    if task.begin > now:
        return "BeginTime"
    states = [state for _, state in dependencies(table, task)]
    if FAILED_FOR_GOOD in states and ("?" not in task.dependency or WAITING not in states):
        return "DependencyNeverSatisfied"
    if states:
        return "Dependency"
    if task.exclude and host() in hostnames(task.exclude):
        return "Resources"
    return ""


def checked(text: str) -> str:
    """A dependency as given, if it is one Slurm accepts. Raises ValueError."""
    for term in re.split(r"[,?]", text) if text else []:
        if term != "singleton" and not _TERM.fullmatch(term):
            raise ValueError(term)
    return text


def dependencies(table: Table, task: Task) -> list[tuple[str, str]]:
    """What a task still waits for, as `afterok:12` with `unfulfilled` or `failed`; empty when nothing."""
    if not task.dependency:
        return []
    verdicts = [v for term in re.split(r"[,?]", task.dependency) for v in _term(table, task, term)]
    either = "?" in task.dependency
    if either and any(state == MET for _, state in verdicts):
        return []
    return [v for v in verdicts if v[1] != MET]


def rendered(table: Table, task: Task) -> str:
    """`squeue %E`: `afterok:12(unfulfilled),afterany:13_*(unfulfilled)`, or `(null)`."""
    waits = dependencies(table, task) if task.state == PENDING else []
    joint = "?" if "?" in task.dependency else ","
    failed = [w for w in waits if w[1] == FAILED_FOR_GOOD] if joint == "," else []
    return joint.join(f"{what}({state})" for what, state in failed or waits) or "(null)"


def _term(table: Table, task: Task, term: str) -> list[tuple[str, str]]:
    if term == "singleton":
        return [("singleton", WAITING if _namesake(table, task) else MET)]
    kind, *targets = term.split(":")
    return [_target(table, task, kind, target.partition("+")[0]) for target in targets]


def _namesake(table: Table, task: Task) -> bool:
    """Whether an earlier job of the same name and user has not ended (singleton)."""
    mine = table.specs[task.array_id]
    return any(
        not t.finished and t.array_id < task.array_id
        for t in table.tasks.values()
        if (table.specs[t.array_id].name, table.specs[t.array_id].user) == (mine.name, mine.user)
    )


def _target(table: Table, task: Task, kind: str, target: str) -> tuple[str, str]:
    number, _, index = target.partition("_")
    tasks = table.array(int(number)) or [t for t in table.tasks.values() if t.job_id == int(number)]
    name = target
    if index:
        tasks = [t for t in tasks if t.index == int(index)]
    elif tasks and table.specs[tasks[0].array_id].is_array and tasks[0].array_id == int(number):
        name = f"{number}_*"
        if kind == "aftercorr":
            tasks = [t for t in tasks if t.index == task.index]
    return f"{kind}:{name}", _verdict(kind, tasks)


def _verdict(kind: str, tasks: list[Task]) -> str:
    """An unknown job counts as finished long ago, for every kind (seen with Slurm 22.05)."""
    if kind == "after":
        return WAITING if any(t.state == PENDING for t in tasks) else MET
    good = [t.state == COMPLETED for t in tasks if t.finished]
    if kind in ("afterok", "aftercorr") and not all(good):
        return FAILED_FOR_GOOD
    if len(good) < len(tasks):
        return WAITING
    if kind == "afternotok" and tasks and all(good):
        return FAILED_FOR_GOOD
    return MET
