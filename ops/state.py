"""m4ops's own bookkeeping of a run: how far the log was read, what the detectors remember, what was told.

Nothing is lost with it: log position and detector memory are made again from the log, and an alert that was
forgotten is sent again. So a file that is torn or foreign is told of and begun anew, never an error.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from ops.alerts.words import Episode, Health, Message, News, Pending
from ops.errors import Busy, OpsError
from ops.model import OPS_DIR, Finding, Run, Severity

if TYPE_CHECKING:
    from ops import lease as leases

VERSION = 2
FILE = "memory.json"
_PLAIN = ("cursor", "detectors", "measures", "tail", "kept")


class Memory(Struct, frozen=True):
    """What m4ops remembers of a run between two ticks. `cursor` and `detectors` are plain JSON objects."""

    cursor: Mapping[str, Any] = field(default_factory=dict)
    detectors: Mapping[str, Any] = field(default_factory=dict)
    episodes: tuple[Episode, ...] = ()
    outbox: tuple[Pending, ...] = ()
    measures: Mapping[str, Any] = field(default_factory=dict)
    """How far the files of the model's statistics were read."""
    tail: Mapping[str, Any] = field(default_factory=dict)
    """The end of the log up to the cursor, as `ops.logs.tail` keeps it."""
    kept: Mapping[str, Any] = field(default_factory=dict)
    """How much of what a Trainer's checkpoints keep was judged."""
    held: tuple[News, ...] = ()
    """What waits for a digest, for the morning, or for room in the hour."""
    pace: float = 0.0
    """See `ops.alerts.gather`."""
    sinks: tuple[Health, ...] = ()
    vetted: tuple[str, ...] = ()
    """The marks of sinks that are known to be ones."""
    problem: str = ""
    """Why it was begun anew though there was something to read. To be told once; it is not saved."""


def folder(run: Run) -> Path:
    """Where a run's bookkeeping lies: with the run if the user may write there, else in their state folder.

    The latter is `$XDG_STATE_HOME/m4ops/<run>-<hash of its path>` (XDG Base Directory Specification 0.8).
    """
    shared = run.dir / OPS_DIR / "state"
    if _writable(shared):
        return shared
    return _own() / f"{run.name.replace('/', '_')}-{_place(run)}"


def apart(run: Run) -> bool:
    """Whether this user's notes on the run lie apart from those that its owner's checks keep with it."""
    return folder(run) != run.dir / OPS_DIR / "state"


def everything() -> Run:
    """All runs of this user's configured roots as one: the folder where the notes on what checks them all lie."""
    return Run(_own() / "all-runs", "all-runs")


def aside(run: Run) -> Run:
    """Where the notes on a run lie whose own folder takes none: it is full, or no more there."""
    return Run(_own() / f"aside-{_place(run)}", run.name)


def _place(run: Run) -> str:
    """What tells its folder from another of the same name."""
    import hashlib

    return hashlib.sha256(os.fsencode(os.path.realpath(run.dir))).hexdigest()[:12]


def _own() -> Path:
    """The user's own state folder of m4ops."""
    configured = os.environ.get("XDG_STATE_HOME", "")
    return (Path(configured) if configured.startswith("/") else Path.home() / ".local" / "state") / "m4ops"


def load(run: Run) -> Memory:
    """What was saved. Nothing yet gives an empty Memory; what cannot be used gives one with its `problem`."""
    file = folder(run) / FILE
    try:
        return _from_json(_parse(file.read_bytes()))
    except FileNotFoundError:
        return Memory()
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except _Foreign as error:
        problem = str(error)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        problem = "holds something else than this m4ops writes"
    return Memory(problem=f"{file} {problem}: bookkeeping begins anew, open alerts are sent again")


def newest(run: Run) -> tuple[Memory, Run]:
    """What was saved last, and where."""
    place = latest(run, FILE)
    return load(place), place


def latest(run: Run, name: str) -> Run:
    """Where a piece of bookkeeping was written last: with the run, or aside while the run's own folder took none."""
    return max((run, aside(run)), key=lambda place: _written(folder(place) / name))


def _written(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def save(run: Run, memory: Memory) -> None:
    """Save, whole or not at all. Raises OpsError when the disk does not take it. Hold the run's lease."""
    _save(folder(run) / FILE, json.dumps(_to_json(memory)).encode())


def _save(file: Path, content: bytes) -> None:
    from ops import lease as leases

    leases.make_folder(file.parent)
    try:
        _replace(file, content)
    except OSError as error:
        raise OpsError(
            f"cannot keep the bookkeeping: {error.strerror}",
            where=str(file),
            hint="make room or ask for write access",
        ) from None


def kept(run: Run, name: str) -> Mapping[str, Any]:
    """Another piece of bookkeeping, a JSON object of its own file; empty where there is none that can be used."""
    try:
        data = json.loads((folder(run) / name).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def keep(run: Run, name: str, data: Mapping[str, Any]) -> None:
    """Keep such a piece, whole or not at all. Raises OpsError. Hold the run's lease."""
    _save(folder(run) / name, json.dumps(data).encode())


def drop(run: Run, name: str) -> None:
    """Forget such a piece. Raises OSError."""
    (folder(run) / name).unlink(missing_ok=True)


@contextmanager
def lease(run: Run, name: str, seconds: float, patience: float = 0.0) -> Iterator[leases.Lease]:
    """Hold the lease `name` of this run's bookkeeping. Raises Busy when somebody else, on any host, does.

    `patience`: seconds to wait for them.
    """
    from ops import lease as leases

    last = time.monotonic() + patience
    while True:
        try:
            held = leases.acquire(folder(run) / f"{name}.lease", name, seconds)
            break
        except Busy:
            if time.monotonic() >= last:
                raise
            time.sleep(0.05)
    with held:
        yield held


class _Foreign(Exception):
    """Not what `save` writes."""


def _parse(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise _Foreign("is torn or no JSON") from None


def _replace(file: Path, content: bytes) -> None:
    temporary = file.with_name(f".{file.name}.{os.urandom(8).hex()}")
    try:
        with open(temporary, "xb") as opened:
            os.fchmod(opened.fileno(), file.parent.stat().st_mode & 0o666)
            opened.write(content)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    directory = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _writable(path: Path) -> bool:
    """Whether this user may write into the folder, or make it."""
    nearest = next(p for p in (path, *path.parents) if os.path.exists(p))
    return os.access(nearest, os.W_OK | os.X_OK)


def _to_json(memory: Memory) -> dict[str, object]:
    plain = {name: getattr(memory, name) for name in _PLAIN}  # large, and JSON already: nothing to be copied
    content = to_builtins(replace(memory, cursor={}, detectors={}, measures={}, tail={}, kept={})) | plain
    content.pop("problem")
    return {"m4ops": "state", "version": VERSION, **content}


def _from_json(data: Any) -> Memory:
    if data["m4ops"] != "state" or data["version"] != VERSION:
        raise _Foreign("was written by another version of m4ops or by something else")
    return Memory(
        cursor=dict(data["cursor"].items()),
        detectors=dict(data["detectors"].items()),
        episodes=tuple(_episode(e) for e in data["episodes"]),
        outbox=tuple(
            Pending(_message(p["message"]), tuple(map(str, p["done"])), bool(p["escalation"])) for p in data["outbox"]
        ),
        held=tuple(map(_news, data["held"])),
        pace=float(data["pace"]),
        sinks=tuple(map(_health, data["sinks"])),
        vetted=tuple(map(str, data["vetted"])),
        measures=dict(data.get("measures", {}).items()),
        tail=dict(data.get("tail", {}).items()),
        kept=dict(data.get("kept", {}).items()),
    )


def _episode(data: Any) -> Episode:
    since, seen, told_at, again = (float(data[name]) for name in ("since", "seen", "told_at", "again"))
    told, repeats = Severity(data["told"]), int(data["repeats"])
    ticks, escalated = int(data["ticks"]), bool(data["escalated"])
    kind = str(data.get("kind", ""))
    return Episode(_finding(data["finding"]), since, seen, ticks, told, told_at, again, repeats, escalated, kind)


def _message(data: Any) -> Message:
    run, place, host, wandb = (str(data[name]) for name in ("run", "dir", "host", "wandb"))
    return Message(tuple(map(_news, data["news"])), float(data["time"]), run, place, host, wandb)


def _news(data: Any) -> News:
    time, since, escalated = float(data["time"]), float(data["since"]), bool(data["escalated"])
    incident, last = str(data.get("incident", "")), bool(data.get("last"))
    return News(str(data["event"]), _finding(data["finding"]), time, since, escalated, incident, last)


def _health(data: Any) -> Health:
    mark, sink, reason = (str(data[name]) for name in ("mark", "sink", "reason"))
    since, last, closed = float(data["since"]), float(data["last"]), float(data.get("closed", 0))
    return Health(mark, sink, since, last, int(data["tries"]), reason, closed)


def _finding(data: Any) -> Finding:
    return Finding(
        kind=str(data["kind"]),
        severity=Severity(data["severity"]),
        summary=str(data["summary"]),
        evidence=tuple(map(str, data["evidence"])),
        step=None if data["step"] is None else int(data["step"]),
        line=None if data["line"] is None else int(data["line"]),
        node=str(data["node"]),
        runbook=str(data["runbook"]),
        actions=tuple(map(str, data["actions"])),
        rank=None if data["rank"] is None else int(data["rank"]),
        episode=str(data["episode"]),
    )
