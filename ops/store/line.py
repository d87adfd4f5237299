"""The way to one store: where it is, its client, and how an outage, a limit of time or of bandwidth is borne.

The client is boto3's. Its own transfer manager gives a multi-part upload up, and what was sent of it, at the first error
that its retries do not mend (boto/s3transfer `tasks.py`), so the parts are sent and fetched here, one call each.
"""

from __future__ import annotations

import contextlib
import random
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from msgspec import Struct

from ops.errors import BadInput, OpsError, Refused, Unreachable

Answer = TypeVar("Answer")
RETRIES = 4
"""Attempts of one request by the library itself, with its back-off, before it counts as failed here."""
LONGEST_PAUSE = 5.0
BEAT = 20.0
"""Seconds between two signs of life in leases and markers."""
_TRANSIENT = {
    "RequestTimeout", "RequestTimeTooSkewed", "SlowDown", "Throttling", "ThrottlingException", "InternalError",
    "ServiceUnavailable", "OperationAborted", "TooManyRequestsException",
}  # fmt: skip
_DENIED = {
    "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "401", "403",
    "AllAccessDisabled", "AccountProblem", "TokenRefreshRequired",
}  # fmt: skip
_ABSENT = {"404", "NoSuchKey", "NotFound"}


class How(Struct, frozen=True):
    """How much a transfer may take. `until` is on time.monotonic's clock, `bandwidth` in bytes a second."""

    workers: int = 8
    """Parts on the way at once; each takes its size in memory."""
    bandwidth: float | None = None
    until: float | None = None
    patience: float = 600.0
    """Seconds for which the store may be away, once it has answered."""


class Place(Struct, frozen=True):
    """A bucket and the prefix of the keys in it, without slashes at its ends."""

    bucket: str
    prefix: str

    def key(self, *parts: str) -> str:
        return "/".join(part for part in (self.prefix, *parts) if part)

    def url(self, *parts: str) -> str:
        return f"s3://{self.bucket}/{self.key(*parts)}"


def place(url: str) -> Place:
    """The place that a URL names. Raises BadInput; a URL with a password in it is not repeated."""
    if "@" in url:
        raise BadInput(
            "a store's URL holds no credentials",
            hint="s3://BUCKET/PREFIX; credentials come from AWS_PROFILE, AWS_ACCESS_KEY_ID or ~/.aws",
        )
    match = re.fullmatch(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?", url.strip())
    if match is None:
        raise BadInput(f"`{url}` names no store", hint="s3://BUCKET/PREFIX")
    return Place(match[1], "/".join(part for part in (match[2] or "").split("/") if part))


class Line:
    """The client, and what all requests of one transfer share."""

    def __init__(self, endpoint: str = "", how: How | None = None) -> None:
        self.how = how or How()
        self.stopped = threading.Event()
        self.client = _client(endpoint, self.how.workers)
        self._lock = threading.Lock()
        self._failing: float | None = None
        self._answered = False
        self._room = time.monotonic()

    def ask(self, what: str, call: Callable[[], Answer]) -> Answer:
        """Do one request; through an outage too, once the store has answered. Raises OpsError in words."""
        from botocore.exceptions import BotoCoreError, ClientError

        pause = 0.3
        while True:
            self.in_time()
            try:
                answer = call()
            except (BotoCoreError, ClientError) as error:
                if not _transient(error) or self._gave_up():
                    raise _in_words(error, what) from None
                if self.stopped.wait(pause * random.uniform(0.5, 1)):
                    raise _in_words(error, what) from None
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                with self._lock:
                    self._answered, self._failing = True, None
                return answer

    def maybe(self, what: str, call: Callable[[], Answer]) -> Answer | None:
        """The same for what may not be there: then None."""
        from botocore.exceptions import ClientError

        def asked() -> Answer | None:
            try:
                return call()
            except ClientError as error:
                if _code(error) in _ABSENT:
                    return None
                raise

        return self.ask(what, asked)

    def in_time(self) -> None:
        """Raises Unreachable when the time is over or the transfer was stopped."""
        if self.stopped.is_set():
            raise Unreachable("the transfer was stopped", hint="the same command goes on where it ended")
        if self.how.until is not None and time.monotonic() > self.how.until:
            raise Unreachable("the time limit has come", hint="the same command goes on where this one ended")

    def throttle(self, size: int) -> None:
        """Wait until `size` more bytes are within the bandwidth, measured over the whole transfer."""
        if not self.how.bandwidth:
            return
        with self._lock:
            start = max(self._room, time.monotonic())
            self._room = start + size / self.how.bandwidth
        while (left := start - time.monotonic()) > 0:
            self.in_time()
            self.stopped.wait(min(left, 1.0))

    def _gave_up(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if not self._answered:
                return True
            self._failing = now if self._failing is None else self._failing
            return now - self._failing > self.how.patience


class Gone(OpsError):
    """An upload that was begun is no longer there: it was finished, or given up."""


def fetched(line: Line, key: Mapping[str, str], bounds: tuple[int, int], where: str) -> bytes | None:
    """The bytes of an object between these bounds; fewer where it is shorter, None where it is not there."""
    begin, end = bounds

    def read() -> bytes:
        ranged = {"Range": f"bytes={begin}-{end - 1}"} if end > begin else {}
        data: bytes = line.client.get_object(**key, **ranged)["Body"].read()
        return data

    line.throttle(end - begin)
    return line.maybe(where, read)


@contextlib.contextmanager
def pool(workers: int, line: Line) -> Iterator[ThreadPoolExecutor]:
    """Threads that end at once when something is raised inside: what waits is dropped, what runs is told to stop."""
    threads = ThreadPoolExecutor(workers)
    try:
        yield threads
    except BaseException:
        line.stopped.set()
        threads.shutdown(cancel_futures=True)
        raise
    threads.shutdown()


def finished(futures: Sequence[Future[Answer]], alive: Callable[[], None] = lambda: None) -> list[Answer]:
    """What each gave, in their order; the first failure is raised at once. `alive` is called every BEAT seconds."""
    left, beat = set(futures), time.monotonic()
    try:
        while left:
            done, left = wait(left, BEAT, FIRST_COMPLETED)
            for future in done:
                future.result()
            if time.monotonic() - beat >= BEAT:
                beat = time.monotonic()
                alive()
    except BaseException:
        for future in left:
            future.cancel()
        raise
    return [future.result() for future in futures]


def _client(endpoint: str, workers: int) -> Any:
    if "@" in endpoint:
        raise BadInput("a store's address holds no credentials", hint="they come from AWS_PROFILE or ~/.aws")
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError:
        raise Refused("boto3 is not installed here", sys.prefix, "pip install 'm4ops[s3]'") from None

    config = Config(
        retries={"mode": "standard", "total_max_attempts": RETRIES},
        max_pool_connections=2 * workers,
        connect_timeout=10,
        read_timeout=60,
        tcp_keepalive=True,
        request_checksum_calculation="when_required",  # they are made and compared here
        response_checksum_validation="when_required",
    )
    try:
        return boto3.session.Session().client("s3", endpoint_url=endpoint or None, config=config)
    except (BotoCoreError, ValueError) as error:
        raise BadInput(f"the store's client cannot be made: {error}", hint="look at AWS_PROFILE and ~/.aws") from None


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)


def _transient(error: Exception) -> bool:
    from botocore import exceptions as known

    if isinstance(error, known.ClientError):
        return _status(error) >= 500 or _code(error) in _TRANSIENT
    if isinstance(error, known.SSLError | known.ProxyConnectionError):
        return False
    return isinstance(error, known.ConnectionError | known.HTTPClientError | known.IncompleteReadError)


def _in_words(error: Exception, what: str) -> OpsError:
    """What a failed request means; neither keys nor signed URLs are repeated."""
    from botocore import exceptions as known

    usual = "AWS_PROFILE, AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials"
    if isinstance(error, known.NoCredentialsError | known.PartialCredentialsError | known.CredentialRetrievalError):
        return Refused(f"no credentials for the store: {error}", what, f"set {usual}")
    if isinstance(error, known.ClientError):
        code = _code(error)
        said = f"{code} {error.response.get('Error', {}).get('Message', '')}".strip()
        if code in _DENIED:
            return Refused(f"the store refuses: {said}", what, f"look at {usual}, and at the bucket's policy")
        if code == "NoSuchUpload":
            return Gone(f"the store answers: {said}", what, "push again")
        if code == "NoSuchBucket":
            return Refused("there is no such bucket", what, "make it, or name another by --to or store in m4ops.toml")
        kind = Unreachable if _transient(error) else OpsError
        return kind(f"the store answers: {said}", what, "the same command goes on where this one ended")
    return Unreachable(f"the store does not answer: {error}", what, "the same command goes on where this one ended")
