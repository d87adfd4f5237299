"""What squeue can say about a job, by field name; and which jobs it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ops.demo.scheduler import spool, times, waiting
from ops.demo.scheduler.ranges import compress
from ops.demo.scheduler.state import Table, label, remainder
from ops.demo.scheduler.words import COMPACT, MIN_JOB_AGE, PENDING, PLAIN, RUNNING, Call, Spec, Task, host

ORDER = {PENDING: 0, RUNNING: 1}


@dataclass(frozen=True)
class Row:
    """One line of squeue: a task, or the tasks of an array that wait together."""

    spec: Spec
    task: Task
    indices: str
    """`3`, `2-3%1` for several, "" for a plain job."""
    folded: bool
    reason: str
    dependency: str
    env: Mapping[str, str]
    now: float

    @property
    def array_job(self) -> str:
        if self.task.index == PLAIN:
            return str(self.task.id)
        return f"{self.spec.array_id}_[{self.indices}]" if self.folded else label(self.task)

    @property
    def nodes(self) -> str:
        return host() if self.task.start and self.task.job_id and _ran(self.task) else ""

    def moment(self, seconds: float) -> str:
        return times.moment(seconds, self.env)


def _ran(task: Task) -> bool:
    return task.state == RUNNING or (task.finished and (task.end > task.start or task.status != 0))


def elapsed(task: Task, now: float) -> float:
    """Seconds the task has run."""
    if task.state == PENDING or not task.start:
        return 0.0
    return (now if task.state == RUNNING else task.end) - task.start


def expected_end(task: Task) -> float:
    """When it ended, or is to end by its limit (a year ahead without one, as Slurm has it); 0 if pending."""
    if task.state == PENDING:
        return 0.0
    return task.end or task.start + (task.time_limit or times.YEAR)


def begins(task: Task, now: float) -> float:
    """When it started, or may start at the earliest if that is known and ahead."""
    return task.start or (task.begin if task.begin > now else 0.0)


def rows(table: Table, call: Call, *, each: bool) -> list[Row]:
    """All jobs still known, most urgent first; with `each`, one line for every task."""
    now = time.time()
    reasons = waiting.outlook(table, now).reasons
    result: list[Row] = []
    for spec in table.specs.values():
        tasks = [t for t in table.array(spec.array_id) if not t.finished or now - t.end < MIN_JOB_AGE]
        group = [] if each else _together(table, spec)
        if group:
            result.append(_row(table, spec, group, reasons, (call, now)))
        keys = {t.key for t in group}
        result += [_row(table, spec, [t], reasons, (call, now)) for t in tasks if t.key not in keys]
    return sorted(result, key=lambda r: (ORDER.get(r.task.state, 2), -r.task.priority))


def _together(table: Table, spec: Spec) -> list[Task]:
    """The pending tasks shown as one line: as long as there is a remainder, requeued ones join it."""
    rest = remainder(table, spec.array_id)
    untouched = len(rest) == spec.task_count
    if not spec.is_array or not rest or (len(rest) == 1 and not untouched):
        return []
    return [t for t in table.array(spec.array_id) if t.state == PENDING]


def _row(table: Table, spec: Spec, tasks: list[Task], reasons: dict[tuple[int, int], str],
         at: tuple[Call, float]) -> Row:  # fmt: skip
    shown = next((t for t in tasks if not t.job_id), tasks[0])
    folded = len(tasks) > 1 or (spec.is_array and spec.task_count == 1 and not shown.job_id)
    words = [_reason(t, reasons) for t in sorted(tasks, key=lambda t: t.job_id)]
    throttle = f"%{spec.throttle}" if folded and spec.throttle and not any(t.job_id for t in tasks) else ""
    indices = "" if shown.index == PLAIN else compress(t.index for t in tasks) + throttle
    call, now = at
    return Row(
        spec, shown, indices, folded, ",".join(dict.fromkeys(words)), waiting.rendered(table, shown), call.env, now
    )


def _reason(task: Task, reasons: dict[tuple[int, int], str]) -> str:
    if task.state == PENDING:
        return reasons[task.key]
    return task.held or "None" if task.state == RUNNING else task.reason or "None"


def _nodelist_or_reason(r: Row) -> str:
    if r.task.state == RUNNING or (r.task.finished and r.nodes):
        return r.nodes
    return f"({r.reason})" if r.task.state in (PENDING, "FAILED", "TIMEOUT") else ""


def _limit(r: Row) -> str:
    return times.short(r.task.time_limit) if r.task.time_limit else "UNLIMITED"


def _left(r: Row) -> str:
    return times.short(r.task.time_limit - elapsed(r.task, r.now)) if r.task.time_limit else "UNLIMITED"


Field = tuple[str, Callable[[Row], str]]

FIELDS: dict[str, Field] = {
    "account": ("ACCOUNT", lambda r: r.spec.account or "(null)"),
    "arrayjobid": ("ARRAY_JOB_ID", lambda r: str(r.spec.array_id)),
    "arraytaskid": ("ARRAY_TASK_ID", lambda r: r.indices or "N/A"),
    "batchflag": ("BATCH_FLAG", lambda r: "1"),
    "batchhost": ("EXEC_HOST", lambda r: r.nodes or "n/a"),
    "command": ("COMMAND", lambda r: r.spec.command),
    "comment": ("COMMENT", lambda r: r.task.comment or "(null)"),
    "dependency": ("DEPENDENCY", lambda r: r.dependency),
    "eligibletime": ("ELIGIBLE_TIME", lambda r: r.moment(max(r.task.begin, r.task.submit))),
    "endtime": ("END_TIME", lambda r: r.moment(expected_end(r.task))),
    "exit_code": ("EXIT_CODE", lambda r: str(r.task.status >> 8)),
    "jobarrayid": ("JOBID", lambda r: r.array_job),
    "jobid": ("JOBID", lambda r: str(r.task.id)),
    "name": ("NAME", lambda r: r.spec.name),
    "nodelist": ("NODELIST", lambda r: r.nodes),
    "numcpus": ("CPUS", lambda r: str(r.spec.ntasks * r.spec.cpus_per_task)),
    "numnodes": ("NODES", lambda r: str(r.spec.nodes)),
    "numtasks": ("TASKS", lambda r: str(r.spec.ntasks)),
    "partition": ("PARTITION", lambda r: r.spec.partition),
    "priority": ("PRIORITY", lambda r: f"{r.task.priority / (2**32 - 1):.14f}"),
    "prioritylong": ("PRIORITY", lambda r: str(r.task.priority)),
    "qos": ("QOS", lambda r: "(null)"),
    "reason": ("REASON", lambda r: r.reason),
    "reasonlist": ("NODELIST(REASON)", _nodelist_or_reason),
    "requeue": ("REQUEUE", lambda r: str(int(r.task.requeue))),
    "restartcnt": ("RESTART_COUNT", lambda r: str(r.task.restarts)),
    "schednodes": ("SCHEDNODES", lambda r: "(null)"),
    "starttime": ("START_TIME", lambda r: r.moment(begins(r.task, r.now))),
    "state": ("STATE", lambda r: r.task.shown_state),
    "statecompact": ("ST", lambda r: COMPACT[r.task.shown_state]),
    "stderr": ("STDERR", lambda r: spool.expand_folder(r.spec.error or r.spec.output, r.spec)),
    "stdout": ("STDOUT", lambda r: spool.expand_folder(r.spec.output, r.spec)),
    "submittime": ("SUBMIT_TIME", lambda r: r.moment(r.task.submit)),
    "timeleft": ("TIME_LEFT", _left),
    "timelimit": ("TIME_LIMIT", _limit),
    "timeused": ("TIME", lambda r: times.short(elapsed(r.task, r.now))),
    "userid": ("UID", lambda r: str(r.spec.uid)),
    "username": ("USER", lambda r: r.spec.user),
    "workdir": ("WORK_DIR", lambda r: r.spec.workdir),
}
"""`squeue -O` names in lower case, to heading and value."""

LETTERS = {
    "A": "jobid", "B": "batchhost", "C": "numcpus", "D": "numnodes", "E": "dependency", "F": "arrayjobid",
    "K": "arraytaskid", "L": "timeleft", "M": "timeused", "N": "nodelist", "P": "partition", "Q": "prioritylong",
    "R": "reasonlist", "S": "starttime", "T": "state", "U": "userid", "V": "submittime", "Y": "schednodes", "Z": "workdir",
    "a": "account", "e": "endtime", "i": "jobarrayid", "j": "name", "k": "comment", "l": "timelimit", "o": "command",
    "p": "priority", "q": "qos", "r": "reason", "t": "statecompact", "u": "username",
}  # fmt: skip
"""`squeue -o` letters to the same names."""
