"""One screen that says how a run is: for someone woken at night, who must not be able to misread it.

The verdict stands first, what to do stands last, next to the prompt. What could not be read is
`UNKNOWN (reason)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ops.alerts.words import Ack
from ops.detectors.promise import overall
from ops.model import Change, Checkpoint, Finding, Job, LogView, Pointer, Sample, Severity, Snapshot, Unknown
from ops.pace import seconds_per_step
from ops.views import words
from ops.views.disk import disk_line
from ops.views.findings import LABEL, finding_lines, noted, worst_first
from ops.views.promises import broken, checks_of
from ops.views.words import NO_EVALS, clean, paint, unknown

NOBODY: Mapping[str, Ack] = {}
JOBS_SHOWN = 6
NODES_WIDTH = 24
FINDINGS_WHOLE = 3


def status_text(
    snapshot: Snapshot,
    findings: Sequence[Finding],
    color: bool = False,
    width: int = 100,
    taken: Mapping[str, Ack] = NOBODY,
) -> str:
    """The screen of `m4ops status`, without a last newline. `taken`: who has taken which finding, by its key."""
    headline, rows, wrong = blocks(snapshot, findings, color, width, taken)
    return "\n".join([*headline, "", *rows, "", *wrong])


def blocks(
    snapshot: Snapshot, findings: Sequence[Finding], color: bool, width: int, taken: Mapping[str, Ack]
) -> tuple[list[str], list[str], list[str]]:
    """The lines of the verdict, of what is known of the run, and of what is wrong."""
    rows = [
        *_jobs(snapshot, color, width),
        *_switch(snapshot, color),
        *_progress(snapshot, color),
        _row("pointer", _pointer(snapshot, color), color),
        _row("checkpoints", _checkpoints(snapshot, color), color),
        _row("disk", disk_line(snapshot.disk, snapshot.now, color), color),
        _row("evals", _evals(snapshot, color), color),
        *_last_change(snapshot, color, width),
    ]
    wrong = [
        *_wrong(snapshot, findings, color, width, taken),
        *(_row("noted", clean(finding.summary), color) for finding in noted(findings)),
    ]
    return _headline(snapshot, findings, color, width), rows, wrong


def verdict(snapshot: Snapshot, findings: Sequence[Finding]) -> Severity:
    """The worst of the findings. At least UNKNOWN while a source of `unseen` could not be read, and at least
    WARNING while the log contradicts what the last change promised."""
    seen = [f.severity for f in findings]
    seen += [Severity.UNKNOWN] if unseen(snapshot) else []
    seen += [Severity.WARNING] if broken(snapshot) else []
    return max(seen, key=words.URGENCY.index, default=Severity.OK)


def unseen(snapshot: Snapshot) -> dict[str, Unknown]:
    """The sources without which nobody can say that a run is well, as far as they could not be read."""
    sources = ("jobs", "log", "pointer", "checkpoints")
    return {name: value for name in sources if isinstance(value := getattr(snapshot, name), Unknown)}


def pointer_problem(snapshot: Snapshot, pointer: Pointer) -> str | Unknown:
    """Why a resume cannot take what the pointer names; empty when it can."""
    if pointer.problem or pointer.step is None:
        return pointer.problem or "it names no step"
    if isinstance(snapshot.checkpoints, Unknown):
        return Unknown(f"its checkpoint could not be looked at: {snapshot.checkpoints.reason}")
    target = next((c for c in snapshot.checkpoints if c.step == pointer.step), None)
    if target is None:
        return f"there is no {snapshot.run.layout.called(pointer.step)}"
    return "; ".join((*target.problems, *(target.checked.faults if target.checked else ())))


def _row(label: str, text: str, color: bool) -> str:
    return paint(label.ljust(LABEL), "cyan", color) + text


def _headline(snapshot: Snapshot, findings: Sequence[Finding], color: bool, width: int) -> list[str]:
    worst = verdict(snapshot, findings)
    badge, name, when = f" {worst.name} ", clean(snapshot.run.name), words.clock(snapshot.now)
    tally = _tally(snapshot, findings)
    gap = max(2, width - len(badge) - len(name) - len(tally) - len(when) - 4)
    told = f"{paint(badge, words.SEVERITY_STYLE[worst], color)}  {paint(name, 'bold', color)}  {tally}"
    return [
        told + " " * gap + when,
        paint(f"{clean(str(snapshot.run.dir))} · {snapshot.run.layout.name} layout", "dim", color),
    ]


def _tally(snapshot: Snapshot, findings: Sequence[Finding]) -> str:
    kinds = [f.severity for f in worst_first(findings)]
    parts = [f"{kinds.count(s)} {s.name.lower()}" for s in reversed(words.URGENCY) if s in kinds]
    if missing := unseen(snapshot):
        parts.append("not seen: " + ", ".join(missing))
    if broken(snapshot):
        parts.append("last change not as promised")
    return ", ".join(parts) or "nothing wrong seen"


def _jobs(snapshot: Snapshot, color: bool, width: int) -> list[str]:
    if isinstance(snapshot.jobs, Unknown):
        return [_row("jobs", paint(unknown(snapshot.jobs), "magenta", color), color)]
    if not snapshot.jobs:
        return [_row("jobs", paint("NONE in the queue: nothing runs and nothing will", "bad", color), color)]
    jobs = sorted(snapshot.jobs, key=lambda j: (not j.running, j.start or 0.0))[:JOBS_SHOWN]
    rows = words.table([_job_cells(j, snapshot) for j in jobs])
    lines: list[str] = []
    for job, row in zip(jobs, rows, strict=True):
        shown = words.state(job)
        style = "green" if job.running else "bad" if job.held else "yellow"
        lines.append(_row("" if lines else "jobs", row.replace(shown, paint(shown, style, color), 1), color))
        lines += [" " * (LABEL + 2) + line for line in _job_reason(job, width - LABEL - 2)]
    if more := len(snapshot.jobs) - len(jobs):
        lines.append(_row("", f"… and {words.count(more, 'more job')}", color))
    return lines


def _job_cells(job: Job, snapshot: Snapshot) -> tuple[str, ...]:
    owner = f" of {clean(job.user)}" if job.user != snapshot.user else ""
    nodes = f"{words.count(job.node_count, 'node')}" if job.node_count else "nodes UNKNOWN"
    more = f": {words.clip(clean(job.nodes), NODES_WIDTH)}" if job.nodes else ""
    if job.pending and job.task:
        more = f" · {words.tasks(job)}"
    return (words.state(job), clean(job.id) + owner, job_time(job, snapshot.now), nodes + more)


def job_time(job: Job, now: float) -> str:
    """How long a job has run and may still run, or when it is expected to start."""
    if job.running:
        since = f"for {words.duration(now - job.start)}" if job.start is not None else "start UNKNOWN"
        left = f"{words.duration(job.end - now)} left" if job.end is not None else "time left UNKNOWN"
        return f"{since}, {left}"
    if not job.pending:
        return f"ended {words.ago(now - job.end)}" if job.end is not None else "ended"
    if job.start is None:
        return "start not predicted"
    return f"start in {words.duration(job.start - now)}" if job.start > now else "start is due"


def _job_reason(job: Job, width: int) -> list[str]:
    told, meaning = clean(job.reason), words.reason(job.reason)
    if told in ("", "None") or (job.running and not meaning):
        return [words.ended(job)] if words.ended(job) else []
    return words.folded(told + (f": {meaning}" if meaning else ""), width, "  ")


def _switch(snapshot: Snapshot, color: bool) -> list[str]:
    if isinstance(snapshot.kill_switch_set, Unknown):
        return [_row("kill switch", paint(unknown(snapshot.kill_switch_set), "magenta", color), color)]
    if not snapshot.kill_switch_set:
        return []
    return [
        _row(
            "kill switch",
            paint("SET: the run saves and exits, and so does every queued task", "bad", color),
            color,
        ),
        _row("", f"it stays set until removed: rm {snapshot.run.kill_switch}", color),
    ]


def _progress(snapshot: Snapshot, color: bool) -> list[str]:
    log = snapshot.log
    if isinstance(log, Unknown):
        return [_row("progress", paint(unknown(log), "magenta", color), color)]
    age = f"log written {words.ago(snapshot.now - log.modified)}{', without a step' if log.source else ''}"
    if log.source == log.path:
        age = "no log"
    if not log.samples:
        way = 'm4ops.toml can say how one looks: progress = "…"'
        return [_row("progress", f"UNKNOWN (no progress line in {clean(log.path.name)}; {way}) · {age}", color)]
    last = log.samples[-1]
    where = f"step {last.step}" + (f" of {last.total} ({last.step / last.total:.1%})" if last.total else "")
    loss = f"loss {words.loss(last.loss)}"
    bad = "bad" if words.loss(last.loss) in ("NaN", "inf") else "bold"
    rate = f"lr {words.lr(last.lr)}" if last.lr is not None else "lr UNKNOWN (not logged)"
    return [
        _row("progress", f"{paint(where, 'bold', color)} · {paint(loss, bad, color)} · {rate}", color),
        _row("speed", _speed(log, snapshot.now, any(j.running for j in snapshot.jobs or ())), color),
        _row("last line", age + _silence(last, log, snapshot.now), color),
        *([_row("", _kept(log.source, snapshot), color)] if log.source else []),
    ]


def _kept(source: Path, snapshot: Snapshot) -> str:
    """That the steps are those of a checkpoint."""
    place = source.relative_to(snapshot.run.dir) if source.is_relative_to(snapshot.run.dir) else source
    return f"all this is from {clean(str(place))}, as of its save"


def _speed(log: LogView, now: float, running: bool) -> str:
    seconds, last = seconds_per_step(log.samples), log.samples[-1]
    if seconds is None:
        return "UNKNOWN (fewer than two timed steps of this job)"
    text = f"{seconds:.3g} s/step · {3600 / seconds:.0f} steps/h"
    if last.total is None or last.total <= last.step or not running:
        return text
    left = (last.total - last.step) * seconds
    return f"{text} · {words.duration(left)} of training left ({words.clock(now + left)})"


def _silence(last: Sample, log: LogView, now: float) -> str:
    if last.time is None or log.modified - last.time < 60:
        return ""
    return f", but the last progress line {words.ago(now - last.time)}"


def _pointer(snapshot: Snapshot, color: bool) -> str:
    pointer = snapshot.pointer
    if isinstance(pointer, Unknown):
        return paint(unknown(pointer), "magenta", color)
    if pointer.problem == "missing" and snapshot.checkpoints == ():
        return "none yet: a job starts from step 0"
    problem = pointer_problem(snapshot, pointer)
    step = f"step {pointer.step}" if pointer.step is not None else f"`{clean(pointer.text)}`"
    if isinstance(problem, Unknown):
        return f"{step} · {paint(unknown(problem), 'magenta', color)}"
    if problem:
        return f"{step} · {paint('BROKEN', 'bad', color)}: {clean(problem)}"
    starts = f"a resume starts at {paint(step, 'bold', color)}"
    target = next((c for c in snapshot.checkpoints or () if c.step == pointer.step), None)
    if target and isinstance(target.checked, Unknown):
        return f"{starts} · {paint(unknown(target.checked), 'magenta', color)}"
    if target and (doubts := words.doubts(target)):
        more = f" (and {len(doubts) - 1} more)" if len(doubts) > 1 else ""
        return f"{starts} · {paint('suspect', 'yellow', color)}: {clean(doubts[0])}{more}"
    return f"{starts} · ok"


def _checkpoints(snapshot: Snapshot, color: bool) -> str:
    found = snapshot.checkpoints
    if isinstance(found, Unknown):
        return paint(unknown(found), "magenta", color)
    if not found:
        return "none yet"
    whole = [c for c in found if c.sound]
    broken = [c for c in found if not c.sound]
    newest = max(whole, key=lambda c: c.step, default=None)
    parts = [f"newest complete {_saved(newest, snapshot.now)}" if newest else paint("NONE complete", "bad", color)]
    if broken:
        parts.append(f"{len(broken)} unusable ({_steps(broken)})")
    return " · ".join([*parts, f"{len(found)} in all", _total(found)])


def _saved(newest: Checkpoint, now: float) -> str:
    return f"{newest.step}" + (f", saved {words.ago(now - newest.saved)}" if newest.saved is not None else "")


def _steps(found: Sequence[Checkpoint]) -> str:
    steps = [str(c.step) for c in sorted(found, key=lambda c: -c.step)]
    return ", ".join(steps[:3]) + (", …" if len(steps) > 3 else "")


def _total(found: Sequence[Checkpoint]) -> str:
    sizes = [c.size for c in found if c.size is not None]
    if not sizes:
        return "size UNKNOWN (not measured)"
    return words.size(sum(sizes)) + (f" (size of {len(found) - len(sizes)} UNKNOWN)" if len(sizes) < len(found) else "")


def _evals(snapshot: Snapshot, color: bool) -> str:
    evals = snapshot.evals
    if not snapshot.run.evaluated:
        return NO_EVALS
    if isinstance(evals, Unknown):
        return paint(unknown(evals), "magenta", color)
    steps = [line.step for line in evals.lines if line.step is not None]
    torn = len(evals.lines) - len(steps)
    parts = [words.count(len(evals.lines), "line")]
    parts += [f"newest of step {max(steps)}"] if steps else []
    parts += [paint(f"{torn} without a step", "yellow", color)] if torn else []
    parts += [words.count(len(evals.archives), "archive")] if evals.archives else []
    return " · ".join(parts)


def _last_change(snapshot: Snapshot, color: bool, width: int) -> list[str]:
    last = snapshot.last_change
    if isinstance(last, Unknown):
        return [_row("last change", paint(unknown(last), "magenta", color), color)]
    if last is None:
        return [_row("last change", "none by m4ops", color)]
    said = f"{clean(last.title)} · {clean(last.id)} by {clean(last.user)}, {words.ago(snapshot.now - last.time)}"
    first, *rest = words.folded(said, width - LABEL, "")
    lines = [_row("last change", first, color), *(" " * LABEL + r for r in rest)]
    outcome = [paint(last.status, _status_style(last.status), color), *_verified(last, snapshot, color)]
    return [
        *lines,
        _row("", outcome[0] + (" · " + outcome[1] if outcome[1:] else ""), color),
        *(" " * (LABEL + 2) + o for o in outcome[2:]),
    ]


def _status_style(status: str) -> str:
    return {"applied": "", "undone": "dim", "rolled back": "yellow"}.get(status, "bad")


def _verified(last: Change, snapshot: Snapshot, color: bool) -> list[str]:
    """What the log says of the change's promises; every broken promise on a line of its own."""
    if last.status != "applied":
        return []
    checks = checks_of(snapshot, last)
    if isinstance(checks, Unknown):
        return [paint(f"shown by the log: {unknown(checks)}", "magenta", color)]
    said, wrong = overall(checks), broken(snapshot)
    style = {"yes": "green", "no": "bad"}.get(said, "yellow")
    told = [f"{c.what}: promised {clean(c.expected)}, the log shows {clean(c.seen)}" for c in wrong]
    return [f"shown by the log: {paint(said.upper() if wrong else said, style, color)}", *told]


def _wrong(
    snapshot: Snapshot, findings: Sequence[Finding], color: bool, width: int, taken: Mapping[str, Ack]
) -> list[str]:
    """What is wrong, worst first: the first few whole, of the others what it is."""
    sorted_findings = worst_first(findings)
    if not sorted_findings:
        but = ", as far as can be seen" if unseen(snapshot) else ", but see `last change`" if broken(snapshot) else ""
        return [_row("findings", f"none{but}", color)]
    return [
        line
        for index, finding in enumerate(sorted_findings)
        for line in finding_lines(finding, color, width, index < FINDINGS_WHOLE, taken.get(finding.key))
    ]
