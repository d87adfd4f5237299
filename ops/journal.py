"""The journal of a run's changes: append-only JSON lines in `SAVE_DIR/.m4ops/journal.jsonl`. Reading only.

Records: `plan` (the whole plan, with id, time, user, host, size of the log), `sealed` (fingerprints of what was built),
`applying` and `applied` (index of the action), then `done`, or `rolled-back`. A change without an end is unfinished. The
executor writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ops.errors import BadInput
from ops.model import OPS_DIR, Change, Expectation, Unknown

FILE = "journal.jsonl"


class Entry(Struct, frozen=True):
    """One change with all that the journal holds of it."""

    change: Change
    plan: Mapping[str, Any]
    applying: tuple[int, ...] = ()
    applied: tuple[int, ...] = ()
    pieces: Mapping[int, tuple[tuple[int, bytes, bytes], ...]] = field(default_factory=dict)
    """Of each begun action that patches in place, by its index: (offset, old bytes, new bytes)."""


def path(run_dir: Path) -> Path:
    return run_dir / OPS_DIR / FILE


def read(run_dir: Path) -> tuple[Entry, ...] | Unknown:
    """Every change, oldest first, with its status. No journal: no change. An unreadable one is Unknown."""
    try:
        content = path(run_dir).read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        return Unknown(f"{path(run_dir)}: {error.strerror}")
    entries: dict[str, Entry] = {}
    for record in _records(content):
        try:
            _take(entries, record)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            return Unknown(f"{path(run_dir)} holds a record that no m4ops wrote ({record.get('event')}: {error!r})")
    return _with_undo(tuple(entries.values()))


def history(entries: tuple[Entry, ...] | Unknown) -> tuple[Change, ...] | Unknown:
    """The changes alone."""
    return entries if isinstance(entries, Unknown) else tuple(e.change for e in entries)


def find(entries: tuple[Entry, ...] | Unknown, wanted: str | None) -> Entry:
    """The change of that id; without one, the newest that is unfinished, or applied, no undo and not unattended. Raises BadInput."""
    if isinstance(entries, Unknown):
        raise BadInput(f"the journal cannot be read: {entries.reason}")
    if wanted is not None:
        for entry in entries:
            if entry.change.id == wanted:
                return entry
        ids = ", ".join(e.change.id for e in entries) or "none"
        raise BadInput(f"no change {wanted} in the journal (there are: {ids})", hint="m4ops history")
    for entry in reversed(entries):
        if entry.change.unattended and entry.change.status != "unfinished":
            continue
        if entry.change.status == "unfinished" or (entry.change.status == "applied" and not entry.change.undoes):
            return entry
    raise BadInput("there is no change to take", hint="m4ops history")


def _records(content: bytes) -> list[dict[str, Any]]:
    """Whole records; the torn line of a crash is passed over, for what it would have said did not happen yet."""
    found = []
    for raw in content.split(b"\n"):
        try:
            record = json.loads(raw)
        except ValueError:
            continue
        if isinstance(record, dict) and "id" in record:
            found.append(record)
    return found


def _take(entries: dict[str, Entry], record: dict[str, Any]) -> None:
    identity, event = str(record["id"]), record.get("event")
    if event == "plan":
        entries[identity] = _planned(identity, record)
        return
    entry = entries.get(identity)
    if entry is None:
        return
    index = int(record.get("action", -1))
    match event:
        case "replanned":
            moved = replace(_planned(identity, record).change, time=entry.change.time, user=entry.change.user)
            entries[identity] = replace(entry, plan=record["plan"], change=moved)
        case "sealed":
            entries[identity] = replace(entry, plan=_sealed(entry.plan, record["after"]))
        case "applying":
            pieces = tuple((int(o), bytes.fromhex(a), bytes.fromhex(b)) for o, a, b in record.get("splices", ()))
            known = {**entry.pieces, index: pieces} if pieces else entry.pieces
            entries[identity] = replace(entry, applying=(*entry.applying, index), pieces=known)
        case "applied":
            entries[identity] = replace(entry, applied=(*entry.applied, index))
        case "done" | "rolled-back":
            status = "applied" if event == "done" else "rolled back"
            ended = float(record.get("time", 0.0))
            entries[identity] = replace(entry, change=replace(entry.change, status=status, ended=ended))


def _sealed(plan: Mapping[str, Any], after: list[list[Any]]) -> dict[str, Any]:
    actions = [dict(a) for a in plan["actions"]]
    for index, fingerprint in after:
        actions[index]["after"] = fingerprint
    return {**plan, "actions": actions}


def _planned(identity: str, record: dict[str, Any]) -> Entry:
    plan = record["plan"]
    promised = plan.get("expectation")
    expectation = None
    if promised:
        points = tuple((int(s), float(lr)) for s, lr in promised.get("lr", ()))
        expectation = Expectation(**{**promised, "lr": points})
    change = Change(
        id=identity,
        time=float(record.get("time", 0.0)),
        user=str(record.get("user", "")),
        title=str(plan.get("title", "")),
        command=str(plan.get("command", "")),
        status="unfinished",
        expectation=expectation,
        log_offset=record.get("log_size"),
        undoes=str(plan.get("undoes", "")),
        zeroed={
            (str(action["path"]).rpartition("/")[2], str(edit["label"])): float(edit["before"])
            for action in plan.get("actions", ())
            for edit in action.get("edits", ())
            if edit["after"] == 0 != edit["before"]
        },
        texts={
            str(action["path"]): str(action["before"])
            for action in plan.get("actions", ())
            if action.get("kind") == "write-text" and action.get("before")
        },
        wish=plan.get("wish", {}),
    )
    return Entry(change, plan)


def _with_undo(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """An applied undo turns its change into `undone`; an undo of that undo turns it back, and so on."""
    undoes = {e.change.id: e.change.undoes for e in entries}
    status = {e.change.id: e.change.status for e in entries}
    for entry in entries:
        target, now = undoes[entry.change.id], "undone"
        if status[entry.change.id] != "applied":
            continue
        while target in status:
            status[target] = now
            target, now = undoes[target], "applied" if now == "undone" else "undone"
    return tuple(replace(e, change=replace(e.change, status=status[e.change.id])) for e in entries)
