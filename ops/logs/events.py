"""Log lines that are no progress but mean something: the trainer's, Slurm's, and the end of a traceback.

The trainer's texts: huggingface/smollm, vision/m4/training/trainer.py. Slurm's: srun and slurmstepd, 20.11 to
22.05, whose Debian build for several daemons a machine prints `slurmstepd-NODE: error:`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain

from ops.logs.progress import clean
from ops.model import LogEvent

PREFIX = re.compile(
    r"\s*(?P<label>\d+:\s|\[(?:rank|default)\d+\]:\s?)?\s*"
    r"(?:\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\]\s*)?"
)
"""`srun --label`, torchrun's ranks, and the log formatter's time."""

RULES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("saved", r"\*\* Saving finished at `(.+?)`"),
        ("wandb-id", r"\*\* `wandb_run_id`: (\S+)"),
        ("kill-switch", r"\*\* Kill switch activated()"),
        ("sigterm", r"\*\* SIGTERM signal received()"),
        ("time-over", r"\*\* Training time is over()"),
        ("max-steps", r"\*\* Maximum number of steps has been reached for this (training|run)"),
        ("memory", r"\*\* CPU memory is close to explosion()"),
        ("validation", r"Validation logs: val_per_token_loss: (\S+)"),
        ("node-failure", r"srun: error: Node failure on (\S+)"),
        ("task-died", r"srun: error: (\S+): tasks? [\d,\-\[\]]+: \S"),
        # The node after ON is the first one of the step, not the one that failed.
        ("node-failure-step", r"slurmstepd(?:-\S+)?: error: \*\*\* (?:STEP|JOB) .* DUE TO NODE FAILURE()"),
        ("time-limit", r"slurmstepd(?:-\S+)?: error: \*\*\* (?:STEP|JOB) (\S+) .* DUE TO TIME LIMIT"),
        ("preempted", r"slurmstepd(?:-\S+)?: error: \*\*\* (?:STEP|JOB) (\S+) .* DUE TO PREEMPTION"),
        ("requeued", r"slurmstepd(?:-\S+)?: error: \*\*\* (?:STEP|JOB) (\S+) .* DUE TO JOB REQUEUE"),
        ("cancelled", r"slurmstepd(?:-\S+)?: error: \*\*\* (?:STEP|JOB) (\S+) .*CANCELLED AT \S+ \*\*\*"),
    )
)
# A progress bar ends without a line end, and the next process's line is glued to it. A quotation is none.
GLUED = tuple((kind, re.compile(r"(?<![\s\"'`=(])" + pattern.pattern)) for kind, pattern in RULES)
TRACEBACK = b"Traceback (most recent call last)"
LITERALS = (b"** ", b"srun: error: ", b"slurmstepd", b"Validation logs", TRACEBACK)
"""What a line must contain to be looked at by `parse_event`, or to begin a traceback."""


def parse_event(line: bytes, number: int = 0, offset: int = 0) -> LogEvent | None:
    """The event a line tells, or None. `value` is a path, a node, an id: what the kind needs, see RULES."""
    text = clean(line)
    start = _after_prefix(text)
    found = ((kind, pattern.match(text, start)) for kind, pattern in RULES)
    glued = ((kind, pattern.search(text, start)) for kind, pattern in GLUED)
    for kind, match in chain(found, glued):
        if match:
            return LogEvent(kind, number, offset, text.strip(), match[1])
    return None


def _after_prefix(text: str) -> int:
    match = PREFIX.match(text)
    return match.end() if match else 0


def traceback_end(header: str) -> Callable[[str], bool]:
    """A test for the lines after a `Traceback` line: is it the traceback's last? Another rank's never is."""
    match = PREFIX.match(header)
    label = (match["label"] if match else None) or ""

    def last(line: str) -> bool:
        words = line.removeprefix(label)
        return line.startswith(label) and bool(words.strip()) and not words.startswith((" ", "\t"))

    return last
