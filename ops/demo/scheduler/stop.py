"""Take a whole scheduler down: for the end of a demo or a test, where nothing may be left running."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path

from ops.demo.scheduler import processes, runner, spool
from ops.demo.scheduler.state import locked
from ops.demo.scheduler.words import CANCELLED


def stop(root: Path, limit: float = 10.0) -> None:
    """Cancel everything and end every process of this root at once; returns when none is left.

    Raises TimeoutError if some still are after `limit` seconds.
    """
    if not (root / "state.json").exists():
        return
    until = time.monotonic() + limit
    now = time.time()
    while runner.alive(root):
        processes.send([pid for pid in [runner.pid(root)] if pid], signal.SIGKILL)
        _not_yet(until, root)
    with locked(root) as table:
        running = [t for t in table.tasks.values() if not t.finished]
        for task in [t for t in table.tasks.values() if not t.finished]:
            table.put(replace(task, state=CANCELLED, start=task.start or now, end=now, ending=""))
    supervisors = [pid for t in running if (pid := spool.supervisor(root, t)) > 0]
    while left := [p for s in supervisors for p in (s, *processes.descendants(s)) if processes.birth(p)]:
        processes.send(left, signal.SIGKILL)
        _not_yet(until, root)


def _not_yet(until: float, root: Path) -> None:
    if time.monotonic() > until:
        raise TimeoutError(f"processes of the scheduler in {root} are still there; see {root / 'runner.log'}")
    time.sleep(0.02)
