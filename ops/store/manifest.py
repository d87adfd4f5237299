"""What a checkpoint is made of, with checksums: the list that lies in the store beside its copy, and says it is whole."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field, to_builtins

from ops.errors import OpsError, Refused

FORM = "m4ops.copy/1"
SUFFIX = ".m4ops.json"
PART = 16 << 20
"""Bytes of a part: each is read once, summed, and sent from memory. More where a file would have too many."""
MOST_PARTS = 9_000
"""S3 takes 10,000 parts an object."""
_PASSING = re.compile(r"started-\S+|start_run_evals_\S+|finished-upload-checkpoint|\.nfs[0-9a-f]+")
"""Names of what says that somebody works here just now; it is no part of the checkpoint."""
_LATER = re.compile(r"run_evals_\S+_done")
"""Names of what is set long after a save: it is kept, but a copy without it is no worse."""


class Piece(Struct, frozen=True):
    """A file of the checkpoint, as it is now."""

    name: str
    size: int
    mode: int
    modified: int
    """Nanoseconds."""
    mark: tuple[int, int] = (0, 0)
    """Inode and time of the last change of any kind: while these and the above stay, so did the content."""

    @property
    def part(self) -> int:
        """Bytes of each of its parts but the last; whole MiB, and the same for the same size."""
        return max(PART, -(-self.size // MOST_PARTS // (1 << 20)) * (1 << 20))

    @property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """Where each part begins and ends; an empty file has one."""
        return tuple((at, min(at + self.part, self.size)) for at in range(0, max(self.size, 1), self.part))


class Copied(Struct, frozen=True):
    """A file and the SHA-256 of each of its parts, in hex."""

    piece: Piece
    sums: tuple[str, ...]

    @property
    def checksum(self) -> str:
        """What an S3 store says of the object: of several parts the sum of their sums, and how many."""
        digests = [bytes.fromhex(s) for s in self.sums]
        if len(digests) == 1:
            return b64(digests[0])
        return f"{b64(hashlib.sha256(b''.join(digests)).digest())}-{len(digests)}"


class Tree(Struct, frozen=True):
    """All that a checkpoint consists of: files, folders with their modes, links within it."""

    files: tuple[Piece, ...]
    folders: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(p.size for p in self.files)


class Manifest(Struct, frozen=True):
    """A whole copy in a store."""

    checkpoint: str
    files: tuple[Copied, ...]
    folders: Mapping[str, int] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    run: str = ""

    @property
    def size(self) -> int:
        return sum(f.piece.size for f in self.files)

    @property
    def one_file(self) -> bool:
        """Whether the checkpoint is a file, not a folder."""
        return not self.folders

    def by_name(self) -> dict[str, Copied]:
        return {f.piece.name: f for f in self.files}

    def dumps(self) -> bytes:
        files = [
            {k: v for k, v in to_builtins(f.piece).items() if k != "mark"} | {"sha256": f.sums} for f in self.files
        ]
        whole = {"m4ops": FORM, "checkpoint": self.checkpoint, "run": self.run, "part": PART, "files": files}
        return json.dumps(whole | {"folders": dict(self.folders), "links": dict(self.links)}).encode()


def b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def parse(content: bytes, where: str) -> Manifest:
    """The manifest that `dumps` wrote. Raises OpsError for anything else, and for a name that leads elsewhere."""
    try:
        data = json.loads(content)
        if data["m4ops"] != FORM:
            raise ValueError("written by another version of m4ops")
        files = tuple(_copied(f) for f in data["files"])
        folders = {str(k): int(v) for k, v in data["folders"].items()}
        links = {str(k): str(v) for k, v in data["links"].items()}
        found = Manifest(str(data["checkpoint"]), files, folders, links, str(data["run"]))
        for name in (found.checkpoint, *(f.piece.name for f in files), *folders, *links):
            _inside(name)
        return found
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise OpsError(f"the list of a copy cannot be read: {error}", where, "push the checkpoint again") from None


def _copied(data: Mapping[str, Any]) -> Copied:
    piece = Piece(str(data["name"]), int(data["size"]), int(data["mode"]), int(data["modified"]))
    sums = tuple(str(s) for s in data["sha256"])
    if len(sums) != len(piece.parts) or any(len(bytes.fromhex(s)) != 32 for s in sums):
        raise ValueError(f"{piece.name} does not have the sums of its parts")
    return Copied(piece, sums)


def _inside(name: str) -> None:
    if not name or name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"{name!r} is no name within a checkpoint")


def tree(checkpoint: Path) -> Tree:
    """What the checkpoint consists of now, be it a folder or one file. Raises Refused for a link that leads out of it."""
    if checkpoint.is_file():
        return Tree((_piece(checkpoint.name, checkpoint.stat()),))
    files, folders, links = [], {".": stat.S_IMODE(checkpoint.stat().st_mode)}, {}
    for path, info in _walk(checkpoint):
        name = path.relative_to(checkpoint).as_posix()
        mode = stat.S_IMODE(info.st_mode)
        if stat.S_ISDIR(info.st_mode):
            folders[name] = mode
        elif stat.S_ISLNK(info.st_mode):
            links[name] = _kept_link(checkpoint, path)
        elif stat.S_ISREG(info.st_mode) and not _PASSING.fullmatch(path.name):
            files.append(_piece(name, info))
    return Tree(tuple(files), folders, links)


def base(checkpoint: Path) -> Path:
    """The folder that the names of a checkpoint's files are relative to."""
    return checkpoint.parent if checkpoint.is_file() else checkpoint


def _piece(name: str, info: os.stat_result) -> Piece:
    mark = (info.st_ino, info.st_ctime_ns)
    return Piece(name, info.st_size, stat.S_IMODE(info.st_mode), info.st_mtime_ns, mark)


def _walk(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        yield Path(entry.path), entry.stat(follow_symlinks=False)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _kept_link(checkpoint: Path, path: Path) -> str:
    target = os.readlink(path)
    inside = Path(os.path.realpath(path)).is_relative_to(os.path.realpath(checkpoint))
    if os.path.isabs(target) or not inside:
        raise Refused(
            f"a link leads out of the checkpoint, to {target}: a copy would lack what is there",
            str(path),
            "put the file itself in its place",
        )
    return target


def counts(name: str) -> bool:
    """Whether a copy that lacks this file is no longer a current one."""
    return not _LATER.fullmatch(name.rpartition("/")[2])
