"""The Keep commands that move checkpoints to a store and back: push, pull."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ops.cli import elsewhere, meter, session
from ops.cli.elsewhere import Where
from ops.config import Config
from ops.errors import BadInput, Busy, Refused
from ops.model import Checkpoint, Run, Snapshot, Unknown

if TYPE_CHECKING:
    from ops.store import Due, How, Manifest, Pulled, Pushed

TURNS = 60
"""Seconds for which a pull waits until nobody else changes the run."""


def limits(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a transfer may take."""
    for option in (
        click.option("-n", "--dry-run", is_flag=True, help="Say what would be moved, with bytes, and stop."),
        click.option(
            "--time-limit",
            type=click.FloatRange(0, min_open=True),
            metavar="MINUTES",
            help="End by then; the same command goes on later.",
        ),
        click.option("--max-bandwidth", metavar="SIZE", help="Bytes a second over all connections: 200MB."),
        click.option("--workers", type=click.IntRange(1, 64), default=8, show_default=True, help="Requests at once."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("words", nargs=-1, metavar="[STEP]…")
@click.option("--all-missing", is_flag=True, help="Every complete checkpoint without a current copy.")
@click.option("--to", metavar="s3://BUCKET/PREFIX", help="Default: store = … of m4ops.toml.")
@limits
@elsewhere.options
@click.pass_context
def push(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    all_missing: bool,
    to: str | None,
    workers: int,
    max_bandwidth: str | None,
    time_limit: float | None,
    dry_run: bool,
    where: Where,
) -> None:
    """Send checkpoints to an S3 store, whole or not at all, verified.

    STEP is a step or `latest`. Every part is compared by its SHA-256 with what the store says it holds, and a list
    of all files is written last. What is there already is not sent again, be it from an earlier push, an interrupted
    one, or because only some bytes of a file changed since. Credentials come from where AWS's own tools look.
    """
    from ops import store

    steps, flags = elsewhere.parted(words, where)
    if bool(steps) == all_missing:
        raise BadInput("say which checkpoints to push", hint="m4ops push STEP…; m4ops push --all-missing")
    run, config = session.find(ctx)
    url = _store(to, config, "--to")
    how = _how(workers, max_bandwidth, time_limit)
    chosen = _chosen(session.look(run), steps, url)
    if where.elsewhere:
        return _sent(ctx, (run, config), [str(c.step) for c in chosen], (where, flags))
    for checkpoint in chosen:
        if dry_run:
            _show_due(store.due(run, checkpoint, url, config.store_endpoint), checkpoint)
            continue
        with meter.meter() as told:
            pushed = store.push(run, checkpoint, url, endpoint=config.store_endpoint, how=how, told=told)
        _tell_pushed(pushed)


@click.command()
@click.argument("words", nargs=-1, metavar="[STEP]…")
@click.option("--from", "source", metavar="s3://BUCKET/PREFIX", help="Default: store = … of m4ops.toml.")
@limits
@elsewhere.options
@click.pass_context
def pull(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    source: str | None,
    workers: int,
    max_bandwidth: str | None,
    time_limit: float | None,
    dry_run: bool,
    where: Where,
) -> None:
    """Bring a checkpoint back from the store, to the byte.

    It is built in SAVE_DIR/.m4ops/pull, every part compared with the SHA-256 it was pushed with, and moved in when it is
    whole; nothing is overwritten. Interrupted, the same command goes on. Without STEP: which ones the store holds.
    """
    from ops import discovery, store

    run = session.new_or_found(ctx)
    config = discovery.describe(run.dir)[1]
    url, endpoint = _store(source, config, "--from"), config.store_endpoint
    steps, flags = elsewhere.parted(words, where)
    if wrong := [step for step in steps if not step.isdigit()]:
        raise BadInput(f"{wrong[0]}: not a step", hint="m4ops pull without a step lists what the store holds")
    if steps and where.elsewhere:
        return _sent(ctx, (run, config), steps, (where, flags))
    if not steps:
        for name in store.held(run, url, endpoint):
            session.out(name)
        return
    how = _how(workers, max_bandwidth, time_limit)
    for name in (store.named(run, int(step), url, endpoint) for step in steps):
        if dry_run:
            _show_copy(store.find(run, name, url, endpoint), run, name)
            continue
        with meter.meter() as told:
            pulled = store.pull(run, name, url, endpoint=endpoint, how=how, told=told)
        _move_in(ctx, run, pulled)


# -- what is meant ---------------------------------------------------------------------------------------


def _store(said: str | None, config: Config, option: str) -> str:
    if not (said or config.store):
        raise BadInput(
            "no store is named", hint=f'{option} s3://BUCKET/PREFIX, or store = "s3://BUCKET/PREFIX" in m4ops.toml'
        )
    return said or config.store


def _how(workers: int, bandwidth: str | None, minutes: float | None) -> How:
    from ops.store import How

    rate = meter.size(bandwidth, "--max-bandwidth") if bandwidth else None
    return How(workers, rate, time.monotonic() + 60 * minutes if minutes else None)


def _chosen(seen: Snapshot, steps: tuple[str, ...], url: str) -> list[Checkpoint]:
    """The checkpoints that are named; with none named those without a current copy."""
    from ops import store
    from ops.interventions import targets

    if isinstance(seen.checkpoints, Unknown):
        raise Refused(f"the checkpoints are UNKNOWN: {seen.checkpoints.reason}", str(seen.run.dir))
    if steps:
        by_step = {c.step: c for c in seen.checkpoints}
        numbers = [targets.resolve(seen, step) for step in steps]
        if lost := [n for n in numbers if n not in by_step]:
            raise BadInput(f"there is no checkpoint of step {lost[0]}", str(seen.run.dir), "m4ops checkpoints")
        return [by_step[n] for n in dict.fromkeys(numbers)]
    found = [c for c in seen.checkpoints if c.complete and not store.current(seen.run, c.path, url)]
    if not found:
        session.say("nothing is missing: every complete checkpoint has a current copy in the store")
    return found


def _sent(
    ctx: click.Context, found: tuple[Run, Config], steps: Sequence[str], said: tuple[Where, tuple[str, ...]]
) -> None:
    from ops.work import Task

    run, config = found
    typed = elsewhere.given(ctx, ("words", "all_missing", "dry_run"))
    name = ctx.info_name or ""
    tasks = [Task(f"step {step}", ("--run", str(run.dir), name, step, *typed)) for step in steps]
    elsewhere.end(elsewhere.sent(ctx, run, config, tasks, said) if tasks else 0)


# -- doing and telling -----------------------------------------------------------------------------------


def _move_in(ctx: click.Context, run: Run, pulled: Pulled) -> None:
    """Have the executor move what was fetched to its place, and note that its copy is in the store."""
    from ops import snapshot, store
    from ops.actions import Move
    from ops.cli import carry
    from ops.plan import Plan
    from ops.views import words

    _tell("fetched", pulled.manifest.size, pulled.fetched, pulled.seconds)
    made = Plan(
        run=str(run.dir),
        title=f"pull {pulled.target.name} from {pulled.at.url(run.name)}",
        actions=(Move(str(pulled.staging), str(pulled.target)),),
        command=session.typed(),
        wish={"kind": "pull", "assume_stopped": True},  # no resume reads a checkpoint that the pointer does not name
        created=time.time(),
        user=snapshot.user(),
    )
    for turn in range(TURNS):
        try:
            carry.carried(ctx, run, made)
            break
        except Busy:  # another pull moves its checkpoint in at the very moment
            if turn == TURNS - 1:
                raise
            time.sleep(1)
    store.settle(run, pulled)
    session.out(f"{pulled.target}  {words.size(pulled.manifest.size)}")


def _tell(what: str, size: int, moved: int, seconds: float, more: str = "") -> None:
    from ops.views import words

    rate = words.size(moved / max(seconds, 1e-3))
    session.say(f"{what}: {words.size(moved)} of {words.size(size)} in {seconds:.1f} s, {rate}/s{more}")


def _tell_pushed(pushed: Pushed) -> None:
    from ops.views import words

    reused = f"; {words.size(pushed.reused)} copied within the store" if pushed.reused else ""
    _tell("sent", pushed.size, pushed.sent, pushed.seconds, reused)
    if pushed.left_over:
        names = ", ".join(pushed.left_over[:4]) + (", …" if len(pushed.left_over) > 4 else "")
        session.say(f"  no longer here, and left in the store: {names}")
    session.out(pushed.url)


def _show_due(due: Due, checkpoint: Checkpoint) -> None:
    from ops.views import words

    held = "a whole copy" if due.whole else "no whole copy"
    session.out(f"{checkpoint.path.name}: {words.size(due.size)} to send; the store holds {held}")
    for word, pieces in (("new", due.new), ("changed", due.changed)):
        for piece in pieces:
            session.out(f"  {word:8} {words.size(piece.size):>10}  {piece.name}")


def _show_copy(found: Manifest, run: Run, name: str) -> None:
    from ops import store
    from ops.checkpoints import layouts
    from ops.views import words

    target = layouts.home(run) / name
    store.refuse_overwrite(target)
    count = words.count(len(found.files), "file")
    session.out(f"{target}: {words.size(found.size)} in {count} to fetch")
