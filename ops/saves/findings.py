"""What failed of what `on_save` declares, and whether anybody does it at all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ops.errors import OpsError
from ops.model import Checkpoint, Finding, Run, Severity, Unknown
from ops.saves import declared, serve
from ops.saves.declared import Step
from ops.saves.serve import Outcome

PATIENCE = 3600.0
"""Seconds after a save in which nothing need have begun."""
RUNBOOK = "save-step-fails"


def look(run: Run, checkpoints: tuple[Checkpoint, ...] | Unknown, now: float) -> tuple[Finding, ...]:
    """`save-step-failed`: one a step, however many checkpoints it failed for; `saves-waiting`: nobody does anything."""
    if not run.on_save:
        return ()
    try:
        steps = declared.steps(run.on_save)
    except OpsError as error:
        return (
            Finding("save-step-failed", Severity.WARNING, f"on_save: {error.what}", (error.hint,), runbook=RUNBOOK),
        )
    mine = serve.looked_after(run, steps, checkpoints or ())
    outcomes = [serve.stands(run, s, c, now) for c in mine for s in steps if s.kind != "prune" or c is mine[0]]
    return (*_failed(run, steps, outcomes, now), *_waiting(outcomes, now))


def _failed(run: Run, steps: Sequence[Step], outcomes: Sequence[Outcome], now: float) -> Iterator[Finding]:
    for step in steps:
        if not (failed := [o for o in outcomes if o.step == step and o.word in ("failed", "due") and o.said]):
            continue
        last = failed[0]
        names = ", ".join(str(o.checkpoint.step) for o in failed[:4]) + (", …" if failed[4:] else "")
        when = "now" if last.word == "due" else _minutes((last.again or now) - now)
        again = f"it is tried again {when}" if last.again is not None else "it is not tried again by itself"
        yield Finding(
            "save-step-failed",
            Severity.CRITICAL if step.kind == "verify" else Severity.WARNING,
            f"after a save: {step.name} failed for step {names}; {again}",
            tuple(f"opt_step-{o.checkpoint.step}: {o.said}" for o in failed[:4]),
            step=last.checkpoint.step,
            runbook=RUNBOOK,
            actions=(by_hand(run, step, last.checkpoint),),
            episode=f"save-step:{step.name}",
        )


def _waiting(outcomes: Sequence[Outcome], now: float) -> Iterator[Finding]:
    """A finished checkpoint with which nothing was begun: then nobody runs watch-saves."""
    for checkpoint in {o.checkpoint.step: o.checkpoint for o in outcomes}.values():
        words = [o.word for o in outcomes if o.checkpoint is checkpoint]
        if all(w == "due" for w in words) and now - (checkpoint.saved or now) > PATIENCE:
            yield Finding(
                "saves-waiting",
                Severity.WARNING,
                f"opt_step-{checkpoint.step} is finished, and nothing that on_save declares was begun",
                (str(checkpoint.path),),
                step=checkpoint.step,
                runbook=RUNBOOK,
                actions=("m4ops cron install", "m4ops watch-saves"),
            )
            return


def by_hand(run: Run, step: Step, checkpoint: Checkpoint) -> str:
    """The command that does a step of a checkpoint by hand."""
    import shlex

    from ops.saves import evaluations

    match step.kind:
        case "verify":
            return f"m4ops verify-checkpoint {checkpoint.step}" + (" --deep" if step.how else "")
        case "extract":
            return f"m4ops extract {checkpoint.step} --to-unwrapped-model --dtype {step.how}"
        case "push":
            return f"m4ops push {checkpoint.step}"
        case "evals":
            return shlex.join(evaluations.by_hand(run, step, checkpoint))
    return "m4ops prune -n"


def _minutes(seconds: float) -> str:
    return f"in {max(1, round(seconds / 60))} min"
