"""Log lines that are no progress but mean something, by the catalogue's signatures; and the end of a traceback."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from ops.catalogue.signatures import SIGNATURES
from ops.logs.progress import clean
from ops.model import LogEvent

LABEL = (
    r"\d+:\s+|\[(?:rank=?|default)\d+\]:\s?|\[\d+,\d+\]<std(?:out|err)>:\s?|\((?:[\w.<>]+ )?(?:pid=\d+|raylet)[^)]*\)\s"
    r"|(?!srun|slurm|sbatch|E[A-Z]\d{4}:)(?P<host>(?=[\w.-]*\d)[A-Za-z][\w.-]*|\d+(?:\.\d+){3}):\s"
    r"|[A-Za-z][\w.-]*\d\s*\|\s"
)
"""Who writes: `srun --label`, torchrun's rank, mpirun's, Ray's process, pdsh's host, docker compose's service."""
STAMP = (
    r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?(?:\s+\[(?!\s*(?:INFO|WARN|DEBUG))[^\]\[]{1,60}\](?=\s))*"
    r"|\[?\d\d/\d\d(?:/\d{2,4})? \d\d:\d\d:\d\d(?:[.,]\d+)?(?: [\w.]+)?\]:?"
)
"""When: an ISO time, with the tags that follow it, or `[12/20 18:16:20 name]:`."""
LEVEL = (
    r"(?:ERROR|CRITICAL|FATAL)(?::(?:[\w.]+:)?|\s+\[[^\]]*\]|(?=\s))|(?:[\w.]+: )?\[(?:ERROR|CRITICAL|FATAL)\]:?|\|\s*(?:ERROR|CRITICAL)\s*\|\s\S+ [-|]"
    r"|- [\w.]+ - (?:ERROR|CRITICAL) -|[EF](?:\d{4} [\d:.]+\s+\d+)? [\w./<>-]+:\d+\]|\S+:\d+\s+[\w.]+:\d+\s+(?:ERROR|CRITICAL)(?=\s)|\[[EF](?:\d+ [\d:.]+)? [\w./-]+:\d+\](?: \[c10d\])?|Uncaught(?= )"
)
"""How bad, in the words of a logger: of what it calls less than an error it has gone on."""
BAR = r"(?:[^|]{0,80}\|[^|]{0,200}\|\s*\d+/[\d?]+ \[[^\]]{0,80}\])?"
PREFIX = re.compile(rf"{BAR}\s*(?:(?:{LABEL}|{STAMP}|{LEVEL})\s*)*")
"""What may stand before the words of a line: a progress bar without an end, the writer, the time, the level."""
WRITER = re.compile(rf"\s*((?:{LABEL})*)")
RANK = re.compile(r"(?:\[(?:rank=?|Rank )|\[\d+,(?=\d+\]<std)|, rank=(?=\d+\]))(\d+)\]")
TASK = re.compile(r"\s*(\d+):\s")
"""`srun --label`: a rank, where each task is one. A launcher below it knows better."""
GLUE = ("srun", "(?:slurmstepd", "slurmstepd", r"\*\*", "Validation")
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
PARSED = 8 << 10
"""Characters of a line that are matched: a hostile one costs milliseconds."""
_WANTED = [(literal, index) for index, s in enumerate(SIGNATURES) for literal in s.literals]


@cache
def _pattern(index: int) -> tuple[re.Pattern[str], re.Pattern[str] | None]:
    """How a signature looks at a line's begin, and behind other output."""
    pattern = SIGNATURES[index].pattern
    glued = re.compile(r"(?<![\s\"'`=(])" + pattern) if pattern.startswith(GLUE) else None
    return re.compile(pattern), glued


def parse_event(line: bytes, number: int = 0, offset: int = 0) -> LogEvent | None:
    """The event a line tells, or None. `value` is a path, a code, an id: what the signature says."""
    text = clean(line)[:PARSED]
    prefix = PREFIX.match(text)
    assert prefix is not None, "the prefix may be empty"
    start = prefix.end()
    for index in _candidates(text):
        plain, glued = _pattern(index)
        match = plain.match(text, start) or (glued.search(text, start) if glued else None)
        if match:
            return _event(SIGNATURES[index].event, text, match, prefix["host"] or "", number, offset)
    return None


def _candidates(text: str) -> list[int]:
    """The signatures of which a literal stands in the text, in their order."""
    return sorted({index for literal, index in _WANTED if literal in text})


def _event(name: str, text: str, match: re.Match[str], host: str, number: int, offset: int) -> LogEvent:
    groups = match.groupdict()
    value = groups.get("value") or ""
    if name == "xid":
        name = f"xid-{value}"
    elif name in ("task-died", "task-crashed"):
        value = groups.get("node") or ""
    elif name == "exception":
        name = "rendezvous" if TAKEN in text else "traceback"
    rank = groups.get("rank")
    return LogEvent(
        kind=name,
        line=number,
        offset=offset,
        text=text.strip(),
        value=value,
        node=(groups.get("node") or host).rstrip(":"),
        rank=int(rank) if rank else rank_of(text),
        job=groups.get("job") or "",
    )


def rank_of(text: str) -> int | None:
    """The global rank that a launcher's prefix tells, if one does."""
    match = RANK.search(text[:80]) or TASK.match(text)
    return int(match[1]) if match else None


def is_header(line: str) -> bool:
    """Does a traceback begin here, not only the words for it?"""
    return HEADER.search(line) is not None


def traceback_event(text: str, number: int, offset: int) -> LogEvent:
    """The event that a traceback's last line tells."""
    prefix = PREFIX.match(text)
    words = text[prefix.end() :] if prefix else text
    match = EXCEPTION.match(words)
    name = match[0] if match else ""
    kind = "told-to-stop" if name.endswith(STOPPED) else "rendezvous" if TAKEN in words else "traceback"
    return LogEvent(kind, number, offset, text, name, rank=rank_of(text))


def traceback_end(header: str) -> Callable[[str], bool]:
    """A test for the lines after a `Traceback` line: is it the traceback's last? Another writer's never is.

    Where the first of them begins as the header does, but for the time, all do; else they begin with the writer at most.
    """
    whole = header[: header.find("Traceback")]
    writer = WRITER.match(header)
    label: str | None = None

    def last(line: str) -> bool:
        nonlocal label
        if label is None:
            label = whole if _timeless(line[: len(whole)]) == _timeless(whole) else writer[1] if writer else ""
        words = line[len(label) :]
        mine = _timeless(line[: len(label)]) == _timeless(label)
        return mine and bool(words.strip()) and not words.startswith((" ", "\t"))

    return last


def _timeless(prefix: str) -> str:
    """With zeros in the place of times."""
    return re.sub(STAMP, lambda time: re.sub(r"\d", "0", time[0]), prefix)
