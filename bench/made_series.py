"""Labelled loss series for `bench/detectors.py`, made from a seed: the ones behind the figures of docs/monitor.md.

    python bench/made_series.py FOLDER

writes `events.json` and one `name.csv` a series: runs of several noises, log intervals and roundings, some healthy, some with
spikes that heal, divergences fast and slow, single outliers (blips), NaN, rewinds, data shards that end, LR steps.
"""

from __future__ import annotations

import json
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

ROWS = 3000
Event = dict[str, object]
Shape = Callable[[int], float]


def quiet(draw: random.Random, noise: float, tail: float, rounded: bool) -> list[float]:
    """A loss that falls as losses do; `tail` is how often the noise is three times itself."""
    losses = [
        1.7 + 6 * (1 + i / 12) ** -0.8 + draw.gauss(0, noise * (3 if draw.random() < tail else 1)) for i in range(ROWS)
    ]
    return [bf16(loss) if rounded else round(loss, 4) for loss in losses]


def bf16(value: float) -> float:
    """Eight bits of precision, printed with four decimals."""
    step = 2.0 ** (math.floor(math.log2(abs(value))) - 7)
    return round(round(value / step) * step, 4)


SPIKES: tuple[tuple[int, Shape], ...] = (
    (12, lambda i: 0.5 * 0.75**i),
    (20, lambda i: 3.0 * 0.8**i),
    (30, lambda i: 0.8 * min(i / 5, max(0.0, 1 - (i - 5) / 20))),
    (60, lambda i: 1.5 * (1 - i / 60)),
    (75, lambda i: 1.3 * min((i % 25) / 10, (25 - i % 25) / 15)),
    (90, lambda i: 4.0 * 0.7**i + 0.3 * 0.96**i),
)
"""How long, and how high: at once, slowly down, of three peaks, with a long tail."""
DIVERGENCES: tuple[Shape, ...] = (
    lambda i: min(5.0, 0.08 * i),
    lambda i: min(0.12, 0.0012 * i),
    lambda i: 1.5,
    lambda i: 0.002 * i if i < 30 else min(2.7, 0.06 * (i - 29)),
    lambda i: 0.8 + 1.2 * 0.8**i,
    lambda i: 0.9 + 0.6 * math.sin(i / 2),
)
"""Up row by row, by a few percent, in one jump, slowly and then fast; half way down again, and wavering up there."""


def add(losses: list[float], at: int, rows: int, shape: Shape) -> None:
    for i in range(min(rows, len(losses) - at)):
        losses[at + i] = round(losses[at + i] + shape(i), 4)


def event(kind: str, start: int, end: int) -> Event:
    return {"kind": kind, "row_start": start, "row_end": end}


def series(seed: int) -> tuple[list[float], list[Event]]:
    """One run, and what is in it."""
    draw = random.Random(seed)
    losses = quiet(draw, (0.004, 0.012, 0.03)[seed % 3], (0.0, 0.01)[seed % 2], rounded=seed % 4 == 0)
    events: list[Event] = []
    for at in range(300, 2500, 400) if seed % 5 else ():
        place = at + draw.randrange(100)
        length, shape = SPIKES[draw.randrange(len(SPIKES))]
        add(losses, place, length, shape)
        events.append(event("spike-recovered", place, place + length))
        blip = place + 200
        add(losses, blip, 1, lambda _: 0.1)
        events.append(event("blip", blip, blip))
    if seed % 3 == 1:
        add(losses, 2700, 300, DIVERGENCES[seed // 3 % len(DIVERGENCES)])
        events.append(event("divergence", 2700, ROWS - 1))
    elif seed % 7 == 2:
        losses[2800:2806] = [math.nan] * 6
        events.append(event("nan", 2800, 2805))
    return losses, events


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    labels: dict[str, list[Event]] = {}
    for seed in range(30):
        name = f"made-{seed:02d}"
        losses, labels[name] = series(seed)
        every = (1, 25, 600)[seed % 3]
        rows = [f"{every * (i + 1)},{loss}" for i, loss in enumerate(losses)]
        (folder / f"{name}.csv").write_text("\n".join(["step,loss", *rows]) + "\n")
    (folder / "events.json").write_text(json.dumps({"series": labels}, indent=1))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
