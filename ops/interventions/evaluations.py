"""Roll the evaluations back to a step, losing no line."""

from __future__ import annotations

from typing import ClassVar

from ops.actions import Action, Rewrite
from ops.errors import Refused
from ops.interventions.wish import Simple
from ops.model import Evals, Snapshot


class TrimEvals(Simple, frozen=True):
    """Roll the evaluations back: the file keeps the steps up to N, the whole of it stays as a numbered archive."""

    kind: ClassVar[str] = "trim-evals"
    to: int

    def title(self, snapshot: Snapshot) -> str:
        return f"roll the evaluations back to step {self.to}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        if not snapshot.run.evaluated:
            raise Refused(
                "this run has no evaluations file", str(snapshot.run.dir), 'm4ops.toml can name one: evals = "…"'
            )
        if not isinstance(snapshot.evals, Evals):
            raise Refused(f"the evaluations are UNKNOWN: {snapshot.evals.reason}")
        if not beyond(snapshot.evals, self.to):
            raise Refused(f"no evaluation lies beyond step {self.to}", str(snapshot.evals.path), "m4ops evals")
        return (rollback(snapshot.evals, self.to, experiment(snapshot)),)

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        return about(snapshot, self.to)


def beyond(evals: Evals, step: int) -> tuple[int, ...]:
    """Line numbers of evaluations of later steps."""
    return tuple(e.line for e in evals.lines if e.step is not None and e.step > step)


def rollback(evals: Evals, step: int, number: int) -> Rewrite:
    """Keep the lines up to `step` and all whose step cannot be told; the original becomes archive number `number`."""
    gone = set(beyond(evals, step))
    kept = [e.line for e in evals.lines if e.line not in gone]
    archive = evals.path.with_name(f"{evals.path.name.removesuffix('.jsonl')}_archive_exp_{number}.jsonl")
    return Rewrite(str(evals.path), str(archive), evals.fingerprint, keep=ranges(kept), why=f"steps up to {step}")


def ranges(lines: list[int]) -> tuple[tuple[int, int], ...]:
    """Ascending line numbers as inclusive ranges."""
    found: list[tuple[int, int]] = []
    for line in lines:
        if found and found[-1][1] == line - 1:
            found[-1] = (found[-1][0], line)
        else:
            found.append((line, line))
    return tuple(found)


def experiment(snapshot: Snapshot) -> int:
    """The K of this roll-back: one above every archive and every discarded branch there is."""
    archives = snapshot.evals.archives if isinstance(snapshot.evals, Evals) else ()
    branches = [int(f[4:]) for f in snapshot.folders if f.startswith("exp_") and f[4:].isdigit()]
    return 1 + max((*archives, *branches), default=0)


def about(snapshot: Snapshot, step: int) -> tuple[str, ...]:
    """What the roll-back keeps without knowing its step."""
    if not snapshot.run.evaluated:
        return ()
    if not isinstance(snapshot.evals, Evals):
        return (f"evaluations left alone: {snapshot.evals.reason}",)
    odd = [f"line {e.line} ({e.problem})" for e in snapshot.evals.lines if e.step is None]
    return (
        (
            f"evaluation lines kept though their step cannot be told: {', '.join(odd[:6])}"
            + (" …" if len(odd) > 6 else ""),
        )
        if odd
        else ()
    )
