"""A first scan of a large log with the whole catalogue, beside grep -E and ripgrep with the same literals.

    python bench/log_scan.py [MEGABYTES]

The log (default 1000 MB) is of 64 nodes × 8 ranks whose lines are interleaved, with progress every few hundred lines and
a few failures. All read it with the page cache warm; m4ops also parses the progress lines. Start-up is included.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ops.catalogue.signatures import SIGNATURES

PROGRESS = (
    "0: [2026-01-01 10:11:12] iteration: {:6d}/500000   0% | elapsed time: 19:29:30 | per_token_loss: 2.3900 | "
    "lr: 9.942E-06 | num_tokens: 1536772503 | fwd_bwd_time: 80734.8 | tflops_fwd_bwd: 2.448E+03 |\n"
)
FAILURE = (
    "[rank7]: RuntimeError: CUDA error: unspecified launch failure\n"
    "srun: error: Node failure on n37\n"
    "slurmstepd: error: *** STEP 19.0 ON n1 CANCELLED AT 2026-03-06T03:17:51 DUE TO NODE FAILURE ***\n"
)
SCAN = (
    "import sys, time, resource\nfrom pathlib import Path\nfrom ops import detectors\nfrom ops.logs import read_batches\n"
    "begun, events, samples = time.process_time(), 0, 0\n"
    "for view, cursor in read_batches(Path(sys.argv[1]), None):\n"
    "    events += len(view.events); samples += len(view.samples)\n"
    "used = resource.getrusage(resource.RUSAGE_SELF)\n"
    "peak = Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]\n"
    "print(time.process_time() - begun, peak, events, samples, used.ru_utime + used.ru_stime)\n"
)


def write(path: Path, size: int) -> None:
    """The log. Its blocks repeat after 8 MB, which no scanner can make use of."""
    draw, block, step = random.Random(1), [], 0
    for _ in range(80_000):
        rank = draw.randrange(512)
        block.append(
            f"{rank}: [2026-01-01 10:11:{draw.randrange(60):02d}] n{rank // 8}: shard {draw.randrange(10**6)} ready in "
            f"{draw.random():.3f} s, queue {draw.randrange(9)}, worker {draw.randrange(99999)}\n"
        )
        if draw.random() < 1 / 400:
            block.append(PROGRESS.format(step := step + 25))
    data = "".join(block).encode()
    with path.open("wb") as log:
        while log.tell() < size:
            log.write(data)
            if log.tell() % (10 * len(data)) == 0:
                log.write(FAILURE.encode())


def patterns() -> str:
    """The catalogue's literals as POSIX extended expressions, one a line: what every matching line contains."""
    literals = dict.fromkeys(text for s in SIGNATURES for text in s.literals)
    return "".join(re.sub(r"([][.*^$+?(){}|\\])", r"\\\1", text) + "\n" for text in literals)


def cpu(argv: list[str], **more: object) -> tuple[float, str]:
    """User and system seconds of a process, and what it printed."""
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(argv, stdout=out, env={**os.environ, "LC_ALL": "C"})
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            raise SystemExit(f"{argv} ended with {process.returncode}")
        out.seek(0)
        return used.ru_utime + used.ru_stime, out.read()


def main(megabytes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        log, listed = Path(name) / "main_log.txt", Path(name) / "patterns"
        write(log, megabytes * 10**6)
        listed.write_text(patterns())
        size = log.stat().st_size
        cpu(["cat", str(log)])
        peers: dict[str, float] = {}
        for label, argv in (
            ("grep -E", ["grep", "-c", "-E", "-f", str(listed), str(log)]),
            ("ripgrep", ["rg", "-c", "--no-unicode", "-f", str(listed), str(log)]),
        ):
            if shutil.which(argv[0]) is None:
                print(f"{label:8} is not installed")
                continue
            used, said = cpu(argv)
            peers[label] = used
            print(f"{label:8} {used:6.2f} s CPU  {size / used / 1e9:5.2f} GB/s  {said.strip()} lines")
        _, said = cpu([sys.executable, "-c", SCAN, str(log)])
        _, peak, events, samples, whole = map(float, said.split())
        print(
            f"m4ops    {whole:6.2f} s CPU  {size / whole / 1e9:5.2f} GB/s  {events:.0f} events, {samples:.0f} steps; "
            f"peak memory {peak / 1024:.0f} MB; "
            + ", ".join(f"{used / whole:.2f} x as fast as {peer}" for peer, used in peers.items())
        )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1].isdigit() else 1000)
