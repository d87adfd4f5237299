"""Megatron-LM: `iter_0000100/` with `mp_rank_*/model_optim_rng.pt`, or torch's distributed format and a `common.pt`.

A resume takes the iteration that `latest_checkpointed_iteration.txt` names. Its scheduler (`opt_param_scheduler`) is given its
LRs twice, by the command line and by the checkpoint: which of them counts is said by two flags, and without one they must be
alike. Source: NVIDIA/Megatron-LM `megatron/training/checkpointing.py`, `megatron/core/optimizer_param_scheduler.py`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ops.checkpoints import dcp, folders
from ops.checkpoints.folders import file_problems, modified, names, size
from ops.checkpoints.symbols import Call
from ops.errors import OpsError
from ops.model import Checkpoint, Layout, Pointer, Run, Unknown

TRACKER = "latest_checkpointed_iteration.txt"
LAYOUT = Layout("megatron", "iter_N", TRACKER, "Megatron-LM", digits=7)
NAME = re.compile(r"iter_(\d{7,})")
COMMON = "common.pt"
CONFIG = "metadata.json"
"""By which Megatron knows the distributed format: `core/dist_checkpointing/core.py` (`check_is_distributed_checkpoint`)."""
STATE = "model_optim_rng.pt"
_RANK = re.compile(r"mp_rank_\d\d(?:_\d{3})?(?:_\d{3})?")


def mine(folder: Path, found: frozenset[str]) -> bool:
    """The tracker, or an `iter_0000100`."""
    return TRACKER in found or any(NAME.fullmatch(name) for name in found)


def home(run_dir: Path) -> Path:
    """The folder of `--save` itself."""
    return run_dir


def pointer(run: Run) -> Pointer | Unknown:
    """What the tracker says. A problem is what makes the next job start elsewhere, or not at all."""
    return folders.pointer(run.dir, LAYOUT, "an iteration", "missing")


def read(folder: Path, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
    """Every `iter_N`, by iteration."""
    return folders.read(folder, NAME, only, _checkpoint)


def state_files(checkpoint: Path) -> tuple[Path, ...]:
    """Of every model-parallel rank its state and its share of a distributed optimizer; or `common.pt` and the `.distcp` files.

    Raises StateError.
    """
    if (checkpoint / dcp.METADATA).is_file():
        return (checkpoint / COMMON, *dcp.state_files(checkpoint))
    return tuple(
        path for rank in _ranks(checkpoint) for path in (rank / STATE, rank / "distrib_optim.pt") if path.is_file()
    )


def said(checkpoint: Path) -> tuple[tuple[str, int], ...]:
    """The iteration that the states themselves tell."""
    from ops.checkpoints import statefile

    file = _main(checkpoint)
    tree = statefile.read(file).tree if file.is_file() else None
    step = tree.get("iteration") if isinstance(tree, dict) else None
    return ((file.relative_to(checkpoint).as_posix(), int(step)),) if isinstance(step, int) else ()


def _ranks(checkpoint: Path) -> list[Path]:
    return [checkpoint / name for name in sorted(names(checkpoint)) if _RANK.fullmatch(name)]


def _main(checkpoint: Path) -> Path:
    ranks = _ranks(checkpoint)
    return ranks[0] / STATE if ranks else checkpoint / COMMON


def _checkpoint(step: int, path: Path, deep: bool) -> Checkpoint:
    problems, arguments = _problems(path, deep)
    return Checkpoint(
        step=step,
        path=path,
        problems=tuple(problems),
        saved=modified(_main(path).parent),  # a folder keeps its time when a file in it is edited
        size=size(path) if deep else None,
        infos=None,
        wandb_id=None,
        layout=LAYOUT.name,
        signs=(str(step),),
        lr_note=_note(arguments) if deep else "",
    )


def _problems(path: Path, deep: bool) -> tuple[list[str], Any]:
    """What keeps a job from loading it; and the arguments it was saved under."""
    ranks = _ranks(path)
    if not ranks:
        lacking = [name for name in (dcp.METADATA, COMMON, CONFIG) if not (path / name).is_file()]
        if lacking:
            return [
                f"{' and '.join(lacking)} missing: the save did not end, or it is of a format m4ops does not know"
            ], None
    problems = [f"{rank.name}/{STATE} is missing" for rank in ranks if not (rank / STATE).is_file()]
    if not deep or problems:
        return problems, None
    try:
        for file in state_files(path):
            problems += [f"{file.relative_to(path)}: {problem}" for problem in file_problems(file)]
        arguments = {} if problems else _arguments(path)
    except OpsError as error:
        return [error.what], None
    match [arguments.get(f"{kind}_model_parallel_size") for kind in ("tensor", "pipeline")]:
        case [int(tensor), int(pipeline)] if ranks and len(ranks) != tensor * pipeline:
            problems.append(f"{len(ranks)} model-parallel ranks of {tensor} × {pipeline}")
    return problems, arguments


def _arguments(checkpoint: Path) -> dict[str, Any]:
    """The command line's values, as Megatron keeps them in the state."""
    from ops.checkpoints import statefile

    tree = statefile.read(_main(checkpoint)).tree
    args = tree.get("args") if isinstance(tree, dict) else None
    return args.state if isinstance(args, Call) and isinstance(args.state, dict) else {}


def _note(arguments: dict[str, Any] | None) -> str:
    """What an LR change needs besides."""
    said = arguments or {}
    if said.get("use_checkpoint_opt_param_scheduler"):
        return ""
    if said.get("override_opt_param_scheduler"):
        return (
            "the job was started with --override-opt_param-scheduler: give the next one the new --lr and --min-lr, or "
            "--use-checkpoint-opt_param-scheduler in its place, else the command line's LR stays"
        )
    return (
        "start the next job with --use-checkpoint-opt_param-scheduler, or with --lr and --min-lr as they are now in the "
        "checkpoint (m4ops inspect), else Megatron ends with an AssertionError"
    )
