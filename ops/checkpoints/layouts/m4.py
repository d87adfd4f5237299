"""The checkpoints of an m4 SAVE_DIR: which there are, which are complete, what lies in them that does not belong.

The layout is that of huggingface/smollm `vision/m4/training/trainer.py` (`_save`), with Accelerate's `save_state` inside.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from ops.model import FINISHED, M4, POINTER, RESUME_INFOS, Checkpoint, Pointer, Run, Sign, Unknown

LAYOUT = M4
NAME = re.compile(r"opt_step-(\d+)")
INFO_KEYS = ("train_logs", "wandb_run_id", "seed", "resume_opt_step", "resume_epoch", "gbs_running")
"""The keys a resume reads; one missing ends the job (`vision/m4/training/config.py`)."""
GBS_KEYS = ("global_batch_size_current", "global_seen_samples", "next_goal_samples", "grad_acc_size_current")
_BELONGS = re.compile(
    r"custom_checkpoint_\d+\.pkl|random_states_\d+\.pkl|(?:model|pytorch_model)(?:[-_]\d+.*)?\.(?:safetensors|bin)(?:\.index\.json)?"
    r"|(?:optimizer|scheduler|sampler|dl_state_dict)(?:_\d+)?\.bin|scaler\.pt|latest|zero_to_(?:fp32|torch)\.py|pytorch_model"
    r"|pytorch_model_fsdp_\d+|optimizer_\d+"
    r"|\.nfs[0-9a-f]+"  # what NFS leaves of a removed file that is still open; no loader takes it
)
_SHARD = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_\d+_mp_rank_\d+_(?:model|optim)_states\.pt|mp_rank_\d+_model_states\.pt|\.nfs[0-9a-f]+"
)
LOOKED_INTO = 1 << 20
"""Bytes of a state file up to which its tree is read, not its structure alone: schedulers are that small."""


def mine(folder: Path, names: frozenset[str]) -> bool:
    """`latest_opt_step_dir`, or an `opt_step-N`."""
    return POINTER in names or any(NAME.fullmatch(n) for n in names)


def home(run_dir: Path) -> Path:
    """The folder in which the checkpoints lie."""
    return run_dir


def pointer(run: Run) -> Pointer | Unknown:
    """What `latest_opt_step_dir` says. A problem is what ends the next job (or starts it elsewhere)."""
    return _pointer(run.dir)


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


def read(folder: Path, inspect: frozenset[int] = frozenset()) -> tuple[Checkpoint, ...] | Unknown:
    """Every `opt_step-N`, by step. Those in `inspect` are looked into: structure of each file, keys, ranks.

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
    return tuple(_checkpoint(step, path, step in inspect, parent) for step, path in sorted(found))


def state_files(checkpoint: Path) -> tuple[Path, ...]:
    """The files from which a resume takes LR, optimizer and scheduler. Raises StateError."""
    from ops.checkpoints import lr

    return lr.state_files(checkpoint)


def _checkpoint(step: int, path: Path, deep: bool, parent: str) -> Checkpoint:
    names = _names(path)
    infos, wandb, wrong = _infos(path, step)
    problems = [] if FINISHED in names else [f"{FINISHED} is missing: the save did not end"]
    problems += wrong
    state = _names(path / "accelerator_state")
    if not state:
        problems.append("accelerator_state/ is missing or empty")
    elif deep or len(problems) == 0:
        problems += _state_problems(path / "accelerator_state", state, deep)
    marker = path / (FINISHED if FINISHED in names else ".")
    return Checkpoint(
        step=step,
        path=path,
        problems=tuple(problems),
        stray=strays(path),
        markers=tuple(
            sorted(n for n in names if n.startswith(("finished-", "started-", "run_evals_", "start_run_evals_")))
        ),
        saved=_modified(marker),
        size=_size(path) if deep else None,
        infos=infos,
        wandb_id=wandb,
        signs=(f"{parent}/{path.name}",),
    )


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:  # removed meanwhile, by a clean-up job
        return None


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except OSError:
        return frozenset()


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


def _state_problems(folder: Path, names: frozenset[str], deep: bool) -> list[str]:
    problems = []
    if not any(re.fullmatch(r"custom_checkpoint_\d+\.pkl|scheduler\.bin", n) for n in names):
        problems.append("accelerator_state/custom_checkpoint_0.pkl (the LR scheduler) is missing")
    problems += _ranks(folder / "pytorch_model") if "pytorch_model" in names else _plain(names)
    if deep:
        files = [
            f
            for f in sorted(folder.rglob("*"))
            if f.is_file() and (_BELONGS.fullmatch(f.name) or _SHARD.fullmatch(f.name))
        ]
        for file in (f for f in files if f.suffix in (".pkl", ".bin", ".pt")):
            if file.name.startswith("random_states"):
                continue
            problems += [f"{file.relative_to(folder.parent)}: {p}" for p in _file_problems(file)]
    return problems


def _file_problems(file: Path) -> tuple[str, ...]:
    """What keeps a state file from being loaded, or makes it dangerous to load: a pickle may call anything."""
    from ops.checkpoints import torchfile
    from ops.checkpoints.pickle_walk import Call, Global

    if problems := torchfile.structure_problems(file):
        return problems
    tree = torchfile.read(file).tree if file.stat().st_size <= LOOKED_INTO else None
    if isinstance(tree, Call) and isinstance(tree.func, Global):
        return (f"no state, but a pickle that calls {tree.func.module}.{tree.func.name} when it is loaded",)
    return ()


def _plain(names: frozenset[str]) -> list[str]:
    problems = []
    if not any(n.startswith(("model", "pytorch_model")) for n in names):
        problems.append("accelerator_state/model.safetensors (the weights) is missing")
    if not any(n.startswith("optimizer") for n in names):
        problems.append("accelerator_state/optimizer.bin is missing")
    return problems


def _ranks(folder: Path) -> list[str]:
    """DeepSpeed: as many optimizer shards as the highest rank says."""
    ranks = sorted(
        int(m.group(1))
        for n in _names(folder)
        if (m := re.search(r"zero_pp_rank_(\d+)_mp_rank_00_optim_states\.pt$", n))
    )
    if not ranks:
        return ["accelerator_state/pytorch_model holds no optimizer shard"]
    missing = sorted(set(range(ranks[-1] + 1)) - set(ranks))
    return [f"accelerator_state/pytorch_model lacks the shards of ranks {missing}"] if missing else []


def strays(path: Path) -> tuple[str, ...]:
    """Files where Accelerate and DeepSpeed load from that no contract names (`custom_checkpoint_0.pkl.orig`)."""
    state = path / "accelerator_state"
    found = [f"accelerator_state/{n}" for n in sorted(_names(state)) if not _BELONGS.fullmatch(n)]
    shards = _names(state / "pytorch_model") if (state / "pytorch_model").is_dir() else frozenset()
    return tuple(found + [f"accelerator_state/pytorch_model/{n}" for n in sorted(shards) if not _SHARD.fullmatch(n)])


def _size(path: Path) -> int:
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
