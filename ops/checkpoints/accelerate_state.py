"""The folder that Accelerate's `save_state` writes: what belongs there, and what a resume would miss.

Source: accelerate `checkpointing.py` and `utils/constants.py`; DeepSpeed `runtime/engine.py` for the shards below it.
"""

from __future__ import annotations

import re
from pathlib import Path

from ops.checkpoints.folders import engine_scheduler, file_problems, fsdp_problems, names, shard_problems

_BELONGS = re.compile(
    r"custom_checkpoint_(?:0|[1-9]\d*)\.pkl|random_states_\d+\.pkl|(?:model|pytorch_model)(?:[-_]\d+.*)?\.(?:safetensors|bin)(?:\.index\.json)?"
    r"|(?:optimizer|scheduler|sampler|dl_state_dict)(?:_\d+)?\.bin|scaler\.pt|latest|zero_to_(?:fp32|torch)\.py|pytorch_model"
    r"|(?:pytorch_model_fsdp|optimizer)_\d+|(?:pytorch_model_fsdp|optimizer)(?:_\d+)?(?:_rank\d+)?\.bin"  # FSDP's
    r"|\.nfs[0-9a-f]+"  # what NFS leaves of a removed file that is still open; no loader takes it
)
HARMLESS = "no version of Accelerate or DeepSpeed loads it"
_END = "ends the job"
_SHARD = re.compile(
    r"(?:bf16_|fp16_)?zero_pp_rank_\d+_mp_rank_\d+_(?:model|optim)_states\.pt|mp_rank_\d+_model_states\.pt|\.nfs[0-9a-f]+"
)


def strays(state: Path) -> tuple[str, ...]:
    """Files that no contract names, and that change what is loaded from there (`custom_checkpoint_0.pkl.orig`)."""
    return tuple(name for name in _foreign(state) if effect(name) != HARMLESS)


def idle(state: Path) -> tuple[str, ...]:
    """Files that no contract names, and that nothing loads."""
    return tuple(name for name in _foreign(state) if effect(name) == HARMLESS)


def _foreign(state: Path) -> tuple[str, ...]:
    found = sorted(n for n in names(state) if not _BELONGS.fullmatch(n))
    shards = names(state / "pytorch_model") if (state / "pytorch_model").is_dir() else frozenset()
    return tuple(found + [f"pytorch_model/{n}" for n in sorted(shards) if not _SHARD.fullmatch(n)])


def effect(name: str) -> str:
    """What a foreign file of that name does to a resume, by the versions of what loads from its folder.

    Source: accelerate `accelerator.py`, `load_state`: until 0.20.3 every name with `custom_checkpoint` in it counted,
    and where the count was not that of the registered objects all were skipped with a warning; 0.21 (#1568, #1571)
    takes `custom_checkpoint_N.pkl` alone, and raises. DeepSpeed `runtime/engine.py`, `utils/zero_to_fp32.py` (globs).
    """
    file = name.rpartition("/")[2]
    if re.fullmatch(r"custom_checkpoint_\d+\.pkl", file):
        return f"Accelerate up to 0.20.3 then loads no scheduler, in silence; from 0.21 on it {_END}"
    if "custom_checkpoint" in file:
        return "Accelerate up to 0.20.3 then loads no scheduler, in silence; from 0.21 on it is ignored"
    if "mp_rank_" in file and file.endswith("_model_states.pt"):
        return f"DeepSpeed takes it for a rank's, and {_END}"
    if file.endswith("_optim_states.pt"):
        return "a resume ignores it, zero_to_fp32.py ends with an error"
    return HARMLESS


def _ends(name: str) -> bool:
    """Whether a foreign file ends the job that resumes, by what is installed today."""
    return effect(name).endswith(_END)


def has_scheduler(state: Path) -> bool:
    """Whether an LR scheduler was saved: by Accelerate, or by DeepSpeed's engine."""
    own = any(re.fullmatch(r"custom_checkpoint_\d+\.pkl|scheduler(_\d+)?\.bin", n) for n in names(state))
    return own or engine_scheduler(state / "pytorch_model") is not None


def problems(state: Path, deep: bool) -> list[str]:
    """What a resume would miss; looked into `deep`, also what is wrong with each file."""
    inside = names(state)
    found = shard_problems(state / "pytorch_model") if "pytorch_model" in inside else _plain(inside)
    numbers = {int(m[1]) for n in inside if (m := re.fullmatch(r"custom_checkpoint_(0|[1-9]\d*)\.pkl", n))}
    gaps = sorted(set(range(max(numbers, default=-1))) - numbers)
    found += [f"custom_checkpoint_{n}.pkl is missing, and a later one is there: the load ends the job" for n in gaps]
    found += [f"{name} does not belong here: {effect(name)}" for name in strays(state) if _ends(name)]
    if deep:
        found += fsdp_problems(state)
        files = [
            f
            for f in sorted(state.rglob("*"))
            if f.is_file() and (_BELONGS.fullmatch(f.name) or _SHARD.fullmatch(f.name))
        ]
        for file in (f for f in files if f.suffix in (".pkl", ".bin", ".pt")):
            if not file.name.startswith("random_states"):
                found += [f"{file.relative_to(state)}: {p}" for p in file_problems(file)]
    return found


def _plain(inside: frozenset[str]) -> list[str]:
    found = []
    if not any(n.startswith(("model", "pytorch_model")) for n in inside):
        found.append("model.safetensors (the weights) is missing")
    if not any(n.startswith("optimizer") for n in inside):
        found.append("optimizer.bin is missing")
    return found
