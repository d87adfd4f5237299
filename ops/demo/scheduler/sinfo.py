"""sinfo: one node in one partition, and whether it is busy."""

from __future__ import annotations

import os
import re

from ops.demo.scheduler import options
from ops.demo.scheduler.state import Table, read
from ops.demo.scheduler.words import RUNNING, VERSION, Call, Refused, host, slots
from ops.shell import Answer

_RULES = options.grammar(
    "sinfo",
    "all|a exact|e format|o= help list-reasons|R long|l node|N nodes|n= noheader|h partition|p= responding|r "
    "states|t= summarize|s version|V",
)
_DEFAULT = "%9P %.5a %.10l %.6D %.6t %N"
_BY_NODE = "%10N %.6D %.9P %6t"
_REASONS = "%20E %9u %19H %N"


def run(argv: list[str], call: Call) -> Answer:
    """Show the machine as Slurm would show a cluster of one node."""
    given, words = options.parse(_RULES, argv)
    asked = dict(given)
    if "version" in asked:
        return Answer(0, f"slurm-wlm {VERSION}\n", "")
    if words:
        raise Refused(f'sinfo: error: Unrecognized option: {words[0]}\nTry "sinfo --help" for more information\n')
    reasons = "list-reasons" in asked
    form = asked.get("format") or (_REASONS if reasons else _BY_NODE if "node" in asked else _DEFAULT)
    values = _values(read(call.root))
    lines = [] if "noheader" in asked else [_line(form, {k: head for k, (head, _) in values.items()})]
    absent = asked.get("nodes", host()) != host() or asked.get("partition", "demo") != "demo"
    if not reasons and not absent:
        lines.append(_line(form, {k: value for k, (_, value) in values.items()}))
    return Answer(0, "".join(line + "\n" for line in lines), "")


def _values(table: Table) -> dict[str, tuple[str, str]]:
    busy = sum(t.state == RUNNING for t in table.tasks.values())
    state, short = ("idle", "idle") if not busy else ("allocated", "alloc") if busy >= slots() else ("mixed", "mix")
    return {
        "P": ("PARTITION", "demo*"),
        "R": ("PARTITION", "demo"),
        "a": ("AVAIL", "up"),
        "l": ("TIMELIMIT", "infinite"),
        "D": ("NODES", "1"),
        "t": ("STATE", short),
        "T": ("STATE", state),
        "N": ("NODELIST", host()),
        "n": ("HOSTNAMES", host()),
        "E": ("REASON", "none"),
        "u": ("USER", "Unknown"),
        "U": ("USER", "Unknown"),
        "H": ("TIMESTAMP", "Unknown"),
        "c": ("CPUS", str(os.cpu_count() or 1)),
        "m": ("MEMORY", "1"),
        "G": ("GRES", "(null)"),
        "C": ("CPUS(A/I/O/T)", f"{busy}/{slots() - busy}/0/{slots()}"),
    }


def _line(form: str, values: dict[str, str]) -> str:
    def fill(found: re.Match[str]) -> str:
        word = values.get(found[3], "")
        width = int(found[2] or len(word))
        return word[:width].rjust(width) if found[1] else word[:width].ljust(width)

    return re.sub(r"%(\.?)(\d*)([A-Za-z])", fill, form)
