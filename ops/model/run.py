"""A run, its jobs, its disk; and the two words that everything else needs: what is not known, and how bad it is."""

from __future__ import annotations

from enum import IntEnum
from pathlib import Path
from typing import Literal

from msgspec import Struct

POINTER = "latest_opt_step_dir"
"""File in SAVE_DIR naming the checkpoint a resume takes (huggingface/smollm, vision/m4/training/trainer.py)."""


RESUME_INFOS = "resume_run_infos.json"


FINISHED = "finished-saving"


OPS_DIR = ".m4ops"
"""m4ops's own folder in SAVE_DIR: journal, originals, temporaries."""


DISCARDED = "discarded"
"""Folder in SAVE_DIR for checkpoints of a discarded branch; its name must not contain `opt_step` (upload scripts parse such names)."""


class Unknown(Struct, frozen=True):
    """A source that could not be read, with the reason. It never triggers an action and is never shown as healthy."""

    reason: str

    def __bool__(self) -> Literal[False]:
        return False


class Severity(IntEnum):
    """As Nagios plugins have them (also their exit codes)."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


class Layout(Struct, frozen=True):
    """How a trainer's framework lays out its checkpoints, in words; the reading is in `ops.checkpoints.layouts`."""

    name: str
    pattern: str
    """What a checkpoint is called there: `opt_step-N`."""
    chosen_by: str
    """What tells a resume which checkpoint to take: a file in SAVE_DIR, or a rule in words."""
    framework: str = "Accelerate"
    """Who saves them."""
    counts_saves: bool = False
    """Its N counts saves, not optimizer steps."""
    after_rewind: str = ""
    """What the framework asks of the operator then."""

    digits: int = 0
    """To how many N is filled with zeros."""

    def called(self, step: int | None) -> str:
        return self.pattern.replace("N", str(step).zfill(self.digits))


M4 = Layout("m4", "opt_step-N", POINTER)


class Run(Struct, frozen=True):
    """Where a run's files are. A path that was not found is None; `why` of the lookup is told by `m4ops status`."""

    dir: Path
    name: str
    log: Path | None = None
    evals: Path | None = None
    kill_switch: Path | None = None
    save_switch: Path | None = None
    trainer_config: Path | None = None
    """The config the *next* job will read (named in m4ops.toml), not a `{job_id}_config.yaml` of the last one."""
    ds_config: Path | None = None
    """DeepSpeed's, likewise."""
    progress: str = ""
    """How the log's progress lines look, where they are of no known format (named in m4ops.toml)."""
    on_save: tuple[str, ...] = ()
    """What m4ops.toml declares to be done with each finished checkpoint."""
    cluster: str = ""
    """The Slurm cluster that is asked by `-M` (named in m4ops.toml); empty: the one Slurm itself means."""
    layout: Layout = M4
    earlier_logs: tuple[Path, ...] = ()
    """Where each job has a log of its own: those of the jobs before, newest first."""

    @property
    def evaluated(self) -> bool:
        """Whether an evaluations file belongs to it: one is named, or its layout's contract has one."""
        return self.evals is not None or self.layout == M4


class Job(Struct, frozen=True):
    """One job or one array task as the scheduler reports it."""

    id: str
    """What `scontrol` takes: `1234`, `1234_3`, or `1234_[4-20%1]` for the pending rest of an array."""
    array_id: str
    task: str
    raw_id: str
    state: str
    reason: str
    name: str
    user: str
    nodes: str = ""
    node_count: int = 0
    start: float | None = None
    """Start, or the scheduler's expectation of it while PENDING."""
    end: float | None = None
    """End, or when the time limit will end it."""
    submit: float | None = None
    comment: str = ""
    workdir: str = ""
    partition: str = ""
    """Several, with commas between them, while it may start in any of them."""

    @property
    def running(self) -> bool:
        return self.state in (
            "RUNNING",
            "COMPLETING",
            "SUSPENDED",
            "CONFIGURING",
            "STAGE_OUT",
            "RESIZING",
            "STOPPED",
            "SIGNALING",
        )

    @property
    def pending(self) -> bool:
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT")

    @property
    def held(self) -> bool:
        return self.pending and (
            self.reason.startswith(
                ("JobHeld", "JobHoldMax", "launch failed requeued held", "launch_failed_requeued_held")
            )
            or "requeued in held state" in self.reason
            or self.state in ("REQUEUE_HOLD", "SPECIAL_EXIT")
        )


class Attempt(Struct, frozen=True):
    """One start of a job or array task: a requeued job has several. `end` is None while it runs or is unknown."""

    raw_id: str
    id: str
    start: float
    nodes: str = ""
    state: str = ""
    """How it ended (`NODE_FAIL`, `TIMEOUT`, `REQUEUED`, …); empty while that is unknown."""
    exit_code: str = ""
    end: float | None = None
    failed: tuple[str, ...] = ()
    """The nodes whose failure ended it, as Slurm's node events tell."""
    why: str = ""
    """Slurm's reason for the node's state."""

    @property
    def key(self) -> tuple[str, float]:
        return self.raw_id, self.start


class Started(Struct, frozen=True):
    """What the newest job was started with, as its trainer wrote it down. None: it does not say."""

    job: str
    file: Path
    time: float
    seed: int | None = None
    optimizer: bool | None = None
    """Does a resume load the optimizer's states?"""


class Disk(Struct, frozen=True):
    """The file system of a run, and what a save takes of it. None: not known."""

    free: int
    """Bytes that this user may still write."""
    inodes: int | None = None
    """Files that may still be made; None where the file system has no such limit."""
    save_bytes: int | None = None
    """What one save takes, on the disk."""
    save_files: int | None = None
    interval: float | None = None
    """Seconds between two saves."""
    last: float | None = None
    """When the newest save ended."""

    @property
    def saves_left(self) -> int | None:
        """How many more saves fit, by bytes and by inodes. None while nothing was saved."""
        fits = [self.free // self.save_bytes] if self.save_bytes else []
        fits += [self.inodes // self.save_files] if self.save_files and self.inodes is not None else []
        return min(fits, default=None)

    @property
    def scarce(self) -> str:
        """What runs out first: `bytes` or `inodes`."""
        if not self.save_files or not self.save_bytes or self.inodes is None:
            return "bytes"
        return "inodes" if self.inodes // self.save_files < self.free // self.save_bytes else "bytes"

    def seconds_left(self, now: float) -> float | None:
        """Seconds until the first save that finds no room, at the pace of the last ones; None: no pace is known.

        Of a run that does not save any more this tells how long it could run on: the clock stands still meanwhile.
        """
        if self.saves_left is None or self.interval is None or self.last is None:
            return None
        begun = min(max(now - self.last, 0.0), self.interval)
        return (self.saves_left + 1) * self.interval - begun
