"""What was extracted beside what DeepSpeed's own converter makes of the same checkpoint."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from ops.checkpoints import safetensors
from ops.checkpoints.safetensors import Slot
from ops.errors import OpsError, Refused
from ops.extract.job import Job
from ops.shell import Shell

LIMIT = 24 * 3600.0
"""Seconds the converter is given."""
_CHUNK = 8 << 20


def compared(work: Job, checkpoint: Path, dtype: str, shell: Shell) -> tuple[int, int]:
    """How many tensors are the same to the byte, and how many only m4ops writes (frozen ones at stage 1).

    Raises Refused when DeepSpeed is not installed or its converter fails, OpsError when a tensor differs or is missing.
    """
    if find_spec("deepspeed") is None:
        raise Refused("DeepSpeed is not installed here", sys.prefix, "pip install 'm4ops[deepspeed]'")
    theirs = work.staging.with_name(f"{work.staging.name}.deepspeed")
    shutil.rmtree(theirs, ignore_errors=True)
    try:
        _convert(checkpoint, theirs, dtype, shell)
        return _same(_tensors(work.target), _tensors(theirs))
    finally:
        shutil.rmtree(theirs, ignore_errors=True)


def _convert(checkpoint: Path, target: Path, dtype: str, shell: Shell) -> None:
    state = checkpoint / "accelerator_state"
    argv = (
        *("env", "DS_ACCELERATOR=cpu", sys.executable, "-m", "deepspeed.utils.zero_to_torch"),
        *(str(state if state.is_dir() else checkpoint), str(target), "--dtype", dtype, "--safe_serialization"),
    )
    said = shell(argv, LIMIT)
    if said.returncode:
        last = [line for line in said.stderr.splitlines() if line.strip()][-1:]
        raise Refused(f"DeepSpeed's converter failed: {''.join(last).strip()[:300]}", " ".join(argv))


def _tensors(folder: Path) -> dict[str, tuple[Path, Slot]]:
    return {slot.name: (path, slot) for path in sorted(folder.glob("*.safetensors")) for slot in safetensors.read(path)}


def _same(ours: Mapping[str, tuple[Path, Slot]], theirs: Mapping[str, tuple[Path, Slot]]) -> tuple[int, int]:
    for name, (path, slot) in theirs.items():
        mine = ours.get(name)
        if mine is None or (mine[1].dtype, mine[1].shape) != (slot.dtype, slot.shape):
            raise OpsError(f"tensor {name} is another one in DeepSpeed's output, or missing here", str(path))
        if not _equal(mine, (path, slot)):
            raise OpsError(f"tensor {name} differs from DeepSpeed's", str(mine[0]), "please report this")
    return len(theirs), len(ours.keys() - theirs.keys())


def _equal(one: tuple[Path, Slot], other: tuple[Path, Slot]) -> bool:
    with open(one[0], "rb") as a, open(other[0], "rb") as b:
        for at in range(0, one[1].end - one[1].begin, _CHUNK):
            size = min(_CHUNK, one[1].end - one[1].begin - at)
            mine, yours = (os.pread(f.fileno(), size, s.begin + at) for f, s in ((a, one[1]), (b, other[1])))
            if mine != yours or len(mine) != size:
                return False
    return True
