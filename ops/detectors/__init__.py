"""The detectors: a picture of the run and what its log says anew in, findings out. Pure; nothing here acts.

Stream detectors take new lines and keep a memory of plain JSON; snapshot detectors look at one picture. A new
one is one file and one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ops.detectors import checkpoint, loss, lr, nan, node, queue, stall
from ops.model import Finding, LogView, Severity, Snapshot

STREAM = (("loss", loss.step), ("nan", nan.step), ("node", node.step), ("lr", lr.step))
LOOK: tuple[Callable[[Snapshot], tuple[Finding, ...]], ...] = (queue.look, stall.look, checkpoint.look)

WORST = (Severity.CRITICAL, Severity.UNKNOWN, Severity.WARNING, Severity.OK)


def judge(
    snapshot: Snapshot, new: LogView | None, memory: Mapping[str, Any]
) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """What is wrong now, worst first, and the memory for the next time.

    `new` is the log's lines since `memory` was made (None: none); in pieces or at once, the findings are the same.
    When the log began anew (`Cursor.restarted`), pass `{}` and the whole log.
    """
    samples = new.samples if new else ()
    events = new.events if new else ()
    after: dict[str, Any] = {}
    findings: list[Finding] = []
    for name, step in STREAM:
        after[name], found = step(memory.get(name, {}), samples, events, snapshot)
        findings += found
    for look in LOOK:
        findings += look(snapshot)
    return after, tuple(sorted(findings, key=lambda finding: WORST.index(finding.severity)))
