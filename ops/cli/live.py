"""`m4ops watch`: the status screen, live. It changes nothing, also not what m4ops remembers."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import click

from ops import recent
from ops.cli import session, terminal
from ops.cli.look import Picture, picture
from ops.errors import OpsError
from ops.model import Run
from ops.shell import Shell
from ops.views import live, words

QUEUE_SECONDS = 30.0
"""How old a queue may be that is shown: a screen that stays open all night asks the controller twice a minute."""


@click.command()
@click.option(
    "--every",
    default=10.0,
    show_default=True,
    type=click.FloatRange(1, 3600),
    metavar="SECONDS",
    help="How often to look.",
)
@click.option(
    "--field", default="loss", show_default=True, help="The curve: loss, lr, or any metric of the progress lines."
)
@click.pass_context
def watch(ctx: click.Context, every: float, field: str) -> None:
    """The status screen and the loss curve, live.

    What is raised or over meanwhile stays listed. Reads what is new of the log, asks the queue at most twice a minute,
    and writes only the lines that changed: it works over a slow line and may stay open. q ends, any other key looks at
    once. Into a pipe or a file it writes a line for each change.
    """
    looks = Looks(session.find(ctx)[0])
    with suppress(KeyboardInterrupt):  # the other way to end it
        if terminal.usable():
            _on_screen(looks, every, field)
        else:
            _line_by_line(looks, every)


class Looks:
    """One look after the other, each from where the last one stopped."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.last: Picture | None = None
        self.said: tuple[live.News, ...] = ()
        self.problem = ""

    def look(self) -> tuple[live.News, ...]:
        """Look once more; what is new since. A look that fails leaves its reason in `problem`."""
        try:
            seen = picture(self.run, _shell(), self.last.memory if self.last else None)
        except (OpsError, OSError) as error:
            self.problem = str(error)
            return ()
        told = live.news(self.last.findings, seen.findings, seen.snapshot.now) if self.last else ()
        self.last, self.said, self.problem = seen, (*self.said, *told), ""
        return told


def _shell() -> Shell:
    """The scheduler, asked twice a minute, or as often as the user says."""
    return recent.kept(session.scheduler(), {recent.SWITCH: str(QUEUE_SECONDS), **os.environ})


def _on_screen(looks: Looks, every: float, field: str) -> None:
    with terminal.screen() as shown:
        key, due = "", 0.0
        while key != "q":
            if key or time.monotonic() >= due:
                looks.look()
                due = time.monotonic() + every
            shown.paint(_lines(looks, shown.wanted, field, every))
            key = shown.wait(due - time.monotonic())


def _lines(looks: Looks, size: tuple[int, int], field: str, every: float) -> list[str]:
    seen, color = looks.last, session.color()
    if looks.problem or seen is None:
        return live.blind(looks.problem, seen.snapshot.now if seen else None, color)
    foot = f"every {every:g} s · any key: now · q: end"
    return live.screen(seen.snapshot, seen.findings, size, looks.said, color, seen.taken, field, foot)


def _line_by_line(looks: Looks, every: float) -> None:
    """What is wrong at first, then each change, a line each."""
    blind = ""
    while True:
        first = looks.last is None
        told = looks.look()
        if looks.problem != blind:
            session.out(f"{words.clock(time.time())}  UNKNOWN {looks.problem}" if looks.problem else "seen again")
            blind = looks.problem
        if first and looks.last:
            told = live.news((), looks.last.findings, looks.last.snapshot.now)
        for one in told:
            session.out(live.news_line(one, session.color(), 1000))
        time.sleep(every)
