"""squeue: the queue in the formats of Slurm 22.05."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Callable

from ops.demo.scheduler import options
from ops.demo.scheduler.rows import FIELDS, LETTERS, Row, rows
from ops.demo.scheduler.state import Table, UnknownJob, read, select
from ops.demo.scheduler.words import COMPACT, COMPLETING, PENDING, RUNNING, VERSION, Call, Refused
from ops.shell import Answer

_RULES = options.grammar(
    "squeue",
    "account|A= all|a array|r Format|O= format|o= help hide jobs|j= local long|l me name|n= noconvert nodelist|w= "
    "noheader|h partition|p= qos|q= start states|t= user|u= users= version|V",
)
_DEFAULT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
_LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
_START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
_STATES = (
    "PENDING,RUNNING,SUSPENDED,COMPLETED,CANCELLED,FAILED,TIMEOUT,NODE_FAIL,PREEMPTED,BOOT_FAIL,DEADLINE,"
    "OUT_OF_MEMORY,COMPLETING,CONFIGURING,RESIZING,RESV_DEL_HOLD,REQUEUED,REQUEUE_FED,REQUEUE_HOLD,REVOKED,"
    "SIGNALING,SPECIAL_EXIT,STAGE_OUT,STOPPED"
)
_ENVIRONMENT = {
    "SQUEUE_FORMAT": "format",
    "SQUEUE_FORMAT2": "Format",
    "SQUEUE_STATES": "states",
    "SQUEUE_USERS": "user",
    "SQUEUE_PARTITION": "partition",
    "SQUEUE_NAMES": "name",
    "SQUEUE_ACCOUNT": "account",
    "SQUEUE_ARRAY": "array",
}
Cell = tuple[str, Callable[[Row], str], int, bool, str]
"""Heading, value, width (0: as long as it is), right-justified, the text that follows."""


def run(argv: list[str], call: Call) -> Answer:
    """Show the queue. Exit codes and messages as Slurm 22.05."""
    given, words = options.parse(_RULES, argv)
    asked = {name: call.env[variable] for variable, name in _ENVIRONMENT.items() if variable in call.env} | dict(given)
    if "version" in asked:
        return Answer(0, f"slurm-wlm {VERSION}\n", "")
    if words:
        raise Refused(f'squeue: error: Unrecognized option: {words[0]}\nTry "squeue --help" for more information\n')
    table = read(call.root)
    wanted, complaint = _filter(table, asked)
    lead, cells, bad = _cells(asked)
    lines = [_line(lead, cells, None)] if "noheader" not in asked else []
    if "long" in asked and lines:
        lines.insert(0, time.strftime("%a %b %d %H:%M:%S %Y"))
    lines += [_line(lead, cells, row) for row in rows(table, call, each="array" in asked) if wanted(row)]
    return Answer(0, "".join(line + "\n" for line in lines), complaint + bad)


def _filter(table: Table, asked: dict[str, str]) -> tuple[Callable[[Row], bool], str]:
    """Whether to show a row, and what to say about the question itself."""
    complaint = ""
    ids = _ids(table, asked.get("jobs", ""))
    states = _wanted_states(asked.get("states", ""))
    users = [u for u in (asked.get("user") or asked.get("users") or "").split(",") if u]
    for name in users:
        if not name.isdigit() and not _known(name):
            complaint += f"squeue: error: Invalid user: {name}\n\n"
    if "me" in asked:
        users.append(str(os.getuid()))
    rules: list[tuple[str, Callable[[Row], str]]] = [
        ("name", lambda r: r.spec.name),
        ("partition", lambda r: r.spec.partition),
        ("account", lambda r: r.spec.account),
    ]

    def wanted(row: Row) -> bool:
        return (
            (ids is None or row.task.key in ids)
            and (not states or bool({row.task.state, row.task.shown_state} & states))
            and (not users or row.spec.user in users or str(row.spec.uid) in users)
            and all(name not in asked or value(row) in asked[name].split(",") for name, value in rules)
        )

    return wanted, complaint


def _known(user: str) -> bool:
    try:
        return bool(pwd.getpwnam(user))
    except KeyError:
        return False


def _ids(table: Table, text: str) -> set[tuple[int, int]] | None:
    """The tasks asked for. One unknown id is an error; in a list unknown ones are skipped, as in Slurm."""
    if not text:
        return None
    names = re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text)
    keys: set[tuple[int, int]] = set()
    for name in names:
        if "[" in name:
            continue  # squeue 22.05 takes no ranges: it shows nothing for them
        try:
            keys |= {t.key for t in select(table, name)}
        except ValueError:
            raise Refused(f"squeue: error: Invalid job id: {name}") from None
        except UnknownJob:
            number = int(name.partition("_")[0])
            if len(names) == 1 and number not in table.specs:
                raise Refused("slurm_load_jobs error: Invalid job id specified") from None
    return keys


def _wanted_states(text: str) -> set[str]:
    if not text:
        return {PENDING, RUNNING, COMPLETING, "SUSPENDED"}
    by_letters = {short: name for name, short in COMPACT.items()}
    found: set[str] = set()
    for word in text.upper().split(","):
        if word == "ALL":
            return set()
        if by_letters.get(word, word) not in _STATES.split(","):
            lower = text.split(",")[text.upper().split(",").index(word)]
            raise Refused(
                f"squeue: error: Invalid job state specified: {lower}\n"
                f"squeue: error: Valid job states include: {_STATES}\n\n"
            )
        found.add(by_letters.get(word, word))
    return found


def _cells(asked: dict[str, str]) -> tuple[str, list[Cell], str]:
    if "Format" in asked:
        return _long_cells(asked["Format"])
    default = _LONG if "long" in asked else _START if "start" in asked else _DEFAULT
    return _letter_cells(asked.get("format") or default)


def _letter_cells(text: str) -> tuple[str, list[Cell], str]:
    """`%[.][width]letter` and the text between."""
    parts = re.split(r"%(\.?)(\d*)([A-Za-z])", text)
    cells: list[Cell] = []
    bad = ""
    for dot, width, letter, after in zip(parts[1::4], parts[2::4], parts[3::4], parts[4::4], strict=True):
        if letter not in LETTERS:
            bad += f"squeue: error: Invalid job format specification: {letter}\n"
            cells.append(("", _nothing, int(width or 0), bool(dot), after))
            continue
        heading, value = FIELDS[LETTERS[letter]]
        cells.append((heading, value, int(width or 0), bool(dot), after))
    return parts[0], cells, bad


def _nothing(row: Row) -> str:
    return ""


def _long_cells(text: str) -> tuple[str, list[Cell], str]:
    """`Name[:[.][width][suffix]],...`; 20 wide unless a colon says otherwise."""
    cells: list[Cell] = []
    bad = ""
    for word in text.split(","):
        name, colon, rest = word.partition(":")
        field = FIELDS.get(name.strip().lower())
        if field is None:
            bad += f"squeue: error: Invalid job format specification: {name}\n"
            continue
        found = re.match(r"(\.?)(\d*)(.*)", rest)
        dot, width, suffix = found.groups() if found else ("", "", "")
        size = int(width or 0) if colon and (width or suffix) else 20
        cells.append((*field, size, bool(dot), suffix))
    return "", cells, bad


def _line(lead: str, cells: list[Cell], row: Row | None) -> str:
    """One line, or the headings."""
    text = lead
    for heading, value, width, right, after in cells:
        word = value(row) if row else heading
        if width:
            word = word[:width].rjust(width) if right else word[:width].ljust(width)
        text += word + after
    return text
