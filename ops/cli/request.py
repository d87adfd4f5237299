"""`m4ops request`: what a teammate may ask of a run, and the owner's tick that carries it out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import click
from msgspec.structs import replace

from ops import requests
from ops.cli import session
from ops.errors import Busy, OpsError, Refused
from ops.model import Run, Unknown
from ops.requests import VERBS, Reply, Request

LEASE = 7200.0
"""Seconds a tick may be at work on requests: a stop waits half an hour for the last save."""
SHOWN = 10


@click.command()
@click.argument("verb", required=False, type=click.Choice(VERBS), metavar="[stop|hold|release|save]")
@click.option("--why", default="", help="The reason; the owner reads it, and it stays in the history.")
@click.option("--expires", default="2h", show_default=True, metavar="TIME", help="How long it may wait: 30m, 2h, 1d.")
@click.pass_context
def request(ctx: click.Context, verb: str | None, why: str, expires: str) -> None:
    """Ask for a stop, hold, release or save of somebody else's run; alone: what was asked.

    The request is a file in the run. The owner's next m4ops check carries it out and says so, if you are among the
    operators of the run's m4ops.toml and it has not expired.
    """
    run, _ = session.find(ctx)
    if verb is None:
        return session.out(_listed(run))
    if not why.strip():
        raise Refused("a request needs its reason", run.name, f'm4ops request {verb} --why "…"')
    seconds = requests.duration(expires)
    _refuse_stranger(run)
    left = requests.leave(run, verb, why.strip(), time.time(), seconds)
    owner = requests.name_of(requests.owner(run))
    session.say(f"asked {owner} to {verb} {run.name} (request {left.id}); the next m4ops check of {owner} answers")
    session.say(f"{session.me(ctx)} request shows the answer; unanswered it expires in {expires}")


def _refuse_stranger(run: Run) -> None:
    """Say at once what the owner's tick would say later."""
    me = os.geteuid()
    owner = requests.owner(run)
    if me != owner and requests.name_of(me) not in requests.operators(run):
        raise Refused(
            f"{requests.name_of(me)} is not among the operators of this run",
            str(run.dir / "m4ops.toml"),
            f'{requests.name_of(owner)} can add you there: operators = ["{requests.name_of(me)}"]',
        )


def _listed(run: Run) -> str:
    from ops.views import words
    from ops.views.words import clean

    rows = [
        ("waits", r.verb, clean(r.user), words.clock(r.time), clean(r.problem or r.why)) for r in requests.waiting(run)
    ]
    rows += [
        (a.outcome, a.verb, clean(a.user), words.clock(a.time), clean(f"{a.why}: {a.said}" if a.why else a.said))
        for a in requests.replies(run)[-SHOWN:]
    ]
    table = words.table([("ANSWER", "REQUEST", "BY", "WHEN", "WORDS"), *rows])
    return "\n".join(table) if rows else f"nobody asked anything of {run.name}"


def carry_out(run: Run, jobs: object, tell: Callable[[Reply], None]) -> tuple[Reply, ...]:
    """Carry out what was asked of a run of this user. With an unknown queue everything waits for the next tick."""
    from ops import state

    if requests.owner(run) != os.geteuid() or not requests.folder(run).is_dir():
        return ()
    replies: list[Reply] = []
    try:
        with state.lease(run, "requests", LEASE):
            for begun in requests.left_over(run):
                replies.append(_reply(run, begun, "unknown", "it was begun, and the tick died: m4ops history", ""))
                tell(replies[-1])
            for asked in requests.waiting(run):
                answer = _answered(run, asked, known=not isinstance(jobs, Unknown))
                if answer is not None:
                    replies.append(answer)
                    tell(answer)
    except Busy:
        return tuple(replies)  # another tick is at work on them
    return tuple(replies)


def _answered(run: Run, asked: Request, known: bool) -> Reply | None:
    """What becomes of a request; None: it waits for the next tick."""
    outcome, words = requests.objection(run, asked, time.time())
    if outcome:
        return _reply(run, asked, outcome, words, "")
    if not known or not requests.take(run, asked):
        return None
    try:
        change = _apply(run, asked)
    except Busy:
        requests.put_back(run, asked)
        return None
    except Refused as error:
        return _reply(run, asked, "refused", error.what, "")
    except (OpsError, OSError) as error:
        return _reply(run, asked, "failed", error.what if isinstance(error, OpsError) else str(error), "")
    return _reply(run, asked, "done", f"change {change}", change)


def _apply(run: Run, asked: Request) -> str:
    from ops import executor
    from ops.cli import carry
    from ops.interventions.jobs import Hold, Release, Save, Stop

    wishes = {"stop": Stop, "hold": Hold, "release": Release, "save": Save}
    made = carry.plan(wishes[asked.verb](), run, f"m4ops request {asked.verb} (of {asked.user})")
    title = f"{made.title}, asked for by {asked.user}: {asked.why}"
    return executor.apply(replace(made, title=title), carry.world(run))


def _reply(run: Run, asked: Request, outcome: str, said: str, change: str) -> Reply:
    answer = Reply(asked.id, asked.verb, asked.why, asked.user, time.time(), outcome, said, change)
    requests.reply(run, answer)
    return answer


def told(answer: Reply) -> str:
    """The reply in one line."""
    why = f" ({answer.why})" if answer.why else ""
    return f"request of {answer.user} to {answer.verb}{why}: {answer.outcome}: {answer.said}"
