"""Wishes about the jobs: hold, release, requeue, stop by the kill switch, save by the save switch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import ClassVar

from ops.actions import Action, Schedule, WaitFor, WriteText
from ops.catalogue.reasons import reason_of
from ops.errors import Refused
from ops.interventions import parking
from ops.interventions.wish import Simple
from ops.model import Job, Snapshot

SAVE_LIMIT = 1800.0
REQUEUES = 5
"""Requeues by m4ops within a day, after which it wants to be told `--again`."""
DAY = 86400.0


class Hold(Simple, frozen=True):
    """Keep the queued tasks from starting. What runs goes on; `m4ops stop` ends it."""

    kind: ClassVar[str] = "hold"
    why: str = ""
    until: str = ""
    stop: bool = False
    """Also end what runs: saved by the kill switch where tasks follow, else requeued and held."""

    def title(self, snapshot: Snapshot) -> str:
        return f"hold {snapshot.run.name}" + (f": {self.why}" if self.why else "")

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        jobs = own(snapshot)
        if not jobs:
            raise Refused("no job of this run is in the queue", snapshot.run.name, "m4ops status")
        loose = [j for j in jobs if not _held(j)]
        running = [j for j in jobs if j.running]
        if not [j for j in loose if j.pending or j.running] and not (self.stop and running):
            raise Refused("every job of this run is held already", snapshot.run.name, "m4ops release lets them go")
        if not (self.stop and running):
            return parking.holds(snapshot, loose)
        follow = any(j.pending for j in jobs)
        return (*parking.holds(snapshot, loose), *parking.stop(snapshot, running, follow, replan=False))

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        running = [j for j in own(snapshot) if j.running]
        stuck = _stuck(snapshot)
        if not self.stop:
            said = "goes on running on {}; m4ops hold --stop ends it and keeps it queued, m4ops stop ends it, saved"
            return (*(f"{j.id} {said.format(j.nodes)}" for j in running), *stuck)
        unsaved = any(isinstance(a, Schedule) and a.verb == "requeuehold" for a in self.actions(snapshot))
        lost = ("no task follows, or no kill switch is known: what runs is ended without a last save",)
        return (*(lost if unsaved else ()), *stuck)


def planning_note(snapshot: Snapshot, why: str, until: str) -> str:
    """The note that lets others use the idle nodes: which become free, when, and until when."""
    jobs = own(snapshot)
    running = [j for j in jobs if j.running]
    arrays = ", ".join(dict.fromkeys(j.array_id for j in jobs))
    lines = [f"{snapshot.run.name} (job {arrays}) is on hold" + (f": {why}" if why else "") + "."]
    for job in running:
        end = f", at the latest {_clock(job.end)}" if job.end else ""
        lines.append(f"{job.node_count} node(s) {job.nodes} become free when task {job.id} ends{end}.")
    if not running:
        lines.append("No task runs: its nodes are free now.")
    lines.append(f"They are free to use until {until or f'we release it; {snapshot.user} will say so here first'}.")
    return "\n".join(lines)


class Release(Simple, frozen=True):
    """Let the held tasks start."""

    kind: ClassVar[str] = "release"

    def title(self, snapshot: Snapshot) -> str:
        return f"release {snapshot.run.name}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        held = [j for j in own(snapshot) if _held(j)]
        if not held:
            stuck = _stuck(snapshot)
            raise Refused("no job of this run is held", "; ".join(stuck) or snapshot.run.name, "m4ops status")
        mine = [j for j in held if not parking.by_admin(j, snapshot)] or held
        return tuple(Schedule("release", array) for array in dict.fromkeys(j.array_id for j in mine))

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        admin = [j.id for j in own(snapshot) if parking.by_admin(j, snapshot)]
        told = [f"{', '.join(admin)} is held by an administrator, who alone can release it"] if admin else []
        if snapshot.kill_switch_set is True:
            switch = snapshot.run.kill_switch
            told.append(f"the kill switch is set ({switch}): every task will exit at once until it is removed")
        return (*told, *_stuck(snapshot))


class Requeue(Simple, frozen=True):
    """Put running tasks back into the queue, each by its own id: a requeued array would revive its finished tasks."""

    kind: ClassVar[str] = "requeue"
    job: str = ""
    again: bool = False
    """Once more, though the run was requeued `REQUEUES` times within a day: Slurm itself sets no limit."""

    def title(self, snapshot: Snapshot) -> str:
        return f"requeue {self.job or 'the running task of ' + snapshot.run.name}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        running = [j for j in own(snapshot) if j.running and self.job in ("", j.id, j.raw_id)]
        if not running:
            raise Refused(
                f"no running task{' ' + self.job if self.job else ''} of this run", snapshot.run.name, "m4ops status"
            )
        count = _requeues(snapshot)
        if count >= REQUEUES and not self.again:
            raise Refused(
                f"this run was requeued {count} times within a day: what ends it will end it again",
                snapshot.run.name,
                "m4ops check says what is wrong; --again requeues it all the same",
            )
        return tuple(Schedule("requeue", j.id) for j in running)


class Cancel(Simple, frozen=True):
    """End jobs for good: what waits never starts, what runs is killed without a save."""

    kind: ClassVar[str] = "cancel"
    job: str = ""

    def title(self, snapshot: Snapshot) -> str:
        return f"cancel {self.job or 'every job of ' + snapshot.run.name}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        meant = self._meant(snapshot)
        if not meant:
            what = f"job {self.job} of this run" if self.job else "job of this run"
            raise Refused(f"no {what} is in the queue", snapshot.run.name, "m4ops status")
        named = [self.job if self.job else j.array_id for j in meant]
        return tuple(Schedule("cancel", job) for job in dict.fromkeys(named))

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        lost = tuple(
            f"{j.id} runs on {j.nodes} and is killed without a save" for j in self._meant(snapshot) if j.running
        )
        return (*lost, "a cancelled job does not come back: m4ops hold keeps it, m4ops stop saves first")

    def _meant(self, snapshot: Snapshot) -> list[Job]:
        return [j for j in own(snapshot) if self.job in ("", j.id, j.array_id)]


class Stop(Simple, frozen=True):
    """Save, then end: hold what waits, set the kill switch, wait for the end, remove the switch."""

    kind: ClassVar[str] = "stop"

    def title(self, snapshot: Snapshot) -> str:
        return f"stop {snapshot.run.name}"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        jobs = own(snapshot)
        running, loose = [j for j in jobs if j.running], [j for j in jobs if j.pending and not j.held]
        if not running:
            raise Refused(
                "no job of this run is running", snapshot.run.name, "m4ops hold keeps queued tasks from starting"
            )
        switch = snapshot.run.kill_switch
        if switch is None:
            raise Refused(
                "no kill switch is known: no {job_id}_config.yaml names kill_switch_path",
                str(snapshot.run.dir),
                'm4ops.toml can: kill_switch = "…"',
            )
        return (*parking.holds(snapshot, loose), *parking.stop(snapshot, running, more_to_come=True, replan=False))

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        loose = [j for j in own(snapshot) if j.pending]
        return ("queued tasks stay held: m4ops release starts the next one",) if loose else ()


class Save(Simple, frozen=True):
    """Have the running trainer save now, by its save switch, and wait for the checkpoint."""

    kind: ClassVar[str] = "save"

    def title(self, snapshot: Snapshot) -> str:
        return f"save {snapshot.run.name} now"

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        switch = snapshot.run.save_switch
        if switch is None:
            raise Refused(
                "no save switch is known: no {job_id}_config.yaml names save_switch_path",
                str(snapshot.run.dir),
                'm4ops.toml can: save_switch = "…"',
            )
        if not any(j.running for j in parking.queue(snapshot)):
            raise Refused(
                "no job of this run is running: nobody would see the switch", snapshot.run.name, "m4ops status"
            )
        highest = max((c.step for c in snapshot.checkpoints or () if c.complete), default=-1)
        return (
            WriteText(str(switch), None, "", "save switch on; the trainer removes it", taken=True),
            WaitFor("saved", SAVE_LIMIT, str(highest)),
        )


def own(snapshot: Snapshot) -> tuple[Job, ...]:
    """The run's jobs, all of them the user's own. Raises Refused otherwise."""
    jobs = parking.queue(snapshot)
    foreign = next((j for j in jobs if j.user != snapshot.user), None)
    if foreign:
        raise Refused(
            f"job {foreign.id} belongs to {foreign.user}, and m4ops acts on your own jobs only",
            snapshot.run.name,
            f"ask {foreign.user}",
        )
    return jobs


def _stuck(snapshot: Snapshot) -> tuple[str, ...]:
    """What waits for something that a release does not bring."""
    waiting = ((j, reason_of(j.reason)) for j in own(snapshot) if j.pending and not j.held)
    return tuple(f"{j.id} does not start by itself: {r.meaning}; {r.do}" for j, r in waiting if r and r.stuck)


def _requeues(snapshot: Snapshot) -> int:
    """How often m4ops requeued the run within the last day."""
    changes = snapshot.history if isinstance(snapshot.history, tuple) else ()
    lately = (c for c in changes if c.status == "applied" and snapshot.now - c.time < DAY)
    return sum(c.wish.get("kind") == Requeue.kind for c in lately)


def _held(job: Job) -> bool:
    """Also of a task that runs: it goes on, and would be held if it were requeued."""
    return job.held or (job.running and job.reason.startswith("JobHeld"))


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
