"""Does `m4ops prune` ever let go what its laws protect, and how long does it think about 10,000 checkpoints?

    python bench/retention.py [trees]

First a property run over so many (default: 100,000) random runs: rewinds, pins, missing uploads and evaluations, work in
progress, damaged and unfinished saves, clocks that are wrong, any policy. The laws stand a second time in
`tests/test_prune.py`, whose test this runs. Then the plan of one prune of 10,000 checkpoints: the median of five.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from ops.interventions.prune import to_trash
from ops.interventions.retention import Candidate, Seen, judge, policy
from ops.model import Run, Snapshot, Unknown

TEST = Path(__file__).parent.parent / "tests" / "test_prune.py"
COUNT, NOW, HOUR = 10_000, 1_700_000_000.0, 3600.0
RULES = ["last 3", "every 1000", "best 5 by vqa", "around incidents", "until uploaded", "until evaluated"]


def property_run(trees: str) -> None:
    start = time.perf_counter()
    argv = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TEST), "-k", "never_goes")
    done = subprocess.run(argv, env={**os.environ, "M4OPS_CASES": trees}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout[-4000:])
    print(f"{int(trees):,} random runs: nothing protected went ({time.perf_counter() - start:.0f} s)", flush=True)


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
    property_run(sys.argv[1] if len(sys.argv) > 1 else "100000")
    print(f"the plan for {COUNT:,} checkpoints: {statistics.median(planned() for _ in range(5)):.3f} s")


if __name__ == "__main__":
    main()
