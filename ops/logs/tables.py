"""Logged points from files that are no log: CSV, JSON lines, and the Trainer's `trainer_state.json`.

m4's `{job_id}_logs.jsonl`: huggingface/smollm, vision/m4/training/trainer.py. `trainer_state.json`:
huggingface/transformers, trainer_callback.py, `log_history`. wandb's history has `_step`, the table of one of its charts
`"Step","RUN - train/loss"` (docs.wandb.ai, Export table data).
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ops.errors import BadInput
from ops.fields import LOSS, NORM, RATE, STEP
from ops.logs.template import columns
from ops.model import Sample

WIDTH = 64 << 10
"""How much of a first line is looked at."""
TOTAL = re.compile(r"\s*(\d+)\s*/\s*(\d+)")
"""m4's `iteration` is the rendered progress, ` 4875/500000   0%`."""
HINTS = {
    ".csv": "name the columns in the first line: step,loss[,grad_norm,lr]; of a wandb chart export one run only",
    ".tsv": "name the columns in the first line: step and loss, parted by tabs",
    ".jsonl": 'each line is an object with "step" and "loss", and may have "grad_norm" and "lr"',
    ".json": 'a trainer_state.json has a list "log_history" of objects with "step" and "loss"',
}


class Table(Struct, frozen=True):
    """The logged points of a file, and where the rows are that tell of none because they are torn or say no number.

    A validation's row, which has no loss of the training, is none of those.
    """

    samples: tuple[Sample, ...]
    unread: tuple[str, ...] = ()


def read_table(path: Path) -> Table | None:
    """What a table says, or None if the file is a log. Raises BadInput for a table without losses."""
    suffix = path.suffix.lower()
    with path.open("rb") as opened:
        head = opened.readline(WIDTH)
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    suffix = suffix if suffix in READERS or not _names(head) else ".csv"
    reader = READERS.get(suffix)
    if reader is None:
        return None
    try:
        with path.open(encoding="utf-16" if wide else "utf-8-sig", errors="replace", newline="") as lines:
            read = list(reader(lines))
    except (ValueError, csv.Error) as error:
        raise BadInput(f"it is no {suffix.lstrip('.')}: {error}", str(path), HINTS[suffix]) from error
    samples = tuple(row for row in read if isinstance(row, Sample))
    unread = tuple(row for row in read if isinstance(row, str))
    if not samples:
        torn = f"; {len(unread)} could not be read, the first is {unread[0]}" if unread else ""
        raise BadInput(f"no row has a step and a loss{torn}", str(path), HINTS[suffix])
    return Table(samples, unread)


def _names(head: bytes) -> bool:
    """Is a file's first line that of a table, whatever the file is called?"""
    names = columns(head).names
    return len(names) > 1 and any(name in STEP for name in names) and any(name in LOSS for name in names)


def _csv(lines: Iterable[str]) -> Iterator[Sample | str]:
    """Of a table without a column of steps the rows are counted."""
    rows = iter(lines)
    head = next((row for row in rows if not row.startswith("#") or _names(row.encode())), "")
    named = columns(head.encode())
    counted = not any(name in STEP for name in named.names) and any(name in LOSS for name in named.names)
    parted = csv.reader(rows, delimiter=named.literal.decode())
    for cells in parted:
        said = named.said(cells)
        numbers = {name: number for name, cell in said.items() if (number := named.number(cell)) is not None}
        if cells:
            count = {"step": parted.line_num - 1} if counted else {}
            yield from _row({**said, **numbers, **count}, parted.line_num + 1, whole=len(cells) >= len(named.names))


def _jsonl(lines: Iterable[str]) -> Iterator[Sample | str]:
    """Several writers share such a file: a line may be torn."""
    for line, text in enumerate(lines, 1):
        try:
            row = json.loads(text)
        except ValueError:
            row = None
        if text.strip():
            yield from _row(row, line) if isinstance(row, dict) else (f"line {line}",)


def _state(lines: Iterable[str]) -> Iterator[Sample | str]:
    data = json.loads("".join(lines))
    rows = data.get("log_history") if isinstance(data, dict) else data
    total = data.get("max_steps") if isinstance(data, dict) else None
    for row in rows if isinstance(rows, list) else ():
        for found in _row(row, 0) if isinstance(row, dict) else (repr(row)[:60],):
            known = isinstance(found, Sample) and isinstance(total, int) and total > 0
            yield replace(found, total=total) if known and isinstance(found, Sample) else found


READERS: Mapping[str, Callable[[Iterable[str]], Iterator[Sample | str]]] = {
    ".csv": _csv,
    ".tsv": _csv,
    ".jsonl": _jsonl,
    ".json": _state,
}


def _row(row: Mapping[str, Any], line: int, whole: bool = True) -> Iterator[Sample | str]:
    """The sample of a row, or where one stands that has none but ought to; nothing of an evaluation's."""
    if any(str(row.get(key, "")).startswith(("val", "eval", "test")) for key in ("set", "split", "mode")):
        return
    if "train_runtime" in row:  # the Trainer's last row: its loss is the mean of all
        return
    if sample := _sample(row, line):
        yield sample
    elif not whole or (_says(row, LOSS) and _says(row, STEP)):
        yield f"line {line}" if line else repr(row)[:60]


def _says(row: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    """Does it have words or a number under one of the names?"""
    return any(isinstance(row.get(name), str | int | float) and str(row[name]).strip() for name in names)


def _sample(row: Mapping[str, Any], line: int) -> Sample | None:
    fields = {key: number for key, value in row.items() if (number := _number(value)) is not None}
    rendered = next((match for key in STEP if (match := TOTAL.match(str(row.get(key, ""))))), None)
    step = int(rendered[1]) if rendered else next((fields[key] for key in STEP if key in fields), None)
    loss = next((fields[key] for key in LOSS if key in fields), None)
    if step is None or loss is None or not math.isfinite(step):
        return None
    return Sample(
        step=int(step),
        loss=loss,
        lr=next((fields[key] for key in RATE if key in fields), None),
        line=line,
        offset=line,
        total=int(rendered[2]) if rendered else None,
        grad_norm=next((fields[key] for key in NORM if key in fields), None),
        fields=fields,
    )


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
