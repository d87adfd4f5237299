"""Would the next resume find what it needs: the pointer, its target, and nothing foreign in there?

A foreign file beside the LR scheduler's made Accelerate skip all custom state with a warning nobody saw
(huggingface/m4-logs, chronicles of the 80B run, experiments 9 and 10).
"""

from __future__ import annotations

import shlex

from ops.model import DISCARDED, Checkpoint, Finding, Pointer, Severity, Snapshot, Unknown


def look(snapshot: Snapshot) -> tuple[Finding, ...]:
    """`pointer-broken`, `checkpoint-incomplete`, `checkpoint-damaged` (the target's), `stray-file`, `stray-checkpoint`,
    `checkpoints-unknown`."""
    if isinstance(snapshot.checkpoints, Unknown):
        summary = f"the checkpoints could not be read: {snapshot.checkpoints.reason}"
        unknown = Finding("checkpoints-unknown", Severity.UNKNOWN, summary, runbook="pointer-broken")
        return (unknown, *_pointer(snapshot, None))
    checkpoints = snapshot.checkpoints
    return (
        *_pointer(snapshot, checkpoints),
        *_incomplete(snapshot.pointer, checkpoints),
        *_stray(snapshot.pointer, checkpoints),
        *_beside(snapshot),
    )


def _pointer(snapshot: Snapshot, checkpoints: tuple[Checkpoint, ...] | None) -> tuple[Finding, ...]:
    pointer, chosen = snapshot.pointer, snapshot.run.layout.chosen_by
    if isinstance(pointer, Unknown):
        return (_broken(snapshot, Severity.UNKNOWN, f"{chosen} could not be read: {pointer.reason}", None),)
    if not pointer.text and checkpoints == ():
        return ()
    problem = pointer.problem or _wrong(pointer, snapshot, checkpoints)
    if not problem:
        return ()
    return (_broken(snapshot, Severity.CRITICAL, f"{chosen}: {problem}. The next job will not resume", pointer),)


def _wrong(pointer: Pointer, snapshot: Snapshot, checkpoints: tuple[Checkpoint, ...] | None) -> str:
    if pointer.step is None:
        return "it names no checkpoint"
    if checkpoints is not None and pointer.step not in {c.step for c in checkpoints}:
        return f"it names {snapshot.run.layout.called(pointer.step)}, which is not in {snapshot.run.dir}"
    return ""


def _broken(snapshot: Snapshot, severity: Severity, summary: str, pointer: Pointer | None) -> Finding:
    text = (f"it says {pointer.text!r}",) if pointer else ()
    signs = tuple(str(s.path) for s in pointer.signs) if pointer else ()
    evidence = (*(signs or (str(snapshot.run.dir),)), *text)
    actions = ("m4ops rewind --to latest",)
    return Finding("pointer-broken", severity, summary, evidence, runbook="pointer-broken", actions=actions)


def _incomplete(pointer: Pointer | Unknown, checkpoints: tuple[Checkpoint, ...]) -> tuple[Finding, ...]:
    pointed = pointer.step if isinstance(pointer, Pointer) else None
    target = next((c for c in checkpoints if c.step == pointed), None)
    if target is None or target.sound:
        return ()
    if target.complete and target.checked:
        return (_damaged(target, target.checked.faults, checkpoints),)
    finding = Finding(
        kind="checkpoint-incomplete",
        severity=Severity.WARNING,
        summary=f"the next resume takes {target.name}, which is incomplete (or still being saved)",
        evidence=tuple(f"{target.path}: {problem}" for problem in target.problems),
        step=target.step,
        runbook="pointer-broken",
        actions=("m4ops rewind --to latest",),
    )
    return (finding,)


def _damaged(target: Checkpoint, faults: tuple[str, ...], checkpoints: tuple[Checkpoint, ...]) -> Finding:
    """With where to go back to: the newest checkpoint before it that was looked at, and is sound."""
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    sound = max((c.step for c in checkpoints if c.step < target.step and c.checked and c.sound), default=None)
    verify = f"m4ops verify-checkpoint {target.step}"
    return Finding(
        kind="checkpoint-damaged",
        severity=Severity.CRITICAL,
        summary=f"the next resume takes {target.name}, which is damaged: {faults[0]}{more}",
        evidence=tuple(f"{target.path}: {fault}" for fault in faults),
        step=target.step,
        runbook="pointer-broken",
        actions=(verify,) if sound is None else (f"m4ops rewind --to {sound} --keep-wandb-run", verify),
    )


def _stray(pointer: Pointer | Unknown, checkpoints: tuple[Checkpoint, ...]) -> tuple[Finding, ...]:
    """CRITICAL in the pointer's target and its neighbours, which a rewind takes next; else WARNING."""
    dirty = [c for c in checkpoints if c.stray]
    if not dirty:
        return ()
    near = _near(pointer, checkpoints)
    files = tuple(str(c.path / name) for c in dirty for name in c.stray)
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    finding = Finding(
        kind="stray-file",
        severity=Severity.CRITICAL if any(c.step in near for c in dirty) else Severity.WARNING,
        summary=f"a foreign file in a checkpoint can make a resume lose its state: {files[0]}{more}",
        evidence=files,
        step=dirty[0].step,
        runbook="undo",
        actions=("m4ops checkpoints",),
    )
    return (finding,)


def _beside(snapshot: Snapshot) -> tuple[Finding, ...]:
    """What is taken for a checkpoint and is none. Where a resume falls over it, that is told already."""
    pointer = snapshot.pointer
    if not isinstance(pointer, Pointer) or not pointer.strays or (pointer.problem and pointer.obstacles):
        return ()
    first, *others = pointer.strays
    more = f" (and {len(others)} more)" if others else ""
    home = shlex.quote(str(snapshot.run.dir / DISCARDED))
    paths = shlex.join(str(stray.path) for stray in pointer.strays)
    finding = Finding(
        kind="stray-checkpoint",
        severity=Severity.WARNING,
        summary=f"{first.path.name} beside the checkpoints: {first.effect}{more}",
        evidence=tuple(f"{stray.path}: {stray.effect}" for stray in pointer.strays),
        runbook="pointer-broken",
        actions=(f"mkdir -p {home} && mv {paths} {home}",),
    )
    return (finding,)


def _near(pointer: Pointer | Unknown, checkpoints: tuple[Checkpoint, ...]) -> set[int]:
    steps = sorted(c.step for c in checkpoints)
    if not isinstance(pointer, Pointer) or pointer.step not in steps:
        return set(steps[-3:])
    place = steps.index(pointer.step)
    return set(steps[max(0, place - 1) : place + 2])
