"""What the chronicle of the 80B run tells (huggingface/m4-logs), replayed on series of those shapes made here.

The level is near 1.65, the noise 0.012, and losses are printed as bf16 means; a row is a logged step. What it teaches: "a spike
(even a large one) that tends to recover is when it happens instantly", and what climbs slowly does not come back.
"""

import random
from collections.abc import Callable, Sequence

import pytest
from test_detectors import bf16, healthy, series

from ops.detectors.replay import Raised, replay

START = 700
"""Rows before the incident."""


def run(shape: Callable[[int], float], rows: int, seed: int) -> list[float]:
    """A quiet run with what `shape` adds, by rows since the incident began."""
    draw = random.Random(seed)
    quiet = [1.65 + 1.5 / (1 + i / 12) + draw.gauss(0, 0.012) for i in range(START + rows)]
    return [bf16(loss + (shape(i - START) if i >= START else 0.0)) for i, loss in enumerate(quiet)]


def told(losses: Sequence[float]) -> list[Raised]:
    return [r for r in replay(series(losses), healthy()) if r.finding.kind.startswith("loss-")]


HEALED: dict[str, Callable[[int], float]] = {
    "a spike to 2.1 that is back after 20 steps": lambda i: 0.5 * 0.85**i,
    "a spike to 7 at once": lambda i: 5.4 * 0.8**i,
    "one that takes its time, straight down": lambda i: max(0.0, 4.0 - 0.08 * i),
    "two of them, one behind the other": lambda i: 0.9 * 0.75**i + (2.4 * 0.75 ** (i - 35) if i >= 35 else 0.0),
    "up within ten steps, down in twenty": lambda i: 1.3 * min(i / 10, max(0.0, 1 - (i - 10) / 20)),
}
DIVERGED: dict[str, tuple[Callable[[int], float], int]] = {
    # people rolled back some 100 rows later
    "slow for 30 steps, then to 4.4": (lambda i: 0.002 * i if i < 30 else min(2.7, 0.06 * (i - 29)), 60),
    # 220 rows later
    "0.03 more after an Xid 64, then 0.05": (lambda i: 0.03 if i < 60 else 0.05, 100),
    "up at once, and it stays": (lambda i: 1.5, 30),
    "up and down without end": (lambda i: 1.2 + 0.6 * (-1) ** (i // 4), 40),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", HEALED)
def test_a_spike_that_heals_is_told_and_never_a_reason_to_rewind(shape: str, seed: int) -> None:
    raised = told(run(HEALED[shape], 200, seed))
    assert raised
    assert raised[0].row <= START + 6
    assert {r.finding.kind for r in raised} == {"loss-spike"}
    assert not [a for r in raised for a in r.finding.actions if "rewind" in a]
    assert all(r.resolved_row is not None and r.resolved_row <= START + 90 for r in raised)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("shape", DIVERGED)
def test_a_divergence_is_named_before_people_named_it(shape: str, seed: int) -> None:
    rises, rows = DIVERGED[shape]
    raised = told(run(rises, 220, seed))
    assert raised[0].row >= START
    named = [r for r in raised if r.finding.kind == "loss-divergence"]
    assert named
    assert named[0].row <= START + rows
    assert any("m4ops rewind --to" in action for action in named[0].finding.actions)


def test_saw_teeth_at_epochs_and_a_learning_rate_in_steps_are_no_alarm() -> None:
    """Each epoch begins 0.1 lower and climbs a little; at each LR step the loss falls by 0.2 for good."""
    draw = random.Random(9)
    teeth = [2.9 - 0.1 * (i // 200) + 0.015 * (i % 200) / 200 + draw.gauss(0, 0.02) for i in range(1600)]
    assert told(teeth) == []
    steps = [3.0 - 0.2 * (i // 300) + draw.gauss(0, 0.02) for i in range(1500)]
    assert told(steps) == []


def test_where_a_row_is_logged_every_600_steps_one_far_row_is_enough() -> None:
    losses = [2.4 + 3 / (1 + i / 5) + random.Random(i).gauss(0, 0.01) for i in range(120)]
    losses[90] += 2.0
    (raised,) = told(losses)
    assert (raised.finding.kind, raised.row) == ("loss-spike", 90)
