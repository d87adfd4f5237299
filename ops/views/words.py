"""How m4ops says durations, ages, sizes, losses and Slurm's reasons, and how it colours them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from ops.model import Job, Severity, Unknown

STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
    "alarm": "1;37;41",
    "bad": "1;31",
    "good": "1;32",
}
SEVERITY_STYLE = {
    Severity.OK: "good",
    Severity.WARNING: "yellow",
    Severity.CRITICAL: "alarm",
    Severity.UNKNOWN: "magenta",
}
URGENCY = (Severity.OK, Severity.WARNING, Severity.UNKNOWN, Severity.CRITICAL)
"""From well to worst. Not to know is worse than a warning: anything may hide behind it."""

REASONS: Mapping[str, str] = {
    "Priority": "jobs of higher priority are before it",
    "Resources": "it is next, and waits until enough nodes are free",
    "JobHeldUser": "held by its owner; `m4ops release` lets it go",
    "JobHeldAdmin": "held by an administrator, who alone can release it",
    "JobArrayTaskLimit": "waits for a running task of its own array (the %N of --array)",
    "Dependency": "waits for the job it depends on",
    "DependencyNeverSatisfied": "will never start: the job it depends on did not end as asked",
    "BeginTime": "its begin time has not come; a requeued job waits about two minutes",
    "launch failed requeued held": "its start failed (node or prolog); held until `m4ops release`",
    "job requeued in held state": "requeued and held; `m4ops release` lets it go",
    "BadConstraints": "no node of the cluster can satisfy what it asks for",
    "ReqNodeNotAvail": "a node it needs is down, drained or reserved",
    "Nodes required for job are DOWN, DRAINED or reserved": "nodes it needs are down, drained or reserved",
    "NodeDown": "a node it needs is down",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no new starts now",
    "PartitionNodeLimit": "asks for more nodes than its partition gives, or than are up",
    "PartitionTimeLimit": "asks for more time than its partition gives",
    "PartitionConfig": "its partition cannot run such a job: it may ask for more nodes than there are",
    "Reservation": "waits for its reservation to begin",
    "ReservationDeleted": "its reservation is gone: it will not start",
    "Licenses": "waits for a licence",
    "Prolog": "the prolog still runs on its nodes",
    "Cleaning": "its last run is still being cleaned up",
    "FrontEndDown": "no front end node is up",
    "InactiveLimit": "reached the limit of inactivity",
    "InvalidAccount": "its account does not exist or may not be used",
    "InvalidQOS": "its QOS does not exist or may not be used",
    "AccountNotAllowed": "its account may not use this partition",
    "QOSNotAllowed": "its QOS may not use this partition",
    "QOSUsageThreshold": "its QOS has used up its threshold",
    "QOSTimeLimit": "its QOS has used up its time",
    "QOSResourceLimit": "its QOS has used up its resources",
    "AssociationJobLimit": "its account has as many jobs as it may",
    "AssociationResourceLimit": "its account uses as much as it may",
    "AssociationTimeLimit": "its account has used up its time",
    "QOSMaxJobsPerUserLimit": "its user runs as many jobs in this QOS as allowed",
    "QOSMaxSubmitJobPerUserLimit": "its user has as many jobs queued in this QOS as allowed",
    "NonZeroExitCode": "its program ended with an error",
    "JobLaunchFailure": "could not be launched (file system, credential, or no such program)",
    "SystemFailure": "Slurm, the file system or the network failed",
    "TimeLimit": "reached its time limit",
    "RaisedSignal": "ended by a signal",
    "WaitingForScheduling": "the scheduler has not looked at it yet",
    "SchedDefer": "told to be scheduled later",
    "None": "",
    "": "",
}
"""Reason → meaning; squeue(1), "JOB REASON CODES", and slurm.schedmd.com/job_reason_codes.html."""

_PREFIXES = (
    ("AssocGrp", "its account's total of {} is used up"),
    ("AssocMax", "asks for more {} than its account may have in one job"),
    ("QOSGrp", "its QOS's total of {} is used up"),
    ("QOSMax", "more {} than its QOS allows"),
    ("QOSMin", "fewer {} than its QOS asks for"),
    ("MaxCpuPerAccount", "its account uses as many CPUs in this QOS as allowed"),
)

_SCOPES = {
    "PerUser": " per user",
    "PerAccount": " per account",
    "PerJob": " per job",
    "PerNode": " per node",
}
_COUNTED = {
    "Cpu": "CPUs",
    "CPU": "CPUs",
    "Cpus": "CPUs",
    "CPUMinutes": "CPU minutes",
    "CpuMinutes": "CPU minutes",
    "GRES": "GPUs",
    "GRESMinutes": "GPU minutes",
    "Jobs": "jobs",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "SubmitJobs": "queued jobs",
    "SubmitJob": "queued jobs",
    "Wall": "wall time",
    "WallDuration": "wall time",
}

_ENDED = {
    "COMPLETED": "ended well",
    "FAILED": "ended with an error",
    "CANCELLED": "cancelled",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost a node",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "preempted by another job",
    "BOOT_FAIL": "its nodes did not boot",
    "DEADLINE": "missed its deadline",
    "REVOKED": "moved to another cluster",
}


def reason(text: str) -> str:
    """What a Slurm reason means; empty for no reason, and for one that is not known here."""
    code = text.strip("()").replace("launch_failed_requeued_held", "launch failed requeued held")
    code = code.replace("job_requeued_in_held_state", "job requeued in held state")
    if code in REASONS:
        return REASONS[code]
    for known in ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED or reserved"):
        if code.startswith(known):
            return REASONS[known]
    for prefix, meaning in _PREFIXES:
        if code.startswith(prefix):
            return meaning.format(_counted(code[len(prefix) :]))
    return ""


def state(job: Job) -> str:
    """A job's state as one word, with what it means where the word alone misleads."""
    if job.held:
        return "HELD"
    return job.state


def tasks(job: Job) -> str:
    """`task 3`, or how many tasks of an array still wait, and how many at once: `17 tasks (%1)`."""
    if not job.task:
        return ""
    listed, _, throttle = job.task.strip("[]").partition("%")
    if listed.isdigit():
        return f"task {listed}"
    try:
        waiting = sum(len(_range(part)) for part in listed.split(","))
    except ValueError:
        return f"tasks {clean(listed)}"
    return count(waiting, "task") + (f" (%{throttle})" if throttle else "")


def ended(job: Job) -> str:
    """How an ended job ended, in words; empty while it has not."""
    return _ENDED.get(job.state.split(" ")[0], "")


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`, `3 d 04 h`."""
    if not math.isfinite(seconds):
        return "for ever"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole < 600 and whole % 60 else "")
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


def ago(seconds: float) -> str:
    """`45 s ago`; a time in the future is a clock that is wrong, and said."""
    if seconds < -60:
        return f"{duration(-seconds)} in the FUTURE (clocks differ)"
    return f"{duration(seconds)} ago"


def clock(time: float) -> str:
    """`2024-05-28 10:11 UTC`."""
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M UTC")


def iso(time: float | None) -> str | None:
    """ISO 8601 in UTC with its offset, for JSON."""
    if time is None:
        return None
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds")


def size(count: float) -> str:
    """Bytes in powers of ten, as disks are sold: `1.2 GB`."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 99.95 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} PB"


def loss(value: float) -> str:
    """Four decimals, as the trainer prints them; `NaN` and `inf` stand out."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return f"{value:.4f}" if abs(value) < 1e5 else f"{value:.3e}"


def lr(value: float) -> str:
    """`1.000E-05`, as the trainer prints it."""
    return f"{value:.3E}"


def number(value: float) -> str:
    """A number of any kind, short."""
    return loss(value) if not math.isfinite(value) else f"{value:.4g}"


def count(amount: int, noun: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{amount} {noun}" + ("" if amount == 1 else "s")


def unknown(value: Unknown) -> str:
    """`UNKNOWN (reason)`."""
    return f"UNKNOWN ({clean(value.reason) or 'no reason given'})"


def clean(text: str) -> str:
    """Foreign text on one line that cannot speak to the terminal: controls and broken UTF-8 as `?`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else "?" for c in _without_ansi(text)).rstrip()


def clip(text: str, width: int) -> str:
    """At most `width` characters, the middle left out: a path shows where it begins and ends."""
    if len(text) <= width or width < 5:
        return text
    head = (width - 1) // 3
    return text[:head] + "…" + text[len(text) - (width - 1 - head) :]


def folded(text: str, width: int, indent: str) -> list[str]:
    """Lines of at most `width`; those after the first are indented. Long words (paths) stay whole."""
    first, *words = text.split(" ")
    lines = [first]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > width and lines[-1].strip():
            lines.append(indent + word)
        else:
            lines[-1] += " " + word
    return lines


def paint(text: str, style: str, color: bool) -> str:
    """The text in a style of `STYLES`, or as it is without colour."""
    return f"\x1b[{STYLES[style]}m{text}\x1b[0m" if color and style and text else text


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows as columns with two blanks between them; the columns of `right` are set to the right."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _range(part: str) -> range:
    """The tasks of `7`, `4-20` or `0-100:10`; ValueError for a list that squeue has cut (`97,10...`)."""
    ends, _, step = part.partition(":")
    first, _, last = ends.partition("-")
    return range(int(first), int(last or first) + 1, int(step or 1))


def _counted(code: str) -> str:
    """`CpuLimit` → `CPUs`: the thing an accounting limit counts."""
    code = code.removesuffix("Limit")
    scope = next((s for s in _SCOPES if code.endswith(s)), "")
    code = code.removesuffix(scope)
    return (_COUNTED.get(code, code) or "what it asks for") + _SCOPES.get(scope, "")


def _without_ansi(text: str) -> str:
    import re

    return re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?)", "", text)
