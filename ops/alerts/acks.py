"""Who has taken which trouble, and until when: `acks.json` beside the rest of the run's bookkeeping.

It has a file and a lease of its own, so that an ack need not wait for a tick that is sending.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import to_builtins

from ops import state
from ops.alerts.words import Ack
from ops.errors import Busy, OpsError
from ops.model import Run

FILE = "acks.json"
LEASE = 30.0
PATIENCE = 5.0
"""Seconds to wait for somebody else who acks at the same moment."""


def read(run: Run, now: float) -> tuple[Ack, ...]:
    """The acks that hold."""
    listed = state.kept(state.latest(run, FILE), FILE).get("acks", ())
    found = []
    for entry in listed if isinstance(listed, list) else ():
        try:
            words = (str(entry[name]) for name in ("what", "owner", "why"))
            what, owner, why = words
            found.append(Ack(what, owner, float(entry["time"]), float(entry["until"]), why))
        except (TypeError, KeyError, ValueError):
            continue
    return tuple(ack for ack in found if now < ack.until)


def add(run: Run, ack: Ack) -> None:
    """Keep an ack, in place of an earlier one of the same. Raises OpsError."""
    _change(run, ack.time, lambda acks: (*(a for a in acks if a.what != ack.what), ack))


def end(run: Run, what: str, now: float) -> tuple[Ack, ...]:
    """Take acks back; those that there were. Raises OpsError."""
    before = tuple(ack for ack in read(run, now) if ack.what == what)
    if before:
        _change(run, now, lambda acks: tuple(a for a in acks if a.what != what))
    return before


def settle(run: Run, now: float) -> None:
    """Bring back to the run what was kept aside while it took no notes. Raises OpsError."""
    if state.latest(run, FILE) != run:
        _change(run, now, lambda acks: acks)


def _change(run: Run, now: float, change: Callable[[tuple[Ack, ...]], tuple[Ack, ...]]) -> None:
    aside = state.aside(run)
    try:
        _keep(run, run, now, change)
        state.drop(aside, FILE)
    except Busy:
        raise
    except OpsError:  # the run takes no notes: `m4ops check` keeps them aside too
        _keep(run, aside, now, change)


def _keep(run: Run, place: Run, now: float, change: Callable[[tuple[Ack, ...]], tuple[Ack, ...]]) -> None:
    with state.lease(place, "acks", LEASE, PATIENCE):
        state.keep(place, FILE, {"version": 1, "acks": [to_builtins(a) for a in change(read(run, now))]})
