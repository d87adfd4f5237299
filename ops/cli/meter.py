"""Bytes on the command line: sizes as they are typed, and work on bytes as it goes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

import click

from ops.errors import BadInput

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size(text: str, option: str) -> int:
    """A size as huggingface_hub reads it. Raises BadInput."""
    number, unit = text.strip()[:-2], text.strip()[-2:].upper()
    with contextlib.suppress(ValueError):
        if unit in UNITS and float(number) > 0:
            return int(float(number) * UNITS[unit])
    raise BadInput(f"{option} {text}: not a size", hint="500MB, 5GB")


@contextlib.contextmanager
def meter() -> Iterator[Callable[[int, int], None]]:
    """A line on the terminal with bytes, rate and time left, told the bytes done and all; none where stderr is none."""
    shown = sys.stderr.isatty()
    start, first, last = time.monotonic(), None, 0.0

    def told(there: int, total: int) -> None:
        nonlocal first, last
        now = time.monotonic()
        first = there if first is None else first
        if not shown or (now - last < 0.1 and there < total):
            return
        last = now
        rate = (there - first) / max(now - start, 1e-3)
        left = f", {(total - there) / rate:.0f} s left" if rate > 0 else ""
        bar = "━" * (20 * there // max(total, 1))
        click.echo(
            f"\r  {bar:20} {100 * there // max(total, 1):3} %  {there / 1e9:.2f} of {total / 1e9:.2f} GB  {rate / 1e9:.2f} GB/s{left}\x1b[K",
            err=True,
            nl=False,
        )

    try:
        yield told
    finally:
        if shown:
            click.echo("\r\x1b[K", err=True, nl=False)
