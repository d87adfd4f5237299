"""Does the memory of `m4ops extract` grow with the model? Peak resident memory for 2 GB and for 8 GB of fp32 weights.

    python bench/extract_memory.py FOLDER [GB …]

The real engine writes a small ZeRO-3 checkpoint of two ranks into FOLDER. Its shards are then saved again by torch with
parameters as large as is asked for (zeros: the engine itself would need 16 bytes of memory a parameter), one size at a
time, extracted as fp32 and as bf16, and removed. Needs 2.5 times the largest size on the disk.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

NAME, LAYERS = "z3_bf16_w2", 16
SAVER = Path(__file__).parent.parent / "tests" / "zero_checkpoints.py"


def widened(small: Path, large: Path, size: int) -> None:
    """The small checkpoint's files with `LAYERS` parameters of `size` bytes of fp32 altogether, and nothing else."""
    import torch

    rows = size // 4 // LAYERS // 1024
    shapes = {f"layers.{i}.weight": torch.Size((rows, 1024)) for i in range(LAYERS)}
    shutil.copytree(small, large)
    (large / "finished-saving").touch()
    for path in (large / "accelerator_state" / "pytorch_model").iterdir():
        state = torch.load(path, weights_only=False)
        if "optimizer_state_dict" in state:
            empty = path.with_name("zeros")
            part = torch.from_file(str(empty), shared=True, size=rows * 1024 * LAYERS // 2)
            state["optimizer_state_dict"]["fp32_flat_groups"] = [part]
            state["optimizer_state_dict"]["optimizer_state_dict"]["state"] = {}
            torch.save(state, path)
            empty.unlink()
        else:
            torch.save(
                {**state, "param_shapes": [shapes], "frozen_param_shapes": {}, "module": {}, "buffer_names": []}, path
            )


def peak(place: Path, dtype: str) -> tuple[float, int]:
    """MB of resident memory at most, and the bytes written."""
    out = place / "out"
    argv = (sys.executable, "-m", "ops.cli", "extract", str(place), "--out", str(out), "--dtype", dtype)
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv} ended with {process.returncode}")
    written = sum(p.stat().st_size for p in out.iterdir())
    shutil.rmtree(out)
    return used.ru_maxrss / 1024, written


def main() -> None:
    folder, sizes = Path(sys.argv[1]), [float(word) for word in sys.argv[2:]] or [2.0, 8.0]
    if not (folder / NAME).is_dir():
        subprocess.run(
            (sys.executable, str(SAVER), str(folder), NAME, "--no-reference"), check=True, capture_output=True
        )
    for gigabytes in sizes:
        large = folder / f"large-{gigabytes:g}"
        try:
            make = multiprocessing.get_context("spawn").Process(
                target=widened, args=(folder / NAME, large, int(gigabytes * 1e9))
            )
            make.start()  # apart: what this process had in memory would count for those it starts
            make.join()
            for dtype in ("fp32", "bf16"):
                memory, written = peak(large, dtype)
                print(
                    f"{gigabytes:g} GB of weights as {dtype}: {written / 1e9:.2f} GB written, {memory:.0f} MB at most",
                    flush=True,
                )
        finally:
            shutil.rmtree(large, ignore_errors=True)


if __name__ == "__main__":
    main()
