"""scontrol: show, hold, release, requeue, update. What it says when it refuses is what Slurm 22.05 says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace

from ops.demo.scheduler import jobtext, options, times, waiting
from ops.demo.scheduler.ranges import compress, hostnames
from ops.demo.scheduler.rows import rows
from ops.demo.scheduler.runner import requeued
from ops.demo.scheduler.state import Table, UnknownJob, locked, names_array, read, select, split
from ops.demo.scheduler.words import (
    HELD_ADMIN,
    HELD_REQUEUED,
    HELD_USER,
    MIN_JOB_AGE,
    PENDING,
    PLAIN,
    REQUEUED,
    RUNNING,
    VERSION,
    Call,
    Refused,
    Task,
    host,
)
from ops.shell import Answer

_RULES = options.grammar("scontrol", "all|a details|d oneliner|o quiet|Q verbose|v version|V")
_UNKNOWN = "Invalid job id specified"
_FINISHED = "Job has already finished"
_PENDING = "Job is pending execution"
_STARTED = "Job is no longer pending execution"
_DISABLED = "Requested operation is presently disabled"
_DENIED = "Access/permission denied"

Change = Callable[[Table, Task], str]
"""Changes one task in the table; what is wrong with that, or "" when it is done."""


def run(argv: list[str], call: Call) -> Answer:
    """Do one of scontrol's commands."""
    given, words = options.parse(_RULES, argv)
    asked = dict(given)
    if "version" in asked:
        return Answer(0, f"slurm-wlm {VERSION}\n", "")
    if not words:
        raise Refused("scontrol: error: the embedded scheduler has no interactive mode; name a command")
    verb, rest = words[0].lower(), words[1:]
    if verb == "ping":
        return Answer(0, f"Slurmctld(primary) at {host()} is UP\n", "")
    if verb == "show":
        return _show(rest, call, "oneliner" in asked)
    if verb == "update":
        return _update(rest, call)
    changes: dict[str, Change] = {
        "hold": _hold,
        "uhold": _uhold,
        "release": _release,
        "requeue": _requeue,
        "requeuehold": _requeue_held,
    }
    if verb not in changes:
        raise Refused(f"invalid keyword: {verb}")
    if not rest:
        raise Refused(f"too few arguments for keyword:{verb}")
    suspends = verb in ("hold", "uhold", "release")
    said = [_change(call, name, changes[verb], suspends) for word in rest for name in _ids(word)]
    return Answer(int(any(said)), "", "".join(said))


def _ids(word: str) -> list[str]:
    """`jobid=12`, `12,13`, `12_[1-3,5]` as single names."""
    name = word.partition("=")[2] if "=" in word else word
    parts: list[str] = []
    for piece in name.split(","):
        if parts and parts[-1].count("[") > parts[-1].count("]"):
            parts[-1] += "," + piece
        else:
            parts.append(piece)
    return parts


def _change(call: Call, name: str, change: Change, suspends: bool) -> str:
    """Apply a change to the tasks a name stands for; what scontrol prints about it ("" if all went well)."""
    if not (call.root / "state.json").exists():
        return _complaint(name, _UNKNOWN, suspends)
    with locked(call.root) as table:
        try:
            tasks = _known(table, name)
        except (UnknownJob, ValueError) as error:
            if isinstance(error, UnknownJob) and "_" in name:
                return f"{name}: {_UNKNOWN}\n"
            return _complaint(name, _UNKNOWN, suspends)
        array = names_array(table, name)
        results = [(t, change(table, t)) for t in tasks]
        for task, problem in results if "_" in name else []:
            if not problem:
                split(table, table.tasks[task.key])
    if not any(problem for _, problem in results):
        return ""
    return _by_problem(results) if array else _complaint(name, results[0][1], suspends)


def _known(table: Table, name: str) -> list[Task]:
    """As `select`, less what a real controller has forgotten."""
    now = time.time()
    tasks = [t for t in select(table, name) if not t.finished or now - t.end < MIN_JOB_AGE]
    if not tasks:
        raise UnknownJob(name)
    return tasks


def _complaint(name: str, problem: str, suspends: bool) -> str:
    return f"{problem} for job {name}\n" + (f"slurm_suspend error: {problem}\n" if suspends else "")


def _by_problem(results: list[tuple[Task, str]]) -> str:
    """`1_1: Job has already finished`, `1_2-3: No error`: tasks of an array by what became of them."""
    groups: dict[str, list[int]] = {}
    for task, problem in results:
        groups.setdefault(problem or "No error", []).append(task.index)
    array_id = results[0][0].array_id
    return "".join(f"{array_id}_{compress(indices)}: {problem}\n" for problem, indices in groups.items())


def _hold(table: Table, task: Task) -> str:
    return _held(table, task, HELD_ADMIN if os.getuid() == 0 else HELD_USER)


def _uhold(table: Table, task: Task) -> str:
    return _held(table, task, HELD_USER)


def _held(table: Table, task: Task, reason: str) -> str:
    """A running task keeps running; it stays held when it is requeued."""
    if task.finished:
        return _FINISHED
    table.put(replace(task, held=reason))
    return ""


def _release(table: Table, task: Task) -> str:
    if task.finished:
        return _FINISHED
    if task.held == HELD_ADMIN and os.getuid() != 0:
        return _DENIED
    table.put(replace(task, held=""))
    return ""


def _requeue(table: Table, task: Task) -> str:
    """Running or finished tasks go back to the queue; a running one is terminated first."""
    if not task.requeue:
        return _DISABLED
    if task.state == PENDING or task.ending == REQUEUED:
        return _PENDING
    if task.state == RUNNING:
        table.put(replace(task, ending=REQUEUED, kill_at=0.0 if not task.ending else task.kill_at))
    else:
        table.put(requeued(table, task, time.time()))
    return ""


def _requeue_held(table: Table, task: Task) -> str:
    problem = _requeue(table, task)
    if not problem:
        table.put(replace(table.tasks[task.key], held=HELD_REQUEUED))
    return problem


def _show(words: list[str], call: Call, one_line: bool) -> Answer:
    if not words:
        raise Refused("too few arguments for keyword:show")
    what, _, attached = words[0].partition("=")
    names = [attached] if attached else words[1:]
    if what.lower() in ("job", "jobs", "jobid", "jobs="):
        return _show_job(names[0] if names else "", call, one_line)
    if what.lower() == "hostnames":
        return Answer(0, "".join(f"{n}\n" for n in hostnames(names[0])), "") if names else _no_hosts()
    if what.lower() == "config":
        return Answer(0, _config(call), "")
    raise Refused(f"invalid entity:{what} for keyword:show ")


def _no_hosts() -> Answer:
    return Answer(0, "", "scontrol: error: host list is empty\n")


def _config(call: Call) -> str:
    pairs = {
        "ClusterName": "demo",
        "KillWait": "3 sec",
        "MaxArraySize": "100001",
        "MinJobAge": f"{MIN_JOB_AGE:.0f} sec",
        "SlurmctldHost[0]": host(),
        "SLURM_VERSION": VERSION,
        "StateSaveLocation": str(call.root),
    }
    lines = [f"Configuration data as of {times.moment(time.time(), {})}"]
    lines += [f"{key:<23} = {value}" for key, value in pairs.items()]
    return "\n".join([*lines, "", f"Slurmctld(primary) at {host()} is UP", ""])


def _show_job(name: str, call: Call, one_line: bool) -> Answer:
    table = read(call.root)
    if not name:
        shown = rows(table, call, each=False)
        return Answer(0, "".join(jobtext.show(r, one_line) for r in shown) or "No jobs in the system\n", "")
    try:
        keys = {t.key for t in _known(table, name)}
    except ValueError:
        raise Refused("scontrol_print_job error: Invalid job id specified") from None
    except UnknownJob:
        if "_" in name and int(name.partition("_")[0]) in table.specs:
            return Answer(1, f"Job {name} not found\n", "")
        raise Refused(f"slurm_load_jobs error: {_UNKNOWN}") from None
    shown = [r for r in rows(table, call, each="_" in name) if r.task.key in keys]
    shown.sort(key=lambda r: r.task.id != r.task.array_id)
    return Answer(0, "".join(jobtext.show(r, one_line) for r in shown), "")


def _update(words: list[str], call: Call) -> Answer:
    """`update jobid=12 Key=Value ...`, for what an operator changes on a waiting or running job."""
    pairs = [word.partition("=") for word in words]
    names = [value for key, _, value in pairs if key.lower() in ("jobid", "job")]
    changes = [(key, value) for key, _, value in pairs if key.lower() not in ("jobid", "job")]
    if not words:
        raise Refused("too few arguments for update keyword")
    if not names:
        raise Refused(
            "No valid entity in update command\n"
            'Input line must include "NodeName", "PartitionName", "Reservation", "JobId", or "SlurmctldDebug"'
        )
    for key, value in changes:
        if key.lower() not in _UPDATES:
            raise Refused(f"Update of this parameter is not supported: {key}={value}\nRequest aborted")
    if not changes:
        raise Refused("No changes specified")

    def change(table: Table, task: Task) -> str:
        for key, value in changes:
            problem = _UPDATES[key.lower()](table, table.tasks[task.key], value)
            if problem:
                return problem
        return ""

    said = [_change(call, name, change, False) for text in names for name in _ids(text)]
    return Answer(int(any(said)), "", "".join(said))


def _set_limit(table: Table, task: Task, value: str) -> str:
    try:
        limit = times.parse_limit(value)
    except ValueError:
        raise Refused("scontrol: error: Invalid TimeLimit value") from None
    if task.finished:
        return _FINISHED
    table.put(replace(task, time_limit=limit))
    return ""


def _set_exclude(table: Table, task: Task, value: str) -> str:
    return _when_pending(table, task, replace(task, exclude=value))


def _set_dependency(table: Table, task: Task, value: str) -> str:
    try:
        waiting.checked(value)
        own = any(part.split("_")[0] == str(task.array_id) for part in value.replace(",", ":").split(":"))
    except ValueError:
        own = True
    if own:
        return "Job dependency problem"
    return _when_pending(table, task, replace(task, dependency=value))


def _when_pending(table: Table, task: Task, changed: Task) -> str:
    if task.state != PENDING:
        return _FINISHED if task.finished else _STARTED
    table.put(changed)
    return ""


def _set_comment(table: Table, task: Task, value: str) -> str:
    table.put(replace(task, comment=value))
    return _FINISHED if task.finished and task.index != PLAIN else ""


def _set_requeue(table: Table, task: Task, value: str) -> str:
    if task.finished:
        return _FINISHED
    table.put(replace(task, requeue=value != "0"))
    return ""


def _set_throttle(table: Table, task: Task, value: str) -> str:
    if not value.isdigit():
        raise Refused("Invalid ArrayTaskThrottle value\nRequest aborted")
    table.specs[task.array_id] = replace(table.specs[task.array_id], throttle=int(value))
    return _FINISHED if task.finished else ""


_UPDATES: dict[str, Callable[[Table, Task, str], str]] = {
    "arraytaskthrottle": _set_throttle,
    "comment": _set_comment,
    "dependency": _set_dependency,
    "excnodelist": _set_exclude,
    "requeue": _set_requeue,
    "timelimit": _set_limit,
}
