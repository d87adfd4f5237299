"""Writing the journal: one JSON line an event, appended and fsynced before the next thing happens.

But that a file was changed is on the disk with the event that follows at once: if it is lost, the file still tells.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from ops import plan as plans
from ops.errors import OpsError
from ops.plan import Plan


class Writer(Struct, frozen=True):
    """Appends the events of one change."""

    path: Path
    id: str
    user: str
    now: Callable[[], float]

    @property
    def run_dir(self) -> Path:
        return self.path.parent.parent

    def plan(self, plan: Plan, log_size: int | None, event: str = "plan") -> None:
        who = {"user": self.user, "host": os.uname().nodename}
        self._append(event, {**who, "log_size": log_size, "plan": plans.to_json(plan)})

    def sealed(self, after: list[tuple[int, str]]) -> None:
        """Fingerprints of what rewrites will leave, by the action's index."""
        if after:
            self._append("sealed", {"after": after})

    def applying(self, index: int, splices: tuple[tuple[int, bytes, bytes], ...] = ()) -> None:
        hexed = {"splices": [(o, a.hex(), b.hex()) for o, a, b in splices]} if splices else {}
        self._append("applying", {"action": index, **hexed})

    def applied(self, index: int, durable: bool) -> None:
        """`durable`: nothing but this note tells that it was done. Whether a file was changed, the file itself tells."""
        self._append("applied", {"action": index}, durable)

    def end(self, event: str, quiet: bool = False) -> None:
        """`done` or `rolled-back`; quietly where the world is right already and only the note may fail."""
        with contextlib.suppress(OpsError) if quiet else contextlib.nullcontext():
            self._append(event)

    def _append(self, event: str, fields: dict[str, Any] | None = None, durable: bool = True) -> None:
        record = {"id": self.id, "event": event, "time": self.now(), **(fields or {})}
        try:
            append(self.path, json.dumps(record, ensure_ascii=True), durable)
        except OSError as error:
            raise OpsError(f"the journal cannot be written: {error.strerror}", str(self.path)) from error


def append(path: Path, line: str, durable: bool = True) -> None:
    """Append a line; a torn line that a crash left is ended first, and one that fails is taken back.

    `durable`: it is on the disk, with all before it, when this returns.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(handle).st_size
        if size == 0:
            os.fchmod(handle, path.parent.stat().st_mode & 0o666)
        torn = size > 0 and os.pread(handle, 1, size - 1) != b"\n"
        data = (b"\n" if torn else b"") + line.encode() + b"\n"
        try:
            if os.write(handle, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            if durable:
                os.fsync(handle)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(handle, size)
            raise
    finally:
        os.close(handle)
