"""What a Trainer's checkpoints keep of what it logged, for a run whose log tells no step of its own, or that has none.

`trainer_state.json` has every row since step 0 in its `log_history`, as of the save; `save_state` writes one into the
output folder at the end (huggingface/transformers, trainer.py, `_save_checkpoint`; trainer_pt_utils.py). It is read once
a save, and it tells nothing of a job's being alive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from ops.errors import BadInput
from ops.model import Checkpoint, LogView, Run, Sample, Unknown

STATE = "trainer_state.json"
LAYOUT = "hf_trainer"


class Kept(Struct, frozen=True):
    """The rows of the newest one, and its time. `samples` stand before every byte of a log: offset -1, no line."""

    file: Path
    modified: float
    samples: tuple[Sample, ...]


class Fed(Struct, frozen=True):
    """How many rows of it the detectors have taken, and what they were."""

    rows: int = 0
    digest: str = ""


def read(run: Run, checkpoints: Sequence[Checkpoint] | Unknown | None) -> Kept | None:
    """The newest of a Trainer's run; None where there is none that can be read."""
    if run.layout.name != LAYOUT:
        return None
    from ops.logs.tables import read_table

    newest: tuple[float, Path] | None = None
    for file in (run.dir / STATE, *(c.path / STATE for c in checkpoints or ())):
        with suppress(OSError):
            newest = max(filter(None, (newest, (file.stat().st_mtime, file))))
    if newest is None:
        return None
    with suppress(OSError, BadInput):  # it is being saved, or nothing was logged before
        if table := read_table(newest[1]):
            return Kept(newest[1], newest[0], tuple(replace(s, line=0, offset=-1) for s in table.samples))
    return None


def shown(log: LogView | Unknown, kept: Kept | None) -> LogView | Unknown:
    """The log with the rows of a checkpoint, where it has none."""
    if kept is None or (isinstance(log, LogView) and log.samples):
        return log
    if isinstance(log, Unknown):
        log = LogView(kept.file, 0, kept.modified, (), ())
    return replace(log, samples=kept.samples, source=kept.file)


def fresh(rows: tuple[Sample, ...], fed: Fed) -> tuple[tuple[Sample, ...], Fed, bool]:
    """The rows that were not fed yet, and whether they go on from those; if not, training went back, and they are all."""
    goes_on = _digest(rows[: fed.rows]) == fed.digest or not fed.rows
    after = Fed(len(rows), _digest(rows))
    return rows[fed.rows if goes_on else 0 :], after, goes_on


def _digest(samples: Sequence[Sample]) -> str:
    return hashlib.sha256(repr([(s.step, s.loss, s.lr) for s in samples]).encode()).hexdigest()[:16]
