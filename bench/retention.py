"""Does `m4ops prune` ever let go what its laws protect, and how long does it think about 10,000 checkpoints?

    python bench/retention.py [trees]

First so many (default: 100,000) random runs are pruned: rewinds, pins, missing uploads and evaluations, work in progress,
damaged and unfinished saves, clocks that are wrong, any policy. The laws are those of `tests/test_prune.py`, where they
are written down a second time; there hypothesis looks for counterexamples. Then the plan of one prune of 10,000 checkpoints: the median of five.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import test_prune

from ops.errors import Refused
from ops.interventions.prune import to_trash
from ops.interventions.retention import DAY, Best, Candidate, Policy, Seen, judge, policy
from ops.model import Run, Snapshot, Unknown

MARKERS, TASKS, BRANCHES = test_prune.MARKERS, ("vqa", "ppl"), ("", "", "", "exp_1", "exp_2")
VALUES = (0.1, 0.5, 0.9, float("nan"), float("inf"))
COUNT, NOW, HOUR = 10_000, 1_700_000_000.0, 3600.0
RULES = ["last 3", "every 1000", "best 5 by vqa", "around incidents", "until uploaded", "until evaluated"]


def tree(draw: random.Random) -> tuple[list[Candidate], Seen, Policy]:
    """A run with rewinds, pins, missing uploads, odd clocks, and any policy."""
    now = NOW + draw.uniform(-40, 400) * DAY
    places = {(500 * draw.randrange(31), draw.choice(BRANCHES)) for _ in range(draw.randint(1, 40))}
    found = [
        Candidate(
            step, Path(f"/r/{branch}/opt_step-{step}"), branch, draw.random() < 0.8,
            None if draw.random() < 0.2 else NOW + draw.uniform(-60, 3) * DAY,
            tuple(draw.sample(MARKERS, draw.choice([0, 0, 1, 2]))), draw.choice([None, None, None, True, False]),
        )
        for step, branch in places
    ]  # fmt: skip
    steps = [c.step for c in found]
    own = [c.step for c in found if not c.branch] or [0]
    pins, incidents, evaluated = (frozenset(draw.choices(steps, k=draw.randint(0, 3))) for _ in range(3))
    scores = tuple((draw.choice(steps), draw.choice(TASKS), draw.choice(VALUES)) for _ in range(draw.randint(0, 8)))
    best = tuple(
        Best(draw.randint(1, 3), draw.choice(TASKS), draw.random() < 0.5) for _ in range(draw.choice([0, 0, 1, 2]))
    )
    wanted = Policy(
        draw.randint(2, 5), draw.choice([0, 0, 1000, 2500]), best, draw.random() < 0.5, draw.random() < 0.25,
        draw.random() < 0.25, draw.choice([0.0, DAY, 30 * DAY]),
    )  # fmt: skip
    return found, Seen(now, draw.choice(own), pins, incidents, scores, evaluated), wanted


def property_run(count: int) -> None:
    """No law is broken in any of so many random runs; a prune that is refused lets nothing go either."""
    draw, start, pruned, gone = random.Random(0), time.perf_counter(), 0, 0
    for number in range(count):
        found, seen, wanted = tree(draw)
        try:
            going = [v.candidate for v in judge(found, seen, wanted) if not v.stays]
        except Refused:
            continue
        broken = [c for c in going if test_prune.protected(c, found, seen, wanted)]
        if broken:
            raise SystemExit(f"run {number}: {broken} of {found} went, by {wanted} of {seen}")
        pruned, gone = pruned + 1, gone + len(going)
    took = time.perf_counter() - start
    print(
        f"{count:,} random runs, {pruned:,} pruned of {gone:,} checkpoints: nothing protected went ({took:.0f} s)",
        flush=True,
    )


def planned() -> float:
    """Seconds for the verdicts on 10,000 checkpoints and the plan that moves those that go."""
    unknown = Unknown("not needed")
    run = Run(Path("/r"), "tr_1")
    snapshot = Snapshot(run, NOW, "me", unknown, unknown, unknown, unknown, unknown, unknown)
    found = [
        Candidate(
            n, Path(f"/r/opt_step-{n}"), saved=NOW - HOUR * (2 * COUNT - n), markers=("finished-upload-checkpoint",)
        )
        for n in range(COUNT)
    ]
    scores = tuple((n, "vqa", n % 97 / 97) for n in range(COUNT))
    every = frozenset(range(COUNT))
    seen = Seen(NOW, COUNT - 1, frozenset(range(0, COUNT, 11)), frozenset(range(0, COUNT, 77)), scores, every)
    start = time.perf_counter()
    verdicts = judge(found, seen, policy(RULES))
    made = to_trash(snapshot, verdicts, RULES, "m4ops prune")
    took = time.perf_counter() - start
    assert len(made.actions) > COUNT // 2
    return took


def main() -> None:
    property_run(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
    print(f"the plan for {COUNT:,} checkpoints: {statistics.median(planned() for _ in range(5)):.3f} s")


if __name__ == "__main__":
    main()
