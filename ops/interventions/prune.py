"""Clear away checkpoints that no rule keeps: into the trash first, from which they can be taken back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from ops.actions import Folder, Move, WriteText
from ops.errors import BadInput, Refused
from ops.interventions.retention import Verdict
from ops.model import OPS_DIR, Snapshot
from ops.plan import Plan

TRASH = "trash"
PINS = "pins"
GOING = ".going-"
"""Prefix of a folder whose removal has begun: what a crash leaves of it is removed the next time."""
_STAMP = "%Y%m%dT%H%M%SZ"
_UNPARKED = {"assume_stopped": True}
"""What is moved is read by no resume, so the run's jobs need not be parked."""


def to_trash(
    snapshot: Snapshot, verdicts: Sequence[Verdict], rules: Sequence[str], command: str, unattended: bool = False
) -> Plan:
    """The plan that moves what may go to `.m4ops/trash/TIME/`. Raises Refused when nothing may."""
    going = [v.candidate for v in verdicts if not v.stays]
    if not going:
        raise Refused(
            "every checkpoint is kept by a rule: nothing to prune", str(snapshot.run.dir), "m4ops prune -n says which"
        )
    home = snapshot.run.dir / OPS_DIR / TRASH / datetime.fromtimestamp(snapshot.now, UTC).strftime(_STAMP)
    branches = sorted({c.branch for c in going if c.branch})
    folders = [Folder(str(home)), *(Folder(str(home / branch)) for branch in branches)]
    moves = [Move(str(part), str(home / c.branch / part.name)) for c in going for part in c.parts]
    return Plan(
        run=str(snapshot.run.dir),
        title=f"prune {len(going)} of {len(verdicts)} checkpoints",
        actions=(*folders, *moves),
        command=command,
        wish={"kind": "prune", "keep": list(rules), "unattended": unattended, **_UNPARKED},
        notes=("the space is free only after m4ops prune --empty-trash",),
        created=snapshot.now,
        user=snapshot.user,
    )


def trashed_at(name: str) -> float | None:
    """When a folder of the trash was filled, by its name; None for what is no such folder."""
    try:
        return datetime.strptime(name, _STAMP).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def pins(text: str, where: str) -> dict[int, str]:
    """Pinned steps and why, as the file says them: a step a line, then words. Raises BadInput rather than lose one."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        step, _, why = line.strip().partition(" ")
        if step and not step.isdigit():
            raise BadInput(f"line {number} of the pins begins with no step: {line.strip()[:40]!r}", where)
        if step:
            found[int(step)] = why.strip()
    return found


def pinned(snapshot: Snapshot, text: str | None, changes: Mapping[int, str | None], command: str) -> Plan:
    """The plan that pins steps (with a word why) and unpins others (None)."""
    path = snapshot.run.dir / OPS_DIR / PINS
    now = {**pins(text or "", str(path)), **changes}
    lines = [f"{step} {why}".rstrip() + "\n" for step, why in sorted(now.items()) if why is not None]
    said = [f"{'unpin' if why is None else 'pin'} {step}" for step, why in changes.items()]
    if (after := "".join(lines)) == (text or ""):
        raise Refused("the pins are so already", str(path))
    return Plan(
        run=str(snapshot.run.dir),
        title=", ".join(said),
        actions=(WriteText(str(path), text, after),),
        command=command,
        wish={"kind": "pin", **_UNPARKED},
        created=snapshot.now,
        user=snapshot.user,
    )


def expired(names: Sequence[str], now: float, grace: float) -> tuple[str, ...]:
    """Folders of the trash that were filled more than `grace` seconds ago, and those whose removal has begun."""
    ages = {name: trashed_at(name) for name in names}
    old = {name for name, at in ages.items() if at is not None and now - at >= grace}
    return tuple(sorted(old | {name for name in names if name.startswith(GOING)}))


def emptying(run_dir: Path, names: Sequence[str], size: int, created: float, command: str) -> Plan:
    """What the journal says of an emptied trash. There is no way back, so there are no actions to invert.

    It counts as unattended: whoever undoes the last change means the one before it.
    """
    return Plan(
        run=str(run_dir),
        title=f"empty the trash: {', '.join(names)}",
        actions=(),
        command=command,
        wish={"kind": "empty-trash", "folders": list(names), "bytes": size, "unattended": True},
        notes=("removed for good",),
        created=created,
    )
