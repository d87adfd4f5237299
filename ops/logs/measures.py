"""What m4's trainer logs beside its log, a JSON object a line: parameters, gradients, activations, each data set's loss.

`logs/{job_id}_logs.jsonl` has the loss of each data set (`per_token_loss/cm4`), which a progress line need not tell.
`logs/{job_id}_logs_params_grads_stats.jsonl` and `logs/{job_id}_logs_activations.jsonl` (huggingface/smollm,
vision/m4/training/trainer.py, `_log_deepspeed_training_stats` and `_log_activations`): `name`, `step`, and of each series
(`hp`, `hp_grad`, `exp_avg_sq`, `output[0]`, …) what `get_stats` takes, of which `…_abs_var_max` is read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ops.fields import dataset
from ops.model import DATASET, Measure

LARGEST = "_abs_var_max"
STEP = re.compile(r"\s*(\d+)")
"""`iteration` is the rendered progress, ` 4875/500000   0%`."""
FIRST = 32 << 20
"""Bytes of a file's end that a first look reads: it makes a habit of each series."""
BLOCK = 4 << 20

Places = Mapping[str, Any]
"""Of each file where reading stopped: device, inode, offset."""


def read_new(folder: Path, places: Places) -> tuple[Iterator[Measure], dict[str, Any]]:
    """What was written since `places`, and a dict that holds the places for the next time once all is consumed.

    Of each kind the newest file is read: every job has its own. What cannot be read is passed over.
    """
    after: dict[str, Any] = {}
    return _all(folder, places, after), after


def _all(folder: Path, places: Places, after: dict[str, Any]) -> Iterator[Measure]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for kind, read in KINDS.items():
        with suppress(OSError):
            files = (folder / name for name in names if name.endswith(kind))
            file = max(files, key=lambda p: (p.stat().st_mtime, p.name), default=None)
            if file is not None:
                yield from _file(file, read, places.get(file.name), after)


Row = dict[str, Any]


def _file(
    file: Path, read: Callable[[Row, str], Iterator[Measure]], place: Any, after: dict[str, Any]
) -> Iterator[Measure]:
    with file.open("rb") as handle:
        info = os.fstat(handle.fileno())
        same = isinstance(place, list) and place[:2] == [info.st_dev, info.st_ino] and place[2] <= info.st_size
        offset = int(place[2]) if same else max(0, info.st_size - FIRST)
        cut = not same and offset > 0
        handle.seek(offset)
        rest = b""
        while block := handle.read(min(BLOCK, max(0, info.st_size - offset - len(rest)))):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines[1:] if cut else lines:
                if row := _row(line):
                    yield from read(row, str(file))
            offset, cut = offset + sum(len(line) + 1 for line in lines), cut and not lines
        after[file.name] = [info.st_dev, info.st_ino, offset]


def _row(line: bytes) -> Row:
    """The object of one line; a torn one has none."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}


def _inside(row: Row, file: str) -> Iterator[Measure]:
    """The series of one module."""
    if not isinstance(row.get("name"), str) or not isinstance(row.get("step"), int | float):
        return
    for key, value in row.items():
        if key.endswith(LARGEST) and isinstance(value, int | float):
            yield Measure(int(row["step"]), row["name"], key.removesuffix(LARGEST), float(value), file)


def _losses(row: Row, file: str) -> Iterator[Measure]:
    """The loss of each data set."""
    step = STEP.match(str(row.get("iteration", "")))
    if step is None or row.get("set", "train") != "train":
        return
    for key, value in row.items():
        if (name := dataset(key)) and isinstance(value, int | float):
            yield Measure(int(step[1]), name, DATASET, float(value), file)


KINDS: Mapping[str, Callable[[Row, str], Iterator[Measure]]] = {
    "logs_params_grads_stats.jsonl": _inside,
    "logs_activations.jsonl": _inside,
    "_logs.jsonl": _losses,
}
"""How the files are called, and what reads their lines."""
