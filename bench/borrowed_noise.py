"""What is told of fields other than the loss, with real losses as their noise.

    python bench/borrowed_noise.py FOLDER

FOLDER holds healthy loss series, one `name.csv` (`step,loss[,grad_norm,lr]`) each; where it has an `events.json`, only those
without events are taken. Public logs with throughput, several fields or data sets are rare, so each series lends its
noise: as a field of its own beside a job that resumes (`field-moved`, `data-repeated`), as one of several data sets
(`dataset-spike`), as the jitter of the seconds a step takes (`slow-down`), its gradient norm as a module's
(`series-explosion`). One line a kind: false alarms of the series as they are, and how many changes put into them are found.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from msgspec.structs import replace

from ops.detectors.replay import replay, replay_series
from ops.logs.tables import read_table
from ops.model import LogView, Measure, Run, Sample, Snapshot, Unknown

MOST, EVERY = 12_000, 1_000
"""Rows that are taken of a series, and rows of a job until it ends and another resumes."""
BEFORE, AFTER = 400, 100
"""Rows around a change that is put in."""
SECONDS = 60.0
"""That a step takes."""


def picture() -> Snapshot:
    none, log = Unknown("made here"), LogView(Path("log"), 0, 0.0, (), ())
    return Snapshot(Run(Path(), "bench", log=log.path), 0.0, "", none, none, none, log, none, ())


def told(rows: Iterable[Sample], kind: str, since: int = 0) -> int:
    """How often a kind is raised from a row on."""
    return sum(raised.finding.kind == kind and raised.row >= since for raised in replay(rows, picture()))


def jobs(losses: Sequence[float], fields: Sequence[float], every: int) -> Iterator[Sample]:
    """A run in which a new job goes on after so many rows: its clock begins anew."""
    for i, loss in enumerate(losses):
        field = {"image_to_text_ratio": fields[i]} if i < len(fields) else {}
        yield Sample(10 * (i + 1), loss, 1e-4, i + 1, 100 * i, elapsed=30.0 * (1 + i % every), fields=field)


def timed(losses: Sequence[float], factor: float = 1.0, since: int = 0) -> Iterator[Sample]:
    """Steps whose seconds waver as the losses do around their trend; from a row on they take longer."""
    clock = 0.0
    for i, loss in enumerate(losses):
        usual = median(losses[max(0, i - 25) : i + 26])
        clock += SECONDS * max(0.2, loss / usual) * (factor if i >= since else 1.0)
        yield Sample(i + 1, 2.0, line=i + 1, offset=100 * i, elapsed=clock)


def parts(
    series: dict[str, list[float]], low: int, high: int, risen: str = "", factor: float = 1.0
) -> Iterator[Sample]:
    """Rows of a run whose data sets are the series; one of them is higher for fifteen rows."""
    for i in range(low, high):
        of_row = {f"per_token_loss/{name}": losses[i] for name, losses in series.items()}
        whole = sum(of_row.values()) / len(of_row)
        if BEFORE <= i - low < BEFORE + 15 and risen:
            of_row[f"per_token_loss/{risen}"] *= factor
        yield Sample(i + 1, whole, line=i + 1, offset=100 * i, fields=of_row)


def norms(values: Sequence[float], factor: float = 1.0, since: int = 0) -> Iterator[Measure]:
    for i, value in enumerate(values):
        yield Measure(i + 1, "model.layers.0.weight", "hp_grad", value * (factor if i >= since else 1.0))


def places(length: int) -> range:
    """Rows at which a change is put in."""
    return range(EVERY + BEFORE, length - AFTER, EVERY)


class Tally:
    """Counts by kind: false alarms and rows; by change: found and put in."""

    def __init__(self) -> None:
        self.false: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.found: dict[str, list[int]] = defaultdict(lambda: [0, 0])

    def quiet(self, kind: str, alarms: int, rows: int) -> None:
        self.false[kind][0] += alarms
        self.false[kind][1] += rows

    def changed(self, what: str, seen: int) -> None:
        self.found[what][0] += bool(seen)
        self.found[what][1] += 1


def of_fields(losses: Sequence[float], fields: Sequence[float], tally: Tally) -> None:
    """A resume every thousand rows; then one with a change."""
    rows = min(len(losses), len(fields))
    for kind in ("field-moved", "data-repeated"):
        tally.quiet(kind, told(jobs(losses[:rows], fields, EVERY), kind), rows)
    for at in places(rows):
        before, after = slice(at - BEFORE, at), slice(at, at + AFTER)
        better = [*losses[before], *(0.95 * loss for loss in losses[after])]
        moved = [*fields[before], *(1.2 * field for field in fields[after])]
        run = list(jobs(better, moved, BEFORE))
        tally.changed("data-repeated: loss - 5 %", told(run, "data-repeated", BEFORE))
        tally.changed("field-moved: field + 20 %", told(run, "field-moved", BEFORE))


def of_pace(losses: Sequence[float], tally: Tally) -> None:
    tally.quiet("slow-down", told(timed(losses), "slow-down"), len(losses))
    for at in places(len(losses)):
        late = timed(losses[at - 2 * BEFORE : at + AFTER], 1.08, 2 * BEFORE)
        tally.changed("slow-down: steps + 8 %", told(late, "slow-down", 2 * BEFORE))


def of_datasets(series: dict[str, list[float]], tally: Tally) -> None:
    length = min(map(len, series.values()))
    tally.quiet("dataset-spike", told(parts(series, 0, length), "dataset-spike"), length * len(series))
    for at in places(length):
        for name in series:
            run = parts(series, at - BEFORE, at + AFTER, name, 1.3)
            tally.changed("dataset-spike: one + 30 %", told(run, "dataset-spike", BEFORE))


def of_norms(values: Sequence[float], tally: Tally) -> None:
    tally.quiet("series-explosion", len(replay_series(norms(values), (), picture())), len(values))
    for at in places(len(values)):
        risen = replay_series(norms(values[at - BEFORE : at + 4], 10.0, BEFORE), (), picture())
        tally.changed("series-explosion: norm x 10", sum(raised.row >= BEFORE for raised in risen))


def main(folder: Path) -> None:
    samples, tally = healthy(folder), Tally()
    series = {name: [s.loss for s in rows] for name, rows in samples.items()}
    lent = list(series.values())
    for i, losses in enumerate(lent):
        of_fields(losses, lent[(i + 1) % len(lent)], tally)
        of_pace(losses, tally)
    of_datasets(series, tally)
    for rows in samples.values():
        of_norms([s.grad_norm for s in rows if s.grad_norm], tally)
    for kind, (alarms, among) in tally.false.items():
        print(f"{kind:20} {alarms} false in {among} rows = {1e4 * alarms / max(1, among):.2f} per 10k")
    for what, (seen, put_in) in sorted(tally.found.items()):
        print(f"{what:30} found {seen}/{put_in}")


def healthy(folder: Path) -> dict[str, list[Sample]]:
    """The series of a folder in which nothing happens, and which are long enough."""
    labels = folder / "events.json"
    events = json.loads(labels.read_text())["series"] if labels.is_file() else {}
    files = [file for file in sorted(folder.glob("*.csv")) if not events.get(file.stem)]
    all_ = {
        file.stem: [replace(s, fields={}) for s in table.samples][:MOST]
        for file in files
        if (table := read_table(file))
    }
    return {name: rows for name, rows in all_.items() if len(rows) > 2 * EVERY}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
