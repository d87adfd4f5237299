"""Log lines that are no progress but mean something, by the catalogue's signatures; and the end of a traceback."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from ops.catalogue.signatures import SIGNATURES
from ops.logs.progress import clean
from ops.model import LogEvent

PREFIX = re.compile(
    r"\s*(?P<label>(?:\d+:\s+|\[(?:rank|default)\d+\]:\s?)*)"
    r"(?:\[\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?\]\s*)?"
)
"""`srun --label`, torchrun's ranks, and the log formatter's time."""
RANK = re.compile(r"\[(?:rank|Rank )(\d+)\]|^\s*(\d+):\s")
GLUE = ("srun", "slurmstepd", r"\*\*", "Validation")
"""How the patterns begin that are looked for behind other output. A progress bar ends without a line end, and the
next process's line is glued to it. A quotation is none."""
TRACEBACK = b"Traceback (most recent call last)"
HEADER = re.compile(r"Traceback \(most recent call last\):\s*$")
EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?=: |:?$)")
STOPPED = ("KeyboardInterrupt", "SystemExit", "SignalException")
TAKEN = "Address already in use"
"""What a traceback's last line says of the port of a rendezvous. In another line it is a try of several."""
LITERALS = (*dict.fromkeys(text.encode() for s in SIGNATURES for text in s.literals), TRACEBACK)
"""What a line must contain to be looked at by `parse_event`, or to begin a traceback."""
_WANTED = [(literal, index) for index, s in enumerate(SIGNATURES) for literal in s.literals]


@cache
def _pattern(index: int) -> tuple[re.Pattern[str], re.Pattern[str] | None]:
    """How a signature looks at a line's begin, and behind other output."""
    pattern = SIGNATURES[index].pattern
    glued = re.compile(r"(?<![\s\"'`=(])" + pattern) if pattern.startswith(GLUE) else None
    return re.compile(pattern), glued


def parse_event(line: bytes, number: int = 0, offset: int = 0) -> LogEvent | None:
    """The event a line tells, or None. `value` is a path, a code, an id: what the signature says."""
    text = clean(line)
    start = _after_prefix(text)
    for index in _candidates(text):
        plain, glued = _pattern(index)
        match = plain.match(text, start) or (glued.search(text, start) if glued else None)
        if match:
            return _event(SIGNATURES[index].event, text, match, number, offset)
    return None


def _candidates(text: str) -> list[int]:
    """The signatures of which a literal stands in the text, in their order."""
    return sorted({index for literal, index in _WANTED if literal in text})


def _event(name: str, text: str, match: re.Match[str], number: int, offset: int) -> LogEvent:
    groups = match.groupdict()
    value = groups.get("value") or ""
    if name == "xid":
        name = f"xid-{value}"
    elif name in ("task-died", "task-crashed"):
        value = groups.get("node") or ""
    rank = groups.get("rank")
    return LogEvent(
        kind=name,
        line=number,
        offset=offset,
        text=text.strip(),
        value=value,
        node=(groups.get("node") or "").rstrip(":"),
        rank=int(rank) if rank else rank_of(text),
        job=groups.get("job") or "",
    )


def rank_of(text: str) -> int | None:
    """The global rank that a launcher's prefix tells, if one does."""
    match = RANK.search(text[:80])
    return int(match[1] or match[2]) if match else None


def _after_prefix(text: str) -> int:
    match = PREFIX.match(text)
    return match.end() if match else 0


def is_header(line: str) -> bool:
    """Does a traceback begin here, not only the words for it?"""
    return HEADER.search(line) is not None


def traceback_event(text: str, number: int, offset: int) -> LogEvent:
    """The event that a traceback's last line tells."""
    words = text[_after_prefix(text) :]
    match = EXCEPTION.match(words)
    name = match[0] if match else ""
    kind = "told-to-stop" if name.endswith(STOPPED) else "rendezvous" if TAKEN in words else "traceback"
    return LogEvent(kind, number, offset, text, name, rank=rank_of(text))


def traceback_end(header: str) -> Callable[[str], bool]:
    """A test for the lines after a `Traceback` line: is it the traceback's last? Another rank's never is."""
    match = PREFIX.match(header)
    label = (match["label"] if match else None) or ""

    def last(line: str) -> bool:
        words = line.removeprefix(label)
        return line.startswith(label) and bool(words.strip()) and not words.startswith((" ", "\t"))

    return last
