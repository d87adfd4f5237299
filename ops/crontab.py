"""One crontab line a run, or one for all, so that `m4ops check` looks every few minutes. Other lines stay as they are.

cron starts commands with a nearly empty environment, hands them to a shell, and takes `%` for a line end (see
crontab(5)): so what matters of the environment is written into the line, and everything is quoted for both.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops import state
from ops.errors import BadInput, OpsError
from ops.model import Run
from ops.shell import Answer, Shell
from ops.shell import run as run_program

KEPT = (
    "PATH", "PYTHONPATH", "SLURM_CONF", "M4OPS_EMBEDDED", "M4OPS_ROOTS", "XDG_CONFIG_HOME", "XDG_STATE_HOME",
)  # fmt: skip
"""Variables of the installer's environment that the line carries, where they are set."""
TIMEOUT = 30.0


def tag(run: Run) -> str:
    """What marks a run's line: a comment to the shell that runs it."""
    return _for_cron(f"# m4ops:{_absolute(run.dir)}")


def line(run: Run, minutes: int, arguments: Sequence[str] = (), env: Mapping[str, str] | None = None) -> str:
    """The crontab line that runs `m4ops check` on this run every `minutes` (1 to 59), without its tag.

    `arguments` are added to the command; `env` is the environment to carry over, the present one by default.
    Raises BadInput for other periods, and for a path that cannot stand in a crontab.
    """
    if not 1 <= minutes <= 59:
        raise BadInput(f"cannot check every {minutes} minutes by cron", hint="choose 1 to 59 minutes")
    carried = [f"{name}={value}" for name, value in kept(os.environ if env is None else env).items()]
    check = check_command(run, minutes, arguments)
    return _for_cron(f"*/{minutes} * * * * cd / && {shlex.join(['env', *carried, *check])}")


def kept(env: Mapping[str, str]) -> dict[str, str]:
    """What the check needs of the installer's environment."""
    found = {name: env[name] for name in KEPT if env.get(name)}
    if roots := found.get("M4OPS_ROOTS"):
        found["M4OPS_ROOTS"] = ":".join(os.path.abspath(root) for root in roots.split(":") if root)
    return found


def check_command(run: Run, minutes: int, arguments: Sequence[str] = ()) -> list[str]:
    """The command that checks this run, or all of them, every so many minutes, wherever it is run."""
    which = ["check", "--all"] if run == state.everything() else ["--run", _absolute(run.dir), "check"]
    return [sys.executable, "-P", "-m", "ops.cli", *which, "--every", str(minutes), *arguments]


def with_line(crontab: str, line: str, tag: str) -> str:
    """The crontab with exactly one line of that tag: in the place of the first it had, else at the end."""
    lines = crontab.split("\n")
    ours = [index for index, text in enumerate(lines) if _is_ours(text, tag)]
    new = f"{line} {tag}"
    if not ours:
        gap = "" if not crontab or crontab.endswith("\n") else "\n"
        return f"{crontab}{gap}{new}\n"
    return "\n".join(new if i == ours[0] else text for i, text in enumerate(lines) if i not in ours[1:])


def without_line(crontab: str, tag: str) -> str:
    """The crontab without the lines of that tag."""
    return "\n".join(text for text in crontab.split("\n") if not _is_ours(text, tag))


def install(run: Run, minutes: int, arguments: Sequence[str] = (), *, shell: Shell = run_program) -> str:
    """Let cron check this run, in place of what an earlier install wrote; returns the line, tag included."""
    wanted, mark = line(run, minutes, arguments), tag(run)
    before = _read(shell)
    after = with_line(before, wanted, mark)
    if after != before:
        _write(after, shell)
    return f"{wanted} {mark}"


def remove(run: Run, *, shell: Shell = run_program) -> bool:
    """Let cron forget this run. False: it had no line for it."""
    before = _read(shell)
    after = without_line(before, tag(run))
    if after != before:
        _write(after, shell)
    return after != before


def installed(run: Run, *, shell: Shell = run_program) -> str | None:
    """The run's line in this user's crontab on this host, or None."""
    return next((text for text in _read(shell).split("\n") if _is_ours(text, tag(run))), None)


def _is_ours(text: str, tag: str) -> bool:
    """A line with the tag at its end; one that somebody commented out is theirs."""
    return text.endswith(f" {tag}") and not text.lstrip().startswith("#")


def _read(shell: Shell) -> str:
    answer = shell(("crontab", "-l"), TIMEOUT)
    if answer.returncode:
        if answer.returncode not in (126, 127) and "no crontab for" in answer.stderr.lower():
            return ""
        raise _error("cannot read the crontab", answer)
    if "\N{REPLACEMENT CHARACTER}" in answer.stdout:
        raise OpsError(
            "the crontab holds bytes that are no UTF-8, and writing it back would damage them",
            where="crontab -l",
            hint="add the line yourself: `m4ops cron install -n` prints it, `crontab -e` edits",
        )
    return answer.stdout


def _write(text: str, shell: Shell) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="m4ops-crontab-", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        answer = shell(("crontab", file.name), TIMEOUT)
    if answer.returncode:
        raise _error("cannot write the crontab; it is as it was", answer)


def _error(what: str, answer: Answer) -> OpsError:
    if answer.returncode == 127:
        return OpsError("there is no crontab program on this host", hint="Debian: apt-get install cron")
    return OpsError(f"{what}: {answer.stderr.strip() or f'exit status {answer.returncode}'}", where="crontab")


def _absolute(folder: Path) -> str:
    return os.path.abspath(folder)


def _for_cron(text: str) -> str:
    if "\n" in text or "\r" in text or "\0" in text:
        raise BadInput("a line break in a path or variable cannot stand in a crontab", where=repr(text))
    return text.replace("%", r"\%")
