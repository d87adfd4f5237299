"""submit and diff: what starts a run, and what was different between two starts."""

from __future__ import annotations

import os
import re
import secrets
import time
from pathlib import Path

import click

from ops import discovery, shell
from ops.cli import carry, session
from ops.cli.session import json_option
from ops.errors import BadInput, OpsError, RunNotFound
from ops.interventions import submit as wish
from ops.model import Run
from ops.resources import resource

GIT_LIMIT = 10.0


@click.command()
@click.option(
    "--template",
    default="train",
    show_default=True,
    metavar="train|FILE",
    help="The job script: m4ops's own, or yours.",
)
@click.option("--array", default="", metavar="SPEC", help="A chain of tasks, as sbatch takes it: 1-20%1.")
@click.option("--again", is_flag=True, help="One more, though the run is in the queue already.")
@click.option(
    "--after",
    type=click.Choice(wish.AFTER),
    default=None,
    help="Start after the run's jobs in the queue (default), after any job of its name, or at any time.",
)
@carry.options
@click.argument("flags", nargs=-1, metavar="[-- SBATCH FLAGS]")
@click.pass_context
def submit(
    ctx: click.Context,
    /,
    dry_run: bool,
    yes: bool,
    out: Path | None,
    after: str | None,
    template: str,
    array: str,
    again: bool,
    flags: tuple[str, ...],
) -> None:
    """Submit the run's job; keeps what it submits.

    What stands after -- goes to sbatch as it is, and SBATCH_* variables count. The training command comes in the
    exported variable TRAIN_CMD; the whole environment reaches every task, secrets too, and their values are written
    nowhere (M4OPS_SECRETS=NAME,MY_* names more of them). The script, its flags, the environment without secrets, the
    config and the commit stay in SAVE_DIR/.m4ops/submitted/. -n also prints the script.
    """
    run = _found(ctx)
    asked = wish.Submit(template, array, again, after or "", flags)
    made = wish.plan(asked, _launch(run, template), session.look(run), session.typed())
    if dry_run and out is None:
        submission = made.actions[0]
        carry.decide(ctx, run, made, (dry_run, yes, out))
        session.out(f"\n{getattr(submission, 'script', '')}")
        return
    carry.decide(ctx, run, made, (dry_run, yes, out))


def _found(ctx: click.Context) -> Run:
    """The run; before its first job any folder that --run names is one."""
    try:
        return session.find(ctx)[0]
    except RunNotFound:
        said = ctx.find_root().obj or os.environ.get("M4OPS_RUN", "")
        if said and Path(said).is_dir():
            return discovery.describe(Path(said).absolute())[0]
        if said and "/" in said:
            raise RunNotFound("the run has no folder yet", said, f"mkdir -p {said}, and submit again") from None
        raise


def _launch(run: Run, template: str) -> wish.Launch:
    path = resource("slurm_templates", f"{template}.slurm") if re.fullmatch(r"\w+", template) else Path(template)
    if not path.is_file() and Path(template).is_file():
        path = Path(template)
    try:
        script = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        known = ", ".join(sorted(p.stem for p in resource("slurm_templates").glob("*.slurm")))
        raise BadInput(f"the template cannot be read: {error.strerror}", str(path), f"there are: {known}") from None
    env = dict(os.environ)
    repo, commit = _repository(env, run)
    return wish.Launch(
        tag=f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}",
        script=script,
        folder=str(Path.cwd()),
        environment=shell.submission({}, env),
        config=_config(env, run),
        repo=repo,
        commit=commit,
        cluster=run.cluster,
        template=str(path.absolute()),
    )


def _config(env: dict[str, str], run: Run) -> str:
    """The file the training will read: as m4ops.toml names it, else after `--config` in TRAIN_CMD."""
    found = re.search(r"--config[= ]['\"]?([^\s'\"]+)", env.get("TRAIN_CMD", ""))
    path = run.trainer_config or (Path(found[1]) if found else None)
    return str(path.absolute()) if path and path.is_file() else ""


def _repository(env: dict[str, str], run: Run) -> tuple[str, str]:
    """The training code's git repository and its commit: M4OPS_REPO, else around the current folder."""
    where = env.get("M4OPS_REPO") or str(Path.cwd())
    top = shell.run(("git", "-C", where, "rev-parse", "--show-toplevel"), GIT_LIMIT)
    head = shell.run(("git", "-C", where, "rev-parse", "--verify", "HEAD"), GIT_LIMIT)
    if top.returncode != 0 or head.returncode != 0:
        if env.get("M4OPS_REPO"):
            raise OpsError(f"M4OPS_REPO is no git repository with a commit: {head.stderr.strip()}", where)
        return "", ""
    return top.stdout.strip(), head.stdout.strip()


@click.command()
@click.argument("first", metavar="JOB1")
@click.argument("second", metavar="JOB2")
@json_option
@click.pass_context
def diff(ctx: click.Context, first: str, second: str, as_json: bool) -> None:
    """What changed between two starts: environment, flags, script, config, commit, nodes, packages.

    JOB is 1234, 1234_3 (a task), or 1234_3:1 (its first restart); without a number its newest start. Says UNKNOWN, with
    the reason, of what was not kept.
    """
    from ops import submitted
    from ops.views import differences

    run, _ = session.find(ctx)
    before, after = submitted.ran(run.dir, first), submitted.ran(run.dir, second)
    if as_json:
        from ops.views import data

        return session.out(data.dumps(differences.differences_json(before, after)))
    session.out(differences.differences_text(before, after, session.color()))
