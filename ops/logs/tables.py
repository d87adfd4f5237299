"""Logged points from files that are no log: CSV, JSON lines, and the Trainer's `trainer_state.json`.

m4's `{job_id}_logs.jsonl`: huggingface/smollm, vision/m4/training/trainer.py. `trainer_state.json`:
huggingface/transformers, trainer_callback.py, `log_history`.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ops.errors import BadInput
from ops.fields import LOSS, NORM, RATE, STEP
from ops.model import Sample

TOTAL = re.compile(r"\s*(\d+)\s*/\s*(\d+)")
"""m4's `iteration` is the rendered progress, ` 4875/500000   0%`."""


def read_table(path: Path) -> tuple[Sample, ...] | None:
    """The logged points of a table, or None if the file is a log. Raises BadInput for a table without losses."""
    reader = _reader(path)
    if reader is None:
        return None
    try:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
            samples = tuple(reader(lines))
    except (ValueError, csv.Error) as error:
        raise BadInput(f"it is no {path.suffix.lstrip('.')}: {error}", str(path)) from error
    if not samples:
        raise BadInput("no row has a step and a loss", str(path), "name the columns step,loss[,grad_norm,lr]")
    return samples


def _reader(path: Path) -> Callable[[Iterable[str]], Iterator[Sample]] | None:
    return {".csv": _csv, ".jsonl": _jsonl, ".json": _state}.get(path.suffix.lower())


def _csv(lines: Iterable[str]) -> Iterator[Sample]:
    for line, row in enumerate(csv.DictReader(lines), 2):
        if sample := _sample({str(key).strip(): value for key, value in row.items()}, line):
            yield sample


def _jsonl(lines: Iterable[str]) -> Iterator[Sample]:
    """A torn line is passed over: several writers share such a file."""
    for line, text in enumerate(lines, 1):
        try:
            row = json.loads(text)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("set", "train") == "train" and (sample := _sample(row, line)):
            yield sample


def _state(lines: Iterable[str]) -> Iterator[Sample]:
    data = json.loads("".join(lines))
    rows = data.get("log_history", ()) if isinstance(data, dict) else data
    for row in rows:
        if isinstance(row, dict) and (sample := _sample(row, 0)):
            yield sample


def _sample(row: Mapping[str, Any], line: int) -> Sample | None:
    fields = {key: number for key, value in row.items() if (number := _number(value)) is not None}
    rendered = next((match for key in STEP if (match := TOTAL.match(str(row.get(key, ""))))), None)
    step = int(rendered[1]) if rendered else next((fields[key] for key in STEP if key in fields), None)
    loss = next((fields[key] for key in LOSS if key in fields), None)
    if step is None or loss is None or step != step:
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
    except ValueError:
        return None
