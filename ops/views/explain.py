"""A kind of finding, told to people."""

from __future__ import annotations

from collections.abc import Sequence

from ops.catalogue.kind import Kind
from ops.views import words
from ops.views.words import paint

LABEL = 10


def kind_text(kind: Kind, color: bool, width: int) -> str:
    """Everything the catalogue holds of it."""
    head = f"{paint(kind.name, 'bold', color)}  {paint(kind.severity.name, words.SEVERITY_STYLE[kind.severity], color)}"
    rows = [
        ("meaning", kind.meaning),
        ("role", ROLES[kind.role]),
        ("confirm", kind.confirm),
        ("do", kind.action),
        ("read", f"runbooks/{kind.runbook}.md" if kind.runbook else ""),
        ("source", kind.source),
    ]
    lines = [head]
    for label, text in rows:
        for i, line in enumerate(words.folded(text, width - LABEL - 2, "") if text else ()):
            lines.append("  " + paint(("" if i else label).ljust(LABEL), "dim", color) + line)
    return "\n".join(lines)


ROLES = {
    "root": "can be the cause of a failure",
    "symptom": "the cause only if nothing better is known",
    "consequence": "follows from something else; counted with it, never alerted alone",
    "ending": "how a job ended; listed, never sent",
    "info": "for information",
    "reason": "why Slurm does not start a job",
    "condition": "concluded by m4ops, not read from one line",
}


def list_text(kinds: Sequence[Kind], color: bool, width: int) -> str:
    """All kinds, one a line."""
    column = max(len(kind.name) for kind in kinds) + 2
    lines = []
    for kind in kinds:
        severity = paint(kind.severity.name.ljust(10), words.SEVERITY_STYLE[kind.severity], color)
        lines.append(f"{kind.name:<{column}}{severity}{kind.meaning}"[: width + (len(severity) - 10)])
    return "\n".join(lines)
