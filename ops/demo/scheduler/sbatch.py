"""sbatch: options from the command line, the environment and the script, and a new line in the table."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from ops.demo.scheduler import options, runner, spool, times
from ops.demo.scheduler.ranges import parse_array
from ops.demo.scheduler.state import Table, locked
from ops.demo.scheduler.waiting import checked
from ops.demo.scheduler.words import HELD_USER, PLAIN, VERSION, Call, Refused, Spec, Task, host, kill_wait
from ops.shell import Answer

RULES = options.grammar(
    "sbatch",
    "account|A= array|a= batch= bb= bbf= begin|b= chdir|D= cluster-constraint= clusters|M= comment= constraint|C= "
    "container= contiguous core-spec|S= cores-per-socket= cpu-freq= cpus-per-gpu= cpus-per-task|c= deadline= "
    "delay-boot= dependency|d= distribution|m= error|e= exclude|x= exclusive? export= export-file= "
    "extra-node-info|B= get-user-env? gid= gpu-bind= gpu-freq= gpus|G= gpus-per-node= gpus-per-socket= "
    "gpus-per-task= gres= gres-flags= help|h hint= hold|H ignore-pbs input|i= job-name|J= kill-on-invalid-dep= "
    "licenses|L= mail-type= mail-user= mcs-label= mem= mem-bind= mem-per-cpu= mem-per-gpu= mincpus= network= nice? "
    "no-kill|k? no-requeue nodefile|F= nodelist|w= nodes|N= ntasks|n= ntasks-per-core= ntasks-per-gpu= "
    "ntasks-per-node= ntasks-per-socket= open-mode= output|o= overcommit|O oversubscribe|s parsable partition|p= "
    "power= prefer= priority= profile= propagate? qos|q= quiet|Q reboot requeue reservation= signal= "
    "sockets-per-node= spread-job switches= test-only thread-spec= threads-per-core= time|t= time-min= tmp= uid= "
    "usage use-min-nodes verbose|v version|V wait|W wait-all-nodes= wckey= wrap=",
    bad=255,
    stop=True,
)
_ENVIRONMENT = {
    "SBATCH_ACCOUNT": "account", "SBATCH_ARRAY_INX": "array", "SBATCH_DEPENDENCY": "dependency",
    "SBATCH_EXCLUDE": "exclude", "SBATCH_EXPORT": "export", "SBATCH_JOB_NAME": "job-name",
    "SBATCH_NO_REQUEUE": "no-requeue", "SBATCH_OPEN_MODE": "open-mode", "SBATCH_OUTPUT": "output",
    "SBATCH_ERROR": "error", "SBATCH_PARTITION": "partition", "SBATCH_QOS": "qos", "SBATCH_REQUEUE": "requeue",
    "SBATCH_SIGNAL": "signal", "SBATCH_TIMELIMIT": "time",
}  # fmt: skip
"""Input environment variables, sbatch(1)."""
_FAILED = "sbatch: error: Batch job submission failed: "
_KEPT = ("HOME", "LOGNAME", "USER", "SHELL", "PATH", "TMPDIR", "LANG", "MAIL")
Wishes = Mapping[str, str]
T = TypeVar("T")


def run(argv: list[str], call: Call) -> Answer:
    """Submit a batch script. Exit codes and messages as Slurm 22.05."""
    typed, words = options.parse(RULES, argv)
    asked = dict(typed)
    if "version" in asked:
        return Answer(0, f"slurm-wlm {VERSION}\n", "")
    if "wait" in asked:
        raise Refused("sbatch: error: --wait is not available in the embedded scheduler; poll squeue")
    script, command, args = _script(asked, words, call)
    wishes = _wishes(script, typed, call.env)
    given_name = Path(words[0]).name if words else ("wrap" if "wrap" in asked else "sbatch")
    if "test-only" in wishes:
        return Answer(0, "", f"sbatch: Job 1 to start at {times.moment(time.time(), {})} on nodes {host()}\n")
    spec, task, indices = _understood({"job-name": given_name, **wishes}, call)
    spec = replace(spec, command=" ".join([command, *args]) if command else "(null)", args=tuple(args))
    call.root.mkdir(parents=True, exist_ok=True)
    runner.write_shims(call.root)
    with locked(call.root) as table:
        number = _enter(table, spec, task, indices)
        _spool(call, number, script, wishes.get("export", "ALL"))
    if "parsable" in wishes:
        return Answer(0, f"{number}\n", "")
    return Answer(0, "" if "quiet" in wishes else f"Submitted batch job {number}\n", "")


def _script(asked: Wishes, words: list[str], call: Call) -> tuple[str, str, list[str]]:
    """The script's text, its absolute path ("" if it has none), and its arguments."""
    if "wrap" in asked:
        if words:
            raise Refused("sbatch: error: Script arguments not permitted with --wrap option")
        return f"#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{asked['wrap']}\n", "", []
    if not words:
        return _looked_at(call.stdin), "", []
    path = _found(words[0], call)
    try:
        text = "" if path.is_dir() else os.fsdecode(path.read_bytes())
    except OSError:
        raise Refused(f"sbatch: error: Unable to open file {words[0]}") from None
    return _looked_at(text), str(path), words[1:]


def _found(name: str, call: Call) -> Path:
    """A plain name is looked for in the current folder, then in PATH, as sbatch does."""
    here = call.cwd / name
    if "/" not in name and not here.exists():
        for folder in call.env.get("PATH", "").split(":"):
            if folder and (Path(folder) / name).is_file():
                return Path(folder) / name
    return Path(os.path.abspath(here))


def _looked_at(text: str) -> str:
    if not text.strip():
        raise Refused("sbatch: error: Batch script is empty!")
    if not text.startswith("#!"):
        raise Refused(
            "sbatch: error: This does not look like a batch script.  The first\n"
            "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
            "sbatch: error: For instance: #!/bin/sh"
        )
    if "\r\n" in text:
        raise Refused(
            "sbatch: error: Batch script contains DOS line breaks (\\r\\n)\n"
            "sbatch: error: instead of expected UNIX line breaks (\\n)."
        )
    return text


def _wishes(script: str, typed: options.Given, env: Mapping[str, str]) -> dict[str, str]:
    """All options by name: the script's, overruled by the environment's, overruled by the command line's."""
    words: list[str] = []
    for line in script.splitlines()[1:]:
        if line.startswith("#SBATCH"):
            words += shlex.split(line[len("#SBATCH") :], comments=True)
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    wishes: dict[str, str] = {}
    from_env = [(name, env[variable]) for variable, name in _ENVIRONMENT.items() if variable in env]
    for name, value in [*options.parse(RULES, words)[0], *from_env, *typed]:
        wishes.pop({"requeue": "no-requeue", "no-requeue": "requeue"}.get(name, ""), None)
        wishes[name] = value
    return wishes


def _valid(wishes: Wishes, name: str, parse: Callable[[str], T], default: T) -> T:
    if name not in wishes:
        return default
    try:
        return parse(wishes[name])
    except ValueError:
        raise Refused(f"sbatch: error: Invalid --{name} specification", 255) from None


def _understood(wishes: Wishes, call: Call) -> tuple[Spec, Task, tuple[int, ...]]:
    """The submission, its task as a pattern for all, and the indices (none for a plain job)."""
    now = time.time()
    indices, throttle = _indices(wishes.get("array", ""))
    uid, gid = os.getuid(), os.getgid()
    workdir = os.path.join(call.cwd, wishes.get("chdir", ""))
    default = "slurm-%A_%a.out" if indices else "slurm-%j.out"
    signal = wishes.get("signal", "")
    _valid(wishes, "signal", runner.parse_signal, (False, 0, 0))
    spec = Spec(
        array_id=0, name=wishes["job-name"], user=_name(lambda: pwd.getpwuid(uid).pw_name, uid), uid=uid,
        group=_name(lambda: grp.getgrgid(gid).gr_name, gid), gid=gid, workdir=workdir.rstrip("/") or "/", command="",
        args=(), output=wishes.get("output", default), error=wishes.get("error", ""),
        append=_valid(wishes, "open-mode", _appends, False), partition=wishes.get("partition", "demo"),
        account=wishes.get("account", ""), nodes=_nodes(wishes.get("nodes", "1")),
        ntasks=_count(wishes, "ntasks"), cpus_per_task=_count(wishes, "cpus-per-task"),
        submit_host=host(), submit_dir=str(call.cwd), signal=signal,
        kill_on_invalid_dep=wishes.get("kill-on-invalid-dep", "").lower() in ("y", "yes"),
        kill_wait=kill_wait(call.env), is_array=bool(indices), throttle=throttle,
        task_min=min(indices, default=0), task_max=max(indices, default=0), task_count=len(indices),
        task_step=indices[1] - indices[0] if len(indices) > 1 else 1,
    )  # fmt: skip
    task = Task(
        array_id=0, index=PLAIN, job_id=0, time_limit=_valid(wishes, "time", times.parse_limit, 0),
        dependency=_dependency(wishes.get("dependency", "")), comment=wishes.get("comment", ""),
        exclude=wishes.get("exclude", ""), requeue="no-requeue" not in wishes, begin=_begin(wishes, now), submit=now,
        held=HELD_USER if "hold" in wishes else "",
    )  # fmt: skip
    return spec, task, indices


def _count(wishes: Wishes, name: str) -> int:
    text = wishes.get(name, "1")
    if not text.isdigit() or not int(text):
        raise Refused(f'sbatch: error: Invalid numeric value "{text}" for --{name}.')
    return int(text)


def _indices(text: str) -> tuple[tuple[int, ...], int]:
    if not text:
        return (), 0
    try:
        return parse_array(text)
    except ValueError:
        raise Refused(_FAILED + "Invalid job array specification") from None


def _name(look: Callable[[], str], number: int) -> str:
    try:
        return look()
    except KeyError:
        return str(number)


def _appends(mode: str) -> bool:
    if mode[:1] not in ("a", "t"):
        raise ValueError(mode)
    return mode.startswith("a")


def _nodes(text: str) -> int:
    found = re.match(r"(\d+)(-\d+)?$", text)
    if not found or not int(found[1]):
        raise Refused(f'sbatch: error: "{text}" is not a valid node count', 255)
    return int(found[1])


def _dependency(text: str) -> str:
    try:
        return checked(text)
    except ValueError:
        raise Refused(_FAILED + "Job dependency problem") from None


def _begin(wishes: Wishes, now: float) -> float:
    if "begin" not in wishes:
        return 0.0
    try:
        return times.parse_moment(wishes["begin"], now)
    except ValueError:
        text = f"Invalid time specification (pos=0): {wishes['begin']}\n"
        raise Refused(text + "sbatch: error: Invalid --begin specification", 255) from None


def _enter(table: Table, spec: Spec, task: Task, indices: tuple[int, ...]) -> int:
    """The submission in the table, under a new id."""
    number = table.next_id
    table.next_id += 1
    table.specs[number] = replace(spec, array_id=number)
    if not indices:
        table.put(replace(task, array_id=number, job_id=number))
    for index in indices:
        table.put(replace(task, array_id=number, index=index))
    return number


def _spool(call: Call, number: int, script: str, export: str) -> None:
    """Script and environment as they are now: later changes of either do not reach the job."""
    folder = spool.job_dir(call.root, number)
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / "slurm_script"
    copy.write_bytes(os.fsencode(script))
    copy.chmod(0o700)
    secret = os.open(folder / "env.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(secret, "w") as out:
        json.dump(_exported(call.env, export), out)


def _exported(env: Mapping[str, str], export: str) -> dict[str, str]:
    """--export: ALL, NIL/NONE, or names and NAME=VALUE, with or without ALL. A surrounding job does not show."""
    ours = re.compile(r"SLURM_(JOB|ARRAY|STEP|RESTART|TASK_PID|SRUN)")
    clean = {k: v for k, v in env.items() if not ours.match(k)}
    words = [w for w in export.split(",") if w]
    chosen = dict(clean) if "ALL" in words else {k: v for k, v in clean.items() if k in _KEPT}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            chosen[name] = value
        elif name in clean:
            chosen[name] = clean[name]
    return chosen
