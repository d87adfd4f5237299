"""Findings for people: what is wrong, what shows it, the commands to consider, the page to read."""

from __future__ import annotations

from collections.abc import Sequence

from ops.alerts.words import Ack
from ops.model import Finding, Severity
from ops.views import words
from ops.views.words import clean, paint

LABEL = 13
"""Width of the labels on the left; wide enough for `CRITICAL` and `last change`."""
KIND = 10
EVIDENCE_SHOWN = 2


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """Findings without the OK ones, the worst first, otherwise in their order."""
    wrong = (f for f in findings if f.severity is not Severity.OK)
    return sorted(wrong, key=lambda f: -words.URGENCY.index(f.severity))


def noted(findings: Sequence[Finding]) -> list[Finding]:
    """The OK ones: what happened and is no trouble, as a job that gave way and waits again."""
    return [f for f in findings if f.severity is Severity.OK]


def findings_text(findings: Sequence[Finding], color: bool = False, width: int = 100) -> str:
    """All that is wrong, whole; empty when nothing is. For `m4ops check` and for messages."""
    return "\n".join(line for f in worst_first(findings) for line in finding_lines(f, color, width))


def finding_lines(finding: Finding, color: bool, width: int, whole: bool = True, ack: Ack | None = None) -> list[str]:
    """The lines of one finding; not `whole`: its summary alone. `ack`: who has taken it."""
    first, *rest = words.folded(clean(finding.summary), width - LABEL, "")
    badge = paint(finding.severity.name, words.SEVERITY_STYLE[finding.severity], color)
    lines = [badge + " " * (LABEL - len(finding.severity.name)) + paint(first, "bold", color)]
    lines += [" " * LABEL + paint(line, "bold", color) for line in rest]
    lines += _row("taken", taken_by(ack), color, width) if ack else []
    return lines + _details(finding, color, width) if whole else lines


def taken_by(ack: Ack) -> str:
    """`by alice until 2024-05-28 14:00 UTC: exchanging the node`."""
    why = f": {clean(ack.why)}" if ack.why else ""
    return f"by {clean(ack.owner)} until {words.clock(ack.until)}{why}"


def _row(head: str, text: str, color: bool, width: int) -> list[str]:
    first, *rest = words.folded(text, width - LABEL - KIND, "")
    line = " " * LABEL + paint(head.ljust(KIND), "dim", color) + first
    return [line, *(" " * (LABEL + KIND) + more for more in rest)]


def _details(finding: Finding, color: bool, width: int) -> list[str]:
    shown, hidden = finding.evidence[:EVIDENCE_SHOWN], len(finding.evidence) - EVIDENCE_SHOWN
    evidence = [clean(e) for e in shown] + ([f"… and {hidden} more (--json)"] if hidden > 0 else [])
    pages = (f"runbooks/{finding.runbook}.md",) if finding.runbook else ()
    lines: list[str] = []
    for kind, texts in (("seen", evidence), ("consider", finding.actions), ("read", pages)):
        head = kind
        for text in filter(None, map(clean, texts)):
            lines += _row(head, text, color, width)
            head = ""
    return lines
