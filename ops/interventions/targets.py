"""Which checkpoint is meant, and whether a resume could take it."""

from __future__ import annotations

from collections.abc import Iterator

from ops.errors import BadInput, Refused
from ops.model import Change, Checkpoint, Snapshot, StateFile, Unknown


def known(snapshot: Snapshot) -> tuple[Checkpoint, ...]:
    """The run's checkpoints. Raises Refused when they are unknown or none."""
    if isinstance(snapshot.checkpoints, Unknown):
        raise Refused(f"the checkpoints are UNKNOWN: {snapshot.checkpoints.reason}", str(snapshot.run.dir))
    if not snapshot.checkpoints:
        raise Refused(
            "there is no checkpoint", f"no {snapshot.run.layout.pattern} in {snapshot.run.dir}", "m4ops status"
        )
    return snapshot.checkpoints


def pointed(snapshot: Snapshot) -> int:
    """The step a resume would take now. Raises Refused when the pointer does not say."""
    pointer = snapshot.pointer
    if isinstance(pointer, Unknown):
        raise Refused(f"the pointer is UNKNOWN: {pointer.reason}")
    if pointer.problem or pointer.step is None:
        raise Refused(
            f"{snapshot.run.layout.chosen_by} is broken: {pointer.problem or 'it names no step'}",
            str(pointer.signs[0].path if pointer.signs else snapshot.run.dir),
            "m4ops rewind --to latest mends it, or name the step",
        )
    return pointer.step


def resolve(snapshot: Snapshot, wanted: str) -> int:
    """The step meant by `16000`, `latest` (the highest complete one) or `-K` (K complete ones before the pointer)."""
    complete = [c.step for c in known(snapshot) if c.complete]
    if wanted == "latest":
        if not complete:
            raise Refused("no checkpoint is complete", str(snapshot.run.dir), "m4ops checkpoints says what each lacks")
        return complete[-1]
    try:
        number = int(wanted)
    except ValueError:
        raise BadInput(
            f"--to {wanted}: not a step", hint="give a step (16000), `latest`, or -1 for one complete checkpoint back"
        ) from None
    if number >= 0:
        return number
    here = pointed(snapshot)
    earlier = [s for s in complete if s < here]
    if len(earlier) < -number:
        raise Refused(
            f"only {len(earlier)} complete checkpoints lie before the pointer (step {here})", hint="m4ops checkpoints"
        )
    return earlier[number]


def resumable(snapshot: Snapshot, step: int) -> Checkpoint:
    """The checkpoint of a step, complete and sound. Raises Refused, naming the nearest ones or what is missing."""
    checkpoints = known(snapshot)
    found = next((c for c in checkpoints if c.step == step), None)
    if found is None:
        near = sorted(sorted((c.step for c in checkpoints if c.complete), key=lambda s: abs(s - step))[:4])
        gone = [f for f in snapshot.folders if f.endswith(f"/{snapshot.run.layout.called(step)}")]
        hint = (
            f"it was moved to discarded/{gone[0]} by an earlier rewind (m4ops history)" if gone else "m4ops checkpoints"
        )
        raise Refused(
            f"there is no checkpoint of step {step}; the nearest complete ones: {_list(near)}",
            str(snapshot.run.dir),
            hint,
        )
    if found.problems:
        raise Refused(
            f"{found.name} cannot be resumed from: " + "; ".join(found.problems),
            str(found.path),
            "m4ops checkpoints lists the complete ones",
        )
    if found.stray:
        raise Refused(
            f"{found.name} holds files that change what a resume loads: {', '.join(found.stray)}",
            str(found.path),
            f"m4ops verify-checkpoint {found.step} tells what each does; move them out of the checkpoint first",
        )
    return found


def since_saved(snapshot: Snapshot, checkpoint: Checkpoint) -> Iterator[Change]:
    """The changes that stand and were done after the checkpoint was saved, the newest first.

    Where a file's time is its save's, each edit moved it on by a second (`ops.actions.PatchState.in_turn`).
    """
    standing = (c for c in reversed(snapshot.history or ()) if c.status == "applied")
    return (c for moved, c in enumerate(standing, 1) if c.ended + moved > (checkpoint.saved or 0.0))


def name(snapshot: Snapshot, step: int) -> str:
    """What a checkpoint is called, there or not."""
    found = (c.name for c in snapshot.checkpoints or () if c.step == step)
    return next(found, snapshot.run.layout.called(step))


def states(checkpoint: Checkpoint) -> tuple[StateFile, ...]:
    """The state files of an inspected checkpoint. Raises Refused when they could not be read."""
    if isinstance(checkpoint.states, Unknown):
        raise Refused(f"the state of {checkpoint.name} is UNKNOWN: {checkpoint.states.reason}", str(checkpoint.path))
    return checkpoint.states


def _list(steps: list[int]) -> str:
    return ", ".join(map(str, steps)) or "none"
