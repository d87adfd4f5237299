"""`m4ops replay`: the detectors over a file that is finished, without a run, a queue or checkpoints."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli import session
from ops.cli.session import json_option

if TYPE_CHECKING:
    from ops.detectors.replay import Raised
    from ops.model import LogView, Snapshot

PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bz2", b"\xfd7zXZ": "lzma"}
"""The module that reads a compressed file, by its first bytes."""
ZSTD = b"\x28\xb5\x2f\xfd"


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path))
@click.option("--progress", default="", help="How a progress line looks: `step {step} | loss: {loss} | {} | lr: {lr}`.")
@json_option
def replay(file: Path, progress: str, as_json: bool) -> None:
    """Run the detectors over a finished log, CSV, JSONL or trainer_state.json.

    m4's statistics of parameters, gradients and activations are JSONL too. A CSV has the columns
    step,loss[,grad_norm,lr]. What is compressed is unpacked first. A finding whose verdict changes is told again under its new kind. `-` is a log from standard
    input. Ends with 3 if no line is known as progress: then nothing is known of the loss.
    """
    from ops.model import Severity
    from ops.views.replay import replay_json, replay_text

    raised, points = _piped(progress) if str(file) == "-" else _series(file) or _log(file, progress)
    session.out(replay_json(raised) if as_json else replay_text(raised, points, session.color(), session.width()))
    if not points:
        sys.exit(int(Severity.UNKNOWN))


def _piped(progress: str) -> tuple[list[Raised], int]:
    """The same of a log that comes from standard input. Raises BadInput."""
    import shutil

    with tempfile.TemporaryDirectory(prefix="m4ops-") as folder:
        file = Path(folder) / "standard-input"
        with file.open("wb") as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
        return _log(file, progress)


def _log(file: Path, progress: str) -> tuple[list[Raised], int]:
    """What is raised of a log or a table, and its logged points. Raises BadInput."""
    from ops import detectors
    from ops.detectors.replay import not_understood
    from ops.detectors.replay import replay as judge_again

    log = _unpacked(file, progress) or _read(file, progress)
    raised = judge_again(detectors.lines(log), _alone(log))
    if not log.samples:
        raised.append(not_understood(log, "zstdcat" if _begins(file).startswith(ZSTD) else ""))
    return raised, len(log.samples)


def _begins(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(6)


def _unpacked(file: Path, progress: str) -> LogView | None:
    """What a compressed file holds; None if it is none. Raises BadInput."""
    begin = _begins(file)
    module = next((name for magic, name in PACKED.items() if begin.startswith(magic)), None)
    if module is None:
        return None
    import shutil
    from importlib import import_module
    from lzma import LZMAError
    from zlib import error as ZlibError

    from msgspec.structs import replace as changed

    from ops.errors import BadInput

    with tempfile.TemporaryDirectory(prefix="m4ops-") as folder:
        plain = Path(folder) / file.stem
        try:
            with import_module(module).open(file) as packed, plain.open("wb") as copy:
                shutil.copyfileobj(packed, copy)
        except (OSError, EOFError, LZMAError, ZlibError) as error:
            raise BadInput(f"it could not be unpacked: {error}", str(file), "copy it again, whole") from error
        return changed(_read(plain, progress), path=file)


def _series(file: Path) -> tuple[list[Raised], int] | None:
    """The same of a trainer's statistics of the model; None if the file's name is of none. Raises BadInput."""
    from ops.detectors.replay import replay_series
    from ops.errors import BadInput
    from ops.logs.measures import read_whole
    from ops.model import LogView

    try:
        read = read_whole(file)
    except OSError as error:
        raise BadInput(f"it could not be read: {error.strerror or error}", str(file)) from error
    if read is None:
        return None
    measures, unread = read
    return replay_series(measures, unread, _alone(LogView(file, 0, 0.0, (), ()))), len({m.step for m in measures})


def _read(file: Path, progress: str) -> LogView:
    """The file's samples and events. Raises BadInput."""
    from ops.errors import BadInput
    from ops.logs import read_log
    from ops.logs.tables import read_table
    from ops.model import LogView, Unknown

    table = read_table(file)
    if table is not None:
        if torn := table.unread:
            session.say(f"{len(torn)} row{'s' * (len(torn) > 1)} could not be read, the first is {torn[0]}: left out")
        info = file.stat()
        return LogView(file, info.st_size, info.st_mtime, table.samples, ())
    log = read_log(file, progress=progress, finished=True)
    if isinstance(log, Unknown):
        raise BadInput(log.reason)
    return log


def _alone(log: LogView) -> Snapshot:
    """A picture in which there is nothing but the file."""
    from ops.model import Run, Snapshot, Unknown

    nothing = Unknown("a replay looks at one file")
    return Snapshot(
        run=Run(log.path.parent, log.path.name, log=log.path),
        now=log.modified,
        user=os.environ.get("USER", ""),
        jobs=nothing,
        pointer=nothing,
        checkpoints=nothing,
        log=log,
        evals=nothing,
        history=(),
    )
