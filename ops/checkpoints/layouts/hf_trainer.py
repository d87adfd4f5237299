"""HF Trainer: `checkpoint-N/` with `trainer_state.json`, plain or with DeepSpeed's `global_stepN/` inside.

A resume takes the highest N, whole or not. Rotation deletes whatever is called `checkpoint-*`, the folder with the
oldest time first, so a discarded one goes elsewhere and an edited one keeps its time. Source: transformers
`trainer_utils.py` (`get_last_checkpoint`, `sort_checkpoints`), `trainer.py` (`_save_checkpoint`, which writes
`trainer_state.json` last), `integrations/deepspeed.py`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

from ops.checkpoints import folders
from ops.checkpoints.folders import (
    engine_scheduler,
    fsdp_problems,
    modified,
    names,
    numbered,
    shard_problems,
    size,
    state_problems,
)
from ops.model import Checkpoint, Layout, Pointer, Run, Stray, Unknown

LAYOUT = Layout("hf_trainer", "checkpoint-N", "the checkpoint-N with the highest N", "HF Trainer")
NAME = re.compile(r"checkpoint-(\d+)")
STATE = "trainer_state.json"
_NOTE = "HF Trainer ends with a ValueError where its learning_rate is not the LR that ds_config has: start the next job with that one"
_IDLE = re.compile(r"(?:optimizer|scheduler|scaler|trainer_state|rng_state(?:_\d+)?)\.(?:pt|pth|json)[.~].*")
"""Somebody's copies of state files: the Trainer opens files by their exact names alone."""
_HEAD = 1 << 12
"""Bytes in which `global_step` stands: the keys are sorted, and `log_history` comes after it."""
_STEP = re.compile(rb'^  "global_step": (\d+),$', re.MULTILINE)
_ENGINE = re.compile(r"global_step\d+")
_SHARDED = re.compile(r"optimizer_\d+")
"""FSDP's optimizer. Where FSDP saves its state whole, it is `optimizer.bin` (accelerate `utils/fsdp_utils.py`)."""


def mine(folder: Path, found: frozenset[str]) -> bool:
    """A `checkpoint-N` with the trainer's state."""
    return any(NAME.fullmatch(n) and (folder / n / STATE).is_file() for n in found)


def home(run_dir: Path) -> Path:
    """The output_dir itself."""
    return run_dir


def pointer(run: Run) -> Pointer | Unknown:
    """The highest number."""
    found = numbered(run.dir, NAME)
    if isinstance(found, Unknown):
        return found
    if not found:
        return Pointer("", None, "missing", "highest")
    step, last = found[-1]
    return Pointer(last.name, step, rule="highest", strays=tuple(_strays(run.dir, last)))


def _strays(folder: Path, last: Path) -> Iterator[Stray]:
    """What rotation takes for a checkpoint: every folder `checkpoint-*`. Source: `sort_checkpoints`, `rotate_checkpoints`."""
    odd = sorted(n for n in names(folder) if n.startswith("checkpoint-") and not NAME.fullmatch(n))
    if odd and _rotates(last):
        effect = "save_total_limit counts it, and deletes it when no folder is older"
        yield from (Stray(folder / name, effect) for name in odd if (folder / name).is_dir())


def _rotates(checkpoint: Path) -> bool:
    """Whether the training that saved it deletes old checkpoints; also where it cannot be told."""
    from ops.checkpoints import statefile
    from ops.checkpoints.symbols import Call
    from ops.errors import OpsError

    try:
        said = statefile.read(checkpoint / "training_args.bin").tree
    except OpsError:
        return True
    arguments = said.state if isinstance(said, Call) and isinstance(said.state, dict) else {}
    return arguments.get("save_total_limit", True) is not None


def read(folder: Path, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
    """Every `checkpoint-N`, by step."""
    return folders.read(folder, NAME, only, _checkpoint)


def state_files(checkpoint: Path) -> tuple[Path, ...]:
    """`optimizer.pt` and `scheduler.pt`; under DeepSpeed the shards in the place of the former. Raises StateError."""
    from ops.checkpoints import lr

    return lr.state_files(checkpoint)


def said(checkpoint: Path) -> tuple[tuple[str, int], ...]:
    """The step that the trainer's own state tells."""
    step, _ = _global_step(checkpoint)
    return () if step is None else ((STATE, step),)


def _checkpoint(step: int, path: Path, deep: bool) -> Checkpoint:
    inside = names(path)
    there, wrong = _global_step(path, deep)
    problems = [wrong] if wrong else []
    if there is not None and there != step:
        problems.append(f"{STATE} says global_step {there}, the folder says {step}")
    engines = [n for n in inside if _ENGINE.fullmatch(n)]
    fsdp = any(n.startswith("pytorch_model_fsdp") for n in inside)
    if engines:
        problems += [p for n in engines for p in shard_problems(path / n)]
    elif not ({"optimizer.pt", *(["optimizer.bin"] if fsdp else [])} & inside or any(map(_SHARDED.fullmatch, inside))):
        problems.append("optimizer.pt is missing: the Trainer starts with a fresh optimizer, and does not say so")
    known = "scheduler.pt" in inside or (bool(engines) and not deep)  # the engine's files are read in a deep look alone
    found = () if known else (engine_scheduler(path / n) for n in engines)
    scheduler = next((state for state in found if state is not None), None)
    if not known and scheduler is None:
        problems.append("scheduler.pt is missing: the Trainer starts its LR schedule anew, and does not say so")
    weights = any(n.endswith((".safetensors", ".bin", ".index.json")) and "model" in n for n in inside)
    if not weights and not engines and not fsdp:
        problems.append("the weights (model.safetensors) are missing")
    if deep:
        problems += [*state_problems(path), *(p for p in fsdp_problems(path) if not p.startswith("optimizer_"))]
    return Checkpoint(
        step=step,
        path=path,
        problems=tuple(problems),
        idle=tuple(sorted(n for n in inside if _IDLE.fullmatch(n))),
        saved=modified(path / STATE if STATE in inside else path),
        size=size(path) if deep else None,
        infos=None,
        wandb_id=None,
        layout=LAYOUT.name,
        lr_note=_NOTE if scheduler and "last_batch_iteration" in scheduler else "",
    )


def _global_step(checkpoint: Path, deep: bool = False) -> tuple[int | None, str]:
    """`global_step`, or what is wrong with the file.

    Its end, which may hold all that was ever logged, is parsed in a `deep` look alone: the Trainer parses all of it.
    """
    try:
        with (checkpoint / STATE).open("rb") as file:
            head = file.read(_HEAD)
            file.seek(max(0, os.fstat(file.fileno()).st_size - 2))
            whole = file.read().rstrip().endswith(b"}")
        if whole and not deep and (match := _STEP.search(head)):
            return int(match[1]), ""
        step = json.loads((checkpoint / STATE).read_bytes())["global_step"]
    except OSError as error:
        return None, f"{STATE}: {error.strerror}; the Trainer writes it last, so the save did not end"
    except (ValueError, KeyError, TypeError) as error:
        return None, f"{STATE} is torn: {error}"
    return (step, "") if isinstance(step, int) else (None, f"{STATE} says no global_step")
