"""The checkpoints of an m4 SAVE_DIR: which there are, which are complete, what lies in them that does not belong.

The layout is that of huggingface/smollm `vision/m4/training/trainer.py` (`_save`), with Accelerate's `save_state` inside.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from ops.checkpoints import accelerate_state
from ops.checkpoints.folders import modified, names, size
from ops.model import FINISHED, M4, POINTER, RESUME_INFOS, Checkpoint, Pointer, Run, Sign, Stray, Unknown

LAYOUT = M4
NAME = re.compile(r"opt_step-(\d+)")
STATE = "accelerator_state"
INFO_KEYS = ("train_logs", "wandb_run_id", "seed", "resume_opt_step", "resume_epoch", "gbs_running")
"""The keys a resume reads; one missing ends the job (`vision/m4/training/config.py`)."""
GBS_KEYS = ("global_batch_size_current", "global_seen_samples", "next_goal_samples", "grad_acc_size_current")


def mine(folder: Path, found: frozenset[str]) -> bool:
    """`latest_opt_step_dir`, or an `opt_step-N`."""
    return POINTER in found or any(NAME.fullmatch(n) for n in found)


def home(run_dir: Path) -> Path:
    """The folder in which the checkpoints lie."""
    return run_dir


def pointer(run: Run) -> Pointer | Unknown:
    """What `latest_opt_step_dir` says. A problem is what ends the next job (or starts it elsewhere)."""
    found = _pointer(run.dir)
    return replace(found, strays=tuple(_strays(run.dir))) if found else found


def _strays(save_dir: Path) -> Iterator[Stray]:
    """Folders that m4's upload and clean-up take for checkpoints: every one with `opt_step` in its name.

    Source: huggingface/smollm `vision/m4/training/trainer.py`, `vision/experiments/pretraining/vloom/common/`.
    """
    for name in sorted(n for n in names(save_dir) if "opt_step" in n and n != POINTER and not NAME.fullmatch(n)):
        if not (save_dir / name).is_dir():
            continue
        number = name.split("opt_step-")[-1]
        if number.isdecimal():
            effect = f"m4's upload and clean-up take it for a checkpoint of step {int(number)}"
        else:
            effect = f"m4's upload ends with a ValueError, as {number!r} is no step"
        yield Stray(save_dir / name, effect)


def _pointer(save_dir: Path) -> Pointer | Unknown:
    file = save_dir / POINTER
    try:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return Pointer("", None, "missing", signs=(Sign(file, None),))
    except OSError as error:
        return Unknown(f"{file}: {error.strerror}")
    return Pointer(text, *_pointed(save_dir, text), signs=(Sign(file, text),))


def _pointed(save_dir: Path, text: str) -> tuple[int | None, str]:
    said = text.strip()
    match = NAME.fullmatch(os.path.basename(said.rstrip("/")))
    step = int(match.group(1)) if match else None
    if not said:
        return None, "empty (a crash while it was written leaves it so)"
    if not os.path.isabs(said):
        return step, "a relative path: it depends on the folder the job starts in"
    if not os.path.isdir(said):
        return step, "names a folder that does not exist"
    if os.path.dirname(os.path.realpath(said)) != os.path.realpath(save_dir):
        return step, "names a folder outside this SAVE_DIR"
    return step, "" if match else "names no opt_step-N"


def read(folder: Path, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
    """Every `opt_step-N`, by step; or `only` these, looked into: structure of each file, keys, ranks.

    The pointer is to name one as it names one now: by the same parent path.
    """
    try:
        with os.scandir(folder) as listing:
            entries = [e for e in listing if NAME.fullmatch(e.name) and e.is_dir()]
    except OSError as error:
        return Unknown(f"{folder}: {error.strerror}")
    now = _pointer(folder)
    parent = os.path.dirname(now.text.strip().rstrip("/")) if now and not now.problem else str(folder)
    found = [(int(e.name.split("-")[1]), Path(e.path)) for e in entries]
    wanted = sorted((step, path) for step, path in found if only is None or step in only)
    return tuple(_checkpoint(step, path, only is not None, parent) for step, path in wanted)


def state_files(checkpoint: Path) -> tuple[Path, ...]:
    """The files from which a resume takes LR, optimizer and scheduler. Raises StateError."""
    from ops.checkpoints import lr

    return lr.state_files(checkpoint)


def said(checkpoint: Path) -> tuple[tuple[str, int], ...]:
    """The step that `resume_run_infos.json` tells."""
    try:
        step = json.loads((checkpoint / RESUME_INFOS).read_bytes()).get("resume_opt_step")
    except (OSError, ValueError, AttributeError):
        step = None
    return ((RESUME_INFOS, step),) if isinstance(step, int) else ()


def _checkpoint(step: int, path: Path, deep: bool, parent: str) -> Checkpoint:
    inside = names(path)
    infos, wandb, wrong = _infos(path, step)
    problems = [] if FINISHED in inside else [f"{FINISHED} is missing: the save did not end"]
    problems += wrong
    if not names(path / STATE):
        problems.append(f"{STATE}/ is missing or empty")
    elif deep or len(problems) == 0:
        problems += _state_problems(path, deep)
    marker = path / (FINISHED if FINISHED in inside else ".")
    return Checkpoint(
        step=step,
        path=path,
        problems=tuple(problems),
        stray=_named(accelerate_state.strays(path / STATE)),
        idle=_named(accelerate_state.idle(path / STATE)),
        markers=tuple(
            sorted(n for n in inside if n.startswith(("finished-", "started-", "run_evals_", "start_run_evals_")))
        ),
        saved=modified(marker),
        size=size(path) if deep else None,
        infos=infos,
        wandb_id=wandb,
        signs=(f"{parent}/{path.name}",),
    )


def _infos(path: Path, step: int) -> tuple[str | Unknown, str | Unknown, list[str]]:
    """Text of `resume_run_infos.json`, its wandb id, and what a resume would miss in it."""
    file = path / RESUME_INFOS
    try:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        reason = f"{RESUME_INFOS}: {error.strerror}"
        return Unknown(reason), Unknown(reason), [reason]
    try:
        data = json.loads(text)
    except ValueError as error:
        reason = f"{RESUME_INFOS} is torn: {error}"
        return Unknown(reason), Unknown(reason), [reason]
    if not isinstance(data, dict):
        reason = f"{RESUME_INFOS} holds no JSON object"
        return Unknown(reason), Unknown(reason), [reason]
    missing = [k for k in INFO_KEYS if k not in data]
    gbs = data.get("gbs_running")
    if "gbs_running" in data:
        missing += [f"gbs_running.{k}" for k in GBS_KEYS if not isinstance(gbs, dict) or k not in gbs]
    wrong = [f"{RESUME_INFOS} lacks " + ", ".join(missing)] if missing else []
    if data.get("resume_opt_step", step) != step:
        wrong.append(f"{RESUME_INFOS} says resume_opt_step {data['resume_opt_step']}, the folder says {step}")
    wandb = data.get("wandb_run_id")
    return text, wandb if isinstance(wandb, str) else Unknown("no wandb_run_id"), wrong


def _state_problems(path: Path, deep: bool) -> list[str]:
    missing = (
        []
        if accelerate_state.has_scheduler(path / STATE)
        else [f"{STATE}/custom_checkpoint_0.pkl (the LR scheduler) is missing"]
    )
    return missing + [f"{STATE}/{p}" for p in accelerate_state.problems(path / STATE, deep)]


def _named(files: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{STATE}/{name}" for name in files)
