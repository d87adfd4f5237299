"""What a run's log, its statistics files and its evaluations say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

DATASET = "loss of a data set"
"""The `Measure.series` of one."""


class Sample(Struct, frozen=True):
    """One logged progress line."""

    step: int
    loss: float
    lr: float | None = None
    line: int = 0
    """1-based line number in the log."""
    offset: int = 0
    """Byte offset of the line in the log."""
    time: float | None = None
    elapsed: float | None = None
    """Seconds since the job started, as the trainer prints it."""
    total: int | None = None
    """The step at which training ends."""
    grad_norm: float | None = None
    fields: Mapping[str, float] = field(default_factory=dict)


class Measure(Struct, frozen=True):
    """One value of one series of one module of the model, as a trainer's statistics file tells it; or of a data set."""

    step: int
    module: str
    series: str
    """`hp` (the parameter), `hp_grad`, `exp_avg_sq`, `output[0]`, …; `DATASET`: `module` is a data set."""
    value: float
    """The largest absolute value in it; of a data set its loss."""
    file: str = ""


class LogEvent(Struct, frozen=True):
    """A log line that is no progress but means something: what kind, where, and the value it carries."""

    kind: str
    """`node-failure`, `saved`, `wandb-id`, `kill-switch`, `sigterm`, `time-over`, `max-steps`, `cancelled`, `traceback`, …"""
    line: int
    offset: int
    text: str
    value: str = ""
    node: str = ""
    rank: int | None = None
    job: str = ""


class EvalLine(Struct, frozen=True):
    """One line of the evaluations file. `step` is None for a torn or foreign line, with `problem` saying why."""

    line: int
    step: int | None
    task: str = ""
    score: str = ""
    shots: int | None = None
    problem: str = ""


class Evals(Struct, frozen=True):
    """The evaluations file: its content's fingerprint, its lines, and the archives beside it."""

    path: Path
    fingerprint: str
    lines: tuple[EvalLine, ...]
    archives: tuple[int, ...] = ()
    """The K of each `{run}_evaluations_archive_exp_{K}.jsonl`."""


LOOK = 1 << 18
"""How many bytes of a log's end a look reads."""


class LogView(Struct, frozen=True):
    """What the log says, in order of its lines."""

    path: Path
    size: int
    modified: float
    samples: tuple[Sample, ...]
    events: tuple[LogEvent, ...]
    begin: int = 0
    """The byte from which on all of it was read; of a log that was rotated the bytes before its first are negative."""
    source: Path | None = None
    """The file that the samples are from, where the log tells none: they are as old as it is."""
    brief: bool = False
    """Is it less than a look reads? Then what it does not tell, a look may."""
