"""Is what `m4ops extract` writes, to the byte, what DeepSpeed's own converter writes? On checkpoints of the real engine.

    python bench/extract_exactness.py [width …]

trains, for each width (default: 7 and 16) and with ZeRO stages 1, 2 and 3 on 1, 2, 3 and 8 ranks, a small model in bf16 and
in fp32: odd sizes, a frozen layer (stages 2 and 3; at stage 1 DeepSpeed loses those), buffers, two parameter groups,
several sub-groups. Each checkpoint is written out as fp32, as bf16 and as many small fp32 files, by `m4ops extract` and by
DeepSpeed's converter (`--safe_serialization`). Prints a line a checkpoint; the exit code is 1 if one byte differs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from ops import extract
from ops.checkpoints.weights import weights_of

SAVER = Path(__file__).parent.parent / "tests" / "zero_checkpoints.py"
NAMES = [f"z{stage}_{kind}_w{ranks}" for ranks, stage, kind in product((1, 2, 3, 8), (1, 2, 3), ("bf16", "fp32"))]
FORMS = {"fp32": ("float32", extract.SHARD), "bf16": ("bfloat16", extract.SHARD), "several": ("float32", 600)}


def compared(place: Path) -> dict[str, int]:
    """Of each form the bytes that are the same as DeepSpeed's; -1: something differs."""
    weights, found = weights_of(place), {}
    for form, (dtype, limit) in FORMS.items():
        theirs = {p.name: p.read_bytes() for p in (place / form).iterdir()}
        out = place / "m4ops" / form
        extract.extract(extract.job(weights, out, place / "staging", dtype, limit))
        ours = {p.name: p.read_bytes() for p in out.iterdir()}
        found[form] = sum(map(len, ours.values())) if ours == theirs else -1
    return found


def main() -> None:
    widths, wrong, count = sys.argv[1:] or ["7", "16"], 0, 0
    for width in widths:
        with tempfile.TemporaryDirectory(prefix="m4ops-exactness-") as folder:
            saver = (sys.executable, str(SAVER), folder, *NAMES, "--size", width)
            subprocess.run(saver, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            for name in NAMES:
                found = compared(Path(folder) / name)
                wrong, count = wrong + (-1 in found.values()), count + 1
                told = ", ".join(f"{form} {'DIFFERS' if size < 0 else f'{size} bytes'}" for form, size in found.items())
                print(f"width {width:3} {weights_of(Path(folder) / name).kind:18} {name[3:7]}: {told}", flush=True)
    print(f"{count - wrong} of {count} checkpoints give the same bytes as DeepSpeed's converter, in every form")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
