"""The run's entry in scrontab(1): cron by Slurm itself, where the cluster has it (ScronParameters=enable, 20.11 on).

The entry is a block between two comments; other lines stay as they are. `scancel` of such a job comments its lines out
as `#DISABLED`, which `installed` tells.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence

from ops import chain, crontab, lease
from ops.errors import BadInput, OpsError
from ops.model import Run
from ops.shell import Answer, Shell

TIMEOUT = 30.0
LIMIT = 60
"""Minutes one check may take."""


def block(run: Run, minutes: int, arguments: Sequence[str] = (), flags: Sequence[str] = ()) -> str:
    """The lines of the run's entry. `flags` are sbatch's. Raises BadInput for what cannot stand in a line."""
    out = chain.folder(run) / "check.out"
    own = (f"--job-name={name(run)}", f"--time={LIMIT}", f"--output={out}", "--open-mode=append", "--chdir=/")
    for flag in (*own, *flags):
        if shlex.quote(flag) != flag or "%" in str(run.dir):
            raise BadInput(
                "scrontab takes no quoted flags, nor a path with `%`", flag, "use --backend crontab or --backend sbatch"
            )
    begin, end = _marks(run)
    entry = crontab.line(run, minutes, arguments).replace(r"\%", "%")  # here a `%` is no line end
    entry = entry.replace("*/1 ", "* ", 1) if minutes == 1 else entry  # scrontab 22.05 refuses a step of one
    return "\n".join([begin, f"#SCRON {' '.join((*own, *flags))}", entry, end])


def with_block(text: str, new: str, run: Run) -> str:
    """The scrontab with exactly this block of the run, at its end."""
    rest = without_block(text, run)
    return rest + ("" if not rest or rest.endswith("\n") else "\n") + new + "\n"


def without_block(text: str, run: Run) -> str:
    """The scrontab without the run's blocks."""
    begin, end = _marks(run)
    kept, inside = [], False
    for line in text.splitlines(keepends=True):
        inside = inside or line.rstrip("\n") == begin
        if not inside:
            kept.append(line)
        inside = inside and line.rstrip("\n") != end
    if inside:
        raise OpsError(
            f"the entry in the scrontab has no end: no line `{end}`", "scrontab -l", "mend it by scrontab -e"
        )
    return "".join(kept)


def install(run: Run, minutes: int, arguments: Sequence[str], flags: Sequence[str], shell: Shell) -> str:
    """Let Slurm's cron check this run, in place of what an earlier install wrote; returns the block."""
    new = block(run, minutes, arguments, flags)
    lease.make_folder(chain.folder(run))
    _write(with_block(_read(shell), new, run), shell)
    return new


def remove(run: Run, shell: Shell) -> bool:
    """Let Slurm's cron forget this run. False: it had no entry for it."""
    before = _read(shell)
    after = without_block(before, run)
    if after != before:
        _write(after, shell)
    return after != before


def installed(run: Run, shell: Shell) -> str | None:
    """The run's entry, or None; with `#DISABLED` where its job was cancelled."""
    before = _read(shell)
    if without_block(before, run) == before:
        return None
    begin, end = _marks(run)
    return before[before.index(begin) : before.index(end) + len(end)]


def name(run: Run) -> str:
    """The job's name: not as a chain's links are called, which are cancelled by that."""
    return chain.name(run).replace("check", "scron", 1)


def _marks(run: Run) -> tuple[str, str]:
    where = str(run.dir)
    if "\n" in where or "\r" in where:
        raise BadInput("a line break in a path cannot stand in a scrontab", repr(where))
    return f"# m4ops:{where} begin", f"# m4ops:{where} end"


def _read(shell: Shell) -> str:
    answer = shell(("scrontab", "-l"), TIMEOUT)
    if answer.returncode == 0:
        return answer.stdout
    if "no crontab for" in (answer.stdout + answer.stderr).lower():
        return ""
    raise _error("the scrontab cannot be read", answer)


def _write(text: str, shell: Shell) -> None:
    with tempfile.NamedTemporaryFile("w", prefix="m4ops-scrontab-", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        answer = shell(("scrontab", file.name), TIMEOUT)
    if answer.returncode:
        raise _error("the scrontab cannot be written; it is as it was", answer)


def _error(what: str, answer: Answer) -> OpsError:
    if answer.returncode == 127:
        return OpsError(
            "this cluster has no scrontab", hint="m4ops cron install --backend sbatch, or --backend crontab"
        )
    words = (answer.stderr or answer.stdout).strip() or f"exit status {answer.returncode}"
    hint = "m4ops cron install --backend sbatch needs no scrontab" if "disabled" in words else ""
    return OpsError(f"{what}: {words}", "scrontab", hint)
