"""What the log must show after a change of the LR."""

from __future__ import annotations

from msgspec.structs import replace

from ops.model import Checkpoint, Expectation, LogView, Sample, Snapshot

EXPECTED_POINTS = 40


class Earlier(Exception):
    """What a plan needs of the log lies before the part of it that was read."""


def scale_promise(snapshot: Snapshot, checkpoint: Checkpoint, now: float | None, factor: float) -> Expectation:
    """What the log must show: the LRs that this checkpoint's own branch logged beyond it, times the factor.

    An earlier change that no training has followed yet promised those LRs already; then its promise is scaled. Where no
    branch beyond the checkpoint fits the LR it holds, that LR stands for it, with room for the schedule's slope.

    Raises Earlier where training went on from the checkpoint, and the log was not read from there on; or where a brief
    part of it tells of no such branch.
    """
    step, log = checkpoint.step, snapshot.log
    samples = [s for s in log.samples if s.lr is not None] if isinstance(log, LogView) else []
    brief = isinstance(log, LogView) and log.brief
    if brief and not samples:
        raise Earlier
    earlier = _untested(snapshot, step, samples[-1].offset if samples else -1)
    if earlier is not None:
        return replace(earlier, lr=tuple((s, lr * factor) for s, lr in earlier.lr), wandb_new=None, wandb_id="")
    whole = not isinstance(log, LogView) or (log.begin <= 0 and not log.brief)
    for branch in reversed(_beyond(samples, step)):
        if (branch[0][0] <= step or whole) and (now is None or _fits(branch, step, now)):
            points = tuple((s, lr * factor) for s, lr in branch if s > step)
            return Expectation(resume_step=step, lr=points[:EXPECTED_POINTS])
    if brief or (not whole and (not samples or samples[-1].step > step)):
        raise Earlier
    if now is None:
        return Expectation(resume_step=step)
    return Expectation(resume_step=step, lr=((step, now * factor),), lr_tolerance=0.1)


def _beyond(samples: list[Sample], step: int) -> list[list[tuple[int, float]]]:
    """(step, LR) of each stretch of the log that passes `step`, from the last point at or before it on."""
    branches: list[list[tuple[int, float]]] = [[]]
    for sample in samples:
        if branches[-1] and sample.step <= branches[-1][-1][0]:
            branches.append([])
        branches[-1].append((sample.step, sample.lr or 0.0))
    cut = ([p for p in b if p[0] > step] for b in branches)
    before = ([p for p in b if p[0] <= step][-1:] for b in branches)
    return [start + rest for start, rest in zip(before, cut, strict=True) if rest]


def _fits(branch: list[tuple[int, float]], step: int, now: float) -> bool:
    """Whether the branch logged, about `step`, the LR that the checkpoint holds."""
    (s0, lr0), (s1, lr1) = branch[0], branch[min(1, len(branch) - 1)]
    near = [lr0, lr1] if s0 <= step else [lr0, lr0 - (lr1 - lr0) * (s0 - step) / (s1 - s0 or 1)]
    return 0.98 * min(near) <= now <= 1.02 * max(near)


def _untested(snapshot: Snapshot, step: int, last_logged: int) -> Expectation | None:
    """The promise of the newest change of this checkpoint's LR after which nothing was logged."""
    for change in reversed(snapshot.history or ()):
        promise = change.expectation
        fresh = change.log_offset is not None and change.log_offset > last_logged
        if change.status == "applied" and fresh and promise is not None and promise.resume_step == step and promise.lr:
            return promise
    return None


def set_promise(snapshot: Snapshot, checkpoint: Checkpoint, now: float, lr: float) -> Expectation:
    """As `scale_promise`, for an LR that goes from `now` to a value."""
    if lr == 0 or now == 0:
        return Expectation(resume_step=checkpoint.step, lr=((checkpoint.step, lr),), lr_tolerance=0.1)
    return scale_promise(snapshot, checkpoint, now, lr / now)
