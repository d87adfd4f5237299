"""What a tick over a large log costs: the first one, and those after 0 bytes, 1 kB and 1 MB of new lines.

    python bench/log_ticks.py [MEGABYTES]

The log is that of bench/log_scan.py (default 1000 MB, 64 nodes × 8 ranks interleaved, progress and failures between), in a
run whose job is in the queue of the embedded scheduler. Each tick is `m4ops check`, a process of its own; told are user and system time
with start-up, the peak of its memory, and the bytes it read less those a check of a run with an empty log reads.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from log_scan import write

CHECK = (
    "import resource, sys\nfrom pathlib import Path\nfrom ops.cli import main\n"
    "sys.argv = ['m4ops', 'check', '--json']\n"
    "try:\n    main()\nexcept SystemExit:\n    pass\n"
    "used = resource.getrusage(resource.RUSAGE_SELF)\n"
    "peak = Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]\n"
    "read = Path('/proc/self/io').read_text().split()[1]\n"
    "print(used.ru_utime + used.ru_stime, peak, read, file=sys.stderr)\n"
)


def tick(run: Path, scheduler: Path) -> tuple[float, float, int]:
    """CPU seconds, peak memory in MB, and bytes read of one check."""
    env = {**os.environ, "M4OPS_RUN": str(run), "M4OPS_EMBEDDED": str(scheduler)}
    done = subprocess.run([sys.executable, "-c", CHECK], env=env, capture_output=True, text=True, check=True)
    used, peak, read = done.stderr.split()[-3:]
    return float(used), float(peak) / 1024, int(read)


def made(folder: Path) -> Path:
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "main_log.txt").touch()
    return folder


def main(megabytes: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        scheduler = folder / "scheduler"
        scheduler.mkdir()
        empty, run = made(folder / "tr_empty"), made(folder / "tr_large")
        log = run / "logs" / "main_log.txt"
        write(log, megabytes * 10**6)
        news = log.read_bytes()[: 1 << 20]
        tick(empty, scheduler)
        *_, floor = tick(empty, scheduler)
        for what, new in (
            ("the first tick", b""),
            ("nothing new", b""),
            ("1 kB new", news[:1000]),
            ("1 MB new", news[: 10**6]),
            ("nothing new", b""),
        ):
            with log.open("ab") as opened:
                opened.write(new[: new.rfind(b"\n") + 1])
            used, peak, read = tick(run, scheduler)
            print(f"{what:15} {1000 * used:7.0f} ms CPU  {peak:4.0f} MB peak  {(read - floor) / 1e6:9.3f} MB read")
        kept = sum(file.stat().st_size for file in (run / ".m4ops").rglob("*") if file.is_file())
        print(f"kept of it      {kept / 1e6:.3f} MB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
