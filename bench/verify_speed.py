"""How fast `verify-checkpoint` reads: checksums, and checksums with the search for NaN and Inf, beside `cat`.

    python bench/verify_speed.py [--gigabytes 2] [--rounds 5] [--folder DIR]

One torch file of normally distributed float32, warm in the page cache. Each round runs `cat FILE > /dev/null`, then the
two looks of `ops.checkpoints.deep`, in turn; printed are the medians of the ratios to that round's cat. Also the time of
the look at the structure alone. What is measured is what is installed: zlib alone, or also the extra `fast` (isal, numpy).
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ops.checkpoints import deep, verify

MAKE = "import sys, torch; torch.save({'w': torch.randn(int(sys.argv[1]))}, sys.argv[2])"


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    if work():
        raise SystemExit("a good file was found damaged")
    return time.perf_counter() - began


def cat(path: Path) -> None:
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: the system's temporary folder)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        path = Path(name) / "optimizer.bin"
        subprocess.run([sys.executable, "-c", MAKE, str(int(options.gigabytes * 1e9 / 4)), str(path)], check=True)
        os.sync()
        cat(path)
        rows = []
        for _ in range(options.rounds):
            whole = seconds(lambda: cat(path))
            crcs = seconds(lambda: deep.faults(path, path.name, False, lambda _: None))
            both = seconds(lambda: deep.faults(path, path.name, True, lambda _: None))
            rows.append((whole, crcs, both, seconds(lambda: verify.structure(path))))
            speeds = [path.stat().st_size / 1e9 / t for t in rows[-1][:3]]
            print("  cat {:.1f}, checksums {:.1f}, with NaN and Inf {:.1f} GB/s".format(*speeds), flush=True)
        crcs, both = (100 * statistics.median(row[0] / row[i] for row in rows) for i in (1, 2))
        print(f"checksums at {crcs:.0f} % of cat (aim 60 %), with NaN and Inf at {both:.0f} % (aim 35 %)")
        print(f"structure in {1000 * statistics.median(row[3] for row in rows):.2f} ms")


if __name__ == "__main__":
    main()
