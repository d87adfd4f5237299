"""Send a checkpoint to the store: what is there already is not sent again, and nothing is finished before the store says so."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from ops import lease, state
from ops.errors import Drift, OpsError, Refused
from ops.executor import markers
from ops.model import Checkpoint, Run
from ops.store import manifest as lists
from ops.store import noted
from ops.store.line import Gone, How, Line, Place, fetched, finished, place, pool
from ops.store.manifest import Copied, Manifest, Piece, Tree, b64

LEASE_SECONDS = 180.0
"""After so long a silence (a lost node) another may go on; a sign of life is given every BEAT seconds."""
FILES = 4
"""Files that are worked on at once."""
Told = Callable[[int, int], None]
"""Gets the bytes that are in the store so far, and all there are to be."""


class Pushed(Struct, frozen=True):
    """What was done: where the copy is, its bytes, those sent by this call, those the store copied itself, seconds."""

    url: str
    size: int
    sent: int
    reused: int
    seconds: float
    left_over: tuple[str, ...] = ()
    """Objects of the earlier copy whose files are no longer in the checkpoint; they stay in the store."""


class Due(Struct, frozen=True):
    """What a push would send: files that are new, those that may have changed, and the bytes of both."""

    new: tuple[Piece, ...]
    changed: tuple[Piece, ...]
    whole: bool
    """Whether the store holds a whole copy now."""

    @property
    def size(self) -> int:
        return sum(p.size for p in (*self.new, *self.changed))


class _There(Struct, frozen=True):
    """An object as the store tells it. `checksum` is empty where it does not tell one."""

    size: int
    checksum: str


def due(run: Run, checkpoint: Checkpoint, to: str, endpoint: str = "") -> Due:
    """What a push would have to look at or send, from the list in the store and the files' sizes and times."""
    at, line = place(to), Line(endpoint)
    there = noted.manifest_of(line, at, run, checkpoint.path.name)
    before = noted.earlier(run, checkpoint.path.name, at)
    now = lists.tree(checkpoint.path)
    old = there.by_name() if there else {}
    new = tuple(p for p in now.files if p.name not in old)
    changed = tuple(p for p in now.files if p.name in old and not noted.same(p, old[p.name], before))
    return Due(new, changed, there is not None)


def push(
    run: Run,
    checkpoint: Checkpoint,
    to: str,
    *,
    endpoint: str = "",
    how: How | None = None,
    told: Told = lambda done, total: None,
) -> Pushed:
    """Have a whole, current copy of the checkpoint in the store. See `ops.store` for what it raises."""
    at, start, path = place(to), time.monotonic(), checkpoint.path
    if not checkpoint.complete:
        raise Refused(
            f"the checkpoint is not complete: {'; '.join(checkpoint.problems)}", str(path), "m4ops verify-checkpoint"
        )
    line = Line(endpoint, how)
    books = state.folder(run) / "store"
    try:
        with lease.acquire(books / f"{path.name}.lease", f"push {path.name}", LEASE_SECONDS) as mine:
            there = noted.manifest_of(line, at, run, path.name)  # who may not even ask has changed nothing
            with markers.uploading(path, books / f"{path.name}.pushing") as touch:

                def alive() -> None:
                    mine.renew()
                    touch()

                return _Push(line, at, run, path, alive, told).work(there, start)
    except OSError as error:
        raise OpsError(
            f"the checkpoint cannot be pushed: {error.strerror}",
            str(error.filename or path),
            "then give the same command again: it goes on where this one ended",
        ) from error


class _Push:
    """One push under way."""

    def __init__(self, line: Line, at: Place, run: Run, path: Path, alive: Callable[[], None], told: Told) -> None:
        self.line, self.at, self.run, self.path = line, at, run, path
        self.alive, self.told = alive, told
        self.parts = ThreadPoolExecutor(line.how.workers)
        self.lock = threading.Lock()
        self.done = self.sent = self.reused = self.total = 0
        self.whole = False
        self.old: Mapping[str, Copied] = {}
        self.earlier: Mapping[str, Any] = {}

    def work(self, there: Manifest | None, start: float) -> Pushed:
        name = self.path.name
        self.earlier = noted.earlier(self.run, name, self.at)
        self.whole = there is not None
        self.old = {**noted.remembered(self.earlier), **(there.by_name() if there else {})}
        tree = lists.tree(self.path)
        self.total = tree.size
        made = Manifest(name, self._files(tree), tree.folders, tree.links, self.run.name)
        self._unchanged(tree)
        url = self.at.url(self.run.name, name)
        if not self.whole or there is None or there.dumps() != made.dumps():
            self._put_manifest(made)
        noted.remember(self.run, self.at, self.path, made, tree.files)
        over = tuple(sorted(set(there.by_name() if there else ()) - set(made.by_name())))
        return Pushed(url, tree.size, self.sent, self.reused, time.monotonic() - start, over)

    # -- all files -------------------------------------------------------------------------------------

    def _files(self, tree: Tree) -> tuple[Copied, ...]:
        """Have every file in the store."""
        with self.parts, pool(FILES, self.line) as files:
            return tuple(finished([files.submit(self._file, piece) for piece in tree.files], self._beat))

    def _beat(self) -> None:
        self.alive()
        self.told(self.done, self.total)

    def _unchanged(self, tree: Tree) -> None:
        if _content(lists.tree(self.path)) != _content(tree):
            raise Drift(
                "the checkpoint changed while it was pushed; the copy is not finished",
                str(self.path),
                "push it again when nothing changes it any more",
            )

    # -- one file --------------------------------------------------------------------------------------

    def _file(self, piece: Piece) -> Copied:
        """Have one file in the store: compared with what is there, else sent; then the store's word for it."""
        there = self._told(piece)
        if there is not None and there.size == piece.size:
            known = self.old.get(piece.name)
            copied = known if known and noted.same(piece, known, self.earlier) else self._summed(piece)
            copied = Copied(piece, copied.sums)
            if self._confirmed(copied, there):
                self._count(piece.size)
                return copied
        if there is not None:
            self._withdraw()
        for again in (False, True):
            with contextlib.suppress(Gone):
                copied = self._sent(piece, there, fresh=again)
                if self._confirmed(copied, self._told(piece)):
                    return copied
        raise OpsError(
            "the store holds another content than was sent, twice", self._url(piece), "tell the store's admins"
        )

    def _sent(self, piece: Piece, there: _There | None, fresh: bool) -> Copied:
        with open(lists.base(self.path) / piece.name, "rb") as file:
            if len(piece.parts) == 1:
                return self._single(piece, file.fileno())
            return self._several(piece, file.fileno(), None if fresh else self._like(piece, there), fresh)

    def _like(self, piece: Piece, there: _There | None) -> Copied | None:
        """What the object in the store is made of, if it has the parts that this file would have."""
        old = self.old.get(piece.name)
        same = old and there and there.size == piece.size and there.checksum == old.checksum
        return old if same else None

    def _single(self, piece: Piece, handle: int) -> Copied:
        data = _read(handle, piece, 0, piece.size)
        digest = hashlib.sha256(data).digest()
        self.line.throttle(len(data))
        self.line.ask(
            self._url(piece),
            lambda: self.line.client.put_object(**self._key(piece), Body=data, ChecksumSHA256=b64(digest)),
        )
        self._count(len(data), sent=len(data))
        return Copied(piece, (digest.hex(),))

    def _several(self, piece: Piece, handle: int, old: Copied | None, fresh: bool) -> Copied:
        upload, there = self._upload(piece, fresh)
        numbers = range(1, len(piece.parts) + 1)
        futures = [self.parts.submit(self._part, piece, handle, n, upload, there.get(n), old) for n in numbers]
        done = finished(futures)
        listed = {"Parts": [part for part, _ in done]}
        key = {**self._key(piece), "UploadId": upload}
        with contextlib.suppress(Gone):  # done, and only the answer was lost: the object itself tells
            self.line.ask(
                self._url(piece), lambda: self.line.client.complete_multipart_upload(**key, MultipartUpload=listed)
            )
        return Copied(piece, tuple(digest.hex() for _, digest in done))

    def _part(
        self, piece: Piece, handle: int, number: int, upload: str, there: Mapping[str, Any] | None, old: Copied | None
    ) -> tuple[dict[str, object], bytes]:
        """Have one part in the store: kept from an interrupted push, copied within the store, or sent."""
        begin, end = piece.parts[number - 1]
        self.line.in_time()
        data = _read(handle, piece, begin, end - begin)
        digest = hashlib.sha256(data).digest()
        told: dict[str, object] = {"PartNumber": number, "ChecksumSHA256": b64(digest)}
        key = {**self._key(piece), "UploadId": upload, "PartNumber": number}
        if there and _holds(there, data, digest):
            self._count(len(data))
            return told | {"ETag": there["ETag"]}, digest
        if old and old.sums[number - 1] == digest.hex():
            source = {"CopySource": self._key(piece), "CopySourceRange": f"bytes={begin}-{end - 1}"}
            answer = self.line.ask(self._url(piece), lambda: self.line.client.upload_part_copy(**key, **source))
            made = answer["CopyPartResult"]
            if made.get("ChecksumSHA256") == b64(digest):
                self._count(len(data), reused=len(data))
                return told | {"ETag": made["ETag"]}, digest
        self.line.throttle(len(data))
        send: dict[str, Any] = {**key, "Body": data, "ChecksumSHA256": b64(digest)}
        answer = self.line.ask(self._url(piece), lambda: self.line.client.upload_part(**send))
        self._count(len(data), sent=len(data))
        return told | {"ETag": answer["ETag"]}, digest

    def _upload(self, piece: Piece, fresh: bool) -> tuple[str, dict[int, Mapping[str, Any]]]:
        """The unfinished upload of this object with its parts, or a new one; others of it are given up."""
        key, client = self._key(piece), self.line.client
        found = self.line.ask(
            self._url(piece),
            lambda: client.list_multipart_uploads(Bucket=key["Bucket"], Prefix=key["Key"]).get("Uploads", []),
        )
        mine = (u for u in found if u["Key"] == key["Key"] and u.get("ChecksumAlgorithm", "SHA256") == "SHA256")
        ours = sorted(mine, key=lambda u: str(u["Initiated"]))
        kept = None if fresh or not ours else ours.pop()["UploadId"]
        for each in ours:
            given_up = {**key, "UploadId": each["UploadId"]}
            with contextlib.suppress(Gone):
                self.line.ask(self._url(piece), partial(client.abort_multipart_upload, **given_up))
        if kept is not None:
            return kept, self._listed(piece, kept)
        made = self.line.ask(
            self._url(piece), lambda: client.create_multipart_upload(**key, ChecksumAlgorithm="SHA256")
        )
        return made["UploadId"], {}

    def _listed(self, piece: Piece, upload: str) -> dict[int, Mapping[str, Any]]:
        def pages() -> list[Mapping[str, Any]]:
            pager = self.line.client.get_paginator("list_parts").paginate(**self._key(piece), UploadId=upload)
            return [part for page in pager for part in page.get("Parts", [])]

        sizes = {n: end - begin for n, (begin, end) in enumerate(piece.parts, 1)}
        found = self.line.maybe(self._url(piece), pages) or []
        return {p["PartNumber"]: p for p in found if p["Size"] == sizes.get(p["PartNumber"])}

    def _summed(self, piece: Piece) -> Copied:
        """The sums of a file as it is now."""
        with open(lists.base(self.path) / piece.name, "rb") as file:
            handle = file.fileno()

            def summed(bounds: tuple[int, int]) -> str:
                self.line.in_time()
                return hashlib.sha256(_read(handle, piece, bounds[0], bounds[1] - bounds[0])).hexdigest()

            return Copied(piece, tuple(self.parts.map(summed, piece.parts)))

    # -- the store's word ------------------------------------------------------------------------------

    def _told(self, piece: Piece) -> _There | None:
        head = self.line.maybe(
            self._url(piece), lambda: self.line.client.head_object(**self._key(piece), ChecksumMode="ENABLED")
        )
        return None if head is None else _There(int(head["ContentLength"]), str(head.get("ChecksumSHA256") or ""))

    def _confirmed(self, copied: Copied, there: _There | None) -> bool:
        """Whether the store has the file, by its size and checksum; it is read back where the store tells none."""
        if there is None or there.size != copied.piece.size:
            return False
        return there.checksum == copied.checksum if there.checksum else self._read_back(copied)

    def _read_back(self, copied: Copied) -> bool:
        key, where = self._key(copied.piece), self._url(copied.piece)

        def holds(bounds: tuple[int, int], wanted: str) -> bool:
            data = fetched(self.line, key, bounds, where)
            return data is not None and hashlib.sha256(data).hexdigest() == wanted

        return all(self.parts.map(holds, copied.piece.parts, copied.sums))

    def _withdraw(self) -> None:
        """An object is going to be replaced: from now on the copy is not whole, and its list must not say so."""
        with self.lock:
            if self.whole:
                key = {"Bucket": self.at.bucket, "Key": noted.list_key(self.at, self.run, self.path.name)}
                self.line.ask(self.at.url(self.run.name), lambda: self.line.client.delete_object(**key))
                self.whole = False

    def _put_manifest(self, made: Manifest) -> None:
        content = made.dumps()
        key = {"Bucket": self.at.bucket, "Key": noted.list_key(self.at, self.run, made.checkpoint)}
        where = f"s3://{key['Bucket']}/{key['Key']}"
        digest = b64(hashlib.sha256(content).digest())
        self.line.ask(where, lambda: self.line.client.put_object(**key, Body=content, ChecksumSHA256=digest))
        if noted.got(self.line, key, where) != content:
            raise OpsError("the store holds another list than was sent", where, "push again")

    # -- small things ----------------------------------------------------------------------------------

    def _key(self, piece: Piece) -> dict[str, str]:
        return {"Bucket": self.at.bucket, "Key": self.at.key(self.run.name, self.path.name, piece.name)}

    def _url(self, piece: Piece) -> str:
        return self.at.url(self.run.name, self.path.name, piece.name)

    def _count(self, size: int, sent: int = 0, reused: int = 0) -> None:
        with self.lock:
            self.done, self.sent, self.reused = self.done + size, self.sent + sent, self.reused + reused
            self.told(self.done, self.total)


# -- reading and comparing -----------------------------------------------------------------------------------


def _read(handle: int, piece: Piece, begin: int, size: int) -> bytes:
    data = os.pread(handle, size, begin)
    while len(data) < size and (more := os.pread(handle, size - len(data), begin + len(data))):
        data += more
    if len(data) < size:
        raise Drift("the file became shorter while it was pushed", piece.name, "push the checkpoint again")
    return data


def _holds(there: Mapping[str, Any], data: bytes, digest: bytes) -> bool:
    """Whether a part that was sent before has this content, by the checksum or else the MD5 that the store tells."""
    if there.get("ChecksumSHA256"):
        return bool(there["ChecksumSHA256"] == b64(digest))
    return bool(there["ETag"].strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest())


def _content(tree: Tree) -> list[object]:
    """What must not change while it is pushed: all but what satellites set beside it."""
    return [[p for p in tree.files if lists.counts(p.name)], tree.links]
