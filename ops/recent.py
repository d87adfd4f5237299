"""What Slurm said a few seconds ago: so that the commands one user types in a row ask the controller once.

Only for commands that look. One that changes anything asks anew, and what it orders makes the others ask anew.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from ops.shell import Answer, Shell

QUESTIONS = ("squeue", "sinfo")
SECONDS = 5.0
SWITCH = "M4OPS_QUEUE_AGE"
"""Environment variable: how many seconds old a queue a look may show; 0 asks every time."""
_CLUSTER = ("SLURM_CONF", "SLURM_CLUSTERS", "M4OPS_EMBEDDED")


def folder(env: Mapping[str, str]) -> Path:
    """The user's own folder for what may be forgotten (XDG Base Directory Specification 0.8)."""
    runtime, state = env.get("XDG_RUNTIME_DIR", ""), env.get("XDG_STATE_HOME", "")
    if runtime.startswith("/") and os.access(runtime, os.W_OK):
        return Path(runtime) / "m4ops"
    return (Path(state) if state.startswith("/") else Path.home() / ".local" / "state") / "m4ops" / "queue"


def seconds(env: Mapping[str, str]) -> float:
    """How old an answer may be."""
    try:
        return float(env.get(SWITCH, SECONDS))
    except ValueError:
        return SECONDS


def kept(shell: Shell, env: Mapping[str, str] = os.environ, now: Callable[[], float] = time.time) -> Shell:
    """The shell, with an answer of `squeue` or `sinfo` taken from the last seconds where there is one."""
    limit = seconds(env)
    if limit <= 0:
        return shell

    def ask(argv: Sequence[str], timeout: float) -> Answer:
        if argv[0] not in QUESTIONS:
            return shell(argv, timeout)
        question = [*_place(env), *argv]
        file = folder(env) / f"{_short(_place(env))}-{_short(argv)}.json"
        answer = _remembered(file, question, now() - limit, now())
        if answer is None:
            asked = now()
            answer = shell(argv, timeout)
            if answer.returncode == 0:
                with suppress(OSError):  # the next command asks for itself
                    _remember(file, question, answer, asked)
        return answer

    return ask


def forgetting(shell: Shell, env: Mapping[str, str] = os.environ) -> Shell:
    """The shell, always asked anew; what it is told to change is forgotten by everybody."""

    def ask(argv: Sequence[str], timeout: float) -> Answer:
        answer = shell(argv, timeout)
        if argv[0] in ("scontrol", "scancel", "sbatch"):
            forget(env)
        return answer

    return ask


def forget(env: Mapping[str, str] = os.environ) -> None:
    """Remove what is remembered of this cluster."""
    with suppress(OSError):
        for file in folder(env).glob(f"{_short(_place(env))}-*.json"):
            file.unlink(missing_ok=True)


def _place(env: Mapping[str, str]) -> list[str]:
    return [os.uname().nodename, *(f"{name}={env.get(name, '')}" for name in _CLUSTER)]


def _short(words: Sequence[str]) -> str:
    """A name for what may be remembered of these words: the file itself says whose answer it holds."""
    return format(crc32(os.fsencode("\0".join(words))), "08x")


def _remembered(file: Path, question: Sequence[str], since: float, until: float) -> Answer | None:
    """The answer, if it is this user's own file, nobody else can read or write it, and it is young enough."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with open(handle, encoding="utf-8") as opened:
        info = os.fstat(handle)
        if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
            return None
        try:
            data = json.load(opened)
            known = data["question"] == question and since <= float(data["time"]) <= until
            return Answer(0, str(data["stdout"]), str(data["stderr"])) if known else None
        except (ValueError, TypeError, KeyError):
            return None


def _remember(file: Path, question: Sequence[str], answer: Answer, asked: float) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(handle, "w", encoding="utf-8", errors="surrogateescape") as opened:
            said = {"stdout": answer.stdout, "stderr": answer.stderr}
            json.dump({"question": question, "time": asked, **said}, opened)
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
