"""A plan for people: all that will happen, in its order, before any of it happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from ops.actions import (
    Action,
    Copy,
    Folder,
    Link,
    Move,
    PatchState,
    Rewrite,
    Schedule,
    SetJson,
    Submit,
    WaitFor,
    WriteText,
)
from ops.interventions import copies
from ops.model import Expectation
from ops.plan import Cost, Plan
from ops.views import words
from ops.views.words import clean, paint

WIDTH = 110
FOLD = 8
"""So many actions of one kind in a row are all shown; of more, the first and the last few."""


def plan_text(plan: Plan, color: bool = False) -> str:
    """Title, numbered actions in the order they run, cost, what the log must show, what has no way back.

    Paths in the run's folder are shown relative to it.
    """
    lines = [paint(clean(plan.title), "bold", color), paint(f"in {clean(plan.run)}", "dim", color)]
    if plan.undoes:
        lines.append(f"takes back change {clean(plan.undoes)}")
    lines += [
        "",
        *(line for heading, group in _groups(plan) for line in _group(heading, group, plan, color)),
        "",
    ]
    if not plan.actions:
        lines[-1:] = ["nothing to do: the run is already so", ""]
    lines += _listed("costs", _cost(plan), color)
    if plan.expectation:
        lines += _listed("the log must show", promises(plan.expectation), color)
    lines += _listed("note", [clean(n) for n in plan.notes], color, "yellow")
    lines += _listed("cannot be undone", [_told(a, plan) for a in plan.irreversible], color, "bad")
    return "\n".join(lines)


def promises(expected: Expectation) -> list[str]:
    """What the first log lines after the resume must show, a phrase each."""
    told = []
    if expected.resume_step is not None:
        told.append(f"training goes on from step {expected.resume_step}: the first logged step is above it")
    if expected.lr:
        step, rate = expected.lr[0]
        told.append(f"lr {words.lr(rate)} at step {step}" + _later(expected.lr))
    if expected.wandb_new is not None:
        old = f" {clean(expected.wandb_id)}" if expected.wandb_id else ""
        told.append(
            f"a new wandb run, not{old or ' the old one'}" if expected.wandb_new else f"the same wandb run{old}"
        )
    return told or ["nothing in particular"]


def _later(points: Sequence[tuple[int, float]]) -> str:
    if len(points) < 2 or points[-1][1] == points[0][1]:
        return ""
    step, rate = points[-1]
    return f", going to {words.lr(rate)} at step {step}"


def _groups(plan: Plan) -> Iterator[tuple[str, list[tuple[int, Action]]]]:
    """Actions that follow one another and are of one nature, with their numbers; the order stays."""
    numbered = enumerate(plan.actions, 1)
    for heading, group in groupby(numbered, key=lambda pair: _heading(pair[1])):
        yield heading, list(group)


def _heading(action: Action) -> str:
    match action:
        case WriteText(points=True) | Copy() | Link():
            return "where the next job resumes"
        case WriteText(path=path) if path.endswith(f"/{copies.MARKER}"):
            return "state of the checkpoint"
        case Schedule() | Submit() | WaitFor() | WriteText(before="" | None, after="" | None):
            return "jobs and switches"
        case Move() | Folder():
            return "checkpoints out of the way"
        case Rewrite(zero=()):
            return "evaluations"
        case SetJson() | PatchState() | Rewrite():
            return "state of the checkpoint"
    return "files"


def _group(heading: str, group: list[tuple[int, Action]], plan: Plan, color: bool) -> list[str]:
    lines = [paint(heading, "cyan", color)]
    shown = group if len(group) <= FOLD else [*group[: FOLD // 2], *group[-2:]]
    before = group[0][0] - 1
    for number, action in shown:
        if number != before + 1:
            lines.append(f"      … {number - before - 1} more like these (all of them: --out FILE)")
        before = number
        lines += words.folded(f"{number:4d}. {_told(action, plan)}{_why(action)}", WIDTH, "      ")
    return lines


def _told(action: Action, plan: Plan) -> str:
    return clean(action.describe()).replace(clean(plan.run.rstrip("/")) + "/", "")


def _why(action: Action) -> str:
    told = isinstance(action, WriteText | SetJson | Rewrite | Move) and action.why
    return f"  ({clean(told)})" if told else ""


def _cost(plan: Plan) -> list[str]:
    """What is thrown away; nothing to say of a plan that discards nothing."""
    cost = plan.cost
    if cost == Cost() and not any(isinstance(a, Move) or _heading(a).startswith("where") for a in plan.actions):
        return []
    steps = "UNKNOWN steps" if cost.steps is None else f"{words.count(cost.steps, 'step')} of training"
    hours = "UNKNOWN node-hours" if cost.node_hours is None else f"{cost.node_hours:.1f} node-hours"
    return [f"{steps}, {hours}"]


def _listed(label: str, entries: Sequence[str], color: bool, style: str = "cyan") -> list[str]:
    lines = []
    for index, entry in enumerate(entries):
        head = paint(f"{label:18}", style, color) if index == 0 else " " * 18
        first, *rest = words.folded(entry, WIDTH - 20, "")
        lines += [f"{head}  {first}", *(" " * 20 + line for line in rest)]
    return lines
