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
UNREAD = "unread"

Places = Mapping[str, Any]
"""Of each file where reading stopped: device, inode, offset. Under `UNREAD` what could not be read: of each kind of file
which one, why, and whether it is lines that were torn."""


def read_new(folder: Path, places: Places) -> tuple[Iterator[Measure], dict[str, Any]]:
    """What was written since `places`, and a dict that holds the places for the next time once all is consumed.

    Of each kind the newest file is read: every job has its own. What could not be read is in the places (`unread`): a file
    until it can be, torn lines until a later look finds whole ones only.
    """
    after: dict[str, Any] = {}
    return _all(folder, places, after), after


def unread(places: Places) -> tuple[tuple[str, str], ...]:
    """The files that could not be read, or not whole, and why."""
    return tuple((file, why) for file, why, _ in _troubles(places).values())


def read_whole(file: Path) -> tuple[list[Measure], tuple[tuple[str, str], ...]] | None:
    """All of one file's series from its begin, and what could not be read; None if its name is none of theirs.

    Raises OSError.
    """
    kind = next((kind for kind, read in KINDS.items() if read is _inside and file.name.endswith(kind)), None)
    if kind is None:
        return None
    info, after = file.stat(), dict[str, Any]()
    found = list(_file(file, kind, [info.st_dev, info.st_ino, 0], after))
    with file.open("rb") as handle:
        handle.seek(after[file.name][2])
        rest = handle.read()  # nobody writes on: what has no line's end is a line, or torn
    if (row := _row(rest)) is not None:
        found += _inside(row, str(file))
    elif rest.strip() and not unread(after):
        _note(after, kind, file, f"its last line is torn, at byte {after[file.name][2]}", torn=True)
    return found, unread(after)


def _troubles(places: Places) -> dict[str, list[Any]]:
    kept = places.get(UNREAD)
    return dict(kept) if isinstance(kept, Mapping) else {}


def _all(folder: Path, places: Places, after: dict[str, Any]) -> Iterator[Measure]:
    troubles = _troubles(places)
    if troubles:
        after[UNREAD] = troubles
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        after.update({**places, UNREAD: troubles})
        _note(after, "", folder, error.strerror or str(error))
        return
    troubles.pop("", None)
    for kind in KINDS:
        file = folder / f"*{kind}"
        try:
            files = (folder / name for name in names if name.endswith(kind))
            newest = max(files, key=lambda p: (p.stat().st_mtime, p.name), default=None)
            if newest is None:
                troubles.pop(kind, None)
                continue
            file = newest
            yield from _file(file, kind, places.get(file.name), after)
        except FileNotFoundError:
            troubles.pop(kind, None)
        except OSError as error:
            _note(after, kind, file, error.strerror or str(error))
            if file.name in places:
                after[file.name] = places[file.name]
    if not after.get(UNREAD, True):
        del after[UNREAD]


def _note(after: dict[str, Any], kind: str, file: Path, why: str, torn: bool = False) -> None:
    after.setdefault(UNREAD, {})[kind] = [str(file), why, torn]


Row = dict[str, Any]


def _file(file: Path, kind: str, place: Any, after: dict[str, Any]) -> Iterator[Measure]:
    with file.open("rb") as handle:
        info = os.fstat(handle.fileno())
        same = isinstance(place, list) and place[:2] == [info.st_dev, info.st_ino] and place[2] <= info.st_size
        offset = int(place[2]) if same else max(0, info.st_size - FIRST)
        cut = not same and offset > 0
        handle.seek(offset)
        rest, whole, torn = b"", 0, list[int]()
        while block := handle.read(min(BLOCK, max(0, info.st_size - offset - len(rest)))):
            *lines, rest = (rest + block).split(b"\n")
            for i, line in enumerate(lines):
                if (row := _row(line)) is not None and not (cut and i == 0):
                    whole += 1
                    yield from KINDS[kind](row, str(file))
                elif line.strip() and not (cut and i == 0):
                    torn.append(offset)
                offset += len(line) + 1
            cut = cut and not lines
        after[file.name] = [info.st_dev, info.st_ino, offset]
        _judge(file, kind, whole, torn, after)


def _judge(file: Path, kind: str, whole: int, torn: list[int], after: dict[str, Any]) -> None:
    """Note the torn lines of a look; forget those of an earlier one where this one found whole lines only."""
    if torn:
        _note(
            after, kind, file, f"{len(torn)} of {whole + len(torn)} lines are torn, from byte {torn[0]} on", torn=True
        )
        return
    before = after.get(UNREAD, {}).get(kind)
    if before and (whole or not before[2]):
        del after[UNREAD][kind]


def _row(line: bytes) -> Row | None:
    """The object of one line; a torn one has none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


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
