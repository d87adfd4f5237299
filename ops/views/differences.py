"""What was different between two starts of a training: environment, flags, files, commit, nodes, packages."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from ops.hostlist import expand
from ops.model import Unknown
from ops.submitted import Ran
from ops.views import words
from ops.views.words import clean, paint, unknown

SCHEMA = "m4ops.diff/1"
IGNORED = (
    "M4OPS_SUBMISSION",
    "_",
    "SHLVL",
    "PWD",
    "OLDPWD",
    "SSH_CONNECTION",
    "SSH_CLIENT",
    "SSH_TTY",
    "COLUMNS",
    "LINES",
)
"""Variables that differ from login to login and say nothing of the training."""
LINES = 40
"""Lines shown of a file's difference; all of them: --json."""
Row = tuple[str, str | None, str | None]
"""A name, its value before and after; None: it was not there."""
Section = list[Row] | Unknown


def sections(before: Ran, after: Ran) -> dict[str, Section]:
    """Every kind of difference, in the order of what to look at first. Empty: nothing differs."""
    files = {what: _file(before, after, what) for what in before.texts}
    config = files.pop("config")
    return {
        "commit": _value("commit", before.commit, after.commit),
        "config": config,
        "environment": _environment(before, after),
        "packages": _pairs(before.packages, after.packages),
        "nodes": _nodes(before, after),
        "flags": _flags(before, after),
        **files,
    }


def differences_text(before: Ran, after: Ran, color: bool = False) -> str:
    """The sections that differ or are not known, then the names of those that are the same."""
    lines = [paint(f"{_named(before)}  →  {_named(after)}", "bold", color)]
    found = sections(before, after)
    same = [what for what, rows in found.items() if not isinstance(rows, Unknown) and not rows]
    for what, rows in found.items():
        if isinstance(rows, Unknown):
            lines += ["", f"{what:13} {paint(unknown(rows), 'magenta', color)}"]
        elif rows:
            lines += ["", paint(what, "cyan", color), *_lines(rows, color)]
    if same:
        lines += ["", f"the same      {', '.join(same)}"]
    secret = [name for name in before.withheld if name in after.withheld and before.submission != after.submission]
    if secret:
        lines += words.folded(
            f"not known     whether the value of a secret changed: {', '.join(secret)}", 110, " " * 14
        )
    return "\n".join(lines)


def differences_json(before: Ran, after: Ran) -> dict[str, Any]:
    """`m4ops.diff/1`: for each section a list of {name, before, after}, or {unknown: reason}."""
    return {
        "schema": SCHEMA,
        "before": {"job": before.name, "time": words.iso(before.time), "submission": before.submission},
        "after": {"job": after.name, "time": words.iso(after.time), "submission": after.submission},
        "sections": {what: _as_json(rows) for what, rows in sections(before, after).items()},
    }


def _as_json(rows: Section) -> object:
    if isinstance(rows, Unknown):
        return {"unknown": rows.reason}
    return [{"name": name, "before": old, "after": new} for name, old, new in rows]


def _named(ran: Ran) -> str:
    when = f" of {words.clock(ran.time)}" if ran.time else ""
    return clean(ran.name) + when


def _lines(rows: list[Row], color: bool) -> Iterator[str]:
    for name, old, new in rows[:LINES]:
        head = f"{clean(name)}: " if name else ""
        if old is not None and new is not None:
            yield f"    {head}{clean(old)} → {clean(new)}"
        elif old is not None:
            yield paint(f"  - {head}{clean(old)}".removesuffix(": "), "bad", color)
        else:
            yield paint(f"  + {head}{clean(new or '')}".removesuffix(": "), "green", color)
    if len(rows) > LINES:
        yield f"  … {len(rows) - LINES} more (all of them: --json)"


def _value(name: str, old: str | Unknown, new: str | Unknown) -> Section:
    for side, value in (("JOB1", old), ("JOB2", new)):
        if isinstance(value, Unknown):
            return Unknown(f"of {side}: {value.reason}")
    return [] if old == new else [(name, str(old), str(new))]


def _pairs(old: Mapping[str, str] | Unknown, new: Mapping[str, str] | Unknown) -> Section:
    if isinstance(old, Unknown):
        return Unknown(f"of JOB1: {old.reason}")
    if isinstance(new, Unknown):
        return Unknown(f"of JOB2: {new.reason}")
    names = sorted({*old, *new})
    return [(n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)]


def _environment(before: Ran, after: Ran) -> Section:
    """Of a secret only whether it was set: its value is kept nowhere."""
    return _pairs(_shown(before), _shown(after))


def _shown(ran: Ran) -> Mapping[str, str] | Unknown:
    if isinstance(ran.environment, Unknown):
        return ran.environment
    kept = {name: value for name, value in ran.environment.items() if name not in IGNORED}
    return kept | {name: "set (its value is not kept)" for name in ran.withheld if name not in IGNORED}


def _nodes(before: Ran, after: Ran) -> Section:
    rows = _value("nodes", before.nodes, after.nodes)
    if isinstance(rows, Unknown) or not rows:
        return rows
    old, new = set(expand(str(before.nodes))), set(expand(str(after.nodes)))
    return [*rows, *((n, "", None) for n in sorted(old - new)), *((n, None, "") for n in sorted(new - old))]


def _flags(before: Ran, after: Ran) -> Section:
    if isinstance(before.flags, Unknown) or isinstance(after.flags, Unknown):
        lacking = before.flags if isinstance(before.flags, Unknown) else after.flags
        return Unknown(lacking.reason if isinstance(lacking, Unknown) else "")
    return _lined("\n".join(before.flags), "\n".join(after.flags))


def _file(before: Ran, after: Ran, what: str) -> Section:
    old, new = before.texts[what], after.texts[what]
    if isinstance(old, Unknown) and isinstance(new, Unknown) and what.endswith(" config"):
        return []  # a launcher that neither of them used
    said = _value(what, old, new)
    return said if isinstance(said, Unknown) else _lined(str(old), str(new))


def _lined(old: str, new: str) -> list[Row]:
    """The lines that differ, those that took another's place beside it."""
    a, b = old.splitlines(), new.splitlines()
    rows: list[Row] = []
    for kind, i, j, k, m in difflib.SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        if j - i == m - k:
            rows += [("", x.strip(), y.strip()) for x, y in zip(a[i:j], b[k:m], strict=True)]
        else:
            rows += [*(("", x, None) for x in a[i:j]), *(("", None, y) for y in b[k:m])]
    return rows
