"""A terminal that a screen is kept on: only lines that changed are written, so that it works over a slow line."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

WHOLE = 300.0
"""Seconds after which everything is written once more, whatever else wrote to the terminal meanwhile."""
LOOK = 0.5
"""Seconds between two looks at the terminal's size."""


def usable() -> bool:
    """Whether there is a terminal whose cursor can be moved."""
    return sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


class Screen:
    """What stands on the terminal now."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.lines: list[str] = []
        self.size = (0, 0)
        self.written = 0.0

    @property
    def wanted(self) -> tuple[int, int]:
        """The terminal's columns and rows as they are now."""
        return self.console.size.width, self.console.size.height

    def paint(self, lines: Sequence[str]) -> None:
        """Show these lines; each is cut at the right edge."""
        from rich.control import Control
        from rich.segment import ControlType
        from rich.text import Text

        if self.size != self.wanted or time.monotonic() - self.written > WHOLE:
            self.lines, self.size, self.written = [], self.wanted, time.monotonic()
            self.console.control(Control.clear(), Control.home())
        rows = max(len(lines), len(self.lines))
        before, after = ([*some, *[""] * (rows - len(some))] for some in (self.lines, lines))
        with self.console:  # one write
            for row, (old, new) in enumerate(zip(before, after, strict=True)):
                if old != new:
                    self.console.control(Control.move_to(0, row), Control((ControlType.ERASE_IN_LINE, 0)))
                    self.console.print(Text.from_ansi(new), end="", no_wrap=True, overflow="crop", crop=True)
        self.lines = list(lines)

    def wait(self, seconds: float) -> str:
        """The key that was pressed within so many seconds; empty for none, and when the size changed."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self.size == self.wanted:
            if select.select([sys.stdin], [], [], min(left, LOOK))[0]:
                return os.read(sys.stdin.fileno(), 64).decode("utf-8", "replace")[:1] or "q"
        return ""


@contextlib.contextmanager
def screen() -> Iterator[Screen]:
    """The terminal's other screen, keys as they are pressed; afterwards all is as it was."""
    import termios
    import tty

    from rich.console import Console

    console = Console(highlight=False)
    keys = sys.stdin.fileno()
    before = termios.tcgetattr(keys) if os.isatty(keys) else None
    ended = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if before:
            tty.setcbreak(keys)
        console.set_alt_screen(True)
        console.show_cursor(False)
        yield Screen(console)
    finally:
        console.show_cursor(True)
        console.set_alt_screen(False)
        if before:
            termios.tcsetattr(keys, termios.TCSADRAIN, before)
        signal.signal(signal.SIGTERM, ended)
