"""Where the world stands: before or after a file action, half way through it, or somewhere else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from ops import actions as act
from ops import jsontext
from ops.checkpoints import states
from ops.errors import BadInput, OpsError

State = Literal["before", "after", "half", "other"]
Action = act.WriteText | act.SetJson | act.PatchState | act.Rewrite | act.Move | act.Folder | act.Copy | act.Link
"""The actions on files."""


def read_text(path: str | Path) -> str | None:
    """A file's text with surrogate escapes for bytes that are no UTF-8; None if there is no such file."""
    try:
        return Path(path).read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


def state(action: Action) -> tuple[State, str]:
    """Whether the world stands before or after the action, and what was found if neither."""
    match action:
        case act.WriteText():
            return _compared(read_text(action.path), action.before, action.after)
        case act.SetJson():
            return _json_state(action)
        case act.PatchState():
            return _patch_state(action)
        case act.Rewrite():
            return _rewrite_state(action)
        case act.Move():
            return _move_state(action)
        case act.Link():
            return _compared(_leads(action.path), action.before, action.after)
        case act.Copy():
            return _copy_state(action)
        case act.Folder():
            there = os.path.isdir(action.path)
            return ("after" if there == action.make else "before"), "there" if there else "missing"


def _leads(path: str) -> str | None:
    """Where a symbolic link leads; None if there is none."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def _compared(now: str | None, before: str | None, after: str | None) -> tuple[State, str]:
    found = "no such file" if now is None else f"{now[:200]!r}"
    return ("before" if now == before else "after" if now == after else "other"), found


def _json_state(action: act.SetJson) -> tuple[State, str]:
    text = read_text(action.path)
    if text is None:
        return "other", "no such file"
    try:
        return _compared(jsontext.value(text, action.key), action.before, action.after)
    except BadInput as error:
        return "other", error.what


def _patch_state(action: act.PatchState) -> tuple[State, str]:
    try:
        now = {s.label: s.value for s in states.numbers_of_file(Path(action.path))}
    except OpsError as error:
        return "other", error.what
    if all(_same(now.get(e.label), e.before, e) for e in action.edits):
        return "before", ""
    if all(_same(now.get(e.label), e.after, e) for e in action.edits):
        return "after", ""
    return "other", ", ".join(f"{e.label} is {now.get(e.label)}" for e in action.edits[:4])


def _same(now: float | None, wanted: float, edit: act.Edit) -> bool:
    """Whether the field holds the value, as its type can: a bfloat16 has three digits."""
    if now is None:
        return False
    stored = states.as_stored(edit.stored, wanted)
    return now == stored or abs(now - stored) <= 1e-6 * abs(stored)


def _rewrite_state(action: act.Rewrite) -> tuple[State, str]:
    if not action.stored:
        now = states.fingerprint(Path(action.path))
        return _compared(now, action.before, action.after or (now if now else None))
    main, aside = states.fingerprint(Path(action.path)), states.fingerprint(Path(action.aside))
    found = f"file {main or 'missing'}, aside {aside or 'missing'}"
    original = main == action.before and not aside
    rewritten = aside == action.before and (main == action.after if action.after else main not in ("", action.before))
    if original or rewritten:
        return ("before" if original != action.restore else "after"), found
    return ("half" if main == action.before == aside else "other"), found


def _copy_state(action: act.Copy) -> tuple[State, str]:
    now = states.fingerprint(Path(action.path))
    made = bool(now) and now == (action.after or now)
    if now and not made:
        return "other", f"another file than the copy that was made: {now}"
    return ("after" if made != action.gone else "before"), f"file {now or 'missing'}"


def _move_state(action: act.Move) -> tuple[State, str]:
    source, target = os.path.lexists(action.source), os.path.lexists(action.target)
    found = f"source {'there' if source else 'missing'}, target {'there' if target else 'missing'}"
    if source != target:
        return ("before" if source else "after"), found
    return "other", found
