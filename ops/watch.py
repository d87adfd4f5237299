"""Is a run checked as often as was meant? A check that cron or Slurm starts says how often it comes, and leaves its time:

the next one tells of the ticks that were missed between them, and whoever looks at the run tells of none coming any more.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from ops import state
from ops.errors import OpsError
from ops.model import Finding, Run, Severity

FILE = "checked.json"
LATE = 1.75
"""Periods, and a minute, between two checks after which one was missed: less than two, more than a short queue takes."""
HEARTBEAT = "heartbeat.json"
"""There only while the heartbeat fails."""
UNHEARD = 3
"""Heartbeats in a row that must fail before it is told."""
LEASE = 30.0
PATIENCE = 3
"""Periods, and never less than half an hour, without a check after which none is expected."""


def checked(run: Run, now: float, minutes: int, sinks: Sequence[str] = ()) -> tuple[Finding, ...]:
    """Note that a check that comes every so many minutes looks now; `check-missed` if one before it did not come.

    `sinks`: the marks of those it tells.

    Raises OpsError when the disk does not take it. Hold the run's lease.
    """
    last, _ = _last(run)
    expect(run, now, minutes, sinks)
    if not last or now - last <= (LATE * minutes + 1) * 60:
        return ()
    missed = max(1, round((now - last) / (60 * minutes)) - 1)
    summary = (
        f"{missed} check{'s' * (missed > 1)} of this run did not come, between {_clock(last)} and {_clock(now)}: "
        f"one every {minutes} minutes was meant, and what happened meanwhile is seen only now"
    )
    return (Finding("check-missed", Severity.WARNING, summary, actions=("m4ops cron status",)),)


def expect(run: Run, now: float, minutes: int, sinks: Sequence[str] = ()) -> None:
    """From now on a check comes every so many minutes. Raises OpsError when the disk does not take it."""
    state.keep(run, FILE, {"time": now, "minutes": minutes, "sinks": list(sinks)})


def awaiting(run: Run) -> tuple[str, ...]:
    """The marks of the sinks that the check that comes regularly tells: what they lack is kept for it."""
    sinks = state.kept(run, FILE).get("sinks")
    return tuple(map(str, sinks)) if isinstance(sinks, list) else ()


def silent(run: Run, now: float) -> tuple[Finding, ...]:
    """`check-silent` when the checks that were to come regularly have stopped."""
    last, minutes = _last(run)
    if not last or now - last <= max(PATIENCE * minutes * 60, 1800):
        return ()
    summary = f"nobody checked this run for {(now - last) / 3600:.1f} h; a check every {minutes} minutes was meant"
    return (Finding("check-silent", Severity.WARNING, summary, actions=("m4ops cron status", "m4ops cron install")),)


def beaten(run: Run, address: str, reason: str, now: float) -> int:
    """Note that the heartbeat did not arrive, or, without a reason, that it did; how often in a row it did not.

    What cannot be kept is not.
    """
    before = state.kept(run, HEARTBEAT)
    if not reason and not before:
        return 0
    missed = 1 + (before["missed"] if isinstance(before.get("missed"), int) else 0) if reason else 0
    from ops.alerts.address import mask

    with suppress(OpsError, OSError), state.lease(run, "heartbeat", LEASE):
        if reason:
            state.keep(run, HEARTBEAT, {"to": mask(address), "missed": missed, "reason": reason, "time": now})
        else:
            state.drop(run, HEARTBEAT)
    return missed


def unheard(run: Run) -> tuple[Finding, ...]:
    """`heartbeat-failing` when it did not arrive several times in a row."""
    kept = state.kept(run, HEARTBEAT)
    if not isinstance(kept.get("missed"), int) or kept["missed"] < UNHEARD:
        return ()
    summary = f"the heartbeat does not reach {kept.get('to')}: {kept.get('reason')}"
    evidence = f"missed {kept['missed']} times in a row: whoever waits for it takes that for the end of the checks"
    return (Finding("heartbeat-failing", Severity.WARNING, summary, (evidence,)),)


def forget(run: Run) -> None:
    """No check is expected any more. Raises OSError."""
    state.drop(run, FILE)


def _last(run: Run) -> tuple[float, int]:
    """Time and period in minutes of the last check that comes regularly; zeros where there was none."""
    kept = state.kept(run, FILE)
    try:
        return float(kept["time"]), int(kept["minutes"])
    except (KeyError, TypeError, ValueError):
        return 0.0, 0


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
