"""How m4ops says durations, ages, sizes and losses, and how it colours them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime

from ops.model import Checkpoint, Job, Severity, Unknown

STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
    "alarm": "1;37;41",
    "bad": "1;31",
    "good": "1;32",
}
SEVERITY_STYLE = {
    Severity.OK: "good",
    Severity.WARNING: "yellow",
    Severity.CRITICAL: "alarm",
    Severity.UNKNOWN: "magenta",
}
URGENCY = (Severity.OK, Severity.WARNING, Severity.UNKNOWN, Severity.CRITICAL)
"""From well to worst. Not to know is worse than a warning: anything may hide behind it."""

_ENDED = {
    "COMPLETED": "ended well",
    "FAILED": "ended with an error",
    "CANCELLED": "cancelled",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a node",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "preempted by another job",
    "BOOT_FAIL": "its nodes did not boot",
    "DEADLINE": "missed its deadline",
    "REVOKED": "moved to another cluster",
}


def reason(text: str) -> str:
    """What a Slurm reason means; empty for no reason, and for one that is not known here."""
    from ops.catalogue.reasons import reason_of

    known = reason_of(text)
    return known.meaning if known else ""


def state(job: Job) -> str:
    """A job's state as one word, with what it means where the word alone misleads."""
    if job.held:
        return "HELD"
    return job.state


def tasks(job: Job) -> str:
    """`task 3`, or how many tasks of an array still wait, and how many at once: `17 tasks (%1)`."""
    if not job.task:
        return ""
    listed, _, throttle = job.task.strip("[]").partition("%")
    if listed.isdigit():
        return f"task {listed}"
    try:
        waiting = sum(len(_range(part)) for part in listed.split(","))
    except ValueError:
        return f"tasks {clean(listed)}"
    return count(waiting, "task") + (f" (%{throttle})" if throttle else "")


def ended(job: Job) -> str:
    """How an ended job ended, in words; empty while it has not."""
    return _ENDED.get(job.state.split(" ")[0], "")


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`, `3 d 04 h`."""
    if not math.isfinite(seconds):
        return "for ever"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole < 600 and whole % 60 else "")
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def ago(seconds: float) -> str:
    """`45 s ago`; a time in the future is a clock that is wrong, and said."""
    if seconds < -60:
        return f"{duration(-seconds)} in the FUTURE (clocks differ)"
    return f"{duration(seconds)} ago"


def clock(time: float) -> str:
    """`2024-05-28 10:11 UTC`."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def iso(time: float | None) -> str | None:
    """ISO 8601 in UTC with its offset, for JSON."""
    if time is None:
        return None
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")


def size(count: float) -> str:
    """Bytes in powers of ten, as disks are sold: `1.2 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} PB"


def loss(value: float) -> str:
    """Four decimals, as the trainer prints them; `NaN` and `inf` stand out."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value:.4f}" if abs(value) < 1e5 else f"{value:.3e}"


def lr(value: float) -> str:
    """`1.000E-05`, as the trainer prints it."""
    return f"{value:.3E}"


def number(value: float) -> str:
    """A number of any kind, short."""
    return loss(value) if not math.isfinite(value) else f"{value:.4g}"


def count(amount: int, noun: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{amount} {noun}" + ("" if amount == 1 else "s")


NO_EVALS = 'none; m4ops.toml can name a file of them: evals = "…"'
"""Of a run whose layout knows of no evaluations file."""


def unknown(value: Unknown) -> str:
    """`UNKNOWN (reason)`."""
    return f"UNKNOWN ({clean(value.reason) or 'no reason given'})"


def doubts(checkpoint: Checkpoint) -> tuple[str, ...]:
    """What may be meant of what was seen of its files, besides the strays, which are told apart."""
    found = checkpoint.checked.doubts if checkpoint.checked else ()
    return tuple(d for d in found if "does not belong here" not in d)


def clean(text: str) -> str:
    """Foreign text on one line that cannot speak to the terminal: controls and broken UTF-8 as `?`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in _without_ansi(text)).rstrip()


def clip(text: str, width: int) -> str:
    """At most `width` characters, the middle left out: a path shows where it begins and ends."""
    if len(text) <= width or width < 5:
        return text
    head = (width - 1) // 3
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def folded(text: str, width: int, indent: str) -> list[str]:
    """Lines of at most `width`; those after the first are indented. Long words (paths) stay whole."""
    first, *words = text.split(" ")
    lines = [first]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > width and lines[-1].strip():
            lines.append(indent + word)
        else:
            lines[-1] += " " + word
    return lines


def paint(text: str, style: str, color: bool) -> str:
    """The text in a style of `STYLES`, or as it is without colour."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if color and style and text else text


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows as columns with two blanks between them; the columns of `right` are set to the right."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _range(part: str) -> range:
    """The tasks of `7`, `4-20` or `0-100:10`; ValueError for a list that squeue has cut (`97,10...`)."""
    ends, _, step = part.partition(":")
    first, _, last = ends.partition("-")
    return range(int(first), int(last or first) + 1, int(step or 1))


def _without_ansi(text: str) -> str:
    import re

    return re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?)", "", text)
