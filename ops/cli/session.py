"""What every command needs: the run that is meant, the scheduler's shell, a look with its findings, a plan carried out."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from ops import discovery, recent, shell, slurm, snapshot
from ops.config import Config
from ops.errors import BadInput, Refused, RunNotFound
from ops.model import LOOK, OPS_DIR, Finding, LogView, Run, Snapshot
from ops.shell import Answer, Shell, Submitter

if TYPE_CHECKING:
    from ops.alerts.words import Ack
    from ops.state import Memory

Command = TypeVar("Command", bound=Callable[..., Any])


def find(ctx: click.Context) -> tuple[Run, Config]:
    """The run that the command line or the environment means. Raises RunNotFound."""
    return discovery.find(ctx.find_root().obj, Path.cwd())


def new_or_found(ctx: click.Context) -> Run:
    """The run; before its first job any folder that is named is one. Raises RunNotFound."""
    try:
        return find(ctx)[0]
    except RunNotFound:
        said = ctx.find_root().obj or os.environ.get("M4OPS_RUN", "")
        if said and Path(said).is_dir():
            return discovery.describe(Path(said).absolute())[0]
        if "/" in said:
            raise RunNotFound("the run has no folder yet", said, f"mkdir -p {shlex.quote(said)}, then again") from None
        raise


def scheduler() -> Shell:
    """Slurm's commands; with M4OPS_EMBEDDED set, the embedded scheduler's in that folder."""
    root = os.environ.get("M4OPS_EMBEDDED")
    return embedded(Path(root)) if root else shell.run


def submitter() -> Submitter:
    """sbatch, with the environment that the job is to get."""
    root = os.environ.get("M4OPS_EMBEDDED")
    send: Submitter = embedded(Path(root)) if root else shell.run

    def submit(argv: Sequence[str], timeout: float, env: Mapping[str, str]) -> Answer:
        answer = send(argv, timeout, env)
        recent.forget()  # the next look shows the job
        return answer

    return submit


class Embedded(Protocol):
    """What answers in Slurm's place; with an environment, a submission."""

    def __call__(self, argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, /) -> Answer: ...


def embedded(root: Path) -> Embedded:
    """A shell in which the embedded scheduler answers Slurm's commands, without a new process."""

    def ask(argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, /) -> Answer:
        from ops.demo import scheduler as demo

        return Answer(*demo.answer(list(argv), root, shell.environment() if env is None else env, Path.cwd()))

    return ask


def lately() -> Shell:
    """The same for commands that only look: the queue may be a few seconds old (`ops.recent`)."""
    return recent.kept(scheduler())


def look(run: Run, log: int | None = LOOK, recent: bool = False) -> Snapshot:
    """One picture of the run, now, with so many bytes of its log's end. `recent`: its queue may be a few seconds old."""
    shell = slurm.on(run.cluster, lately() if recent else scheduler())
    return snapshot.read(run, shell, time.time(), log)


def mine(run: Run) -> bool:
    """Does the run's folder belong to this user?"""
    try:
        return run.dir.stat().st_uid == os.geteuid()
    except OSError:
        return False


def anothers(run: Run) -> bool:
    """Does it certainly belong to another user?"""
    try:
        return run.dir.stat().st_uid != os.geteuid()
    except OSError:
        return False


def beside(seen: Snapshot, memory: Memory) -> tuple[Finding, ...]:
    """What is wrong with what m4ops does by itself for a run: who checks it, its alerts, what follows a save."""
    from ops import watch

    found = (*_unwatched(seen.run, seen.now), *watch.unheard(seen.run))
    if memory.sinks:
        from ops.alerts import notify

        found += notify.troubles(memory)
    if seen.run.on_save:
        from ops.saves import findings as after_saves

        found = (*found, *after_saves.look(seen.run, seen.checkpoints, seen.now))
    return found


def _unwatched(run: Run, now: float) -> tuple[Finding, ...]:
    """What is wrong with who checks the run: its chain of jobs, that of all runs, or cron, where they did."""
    from ops import state, watch

    found: tuple[Finding, ...] = ()
    for what in (run, state.everything()):
        if os.path.isdir(what.dir / OPS_DIR / "cron"):
            from ops import chain

            found += chain.look(what, now)
    return found or watch.silent(run, now)


def taken(findings: Sequence[Finding], memory: Memory, acks: Sequence[Ack], now: float) -> Mapping[str, Ack]:
    """Who has taken which of the findings, by their key."""
    from ops.alerts.words import acked

    since = {episode.key: episode.since for episode in memory.episodes}
    found = ((f.key, acked(f, since.get(f.key, now), acks, now)) for f in findings) if acks else ()
    return {key: ack for key, ack in found if ack}


def wandb_id(seen: Snapshot) -> str:
    """The id of the wandb run that is trained: as the log says, else the newest checkpoint; empty when unknown."""
    said = [e.value for e in seen.log.events if e.kind == "wandb-id"] if isinstance(seen.log, LogView) else []
    kept = [c.wandb_id for c in seen.checkpoints or () if isinstance(c.wandb_id, str)]
    return next(iter([*said[-1:], *kept[-1:]]), "")


def out(text: str) -> None:
    """Data, on stdout."""
    click.echo(text, color=color())


def say(text: str) -> None:
    """Words for people, on stderr."""
    click.echo(text, err=True)


def color() -> bool:
    """Whether stdout takes colours: a terminal or FORCE_COLOR (force-color.org), and no NO_COLOR (no-color.org)."""
    return not os.environ.get("NO_COLOR") and (sys.stdout.isatty() or bool(os.environ.get("FORCE_COLOR")))


def width() -> int:
    """Columns of the terminal, or as COLUMNS has it, within reason."""
    said = os.environ.get("COLUMNS", "")
    columns = int(said) if said.isdecimal() else 0
    with suppress(OSError):  # no terminal
        columns = columns or os.get_terminal_size(1).columns
    return max(60, min(140, columns or 100))


def typed() -> str:
    """The command as it was typed, for the journal."""
    return shlex.join(["m4ops", *sys.argv[1:]])


def me(ctx: click.Context) -> str:
    """How to call m4ops for this run again."""
    said = ctx.find_root().obj
    return f"m4ops --run {shlex.quote(said)}" if said else "m4ops"


def confirm(yes: bool) -> None:
    """Ask before a change, on the terminal. Raises Refused where nobody can answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused("nobody is there to say yes", hint="add -y to apply without asking, -n to see the plan only")
    click.confirm("Apply?", abort=True, err=True)


def json_option(command: Command) -> Command:
    """`--json` of every Look command."""
    return click.option("--json", "as_json", is_flag=True, help="The same as JSON (one versioned schema).")(command)


def number(text: str, name: str) -> float:
    """A number of the command line. Raises BadInput."""
    try:
        return float(text)
    except ValueError:
        command = click.get_current_context().command_path
        raise BadInput(f"{name} {text}: not a number", hint=f"write it as 0.5 or 1e-5; {command} --help") from None
