"""Which checkpoints stay, each with its reasons. A pure function of what was seen; nothing here deletes.

What no rule asks to keep may go; what a law protects stays whatever the rules say: the checkpoint that the next resume
takes, the complete one before it (to fall back on), the last one whose bytes were verified, a save that may still be going
on, work of others in progress, a pin.
After a rewind, "later" checkpoints are not better ones: the last ones are counted on the branch that is kept.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ops.errors import BadInput, Refused

DAY = 86400.0
YOUNG = DAY
"""Seconds in which a save without its marker may still be going on."""
RULES = (
    "last N", "every N", "best N by TASK", "lowest N by TASK", "around incidents",
    "until uploaded", "until evaluated", "discarded N days",
)  # fmt: skip
_IN_WORK = {"started-upload-checkpoint": "finished-upload-checkpoint", "started-cleanup-checkpoint": ""}
Reasons = Iterator[tuple[int, str]]


class Best(Struct, frozen=True):
    """Keep the `count` checkpoints with the best scores of an evaluation."""

    count: int
    name: str
    highest: bool


class Policy(Struct, frozen=True):
    """What is to be kept beyond what the laws protect."""

    last: int = 0
    every: int = 0
    best: tuple[Best, ...] = ()
    incidents: bool = False
    uploaded: bool = False
    """Nothing goes that was not uploaded."""
    evaluated: bool = False
    """Nothing goes that was not evaluated."""
    discarded: float = 7 * DAY
    """Seconds for which a discarded branch stays, so that its rewind can be undone."""


class Candidate(Struct, frozen=True):
    """A checkpoint that may go. `branch` is empty for the kept one, else the folder in `discarded/`."""

    step: int
    path: Path
    branch: str = ""
    complete: bool = True
    saved: float | None = None
    """When its marker was written, else when the folder last changed; None: not known."""
    markers: tuple[str, ...] = ()
    sound: bool | None = None
    """What verify-checkpoint found of its content; None: nobody looked."""
    files: tuple[Path, ...] = ()
    """Of a layout of single files: all that belong to it."""

    @property
    def parts(self) -> tuple[Path, ...]:
        """What is moved when it goes."""
        return self.files or (self.path,)


class Seen(Struct, frozen=True):
    """What else decides. `scores` holds (step, name of the evaluation, value)."""

    now: float
    pointer: int
    pins: frozenset[int] = frozenset()
    incidents: frozenset[int] = frozenset()
    scores: tuple[tuple[int, str, float], ...] = ()
    evaluated: frozenset[int] = frozenset()


class Verdict(Struct, frozen=True):
    """A checkpoint's fate: it stays if there is a reason."""

    candidate: Candidate
    reasons: tuple[str, ...]

    @property
    def stays(self) -> bool:
        return bool(self.reasons)


def policy(rules: Sequence[str]) -> Policy:
    """The policy of rules such as `last 3`, `every 5000`, `best 2 by vqa`. Raises BadInput, Refused for an absurd one."""
    made = Policy()
    for rule in rules:
        made = _with_rule(made, " ".join(rule.split()))
    if made.last < 2:
        raise Refused(
            "no rule says how many of the last checkpoints stay" if not made.last else "fewer than two would be left",
            hint='--keep "last 3" (and more rules: ' + ", ".join(RULES[1:]) + '), or keep = ["last 3"] in m4ops.toml',
        )
    return made


def judge(candidates: Iterable[Candidate], seen: Seen, policy: Policy) -> tuple[Verdict, ...]:
    """The fate of every checkpoint, by branch and step. Raises Refused where a rule cannot be followed."""
    ordered = sorted(candidates, key=lambda c: (c.branch != "", c.branch, c.step))
    if not any(c.step == seen.pointer and not c.branch for c in ordered):
        raise Refused(
            f"the checkpoint that the next resume takes, step {seen.pointer}, is not there",
            hint="m4ops rewind --to latest mends the pointer",
        )
    reasons: dict[int, list[str]] = defaultdict(list)
    for rule in (_laws, _wanted, _scored, _pending, _discarded):
        for index, reason in rule(ordered, seen, policy):
            reasons[index].append(reason)
    return tuple(Verdict(c, tuple(dict.fromkeys(reasons[i]))) for i, c in enumerate(ordered))


# -- rules -----------------------------------------------------------------------------------------------


def _laws(ordered: Sequence[Candidate], seen: Seen, policy: Policy) -> Reasons:
    newest = max((c.saved for c in ordered if c.saved is not None), default=seen.now)
    kept = [i for i, c in enumerate(ordered) if not c.branch and c.step <= seen.pointer and _usable(c)]
    yield from ((index, "one of the last two of the kept branch") for index in kept[-2:])
    yield from ((index, "the last one that was verified") for index in [i for i in kept if ordered[i].sound][-1:])
    for index, candidate in enumerate(ordered):
        if candidate.step == seen.pointer and not candidate.branch:
            yield index, "the next resume takes it"
        if candidate.step in seen.pins:
            yield index, "pinned"
        if candidate.sound is False:
            yield index, "verify-checkpoint found it damaged: look, then remove it yourself"
        if not candidate.complete and _young(candidate, seen.now, newest, YOUNG):
            yield index, "unfinished: it may still be being saved"
        if candidate.step > seen.pointer and not candidate.branch and _young(candidate, seen.now, newest, YOUNG):
            yield index, "beyond the pointer, and new"
        yield from ((index, work) for work in _in_work(candidate))


def _wanted(ordered: Sequence[Candidate], seen: Seen, policy: Policy) -> Reasons:
    """`last`, `every` and `around incidents`, of complete checkpoints on the kept branch."""
    kept = [i for i, c in enumerate(ordered) if not c.branch and _usable(c) and c.step <= seen.pointer]
    steps = [ordered[i].step for i in kept]
    for index in kept[-policy.last :]:
        yield index, f"one of the last {policy.last}"
    for index, step in zip(kept, steps, strict=True):
        if policy.every and step % policy.every == 0:
            yield index, f"every {policy.every} steps"
    for incident in sorted(seen.incidents) if policy.incidents else ():
        before, after = bisect_left(steps, incident) - 1, bisect_right(steps, incident)
        at = range(bisect_left(steps, incident), after)
        for place in (before, *at, after):
            if 0 <= place < len(kept):
                yield kept[place], f"around the incident at step {incident}"


def _scored(ordered: Sequence[Candidate], seen: Seen, policy: Policy) -> Reasons:
    places = {c.step: i for i, c in enumerate(ordered) if not c.branch and _usable(c)}
    for best in policy.best:
        values = {
            step: value for step, name, value in seen.scores if name == best.name and step in places and value == value
        }
        if not values:
            known = ", ".join(sorted({name for _, name, _ in seen.scores})[:8]) or "none at all"
            raise Refused(f"no checkpoint has a score of {best.name!r}", hint=f"there are: {known} (m4ops evals)")
        ranked = sorted(values, key=lambda step: (-values[step] if best.highest else values[step], -step))
        for step in ranked[: best.count]:
            yield places[step], f"{'best' if best.highest else 'lowest'} {best.count} by {best.name}"


def _pending(ordered: Sequence[Candidate], seen: Seen, policy: Policy) -> Reasons:
    """What must happen to a complete checkpoint before it may go."""
    for index, candidate in enumerate(ordered):
        if policy.uploaded and candidate.complete and "finished-upload-checkpoint" not in candidate.markers:
            yield index, "not uploaded yet"
        done = any(m.startswith("run_evals_") and m.endswith("_done") for m in candidate.markers)
        if (
            policy.evaluated
            and candidate.complete
            and not done
            and (candidate.branch or candidate.step not in seen.evaluated)
        ):
            yield index, "not evaluated yet"


def _discarded(ordered: Sequence[Candidate], seen: Seen, policy: Policy) -> Reasons:
    newest = max((c.saved for c in ordered if c.saved is not None), default=seen.now)
    for index, candidate in enumerate(ordered):
        if candidate.branch and _young(candidate, seen.now, newest, policy.discarded):
            yield index, f"discarded less than {policy.discarded / DAY:g} days ago: its rewind can be undone"


def _usable(candidate: Candidate) -> bool:
    """Whether a resume could take it, as far as is known."""
    return candidate.complete and candidate.sound is not False


def _young(candidate: Candidate, now: float, newest: float, limit: float) -> bool:
    """Younger than the limit by this clock or by the newest checkpoint's; one without a time may be young."""
    return candidate.saved is None or min(now, newest) - candidate.saved < limit


def _in_work(candidate: Candidate) -> Iterator[str]:
    markers = set(candidate.markers)
    for started, finished in _IN_WORK.items():
        if started in markers and finished not in markers:
            yield f"{started} is set: somebody works on it, or died (then remove it)"
    for marker in sorted(markers):
        if marker.startswith("start_run_evals_") and f"{marker.removeprefix('start_')}_done" not in markers:
            yield f"{marker} is set: an evaluation runs, or died (then remove it)"


def _with_rule(made: Policy, rule: str) -> Policy:
    match re.findall(r"\S+", rule):
        case ["last", count] if count.isdigit():
            return replace(made, last=int(count))
        case ["every", count, *rest] if count.isdigit() and int(count) and rest in ([], ["steps"]):
            return replace(made, every=int(count))
        case ["best" | "lowest" as which, count, "by", *name] if count.isdigit() and int(count) and name:
            return replace(made, best=(*made.best, Best(int(count), " ".join(name), which == "best")))
        case ["around", "incidents"]:
            return replace(made, incidents=True)
        case ["until", "uploaded"]:
            return replace(made, uploaded=True)
        case ["until", "evaluated"]:
            return replace(made, evaluated=True)
        case ["discarded", count, "days" | "day"] if re.fullmatch(r"\d+(\.\d+)?", count):
            return replace(made, discarded=float(count) * DAY)
    raise BadInput(f"`{rule}` is no rule", hint="rules: " + ", ".join(RULES))
