"""The words of m4ops: what a run is, and what was seen of it at one instant. Frozen, and nothing here reads or writes.

Times are UTC seconds since the epoch, sizes are bytes, steps are optimizer steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct, field
from msgspec.structs import force_setattr

if TYPE_CHECKING:
    from ops.placement import NodeState, Placement

POINTER = "latest_opt_step_dir"
"""File in SAVE_DIR naming the checkpoint a resume takes (huggingface/smollm, vision/m4/training/trainer.py)."""
RESUME_INFOS = "resume_run_infos.json"
FINISHED = "finished-saving"
OPS_DIR = ".m4ops"
"""m4ops's own folder in SAVE_DIR: journal, originals, temporaries."""
DATASET = "loss of a data set"
"""The `Measure.series` of one."""
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


class LrSite(Struct, frozen=True):
    """One learning-rate value in one file of a checkpoint."""

    file: str
    """Path relative to the checkpoint directory."""
    label: str
    value: float
    kind: str = "float64"
    offset: int = 0


class Span(Struct, frozen=True):
    """A range of bytes of a file (offset, length), with what it holds."""

    label: str
    offset: int
    length: int


class StateFile(Struct, frozen=True):
    """What an intervention may need of one state file of a checkpoint: its LR values and its optimizer moments."""

    file: str
    fingerprint: str
    lr: tuple[LrSite, ...] = ()
    moments: tuple[Span, ...] | Unknown = ()
    """Unknown: this optimizer's state cannot be zeroed safely."""
    counters: tuple[LrSite, ...] = ()
    """By which its schedulers count their steps."""
    scheduler: Mapping[str, Any] | None = None
    """The state of the one scheduler it holds, as plain values."""
    stride: int | Unknown = 1
    """How often that scheduler counts for one optimizer step."""


class Checked(Struct, frozen=True):
    """A look at a checkpoint's files and what they say of one another. `deep`: at every byte."""

    time: float
    deep: bool = False
    faults: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    """What may be meant."""


class Checkpoint(Struct, frozen=True):
    """One checkpoint. `problems` is empty when a resume can take it."""

    step: int
    path: Path
    """Its folder; in layouts of single files its file, or the first of several."""
    problems: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()
    """Files that do not belong there, and change what a resume loads."""
    idle: tuple[str, ...] = ()
    """Files that do not belong there, and that nothing loads."""
    markers: tuple[str, ...] = ()
    saved: float | None = None
    size: int | None = None
    infos: str | Unknown | None = Unknown("not read")
    """The text of `resume_run_infos.json`; None in a layout that has no such file."""
    wandb_id: str | Unknown | None = Unknown("not read")
    """None: this layout knows no wandb run."""
    states: tuple[StateFile, ...] | Unknown = Unknown("not read")
    layout: str = M4.name
    files: tuple[Path, ...] = ()
    """Of a layout of single files: all that belong to this step. Empty: `path` is a folder and holds all."""
    signs: tuple[str, ...] = ()
    """What each of `Pointer.signs` must say for a resume to take this one."""
    copies: tuple[Path, ...] = ()
    """Under which names, free as yet, a resume takes a copy of `path` before all others."""
    lr_note: str = ""
    """What a change of its LR needs besides."""
    lr_elsewhere: str = ""
    """Where a resume takes its LR from, when that is not the checkpoint."""

    checked: Checked | None = None
    """The newest thorough look at it, where that is remembered and its files are still the same."""
    pushed: str = ""
    """Where a copy was pushed to, as it was noted then; empty: nowhere, or not looked up."""
    stale: tuple[str, ...] = ()
    """Files that are no longer what that copy holds."""

    @property
    def complete(self) -> bool:
        return not self.problems

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def parts(self) -> tuple[Path, ...]:
        """What is moved when the checkpoint is."""
        return self.files or (self.path,)

    @property
    def home(self) -> Path:
        """The folder that the names of its state files are relative to."""
        return self.path.parent if self.files else self.path


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


class Sign(Struct, frozen=True):
    """A small text file, or a symbolic link, that tells a resume which checkpoint to take; `text` is None without it."""

    path: Path
    text: str | None
    link: bool = False


class Pointer(Struct, frozen=True):
    """What a resume takes: its step, or the problem with it; `text` is what a sign says of it, where there is one."""

    text: str
    step: int | None
    problem: str = ""
    rule: Literal["named", "highest", "newest"] = "named"
    """How the framework chooses: what its signs name, the highest number, or the newest file. Under the latter two a
    checkpoint beyond the wanted one must go before a resume takes the wanted one."""
    signs: tuple[Sign, ...] = ()
    """What a rewind writes (`Checkpoint.signs` has the texts)."""
    obstacles: tuple[Path, ...] = ()
    """No checkpoints, but a resume takes one of them or falls over it: a rewind moves them away too."""


class LogView(Struct, frozen=True):
    """What the log says, in order of its lines."""

    path: Path
    size: int
    modified: float
    samples: tuple[Sample, ...]
    events: tuple[LogEvent, ...]
    begin: int = 0
    """The byte from which on all of it was read."""


class Expectation(Struct, frozen=True):
    """What the first log lines after a resume must show. All of it optional.

    `lr` holds (step, lr) points the logged LR must lie on; between and beyond them it is compared by interpolation.
    """

    resume_step: int | None = None
    lr: tuple[tuple[int, float], ...] = ()
    lr_tolerance: float = 2e-3
    """Relative; three decimals of the trainer's `%.3E` leave 5e-4."""
    wandb_new: bool | None = None
    wandb_id: str = ""
    """The id the old branch had."""


class Change(Struct, frozen=True):
    """A change as the journal tells it."""

    id: str
    time: float
    user: str
    title: str
    command: str
    status: str
    """`applied`, `undone`, `rolled back`, `unfinished`."""
    expectation: Expectation | None = None
    log_offset: int | None = None
    """Size of the run's log when the change was applied: what comes after it is evidence."""
    undoes: str = ""
    zeroed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The LRs it set to 0, by file name and label: what they were."""
    wish: Mapping[str, object] = field(default_factory=dict)

    @property
    def unattended(self) -> bool:
        """Whether nobody gave the command: a prune after a save. Nobody means it by "the last change"."""
        return bool(self.wish.get("unattended"))


class Snapshot(Struct, frozen=True):
    """One picture of a run: all that is known at one instant. What could not be read is Unknown with its reason."""

    run: Run
    now: float
    user: str
    jobs: tuple[Job, ...] | Unknown
    pointer: Pointer | Unknown
    checkpoints: tuple[Checkpoint, ...] | Unknown
    log: LogView | Unknown
    evals: Evals | Unknown
    history: tuple[Change, ...] | Unknown
    kill_switch_set: bool | Unknown = Unknown("not read")
    folders: tuple[str, ...] = ()
    """Sub-folders of `discarded/`, relative to it; `''` when `discarded/` itself exists."""
    trainer_config: str | Unknown = Unknown("m4ops.toml names no trainer config")
    ds_config: str | Unknown = Unknown("m4ops.toml names no ds_config")
    attempts: tuple[Attempt, ...] | Unknown = ()
    """Attempts of the run's jobs that have ended, oldest first, as far as accounting was asked for them."""
    placement: Placement | Unknown = Unknown("not asked")
    disk: Disk | Unknown = Unknown("not read")
    nodes: tuple[NodeState, ...] | Unknown = Unknown("not asked")
    """The cluster's nodes, asked for where a job of the run waits for nodes."""
    started: Started | Unknown = Unknown("not read")

    @property
    def last_change(self) -> Change | Unknown | None:
        """The newest change that somebody made; None: there is none."""
        if isinstance(self.history, Unknown):
            return self.history
        return next((c for c in reversed(self.history) if not c.unattended), None)


class Finding(Struct, frozen=True):
    """What a detector says, with its evidence. It never acts; `actions` are commands an operator may consider.

    No secret gets into a finding, so none leaves with one: words taken from a log are redacted as it is made.
    """

    kind: str
    severity: Severity
    summary: str
    evidence: tuple[str, ...] = ()
    step: int | None = None
    line: int | None = None
    node: str = ""
    runbook: str = ""
    actions: tuple[str, ...] = ()
    rank: int | None = None
    episode: str = ""
    """What tells this trouble from a later one of the same kind, if that can be told."""

    def __post_init__(self) -> None:
        from ops.secrecy import redact  # its patterns are compiled when there is something to say

        force_setattr(self, "summary", redact(self.summary))
        force_setattr(self, "evidence", tuple(map(redact, self.evidence)))

    @property
    def key(self) -> str:
        """What makes two findings the same episode: a spike that becomes a divergence is one."""
        if self.episode:
            return self.episode
        return f"{'loss' if self.kind in ('loss-spike', 'loss-divergence') else self.kind}:{self.node}"
