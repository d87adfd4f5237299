"""The picture of a run at one instant, with the changes made to it; and what a detector says of such pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import force_setattr

from ops.model.checkpoint import Checkpoint, Pointer
from ops.model.log import Evals, LogView
from ops.model.run import Attempt, Disk, Job, Run, Severity, Started, Unknown

if TYPE_CHECKING:
    from ops.placement import NodeState, Placement


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
    ended: float = 0.0
    """When the last of it was done."""
    expectation: Expectation | None = None
    log_offset: int | None = None
    """Size of the run's log when the change was applied: what comes after it is evidence."""
    undoes: str = ""
    zeroed: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """The LRs it set to 0, by file name and label: what they were."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """The text files it changed, by path: what stood in them."""
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
