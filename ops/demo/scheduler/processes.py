"""Processes of a job: everything below its supervisor, wherever it moved its sessions and groups."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER, prctl(2): orphans below this process become its children, not those of init."""


def adopt_orphans() -> None:
    """From now on no descendant of this process can leave the tree."""
    import ctypes

    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def birth(pid: int) -> int:
    """When a process started (clock ticks since boot); 0 if it is gone or a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] != "Z" else 0


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the command name: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def descendants(pid: int) -> list[int]:
    """All processes below `pid`, itself excluded, zombies too."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _stat(int(name))):
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    todo = [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def has_variable(pid: int, setting: str) -> bool:
    """Whether the process was started with an environment entry that begins so."""
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(entry.startswith(setting.encode()) for entry in entries)


def in_step(pid: int) -> bool:
    """Whether the process was started through srun."""
    return has_variable(pid, "SLURM_STEP_ID=")


def send(pids: list[int], number: int) -> None:
    """Signal processes; those that are gone do not matter."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def terminate(pids: list[int]) -> None:
    """SIGCONT, then SIGTERM, as Slurm begins to end a job."""
    send(pids, signal.SIGCONT)
    send(pids, signal.SIGTERM)
