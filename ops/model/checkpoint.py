"""A checkpoint, what is in it, and what makes a resume take it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from ops.model.run import M4, Unknown


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
    fingerprint: str = ""
    """Of its content; empty where no reset was asked for."""
    lr: tuple[LrSite, ...] = ()
    moments: tuple[Span, ...] | Unknown = Unknown("not looked for")
    """Unknown: this optimizer's state cannot be zeroed safely, or no reset was asked for."""
    counters: tuple[LrSite, ...] = ()
    """By which its schedulers count their steps."""
    scheduler: Mapping[str, Any] | None = None
    """The state of the one scheduler it holds, as plain values."""
    stride: int | Unknown = 1
    """How often that scheduler counts for one optimizer step."""
    grouped: bool = True
    """Whether it keeps parameter groups; False where each parameter has an LR of its own."""


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

    checked: Checked | Unknown | None = None
    """The newest thorough look at it, where that is remembered and its files are still the same; why there is none yet."""
    pushed: str = ""
    """Where a copy was pushed to, as it was noted then; empty: nowhere, or not looked up."""
    stale: tuple[str, ...] = ()
    """Files that are no longer what that copy holds."""

    @property
    def complete(self) -> bool:
        return not self.problems

    @property
    def sound(self) -> bool:
        """Complete, and no look found a fault."""
        return self.complete and not (self.checked and self.checked.faults)

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


class Sign(Struct, frozen=True):
    """A small text file, or a symbolic link, that tells a resume which checkpoint to take; `text` is None without it."""

    path: Path
    text: str | None
    link: bool = False


class Stray(Struct, frozen=True):
    """What lies beside the checkpoints and is taken for one."""

    path: Path
    effect: str
    """What the framework, or what follows its saves, does with it."""


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
    strays: tuple[Stray, ...] = ()
    """What else its framework takes for checkpoints, though a resume can take another; some are obstacles too."""
