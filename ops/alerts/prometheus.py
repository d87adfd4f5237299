"""The state of a run for Prometheus, in the text format, by node_exporter's textfile collector.

It is written at every tick, whole or not at all. What is UNKNOWN has no sample; a loss that is NaN is NaN.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ops.alerts.words import Ack, Episode, acked
from ops.errors import OpsError
from ops.model import LogView, Severity, Snapshot, Unknown

Row = tuple[str, str, float]


def write(target: str, text: str, run: str) -> None:
    """Replace the file, or a file of the run's own where `target` is a folder. Raises OpsError."""
    import secrets

    place = Path(target)
    file = place / f"m4ops_{run.replace('/', '_')}.prom" if place.is_dir() else place
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        with open(temporary, "x", encoding="utf-8") as opened:
            opened.write(text)
            os.fchmod(opened.fileno(), 0o644)  # the collector is another user
        os.replace(temporary, file)
    except OSError as error:
        raise OpsError(f"the metrics cannot be written: {error.strerror}", str(file)) from None
    finally:
        temporary.unlink(missing_ok=True)


def metrics(snapshot: Snapshot, severity: Severity, episodes: Sequence[Episode], acks: Sequence[Ack]) -> str:
    """The file's text. Ages are those at the time of the check, `m4ops_check_timestamp_seconds`."""
    rows = [
        ("m4ops_severity", "", float(severity)),
        *_episodes(episodes, acks, snapshot.now),
        *_jobs(snapshot),
        *_progress(snapshot),
        *_checkpoints(snapshot),
        ("m4ops_check_timestamp_seconds", "", snapshot.now),
    ]
    label = f'run="{_escaped(snapshot.run.name)}"'
    lines: list[str] = []
    for name, more, value in rows:
        if f"# TYPE {name} gauge" not in lines:
            lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} gauge"]
        lines.append(f"{name}{{{label}{',' if more else ''}{more}}} {_number(value)}")
    return "\n".join(lines) + "\n"


HELP = {
    "m4ops_severity": "The worst finding: 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.",
    "m4ops_open_episodes": "Troubles that are open, by severity, and whether somebody has taken them.",
    "m4ops_jobs": "Jobs of the run in the queue, by whether they run.",
    "m4ops_step": "The last logged step.",
    "m4ops_loss": "The last logged loss.",
    "m4ops_learning_rate": "The last logged learning rate.",
    "m4ops_progress_age_seconds": "Time since the log last grew.",
    "m4ops_checkpoint_step": "The newest complete checkpoint.",
    "m4ops_checkpoint_age_seconds": "Time since it was saved.",
    "m4ops_check_timestamp_seconds": "When the run was checked last.",
}


def _episodes(episodes: Sequence[Episode], acks: Sequence[Ack], now: float) -> Iterator[Row]:
    for severity in (Severity.WARNING, Severity.CRITICAL, Severity.UNKNOWN):
        found = [e for e in episodes if e.finding.severity is severity]
        taken = sum(acked(e.finding, e.since, acks, now) is not None for e in found)
        for word, count in (("no", len(found) - taken), ("yes", taken)):
            yield "m4ops_open_episodes", f'severity="{severity.name.lower()}",acked="{word}"', float(count)


def _jobs(snapshot: Snapshot) -> Iterator[Row]:
    if not isinstance(snapshot.jobs, Unknown):
        running = sum(job.running for job in snapshot.jobs)
        yield "m4ops_jobs", 'running="yes"', float(running)
        yield "m4ops_jobs", 'running="no"', float(len(snapshot.jobs) - running)


def _progress(snapshot: Snapshot) -> Iterator[Row]:
    log = snapshot.log
    if not isinstance(log, LogView) or not log.samples:
        return
    last = log.samples[-1]
    yield "m4ops_step", "", float(last.step)
    yield "m4ops_loss", "", last.loss
    if last.lr is not None:
        yield "m4ops_learning_rate", "", last.lr
    yield "m4ops_progress_age_seconds", "", max(0.0, snapshot.now - (last.time or log.modified))


def _checkpoints(snapshot: Snapshot) -> Iterator[Row]:
    found = [c for c in snapshot.checkpoints or () if c.complete]
    newest = max(found, key=lambda c: c.step, default=None)
    if newest:
        yield "m4ops_checkpoint_step", "", float(newest.step)
        if newest.saved is not None:
            yield "m4ops_checkpoint_age_seconds", "", max(0.0, snapshot.now - newest.saved)


def _number(value: float) -> str:
    return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}.get(str(value), repr(value))


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
