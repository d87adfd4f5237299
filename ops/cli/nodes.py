"""`m4ops nodes`: which nodes failed the run, and what to tell the admins."""

from __future__ import annotations

import time

import click

from ops.cli import session
from ops.cli.session import json_option
from ops.errors import BadInput
from ops.model import Run, Unknown
from ops.placement import NodeHistory
from ops.views.nodes import Gaps


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def nodes(ctx: click.Context, as_json: bool) -> None:
    """Failures of each node over the run's life; a report for the admins.

    From the log (srun's words, Xid codes) and from Slurm's records, which alone tell of a batch host that died.
    """
    if ctx.invoked_subcommand is not None:
        return
    from ops.views import data
    from ops.views import nodes as view

    run, _ = session.find(ctx)
    histories, excluded, gaps = _life(run)
    if as_json:
        return session.out(data.dumps(view.nodes_json(run, histories, excluded, gaps)))
    session.out(view.nodes_text(run, histories, excluded, gaps, session.color()))


@nodes.command("report")
@click.argument("node")
@click.pass_context
def report(ctx: click.Context, node: str) -> None:
    """Print what the admins need to know of NODE, ready to paste."""
    from ops import snapshot
    from ops.views import nodes as view

    run, _ = session.find(ctx)
    histories, excluded, gaps = _life(run)
    for name, why in gaps:
        session.say(f"{name}: UNKNOWN ({why.reason})")
    found = next((h for h in histories if h.node == node), None)
    if found is None:
        names = ", ".join(h.node for h in histories if h.node) or "none"
        raise BadInput(f"no failure of node {node} is known (of: {names})", str(run.dir), f"{session.me(ctx)} nodes")
    session.out(view.report_text(run, snapshot.owner(run), found, node in excluded))


def _life(run: Run) -> tuple[tuple[NodeHistory, ...], tuple[str, ...], Gaps]:
    from ops import nodes as reader
    from ops import tick

    seen = tick.life(run, session.lately(), time.time())
    gaps = [("the nodes' states", seen.states)] if isinstance(seen.states, Unknown) else []
    gaps += [("Slurm's records", seen.accounting)] if seen.accounting is not None else []
    gaps += [("the log", seen.log)] if seen.log is not None else []
    try:
        excluded = reader.excluded(run.dir)
    except (OSError, UnicodeDecodeError) as error:
        excluded, gaps = (), [*gaps, ("what is excluded", Unknown(str(error)))]
    return reader.histories(seen.failures, seen.states or ()), excluded, gaps
