"""Does the disk have room for the next saves, in bytes and in inodes? A save that finds none is torn, and the job ends."""

from __future__ import annotations

from ops.model import Disk, Finding, Severity, Snapshot

NIGHT = 24 * 3600.0
"""Seconds; a disk that is full before that has passed is told."""
FEW, MANY = 3, 100
"""Saves that still fit: with so few it is told even if something clears away behind the run, with so many never."""


def look(snapshot: Snapshot) -> tuple[Finding, ...]:
    """`disk-filling`: CRITICAL when the next save finds no room, WARNING when it is near at the pace of saving."""
    disk = snapshot.disk
    jobs = snapshot.jobs if isinstance(snapshot.jobs, tuple) else ()
    if not isinstance(disk, Disk) or disk.saves_left is None or not any(job.running or job.pending for job in jobs):
        return ()
    left = None if _cleared(snapshot) else disk.seconds_left(snapshot.now)
    soon = left is not None and left < NIGHT and disk.saves_left < MANY
    if disk.saves_left > FEW and not soon:
        return ()
    when = f", at the pace of saving within {left / 3600:.0f} h" if left is not None and disk.saves_left else ""
    said = f"room for {disk.saves_left} more saves" if disk.saves_left else "no room for another save"
    free = f"{disk.inodes} inodes" if disk.scarce == "inodes" else f"{disk.free / 1e9:.4g} GB"
    takes = f"{disk.save_files} inodes" if disk.scarce == "inodes" else f"{(disk.save_bytes or 0) / 1e9:.4g} GB"
    finding = Finding(
        kind="disk-filling",
        severity=Severity.WARNING if disk.saves_left else Severity.CRITICAL,
        summary=f"the disk has {said}{when}",
        evidence=(f"{snapshot.run.dir}: {free} free, a save takes {takes}",),
        runbook="save-late",
        actions=("m4ops prune -n", "m4ops checkpoints"),
    )
    return (finding,)


def _cleared(snapshot: Snapshot) -> bool:
    """Are old checkpoints removed behind the run? Then the room of today is not used up by the saves of tomorrow."""
    steps = [c.step for c in snapshot.checkpoints or () if c.complete]
    return len(steps) > 1 and steps[0] > 2 * (steps[1] - steps[0])
