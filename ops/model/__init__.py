"""The words of m4ops: what a run is, and what was seen of it at one instant. Frozen, and nothing here reads or writes.

Times are UTC seconds since the epoch, sizes are bytes, steps are optimizer steps.
"""

from ops.model.checkpoint import Checked, Checkpoint, LrSite, Pointer, Sign, Span, StateFile, Stray
from ops.model.log import DATASET, LOOK, EvalLine, Evals, LogEvent, LogView, Measure, Sample
from ops.model.run import (
    DISCARDED,
    FINISHED,
    M4,
    OPS_DIR,
    POINTER,
    RESUME_INFOS,
    Attempt,
    Disk,
    Job,
    Layout,
    Run,
    Severity,
    Started,
    Unknown,
)
from ops.model.snapshot import Change, Expectation, Finding, Snapshot

__all__ = [
    "DATASET",
    "DISCARDED",
    "FINISHED",
    "LOOK",
    "M4",
    "OPS_DIR",
    "POINTER",
    "RESUME_INFOS",
    "Attempt",
    "Change",
    "Checked",
    "Checkpoint",
    "Disk",
    "EvalLine",
    "Evals",
    "Expectation",
    "Finding",
    "Job",
    "Layout",
    "LogEvent",
    "LogView",
    "LrSite",
    "Measure",
    "Pointer",
    "Run",
    "Sample",
    "Severity",
    "Sign",
    "Snapshot",
    "Span",
    "Started",
    "StateFile",
    "Stray",
    "Unknown",
]
