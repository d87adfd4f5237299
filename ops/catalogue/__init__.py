"""Every kind of finding: what it means, how to make sure, what an operator does, and who says so.

`signatures` holds what log lines tell, `conditions` what the detectors conclude; `m4ops explain` prints both.
"""

from __future__ import annotations

from functools import cache

from ops.catalogue import conditions, signatures, xid
from ops.catalogue.kind import Kind


@cache
def kinds() -> dict[str, Kind]:
    """All kinds by name."""
    return {kind.name: kind for kind in (*signatures.KINDS, *xid.KINDS, *conditions.KINDS)}


@cache
def kind_of(event: str) -> Kind | None:
    """The kind that a log event tells of; None for events that are no incident."""
    found = next((s.kind or s.event for s in signatures.SIGNATURES if s.event == event), event)
    return kinds().get(found) or (kinds()["xid"] if event.startswith("xid-") else None)
