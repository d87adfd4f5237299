"""A plan: the wish, its actions, what it costs, and what the log must show afterwards. JSON both ways."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, TypeVar

from msgspec import Struct, field, to_builtins

from ops import actions as act
from ops.actions import Action
from ops.errors import BadInput
from ops.model import Expectation, Run

SCHEMA = "m4ops.plan/1"


class Cost(Struct, frozen=True):
    """What the change throws away. None: not known."""

    steps: int | None = None
    node_hours: float | None = None


class Plan(Struct, frozen=True):
    """One change, whole: reviewable by a second person, applied all or nothing, undone by its inverse."""

    run: str
    """SAVE_DIR."""
    title: str
    actions: tuple[Action, ...]
    command: str = ""
    wish: Mapping[str, Any] = field(default_factory=dict)
    expectation: Expectation | None = None
    cost: Cost = Cost()
    notes: tuple[str, ...] = ()
    created: float = 0.0
    user: str = ""
    undoes: str = ""
    """Id of the change this plan takes back."""

    @property
    def irreversible(self) -> tuple[Action, ...]:
        return tuple(a for a in self.actions if a.inverse() is None and not isinstance(a, act.WaitFor))


def to_json(plan: Plan) -> dict[str, Any]:
    """The plan as plain JSON."""
    return {"schema": SCHEMA, **to_builtins(plan), "actions": [act.to_json(a) for a in plan.actions]}


def from_json(data: object) -> Plan:
    """The plan that `to_json` wrote. Raises BadInput, naming what is wrong."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise BadInput(f"this is no plan of the form {SCHEMA}", hint="m4ops rewind … --out plan.json writes one")
    said = {k: v for k, v in data.items() if k != "schema"}
    try:
        said["actions"] = tuple(_typed(act.from_json(a)) for a in said["actions"])
        said["cost"] = Cost(**said["cost"])
        said["notes"] = tuple(said["notes"])
        said["expectation"] = expectation_from_json(said["expectation"])
        return _typed(Plan(**said))
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"the plan lacks or misspells a field: {error}") from None


_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "str | None": (str, type(None)), "bool": (bool,), "float": (int, float), "Mapping[str, Any]": (dict,),
}  # fmt: skip
Read = TypeVar("Read", Plan, Action)


def _typed(read: Read) -> Read:
    """What was read, with each field of the kind it must have. Raises TypeError."""
    for name, kind in type(read).__annotations__.items():
        if not isinstance(getattr(read, name), _TYPES.get(kind, (object,))):
            raise TypeError(f"`{name}` is {getattr(read, name)!r}")
    return read


def expectation_from_json(data: Mapping[str, Any] | None) -> Expectation | None:
    """The expectation of a plan's or journal's JSON."""
    if data is None:
        return None
    points = tuple((int(step), float(lr)) for step, lr in data.get("lr", ()))
    return Expectation(**{**data, "lr": points})


def dumps(plan: Plan) -> str:
    """The plan as the text of a file."""
    text = json.dumps(to_json(plan), indent=2, ensure_ascii=False) + "\n"
    try:
        text.encode()
    except UnicodeEncodeError:  # bytes that are no UTF-8, in a file that is changed
        text = json.dumps(to_json(plan), indent=2) + "\n"
    return text


def loads(text: str) -> Plan:
    """The plan of a file's text. Raises BadInput."""
    try:
        return from_json(json.loads(text))
    except ValueError as error:
        raise BadInput(f"the plan is no JSON: {error}") from None


def foreign(plan: Plan, run: Run) -> tuple[str, ...]:
    """Paths the plan changes that are not the run's own: a plan from a file may name anything."""
    own = {run.evals, run.kill_switch, run.save_switch, run.trainer_config, run.ds_config}
    results = run.evals.parent if run.evals else None

    def belongs(path: PurePath) -> bool:
        within = path.is_relative_to(run.dir) and path != run.dir
        return ".." not in path.parts and (within or path in own or path.parent == results)

    return tuple(p for a in plan.actions for p in act.paths(a) if not belongs(PurePath(p)))


def grew(old: tuple[Action, ...], new: tuple[Action, ...], follows: bool = False) -> str:
    """Why `new`, computed after a wait, is no mere growth of `old`; empty when it is.

    While a job ends it may save once more: more is discarded, and the pointer and evals move on. Anything that the
    operator saw must still be there with the same outcome. `follows`: the wish is about the checkpoint that a resume
    takes, whichever it is by then. A switch that somebody removed meanwhile is no loss.
    """
    wanted = {_outcome(a, follows) for a in old if not (isinstance(a, act.WriteText) and a.after is None)}
    have = {_outcome(a, follows) for a in new}
    if missing := wanted - have:
        return "no longer planned: " + "; ".join(sorted(str(m) for m in missing))
    shown = {_outcome(a, follows) for a in old}
    strange = [a.describe() for a in new if _outcome(a, follows) not in shown and not _may_grow(a)]
    return "newly planned: " + "; ".join(strange) if strange else ""


def _may_grow(action: Action) -> bool:
    """More to discard, and the pointer back from the checkpoint that was saved meanwhile."""
    if isinstance(action, act.WriteText):
        return action.points
    return isinstance(action, act.Move | act.Rewrite | act.Folder | act.Link)


def _outcome(action: Action, follows: bool) -> tuple[object, ...]:
    match action:
        case act.WriteText() | act.Link():
            return (action.kind, action.path, action.after)
        case act.Rewrite():
            return (action.kind, _anywhere(action.path) if follows else action.path)
        case act.Move():
            return (action.kind, action.source)
        case act.Folder():
            return (action.kind,)
        case act.PatchState() if follows:
            return (action.kind, _anywhere(action.path), *(e.label for e in action.edits))
        case act.SetJson() if follows:
            return (action.kind, _anywhere(action.path), action.key, action.after)
        case _:
            return (action.kind, action.describe())


def _anywhere(path: str) -> str:
    return re.sub(r"(opt_step-|checkpoint[-_]|(?:global_)?step[-_=]?|epoch=|ep|ba|iter_|/)\d+(?=[-/.]|$)", r"\1*", path)


def inverse(plan: Plan, change_id: str, assume_stopped: bool = False) -> Plan:
    """The plan that takes a change back."""
    gone = tuple(f"cannot be taken back: {a.describe()}" for a in plan.irreversible)
    return Plan(
        run=plan.run,
        title=f"undo of change {change_id} ({plan.title})",
        actions=act.inverse_of(plan.actions),
        wish={"kind": "undo", "change": change_id, "assume_stopped": assume_stopped},
        notes=gone,
        undoes=change_id,
    )
