"""Bytes written where they stand, in files too large to be made anew: and told, when a write was cut short."""

from __future__ import annotations

import os
from pathlib import Path

from ops.errors import Drift

Piece = tuple[int, bytes, bytes]
"""Offset, old bytes, new bytes: as many, or none of one of them, where the file's end is appended or cut off."""


def write(path: str | Path, pieces: tuple[Piece, ...], forward: bool = True) -> None:
    """Write the new (or the old) bytes; each place must hold the old or the new ones, or a mix of a torn write."""
    with open(path, "r+b", buffering=0) as file:
        wanted = []
        for piece in pieces:
            offset, old, new = piece
            now = _found(file.fileno(), piece)
            if not _between(now, old, new):
                raise Drift(f"the bytes at {offset} are neither the old nor the new ones", str(path))
            if now != (to := new if forward else old):
                wanted.append((offset, to))
        for offset, to in wanted:
            if to:
                _write_all(file.fileno(), to, offset)
            else:
                os.ftruncate(file.fileno(), offset)
        if wanted:
            os.fsync(file.fileno())


def torn(path: str | Path, pieces: tuple[Piece, ...]) -> bool:
    """Whether the bytes of a patch in place are neither all old nor all new."""
    with open(path, "rb", buffering=0) as file:
        now = [_found(file.fileno(), piece) for piece in pieces]
    return now not in ([old for _, old, _ in pieces], [new for _, _, new in pieces])


def _found(handle: int, piece: Piece) -> bytes:
    """What stands in the place of a piece; of one that is the file's end, also that there is more."""
    offset, old, new = piece
    return os.pread(handle, len(old) if len(old) == len(new) else len(old or new) + 1, offset)


def _between(now: bytes, old: bytes, new: bytes) -> bool:
    """Whether the bytes are the old or the new ones, or of both, as a write leaves them that was cut short."""
    if len(old) != len(new):
        end = old or new
        return len(now) <= len(end) and all(c in (0, e) for c, e in zip(now, end, strict=False))
    return len(now) == len(old) and all(c in (a, b) for c, a, b in zip(now, old, new, strict=True))


def _write_all(handle: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(handle, data, offset)
        data, offset = data[written:], offset + written
