"""What is kept of a kind of finding, and of how it looks in a log."""

from __future__ import annotations

from msgspec import Struct

from ops.model import Severity


class Kind(Struct, frozen=True):
    """A kind of finding. `severity` is that of a fresh one, with nothing logged since."""

    name: str
    severity: Severity
    role: str
    """`root`: can be the cause; `symptom`: a cause only if nothing better is known; `consequence`: never one;
    `ending`: how a job ended; `info`; `condition`: concluded by a detector, not from one line; `reason`: why
    Slurm does not start a job."""
    meaning: str
    action: str
    source: str
    confirm: str = "read the lines around the one that the finding names"
    runbook: str = ""
    weight: int = 0
    """Which of several causes names the incident: the heaviest, and of equals the first."""


class Signature(Struct, frozen=True):
    """How a kind looks in a log. A line without one of `literals` cannot match `pattern`.

    Groups of `pattern`: `node`, `rank`, `job`, and `value`, what else the line says. It is matched at the line's
    begin, after the launcher's and the logger's prefix; Slurm's and the trainer's also behind other output that it
    is glued to.
    """

    event: str
    literals: tuple[str, ...]
    pattern: str
    kind: str = ""
    """The kind, when it is not called as the event is."""
