"""Numbers of another length in a distributed checkpoint (DCP): the value's own small zip is made anew in the room it has.

`.metadata` says at which bytes of a file each value lies. In that room every record is filled up, so that the data of the next one
are aligned; the filling gives what a longer pickle takes. Source: pytorch `caffe2/serialize/inline_container.cc` (`getPadding`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable

from msgspec.structs import replace

from ops.checkpoints import dcp
from ops.checkpoints.patch import Splice, respliced, rezipped, with_crc
from ops.checkpoints.torchfile import StateError, TorchFile, opened, read_zip
from ops.checkpoints.torchzip import read_at


def refitted(file: TorchFile, changes: Iterable[Splice]) -> tuple[Splice, ...]:
    """The bytes to change, each of its old length, for changes that need not be; checksums included."""
    left, found = list(changes), []
    for item in dcp.items(file.path.parent) if any(len(c.old) != len(c.new) for c in left) else ():
        inside = [c for c in left if item.file == file.path.name and item.at <= c.offset < item.at + item.size]
        if any(len(c.old) != len(c.new) for c in inside):
            left = [c for c in left if c not in inside]
            found.append(_anew(file, item, inside))
    return tuple(sorted((*with_crc(file, left), *found), key=lambda s: s.offset))


def _anew(file: TorchFile, item: dcp.Item, changes: list[Splice]) -> Splice:
    """A value's whole zip with the changes in its pickle."""
    with opened(file.path) as fd, tempfile.TemporaryFile() as alone:
        raw = read_at(fd, item.at, item.size)
        alone.write(raw)
        alone.flush()
        own = read_zip(file.path, alone.fileno())
        at, end = own.pickle
        moved = [replace(c, offset=c.offset - item.at) for c in changes]
        if not all(at <= c.offset < end for c in moved):
            raise StateError("a number of another length that is no part of a pickle", str(file.path))
        new = rezipped(alone.fileno(), raw, own, respliced(raw[at:end], at, moved, own.frames))
    if len(new) != len(raw):
        raise StateError(
            f"{'.'.join(map(str, item.path))} takes more bytes with that number, and there is no room for them",
            str(file.path),
            "choose a number that is as long as the old one",
        )
    return Splice(item.at, raw, new)
