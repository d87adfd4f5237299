"""A change that stopped half way: where it stands, and what finishes it or takes it back.

Actions run in their order, so the stage that holds the first one not noted as `applied` is where it stopped. In that
stage the files themselves say what is done (a failure may have rolled them back); of the stages before it the journal
does (a switch set there may be removed again by now).
"""

from __future__ import annotations

import os

from ops import actions as act
from ops import journal
from ops import plan as plans
from ops.actions import Action
from ops.errors import Drift
from ops.executor import files, inplace
from ops.executor.standing import State, state


def stage_end(actions: tuple[Action, ...], start: int) -> int:
    """Where the stage that begins at `start` ends: after the next wait."""
    waits = (i + 1 for i in range(start, len(actions)) if isinstance(actions[i], act.WaitFor))
    return next(waits, len(actions))


def stage_start(actions: tuple[Action, ...], index: int) -> int:
    """Where the stage of an action begins."""
    return next((i + 1 for i in range(index - 1, -1, -1) if isinstance(actions[i], act.WaitFor)), 0)


def done(entry: journal.Entry) -> frozenset[int]:
    """The actions that finishing the change can pass over. Raises Drift when the world moved on."""
    actions = plans.from_json(entry.plan).actions
    first = _stopped_in(actions, entry)
    begun = range(first, stage_end(actions, first))
    return frozenset(range(first)) | {i for i in begun if _stands(entry, actions[i], i) == "after"}


def back(entry: journal.Entry) -> tuple[Action, ...]:
    """What takes back all that was done. Raises Drift when the world moved on."""
    actions = plans.from_json(entry.plan).actions
    first = _stopped_in(actions, entry)
    begun = [
        a
        for i, a in enumerate(actions)
        if i in entry.applying and (i < first or _orderly(a) or _stands(entry, a, i) == "after")
    ]
    if final := next((a for a in begun if isinstance(a, act.Rewrite) and a.inverse() is None), None):
        raise Drift(
            f"`{final.describe()}` is done, and nothing was kept to take it back with",
            final.path,
            f"m4ops apply {entry.change.id} goes on",
        )
    inverses = act.inverse_of(tuple(begun))
    return tuple(a for a in inverses if isinstance(a, act.Fileless) or state(a)[0] != "after")


def never_began(entry: journal.Entry) -> bool:
    """Whether nothing is left of the change: it stopped before its first action, or was rolled back without a note."""
    actions = plans.from_json(entry.plan).actions
    begun = [(i, a) for i, a in enumerate(actions) if i in entry.applying]
    return not any(isinstance(a, act.Fileless) or _look(entry, a, i)[0] != "before" for i, a in begun)


def settle(entry: journal.Entry) -> None:
    """Bring an action that a crash left half-way back to its start: torn in-place bytes, an original linked aside."""
    for index, action in enumerate(plans.from_json(entry.plan).actions):
        if index not in entry.applying or isinstance(action, act.Fileless):
            continue
        if _torn(entry, action, index):
            inplace.write(files.real(act.paths(action)[0]), entry.pieces[index], forward=False)
        elif isinstance(action, act.Rewrite) and state(action)[0] == "half":
            os.unlink(action.aside)


def _stopped_in(actions: tuple[Action, ...], entry: journal.Entry) -> int:
    waiting = (i for i in range(len(actions)) if i not in entry.applied)
    return stage_start(actions, next(waiting, len(actions) - 1))


def _orderly(action: Action) -> bool:
    """Hold, release and a submission (known by its tag) may be repeated; whether a begun one was heard does not matter."""
    return isinstance(action, act.Order) and action.inverse() is not None


def _stands(entry: journal.Entry, action: Action, index: int) -> State:
    if isinstance(action, act.Fileless):
        return "after" if index in entry.applied else "before"
    now, found = _look(entry, action, index)
    if now == "other" and index in entry.applying:
        raise Drift(
            f"the world moved on since; nothing was touched. `{action.describe()}`: found {found}",
            act.paths(action)[0],
            f"put it as it was before change {entry.change.id} or as that left it, and give the command again",
        )
    return now


def _look(entry: journal.Entry, action: Action, index: int) -> tuple[State, str]:
    """Where a file action stands; a patch that was torn, and only by that, is half-way."""
    if isinstance(action, act.Fileless):
        return "other", ""
    return ("half", "") if _torn(entry, action, index) else state(action)


def _torn(entry: journal.Entry, action: Action, index: int) -> bool:
    path = files.real(act.paths(action)[0]) if index in entry.pieces else None
    return path is not None and path.is_file() and inplace.torn(path, entry.pieces[index])
