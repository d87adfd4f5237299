"""`m4ops watch-saves`: what m4ops.toml declares to be done with each finished checkpoint."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, partial

import click

from ops import extract as effect
from ops import recent, slurm
from ops.checkpoints import layouts
from ops.cli import heavy, session
from ops.config import Config
from ops.errors import BadInput, OpsError, Refused
from ops.model import Checkpoint, Job, Run, Unknown
from ops.saves import declared, evaluations, ledger, serve
from ops.saves.declared import Step
from ops.saves.ledger import Record
from ops.saves.serve import Outcome, World
from ops.views import words


@click.command("watch-saves")
@click.option("-n", "--dry-run", is_flag=True, help="Show how each step of each checkpoint stands, and stop.")
@click.pass_context
def watch_saves(ctx: click.Context, dry_run: bool) -> None:
    """Do with finished checkpoints what on_save declares: verify, extract, push, evals, prune.

    Each step of each checkpoint once, whoever runs this and how often, on however many hosts; the cron of m4ops cron
    install does. What fails is tried again after a pause, is told by m4ops check, and holds up only what needs it.
    Checkpoints older than the first call are left alone. Exit 1: something failed.
    """
    run, config = session.find(ctx)
    if dry_run:
        return session.out(_table(_planned(run, _declared(run, config))))
    failed = False
    for outcome in served(run, config):
        failed = failed or outcome.word == "failed"
        if outcome.word != "done":
            session.out(_told(outcome))
    sys.exit(int(failed))


def served(run: Run, config: Config) -> Iterator[Outcome]:
    """Do all that is due; how each step of each checkpoint stands then. Raises OpsError."""
    return serve.serve(run, _declared(run, config), _world(run, config))


def _declared(run: Run, config: Config) -> tuple[Step, ...]:
    """The steps. Raises BadInput, Refused where they, or the rules of a prune, make no sense."""
    if not config.on_save:
        raise BadInput(
            "nothing is declared to be done with a finished checkpoint",
            str(run.dir / "m4ops.toml"),
            'on_save = ["verify", "extract bf16", "prune"]',
        )
    steps = declared.steps(config.on_save)
    if any(s.kind == "push" for s in steps) and not config.store:
        raise BadInput("on_save says push, and no store is named", hint='store = "s3://BUCKET/PREFIX" in m4ops.toml')
    if any(s.kind == "prune" for s in steps):
        from ops.interventions import retention

        retention.policy(config.keep)
    return steps


def _planned(run: Run, steps: tuple[Step, ...]) -> list[Outcome]:
    found = layouts.read(run)
    if isinstance(found, Unknown):
        raise OpsError(f"the checkpoints are UNKNOWN: {found.reason}", str(run.dir))
    mine = serve.looked_after(run, steps, found)
    now = time.time()
    return [serve.stands(run, s, c, now) for c in mine for s in steps if s.kind != "prune" or c is mine[0]]


# -- the steps -------------------------------------------------------------------------------------------


def _world(run: Run, config: Config) -> World:
    shell = slurm.on(run.cluster, recent.forgetting(session.scheduler()))

    @cache
    def queue() -> tuple[Job, ...] | Unknown:
        return slurm.queue(shell, ended=True)

    def follow(step: Step, checkpoint: Checkpoint, record: Record) -> evaluations.Fate:
        return evaluations.fate(run, step, checkpoint, record, queue(), shell)

    do: dict[str, serve.Do] = {
        "verify": partial(_verify, run),
        "extract": _extract,
        "push": partial(_push, run, config),
        "evals": partial(_evaluate, run),
        "prune": partial(_prune, run, config.keep),
    }
    return World(do, follow, time.time)


def _verify(run: Run, step: Step, checkpoint: Checkpoint, alive: Callable[[], None]) -> str:
    """Raises Refused for a damaged checkpoint: nothing is made of it."""
    from ops.cli import checkpoint as command

    faults = [f for found in command.looked_at(run, [checkpoint])[1].values() for f in found]
    if step.how == "deep":
        faults += [f for f in command.read_all(run, [checkpoint], alive)[checkpoint.path] if f not in faults]
    if sure := [f for f in faults if f.sure]:
        more = f" (and {len(sure) - 1} more)" if sure[1:] else ""
        raise Refused(f"damaged: {sure[0].file or 'the checkpoint'}: {sure[0].what}{more}", str(checkpoint.path))
    return f"suspect: {faults[0].what}" if faults else "sound"


def _extract(step: Step, checkpoint: Checkpoint, alive: Callable[[], None]) -> str:
    target = checkpoint.path / "unwrapped_model"
    work = heavy.planned(checkpoint.path, target, heavy.DTYPES[step.how])
    done = effect.extract(work, lambda _: alive())
    return f"{words.size(done.size)} in {words.duration(done.seconds)}"


def _push(run: Run, config: Config, _: Step, checkpoint: Checkpoint, alive: Callable[[], None]) -> str:
    from ops import store

    pushed = store.push(run, checkpoint, config.store, endpoint=config.store_endpoint, told=lambda done, total: alive())
    return f"{words.size(pushed.sent)} of {words.size(pushed.size)} sent to {pushed.url}"


def _evaluate(run: Run, step: Step, checkpoint: Checkpoint, alive: Callable[[], None]) -> str:
    tries = ledger.load(run, step)[ledger.key(checkpoint)].tries
    return evaluations.submit(run, step, checkpoint, tries, session.submitter())


def _prune(run: Run, rules: tuple[str, ...], _: Step, __: Checkpoint, alive: Callable[[], None]) -> str:
    from ops.cli import prune

    return prune.unattended(run, rules, alive)


# -- what is said ----------------------------------------------------------------------------------------


def _told(outcome: Outcome) -> str:
    verb = {"did": "submitted" if outcome.step.kind == "evals" else "done", "due": "is due"}.get(
        outcome.word, outcome.word
    )
    again = ""
    if outcome.word == "failed":
        wait = (outcome.again or 0.0) - time.time()
        again = "; not tried again by itself" if outcome.again is None else f"; again in {words.duration(wait)}"
    said = f": {outcome.said}" if outcome.said else ""
    return f"{outcome.checkpoint.path.name} {outcome.step.name} {verb}{said}{again}"


def _table(outcomes: list[Outcome]) -> str:
    if not outcomes:
        return "no finished checkpoint"
    rows = [("CHECKPOINT", "STEP", "STANDS", "")]
    for one in outcomes:
        word = {"done": "done", "due": "WOULD BE DONE"}.get(one.word, one.word)
        rows.append((one.checkpoint.path.name, one.step.name, word, words.clean(one.said)))
    return "\n".join(words.table(rows))
