"""Processes that outlive nobody: started apart, recorded with their start time, ended by that record."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Process:
    """A process, told apart from a later one with the same pid by its start time (clock ticks since boot)."""

    pid: int
    start: str

    @property
    def alive(self) -> bool:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        state, start = _stat(self.pid)
        return start == self.start and state not in ("Z", "X")

    def send(self, number: int) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def end(self, number: int = signal.SIGKILL, limit: float = 10.0) -> None:
        """Signal it, wait, and kill what is left after `limit` seconds."""
        self.send(number)
        if not until(lambda: not self.alive, limit):
            self.send(signal.SIGKILL)
            until(lambda: not self.alive, limit)


def start(argv: Sequence[str], env: Mapping[str, str], output: Path, tied: bool) -> Process:
    """Run a program in a session of its own, its output to a file. `tied`: it dies with this process, however that ends."""
    argv = ["/usr/bin/setpriv", "--pdeathsig", "KILL", "--", *argv] if tied else ["/usr/bin/env", *argv]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    pid = os.posix_spawn(argv[0], argv, dict(env), file_actions=actions, setsid=True)
    return Process(pid, _stat(pid)[1])


def inside(pid: int) -> Iterator[int]:
    """Every process in the pid namespace of `pid`, `pid` included."""
    space = os.readlink(f"/proc/{pid}/ns/pid")
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.readlink(entry / "ns" / "pid") == space:
                yield int(entry.name)


def child(pid: int) -> int | None:
    """The only child of a process."""
    try:
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    except (OSError, IndexError):
        return None


PATIENCE = 120.0
"""Seconds after which what is waited for will not come any more, on a slow and loaded machine too."""


def until(condition: Callable[[], object], limit: float = PATIENCE, pause: float = 0.02) -> bool:
    """Poll until the condition holds; False at the limit."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def _stat(pid: int) -> tuple[str, str]:
    """State and start time of /proc/PID/stat (proc(5)); empty when there is no such process."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return "", ""
    return words[0], words[19]
