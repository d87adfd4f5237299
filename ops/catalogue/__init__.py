"""Every kind of finding: what it means, how to make sure, what an operator does, and who says so.

`failures` holds what log lines tell and `signatures` how such lines look, `conditions` what the detectors conclude,
`reasons` why Slurm does not start a job; `m4ops explain` prints them.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ops.catalogue.kind import Kind


@cache
def kinds() -> dict[str, Kind]:
    """All kinds by name."""
    from ops.catalogue import conditions, failures, xid

    return {kind.name: kind for kind in (*failures.KINDS, *xid.KINDS, *conditions.KINDS)}


@cache
def kind_of(event: str) -> Kind | None:
    """The kind that a log event tells of; None for events that are no incident."""
    from ops.catalogue import signatures

    found = next((s.kind or s.event for s in signatures.SIGNATURES if s.event == event), event)
    return kinds().get(found) or (kinds()["xid"] if event.startswith("xid-") else None)


def waiting(text: str) -> Kind | None:
    """One of Slurm's reasons as a kind: what it means for a run that waits for nothing else."""
    from ops.catalogue import reasons
    from ops.catalogue.kind import Kind

    reason = reasons.reason_of(text)
    if reason is None:
        return None
    do = "; ".join(filter(None, (reason.do, *reason.commands))).replace("{job}", "JOB")
    source = "slurm.schedmd.com/job_reason_codes.html"
    confirm = "squeue --me; scontrol show job JOB"
    act = do or "nothing: it ends by itself"
    return Kind(reason.code, reason.severity, "reason", reason.meaning, act, source, confirm, "job-not-in-queue")
