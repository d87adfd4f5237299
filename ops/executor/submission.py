"""Handing a job to Slurm, once: what is submitted is kept in the run, and a submission nobody answered is looked for.

A timed-out sbatch may have succeeded (its message waits in the socket of a controller that is stopped or overloaded:
seen with Slurm 22.05), so what counts is whether a job carries the tag.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from ops import actions as act
from ops import lease, secrecy, shell, slurm, submitted
from ops.catalogue.reasons import reason_of
from ops.errors import Drift, OpsError, Refused, Unfinished, Unreachable
from ops.executor.files import sync_folder
from ops.executor.world import World, order
from ops.model import Job, Unknown

LOOK_LIMIT = 45.0
"""Seconds for which a submission that nobody answered is looked for."""
PAUSE = 3.0
"""Seconds between two looks: a controller that wakes up may answer a question before it takes what came earlier."""
_SHOWS = {
    "Invalid partition": "sinfo -s",
    "Invalid account": "sacctmgr show assoc user=$USER format=account,partition,qos",
    "Invalid qos": "sacctmgr show assoc user=$USER format=account,partition,qos",
    "Invalid job array": "scontrol show config (MaxArraySize)",
    "Invalid feature": "sinfo -o '%N %f'",
    "Invalid node name": "sinfo -N",
    "reservation is invalid": "scontrol show reservation",
    "permitted to use this partition": "scontrol show partition",
}
_UNHEARD = re.compile(
    r"timed out|did not answer|Zero Bytes|Unexpected message|Connection reset|Broken pipe|Communication", re.IGNORECASE
)


def tell(action: act.Order, world: World) -> None:
    """Carry out what the scheduler is told. Raises OpsError with Slurm's own words."""
    if isinstance(action, act.Schedule):
        order(action, world)
    elif action.withdrawn:
        _withdraw(action, world)
    else:
        _submit(action, world)


def _submit(action: act.Submit, world: World) -> None:
    """Raises Drift or OpsError (no job was made), Unfinished (that is not known)."""
    if lacking := [name for name in action.needs if name not in os.environ]:
        raise Refused(
            f"{', '.join(lacking)} was set when this was planned and is not now", "the environment", "export it first"
        )
    if (found := _alone(action, world)) is None:
        env = shell.submission(dict(action.variables))
        _keep(action, env, world)
        found = _asked(action, env, world)
    _noted(action, job=found.array_id, submitted=world.now())
    world.said(f"job {found.array_id} is submitted")


def _alone(action: act.Submit, world: World) -> Job | None:
    """The job this made earlier, if it did; and no other job of the run than the plan knew of."""
    jobs = world.jobs()
    if isinstance(jobs, Unknown):
        raise Unreachable(f"nothing was submitted: the queue is UNKNOWN ({jobs.reason})", action.folder, "squeue --me")
    earlier = next((j for j in jobs if submitted.tag(j.comment) == action.tag), None)
    strangers = [j.id for j in jobs if j is not earlier and j.array_id not in action.beside]
    if strangers and earlier is None:
        raise Drift(
            f"job {strangers[0]} of this run came into the queue meanwhile; nothing was submitted",
            action.folder,
            "m4ops status; to submit one more: m4ops submit --again",
        )
    if earlier is not None or not Path(action.folder).is_dir():
        return earlier
    seen = _looked(action, world)  # submitted before, and perhaps over already
    if isinstance(seen, Unknown):
        raise Unfinished(f"whether the job was submitted is UNKNOWN: {seen.reason}", action.folder, "try again")
    return seen


def _asked(action: act.Submit, env: dict[str, str], world: World) -> Job:
    answer = world.submitter(action.argv, slurm.TIMEOUT, env)
    if answer.returncode == 0 and (found := re.search(r"^(\d+)(?:;\S+)?\s*$", answer.stdout, re.MULTILINE)):
        return Job(found[1], found[1], "", found[1], "PENDING", "", "", world.user)
    said = " ".join((answer.stderr or answer.stdout).split()) or f"exit code {answer.returncode}"
    if answer.returncode not in (0, 124) and not (_UNHEARD.search(said) and "connect failure" not in said):
        _forget(action)
        kind = Unreachable if "Unable to contact" in said else OpsError
        raise kind(f"sbatch refused, and no job was made: {said}", action.folder, _way_on(said))
    world.said(f"sbatch gave no answer ({said}): looking for a job with the tag {action.tag}")
    seen = _found_after_all(action, world)
    if isinstance(seen, Unknown):
        raise Unfinished(
            f"whether the job was submitted is UNKNOWN: {said}; then {seen.reason}",
            action.folder,
            "m4ops apply looks for it first, and submits only if it is not there",
        )
    if seen is None:
        _forget(action)
        raise OpsError(f"sbatch gave no answer, and no job was made: {said}", action.folder, "squeue --me")
    return seen


def _way_on(said: str) -> str:
    """What to do after Slurm refused a job with these words."""
    look = next((f"{command} shows what there is" for words, command in _SHOWS.items() if words in said), "")
    limit = next((reason.meaning for word in said.split() if (reason := reason_of(word))), "")
    return look or limit or "mend that"


def _found_after_all(action: act.Submit, world: World) -> Job | Unknown | None:
    """The job with the tag; None after two answers without it, Unknown when Slurm says nothing within the limit."""
    end, answers = world.now() + LOOK_LIMIT, 0
    while True:
        seen = _looked(action, world)
        if isinstance(seen, Job):
            return seen
        answers += seen is None
        if answers == 2 or (world.now() > end and seen is not None):
            return seen
        world.renew()
        world.sleep(PAUSE)


def _looked(action: act.Submit, world: World) -> Job | Unknown | None:
    jobs = slurm.queue(world.shell, ended=True)
    if isinstance(jobs, Unknown):
        return jobs
    return next((j for j in jobs if submitted.tag(j.comment) == action.tag), None)


def _withdraw(action: act.Submit, world: World) -> None:
    jobs = slurm.queue(world.shell)
    if isinstance(jobs, Unknown):
        raise Unreachable(f"nothing was cancelled: the queue is UNKNOWN ({jobs.reason})", action.folder, "squeue --me")
    arrays = dict.fromkeys(j.array_id for j in jobs if submitted.tag(j.comment) == action.tag)
    for array in arrays:
        slurm.order(world.shell, "cancel", array)
    if not arrays:
        world.said(f"no job submitted as {action.tag} is in the queue: there is nothing to cancel")
    _noted(action, withdrawn=world.now())


def _keep(action: act.Submit, env: dict[str, str], world: World) -> None:
    """What is submitted, into the run: the script, what it was given, and the environment without its secrets."""
    folder = Path(action.folder)
    plain, withheld = secrecy.parted(env, secrecy.declared(env))
    config = Path(action.config) if action.config else None
    record = {
        "schema": submitted.SCHEMA,
        "tag": action.tag,
        "planned": world.now(),
        "user": world.user,
        "host": socket.gethostname(),
        "argv": action.argv,
        "variables": dict(action.variables),
        "script_sha256": hashlib.sha256(action.script.encode("utf-8", "surrogateescape")).hexdigest(),
        **dict(action.about),
    }
    try:
        for logs in action.logs:
            if not Path(logs).is_relative_to(folder.parents[2]) and not Path(logs).is_dir():
                raise Refused(
                    "the folder of the job's output does not exist; nothing was submitted", logs, f"mkdir {logs}"
                )
            lease.make_folder(Path(logs))
        lease.make_folder(folder)
        if config is not None:
            shutil.copyfile(config, folder / f"config{config.suffix}")
            record |= {"config": str(config), "config_sha256": hashlib.sha256(config.read_bytes()).hexdigest()}
        (folder / submitted.SCRIPT).write_bytes(action.script.encode("utf-8", "surrogateescape"))
        _write(folder / submitted.ENVIRONMENT, {"values": plain, "withheld": withheld})
        _write(folder / submitted.RECORD, record)
        sync_folder(folder)
    except OSError as error:
        _forget(action)
        raise OpsError(
            f"nothing was submitted: what would run cannot be kept: {error.strerror}", str(error.filename or folder)
        ) from error


def _noted(action: act.Submit, **more: Any) -> None:
    """One more thing known of a submission. A note that fails costs no job: the tag tells it too."""
    path = Path(action.folder) / submitted.RECORD
    with suppress(OSError, ValueError):
        _write(path, json.loads(path.read_text(encoding="utf-8")) | more)


def _write(path: Path, data: object) -> None:
    part = path.with_name(f".{path.name}.part")
    with open(part, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)


def _forget(action: act.Submit) -> None:
    """No job was made: there is nothing to keep."""
    shutil.rmtree(action.folder, ignore_errors=True)
