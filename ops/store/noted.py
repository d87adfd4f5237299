"""What is known of a copy: its list in the store, and what was noted here when it was pushed."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ops import state
from ops.checkpoints import states
from ops.errors import OpsError, Refused
from ops.model import Run
from ops.store import manifest as lists
from ops.store.line import Line, Place, place
from ops.store.manifest import Copied, Manifest, Piece


class Standing(Struct, frozen=True):
    """A copy as it was noted when it was pushed, and the files that are no longer what it holds."""

    url: str
    changed: tuple[str, ...]


def manifest_of(line: Line, at: Place, run: Run, name: str) -> Manifest | None:
    key = {"Bucket": at.bucket, "Key": list_key(at, run, name)}
    where = f"s3://{key['Bucket']}/{key['Key']}"
    content = got(line, key, where)
    return None if content is None else lists.parse(content, where)


def got(line: Line, key: Mapping[str, str], where: str) -> bytes | None:
    def read() -> bytes:
        content: bytes = line.client.get_object(**key)["Body"].read()
        return content

    return line.maybe(where, read)


def list_key(at: Place, run: Run, name: str) -> str:
    return at.key(run.name, f"{name}{lists.SUFFIX}")


def earlier(run: Run, name: str, at: Place) -> Mapping[str, Any]:
    """What was noted at the last push to this place; empty where there was none."""
    found = state.kept(run, f"store/{name}.json")
    return found if found.get("to") == at.url(run.name) else {}


def remembered(earlier: Mapping[str, Any]) -> dict[str, Copied]:
    try:
        return lists.parse(json.dumps(earlier["list"]).encode(), "note").by_name() if earlier else {}
    except (OpsError, KeyError):
        return {}


def remember(run: Run, at: Place, path: Path, made: Manifest, pieces: Sequence[Piece]) -> None:
    """Note what the copy is made of, and what the files were when they had the same content.

    A file that was edited in the very moment is noted as it was, and so is told to be stale.
    """
    marks = {piece.name: [*piece.mark, piece.modified, piece.size] for piece in pieces}
    prints = {piece.name: _print(lists.base(path) / piece.name) for piece in pieces}
    still = frozenset(lists.tree(path).files)
    prints |= {piece.name: "" for piece in pieces if piece not in still}
    note = {"to": at.url(run.name), "time": time.time(), "list": json.loads(made.dumps()), "marks": marks}
    state.keep(run, f"store/{made.checkpoint}.json", note | {"prints": prints})


def standing(run: Run, path: Path) -> Standing | None:
    """What the last push left, by what was noted of it: the store is not asked. None where there was none."""
    noted = state.kept(run, f"store/{path.name}.json")
    if not noted:
        return None
    try:
        return Standing(f"{noted['to']}/{path.name}", tuple(_changed(path, noted)))
    except (OSError, Refused) as error:  # removed meanwhile, by a clean-up job
        return Standing(f"{noted['to']}/{path.name}", (f"UNKNOWN: {error}",))


def _changed(path: Path, noted: Mapping[str, Any]) -> Iterator[str]:
    known, prints = remembered(noted), noted.get("prints", {})
    for piece in lists.tree(path).files:
        if piece.name not in known:
            yield from [piece.name] if lists.counts(piece.name) else []
        elif not same(piece, known[piece.name], noted):
            now = _print(lists.base(path) / piece.name) if piece.size == known[piece.name].piece.size else ""
            yield from [piece.name] if not now or now != prints.get(piece.name) else []


def current(run: Run, path: Path, to: str) -> bool:
    """Whether, by the same note, the store at this place has a copy that still is what lies here."""
    found = standing(run, path)
    return found is not None and not found.changed and found.url == place(to).url(run.name, path.name)


def _print(path: Path) -> str:
    """What tells this content of a file from another at little cost; empty where that cannot be told."""
    with path.open("rb") as file:
        cheap = os.fstat(file.fileno()).st_size <= states.WHOLE or file.read(2) == b"PK"
    return states.fingerprint(path) if cheap else ""


def same(piece: Piece, known: Copied, earlier: Mapping[str, Any]) -> bool:
    """Whether the file was not touched since the sums of the last push were made."""
    marks = earlier.get("marks")
    mark = marks.get(piece.name) if isinstance(marks, dict) else None
    return mark == [*piece.mark, piece.modified, piece.size] and known.piece.size == piece.size
