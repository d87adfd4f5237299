"""Requests of teammates: a file in `SAVE_DIR/.m4ops/requests`, which the owner's `m4ops check` carries out.

Nobody needs sudo: the kernel vouches for who asks, by the file's owner, and the owner's own m4ops.toml says who may.
A request that somebody else could have written or changed is not believed.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from ops import lease, policy
from ops.config import FILE as CONFIG
from ops.errors import BadInput, OpsError
from ops.model import OPS_DIR, Run

VERBS = ("stop", "hold", "release", "save")
LONGEST = 7 * 86400.0
"""Seconds a request may wait."""
_LARGEST = 1 << 16
_NAME = re.compile(r"(\d{13}-[0-9a-f]{8})\.json")


class Request(Struct, frozen=True):
    """What somebody asks for. Times are UTC seconds. `problem`: why it is not believed."""

    id: str
    verb: str
    why: str
    user: str
    uid: int
    time: float
    expires: float
    problem: str = ""


class Reply(Struct, frozen=True):
    """What became of a request: `done`, `refused`, `expired`, `failed` or `unknown`, in words, with its change."""

    id: str
    verb: str
    why: str
    user: str
    time: float
    outcome: str
    said: str
    change: str = ""


def duration(text: str) -> float:
    """Seconds of `30m`, `2h`, `1d`. Raises BadInput."""
    seconds = policy.seconds(text)
    if not 0 < seconds <= LONGEST:
        raise BadInput(f"`{text}` is no time a request can wait", hint="for instance 30m, 2h or 1d; at most 7d")
    return seconds


def leave(run: Run, verb: str, why: str, now: float, seconds: float) -> Request:
    """Leave a request in the run. Raises OpsError where this user may not write there."""
    request = Request(
        id=f"{int(now * 1000):013d}-{os.urandom(4).hex()}",
        verb=verb,
        why=why,
        user=name_of(os.geteuid()),
        uid=os.geteuid(),
        time=now,
        expires=now + seconds,
    )
    words = {k: v for k, v in to_builtins(request).items() if k in ("verb", "why", "time", "expires")}
    try:
        lease.make_folder(folder(run))
        _write(folder(run) / f"{request.id}.json", {**words, "run": str(run.dir)})
    except OSError as error:
        raise _closed(run, error.strerror or str(error)) from None
    except OpsError as error:
        raise _closed(run, error.what) from None
    return request


def waiting(run: Run) -> tuple[Request, ...]:
    """The requests that nobody has answered, oldest first. Raises OpsError when they cannot be listed."""
    return tuple(_read(run, path, identity) for identity, path in _files(folder(run)))


def operators(run: Run) -> tuple[str, ...]:
    """Who may ask besides the owner: `operators` of SAVE_DIR/m4ops.toml. Raises OpsError where others may write it."""
    file = run.dir / CONFIG
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise OpsError(f"who may ask cannot be read: {error.strerror}", str(file)) from None
    with open(handle, "rb") as opened:
        info = os.fstat(handle)
        if info.st_uid not in (owner(run), 0) or info.st_mode & 0o022:
            raise OpsError(
                "others may write the file that says who may ask, so nobody is believed",
                str(file),
                f"chmod go-w {file}",
            )
        import tomllib

        try:
            named = tomllib.load(opened).get("operators", [])
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise OpsError(f"who may ask cannot be read: {error}", str(file)) from None
    return tuple(map(str, named)) if isinstance(named, list) else ()


def objection(run: Run, request: Request, now: float) -> tuple[str, str]:
    """Why a request is not carried out: outcome and words; both empty when it is to be."""
    if request.problem:
        return "refused", request.problem
    if now > request.expires:
        return "expired", "nobody carried it out in time"
    if request.uid == owner(run):
        return "", ""
    try:
        allowed = operators(run)
    except OpsError as error:
        return "refused", f"{error.what} ({error.where})"
    if request.user in allowed:
        return "", ""
    return "refused", f"{request.user} is not among the operators of {run.dir / CONFIG}"


def take(run: Run, request: Request) -> bool:
    """Claim a request, so that it is carried out once. False: it is gone."""
    target = folder(run) / "taken"
    lease.make_folder(target)
    try:
        os.rename(folder(run) / f"{request.id}.json", target / f"{request.id}.json")
    except FileNotFoundError:
        return False
    except OSError as error:
        raise OpsError(f"the request cannot be taken: {error.strerror}", str(folder(run))) from None
    return True


def put_back(run: Run, request: Request) -> None:
    """Let a claimed request wait for the next tick."""
    with suppress(FileNotFoundError):
        os.rename(folder(run) / "taken" / f"{request.id}.json", folder(run) / f"{request.id}.json")


def left_over(run: Run) -> tuple[Request, ...]:
    """Requests that were begun by a tick that died. Hold the lease `requests`."""
    return tuple(_read(run, path, identity) for identity, path in _files(folder(run) / "taken"))


def reply(run: Run, answer: Reply) -> None:
    """Keep what became of a request where the one who asked can read it, and end it."""
    target = folder(run) / "answers"
    lease.make_folder(target)
    _write(target / f"{answer.id}.json", to_builtins(answer))
    for place in (folder(run), folder(run) / "taken"):
        with suppress(FileNotFoundError):
            (place / f"{answer.id}.json").unlink()


def replies(run: Run) -> tuple[Reply, ...]:
    """What became of the requests, oldest first. What the run's owner did not write is left out."""
    found = []
    for _, path in _files(folder(run) / "answers"):
        with suppress(OSError, ValueError, TypeError):
            data, info = _content(path)
            if info.st_uid == owner(run):
                found.append(Reply(**data))
    return tuple(found)


def folder(run: Run) -> Path:
    """Where the requests lie."""
    return run.dir / OPS_DIR / "requests"


def owner(run: Run) -> int:
    """The uid of the run's owner. Raises OpsError."""
    try:
        return run.dir.stat().st_uid
    except OSError as error:
        raise OpsError(f"the run's owner cannot be told: {error.strerror}", str(run.dir)) from None


def name_of(uid: int) -> str:
    """A user's name, or the number of one without."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _files(place: Path) -> Iterator[tuple[str, Path]]:
    try:
        names = sorted(os.listdir(place))
    except FileNotFoundError:
        return
    except OSError as error:
        raise OpsError(f"the requests cannot be listed: {error.strerror}", str(place)) from None
    for name in names:
        if match := _NAME.fullmatch(name):
            yield match[1], place / name


def _read(run: Run, path: Path, identity: str) -> Request:
    """The request, by the file's owner; one that cannot be believed carries its problem."""
    try:
        data, info = _content(path)
        verb, why, user = str(data["verb"]), str(data["why"])[:500], name_of(info.st_uid)
        request = Request(identity, verb, why, user, info.st_uid, float(data["time"]), float(data["expires"]))
        meant = str(data["run"])
    except OSError as error:
        return Request(identity, "?", "", "?", -1, 0.0, 0.0, f"its file cannot be believed: {error.strerror or error}")
    except (ValueError, TypeError, KeyError):
        return Request(identity, "?", "", "?", -1, 0.0, 0.0, "its file is no request")
    problem = ""
    if verb not in VERBS:
        problem = f"nobody can be asked to `{verb[:40]}`"
    elif meant != str(run.dir):
        problem = f"it was left for {meant}"
    elif request.expires - request.time > LONGEST:
        problem = "it wants to wait longer than a week"
    return Request(**{**to_builtins(request), "problem": problem})


def _content(path: Path) -> tuple[Mapping[str, Any], os.stat_result]:
    """The JSON object of a file that only its owner can have written. Raises OSError, ValueError."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, "rb") as opened:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode) or info.st_nlink != 1:
            raise OSError("it is no plain file of its own")
        if info.st_mode & 0o022:
            raise OSError("others may write it")
        data = json.loads(opened.read(_LARGEST))
    if not isinstance(data, dict):
        raise ValueError("no object")
    return data, info


def _write(file: Path, data: Mapping[str, Any]) -> None:
    """Whole or not at all, writable by its owner alone: the owner is the signature."""
    temporary = file.with_name(f".{file.name}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with open(handle, "w", encoding="utf-8") as opened:
            os.fchmod(handle, 0o644)
            json.dump(data, opened)
            opened.flush()
            os.fsync(handle)
        os.rename(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def _closed(run: Run, why: str) -> OpsError:
    return OpsError(
        f"the request cannot be left: {why}",
        str(folder(run)),
        f"ask the run's owner to open it: mkdir -p {folder(run)} && chmod 1777 {folder(run)}",
    )
