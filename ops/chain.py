"""`m4ops check` without cron: a small job that submits its successor before it does anything else.

One chain a run, however often and by whomever it is installed: a link whose token is not the installed one ends the
moment it starts. A link that finds a successor waiting submits none, so that doubled chains become one again. A chain
that breaks leaves a note, and one that falls silent is told of by whoever looks at the run next.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from ops import lease, state
from ops.crontab import check_command, kept
from ops.errors import BadInput, OpsError
from ops.model import OPS_DIR, Finding, Run, Severity, Unknown
from ops.shell import Answer, Shell, Submitter

TIMEOUT = 30.0
LIMIT = 60
"""Minutes a link may take: a teammate's request to stop waits half an hour for the last save."""
PATIENCE = 3
"""Periods, and never less than half an hour, without a link after which the chain counts as silent."""
_SCRIPT = """\
#!/bin/bash
# Written by `m4ops cron install --backend sbatch`: one link of the chain that checks {run}.
{environment}folder={folder} token={token} name={name}
[[ $(cat "$folder/token" 2>/dev/null) == "$token" ]] || exit 0  # removed, or installed anew
date +%s >"$folder/beat"

successor() {{
    [[ -z $(squeue -h -u "$(id -un)" -n "$name" -t PENDING -o %A) ]] || return 0
    # Of this job's environment nothing, or it would bind the next one.
    env -i HOME="$HOME" PATH="$PATH" ${{SLURM_CONF:+SLURM_CONF="$SLURM_CONF"}} \
        sbatch --parsable --begin=now+{minutes}minutes {flags} "$folder/link.sh"
}}

for pause in 0 5 20 60 120; do
    sleep "$pause"
    if said=$(successor 2>&1); then
        rm -f "$folder/broken"
        said=
        break
    fi
done
[[ -z $said ]] || echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) job $SLURM_JOB_ID could not submit its successor: $said" >"$folder/broken"

cd / && exec {check}
"""


class Every(Struct, frozen=True):
    """What the check is to be: its period in minutes, its arguments, and sbatch's flags for the jobs."""

    minutes: int
    arguments: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()


class Chain(Struct, frozen=True):
    """The installed chain: its period in minutes, its last sign of life, why it broke (empty: it did not)."""

    minutes: int
    beat: float | None
    broken: str
    token: str


class Link(Struct, frozen=True):
    """A job of a chain."""

    job: str
    state: str
    name: str

    @property
    def token(self) -> str:
        return self.name.rpartition("-")[2]


def script(run: Run, every: Every, token: str) -> str:
    """The job script of a link. Raises BadInput for a period under a minute."""
    if every.minutes < 1:
        raise BadInput(f"cannot check every {every.minutes} minutes", hint="choose a minute or more")
    return _SCRIPT.format(
        run=str(run.dir).replace("\n", " "),
        environment="".join(f"export {k}={shlex.quote(v)}\n" for k, v in _environment().items()),
        folder=shlex.quote(str(folder(run))),
        token=token,
        name=f"{name(run)}-{token}",
        minutes=every.minutes,
        flags=shlex.join(_flags(run, token, every.flags)),
        check=shlex.join(check_command(run, every.minutes, every.arguments)),
    )


def _environment() -> dict[str, str]:
    """All that a link gets: no secret. (sbatch's --export=NAME,… would have Slurm 22.05 log in to look for the rest.)"""
    return {"HOME": os.path.expanduser("~"), **kept(os.environ)}


def _flags(run: Run, token: str, more: Sequence[str]) -> tuple[str, ...]:
    """sbatch's flags of a link. Its comment and folder are no run's, so that it counts as no job of the training."""
    out = folder(run) / "check.out"
    own = ("--ntasks=1", f"--time={LIMIT}", "--requeue", "--chdir=/", f"--output={out}", "--open-mode=append")
    return (f"--job-name={name(run)}-{token}", "--comment=m4ops-cron", *own, *more)


def install(run: Run, every: Every, shell: Shell, submit: Submitter) -> str:
    """Start the run's chain in place of an earlier one; returns the first link's job. Raises OpsError."""
    place, token = folder(run), secrets.token_hex(8)
    text = script(run, every, token)
    lease.make_folder(place)
    with lease.acquire(place / "lock", "install the check", 120):
        for file, content in (("link.sh", text), ("minutes", f"{every.minutes}\n"), ("token", f"{token}\n")):
            _write(place / file, content)
        (place / "broken").unlink(missing_ok=True)
        (place / "beat").unlink(missing_ok=True)
        answer = submit(
            ("sbatch", "--parsable", *_flags(run, token, every.flags), str(place / "link.sh")), TIMEOUT, _environment()
        )
        job = answer.stdout.strip().partition(";")[0]
        if answer.returncode != 0:
            ours = [link for link in queued(run, shell) or () if link.token == token]
            if not ours:  # else it was taken, though the answer did not come
                (place / "token").unlink()
                raise OpsError(
                    f"the chain cannot be started: {_words(answer)}", "sbatch", "give the flags it needs after --"
                )
            job = ours[0].job
        _cancel(run, token, shell)
    return job


def remove(run: Run, shell: Shell) -> bool:
    """End the run's chain. False: there was none. A controller that does not answer only delays its end."""
    there = (folder(run) / "token").exists()
    with suppress(FileNotFoundError):
        for file in ("token", "minutes", "beat", "broken", "link.sh"):
            (folder(run) / file).unlink(missing_ok=True)
    if there:
        _cancel(run, "", shell)
    return there


def installed(run: Run) -> Chain | None:
    """The run's chain as its files tell it."""
    place = folder(run)
    if not (place / "token").exists():
        return None
    minutes, beat = _read(place / "minutes"), _read(place / "beat")
    began = (place / "token").stat().st_mtime
    last = float(beat) if re.fullmatch(r"\d+", beat) else began
    return Chain(int(minutes) if minutes.isdigit() else 10, last, _read(place / "broken"), _read(place / "token"))


def queued(run: Run, shell: Shell) -> tuple[Link, ...] | Unknown:
    """The run's links in the queue that are this user's, of whatever chain."""
    answer = shell(("squeue", "-h", "-u", str(os.geteuid()), "-o", "%A %T %j"), TIMEOUT)
    if answer.returncode != 0:
        return Unknown(_words(answer))
    rows = (line.split(" ", 2) for line in answer.stdout.splitlines())
    return tuple(Link(*row) for row in rows if len(row) == 3 and row[2].startswith(f"{name(run)}-"))


def look(run: Run, now: float) -> tuple[Finding, ...]:
    """`check-broken`: the chain could not go on; `check-silent`: nothing was heard of it for long."""
    try:
        chain = installed(run)
    except OSError as error:
        return (Finding("check-unknown", Severity.UNKNOWN, f"the check's chain cannot be read: {error.strerror}"),)
    actions = (f"m4ops cron install --backend sbatch{' --all' * (run == state.everything())}",)
    if chain is None:
        return ()
    if chain.broken:
        summary = "nobody will check this run: its chain of jobs broke"
        return (Finding("check-broken", Severity.WARNING, summary, (chain.broken,), actions=actions),)
    silent = now - (chain.beat or now)
    if silent > max(PATIENCE * chain.minutes * 60, 1800):
        summary = f"the chain of jobs that checks this run was not heard of for {silent / 3600:.1f} h"
        return (Finding("check-silent", Severity.WARNING, summary, actions=("m4ops cron status", *actions)),)
    return ()


def folder(run: Run) -> Path:
    """Where the chain keeps its script, token and notes."""
    return run.dir / OPS_DIR / "cron"


def name(run: Run) -> str:
    """How the links' job names begin, before the chain's token: of this run alone, and never the run's own."""
    place = hashlib.sha256(os.fsencode(os.path.realpath(run.dir))).hexdigest()[:8]
    return f"m4ops-check-{re.sub(r'[^A-Za-z0-9._-]', '_', run.name)}-{place}"


def _cancel(run: Run, token: str, shell: Shell) -> None:
    """End the links of former chains that wait; one that is not reached ends when it starts, for its token is gone."""
    former = [link.job for link in queued(run, shell) or () if link.state == "PENDING" and link.token != token]
    if former:
        shell(("scancel", *former), TIMEOUT)


def _words(answer: Answer) -> str:
    lines = (answer.stderr or answer.stdout).strip().splitlines()
    return lines[0] if lines else f"exit code {answer.returncode}"


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""


def _write(file: Path, text: str) -> None:
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "x", encoding="utf-8") as opened:
            os.fchmod(opened.fileno(), file.parent.stat().st_mode & 0o666 & ~0o022 | 0o600)
            opened.write(text)
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, file)
    except OSError as error:
        raise OpsError(f"the chain cannot be written: {error.strerror}", str(file)) from None
    finally:
        temporary.unlink(missing_ok=True)
