"""How each kind of file action is prepared, done, taken back, and recognised as done.

Everything is built beforehand: in `SAVE_DIR/.m4ops/tmp` for what lies in the run (same file system, so a rename is
atomic, and no checkpoint directory ever holds an extra file), as a dot-file beside the target for what lies outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct

from ops import actions as act
from ops import jsontext, lease
from ops.checkpoints import states
from ops.errors import Drift, OpsError
from ops.evals import lines_of
from ops.executor import inplace
from ops.executor.standing import Action, read_text, state
from ops.model import OPS_DIR

SMALL = 1 << 20
"""Bytes up to which a state file is rebuilt and renamed in; larger ones are patched at their bytes."""
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ENOSYS)
"""What a file system without hard links answers to link(2)."""


class Built(Struct, frozen=True):
    """What is ready for one action, and for taking it back: that must not need space that a full disk lacks."""

    new: Path | None = None
    """The new content (or folder), to be renamed in."""
    old: Path | None = None
    """A second name of the file that is replaced."""
    pieces: tuple[inplace.Piece, ...] = ()
    """Bytes to write in place."""


def prepare(action: Action, run_dir: Path, name: str) -> Built:
    """Build the new content where it can be renamed from. Nothing of the run is touched yet."""
    match action:
        case act.WriteText(after=str() as text):
            return _replacement(action, run_dir, name, text)
        case act.WriteText():
            return Built(old=_kept(action.path, run_dir, name))
        case act.SetJson():
            text_ = jsontext.replaced(read_text(action.path) or "", action.key, action.after)
            return _replacement(action, run_dir, name, text_)
        case act.PatchState():
            return _prepare_patch(action, run_dir, name)
        case act.Rewrite(restore=True):
            return Built(old=_kept(action.path, run_dir, name))
        case act.Rewrite():
            old = None if action.stored else _kept(action.path, run_dir, name)
            return Built(_prepare_rewrite(action, run_dir, name), old)
        case act.Link(after=str() as text):
            return Built(_link(_place(Path(action.path), run_dir, name), text))
        case act.Copy(gone=True):
            return Built(old=_kept(action.path, run_dir, name))
        case act.Copy():
            return Built(_prepare_copy(action, run_dir, name))
        case act.Folder(make=True):
            return Built(_new_folder(action, run_dir, name))
        case _:
            return Built()


def do(action: Action, built: Built) -> None:
    """Carry the action out. Each is one atomic step of the file system, or recognisable half-way."""
    with _in_its_place(action):
        _do(action, built)


def _do(action: Action, built: Built) -> None:
    match action:
        case act.WriteText(after=None):
            Path(action.path).unlink(missing_ok=True)
        case act.PatchState() if built.pieces:
            return inplace.write(action.path, built.pieces)
        case act.WriteText() | act.SetJson() | act.PatchState():
            os.replace(_needed(built.new), real(action.path))
        case act.Rewrite(restore=True):
            os.replace(action.aside, action.path)
            Path(action.aside).unlink(missing_ok=True)  # rename(2) does nothing between two names of one file
        case act.Rewrite():
            _rewrite(action, _needed(built.new))
        case act.Move():
            _move(action)
        case act.Link(after=None):
            os.unlink(action.path)
        case act.Link():
            os.replace(_needed(built.new), action.path)
        case act.Copy(gone=True):
            os.unlink(action.path)
        case act.Copy():
            _move(act.Move(str(_needed(built.new)), action.path))
        case act.Folder(make=True):
            os.rename(_needed(built.new), action.path)
        case act.Folder():
            os.rmdir(action.path)
    for path in act.paths(action):
        sync_folder(Path(path).parent)


def take_back(action: Action, built: Built) -> None:
    """Make an action that was done, or failed half-way, undone. Raises Drift when the world is another one."""
    with _in_its_place(action, back=True):
        _take_back(action, built)


def _take_back(action: Action, built: Built) -> None:
    if isinstance(action, act.PatchState) and built.pieces:
        return inplace.write(action.path, built.pieces, forward=False)
    now, found = state(action)
    if now == "before":
        return
    if now == "other":
        raise Drift(f"`{action.describe()}` cannot be taken back: found {found}", act.paths(action)[0])
    match action:
        case act.WriteText(before=None):
            os.unlink(action.path)
        case act.WriteText() if built.old is None:
            text = (action.before or "").encode("utf-8", "surrogateescape")
            target = real(action.path)
            os.replace(_written(target, _beside(target, "back"), text), target)
        case act.WriteText() | act.SetJson() | act.PatchState():
            os.replace(_needed(built.old), real(action.path))
        case act.Rewrite(restore=True):
            _keep_aside(action)
            os.replace(_needed(built.old), action.path)
        case act.Rewrite(stored=False):
            os.replace(_needed(built.old), action.path)
        case act.Rewrite() if now == "half":
            os.unlink(action.aside)
        case act.Rewrite():
            os.replace(action.aside, action.path)
        case act.Move():
            _move(act.Move(action.target, action.source))
        case act.Link(before=str() as text):
            target = Path(action.path)
            os.replace(_link(_beside(target, "back"), text), target)
        case act.Link():
            os.unlink(action.path)
        case act.Copy(gone=True):
            os.replace(_needed(built.old), action.path)
        case act.Copy():
            os.unlink(action.path)
        case act.Folder(make=True):
            os.rmdir(action.path)
        case act.Folder():
            lease.make_folder(Path(action.path))
    for path in act.paths(action):
        sync_folder(Path(path).parent)


@contextlib.contextmanager
def _in_its_place(action: Action, back: bool = False) -> Iterator[None]:
    """Frameworks choose by time: HF Trainer's rotation deletes the oldest folder, Lightning resumes from the newest file.

    So a folder keeps its time when a file in it is replaced; and a file, where the action says so, keeps its turn: it moves by
    whole seconds, and `back` again. Its time is never one that it had before: what was noted of it by its time was another content.
    """
    if not isinstance(action, act.PatchState | act.SetJson) and not (isinstance(action, act.Rewrite) and action.zero):
        yield
        return
    path = real(action.path)
    folder, file = path.parent.stat(), path.stat()
    yield
    with contextlib.suppress(OSError):  # only the owner may
        if path.parent.stat().st_mtime_ns != folder.st_mtime_ns:
            os.utime(path.parent, ns=(folder.st_atime_ns, folder.st_mtime_ns))
        turn = 0 if isinstance(action, act.SetJson) else -action.in_turn if back else action.in_turn
        if turn and path.stat().st_mtime_ns != file.st_mtime_ns:
            os.utime(path, ns=(file.st_atime_ns, file.st_mtime_ns + turn * 10**9 + 1000))


def sweep(actions: Iterable[act.Action], run_dir: Path) -> None:
    """Remove what was built for these actions and is no longer needed. Hold the run's lease."""
    _clear(run_dir / OPS_DIR / "tmp")
    for path in {p for a in actions for p in act.paths(a)}:
        target = real(path)
        if target.is_relative_to(run_dir):
            continue
        with contextlib.suppress(OSError):
            for entry in os.scandir(target.parent):
                if entry.name.startswith(".m4ops-") and entry.name.endswith(f"-{target.name}"):
                    os.unlink(entry.path)


def _clear(folder: Path) -> None:
    """Remove the folder with what was built there: files, and folders that are empty."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                (os.rmdir if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)
        os.rmdir(folder)


def staging(target: Path, run_dir: Path, name: str) -> Path:
    """Where the new content of a file is built: never in a checkpoint, always on the target's file system."""
    return run_dir / OPS_DIR / "tmp" / name if target.is_relative_to(run_dir) else _beside(target, name)


def real(path: str | Path) -> Path:
    """The file itself, where the path is a symbolic link: the link stays."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else Path(path)


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder durable; file systems that cannot say so are let be."""
    with contextlib.suppress(OSError), _opened(folder) as handle:
        os.fsync(handle)


def _link(place: Path, text: str) -> Path:
    place.unlink(missing_ok=True)
    place.symlink_to(text)
    return place


def _replacement(action: act.WriteText | act.SetJson, run_dir: Path, name: str, text: str) -> Built:
    return Built(
        _built(action.path, run_dir, name, text.encode("utf-8", "surrogateescape")),
        _kept(action.path, run_dir, name),
    )


def _prepare_patch(action: act.PatchState, run_dir: Path, name: str) -> Built:
    path = real(action.path)
    info = os.stat(path)
    if info.st_size <= SMALL:
        new = _built(path, run_dir, name, states.rebuilt(path, action.edits))
        return Built(new, _kept(path, run_dir, name))
    pieces = tuple((s.offset, s.old, s.new) for s in states.patch(path, action.edits))
    if info.st_nlink == 1:
        return Built(pieces=pieces)
    place = _place(path, run_dir, name)  # written in place, the change would show under the file's other names
    import shutil

    shutil.copyfile(path, place)
    inplace.write(place, pieces)
    _like(place, path)
    return Built(place, _kept(path, run_dir, name))


def _prepare_rewrite(action: act.Rewrite, run_dir: Path, name: str) -> Path:
    path = Path(action.path)
    if not action.zero:
        lines = lines_of(path.read_bytes())
        kept = b"".join(b"".join(lines[first - 1 : last]) for first, last in action.keep)
        return _built(path, run_dir, name, kept)
    place = _place(path, run_dir, name)
    states.copy_rewritten(path, place, action.zero, action.edits)
    _like(place, path)
    _sync(place)
    return place


def _prepare_copy(action: act.Copy, run_dir: Path, name: str) -> Path:
    """Of a source that the same plan edits, before or after it did."""
    source = real(action.source)
    place = _place(Path(action.path), run_dir, name)
    states.copy_as_edited(source, place, action.zero, action.edits, SMALL)
    _like(place, source)
    _sync(place)
    return place


def _new_folder(action: act.Folder, run_dir: Path, name: str) -> Path:
    """The folder, as open to the group as the nearest one there is above it; to be renamed in."""
    place = _place(Path(action.path), run_dir, name)
    place.mkdir()
    above = next(p for p in Path(action.path).parents if p.is_dir())
    place.chmod(stat.S_IMODE(above.stat().st_mode))
    return place


def _move(action: act.Move) -> None:
    if os.path.lexists(action.target):
        raise Drift("the target exists already", action.target)
    os.rename(action.source, action.target)


def _rewrite(action: act.Rewrite, new: Path) -> None:
    if action.stored and not os.path.lexists(action.aside):
        _keep_aside(action)
    if states.fingerprint(Path(action.path)) != action.before:
        if action.stored:
            os.unlink(action.aside)
        raise Drift("the file changed while it was rewritten; nothing was taken from it", action.path)
    os.replace(new, action.path)


def _keep_aside(action: act.Rewrite) -> None:
    aside = Path(action.aside)
    lease.make_folder(aside.parent)
    _second_name(Path(action.path), aside, _beside(aside, "part"))
    sync_folder(aside.parent)


def _kept(path: str | Path, run_dir: Path, name: str) -> Path | None:
    """A second name for a file of the run, so that it can be put back even when no space is left."""
    path = real(path)
    if not path.is_relative_to(run_dir) or not path.exists():
        return None
    place = _place(path, run_dir, f"{name}-old")
    _second_name(path, place, place.with_name(f"{name}-part"))
    return place


def _second_name(path: Path, name: Path, part: Path) -> None:
    """A hard link, or where there are none a whole copy."""
    try:
        os.link(path, name)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        import shutil

        shutil.copy2(path, part)
        _sync(part)
        os.replace(part, name)


def _beside(target: Path, name: str) -> Path:
    return target.with_name(f".m4ops-{name}-{target.name}")


def _place(target: Path, run_dir: Path, name: str) -> Path:
    place = staging(target, run_dir, name)
    if target.is_relative_to(run_dir):
        lease.make_folder(place.parent)
    return place


def _built(target: str | Path, run_dir: Path, name: str, content: bytes) -> Path:
    target = real(target)
    return _written(target, _place(target, run_dir, name), content)


def _written(target: Path, place: Path, content: bytes) -> Path:
    place.write_bytes(content)
    _like(place, target)
    _sync(place)
    return place


def _like(place: Path, target: Path) -> None:
    """Mode and group of the file it replaces: group-writable stays so."""
    try:
        info = target.stat()
    except FileNotFoundError:
        return
    with contextlib.suppress(OSError):
        os.chown(place, -1, info.st_gid)
    place.chmod(stat.S_IMODE(info.st_mode))


def _needed(place: Path | None) -> Path:
    if place is None:
        raise OpsError("nothing was built for this action")
    return place


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
