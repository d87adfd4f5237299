"""Recall and false alarms of each detector on a folder of labelled loss series.

    python bench/detectors.py FOLDER [EVERY]

FOLDER holds `events.json` ({"series": {name: [{"kind", "row_start", "row_end"}, …]}}; kinds: spike-recovered,
divergence, nan must be told; bump may be; blip must not be) and one `name.csv` (`step,loss[,grad_norm,lr]`) for each.
An event is found if an alarm is raised in its rows, or up to 3 after. An alarm is false outside all events, each
widened by 3 rows before and 10 rows and 30 % after (a divergence that lasts to the end: to the end). Alarms less than 20
rows apart are one. One line a detector and kind of finding; `loss` as a whole is the last.

EVERY: as if each run had logged only one row of so many: once from each of the first ones on. An event of which but one row is left
may be told then, and need not.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ops import detectors
from ops.detectors.replay import Raised, replay
from ops.logs.tables import read_table
from ops.model import LogView, Run, Sample, Snapshot, Unknown

NEAR, PATIENCE = 20, 40
Event = dict[str, object]


@dataclass
class Score:
    """What one kind of alarm reached. `found` counts events of any kind that must be told."""

    found: int = 0
    events: int = 0
    false: int = 0
    blips: int = 0
    rows: int = 0


def thinned(events: list[Event], every: int, first: int) -> list[Event]:
    """The events as those rows show them."""
    found = []
    for event in events:
        low = max(0, -(-(int(str(event["row_start"])) - first) // every))
        high = (int(str(event["row_end"])) - first) // every
        seen = {**event, "row_start": low, "row_end": high}
        alone = high == low and every > 1 and event["kind"] != "blip"
        found += [{**seen, "kind": "bump"} if alone else seen] if low <= high else []
    return found


def judged(file: Path, samples: tuple[Sample, ...]) -> tuple[list[Raised], int]:
    """The findings on a series, and its length."""
    log = LogView(file, 0, 0.0, samples, ())
    none = Unknown("one file")
    picture = Snapshot(Run(file.parent, file.stem, log=file), 0.0, "", none, none, none, log, none, ())
    return replay(detectors.lines(log), picture), len(samples)


def covered(events: list[Event], rows: int) -> list[str]:
    """What each row belongs to: `event`, `blip` or ``."""
    cover = [""] * rows
    for event in sorted(events, key=lambda e: e["kind"] != "blip"):
        low, high = int(str(event["row_start"])), int(str(event["row_end"]))
        if event["kind"] == "blip":
            low, high, what = low, high + 2, "blip"
        else:
            lasting = event["kind"] == "divergence" and high >= rows - 5
            low, high, what = low - 3, rows if lasting else high + 10 + int(0.3 * (high - low)), "event"
        cover[max(0, low) : high] = [what] * len(cover[max(0, low) : high])
    return cover


def score(alarms: list[int], events: list[Event], rows: int, into: Score) -> None:
    """Add what the alarms of one series are worth."""
    cover, into.rows = covered(events, rows), into.rows + rows
    for event in events:
        if event["kind"] not in ("bump", "blip"):
            low, high = int(str(event["row_start"])), int(str(event["row_end"]))
            into.events += 1
            into.found += any(low <= row < min(rows, high + 3) for row in alarms)
    before = -NEAR - 1
    for row in sorted(alarms):
        if row - before > NEAR:
            into.false += cover[row] == ""
            into.blips += cover[row] == "blip"
        before = row


def verdicts(found: list[Raised], events: list[Event], rows: int) -> tuple[int, int, int]:
    """Of one series: events called what they are, events that were called anything, divergences told of nothing."""
    right = called = 0
    diverges = [False] * rows
    for event in events:
        low, high = int(str(event["row_start"])), int(str(event["row_end"]))
        wanted = {"spike-recovered": "loss-spike", "divergence": "loss-divergence"}.get(str(event["kind"]))
        told = [r.finding.kind for r in found if low <= r.row <= max(low + PATIENCE, high)]
        right, called = right + (told[-1:] == [wanted]), called + bool(wanted and told)
        if event["kind"] == "divergence":
            diverges[max(0, low - 3) :] = [True] * len(diverges[max(0, low - 3) :])
    wrong = sum(r.finding.kind == "loss-divergence" and not diverges[r.row] for r in found)
    return right, called, wrong


def main(folder: Path, every: int = 1) -> None:
    try:
        whole = json.loads((folder / "events.json").read_text())["series"]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise SystemExit(f"{folder} is no folder of labelled series: events.json: {error!r}\n{__doc__}") from error
    labelled: dict[str, list[Event]] = {}
    runs: dict[str, tuple[list[Raised], int]] = {}
    for name in whole:
        file = folder / f"{name}.csv"
        table = read_table(file) if file.is_file() else None
        for first in range(every) if table else ():
            labelled[f"{name} {first}"] = thinned(whole[name], every, first)
            runs[f"{name} {first}"] = judged(file, table.samples[first::every] if table else ())
    names = {(raised.detector, raised.finding.kind) for found, _ in runs.values() for raised in found}
    groups = {f"{detector}: {kind}": {kind} for detector, kind in sorted(names)}
    groups["all about the loss"] = {kind for _, kind in names if kind.startswith("loss-")}
    scores: dict[str, Score] = defaultdict(Score)
    for name, (found, rows) in runs.items():
        for group, wanted in groups.items():
            alarms = [raised.row for raised in found if raised.finding.kind in wanted]
            score(alarms, labelled[name], rows, scores[group])
    print(f"{'':28}{'recall':>16}{'false per 10k rows':>22}{'blips':>8}")
    for group, s in scores.items():
        recall = f"{s.found}/{s.events} = {s.found / max(1, s.events):.2f}"
        print(f"{group:28}{recall:>16}{f'{s.false} = {1e4 * s.false / max(1, s.rows):.2f}':>22}{s.blips:>8}")
    losses = {name: [r for r in found if r.finding.kind.startswith("loss-")] for name, (found, _) in runs.items()}
    named = [verdicts(losses[name], labelled[name], rows) for name, (_, rows) in runs.items()]
    right, called, wrong = (sum(column) for column in zip(*named, strict=True))
    print(f"called what they are: {right}/{called}; called a divergence though none: {wrong}")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not (sys.argv[2:] or ["1"])[0].isdigit():
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
