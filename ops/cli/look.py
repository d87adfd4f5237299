"""The Look commands. None of them changes the run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click
from msgspec import Struct
from msgspec.structs import replace

from ops.cli import session
from ops.cli.session import json_option
from ops.errors import OpsError
from ops.model import OPS_DIR, Finding, LogView, Run, Snapshot, Unknown
from ops.shell import Shell

if TYPE_CHECKING:
    from ops.alerts.words import Ack
    from ops.state import Memory


@click.command()
@json_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """One screen: jobs, progress, checkpoints, pointer, what is wrong."""
    run, _ = session.find(ctx)
    seen = picture(run, session.lately())
    if as_json:
        from ops.views import data

        return session.out(data.dumps(data.status_json(seen.snapshot, seen.findings, seen.taken)))
    from ops.views.status import status_text

    session.out(status_text(seen.snapshot, seen.findings, session.color(), session.width(), seen.taken))


class Picture(Struct, frozen=True):
    """A run as it was seen, what is wrong, who has taken which of it, and the memory for the next look."""

    snapshot: Snapshot
    findings: tuple[Finding, ...]
    taken: Mapping[str, Ack]
    memory: Memory


def picture(run: Run, shell: Shell, before: Memory | None = None) -> Picture:
    """Look at a run and judge it; `before`: the memory of a look before, from which on the log is read.

    Keeps nothing. Raises OSError.
    """
    from ops import judging, state, tick
    from ops.alerts import acks

    found = tick.look([run], shell, time.time(), keeping=False)[0]
    if isinstance(found, OSError):
        raise found
    memory = state.load(run)
    if before:
        memory = replace(
            memory, cursor=before.cursor, detectors=before.detectors, measures=before.measures, tail=before.tail
        )
    judged = judging.judge(found.snapshot, memory)
    seen, findings = judged.snapshot, (*judged.findings, *session.beside(judged.snapshot, memory))
    taken = session.taken(findings, memory, acks.read(run, seen.now), seen.now)
    return Picture(seen, findings, taken, judged.memory)


@click.command()
@json_option
@click.pass_context
def checkpoints(ctx: click.Context, as_json: bool) -> None:
    """Every checkpoint: complete or not, age, wandb id, what does not belong."""
    seen = _table(ctx, as_json, "checkpoints", inspect=True)
    if not as_json:
        from ops.cli.prune import help_with

        if said := help_with(seen, session.find(ctx)[1].keep):
            session.out(f"      {said}")


@click.command()
@json_option
@click.pass_context
def evals(ctx: click.Context, as_json: bool) -> None:
    """Scores by step; torn and foreign lines by number."""
    _table(ctx, as_json, "evals")


@click.command()
@json_option
@click.pass_context
def history(ctx: click.Context, as_json: bool) -> None:
    """Every change made by m4ops: what, who, when, undone or not."""
    _table(ctx, as_json, "history")


def _table(ctx: click.Context, as_json: bool, what: str, inspect: bool = False) -> Snapshot:
    from ops import snapshot
    from ops.views import data, tables

    run, _ = session.find(ctx)
    if inspect:
        seen = _with_copies(_looked_into(session.look(run, recent=True)))
    else:  # neither queue nor log has a part in it
        seen = snapshot.beside_log(run, time.time(), Unknown("not asked"))
    if as_json:
        session.out(data.dumps(getattr(data, f"{what}_json")(seen)))
    else:
        session.out(getattr(tables, f"{what}_text")(seen, session.color(), session.width()))
    return seen


NEWEST = 3
"""Checkpoints that are looked into, besides the pointer's; of the others is told what is remembered."""


def _looked_into(seen: Snapshot) -> Snapshot:
    from ops import checked, snapshot

    if isinstance(seen.checkpoints, Unknown):
        return seen
    pointed = {seen.pointer.step} if seen.pointer and seen.pointer.step is not None else set()
    steps = frozenset(pointed | {c.step for c in seen.checkpoints[-NEWEST:]})
    seen = snapshot.looked_into(seen, steps)
    found = seen.checkpoints
    return replace(seen, checkpoints=checked.seen(seen.run, found, steps, seen.now)) if found else seen


def _with_copies(seen: Snapshot) -> Snapshot:
    """With what was noted of copies in a store, and whether they still are what lies here; no store is asked."""
    if isinstance(seen.checkpoints, Unknown) or not (seen.run.dir / OPS_DIR / "state" / "store").is_dir():
        return seen
    from ops.store.noted import standing

    found = {c.path: standing(seen.run, c.path) for c in seen.checkpoints}
    told = (
        replace(c, pushed=copy.url, stale=copy.changed) if (copy := found.get(c.path)) else c for c in seen.checkpoints
    )
    return replace(seen, checkpoints=tuple(told))


@click.command()
@json_option
@click.option("--field", default="loss", show_default=True, help="loss, lr, or any metric of the progress lines.")
@click.option("--height", default=20, show_default=True, type=click.IntRange(5, 80))
@click.pass_context
def plot(ctx: click.Context, as_json: bool, field: str, height: int) -> None:
    """The loss in the terminal, discarded branches shown as such."""
    run, _ = session.find(ctx)
    log = session.look(run, log=None, recent=True).log
    if not isinstance(log, LogView):
        raise OpsError(f"the log is UNKNOWN: {log.reason}", str(run.dir), "m4ops status")
    if as_json:
        from ops.views import data

        return session.out(data.dumps(data.plot_json(log.samples, field)))
    from ops.views.plot import plot_text

    session.out(plot_text(log.samples, session.width(), height, session.color(), field))
