"""What is told to go wrong in the demo's training, and whether it has happened already; see the table in `ops.demo.trainer`."""

import json
import os
import signal
import socket
from datetime import datetime
from pathlib import Path
from typing import NoReturn

from ops.demo.contract import first_process, job_id, say
from ops.demo.training_config import Faults


def fired(save_dir: Path) -> dict[str, int]:
    """The faults that this run has had already, with their step: they do not come again after a resume."""
    path = _noted(save_dir)
    found: dict[str, int] = json.loads(path.read_text()) if path.exists() else {}
    return found


def fail_if_told(fault: Faults, had: dict[str, int], save_dir: Path, step: int) -> None:
    """The faults of process and node, on the first process; those of the data are in its stream, and only noted here."""
    if not first_process():
        return
    for name in ("spike_at", "nan_at", "hang_at", "lose_node_at"):
        if getattr(fault, name) != step or name in had:
            continue
        _noted(save_dir).write_text(json.dumps(fired(save_dir) | {name: step}, indent=2))
        if name == "lose_node_at":
            lose_node(fault.node)
        if name == "hang_at":
            hang()


def hang() -> NoReturn:
    """Sleep until a signal ends the process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        signal.pause()


def lose_node(node: str | None) -> NoReturn:
    """Say what srun and slurmstepd say when a node fails, and die as a task on that node does."""
    first = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    at = datetime.now().astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    say(f"srun: error: Node failure on {node or first}")
    say("srun: Job step aborted: Waiting up to 62 seconds for job step to finish.")
    say(
        f"slurmstepd: error: *** STEP {job_id()}.0 ON {first} CANCELLED AT {at} DUE TO NODE FAILURE, "
        "SEE SLURMCTLD LOG FOR DETAILS ***"
    )
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("SIGKILL does not return")


def _noted(save_dir: Path) -> Path:
    return save_dir / "logs" / "faults_fired.json"
