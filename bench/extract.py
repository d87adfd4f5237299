"""`m4ops extract` beside `cp` of the same bytes and DeepSpeed's own converter, on a real ZeRO-3 checkpoint.

    python bench/extract.py FOLDER [rounds] [size]

The first call trains and saves a model in FOLDER (two ranks, four layers; a width of `size` = 8192 gives 2.15 GB of fp32
weights and takes some minutes and 16 GB of memory). Each round then runs every program once, one after the other in an
order drawn anew, each in a process of its own and with its output on the disk (fsync) when its time ends. Prints the
medians of seconds with their range and of peak memory, the ratios, and whether the files are the same. The page cache is
warm for all of them.
"""

from __future__ import annotations

import filecmp
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

NAME = "z3_bf16_w2"
SAVER = Path(__file__).parent.parent / "tests" / "zero_checkpoints.py"
OURS = (sys.executable, "-m", "ops.cli", "extract")
THEIRS = (sys.executable, "-m", "deepspeed.utils.zero_to_torch")


def measured(*argv: str, out: Path) -> tuple[float, float]:
    """Seconds until the output is on the disk, and the peak of resident memory in MB."""
    env = {**os.environ, "DS_ACCELERATOR": "cpu"}
    start = time.perf_counter()
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        said = process.stderr.read() if process.stderr else b""
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{argv} ended with {process.returncode}: {said.decode()[-2000:]}")
    for path in (p for p in out.iterdir() if p.is_file()):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    return time.perf_counter() - start, used.ru_maxrss / 1024


def programs(place: Path) -> dict[str, tuple[tuple[str, ...], Path]]:
    """What is run, and where it writes."""
    state, out = str(place / "accelerator_state"), place.parent / "out"
    found = {}
    for dtype in ("fp32", "bf16"):
        ours, theirs = out / f"m4ops-{dtype}", out / f"deepspeed-{dtype}"
        found[f"m4ops {dtype}"] = ((*OURS, str(place), "--out", str(ours), "--dtype", dtype), ours)
        found[f"deepspeed {dtype}"] = ((*THEIRS, state, str(theirs), "--dtype", dtype, "--safe_serialization"), theirs)
        found[f"cp {dtype}"] = (("cp", "-r", str(out / f"kept-{dtype}"), str(out / f"cp-{dtype}")), out / f"cp-{dtype}")
    return found


def main() -> None:
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 3
    size = sys.argv[3] if len(sys.argv) > 3 else "8192"
    place = folder / NAME
    if not place.is_dir():
        saver = (sys.executable, str(SAVER), str(folder), NAME, "--size", size, "--layers", "4", "--no-reference")
        subprocess.run(saver, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    (place / "finished-saving").touch()
    (folder / "out").mkdir(exist_ok=True)
    runs = programs(place)
    for dtype in ("fp32", "bf16"):  # what cp copies
        kept = folder / "out" / f"kept-{dtype}"
        if not kept.is_dir():
            measured(*OURS, str(place), "--out", str(kept), "--dtype", dtype, out=folder)
    draw = random.Random(0)
    results: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, (argv, out) in draw.sample(sorted(runs.items()), len(runs)):
            shutil.rmtree(out, ignore_errors=True)
            results[name].append(measured(*argv, out=out))
    told(results, folder / "out", rounds)


def told(results: dict[str, list[tuple[float, float]]], out: Path, rounds: int) -> None:
    """The medians, the ratios, and whether the bytes are the same."""
    middle = {name: statistics.median(s for s, _ in found) for name, found in results.items()}
    for name, found in results.items():
        seconds, memory = [s for s, _ in found], max(m for _, m in found)
        print(f"{name:15} {middle[name]:7.2f} s  [{min(seconds):.2f} .. {max(seconds):.2f}]  {memory:6.0f} MB at most")
    for dtype in ("fp32", "bf16"):
        ours, theirs, copy = (middle[f"{who} {dtype}"] for who in ("m4ops", "deepspeed", "cp"))
        size = sum(p.stat().st_size for p in (out / f"m4ops-{dtype}").iterdir())
        names = sorted(p.name for p in (out / f"deepspeed-{dtype}").iterdir())
        _, differ, errors = filecmp.cmpfiles(out / f"m4ops-{dtype}", out / f"deepspeed-{dtype}", names, shallow=False)
        same = "the same bytes" if not differ and not errors else f"DIFFERENT: {differ + errors}"
        print(
            f"{dtype}: {size / 1e9:.2f} GB, {theirs / ours:.1f} × as fast as DeepSpeed, {ours / copy:.2f} × cp's time, {same}"
        )
    print(f"medians of {rounds} rounds, interleaved")


if __name__ == "__main__":
    main()
