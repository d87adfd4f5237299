"""What ran: the submissions kept in `SAVE_DIR/.m4ops/submitted/`, the starts noted by the job scripts, the trainer's files.

submitted/TAG/   submission.json, environment.json (no secret's value), script.slurm, config.*
starts/JOB.N     written by the job script at its N-th restart: nodes, commit, submission; JOB.N.TIME of an earlier job
                 of that id: Slurm gives ids anew
SAVE_DIR/{job_id}_config.yaml, …_requirements.txt, …    the trainer's (vision/m4/training in huggingface/smollm)
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from ops.errors import BadInput
from ops.model import OPS_DIR, Unknown

FOLDER = "submitted"
STARTS = "starts"
SCHEMA = "m4ops.submission/1"
RECORD = "submission.json"
ENVIRONMENT = "environment.json"
SCRIPT = "script.slurm"
CLOCKS = 60.0
"""Seconds by which the clocks of a node and of a file system may differ."""
TAG = "m4ops-submission:"
"""A job's comment names its submission after this."""
Text = str | Unknown


class Submission(Struct, frozen=True):
    """One `m4ops submit` as it was kept."""

    tag: str
    record: Mapping[str, Any]
    values: Mapping[str, str]
    withheld: tuple[str, ...]
    script: Text
    config: Text

    @property
    def job(self) -> str:
        return str(self.record.get("job", ""))

    @property
    def argv(self) -> tuple[str, ...]:
        """sbatch's options, without the command, what names this very submission, and the script's place."""
        own = ("--comment=", "--parsable", "--dependency=")
        return tuple(word for word in self.record.get("argv", ())[1:-1] if not word.startswith(own))


class Start(Struct, frozen=True):
    """One start of a job or task, as its script noted it."""

    job: str
    """`1234` or `1234_3`."""
    id: str
    """SLURM_JOB_ID."""
    restart: int
    time: float
    nodes: str
    submission: str = ""
    commit: str = ""
    changes: str = ""
    """Fingerprint of what differed from the commit; empty when nothing did."""


class Ran(Struct, frozen=True):
    """All that is known of what one start ran with. What is not known says why."""

    name: str
    time: float | None
    environment: Mapping[str, str] | Unknown
    withheld: tuple[str, ...]
    nodes: Text
    commit: Text
    flags: tuple[str, ...] | Unknown
    texts: Mapping[str, Text]
    """Script, config, and the launcher's files, by what they are."""
    packages: Mapping[str, str] | Unknown
    submission: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


def tag(comment: str) -> str:
    """The submission that a job's comment names; empty for a job that m4ops did not submit."""
    return next((w.removeprefix(TAG) for w in comment.split() if w.startswith(TAG)), "")


def place(run_dir: Path, name: str) -> Path:
    """Where a submission is kept."""
    return run_dir / OPS_DIR / FOLDER / name


def read(run_dir: Path, name: str) -> Submission | Unknown:
    """The submission of that tag."""
    folder = place(run_dir, name)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        env = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8", errors="surrogateescape"))
        config = next(iter(sorted(folder.glob("config.*"))), None) or folder / "config"
        said = _text(config) if record.get("config") else Unknown("no config file was named")
        return Submission(name, record, env["values"], tuple(env["withheld"]), _text(folder / SCRIPT), said)
    except (OSError, ValueError, KeyError) as error:
        return Unknown(f"the submission {name} cannot be read: {error}")


def everything(run_dir: Path) -> tuple[Submission, ...]:
    """All submissions that can be read, oldest first."""
    folder = run_dir / OPS_DIR / FOLDER
    names = sorted(e.name for e in os.scandir(folder)) if folder.is_dir() else []
    return tuple(s for s in (read(run_dir, name) for name in names) if isinstance(s, Submission))


def starts(run_dir: Path) -> tuple[Start, ...]:
    """Every noted start, oldest first."""
    folder = run_dir / OPS_DIR / STARTS
    files = [p for p in folder.iterdir() if not p.name.startswith(".")] if folder.is_dir() else []
    found = (_start(path) for path in files)
    return tuple(sorted((s for s in found if s is not None), key=lambda s: (s.time, s.restart)))


def _start(path: Path) -> Start | None:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        said = dict(line.partition("=")[::2] for line in lines)
        return Start(
            said["job"], said["id"], int(said["restart"]), float(said["time"]), said.get("nodes", ""),
            said.get("submission", ""), said.get("commit", ""), said.get("changes", ""),
        )  # fmt: skip
    except (OSError, KeyError, ValueError):
        return None  # a start that was cut short while it was noted


def ran(run_dir: Path, wanted: str) -> Ran:
    """What a start ran with: `1234`, `1234_3`, or `1234:1` for its first restart. Raises BadInput for an unknown one.

    Without a number the newest start is meant; of a whole array the newest of its tasks. Of several jobs that had the id
    the last one is meant; the others are named by their submission.
    """
    name, colon, number = wanted.partition(":")
    if colon and not number.isdigit():
        raise BadInput(f"`{wanted}`: after the colon stands the number of the restart", hint="for instance 1234_3:1")
    noted = starts(run_dir)
    own = _last_job([s for s in noted if name in (s.job, s.id)]) or [
        s for s in noted if name in (s.job.partition("_")[0], s.submission)
    ]
    meant = [s for s in own if not colon or s.restart == int(number)]
    if meant:
        return _ran(run_dir, meant[-1], _written_over(meant[-1], noted))
    sent = next((s for s in reversed(everything(run_dir)) if s.job == name.partition("_")[0]), None)
    if not colon and (sent or any(run_dir.glob(f"{glob_escaped(name)}_*"))):
        return _ran(run_dir, Start(name, name, 0, 0.0, "", sent.tag if sent else ""), None)
    known = list(dict.fromkeys([s.job for s in noted] + [s.job for s in everything(run_dir) if s.job]))[-8:]
    raise BadInput(
        f"nothing is known of job {wanted}: no start of it is noted, and the trainer left no {name}_* file",
        str(run_dir),
        f"known jobs: {', '.join(known)}" if known else "m4ops submit keeps what it submits",
    )


def _last_job(starts: Sequence[Start]) -> list[Start]:
    """Those of the last job among starts of one id, oldest first: each of its restarts has a higher number."""
    last: list[Start] = []
    for start in reversed(starts):
        if last and (start.restart >= last[0].restart or start.submission != last[0].submission):
            break
        last.insert(0, start)
    return last


def _written_over(start: Start, noted: Sequence[Start]) -> Unknown | None:
    """Why the trainer's files, which bear the job's id, are not this start's any more."""
    after = noted[noted.index(start) + 1 :]
    if any(start.id == later.id or start.job == later.job for later in after):
        return Unknown("a later start of the job, or of one of the same id, wrote over it")
    return None


def glob_escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def _ran(run_dir: Path, start: Start, over: Unknown | None) -> Ran:
    sent = read(run_dir, start.submission) if start.submission else Unknown("it was not submitted by m4ops submit")
    unnoted = Unknown("its start was not noted: the job script is not one of m4ops")
    own = {
        what: _first(run_dir, start, suffix) if over is None else over
        for what, suffix in (
            ("config", "config.yaml"),
            ("accelerate config", "accelerate_config.yaml.autogenerated"),
            ("deepspeed config", "ds_config.json.autogenerated"),
        )
    }
    if isinstance(own["config"], Unknown) and isinstance(sent, Submission) and not isinstance(sent.config, Unknown):
        own["config"] = sent.config
    listed = _first(run_dir, start, "requirements.txt") if over is None else over
    return Ran(
        name=start.job + (f":{start.restart}" if start.restart else ""),
        time=start.time or None,
        environment=sent if isinstance(sent, Unknown) else sent.values,
        withheld=() if isinstance(sent, Unknown) else sent.withheld,
        nodes=(start.nodes or Unknown("Slurm named none")) if start.time else unnoted,
        commit=_commit(start) if start.time else unnoted,
        flags=sent if isinstance(sent, Unknown) else sent.argv,
        texts={"script": sent if isinstance(sent, Unknown) else sent.script, **own},
        packages=listed if isinstance(listed, Unknown) else _packages(listed),
        submission=start.submission,
        variables={} if isinstance(sent, Unknown) else sent.record.get("variables", {}),
    )


def _commit(start: Start) -> Text:
    if not start.commit:
        return Unknown("no git repository of the training code was found when it was submitted (M4OPS_REPO names it)")
    return start.commit + (f" with changes ({start.changes})" if start.changes else "")


def _first(run_dir: Path, start: Start, suffix: str) -> Text:
    """The trainer's file of that job; trainers name jobs by SLURM_JOB_ID, or by array and task."""
    for name in dict.fromkeys((start.id, start.job)):
        if (path := run_dir / f"{name}_{suffix}").is_file():
            if start.time and path.stat().st_mtime < start.time - CLOCKS:
                return Unknown(f"{path.name} is older than this start: an earlier job of the same id wrote it")
            return _text(path)
    return Unknown(f"there is no {start.id}_{suffix}")


def _packages(text: str) -> dict[str, str]:
    """`name==version` lines, as pip freeze writes them; other lines stand for themselves."""
    rows = (line.partition("==") for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {name.strip(): version.strip() for name, _, version in rows}


def _text(path: Path) -> Text:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return Unknown(f"{path}: {error.strerror}")
