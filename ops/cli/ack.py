"""`m4ops ack`: somebody takes a trouble, so that it is told no more for a while."""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from ops import policy
from ops.cli import session
from ops.errors import BadInput, Refused
from ops.model import OPS_DIR, Run

if TYPE_CHECKING:
    from ops.alerts.words import Ack, Episode
    from ops.config import Config

LONGEST = 7 * 86400.0


@click.command()
@click.argument("what", required=False, metavar="[ID|KIND]")
@click.option("--for", "span", default="8h", show_default=True, metavar="TIME", help="How long: 30m, 2h, 1d.")
@click.option("--why", default="", help="What you do about it; shown wherever the trouble is.")
@click.option("--end", is_flag=True, help="Take the ack back.")
@click.pass_context
def ack(ctx: click.Context, what: str | None, span: str, why: str, end: bool) -> None:
    """Take a trouble: it is neither repeated nor escalated for a while; alone: what is open, and who has it.

    ID is what the message and the list name: that trouble alone, until it is over; that it got worse is still told.
    KIND is a kind of finding (m4ops explain): all of that kind are silent, also those that come meanwhile.
    """
    from ops import state
    from ops.alerts import acks
    from ops.alerts.words import Ack, ident

    run, config = session.find(ctx)
    now, (memory, _) = time.time(), state.newest(run)
    if what is None:
        return session.out(_listed(run, memory.episodes, acks.read(run, now), now))
    if end:
        if not acks.end(run, what, now):
            raise Refused(f"nobody has taken `{what}`", run.name, f"{session.me(ctx)} ack lists what is taken")
        return session.say(f"{what} is nobody's again")
    seconds = policy.seconds(span)
    if not 0 < seconds <= LONGEST:
        raise BadInput(f"--for {span}: an ack holds for 7d at most", hint="--for 8h")
    told = _meant(what, memory.episodes, session.me(ctx))
    acks.add(run, Ack(what, _me(), now, now + seconds, why.strip()))
    from ops.views import words

    _elsewhere(run, config, [e for e in memory.episodes if what in (ident(e.finding), e.finding.kind)])
    session.say(f"{told}: yours until {words.clock(now + seconds)}; {session.me(ctx)} ack {what} --end takes it back")
    shared = run.dir / OPS_DIR / "state"
    if state.folder(run) != shared and shared.exists():
        session.say(f"you cannot write in {shared}: this holds for checks of your own, not for those of others")


def _elsewhere(run: Run, config: Config, episodes: Sequence[Episode]) -> None:
    """Acknowledge at the services of incidents that know of it too; what cannot be is said, and changes nothing here."""
    from ops.alerts import sinks
    from ops.alerts.address import Answered, NotSent, mask

    incidents = dict.fromkeys(e.incident for e in episodes if e.told)
    for uri in dict.fromkeys((*config.sinks, *config.escalate_to)):
        try:
            told = {sinks.acknowledge(uri, str(run.dir), incident, _me()) for incident in incidents} - {""}
        except (Answered, NotSent, BadInput) as error:
            session.say(f"{mask(uri)} does not know that it is yours, acknowledge it there too: {error}")
        else:
            for service in told:
                session.say(f"acknowledged at {service}")


def _meant(what: str, episodes: Sequence[Episode], me: str) -> str:
    """What is taken, in words. Raises BadInput for what is neither open nor a kind."""
    from ops.alerts.words import ident
    from ops.catalogue import kinds
    from ops.views.words import clean

    found = next((e for e in episodes if ident(e.finding) == what), None)
    if found:
        return f"{what} ({clean(found.finding.summary)})"
    known = {*kinds(), *(e.finding.kind for e in episodes)}
    if what in known:
        return f"all of the kind {what}"
    import difflib

    names = [*known, *(ident(e.finding) for e in episodes)]
    near = difflib.get_close_matches(what, names, n=2)
    hint = f"did you mean {' or '.join(near)}?" if near else f"{me} ack lists what is open"
    raise BadInput(f"`{what}` is neither an open trouble nor a kind of finding", hint=hint)


def _listed(run: Run, episodes: Sequence[Episode], acks: Sequence[Ack], now: float) -> str:
    from ops.alerts.words import acked, ident
    from ops.views import words
    from ops.views.findings import taken_by

    rows = []
    for episode in episodes:
        taken = acked(episode.finding, episode.since, acks, now)
        f = episode.finding
        rows.append((ident(f), f.severity.name, f.kind, words.duration(now - episode.since), words.clean(f.summary)))
        rows += [("", "", "", "", f"taken {taken_by(taken)}")] if taken else []
    kinds = [a for a in acks if not any(a.what in (ident(e.finding), e.finding.kind) for e in episodes)]
    rows += [(a.what, "-", "-", "-", f"taken {taken_by(a)}") for a in kinds]
    table = words.table([("ID", "SEVERITY", "KIND", "FOR", "WHAT"), *rows])
    return "\n".join(table) if rows else f"no trouble of {run.name} is open, as of its last check"


def _me() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
