"""Did the resume do what the plan promised? The first logged lines after the change against its expectation.

A change is done when the log shows it, not when a file was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from ops.model import Expectation, LogEvent, Sample


class Check(Struct, frozen=True):
    """One promise: `yes`, `no` or `not yet`, with what was expected and what the log shows."""

    what: str
    verdict: str
    expected: str
    seen: str
    line: int = 0


def verify(promise: Expectation, samples: Sequence[Sample], events: Sequence[LogEvent]) -> tuple[Check, ...]:
    """Every promise checked against the log's lines after the change."""
    checks = []
    if promise.resume_step is not None:
        checks.append(_step(promise.resume_step, samples))
    if promise.lr:
        checks.append(_lr(promise, samples))
    if promise.wandb_new is not None:
        checks.append(_wandb(promise, samples, events))
    return tuple(checks)


def overall(checks: Sequence[Check]) -> str:
    """`no` if any promise is broken, `not yet` if any is open, else `yes`."""
    verdicts = {c.verdict for c in checks}
    return "no" if "no" in verdicts else "not yet" if "not yet" in verdicts or not checks else "yes"


def _step(resumed: int, samples: Sequence[Sample]) -> Check:
    expected = f"a first logged step just above {resumed}"
    if not samples:
        return Check("step", "not yet", expected, "no step logged since")
    first = samples[0]
    interval = min((b.step - a.step for a, b in pairwise(samples) if b.step > a.step), default=None)
    room = 2 * interval if interval else max(100, resumed // 10)
    good = resumed < first.step <= resumed + room
    return Check("step", "yes" if good else "no", expected, f"{first.step}", first.line)


def _lr(promise: Expectation, samples: Sequence[Sample]) -> Check:
    logged = [s for s in samples if s.lr is not None]
    if not logged:
        at = f" at step {promise.lr[0][0]}"
        return Check("lr", "not yet", f"{promise.lr[0][1]:.4g}{at}", "no LR logged since")
    low, high = promise.lr[0][0], promise.lr[-1][0]
    covered = [s for s in logged if low <= s.step <= high] or logged[:1]
    for sample in covered:
        expected = expected_lr(promise, sample.step)
        if abs((sample.lr or 0.0) - expected) > promise.lr_tolerance * abs(expected) + 1e-12:
            return Check("lr", "no", f"{expected:.4g} at step {sample.step}", f"{sample.lr:.4g}", sample.line)
    first = covered[0]
    expected = expected_lr(promise, first.step)
    return Check(
        "lr", "yes", f"{expected:.4g} at step {first.step}", f"{first.lr:.4g} ({len(covered)} lines agree)", first.line
    )


def expected_lr(promise: Expectation, step: int) -> float:
    """The promised LR at a step: by interpolation between the points, the nearest one outside of them."""
    points = promise.lr
    if step <= points[0][0]:
        return points[0][1]
    for (s0, lr0), (s1, lr1) in pairwise(points):
        if s0 <= step <= s1:
            return lr0 + (lr1 - lr0) * (step - s0) / (s1 - s0)
    return points[-1][1]


def _wandb(promise: Expectation, samples: Sequence[Sample], events: Sequence[LogEvent]) -> Check:
    """A trainer logs the id of a new run only (vision/m4/training/trainer.py): silence while it trains means the old one."""
    expected = f"another id than {promise.wandb_id or 'before'}" if promise.wandb_new else f"the run {promise.wandb_id}"
    said = [e for e in events if e.kind == "wandb-id" and e.value]
    if not said and (promise.wandb_new or not samples):
        return Check("wandb id", "not yet", expected, "no id logged since")
    seen = said[0].value if said else promise.wandb_id
    good = (seen != promise.wandb_id) == bool(promise.wandb_new)
    return Check(
        "wandb id", "yes" if good else "no", expected, seen if said else "no new id logged", said[0].line if said else 0
    )
