"""`m4ops watch` on a real terminal (a pty, read by a terminal emulator), and into a pipe."""

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyte
import pytest
from runs import NAME, tree

from ops import recent

LIMIT = 60.0
LINE = "[2026-01-01 10:11:12] iteration: {:6d}/500000   0% | elapsed time: 19:29:30 | per_token_loss: {} | lr: 5.000E-05 |\n"
COLUMNS, ROWS = 110, 44


class Watched:
    """`m4ops watch` on a terminal of its own."""

    def __init__(self, run: Path, env: dict[str, str]) -> None:
        self.run = run
        self.here, there = pty.openpty()
        self.resize(COLUMNS, ROWS)
        self.modes = termios.tcgetattr(there)
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self.stream = pyte.ByteStream(self.screen)
        self.received = b""
        self.process = subprocess.Popen(
            [*M4OPS, "--run", str(run), "watch", "--every", "1"], stdin=there, stdout=there, stderr=there,
            env={**env, "TERM": "xterm-256color"},
        )  # fmt: skip
        self.there = there

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.here, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        with contextlib.suppress(AttributeError):
            self.screen.resize(rows, columns)

    def read(self, seconds: float) -> int:
        """Take in what comes; how many bytes came."""
        end, count = time.monotonic() + seconds, 0
        while (left := end - time.monotonic()) > 0:
            if select.select([self.here], [], [], left)[0]:
                data = os.read(self.here, 65536)
                count += len(data)
                self.received += data
                self.stream.feed(data)
        return count

    def until(self, shown: Callable[[list[str]], Any]) -> list[str]:
        """The lines of the screen as soon as they are so, and no part of a picture is still under way."""
        limit = time.monotonic() + LIMIT
        while self.read(0.1) or not shown(lines := [line.rstrip() for line in self.screen.display]):
            assert time.monotonic() < limit, "\n".join(self.screen.display)
        return lines

    def end(self) -> int:
        """The exit code, once it has left the screen."""
        code = self.process.wait(LIMIT)
        self.read(0.2)
        return code

    def log(self, *losses: str) -> None:
        with (self.run / "logs" / "main_log.txt").open("a") as log:
            log.write("".join(LINE.format(self.step + i, loss) for i, loss in enumerate(losses)))
        self.step += len(losses)

    step = 301


M4OPS = (sys.executable, "-m", "ops.cli")


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """With a queue in which nothing is, and that counts who asks."""
    root = tmp_path_factory.mktemp("bin")
    (root / "squeue").write_text(f"#!/bin/sh\necho asked >> {root}/asked\n")
    (root / "squeue").chmod(0o755)
    own = {"PATH": f"{root}{os.pathsep}{os.environ['PATH']}", "XDG_RUNTIME_DIR": str(root), "HOME": str(root)}
    given = (recent.SWITCH, "COLUMNS", "LINES")  # the terminal says how large it is; pytest-xdist would for it
    return {k: v for k, v in os.environ.items() if k not in given} | own


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / NAME
    (run / "logs").mkdir(parents=True)
    losses = ("2.31", "2.29", "2.33", "2.30", "2.28")
    (run / "logs" / "main_log.txt").write_text("".join(LINE.format(i, losses[i % 5]) for i in range(1, 301)))
    return run


@pytest.fixture
def watched(run: Path, env: dict[str, str]) -> Iterator[Watched]:
    watched = Watched(run, env)
    yield watched
    watched.process.kill()
    watched.process.wait()
    os.close(watched.here)
    os.close(watched.there)


def test_a_night_on_one_screen(watched: Watched, env: dict[str, str]) -> None:
    before, began = tree(watched.run), time.monotonic()
    first = watched.until(lambda lines: lines[-1].startswith("every 1 s"))
    assert first[0].startswith(f" CRITICAL   {NAME}")
    assert any(line.startswith("progress     step 300 of 500000") for line in first)
    assert any("loss over 300 logged steps" in line for line in first)
    watched.read(1)
    assert watched.read(3) < 450, "while nothing is new, a slow line carries the age of the log and the minute"
    assert tree(watched.run) == before, "to watch changes nothing"

    watched.log("2.30", "nan", "nan")
    after = watched.until(lambda lines: any("CRITICAL raised: the loss is nan since step 302" in x for x in lines))
    assert any(line.startswith("CRITICAL     the loss is nan since step 302") for line in after[:12])
    asked = (Path(env["XDG_RUNTIME_DIR"]) / "asked").read_text().count("asked")
    assert asked <= 2 + (time.monotonic() - began) // 30, "the controller is not asked at every look"

    watched.resize(80, 12)
    small = watched.until(lambda lines: len(lines) == 12 and lines[0].startswith(" CRITICAL"))
    assert small[-1].startswith("every 1 s")
    assert "more lines: m4ops status" in small[-2]

    os.write(watched.here, b"q")
    assert watched.end() == 0
    assert watched.received.rstrip().endswith(b"\x1b[?1049l"), "the shell's own screen is back"
    assert b"\x1b[?25h" in watched.received[-40:], "and its cursor"
    assert termios.tcgetattr(watched.there) == watched.modes


def test_a_folder_that_goes_away_and_comes_back(watched: Watched) -> None:
    watched.until(lambda lines: lines[0].startswith(" CRITICAL"))
    away = watched.run.with_name("away")
    watched.run.rename(away)
    watched.until(lambda lines: "not seen: log, checkpoints" in lines[0])
    watched.until(lambda lines: any("UNKNOWN raised: the log could not be read" in line for line in lines))
    away.rename(watched.run)
    watched.until(lambda lines: "not seen" not in lines[0])
    watched.until(lambda lines: any("over: the log could not be read" in line for line in lines))
    watched.process.terminate()
    watched.end()
    assert b"\x1b[?1049l" in watched.received, "also after a kill the terminal is as it was"


def test_into_a_pipe_goes_a_line_for_each_change(run: Path, env: dict[str, str]) -> None:
    command = [*M4OPS, "--run", str(run), "watch", "--every", "1"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        first = process.stdout.readline()
        assert "CRITICAL raised: no job" in first, first
        with (run / "logs" / "main_log.txt").open("a") as log:
            log.write("".join(LINE.format(i, "nan") for i in range(301, 304)))
        assert "CRITICAL raised: the loss is nan since step 301" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert (process.stdout.read(), process.wait(LIMIT)) == ("", 0)
