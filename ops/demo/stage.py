"""Where a demo is played: its folder, the commands it runs there as a person would, what was shown, what is waited for."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from msgspec import Struct, field

from ops.errors import OpsError
from ops.logs import reader
from ops.model import LogView, Sample

NAME = "tr_demo"
WIDTH = 110
PAUSE = 0.3
"""Seconds between two looks at what is waited for."""


class Stage(Struct):
    """The folder of one demo. `limit`: seconds that anything may be waited for, or a command may take twice."""

    folder: Path
    env: dict[str, str]
    limit: float
    transcript: list[tuple[str, str]] = field(default_factory=list)
    picture: list[tuple[str, str]] = field(default_factory=list)

    @property
    def run(self) -> Path:
        return self.folder / NAME

    @property
    def log(self) -> Path:
        return self.run / "logs" / "main_log.txt"

    def samples(self) -> tuple[Sample, ...]:
        log = reader.read_log(self.log) if self.log.exists() else None
        return log.samples if isinstance(log, LogView) else ()

    def m4ops(self, *arguments: str, picture: bool = False) -> None:
        """Run a command of the story and show it; it must succeed. Raises OpsError."""
        code, text = self.quietly(*arguments)
        self.show(shlex.join(("m4ops", "--run", NAME, *arguments)), text, picture)
        if code != 0:
            raise OpsError(f"`m4ops {shlex.join(arguments)}` ended with {code}; its words are above", str(self.run))

    def asked(self, *arguments: str) -> dict[str, Any]:
        """What a Look command says with --json. Raises OpsError."""
        code, text = self.start((sys.executable, "-m", "ops.cli", "--run", NAME, *arguments, "--json"), subprocess.PIPE)
        try:
            said: dict[str, Any] = json.loads(text)
        except ValueError:
            raise OpsError(f"`m4ops {shlex.join(arguments)} --json` ended with {code}: {text}", str(self.run)) from None
        return said

    def quietly(self, *arguments: str) -> tuple[int, str]:
        """Exit code and output of an m4ops command, not shown."""
        return self.start((sys.executable, "-m", "ops.cli", "--run", NAME, *arguments))

    def start(self, argv: tuple[str, ...], errors: int = subprocess.STDOUT) -> tuple[int, str]:
        """Exit code and output of a program, with its errors. Raises OpsError when it cannot run or does not end."""
        try:
            done = subprocess.run(
                argv,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=2 * self.limit,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise OpsError(f"`{shlex.join(argv)}` could not be run to its end: {error}", str(self.folder)) from None
        return done.returncode, done.stdout.decode("utf-8", "replace")

    def wait(self, what: str, holds: Callable[[], bool]) -> None:
        """Wait until it holds. Raises OpsError at the limit, with the log's end."""
        end = time.monotonic() + self.limit
        while not holds():
            if time.monotonic() > end:
                tail = self.log.read_text(errors="replace")[-2000:] if self.log.exists() else "(no log)"
                raise OpsError(f"{what} did not come within {self.limit:.0f} s; the log ends:\n{tail}", str(self.log))
            time.sleep(PAUSE)

    def show(self, line: str, text: str, picture: bool = False) -> None:
        """A command and what it said. `picture`: also in the picture."""
        self.transcript.append((line, click.unstyle(text)))
        if picture:
            self.picture.append((line, text))
        coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        click.echo(click.style(f"$ {line}", bold=True) if coloured else f"$ {line}")
        click.echo(text if coloured else click.unstyle(text))


def say(text: str) -> None:
    """A line of the story."""
    click.echo(f"# {text}\n")


def environment(dropped: tuple[str, ...]) -> dict[str, str]:
    """The environment of the demo's commands: this one's without what begins with one of `dropped`."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith((*dropped, "M4OPS_", "WANDB_")) and k != "NO_COLOR"}
    return kept | {
        "FORCE_COLOR": "1",
        "COLUMNS": str(WIDTH),
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")))),
    }
