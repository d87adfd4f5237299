"""Submit a run's job, once: the script, sbatch's flags, what the job gets of the environment, what it waits for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import PurePosixPath

from msgspec import Struct, to_builtins

from ops import secrecy
from ops.actions import Submit as Submission
from ops.errors import BadInput, Refused
from ops.hostlist import compress, expand, natural
from ops.interventions import parking, sbatch_flags
from ops.interventions.sbatch_flags import Flag
from ops.model import OPS_DIR, Job, Run, Snapshot
from ops.plan import Plan

AFTER = ("run", "singleton", "none")
SHORT = 2.0
"""A time limit shorter than so many times the warning before it gets its warning later: at two thirds of it."""
PARAMETERS = ("TRAIN_CMD", "SRUN_ARGS", "M4OPS_AT_LIMIT", "M4OPS_MAX_REQUEUES")
"""Parameters of the templates: with the plan travels what they are when it is made."""
_NOT_HERE = {
    "wrap": "the script is --template FILE",
    "wait": "m4ops submit does not wait; m4ops status tells how it goes",
    "test-only": "m4ops submit -n shows what would be submitted",
    "version": "sbatch --version", "help": "man sbatch", "usage": "man sbatch",
}  # fmt: skip


class Submit(Struct, frozen=True):
    """What was asked for. `after`: wait for the run's jobs that are there (`run`), for jobs of the name, or for none."""

    template: str = "train"
    array: str = ""
    again: bool = False
    after: str = ""
    """Empty: `run`."""
    flags: tuple[str, ...] = ()


class Launch(Struct, frozen=True):
    """What was found where it was asked for: script, environment, folder, repository."""

    tag: str
    script: str
    """The template's text."""
    folder: str
    """Where the job starts; default: where the command was given."""
    environment: Mapping[str, str]
    config: str = ""
    repo: str = ""
    commit: str = ""
    cluster: str = ""
    template: str = ""
    """The template's path."""
    excluded: tuple[str, ...] = ()
    """The nodes that `m4ops exclude` keeps the run away from."""
    lacking: tuple[str, ...] = ()
    """Secrets that the submission to be repeated had, and that are not set now."""

    def __repr__(self) -> str:
        """Without the environment, where secrets live."""
        return f"Launch(tag={self.tag!r}, folder={self.folder!r}, template={self.template!r})"


def plan(asked: Submit, launch: Launch, snapshot: Snapshot, command: str) -> Plan:
    """The plan of a submission. Raises Refused, BadInput."""
    own = _flags(asked)
    queued = _queued(asked, snapshot)
    _complete(launch, snapshot)
    action = _action(asked, launch, snapshot, (own, queued))
    _silent(action, launch)
    return Plan(
        run=str(snapshot.run.dir),
        title=f"submit {snapshot.run.name}" + (f" as array {asked.array}" if asked.array else ""),
        actions=(action,),
        command=command,
        wish={"kind": "submit", **to_builtins(asked)},
        notes=_notes(action, launch, snapshot),
        created=snapshot.now,
        user=snapshot.user,
    )


def _flags(asked: Submit) -> tuple[Flag, ...]:
    flags = sbatch_flags.parse(asked.flags)
    for flag in flags:
        if flag.name in _NOT_HERE:
            raise BadInput(f"{flag.words[0]} cannot be passed on", hint=_NOT_HERE[flag.name])
    names = {flag.name for flag in flags}
    if asked.array and "array" in names:
        raise BadInput("--array is given twice", hint="before the -- or after it")
    if asked.after and "dependency" in names:
        raise BadInput("--after and --dependency exclude one another", hint="give one of them")
    return flags


def _queued(asked: Submit, snapshot: Snapshot) -> tuple[Job, ...]:
    """The run's jobs there are. Raises Refused unless one more is asked for."""
    jobs = tuple(j for j in parking.queue(snapshot) if j.pending or j.running)
    if jobs and not asked.again:
        states = "; ".join(f"{j.id} is {'held' if j.held else j.state}" for j in jobs[:4])
        held = all(j.held for j in jobs)
        raise Refused(
            f"the run is in the queue already: {states}",
            snapshot.run.name,
            ("m4ops release lets it go; " if held else "") + "--again submits one more, to start after these",
        )
    return jobs


def _complete(launch: Launch, snapshot: Snapshot) -> None:
    """A template that lacks its command would end every task of the chain at its start."""
    if re.search(r"\bTRAIN_CMD\b", launch.script) and not launch.environment.get("TRAIN_CMD"):
        raise Refused(
            "TRAIN_CMD is not set: the template does not know what to run",
            launch.template,
            "export TRAIN_CMD='python -m … --config …'; or --same: as last time; or your own script: --template FILE",
        )
    if re.search(r"[,\s]", str(snapshot.run.dir)):
        raise Refused("a SAVE_DIR with blanks or commas cannot be handed on by Slurm", str(snapshot.run.dir))


def _action(
    asked: Submit, launch: Launch, snapshot: Snapshot, given: tuple[tuple[Flag, ...], tuple[Job, ...]]
) -> Submission:
    flags, queued = given
    run, env = snapshot.run, launch.environment
    folder = f"{run.dir}/{OPS_DIR}/submitted/{launch.tag}"
    variables = {
        "M4OPS_SAVE_DIR": str(run.dir),
        "M4OPS_SUBMISSION": launch.tag,
        **({"M4OPS_SAVE_SWITCH": str(run.save_switch)} if run.save_switch else {}),
        **({"M4OPS_REPO": launch.repo} if launch.repo else {}),
        **{name: env[name] for name in PARAMETERS if env.get(name)},
    }
    exported = _export(flags, env, tuple(variables))
    secret = secrecy.parted(env, secrecy.declared(env))[1] if "ALL" in exported.split(",") else ()
    more = _ours(asked, launch, snapshot, (flags, queued))
    merged = ("comment", "export", "parsable", *(("exclude",) if launch.excluded else ()))
    passed = [w for f in flags if f.name not in merged for w in f.words]
    return Submission(
        argv=(
            "sbatch", "--parsable", *more, f"--export={exported}", *passed, f"{folder}/script.slurm",
        ),
        script=launch.script,
        tag=launch.tag,
        folder=folder,
        variables=tuple(variables.items()),
        needs=tuple(name for name in secret if _trainers(name)),
        logs=_logs(launch, run, (*sbatch_flags.in_script(launch.script), *sbatch_flags.in_environment(env), *flags)),
        beside=tuple(dict.fromkeys(j.array_id for j in queued)),
        config=launch.config,
        about=_about(asked, launch),
    )  # fmt: skip


def _about(asked: Submit, launch: Launch) -> tuple[tuple[str, str], ...]:
    """What `--same` and a person want to know later."""
    told = {
        "template": launch.template, "repo": launch.repo, "commit": launch.commit, "folder": launch.folder,
        "array": asked.array, "flags": shlex.join(asked.flags),
    }  # fmt: skip
    return tuple((name, value) for name, value in told.items() if value)


def _trainers(name: str) -> bool:
    """A key or token, which a trainer logs in with; not what a login shell happens to carry."""
    return bool(re.search(r"KEY|TOKEN|SECRET|PASSW", name, re.IGNORECASE))


def _ours(
    asked: Submit, launch: Launch, snapshot: Snapshot, given: tuple[tuple[Flag, ...], tuple[Job, ...]]
) -> list[str]:
    """What m4ops adds: only where neither flag, nor SBATCH_* variable, nor the script says it."""
    flags, queued = given
    run = snapshot.run
    script = sbatch_flags.in_script(launch.script)
    said = (*script, *sbatch_flags.in_environment(launch.environment), *flags)
    names = {flag.name for flag in said}
    comment = " ".join([f.value for f in flags if f.name == "comment"][-1:])
    array = bool(asked.array) or "array" in names
    words = [f"--comment={f'm4ops:{run.dir} m4ops-submission:{launch.tag} {comment}'.rstrip()}"]
    words += [f"--clusters={launch.cluster}"] if launch.cluster and "clusters" not in names else []
    words += [] if "job-name" in names else [f"--job-name={run.name}"]
    words += [f"--array={asked.array}"] if asked.array else []
    words += [] if "chdir" in names else [f"--chdir={launch.folder}"]
    words += [] if "output" in names else [f"--output={run.dir}/logs/%x{'_%A_%a' if array else '-%j'}.out"]
    return [*words, *_excluded(launch, said), *_warning(script, said), *_dependency(asked, flags, queued)]


def _excluded(launch: Launch, said: tuple[Flag, ...]) -> list[str]:
    """The nodes the run is kept away from, and those excluded just now: of two --exclude sbatch takes the last alone."""
    given = [f.value for f in said if f.name == "exclude"][-1:]
    if not launch.excluded:
        return []
    if given and "/" in given[0]:
        raise BadInput(
            f"--exclude={given[0]}: a file of nodes cannot be joined with those of m4ops exclude", hint="name the nodes"
        )
    names = {*launch.excluded, *(name for text in given for name in expand(text))}
    return [f"--exclude={compress(sorted(names, key=natural))}"]


def _logs(launch: Launch, run: Run, said: tuple[Flag, ...]) -> tuple[str, ...]:
    """Where output and errors go, up to the first folder whose name only Slurm can tell."""
    last = {flag.name: flag.value for flag in said}
    base = PurePosixPath(launch.folder) / last.get("chdir", "")
    files = [str(base / last[name]) for name in ("output", "error") if name in last]
    found = [str(PurePosixPath(file.partition("%")[0] + "x").parent) for file in files or [f"{run.dir}/logs/x"]]
    return tuple(dict.fromkeys((f"{run.dir}/logs", *found)))


def _dependency(asked: Submit, flags: tuple[Flag, ...], queued: tuple[Job, ...]) -> list[str]:
    if any(f.name == "dependency" for f in flags) or asked.after == "none":
        return []
    if asked.after == "singleton":
        return ["--dependency=singleton"]
    arrays = ":".join(dict.fromkeys(j.array_id for j in queued))
    return [f"--dependency=afterany:{arrays}"] if arrays else []


def _warning(script: tuple[Flag, ...], said: tuple[Flag, ...]) -> list[str]:
    """A job shorter than twice its script's warning would be told to end as soon as it starts."""
    limit = sbatch_flags.seconds(next((f.value for f in reversed(said) if f.name == "time"), ""))
    last = [f for f in said if f.name == "signal"][-1:]
    found = re.fullmatch(r"(B:USR1)@(\d+)", last[0].value) if last and last[0] in script else None
    if not limit or not found or limit >= SHORT * int(found[2]):
        return []
    return [f"--signal={found[1]}@{max(1, limit // 3)}"]


def _export(flags: tuple[Flag, ...], env: Mapping[str, str], ours: tuple[str, ...]) -> str:
    """`--export`: all of the real environment, unless a choice was made; then our own variables besides.

    The values travel with the environment and never in the arguments, which everybody can read.
    """
    said = [f.value for f in (*sbatch_flags.in_environment(env), *flags) if f.name == "export"][-1:]
    if not said:
        return "ALL"
    names = [word for word in said[0].split(",") if word]
    if any(word.upper() in ("NONE", "NIL") for word in names):
        raise BadInput(
            f"--export={said[0]} would keep SAVE_DIR from the job", hint="name what it may see: --export=A,B"
        )
    if "ALL" in names:
        return ",".join(names)
    return ",".join([*names, *(name for name in ours if name not in names)])


def _silent(action: Submission, launch: Launch) -> None:
    """No secret in what everybody can read: arguments, script, TRAIN_CMD. Raises Refused, naming the variable alone."""
    texts = {
        "the flags": " ".join(action.argv),
        **dict(action.variables),
        "the script": action.script,
    }
    for where, text in texts.items():
        name = secrecy.spilled(text, launch.environment, secrecy.declared(launch.environment))
        if name:
            raise Refused(
                f"the value of {name} stands in {where}: everybody could read it there",
                launch.template if where == "the script" else where,
                f'export {name} instead: it reaches every task by itself, and "${name}" names it',
            )


def _notes(action: Submission, launch: Launch, snapshot: Snapshot) -> tuple[str, ...]:
    notes = [f"{name}={shlex.quote(value)}" for name, value in action.variables if name in PARAMETERS]
    if action.needs:
        notes.append(f"reach every task with your environment, and are written nowhere: {', '.join(action.needs)}")
    if chosen := [w for w in action.argv if w.startswith("--export=") and "ALL" not in w.partition("=")[2].split(",")]:
        notes.append(
            f"{chosen[0]}: nothing else of your environment reaches the tasks but what a login shell there sets"
        )
    if launch.lacking:
        notes.append(f"were set last time and are not now: {', '.join(launch.lacking)}")
    waits = [w.partition(":")[2] for w in action.argv if w.startswith("--dependency=after")]
    if waits:
        notes.append(f"starts when the run's earlier jobs have ended: {', '.join(waits[0].split(':'))}")
    if any(w.startswith("--signal=") and w not in launch.script for w in action.argv):
        notes.append("the time limit is short: the warning before it comes at two thirds of it")
    if "M4OPS_SAVE_SWITCH" in launch.script and snapshot.run.save_switch is None:
        notes.append("no save switch is known: before the time limit the trainer gets SIGTERM, on which it must save")
    if snapshot.kill_switch_set is True:
        notes.append(f"the kill switch is set ({snapshot.run.kill_switch}): every task will exit at once")
    if action.beside and not any(w.startswith("--dependency") for w in action.argv):
        notes.append("two jobs of one run may run at a time, and write the same checkpoints")
    return tuple(notes)
