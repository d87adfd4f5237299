"""submit and diff: what starts a run, and what was different between two starts."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import time
from pathlib import Path

import click
from msgspec.structs import replace

from ops import discovery, nodes, shell, submitted
from ops.cli import carry, session
from ops.cli.session import json_option
from ops.errors import BadInput, OpsError, Refused
from ops.interventions import submit as wish
from ops.model import Run
from ops.resources import resource
from ops.submitted import Submission

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
@click.option(
    "--same",
    is_flag=True,
    help="As last time: the script, --array, flags, folder and TRAIN_CMD that are not given now.",
)
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
    same: bool,
    again: bool,
    flags: tuple[str, ...],
) -> None:
    """Submit the run's job, once; what is submitted is kept.

    What stands after -- goes to sbatch as it is, and SBATCH_* variables count. The training command comes in the
    exported variable TRAIN_CMD; the whole environment reaches every task, secrets too, and their values are written
    nowhere (M4OPS_SECRETS=NAME,MY_* names more of them). The script, its flags, the environment without secrets, the
    config and the commit stay in SAVE_DIR/.m4ops/submitted/. -n also prints the script.
    """
    run = session.new_or_found(ctx)
    last = _last(run) if same else None
    if last is not None and not flags:
        flags = tuple(shlex.split(str(last.record.get("flags", ""))))
    launch = _launch(run, template, last)
    run = _with_save_switch(run, launch.config)
    asked = wish.Submit(launch.template, array or _said(last, "array"), again, after or "", flags)
    made = wish.plan(asked, launch, session.look(run), session.typed())
    carry.decide(ctx, run, made, (dry_run, yes, out))
    if dry_run and out is None:
        session.out(f"\n{launch.script}")


def _with_save_switch(run: Run, config: str) -> Run:
    """The first job's switch stands in the config it will read: there is no `{job_id}_config.yaml` yet."""
    if run.save_switch or not config:
        return run
    text = Path(config).read_text(encoding="utf-8", errors="replace")
    return replace(run, save_switch=discovery.switches(text).get("save_switch_path"))


def _last(run: Run) -> Submission:
    """The run's last submission. Raises Refused."""
    found = submitted.everything(run.dir)
    if not found:
        raise Refused("the run was never submitted by m4ops submit", run.name, "m4ops submit --help")
    return found[-1]


def _said(last: Submission | None, key: str) -> str:
    return str(last.record.get(key, "")) if last else ""


def _launch(run: Run, template: str, last: Submission | None) -> wish.Launch:
    env = dict(os.environ)
    if last is not None:
        env = {k: v for k, v in last.record.get("variables", {}).items() if k in wish.PARAMETERS} | env
    path = _template(template, run, last)
    try:
        script = path.read_bytes().decode("utf-8", "surrogateescape")
    except OSError as error:
        known = ", ".join(sorted(p.stem for p in resource("slurm_templates").glob("*.slurm")))
        raise BadInput(f"the template cannot be read: {error.strerror}", str(path), f"there are: {known}") from None
    repo, commit = _repository(env)
    return wish.Launch(
        tag=f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(3)}",
        script=script,
        folder=_said(last, "folder") or str(Path.cwd()),
        environment=shell.submission({}, env),
        config=_config(env, run),
        repo=repo,
        commit=commit,
        cluster=run.cluster,
        template=str(path.absolute()),
        excluded=nodes.excluded(run.dir),
        lacking=tuple(n for n in (last.withheld if last else ()) if n not in env),
    )


def _template(said: str, run: Run, last: Submission | None) -> Path:
    """A file, or one of m4ops's own by its name; without a word the last one's script, else `train`."""
    if not said and last is not None:
        return submitted.place(run.dir, last.tag) / submitted.SCRIPT
    own = resource("slurm_templates", f"{said or 'train'}.slurm")
    return own if own.is_file() else Path(said)


def _config(env: dict[str, str], run: Run) -> str:
    """The file the training will read: as m4ops.toml names it, else after `--config` in TRAIN_CMD."""
    found = re.search(r"--config[= ]['\"]?([^\s'\"]+)", env.get("TRAIN_CMD", ""))
    path = run.trainer_config or (Path(found[1]) if found else None)
    return str(path.absolute()) if path and path.is_file() else ""


def _repository(env: dict[str, str]) -> tuple[str, str]:
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
    """What changed between two starts: environment, config, commit, nodes, packages and more.

    JOB is 1234, 1234_3 (a task), or 1234_3:1 (its first restart); without a number its newest start. Of several jobs to
    which Slurm gave that id it is the last; a name in .m4ops/submitted/ means just that one. Says UNKNOWN, with the
    reason, of what was not kept.
    """
    from ops.views import differences

    run, _ = session.find(ctx)
    before, after = submitted.ran(run.dir, first), submitted.ran(run.dir, second)
    if as_json:
        from ops.views import data

        return session.out(data.dumps(differences.differences_json(before, after)))
    session.out(differences.differences_text(before, after, session.color()))
