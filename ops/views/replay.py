"""A replay as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ops.detectors.replay import Raised
from ops.views import words
from ops.views.words import clean, paint

ROW, STEP, KIND = 9, 10, 18


def replay_json(raised: Sequence[Raised]) -> str:
    """`m4ops.replay/1`: an array of findings in the order raised. A finding whose verdict changes is there again.

    Of each: `detector`, `kind`, `severity`, `row` (0-based logged point; of a finding about a log line, the line's
    0-based number), `step`, `line` (1-based), `node`, `rank`, `resolved_row`, each null when unknown; `summary`, `evidence`.
    """
    return json.dumps([_plain(r) for r in raised], indent=2, ensure_ascii=False, allow_nan=False)


def _plain(raised: Raised) -> dict[str, object]:
    finding = raised.finding
    return {
        "detector": raised.detector,
        "kind": finding.kind,
        "severity": finding.severity.name,
        "row": raised.row,
        "step": finding.step,
        "line": finding.line,
        "node": finding.node or None,
        "rank": finding.rank,
        "resolved_row": raised.resolved_row,
        "summary": finding.summary,
        "evidence": list(finding.evidence),
    }


def replay_text(raised: Sequence[Raised], samples: int, color: bool, width: int) -> str:
    """The same as a table: where it was raised, how long it lasted, what it says."""
    if not raised:
        return f"nothing to report in {samples} logged points"
    head = f"{'row':>{ROW}}{'step':>{STEP}}  {'kind':<{KIND}}what"
    then = {(r.finding.key, r.row): r.finding.kind for r in raised}
    lines = (line for r in raised for line in _lines(r, _end(r, then), color, width))
    return "\n".join([paint(head, "dim", color), *lines])


def _end(raised: Raised, then: Mapping[tuple[str, int], str]) -> str:
    """How it ended: it was over, or got another verdict. `then`: the kind that is raised of an episode at a row."""
    if raised.resolved_row is None:
        return ""
    verdict = then.get((raised.finding.key, raised.resolved_row))
    return f" ({verdict} from row {raised.resolved_row} on)" if verdict else f" (over at row {raised.resolved_row})"


def _lines(raised: Raised, end: str, color: bool, width: int) -> list[str]:
    finding = raised.finding
    step = "" if finding.step is None else str(finding.step)
    left = ROW + STEP + 2
    first, *rest = words.folded(clean(finding.summary) + end, width - left - KIND, "")
    kind = paint(f"{finding.kind:<{KIND}}", words.SEVERITY_STYLE[finding.severity], color)
    wide = len(finding.kind) >= KIND
    lines = [f"{raised.row:>{ROW}}{step:>{STEP}}  {kind}{' ' if wide else ''}{first}"]
    return lines + [" " * (left + KIND) + line for line in rest]
