"""scancel: end jobs, or send them a signal."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ops.demo.scheduler import options, processes, runner, spool, waiting
from ops.demo.scheduler.state import Table, UnknownJob, locked, read, select, split
from ops.demo.scheduler.words import CANCELLED, COMPACT, PENDING, RUNNING, VERSION, Call, Refused, Task
from ops.shell import Answer

_RULES = options.grammar(
    "scancel",
    "account|A= batch|b full|f help interactive|i jobname|n= name= me partition|p= quiet|Q signal|s= state|t= user|u= "
    "verbose|v version|V",
)
_COMING_UP = 1.0
"""Seconds to wait for a batch script that is just being started."""


def run(argv: list[str], call: Call) -> Answer:
    """Cancel or signal; unknown and finished jobs are passed over in silence, as Slurm does."""
    given, names = options.parse(_RULES, argv)
    asked = dict(given)
    if "version" in asked:
        return Answer(0, f"slurm-wlm {VERSION}\n", "")
    filters = [n for n in asked if n in ("account", "jobname", "me", "name", "partition", "state", "user")]
    if not names and not filters:
        raise Refused("scancel: error: No job identification provided")
    number = _signal(asked["signal"]) if "signal" in asked else 0
    if not (call.root / "state.json").exists():
        return Answer(0, "", "")
    whole = "batch" not in asked and "full" not in asked
    if number and not (number == signal.SIGKILL and whole):
        return _send(call, names, asked, number)
    with locked(call.root) as table:
        reasons = waiting.outlook(table, time.time()).reasons
        alone = {t.key for name in names if "_" in name for t in _named(table, name)}
        for task in _wanted(table, names, asked):
            _cancel(table, split(table, task) if task.key in alone else task, reasons.get(task.key, ""))
    return Answer(0, "", "")


def _signal(name: str) -> int:
    try:
        return runner.signal_number(name)
    except ValueError:
        raise Refused(f"Unknown job signal: {name}") from None


def _wanted(table: Table, names: list[str], asked: dict[str, str]) -> list[Task]:
    tasks = [t for name in names for t in _named(table, name)] if names else list(table.tasks.values())
    rules: dict[str, Callable[[Task], set[str]]] = {
        "jobname": lambda t: {table.specs[t.array_id].name},
        "name": lambda t: {table.specs[t.array_id].name},
        "user": lambda t: {table.specs[t.array_id].user, str(table.specs[t.array_id].uid)},
        "partition": lambda t: {table.specs[t.array_id].partition},
        "account": lambda t: {table.specs[t.array_id].account},
        "state": lambda t: {t.shown_state, COMPACT[t.shown_state]},
    }
    for option, value in rules.items():
        if option in asked:
            tasks = [t for t in tasks if value(t) & set(_values(option, asked[option]))]
    if "me" in asked:
        tasks = [t for t in tasks if table.specs[t.array_id].uid == os.getuid()]
    return [t for t in tasks if not t.finished]


def _values(option: str, text: str) -> list[str]:
    return (text.upper() if option == "state" else text).split(",")


def _named(table: Table, text: str) -> list[Task]:
    found: list[Task] = []
    for name in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text):
        try:
            found += select(table, name)
        except ValueError:
            raise Refused(f"scancel: error: Invalid job id {name}") from None
        except UnknownJob:
            continue
    return found


def _cancel(table: Table, task: Task, reason: str) -> None:
    now = time.time()
    if task.state == PENDING:
        table.put(replace(task, state=CANCELLED, reason=reason, start=now, end=now, ended_by=os.getuid()))
    elif task.ending != CANCELLED:
        table.put(replace(task, ending=CANCELLED, ended_by=os.getuid()))


def _send(call: Call, names: list[str], asked: dict[str, str], number: int) -> Answer:
    """-s: to the steps (of `1_2.0` too: a job has one at a time); -b: to the batch script, -f: to both. Pending jobs get none."""
    table, names = read(call.root), [name.partition(".")[0] for name in names]
    for task in _wanted(table, names, asked):
        if task.state == RUNNING:
            processes.send(_receivers(call.root, task, asked), number)
    said = ""
    if len(names) == 1 and not _wanted(table, names, {}):
        said = f"scancel: error: Kill job error on job id {names[0]}: Invalid job id specified\n"
    return Answer(int(bool(said)), "", said)


def _receivers(root: Path, task: Task, asked: dict[str, str]) -> list[int]:
    limit = time.monotonic() + _COMING_UP
    while not (shell := spool.batch_shell(root, task)) and time.monotonic() < limit:
        time.sleep(0.02)
    supervisor = spool.supervisor(root, task)
    if supervisor <= 0 or not shell:
        return []
    below = processes.descendants(supervisor)
    if "full" in asked:
        return below
    return [shell] if "batch" in asked else [p for p in below if processes.in_step(p)]
