"""`--on slurm` and `--on local` of the heavy commands: the same command for each checkpoint, somewhere else."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource
from msgspec import Struct

from ops.cli import session
from ops.config import Config
from ops.errors import BadInput, Refused
from ops.model import Run

if TYPE_CHECKING:
    from ops.work import Result, Task

PARALLELISM = "array-parallelism"


class Where(Struct, frozen=True):
    """Where the work is to be done, and with which of sbatch's options."""

    on: str
    flags: Mapping[str, str]
    parallel: int | None
    wait: bool

    @property
    def elsewhere(self) -> bool:
        return bool(self.on)


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command that can work elsewhere; it gets them as `where`."""

    @functools.wraps(command)
    def called(*args: Any, **kwargs: Any) -> Any:
        on, partition, time, parallel, wait = (
            kwargs.pop(name) for name in ("on", "partition", "time", "array_parallelism", "wait")
        )
        given = {name: value for name, value in (("partition", partition), ("time", time)) if value}
        if not on and (given or parallel or not wait):
            raise BadInput("--partition, --time, --array-parallelism and --no-wait go with --on", hint="--on slurm")
        return command(*args, where=Where(on or "", given, parallel, wait), **kwargs)

    wrapped: Callable[..., Any] = called
    for option in (
        click.option("--wait/--no-wait", default=True, help="With --on slurm: wait for the results, or not."),
        click.option(
            "--array-parallelism", type=click.IntRange(1), metavar="N", help="Tasks at once.  [default: 4; local: 2]"
        ),
        click.option("--time", metavar="LIMIT", help="Of each task, as sbatch takes it.  [default: 120]"),
        click.option("--partition", metavar="NAME", help="As sbatch takes it."),
        click.option(
            "--on",
            type=click.Choice(["slurm", "local"]),
            help="Do it as a job array, one task a checkpoint, or in processes here; sbatch's flags follow --.",
        ),
    ):
        wrapped = option(wrapped)
    return wrapped


def parted(words: Sequence[str], where: Where) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments of a command, and sbatch's flags after them. Raises BadInput for flags that nobody is to get."""
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    if words[first:] and where.on != "slurm":
        raise BadInput(f"{words[first]}: sbatch's flags go with --on slurm", hint="m4ops … --on slurm -- --mem=8G")
    return tuple(words[:first]), tuple(words[first:])


def given(ctx: click.Context, but: Iterable[str]) -> list[str]:
    """The options that were typed, to be typed again: all of the command's but these and those of this module."""
    words: list[str] = []
    ours = {*but, "on", "partition", "time", "array_parallelism", "wait"}
    for param in ctx.command.params:
        name = param.name or ""
        typed = ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if isinstance(param, click.Option) and typed and name not in ours:
            value = ctx.params[name]
            words += [param.opts[-1]] if param.is_flag else [param.opts[-1], str(value)]
    return words


def sent(ctx: click.Context, run: Run, config: Config, tasks: Sequence[Task], said: tuple[Where, Sequence[str]]) -> int:
    """Have the tasks done where it was said; show what each printed. Returns the worst exit code."""
    from ops import slurm, work

    where, words = said
    flags, parallel = _settings(config, where, words)
    parallel = parallel or (work.PARALLEL if where.on == "slurm" else work.PROCESSES)
    what = ctx.info_name or "work"
    if ctx.params.get("dry_run"):
        _show(where, tasks, flags, parallel)
        return 0

    def told(done: int) -> None:
        session.say(f"  {done} of {len(tasks)} done")

    if where.on == "local":
        return _tell(work.here(run, what, tasks, answer, parallel, told))
    if os.environ.get("M4OPS_EMBEDDED"):
        raise Refused("the embedded scheduler is no Slurm to submit work to", "M4OPS_EMBEDDED", "m4ops … --on local")
    made = work.to_slurm(run, what, tasks, answer, flags, parallel)
    session.say(f"job {made.job}: {len(tasks)} of m4ops {what}, logs and results in {made.folder}")
    if not where.wait:
        session.out(made.job)
        return 0
    try:
        return _tell(work.wait(made, slurm.on(run.cluster, session.scheduler()), told))
    except KeyboardInterrupt:
        session.say(f"the job goes on without being watched; scancel {made.job} ends it")
        return 1


def answer(argv: Sequence[str]) -> tuple[int, str]:
    """What a task does: answer the command line, within this process, so that a warning signal reaches it.

    Raises OpsError. submitit's own end of a process (exit code -1, after it was requeued) passes through.
    """
    from ops.cli import cli

    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            cli.main(args=list(argv), prog_name="m4ops", standalone_mode=False)
    except click.ClickException as error:
        raise BadInput(error.format_message(), shlex.join(argv)) from None
    except SystemExit as end:
        if end.code == -1:
            raise
        return int(end.code or 0), out.getvalue()
    finally:
        print(out.getvalue(), end="", flush=True)
    return 0, out.getvalue()


def _settings(config: Config, where: Where, words: Sequence[str]) -> tuple[dict[str, str], int | None]:
    """sbatch's long options: of m4ops.toml, then of the command line. Raises BadInput."""
    from ops.interventions import sbatch_flags

    flags = dict(config.work) | dict(where.flags)
    for flag in sbatch_flags.parse(words):
        if flag.name in ("array", "comment", "output", "error", "open-mode", "job-name", "wrap"):
            raise BadInput(f"{flag.words[0]} cannot be passed on", hint="m4ops sets it itself")
        flags[flag.name] = flag.value or "True"
    parallel = flags.pop(PARALLELISM, "")
    if parallel and not parallel.isdigit():
        raise BadInput(f"{PARALLELISM} = {parallel}: not a number", "[work] in m4ops.toml")
    return flags, where.parallel or (int(parallel) if parallel else None)


def _show(where: Where, tasks: Sequence[Task], flags: Mapping[str, str], parallel: int) -> None:
    shown = " ".join(f"--{name}" if value == "True" else f"--{name}={value}" for name, value in flags.items())
    given = f": {shown}" if shown and where.on == "slurm" else ""
    session.out(f"{len(tasks)} tasks on {where.on}, at most {parallel} at once{given}")
    for task in tasks:
        session.out(f"  {task.name}: {shlex.join(('m4ops', *task.argv))}")


def _tell(found: Sequence[Result]) -> int:
    for result in found:
        verdict = "done" if result.code == 0 else f"exit code {result.code}"
        session.say(f"{result.task.name}: {verdict}")
        if result.said:
            session.say("  " + result.said.replace("\n", "\n  "))
        if result.out:
            session.out(result.out.rstrip())
    return max((r.code for r in found), default=0)


def end(code: int) -> None:
    """Leave with a task's exit code."""
    if code:
        sys.exit(code)
