"""Who may work here now: a lease, safe on a shared file system and between hosts.

A held lease is a folder with one file in it, named by the holder's token. rename(2) replaces an empty folder
and refuses a full one, and that is all the safety needed:

    take       the folder is built beside its place, then renamed into it: of many exactly one gets in, and
               its file is whole from the first moment;
    give back  the holder's file is unlinked, then the empty folder removed;
    take over  the stale holder's file is unlinked *by its name*, then as above. Whoever comes late finds that
               name gone and cannot hit the new holder, so no second lock has to guard the first.

The file's modification time is the heartbeat. It is compared with that of a folder just made beside it, so
the clocks of two hosts need not agree where the server sets the times (NFS).
"""

from __future__ import annotations

import errno
import json
import os
import pwd
import time
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, to_builtins

from ops.errors import Busy, OpsError

ATTEMPTS = 20
"""How often a place is tried that is neither free nor held: somebody just leaves, a listing is cached."""
UNREADABLE = 600.0
"""Seconds after which a lease whose content says nothing counts as expired."""


class Holder(Struct, frozen=True):
    """Who holds a lease, as its file says it."""

    token: str
    owner: str
    host: str
    pid: int
    purpose: str
    seconds: float
    """The lease expires when its heartbeat is older than this."""
    since: float
    machine: str = ""
    """Boot and process namespace: only there `pid` means anything. Empty where the kernel does not tell."""
    started: str = ""
    """Start of the process in the kernel's ticks: a pid may be used again."""
    heartbeat: float = 0.0

    def expired(self, now: float) -> bool:
        return now - self.heartbeat > self.seconds

    @property
    def dead(self) -> bool:
        """Proof that the process is gone: it ran on this machine. False when that cannot be told."""
        return bool(self.machine) and self.machine == _machine() and not _lives(self.pid, self.started)

    def told(self, now: float) -> str:
        """`alice on login2, pid 4711, since 12 s (rewind --to 16000)`."""
        late = now - self.heartbeat
        silent = f", silent for {late:.0f} s" if late > self.seconds else ""
        gone = ", its process is gone" if self.dead else ""
        since = f"since {max(0.0, now - self.since):.0f} s"
        return f"{self.owner} on {self.host}, pid {self.pid}, {since} ({self.purpose}{silent}{gone})"


class Lease(Struct, frozen=True):
    """A lease that is held. As a context manager it is given back at the end of the block."""

    path: Path
    holder: Holder
    took_over: Holder | None = None
    """The stale holder that was in the way, to be reported, unless another contender removed it first."""

    def renew(self) -> None:
        """Beat the heart. Raises Busy when it is no longer ours: nothing more may be changed under it."""
        try:
            os.utime(self.path / self.holder.token)
        except FileNotFoundError:
            raise Busy(
                f"the lease was lost: silent for more than {self.holder.seconds:.0f} s, and taken over",
                where=str(self.path),
                hint="run the command again",
            ) from None

    def release(self) -> bool:
        """Give the lease back. False: it had been lost before; whoever holds it now keeps it."""
        ours = _unlink(self.path / self.holder.token)
        _remove_empty(self.path)
        return ours

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def acquire(path: Path, purpose: str, seconds: float, *, take_expired: bool = True) -> Lease:
    """Take the lease at `path`, or raise Busy naming its holder. Does not wait.

    A holder whose process is proven dead is taken over. One that is merely silent for longer than its own
    `seconds` (suspended, or on a host that was lost) is taken over too, unless `take_expired` is False: use
    that where a holder who wakes up could do harm, and let a person call `break_stale`.
    """
    make_folder(path.parent)
    holder = _me(purpose, seconds)
    stage = path.parent / f".{path.name}.{holder.token}"
    try:
        _build(stage, holder)
        return Lease(path, holder, _enter(stage, path, take_expired))
    except OSError as error:
        raise OpsError(f"cannot take the lease: {error.strerror}", where=str(path)) from None
    finally:
        _unlink(stage / holder.token)
        _remove_empty(stage)


def look(path: Path) -> Holder | None:
    """Who holds the lease at `path`; None when nobody does."""
    try:
        tokens = [name for name in os.listdir(path) if not name.startswith(".")]  # NFS leaves .nfs… for a while
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise OpsError(
            "something else lies where a lease should", where=str(path), hint=f"look at it, then: rm {path}"
        ) from None
    except OSError as error:
        raise OpsError(f"cannot tell who holds the lease: {error.strerror}", where=str(path)) from None
    holders = (_read(path / token) for token in sorted(tokens))
    return next((holder for holder in holders if holder), None)


def break_stale(path: Path) -> Holder | None:
    """Remove a lease that is expired or whose process is dead, and say whose it was; None: nobody holds it.

    Raises Busy while the holder lives.
    """
    holder = look(path)
    if holder is None:
        return None
    now = time.time()
    if not (holder.dead or holder.expired(now)):
        raise _busy(path, holder, now)
    _unlink(path / holder.token)
    _remove_empty(path)
    return holder


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, each as open to the group as the folder it lies in."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir()
        folder.chmod(folder.parent.stat().st_mode & 0o2777)
    except FileExistsError:
        if not folder.is_dir():
            raise OpsError("a file lies where a folder is needed", where=str(folder)) from None
    except OSError as error:
        raise OpsError(f"cannot make a folder: {error.strerror}", where=str(folder)) from None


def _enter(stage: Path, path: Path, take_expired: bool) -> Holder | None:
    """Rename `stage` to `path` as soon as nobody is there; returns the stale holder that had to go for it."""
    evicted = None
    clock = stage.stat().st_mtime - time.monotonic()
    for attempt in range(ATTEMPTS):
        if _claim(stage, path):
            return evicted
        holder = look(path)
        now = clock + time.monotonic()
        if holder is None:
            time.sleep(0.001 * attempt)
        elif holder.dead or (take_expired and holder.expired(now)):
            _unlink(path / holder.token)
            evicted = holder
        else:
            raise _busy(path, holder, now)
    raise Busy("others come and go too fast to get a turn", where=str(path), hint="run the command again")


def _claim(stage: Path, path: Path) -> bool:
    try:
        os.rename(stage, path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    return True


def _busy(path: Path, holder: Holder, now: float) -> Busy:
    if holder.expired(now):
        return Busy(
            f"a lease is held, but its holder is silent: {holder.told(now)}",
            where=str(path),
            hint=f"make sure on {holder.host} that process {holder.pid} is gone, then: rm -r {path}",
        )
    return Busy(
        f"somebody else is at work: {holder.told(now)}",
        where=str(path),
        hint="wait for its end and run the command again",
    )


def _build(stage: Path, holder: Holder) -> None:
    """The lease's folder, whole, beside its place."""
    stage.mkdir()
    mode = stage.parent.stat().st_mode
    stage.chmod(mode & 0o2777)
    content = {key: value for key, value in to_builtins(holder).items() if key not in ("token", "heartbeat")}
    with open(stage / holder.token, "x", encoding="utf-8") as file:
        os.fchmod(file.fileno(), mode & 0o666)
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())


def _read(file: Path) -> Holder | None:
    """The holder a lease file names; None when it has just gone. An unreadable one is held by `?`."""
    try:
        with open(file, "rb") as opened:  # opening is what makes NFS ask the server for the current time stamp
            content, beat = opened.read(65536), os.fstat(opened.fileno()).st_mtime
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:
            return None
        raise OpsError(f"cannot read who holds the lease: {error.strerror}", where=str(file)) from None
    try:
        return Holder(token=file.name, heartbeat=beat, **json.loads(content))
    except (ValueError, TypeError):
        return Holder(file.name, "?", "?", 0, "its file says nothing", UNREADABLE, beat, heartbeat=beat)


def _unlink(file: Path) -> bool:
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise OpsError(f"cannot remove a lease: {error.strerror}", where=str(file)) from None
    return True


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):  # somebody else is in it already, or removed it: an empty folder is as good as none
        folder.rmdir()


def _me(purpose: str, seconds: float) -> Holder:
    try:
        owner = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        owner = f"uid {os.getuid()}"
    pid = os.getpid()
    state = _process(pid)
    host, started = os.uname().nodename, state[1] if state else ""
    return Holder(os.urandom(8).hex(), owner, host, pid, purpose, seconds, time.time(), _machine(), started)


def _machine() -> str:
    """This boot and process namespace: containers share host names, two machines may both be `localhost`."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes().decode().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _lives(pid: int, started: str) -> bool:
    """Whether the process that started then still runs here. A zombie does not; in doubt it does."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's process
    state = _process(pid)
    return state is None or (state[0] != "Z" and (not started or state[1] == started))


def _process(pid: int) -> tuple[str, str] | None:
    """State letter and start time of a process: fields 3 and 22 of /proc/PID/stat, proc(5). None: hidden."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes().decode("ascii", "replace")
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()
    return fields[0], fields[19]
