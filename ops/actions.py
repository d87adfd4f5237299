"""What m4ops can do to the world: ten kinds of action, each with its `before`, its `after` and its inverse.

Actions are data. The executor carries them out; nothing here reads or writes. `before` is the safety catch: where the
world no longer holds it, nothing is touched.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from ops.errors import BadInput
from ops.model import OPS_DIR, Span

LONG = 400
"""Characters of a line that is not shown whole."""


class WriteText(Struct, frozen=True):
    """Replace a small text file whole. None stands for "no such file", so this also touches and removes.

    Bytes that are no UTF-8 travel as surrogate escapes.
    """

    kind: ClassVar[str] = "write-text"
    path: str
    before: str | None
    after: str | None
    why: str = ""
    taken: bool = False
    """The trainer removes the file itself: there is nothing to take back."""
    points: bool = False
    """The file tells the next job where to resume."""

    def describe(self) -> str:
        if self.after is None:
            return f"remove {self.path}"
        if self.before is None and not self.after:
            return f"create {self.path} (empty)"
        if "\n" in (self.before or "") or "\n" in self.after:
            changed = _changed_lines(self.before or "", self.after)
            return f"edit {self.path}: {changed}"
        if len(self.after) > LONG:
            return f"edit {self.path}: {len(self.before or '')} → {len(self.after)} characters"
        return f"{self.path}: {self.before or 'nothing'} → {self.after}"

    def inverse(self) -> Action | None:
        return None if self.taken else replace(self, before=self.after, after=self.before)


class SetJson(Struct, frozen=True):
    """Replace the value of one top-level key of a JSON file; every other byte stays. Values are JSON source text."""

    kind: ClassVar[str] = "set-json"
    path: str
    key: str
    before: str
    after: str
    why: str = ""

    def describe(self) -> str:
        return f"{self.path}: {self.key} {self.before} → {self.after}"

    def inverse(self) -> Action:
        return replace(self, before=self.after, after=self.before)


class Edit(Struct, frozen=True):
    """One number in a state file: where it lies and what it is before and after."""

    label: str
    offset: int
    before: float
    after: float
    stored: str = "float64"


class PatchState(Struct, frozen=True):
    """Change numbers inside a torch state file, at their bytes."""

    kind: ClassVar[str] = "patch-state"
    path: str
    edits: tuple[Edit, ...]
    in_turn: int = 0
    """Where a resume takes the newest file: by how many seconds this one's time moves on; 0: it becomes the time of the edit."""

    def describe(self) -> str:
        seen = {f"{e.before:.6g} → {e.after:.6g}": 0 for e in self.edits}
        for e in self.edits:
            seen[f"{e.before:.6g} → {e.after:.6g}"] += 1
        counts = sum(e.stored == "count" for e in self.edits)
        what = {0: "LR fields", len(self.edits): "step counters"}.get(counts, "LR fields and step counters")
        values = ", ".join(f"{text} ({n} of {len(self.edits)} {what})" for text, n in seen.items())
        return (
            f"{self.path}: {values}: "
            + ", ".join(e.label for e in self.edits[:6])
            + (", …" if len(self.edits) > 6 else "")
        )

    def inverse(self) -> Action:
        edits = tuple(replace(e, before=e.after, after=e.before) for e in self.edits)
        return replace(self, edits=edits, in_turn=-self.in_turn)


class Rewrite(Struct, frozen=True):
    """Rewrite a file by a recipe, keeping the original aside: the inverse puts the very original back.

    The recipe keeps line ranges (1-based, inclusive) of a JSONL file, or fills the spans of a state file with zeros and
    sets the numbers of `edits`.
    """

    kind: ClassVar[str] = "rewrite"
    path: str
    aside: str
    before: str
    """Fingerprint of the original."""
    after: str = ""
    """Fingerprint of what the recipe makes of it; filled in when it is built."""
    keep: tuple[tuple[int, int], ...] = ()
    zero: tuple[Span, ...] = ()
    edits: tuple[Edit, ...] = ()
    restore: bool = False
    why: str = ""
    stored: bool = True
    """Whether the original stays aside; where it does not, there is no way back."""
    in_turn: int = 0
    """As of PatchState."""

    def describe(self) -> str:
        if self.restore:
            return f"{self.path}: original put back from {self.aside}"
        what = f"zero {len(self.zero)} optimizer tensors" if self.zero else f"keep {self.kept} lines"
        what += f" and set {len(self.edits)} LR fields" if self.edits else ""
        return f"{self.path}: {what}; the original {f'stays as {self.aside}' if self.stored else 'is not kept'}"

    @property
    def kept(self) -> int:
        return sum(last - first + 1 for first, last in self.keep)

    def inverse(self) -> Action | None:
        return replace(self, restore=not self.restore, in_turn=-self.in_turn) if self.stored else None


class Move(Struct, frozen=True):
    """Rename a file or directory within one file system."""

    kind: ClassVar[str] = "move"
    source: str
    target: str
    why: str = ""

    def describe(self) -> str:
        return f"move {self.source} → {self.target}"

    def inverse(self) -> Action:
        return replace(self, source=self.target, target=self.source)


class Folder(Struct, frozen=True):
    """Make a folder, or remove an empty one."""

    kind: ClassVar[str] = "folder"
    path: str
    make: bool = True

    def describe(self) -> str:
        return f"{'make' if self.make else 'remove'} folder {self.path}"

    def inverse(self) -> Action:
        return replace(self, make=not self.make)


class Copy(Struct, frozen=True):
    """Copy a state file to another name, with spans zeroed and numbers set as they are in the source by then.

    `gone`: remove the copy again, if it is still the one that was made.
    """

    kind: ClassVar[str] = "copy"
    source: str
    path: str
    zero: tuple[Span, ...] = ()
    edits: tuple[Edit, ...] = ()
    after: str = ""
    """Fingerprint of the copy; filled in when it is built."""
    gone: bool = False

    def describe(self) -> str:
        return f"remove {self.path}, the copy of {self.source}" if self.gone else f"copy {self.source} → {self.path}"

    def inverse(self) -> Action:
        return replace(self, gone=not self.gone)


class Link(Struct, frozen=True):
    """Have a symbolic link lead elsewhere, in one step. `before` and `after` are its text; None stands for "no such link"."""

    kind: ClassVar[str] = "link"
    path: str
    before: str | None
    after: str | None

    def describe(self) -> str:
        if self.after is None:
            return f"remove the link {self.path}"
        return f"link {self.path}: {self.before or 'nothing'} → {self.after}"

    def inverse(self) -> Action:
        return replace(self, before=self.after, after=self.before)


_OPPOSITE = {"hold": "release", "release": "hold"}


class Schedule(Struct, frozen=True):
    """Tell the scheduler: `hold`, `release`, `requeue`, `cancel` of one job, whole array or task.

    `exclude` sets the nodes that what waits of it shall not get, from `before` to `after` (as Slurm writes host lists).
    """

    kind: ClassVar[str] = "schedule"
    verb: str
    job: str
    why: str = ""
    before: str = ""
    after: str = ""

    def describe(self) -> str:
        if self.verb == "exclude":
            return f"job {self.job}: ExcNodeList {self.before or 'empty'} → {self.after or 'empty'}"
        return f"{self.verb} job {self.job}" + (f" ({self.why})" if self.why else "")

    def inverse(self) -> Action | None:
        if self.verb == "exclude":
            return replace(self, before=self.after, after=self.before)
        verb = _OPPOSITE.get(self.verb)
        return replace(self, verb=verb) if verb else None


class Submit(Struct, frozen=True):
    """Hand a job to the scheduler; or, `withdrawn`, cancel the job that this made.

    The job is known by its tag, which stands in its comment, and not by its id: a submission that nobody answered is
    looked for before it is tried again, and the ids of jobs that a crashed controller forgot are given anew.
    """

    kind: ClassVar[str] = "submit"
    argv: tuple[str, ...]
    """The whole command; the script is the copy in `folder`."""
    script: str
    tag: str
    folder: str
    """Where what is submitted is kept."""
    variables: tuple[tuple[str, str], ...] = ()
    """What the job gets beside the environment of whoever applies this. Never a secret."""
    needs: tuple[str, ...] = ()
    """Secret variables that must be set then, by name."""
    beside: tuple[str, ...] = ()
    """The run's jobs that may be in the queue then; any other one is Drift."""
    logs: tuple[str, ...] = ()
    """Folders of the job's output files: without them Slurm fails a job and leaves no word anywhere."""
    config: str = ""
    """The training's config file, to be copied."""
    about: tuple[tuple[str, str], ...] = ()
    """What else is worth keeping: template, repository, commit."""
    withdrawn: bool = False

    def describe(self) -> str:
        if self.withdrawn:
            return f"cancel the job submitted as {self.tag}"
        return f"submit: {shlex.join(self.argv)}"

    def inverse(self) -> Action | None:
        return None if self.withdrawn else replace(self, withdrawn=True)


class WaitFor(Struct, frozen=True):
    """Wait for a condition, with a limit in seconds after which the plan is unfinished and says so.

    Conditions: `stopped` (no job of the run runs), `saved` (a checkpoint above `value` is complete).
    `replan`: what follows is computed again from the wish, for the world has moved meanwhile.
    """

    kind: ClassVar[str] = "wait-for"
    condition: str
    limit: float
    value: str = ""
    replan: bool = False

    def describe(self) -> str:
        words = {"stopped": "no job of the run is running", "saved": f"a complete checkpoint above step {self.value}"}
        return f"wait until {words.get(self.condition, self.condition)} (at most {self.limit:.0f} s)"

    def inverse(self) -> Action | None:
        return None


Order = Schedule | Submit
"""What the scheduler is told."""
Fileless = Order | WaitFor
"""What changes no file of the run."""
Action = WriteText | SetJson | PatchState | Rewrite | Move | Folder | Copy | Link | Schedule | Submit | WaitFor
KINDS: Mapping[str, type[Any]] = {
    k.kind: k for k in (WriteText, SetJson, PatchState, Rewrite, Move, Folder, Copy, Link, Schedule, Submit, WaitFor)
}


def to_json(action: Action) -> dict[str, object]:
    """The action as plain JSON, with its kind."""
    return {"kind": action.kind, **to_builtins(action)}


def from_json(data: Mapping[str, Any]) -> Action:
    """The action that `to_json` wrote. Raises BadInput for anything else."""
    fields = dict(data)
    kind = KINDS.get(str(fields.pop("kind", "")))
    if kind is None:
        raise BadInput(f"unknown kind of action: {data.get('kind')!r}", hint="was the plan made by a newer m4ops?")
    try:
        if "edits" in fields:
            fields["edits"] = tuple(Edit(**e) for e in fields["edits"])
        if "keep" in fields:
            fields["keep"] = tuple((int(a), int(b)) for a, b in fields["keep"])
        if "zero" in fields:
            fields["zero"] = tuple(Span(**s) for s in fields["zero"])
        for name in ("argv", "needs", "beside", "logs"):
            if name in fields:
                fields[name] = tuple(map(str, fields[name]))
        for name in ("variables", "about"):
            if name in fields:
                fields[name] = tuple((str(key), str(value)) for key, value in fields[name])
        action: Action = kind(**fields)
    except (TypeError, ValueError) as error:
        raise BadInput(f"a {data.get('kind')} action does not have its fields: {error}") from None
    return action


def paths(action: Action) -> tuple[str, ...]:
    """Every path the action changes."""
    match action:
        case Move():
            return (action.source, action.target)
        case Rewrite():
            return (action.path, action.aside) if action.stored else (action.path,)
        case Schedule() | Submit() | WaitFor():
            return ()
        case _:
            return (action.path,)


def inverse_of(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """What takes the actions back, last first. What has no inverse, and a file set and removed again, is left out."""
    net: dict[str, tuple[str | None, str | None]] = {}
    for a in actions:
        if isinstance(a, WriteText):
            net[a.path] = (net.get(a.path, (a.before, None))[0], a.after)
    idle = {path for path, (first, last) in net.items() if first == last}
    kept = (a for a in reversed(actions) if not (isinstance(a, WriteText) and a.path in idle))
    return tuple(inverse for action in kept if (inverse := action.inverse()) is not None)


def edits_state(actions: tuple[Action, ...]) -> bool:
    """Whether a file a resume reads is changed: such plans need a run that cannot start meanwhile."""
    return any(_edits_state(a) for a in actions)


def _edits_state(action: Action) -> bool:
    match action:
        case Rewrite():
            return bool(action.zero)  # evaluations are read by no resume
        case WriteText():  # a switch is set while the job runs; no resume reads m4ops's own notes
            return not {action.before, action.after} <= {None, ""} and f"/{OPS_DIR}/" not in action.path
        case _:
            return isinstance(action, SetJson | PatchState | Move | Folder | Copy | Link)


def _changed_lines(before: str, after: str) -> str:
    old, new = before.splitlines(), after.splitlines()
    pairs = [f"`{a.strip()}` → `{b.strip()}`" for a, b in zip(old, new, strict=False) if a != b]
    return "; ".join(pairs) or f"{len(old)} → {len(new)} lines"
