"""Real receivers of alerts on this machine: a web server and a mail server that can go down and come back."""

import asyncio
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.smtp import SMTP, Envelope, Session


@dataclass
class Receiver:
    """Something that listens on this machine and keeps what it gets."""

    port: int
    bodies: list[bytes] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    answer: int = 200
    """What it says; mail is refused by 550."""
    stalled: threading.Event | None = None
    """While this is not set, whoever was heard waits for an answer."""
    up: ExitStack | None = None
    asked: list[str] = field(default_factory=list)
    """The addresses that were asked for, by GET."""

    def posted(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    def texts(self) -> list[str]:
        """The first line of each JSON body's text."""
        return [posted["text"].split("\n")[0] for posted in self.posted()]

    def mails(self) -> list[EmailMessage]:
        return [message_from_bytes(body, policy=policy.default) for body in self.bodies]  # type: ignore[misc]

    def down(self) -> None:
        if self.up:
            self.up.close()
        self.up = None

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        if self.stalled:
            self.stalled.wait(60)


class Web(Receiver):
    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def listen(self) -> "Web":
        receiver = self

        class Page(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if receiver.answer == 200:
                    receiver.headers.append({"path": self.path, **self.headers})
                    receiver.take(body)
                self.send_response(receiver.answer, f"as you say {self.path}")
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def do_GET(self) -> None:
                receiver.asked.append(self.path)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                """Whoever asked was killed."""

        server = Server(("127.0.0.1", self.port), Page)
        self.port, self.up = server.server_address[1], ExitStack()
        self.up.enter_context(_served(server))
        return self


class Mail(Receiver):
    """aiosmtpd, a mail server, without a spool."""

    @property
    def uri(self) -> str:
        return f"smtp://127.0.0.1:{self.port}/ops@example.org"

    def listen(self) -> "Mail":
        loop, receiver = asyncio.new_event_loop(), self

        class Box:
            async def handle_RCPT(self, _: SMTP, __: Session, envelope: Envelope, to: str, ___: list[str]) -> str:
                envelope.rcpt_tos.append(to)
                return "550 no such user" if receiver.answer == 550 else "250 fine"

            async def handle_DATA(self, _: SMTP, __: Session, envelope: Envelope) -> str:
                receiver.take(bytes(envelope.content or b""))
                return "250 taken"

        def dialogue() -> SMTP:
            return SMTP(Box(), hostname="here", loop=loop, data_size_limit=None)

        server = loop.run_until_complete(loop.create_server(dialogue, "127.0.0.1", self.port))
        self.port, self.up = server.sockets[0].getsockname()[1], ExitStack()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()

        async def close() -> None:
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        def stop() -> None:
            asyncio.run_coroutine_threadsafe(close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

        self.up.callback(stop)
        return self


@contextmanager
def _served(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def free_port() -> int:
    """A port nobody listens at, yet."""
    with socketserver.TCPServer(("127.0.0.1", 0), socketserver.BaseRequestHandler) as server:
        return int(server.server_address[1])
