"""Empty the trash: the one thing m4ops does that cannot be undone. Journalled, alone at the run, resumed if cut short."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from ops import journal, lease
from ops.errors import OpsError
from ops.executor.record import Writer
from ops.executor.world import World
from ops.interventions import prune
from ops.model import OPS_DIR, Unknown

LEASE_SECONDS = 600.0


def folder(run_dir: Path) -> Path:
    return run_dir / OPS_DIR / prune.TRASH


def held(run_dir: Path) -> tuple[str, ...]:
    """Names of what lies in the trash, half removed folders included."""
    return tuple(sorted(os.listdir(folder(run_dir)))) if folder(run_dir).is_dir() else ()


def empty(run_dir: Path, names: Sequence[str], size: int, command: str, world: World) -> str:
    """Remove these folders of the trash for good. Returns the change's id. Raises Busy, OpsError."""
    with lease.acquire(run_dir / OPS_DIR / "lock", "empty the trash", LEASE_SECONDS, take_expired=False) as mine:
        entries = journal.read(run_dir)
        if isinstance(entries, Unknown):
            raise OpsError(f"the journal cannot be read: {entries.reason}")
        identity = str(1 + max((int(e.change.id) for e in entries if e.change.id.isdigit()), default=0))
        writer = Writer(journal.path(run_dir), identity, world.user, world.now)
        made = prune.emptying(run_dir, names, size, world.now(), command)
        writer.plan(replace(made, user=world.user), world.log_size())
        try:
            for name in names:
                _remove(folder(run_dir) / name)
                mine.renew()
        except OSError as error:
            raise OpsError(
                f"the trash is not empty: {error.strerror}", str(error.filename), "mend it and give the command again"
            ) from error
        finally:
            writer.end("done")  # even when cut short: what has gone cannot come back
        return identity


def _remove(path: Path) -> None:
    going = path if path.name.startswith(prune.GOING) else path.with_name(prune.GOING + path.name)
    if path != going:
        os.rename(path, going)
    shutil.rmtree(going)
