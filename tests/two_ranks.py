"""Start a training on two ranks of this machine, as torchrun does."""

import os
import subprocess
import sys
from pathlib import Path


def launch(trainer: str, *words: str) -> None:
    """Run a program of this folder on both ranks, to its end."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(Path(__file__).with_name(trainer)), *words], env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
