"""How fast a run goes and where it went back, read from its logged points."""

from __future__ import annotations

from collections.abc import Sequence

from ops.model import Sample

WINDOW = 20
"""Logged points over which the present pace is taken: saves and evaluations are in it."""


def stepped_back(before: Sample | None, after: Sample) -> bool:
    """Did a job resume from an earlier step? The same step twice is one only if the job's clock says so: else it is
    one line printed twice.
    """
    if before is None:
        return False
    if after.step != before.step:
        return after.step < before.step
    return None not in (before.elapsed, after.elapsed) and (after.elapsed or 0) < (before.elapsed or 0)


def resumed(before: Sample | None, after: Sample) -> bool:
    """Is it another job's point: did the step go back, or the job's clock?"""
    if before is None:
        return False
    new_clock = None not in (before.elapsed, after.elapsed) and (after.elapsed or 0) < (before.elapsed or 0)
    return new_clock or stepped_back(before, after)


def seconds_between(first: Sample, last: Sample) -> float | None:
    """Time between two points of one job, by its own clock, else by the log's; None where that clock went back."""
    for a, b in ((first.elapsed, last.elapsed), (first.time, last.time)):
        if a is not None and b is not None:
            return b - a if b >= a else None
    return None


def seconds_per_step(samples: Sequence[Sample]) -> float | None:
    """Seconds a step over the last points of one job, saves included; None while there are not two of them."""
    recent = [samples[-1]] if samples else []
    for sample in reversed(samples[-WINDOW:-1]):
        # An earlier file is another job's, maybe; a clock of the job's own would tell.
        elsewhere = sample.elapsed is None and sample.offset < 0 <= recent[-1].offset
        if elsewhere or sample.step >= recent[-1].step or seconds_between(sample, recent[-1]) is None:
            break
        recent.append(sample)
    passed = seconds_between(recent[-1], recent[0]) if len(recent) > 1 else None
    return passed / (recent[0].step - recent[-1].step) if passed else None
