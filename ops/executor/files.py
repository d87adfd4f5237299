"""How each kind of file action is prepared, done, and recognised as done.

Everything is built beforehand: in `SAVE_DIR/.m4ops/tmp` for what lies in the run (same file system, so a rename is
atomic, and no checkpoint directory ever holds an extra file), as a dot-file beside the target for what lies outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ops import actions as act
from ops import jsontext
from ops.checkpoints import states
from ops.errors import BadInput, Drift, OpsError
from ops.evals import lines_of
from ops.model import OPS_DIR

State = Literal["before", "after", "half", "other"]
SMALL = 1 << 20
"""Bytes up to which a state file is rebuilt and renamed in; larger ones are patched at their bytes."""
FileAction = act.WriteText | act.SetJson | act.PatchState | act.Rewrite | act.Move | act.Folder


def read_text(path: str | Path) -> str | None:
    """A file's text with surrogate escapes for bytes that are no UTF-8; None if there is no such file."""
    try:
        return Path(path).read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return None


def state(action: FileAction) -> tuple[State, str]:
    """Whether the world stands before or after the action, and what was found if neither."""
    match action:
        case act.WriteText():
            return _compared(read_text(action.path), action.before, action.after)
        case act.SetJson():
            return _json_state(action)
        case act.PatchState():
            return _patch_state(action)
        case act.Rewrite():
            return _rewrite_state(action)
        case act.Move():
            there = (os.path.lexists(action.source), os.path.lexists(action.target))
            found = f"source {'there' if there[0] else 'missing'}, target {'there' if there[1] else 'missing'}"
            return {(True, False): "before", (False, True): "after"}.get(there, "other"), found  # type: ignore[return-value]
        case act.Folder():
            there_ = os.path.isdir(action.path)
            return ("after" if there_ == action.make else "before"), "there" if there_ else "missing"


def _compared(now: str | None, before: str | None, after: str | None) -> tuple[State, str]:
    found = "no such file" if now is None else f"{now[:200]!r}"
    return ("before" if now == before else "after" if now == after else "other"), found


def _json_state(action: act.SetJson) -> tuple[State, str]:
    text = read_text(action.path)
    if text is None:
        return "other", "no such file"
    try:
        return _compared(jsontext.value(text, action.key), action.before, action.after)
    except BadInput as error:
        return "other", error.what


def _patch_state(action: act.PatchState) -> tuple[State, str]:
    try:
        now = {s.label: s.value for s in states.lr_of_file(Path(action.path))}
    except OpsError as error:
        return "other", error.what
    for name in ("before", "after"):
        if all(_same(now.get(e.label), getattr(e, name)) for e in action.edits):
            return ("before" if name == "before" else "after"), ""
    return "other", ", ".join(f"{e.label} is {now.get(e.label)}" for e in action.edits[:4])


def _same(now: float | None, wanted: float) -> bool:
    return now is not None and (now == wanted or abs(now - wanted) <= 1e-6 * abs(wanted))


def _rewrite_state(action: act.Rewrite) -> tuple[State, str]:
    main, aside = states.fingerprint(Path(action.path)), states.fingerprint(Path(action.aside))
    found = f"file {main or 'missing'}, aside {aside or 'missing'}"
    original = main == action.before and not aside
    rewritten = aside == action.before and (main == action.after if action.after else main not in ("", action.before))
    if original or rewritten:
        return ("before" if original != action.restore else "after"), found
    return ("half" if main == action.before == aside else "other"), found


def prepare(action: FileAction, run_dir: Path, name: str) -> Path | None:
    """Build the new content where it can be renamed from. Nothing of the run is touched yet."""
    match action:
        case act.WriteText(after=str() as text):
            return _built(Path(action.path), run_dir, name, text.encode("utf-8", "surrogateescape"))
        case act.SetJson():
            text_ = jsontext.replaced(read_text(action.path) or "", action.key, action.after)
            return _built(Path(action.path), run_dir, name, text_.encode("utf-8", "surrogateescape"))
        case act.PatchState() if not in_place(action):
            return _built(Path(action.path), run_dir, name, patched(action))
        case act.Rewrite(restore=False):
            return _prepare_rewrite(action, run_dir, name)
        case _:
            return None


def _prepare_rewrite(action: act.Rewrite, run_dir: Path, name: str) -> Path:
    path = Path(action.path)
    if not action.zero:
        lines = lines_of(path.read_bytes())
        kept = b"".join(b"".join(lines[first - 1 : last]) for first, last in action.keep)
        return _built(path, run_dir, name, kept)
    place = staging(path, run_dir, name)
    place.parent.mkdir(parents=True, exist_ok=True)
    states.copy_rewritten(path, place, action.zero, action.edits)
    _like(place, path)
    _sync(place)
    return place


def in_place(action: act.PatchState) -> bool:
    """Whether the file is so big that it is patched at its bytes; never through a hard link."""
    info = os.stat(action.path)
    return info.st_size > SMALL and info.st_nlink == 1


def patched(action: act.PatchState) -> bytes:
    """The whole new content of a small state file."""
    return states.rebuilt(Path(action.path), action.edits)


def splices(action: act.PatchState) -> tuple[tuple[int, bytes, bytes], ...]:
    """(offset, old bytes, new bytes) of a patch at the bytes, checksums included."""
    return tuple((s.offset, s.old, s.new) for s in states.patch(Path(action.path), action.edits))


def write_splices(path: str | Path, pieces: tuple[tuple[int, bytes, bytes], ...], forward: bool = True) -> None:
    """Write the new (or the old) bytes; each place must hold the old or the new ones, or a mix of a torn write."""
    with open(path, "r+b", buffering=0) as file:
        for offset, old, new in pieces:
            now = os.pread(file.fileno(), len(old), offset)
            if len(now) != len(old) or any(c not in (a, b) for c, a, b in zip(now, old, new, strict=True)):
                raise Drift(f"the bytes at {offset} are neither the old nor the new ones", str(path))
        for offset, old, new in pieces:
            os.pwrite(file.fileno(), new if forward else old, offset)
        os.fsync(file.fileno())


def do(action: FileAction, built: Path | None) -> None:
    """Carry the action out. Each is one atomic step of the file system, or recognisable half-way (`state`)."""
    match action:
        case act.WriteText(after=None):
            os.unlink(action.path)
        case act.WriteText() | act.SetJson() | act.PatchState():
            if built is None:
                raise OpsError(f"nothing was built for {action.path}")
            os.replace(built, action.path)
        case act.Rewrite():
            _rewrite(action, built)
        case act.Move():
            if os.path.lexists(action.target):
                raise Drift("the target exists already", action.target)
            os.rename(action.source, action.target)
            sync_folder(Path(action.source).parent)
        case act.Folder():
            os.mkdir(action.path) if action.make else os.rmdir(action.path)
            if action.make:
                shutil.copymode(Path(action.path).parent, action.path)
    for path in act.paths(action):
        sync_folder(Path(path).parent)


def _rewrite(action: act.Rewrite, built: Path | None) -> None:
    if action.restore or built is None:
        os.replace(action.aside, action.path)
        return
    if not os.path.lexists(action.aside):
        _keep_aside(action)
    if states.fingerprint(Path(action.path)) != action.before:
        os.unlink(action.aside)
        raise Drift("the file changed while it was rewritten; nothing was taken from it", action.path)
    os.replace(built, action.path)


def _keep_aside(action: act.Rewrite) -> None:
    Path(action.aside).parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(action.path, action.aside)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EXDEV, errno.ENOSYS):
            raise
        part = Path(action.aside).with_name("." + Path(action.aside).name + ".part")
        shutil.copy2(action.path, part)
        _sync(part)
        os.replace(part, action.aside)
    sync_folder(Path(action.aside).parent)


def staging(target: Path, run_dir: Path, name: str) -> Path:
    """Where the new content of a file is built: never in a checkpoint, always on the target's file system."""
    if target.is_relative_to(run_dir):
        return run_dir / OPS_DIR / "tmp" / name
    return target.with_name(f".m4ops-{name}-{target.name}")


def _built(target: Path, run_dir: Path, name: str, content: bytes) -> Path:
    place = staging(target, run_dir, name)
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.write_bytes(content)
        _like(place, target)
        _sync(place)
    except OSError:
        with contextlib.suppress(OSError):
            place.unlink()
        raise
    return place


def _like(place: Path, target: Path) -> None:
    """Mode and group of the file it replaces: group-writable stays so."""
    if not target.exists():
        return
    shutil.copymode(target, place)
    with contextlib.suppress(OSError):
        os.chown(place, -1, target.stat().st_gid)


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder durable; file systems that cannot say so are let be."""
    with contextlib.suppress(OSError), _opened(folder) as handle:
        os.fsync(handle)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield handle
    finally:
        os.close(handle)
