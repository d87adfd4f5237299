"""The job table: one JSON file on local disk, replaced whole, changed under one lock."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from ops.demo.scheduler.ranges import parse_set
from ops.demo.scheduler.words import PENDING, PLAIN, Key, Run, Spec, Task


@dataclass
class Table:
    """All jobs ever submitted to one root. Changed in place, its entries are replaced."""

    next_id: int = 1
    specs: dict[int, Spec] = field(default_factory=dict)
    tasks: dict[Key, Task] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    def put(self, task: Task) -> Task:
        self.tasks[task.key] = task
        return task

    def array(self, array_id: int) -> list[Task]:
        """The tasks of one submission, in the order of their indices."""
        return sorted((t for t in self.tasks.values() if t.array_id == array_id), key=lambda t: t.index)


def read(root: Path) -> Table:
    """The table as it is now; an empty one where nothing was ever submitted."""
    try:
        return _decode((root / "state.json").read_text())
    except FileNotFoundError:
        return Table()


@contextmanager
def locked(root: Path) -> Iterator[Table]:
    """The table for a change: nobody else changes it meanwhile; it is written when it differs at the end."""
    with open(root / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        path = root / "state.json"
        before = path.read_text() if path.exists() else ""
        table = _decode(before) if before else Table()
        yield table
        after = _encode(table)
        if after != before:
            fresh = root / f"state.json.{os.getpid()}"
            fresh.write_text(after)
            os.replace(fresh, path)
        fcntl.flock(lock, fcntl.LOCK_UN)


def _encode(table: Table) -> str:
    return json.dumps(
        {
            "next_id": table.next_id,
            "specs": [vars(s) for s in table.specs.values()],
            "tasks": [vars(t) for t in table.tasks.values()],
            "runs": [vars(r) for r in table.runs],
        }
    )


def _decode(text: str) -> Table:
    data = json.loads(text)
    specs = [Spec(**s | {"args": tuple(s["args"])}) for s in data["specs"]]
    tasks = [Task(**t) for t in data["tasks"]]
    runs = [Run(**r) for r in data["runs"]]
    return Table(data["next_id"], {s.array_id: s for s in specs}, {t.key: t for t in tasks}, runs)


def split(table: Table, task: Task) -> Task:
    """Give a task of an array's remainder its own job id; the last of them keeps the array's own."""
    if task.job_id:
        return task
    others = any(not t.job_id and t.key != task.key for t in table.array(task.array_id))
    if not others:
        return table.put(replace(task, job_id=task.array_id))
    table.next_id += 1
    return table.put(replace(task, job_id=table.next_id - 1))


class UnknownJob(LookupError):
    """No such job, array or task."""


def select(table: Table, text: str) -> list[Task]:
    """The tasks that `J`, `J_3` or `J_[1-4]` name; J is a whole array, a plain job or one task's own job id.

    Raises UnknownJob; ValueError where the text is no job id at all.
    """
    found = re.fullmatch(r"(\d+)(?:_(?:(\d+)|\[([^\]]*)\]|(\*)))?", text)
    if not found:
        raise ValueError(text)
    number = int(found[1])
    if found[2] or found[3]:
        wanted = set(parse_set(re.sub(r"%\d+$", "", found[2] or found[3])))
        named = [t for t in table.array(number) if t.index in wanted]
    else:
        named = table.array(number) or [t for t in table.tasks.values() if t.job_id == number]
    if not named:
        raise UnknownJob(text)
    return named


def names_array(table: Table, text: str) -> bool:
    """Whether the text addresses an array or its tasks (Slurm words its complaints by that)."""
    number = text.partition("_")[0]
    spec = table.specs.get(int(number)) if number.isdigit() else None
    return "_" in text or (spec is not None and spec.is_array)


def label(task: Task) -> str:
    """`12` or `12_3`."""
    return str(task.array_id) if task.index == PLAIN else f"{task.array_id}_{task.index}"


def unfinished(table: Table) -> bool:
    return any(not t.finished for t in table.tasks.values())


def remainder(table: Table, array_id: int) -> list[Task]:
    """The tasks of an array that never started nor were addressed alone: squeue shows them as one line."""
    return [t for t in table.array(array_id) if not t.job_id and t.state == PENDING]
