"""The live screen: the verdict and what is wrong on top, then the run's rows, and its loss in what is left of the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from ops.alerts.words import Ack
from ops.model import Finding, LogView, Severity, Snapshot
from ops.views import words
from ops.views.findings import LABEL, worst_first
from ops.views.plot import plot_text
from ops.views.status import NOBODY, blocks
from ops.views.words import clean, paint

PLOT_ROWS = 8
"""Rows below which a curve tells nothing: then there is none."""
PLOT_MOST = 24
NEWS_SHOWN = 5


class News(Struct, frozen=True):
    """What became of a finding while somebody watched."""

    time: float
    severity: Severity
    what: str
    """`raised`, `is now CRITICAL`, `over`."""
    text: str


def news(before: Sequence[Finding], after: Sequence[Finding], now: float) -> tuple[News, ...]:
    """What came, changed its kind or its severity, and went, between two looks."""
    old, new = ({f.key: f for f in worst_first(found)} for found in (before, after))
    told = []
    for key, finding in new.items():
        was = old.get(key)
        if was is None:
            told.append(News(now, finding.severity, "raised", finding.summary))
        elif (was.kind, was.severity) != (finding.kind, finding.severity):
            told.append(News(now, finding.severity, f"is now {finding.severity.name}", finding.summary))
    return (*told, *(News(now, Severity.OK, "over", f.summary) for key, f in old.items() if key not in new))


def news_line(one: News, color: bool = False, width: int = 100) -> str:
    """`10:11:12 UTC  CRITICAL raised: …`, on one line."""
    when = datetime.fromtimestamp(one.time, UTC).strftime("%H:%M:%S UTC")
    badge = "" if one.severity is Severity.OK or one.what.endswith(one.severity.name) else f"{one.severity.name} "
    said = f"{badge}{one.what}: {clean(one.text)}"
    return f"{when}  " + paint(said[: max(0, width - len(when) - 2)], words.SEVERITY_STYLE[one.severity], color)


def screen(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    size: tuple[int, int],
    said: Sequence[News] = (),
    color: bool = False,
    taken: Mapping[str, Ack] = NOBODY,
    field: str = "loss",
    foot: str = "",
) -> list[str]:
    """At most `size` (columns, rows) of lines, the last for `foot`; what does not fit is counted before it."""
    width, height = size[0], size[1] - 1
    headline, rows, wrong = blocks(snapshot, findings, color, width, taken)
    lines = [*headline, "", *wrong, "", *rows]
    if said:
        first, *rest = (news_line(one, color, width - LABEL) for one in said[-NEWS_SHOWN:])
        lines += ["", paint("meanwhile".ljust(LABEL), "cyan", color) + first, *(" " * LABEL + line for line in rest)]
    room = height - len(lines) - 1
    if isinstance(snapshot.log, LogView) and snapshot.log.samples and room >= PLOT_ROWS:
        curve = plot_text(snapshot.log.samples, width, min(room, PLOT_MOST), color, field).splitlines()
        lines += ["", *curve[:room]]
    if len(lines) > height:
        hidden = words.count(len(lines) - height + 1, "more line")
        lines = [*lines[: height - 1], paint(f"… and {hidden}: m4ops status", "dim", color)]
    return [*lines, *[""] * (height - len(lines)), paint(foot, "dim", color)]


def blind(why: str, since: float | None, color: bool = False) -> list[str]:
    """The screen while the run cannot be looked at."""
    seen = f"last seen {words.clock(since)}" if since else "not seen yet"
    return [f"{paint(' UNKNOWN ', words.SEVERITY_STYLE[Severity.UNKNOWN], color)}  {clean(why)}", seen]
