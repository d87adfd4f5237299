"""sacct: what became of jobs, also of those the queue has forgotten."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from ops.demo.scheduler import options, times, waiting
from ops.demo.scheduler.jobtext import exit_code
from ops.demo.scheduler.ranges import compress
from ops.demo.scheduler.rows import elapsed
from ops.demo.scheduler.state import Table, UnknownJob, label, read, remainder, select
from ops.demo.scheduler.words import (
    CANCELLED,
    COMPLETED,
    COMPLETING,
    PENDING,
    RUNNING,
    TIMEOUT,
    VERSION,
    Call,
    Key,
    Refused,
    Run,
    Spec,
    Task,
    host,
)
from ops.shell import Answer

_RULES = options.grammar(
    "sacct",
    "accounts|A= allusers|a allocations|X brief|b delimiter= duplicates|D endtime|E= format|o= help|h helpformat|e jobs|j= "
    "long|l name= noconvert noheader|n parsable|p parsable2|P partition|r= starttime|S= state|s= uid|u= user= version|V",
)
_DEFAULT = "JobID,JobName,Partition,Account,AllocCPUS,State,ExitCode"


@dataclass(frozen=True)
class Entry:
    """One line: a run of a job, or (`step` = batch) its only step."""

    spec: Spec
    task: Task
    name: str
    reason: str
    now: float
    step: str = ""


def run(argv: list[str], call: Call) -> Answer:
    """List jobs from the table, which never forgets."""
    given, words = options.parse(_RULES, argv)
    asked = dict(given)
    if "version" in asked:
        return Answer(0, f"slurm-wlm {VERSION}\n", "")
    if words:
        raise Refused(f'sacct: error: Unrecognized option: {words[0]}\nTry "sacct --help" for more information\n')
    fields = _fields(asked.get("format", "JobID,State,ExitCode" if "brief" in asked else _DEFAULT))
    entries = _entries(read(call.root), asked)
    table = [[value(e, call) for _, _, value in fields] for e in entries]
    heads = [name for name, _, _ in fields]
    if "parsable2" in asked or "parsable" in asked:
        joint = asked.get("delimiter", "|")
        end = joint if "parsable" in asked else ""
        lines = [joint.join(row) + end for row in ([heads] if "noheader" not in asked else []) + table]
    else:
        rule = ["-" * abs(width) for _, width, _ in fields]
        shown = ([heads, rule] if "noheader" not in asked else []) + table
        lines = [" ".join(map(_cell, row, [w for _, w, _ in fields])) + " " for row in shown]
    return Answer(0, "".join(line + "\n" for line in lines), "")


def _cell(text: str, width: int) -> str:
    size = abs(width)
    cut = text if len(text) <= size else text[: size - 1] + "+"
    return cut.ljust(size) if width < 0 else cut.rjust(size)


def _fields(text: str) -> list[tuple[str, int, Callable[[Entry, Call], str]]]:
    chosen: list[tuple[str, int, Callable[[Entry, Call], str]]] = []
    for word in text.split(","):
        name, _, width = word.partition("%")
        found = next((f for f in _FIELDS if f.lower() == name.lower()), None)
        if found is None:
            raise Refused(f'sacct: error: Invalid field requested: "{name}"')
        usual, value = _FIELDS[found]
        chosen.append((found, int(width) if width else usual, value))
    return chosen


def _entries(table: Table, asked: dict[str, str]) -> list[Entry]:
    now = time.time()
    since, until = _window(asked, now)
    reasons = waiting.outlook(table, now).reasons
    keys = _ids(table, asked["jobs"]) if "jobs" in asked else None
    found: list[Entry] = []
    for task in sorted(table.tasks.values(), key=lambda t: t.key):
        if keys is not None and task.key not in keys:
            continue
        rest = remainder(table, task.array_id)
        if task in rest and task is not rest[0] and len(rest) > 1:
            continue
        earlier = [r for r in table.runs if (r.array_id, r.index) == task.key] if "duplicates" in asked else []
        name = f"{task.array_id}_[{_rest(table, rest)}]" if task in rest and len(rest) > 1 else label(task)
        spec = table.specs[task.array_id]
        for past in [*(_past(task, r) for r in earlier), task]:
            reason = reasons.get(past.key, "None") if past.state == PENDING else past.reason or "None"
            entry = Entry(spec, past, name, reason, now)
            found += [entry] if "allocations" in asked or not _started(past) else [entry, replace(entry, step="batch")]
    return [e for e in found if _asked_for(e, asked) and (e.task.end or now) >= since and e.task.submit <= until]


def _rest(table: Table, rest: list[Task]) -> str:
    throttle = table.specs[rest[0].array_id].throttle
    return compress(t.index for t in rest) + (f"%{throttle}" if throttle else "")


def _past(task: Task, run: Run) -> Task:
    return replace(
        task,
        state=run.state,
        status=run.status,
        submit=run.submit,
        start=run.start,
        end=run.end,
        ending="",
        reason="",
        job_id=run.job_id,
    )


def _started(task: Task) -> bool:
    return task.state != PENDING and not (task.state == CANCELLED and task.start == task.end)


def _window(asked: dict[str, str], now: float) -> tuple[float, float]:
    """Since midnight, or ever when jobs are named; -S and -E overrule."""
    usual = 0.0 if "jobs" in asked else times.parse_moment("midnight", now)
    try:
        since = times.parse_moment(asked["starttime"], now) if "starttime" in asked else usual
        return since, times.parse_moment(asked["endtime"], now) if "endtime" in asked else now + times.YEAR
    except ValueError as error:
        raise Refused(f"Invalid time specification (pos=0): {error}") from None


def _ids(table: Table, text: str) -> set[Key]:
    keys: set[Key] = set()
    for name in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text):
        try:
            keys |= {t.key for t in select(table, name.partition(".")[0])}
        except ValueError:
            raise Refused(f"sacct: error: Bad job/step specified: {name}") from None
        except UnknownJob:
            continue
    return keys


def _asked_for(e: Entry, asked: dict[str, str]) -> bool:
    users = asked.get("user") or asked.get("uid") or ""
    rules = [("name", {e.spec.name}), ("partition", {e.spec.partition}), ("state", {e.task.state})]
    known = all(name not in asked or bool(own & set(asked[name].split(","))) for name, own in rules)
    return known and (not users or bool({e.spec.user, str(e.spec.uid)} & set(users.split(","))))


def _state(e: Entry, call: Call) -> str:
    state = e.task.shown_state
    if state == COMPLETING:
        state = RUNNING
    if e.step:
        return state if state in (RUNNING, COMPLETED, "FAILED") else CANCELLED
    return f"CANCELLED by {e.task.ended_by}" if state == CANCELLED else state


def _code(e: Entry, call: Call) -> str:
    """Exit codes from 128 on are shown less 128, and a job ended by Slurm has 0:0; its step keeps the signal."""
    if e.task.state in (PENDING, RUNNING) or (
        not e.step and e.task.state in (CANCELLED, TIMEOUT, "NODE_FAIL", "REQUEUED")
    ):
        return "0:0"
    code, _, number = exit_code(e.task.status).partition(":")
    return f"{int(code) - 128 if int(code) >= 128 else code}:{number}"


def _time(seconds: float, call: Call) -> str:
    return times.moment(seconds, call.env, "Unknown")


_FIELDS: dict[str, tuple[int, Callable[[Entry, Call], str]]] = {
    "JobID": (-12, lambda e, c: e.name + ("." + e.step if e.step else "")),
    "JobIDRaw": (-12, lambda e, c: str(e.task.id) + ("." + e.step if e.step else "")),
    "JobName": (10, lambda e, c: e.step or e.spec.name),
    "Partition": (10, lambda e, c: "" if e.step else e.spec.partition),
    "Account": (10, lambda e, c: e.spec.account),
    "AllocCPUS": (10, lambda e, c: str(e.spec.ntasks * e.spec.cpus_per_task)),
    "AllocNodes": (10, lambda e, c: str(e.spec.nodes)),
    "NNodes": (8, lambda e, c: str(e.spec.nodes)),
    "State": (10, _state),
    "ExitCode": (8, _code),
    "Start": (19, lambda e, c: _time(e.task.start if e.task.state != PENDING else 0.0, c)),
    "End": (19, lambda e, c: _time(e.task.end, c)),
    "Submit": (19, lambda e, c: _time(e.task.submit, c)),
    "Eligible": (19, lambda e, c: _time(max(e.task.begin, e.task.submit), c)),
    "Elapsed": (10, lambda e, c: times.full(elapsed(e.task, e.now))),
    "ElapsedRaw": (10, lambda e, c: str(int(elapsed(e.task, e.now)))),
    "Timelimit": (
        10,
        lambda e, c: "" if e.step else times.full(e.task.time_limit) if e.task.time_limit else "UNLIMITED",
    ),
    "NodeList": (15, lambda e, c: host() if _started(e.task) else "None assigned"),
    "User": (9, lambda e, c: "" if e.step else e.spec.user),
    "UID": (6, lambda e, c: "" if e.step else str(e.spec.uid)),
    "Comment": (14, lambda e, c: "" if e.step else e.task.comment),
    "WorkDir": (20, lambda e, c: "" if e.step else e.spec.workdir),
    "Reason": (22, lambda e, c: "" if e.step else e.reason),
    "Priority": (10, lambda e, c: "" if e.step else str(e.task.priority)),
    "DerivedExitCode": (15, lambda e, c: "" if e.step else "0:0"),
    "Cluster": (10, lambda e, c: "demo"),
}
