"""The views as JSON, one versioned schema a view, for scripts and other programs.

In all of them: a time is ISO 8601 in UTC with its offset, or null; sizes are bytes and spans are seconds,
as the names say; steps are optimizer steps; NaN and infinities are null; what could not be read is
`{"unknown": reason}` in the place of its value. A field may be added without a new version; a changed or
removed one makes a new one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import to_builtins

from ops import plan as plans
from ops.alerts.words import Ack, ident
from ops.detectors.promise import overall
from ops.model import (
    Change,
    Checkpoint,
    Evals,
    Finding,
    Job,
    LogView,
    Pointer,
    Sample,
    Severity,
    Snapshot,
    Unknown,
)
from ops.pace import seconds_per_step
from ops.views import words
from ops.views.disk import disk_json
from ops.views.findings import noted, worst_first
from ops.views.promises import checks_of
from ops.views.status import NOBODY, pointer_problem, verdict
from ops.views.tables import parse_score

Data = dict[str, Any]


def dumps(data: Mapping[str, Any]) -> str:
    """The text of a view's JSON; strictly valid, and printable everywhere."""
    return json.dumps(_plain(data), indent=2, ensure_ascii=False, allow_nan=False)


def status_json(snapshot: Snapshot, findings: Sequence[Finding], taken: Mapping[str, Ack] = NOBODY) -> Data:
    """`m4ops.status/1`: one run at one instant.

    - `schema`; `run`: {`name`, `dir`, `layout`}; `time`: of the look; `user`: who looked
    - `verdict`: `OK`, `WARNING`, `CRITICAL` or `UNKNOWN`: the worst of all that follows
    - `jobs`: list of {`id`, `array_id`, `task`, `raw_id`, `state`, `held`, `running`, `pending`, `reason`,
      `meaning` (of the reason, in words), `name`, `user`, `nodes`, `node_count`, `start` (expected, while
      pending), `end` (by the time limit, while running), `submit`, `comment`, `workdir`}
    - `kill_switch`: {`path` or null, `set`: true, false or unknown}
    - `progress`: null before the first progress line, else {`step`, `total`, `loss`, `lr`, `time`,
      `elapsed_seconds` (of its job), `seconds_per_step`, `steps_per_hour`, `seconds_left`, `fields`}
    - `log`: {`path`, `size_bytes`, `modified`, `samples_from`: the checkpoint's file that tells the steps where the log
      does not, or null}
    - `pointer`: {`text`, `step`, `problem`: empty when a resume can take it, `strays`: list of {`path`, `effect`} of what lies
      beside the checkpoints and is taken for one}
    - `checkpoints`: {`count`, `newest_complete` step or null, `unfinished` steps, `size_bytes` of those
      that were measured}
    - `disk`: {`free_bytes`, `free_inodes` or null, `save_bytes`, `save_files`, `save_interval_seconds`: of the newest
      saves, `saves_left`: that still fit, `seconds_left`: until one finds no room (each null when not known),
      `scarce`: `bytes` or `inodes`}
    - `evals`: {`path`, `lines`, `newest_step`, `without_step` lines, `archives`: numbers}; null for a run that has none
    - `last_change`: null, or as in `m4ops.history/1`, with `verified`: `yes`, `no`, `not yet` or unknown, and
      `checks`: list of {`what`, `verdict`, `expected`, `seen`, `line` of the log}
    - `findings`, `noted`: as in `m4ops.check/1`
    """
    return {
        **_head("status", snapshot),
        "verdict": verdict(snapshot, findings).name,
        "jobs": _known(snapshot.jobs, lambda jobs: [_job(j) for j in jobs]),
        "kill_switch": {"path": snapshot.run.kill_switch, "set": snapshot.kill_switch_set},
        "progress": _known(snapshot.log, lambda log: _progress(log.samples)),
        "log": _known(snapshot.log, _log),
        "pointer": _known(snapshot.pointer, lambda pointer: _pointer(snapshot, pointer)),
        "checkpoints": _known(snapshot.checkpoints, _summary),
        "disk": _known(snapshot.disk, lambda disk: disk_json(disk, snapshot.now)),
        "evals": _known(snapshot.evals, _evals) if snapshot.run.evaluated else None,
        "last_change": _known(snapshot.last_change, lambda last: _verified(last, snapshot) if last else None),
        "findings": [_finding(f, taken.get(f.key)) for f in worst_first(findings)],
        "noted": [_finding(f, None) for f in noted(findings)],
    }


def check_json(snapshot: Snapshot, findings: Sequence[Finding], taken: Mapping[str, Ack] = NOBODY) -> Data:
    """`m4ops.check/1`: what is wrong, worst first.

    - `schema`, `run`, `time`, `user`, `verdict`: as in `m4ops.status/1`
    - `exit_code`: 0, 1, 2, 3 as Nagios has them
    - `findings`: list of {`kind`, `key` (the same for the same episode), `id` (its short name, for `m4ops ack`),
      `severity`, `summary`, `evidence`: lines, `step`, `line` of the log, `node` (each null or empty when none),
      `runbook`, `actions`: commands to consider, `ack`: null, or {`owner`, `until`, `why`} of who has taken it}
    - `noted`: the same, of what happened and is no trouble (severity OK): a job that was preempted and waits again
    """
    worst = verdict(snapshot, findings)
    return {
        **_head("check", snapshot),
        "verdict": worst.name,
        "exit_code": int(worst),
        "findings": [_finding(f, taken.get(f.key)) for f in worst_first(findings)],
        "noted": [_finding(f, None) for f in noted(findings)],
    }


def checks_json(runs: Sequence[Data], lost: Sequence[Data], worst: Severity) -> Data:
    """`m4ops.checks/1`: several runs by one look.

    - `schema`; `verdict`, `exit_code`: the worst run's
    - `runs`: list of `m4ops.check/1`
    - `unknown`: list of {`name`, `dir`, `why`}: the runs that could not be looked at
    """
    return {
        "schema": "m4ops.checks/1",
        "verdict": worst.name,
        "exit_code": int(worst),
        "runs": list(runs),
        "unknown": list(lost),
    }


def checkpoints_json(snapshot: Snapshot) -> Data:
    """`m4ops.checkpoints/1`: every checkpoint of the run, by step.

    - `schema`, `run`, `time`, `user`; `pointer`: as in `m4ops.status/1`
    - `checkpoints`: list of {`step`, `path`, `complete`, `problems`, `stray`: files that do not belong there
      and change what is loaded, `idle`: such that nothing loads, `markers`, `saved`, `size_bytes` or null, `wandb_id`: empty when the resume makes a new run,
      `resumed_next`: whether the pointer names it, `checked`: null, or the newest look at its files
      while they were as they are ({`time`, `deep`: at every byte, `faults`, `doubts`}), `pushed`: where a copy was pushed to, or empty,
      `stale`: files that are no longer what that copy holds}
    - `discarded`: folders in `discarded/`; `disk`: as in `m4ops.status/1`
    """
    return {
        **_head("checkpoints", snapshot),
        "pointer": _known(snapshot.pointer, lambda pointer: _pointer(snapshot, pointer)),
        "checkpoints": _known(
            snapshot.checkpoints,
            lambda found: [_checkpoint(c, snapshot) for c in sorted(found, key=lambda c: c.step)],
        ),
        "discarded": [f for f in snapshot.folders if f],
        "disk": _known(snapshot.disk, lambda disk: disk_json(disk, snapshot.now)),
    }


def evals_json(snapshot: Snapshot) -> Data:
    """`m4ops.evals/1`: every line of the evaluations file, in its order.

    - `schema`, `run`, `time`, `user`
    - `evals`: null, or {`path`, `fingerprint`, `archives`: numbers, `lines`: list of {`line`: 1-based, `step` or null,
      `task`, `shots` or null, `score`: as written, `scores`: its numbers by name, `problem`: why it has no
      step}}
    """
    return {
        **_head("evals", snapshot),
        "evals": _known(
            snapshot.evals,
            lambda evals: {
                "path": evals.path,
                "fingerprint": evals.fingerprint,
                "archives": list(evals.archives),
                "lines": [{**to_builtins(line), "scores": parse_score(line.score)} for line in evals.lines],
            },
        )
        if snapshot.run.evaluated
        else None,
    }


def history_json(snapshot: Snapshot) -> Data:
    """`m4ops.history/1`: every change made by m4ops, oldest first.

    - `schema`, `run`, `time`, `user`
    - `changes`: list of {`id`, `time`, `user`, `title`, `command`, `status`: `applied`, `undone`,
      `rolled back` or `unfinished`, `undoes`: id or empty, `wish`, `log_offset_bytes`: size of the log then,
      `expectation`: null or what the log must show after it: {`resume_step`, `lr`: list of [step, rate],
      `lr_tolerance` (relative), `wandb_new`, `wandb_id`: of the branch before}}
    """
    return {
        **_head("history", snapshot),
        "changes": _known(snapshot.history, lambda changes: [_change(c) for c in changes]),
    }


def plot_json(samples: Sequence[Sample], field: str = "loss") -> Data:
    """`m4ops.plot/1`: the curve of one field.

    - `schema`; `field`
    - `branches`: list, in the order of the log, of {`live`: list of [step, value], `discarded`: list of
      [step, value], `trained_again_from`: step or null}
    """
    from ops.logs.progress import split_branches
    from ops.views.plot import discarded_ranges, value_of

    branches = split_branches(tuple(samples))
    again = iter(discarded_ranges(branches))

    def points(part: Sequence[Sample]) -> list[list[float]]:
        return [[s.step, v] for s in part if (v := value_of(s, field)) is not None]

    return {
        "schema": "m4ops.plot/1",
        "field": field,
        "branches": [
            {
                "live": points(b.alive),
                "discarded": points(b.discarded),
                "trained_again_from": next(again)[2] if b.discarded else None,
            }
            for b in branches
        ],
    }


def plan_json(plan: plans.Plan) -> Data:
    """`m4ops.plan/1`: as `ops.plan` writes and reads it; here alone, times are epoch seconds."""
    return plans.to_json(plan)


def _head(view: str, snapshot: Snapshot) -> Data:
    return {
        "schema": f"m4ops.{view}/1",
        "run": {"name": snapshot.run.name, "dir": snapshot.run.dir, "layout": snapshot.run.layout.name},
        "time": words.iso(snapshot.now),
        "user": snapshot.user,
    }


def _known(value: Any, shape: Any) -> Any:
    return value if isinstance(value, Unknown) else shape(value)


def _plain(value: Any) -> Any:
    """Only what JSON has: NaN is null, Unknown an object, and text is valid UTF-8."""
    match value:
        case Unknown():
            return {"unknown": _plain(value.reason)}
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value.encode("utf-8", "backslashreplace").decode("utf-8")
        case None | bool() | int():
            return value
        case Mapping():
            return {_plain(str(k)): _plain(v) for k, v in value.items()}
        case list() | tuple():
            return [_plain(v) for v in value]
        case _:
            return _plain(str(value))


def _job(job: Job) -> Data:
    return {
        **to_builtins(job),
        "held": job.held,
        "running": job.running,
        "pending": job.pending,
        "meaning": words.reason(job.reason),
        "start": words.iso(job.start),
        "end": words.iso(job.end),
        "submit": words.iso(job.submit),
    }


def _progress(samples: Sequence[Sample]) -> Data | None:
    if not samples:
        return None
    last, seconds = samples[-1], seconds_per_step(samples)
    left = None if last.total is None or seconds is None else max(0, last.total - last.step) * seconds
    return {
        "step": last.step,
        "total": last.total,
        "loss": last.loss,
        "lr": last.lr,
        "time": words.iso(last.time),
        "elapsed_seconds": last.elapsed,
        "seconds_per_step": seconds,
        "steps_per_hour": 3600 / seconds if seconds else None,
        "seconds_left": left,
        "fields": dict(last.fields),
    }


def _log(log: LogView) -> Data:
    return {
        "path": log.path,
        "size_bytes": log.size,
        "modified": words.iso(log.modified),
        "samples_from": log.source,
    }


def _pointer(snapshot: Snapshot, pointer: Pointer) -> Data:
    return {
        "text": pointer.text,
        "step": pointer.step,
        "problem": pointer_problem(snapshot, pointer),
        "strays": to_builtins(pointer.strays, enc_hook=str),
    }


def _summary(found: Sequence[Checkpoint]) -> Data:
    return {
        "count": len(found),
        "newest_complete": max((c.step for c in found if c.complete), default=None),
        "unfinished": sorted(c.step for c in found if not c.complete),
        "size_bytes": sum(c.size for c in found if c.size is not None),
    }


def _checkpoint(checkpoint: Checkpoint, snapshot: Snapshot) -> Data:
    pointer, looked = snapshot.pointer, checkpoint.checked
    return {
        "step": checkpoint.step,
        "path": checkpoint.path,
        "complete": checkpoint.complete,
        "problems": list(checkpoint.problems),
        "checked": looked and {**to_builtins(looked), "time": words.iso(looked.time)},
        "stray": list(checkpoint.stray),
        "idle": list(checkpoint.idle),
        "markers": list(checkpoint.markers),
        "pushed": checkpoint.pushed,
        "stale": list(checkpoint.stale),
        "saved": words.iso(checkpoint.saved),
        "size_bytes": checkpoint.size,
        "wandb_id": checkpoint.wandb_id,
        "resumed_next": pointer if isinstance(pointer, Unknown) else pointer.step == checkpoint.step,
    }


def _evals(evals: Evals) -> Data:
    steps = [line.step for line in evals.lines if line.step is not None]
    return {
        "path": evals.path,
        "lines": len(evals.lines),
        "newest_step": max(steps, default=None),
        "without_step": len(evals.lines) - len(steps),
        "archives": list(evals.archives),
    }


def _change(change: Change) -> Data:
    data = to_builtins(change)
    return {**data, "time": words.iso(change.time), "log_offset_bytes": data.pop("log_offset")}


def _verified(change: Change, snapshot: Snapshot) -> Data:
    checks = checks_of(snapshot, change)
    if isinstance(checks, Unknown):
        return {**_change(change), "verified": checks, "checks": []}
    return {**_change(change), "verified": overall(checks), "checks": to_builtins(checks)}


def _finding(finding: Finding, ack: Ack | None) -> Data:
    taken = {"owner": ack.owner, "until": words.iso(ack.until), "why": ack.why} if ack else None
    named = {"severity": finding.severity.name, "key": finding.key, "id": ident(finding)}
    return {**to_builtins(finding), **named, "ack": taken}
