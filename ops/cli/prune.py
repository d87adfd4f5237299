"""The command that clears away checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click
from msgspec.structs import replace

from ops.cli import session
from ops.disk import usage
from ops.errors import BadInput, Drift, Refused
from ops.interventions import retention
from ops.interventions.retention import Candidate, Seen, Verdict
from ops.model import DISCARDED, OPS_DIR, Evals, Run, Snapshot, Unknown

GRACE_DAYS = 3.0
RULES = "Repeatable: " + ", ".join(f"`{rule}`" for rule in retention.RULES) + ". Default: keep = […] of m4ops.toml."


@click.command()
@click.option("--keep", multiple=True, metavar="RULE", help=RULES)
@click.option("--pin", type=int, multiple=True, metavar="STEP", help="Never let this step go; needs no rule.")
@click.option("--unpin", type=int, multiple=True, metavar="STEP", help="Let it go again when the rules do.")
@click.option("--why", default="", metavar="WORDS", help="Why it is pinned.")
@click.option("--empty-trash", is_flag=True, help="Remove for good what was pruned long enough ago.")
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    default=GRACE_DAYS,
    show_default=True,
    metavar="DAYS",
    help="With --empty-trash.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Show every checkpoint's fate with bytes and reasons, and stop.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.pass_context
def prune(
    ctx: click.Context,
    /,
    keep: tuple[str, ...],
    pin: tuple[int, ...],
    unpin: tuple[int, ...],
    why: str,
    empty_trash: bool,
    older_than: float,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move checkpoints that no rule keeps to the trash; undo brings them back.

    Never what the next resume takes, the two last of the kept branch, an unfinished save that is young, what somebody
    uploads or evaluates, and a pinned step. They are moved to .m4ops/trash (m4ops undo brings them back); the space is
    free after --empty-trash, which cannot be undone.
    """
    if sum(map(bool, (keep, pin or unpin, empty_trash))) > 1:
        raise BadInput("--keep, --pin/--unpin and --empty-trash are three different things", hint="give one of them")
    run, config = session.find(ctx)
    if empty_trash:
        return _empty(ctx, run, older_than * retention.DAY, dry_run, yes)
    if pin or unpin:
        return _pin(ctx, run, {**dict.fromkeys(pin, why), **dict.fromkeys(unpin)}, dry_run, yes)
    rules = keep or config.keep
    policy = retention.policy(rules)
    seen, verdicts = _judged(run, policy)
    session.out(_table(seen, verdicts))
    if dry_run:
        return
    from ops.cli import carry
    from ops.interventions.prune import TRASH, to_trash
    from ops.lease import make_folder

    made = to_trash(seen, verdicts, rules, session.typed())
    session.confirm(yes)
    if _fates(verdicts) != _fates(_judged(run, policy)[1]):
        raise Drift(
            "the checkpoints changed since this was shown; nothing was touched", str(run.dir), "m4ops prune again"
        )
    make_folder(run.dir / OPS_DIR / TRASH)
    carry.carried(ctx, run, made)
    session.say(f"The space is free after {session.me(ctx)} prune --empty-trash (from {GRACE_DAYS:g} days on).")


def unattended(run: Run, rules: tuple[str, ...], alive: Callable[[], None]) -> str:
    """Prune by the rules and empty the trash of what was pruned long enough ago, without a question. Says what went.

    Raises Refused, Busy, OpsError.
    """
    from ops import executor
    from ops.cli import carry
    from ops.executor import trash
    from ops.interventions import prune as wish
    from ops.lease import make_folder

    _finish_own(run)
    seen, verdicts = _judged(run, retention.policy(rules))
    going = [v for v in verdicts if not v.stays]
    if going:
        make_folder(run.dir / OPS_DIR / wish.TRASH)
        made = wish.to_trash(seen, verdicts, rules, session.typed(), unattended=True)
        executor.apply(made, carry.world(run, frozenset(a.describe() for a in made.actions)))
    alive()
    old = wish.expired(trash.held(run.dir), time.time(), GRACE_DAYS * retention.DAY)
    if old:
        size = sum(usage(trash.folder(run.dir) / name)[0] for name in old)
        trash.empty(run.dir, old, size, session.typed(), carry.world(run))
    return f"{len(going)} of {len(verdicts)} checkpoints to the trash, {len(old)} removed for good"


def _finish_own(run: Run) -> None:
    """End a prune after a save that was cut short: nobody else will."""
    from ops import executor, journal
    from ops.cli import carry

    entries = journal.read(run.dir)
    for entry in entries if isinstance(entries, tuple) else ():
        if entry.change.status == "unfinished" and entry.change.unattended and entry.change.wish["kind"] == "prune":
            executor.finish(entry.change.id, run.dir, carry.world(run), forward=True, assume_stopped=True)


# -- what is there ---------------------------------------------------------------------------------------


def _judged(run: Run, policy: retention.Policy) -> tuple[Snapshot, tuple[Verdict, ...]]:
    seen = session.look(run)
    return seen, _verdicts(seen, policy)


def _verdicts(seen: Snapshot, policy: retention.Policy) -> tuple[Verdict, ...]:
    from ops import judging, state
    from ops.interventions import targets

    run = seen.run
    findings = judging.judge(seen, state.load(run)).findings if policy.incidents else ()
    facts = Seen(
        now=seen.now,
        pointer=targets.pointed(seen),
        pins=frozenset(_pins(run)),
        incidents=frozenset({f.step for f in findings if f.step is not None} | _rewound(seen)),
        scores=_scores(seen) if policy.best else (),
        evaluated=frozenset(e.step for e in _evals(seen).lines if e.step is not None)
        if policy.evaluated
        else frozenset(),
    )
    return retention.judge(_candidates(seen), facts, policy)


# -- what would help when the disk runs full -------------------------------------------------------------

GENTLEST_FIRST = ("last 20", "last 10", "last 5", "last 3", "last 2")
"""What is tried where m4ops.toml names no rules."""
WANTED = 7 * retention.DAY
"""Seconds for which a prune should make room; also the forecast from which on one is proposed."""


def help_with(seen: Snapshot, rules: tuple[str, ...]) -> str:
    """Which prune makes room, in a line; empty while there is room for a week of saves, or where that is not known.

    It is by the rules of m4ops.toml, else the gentlest that makes room for a week.
    """
    from ops.views import words

    disk = seen.disk
    left = None if isinstance(disk, Unknown) else disk.seconds_left(seen.now)
    if isinstance(disk, Unknown) or left is None or left > WANTED or not disk.interval:
        return ""
    from ops.executor import trash

    if held := usage(trash.folder(seen.run.dir))[0]:
        return f"m4ops prune --empty-trash would free up to {words.size(held)}, of what was pruned before"
    said = ""
    for chosen in [rules] if rules else [(rule,) for rule in GENTLEST_FIRST]:
        try:
            going = [v.candidate for v in _verdicts(seen, retention.policy(chosen)) if not v.stays]
        except (Refused, BadInput) as error:
            return f"m4ops prune cannot help: {error.what}"
        sizes = [usage(part) for c in going for part in c.parts]
        size, files = sum(s for s, _ in sizes), sum(n for _, n in sizes)
        room = replace(disk, free=disk.free + size, inodes=None if disk.inodes is None else disk.inodes + files)
        more = (room.saves_left or 0) - (disk.saves_left or 0)
        flags = "" if rules else "".join(f' --keep "{rule}"' for rule in chosen)
        said = f"m4ops prune{flags} would free {words.size(size)} ({words.count(len(going), 'checkpoint')}): {words.count(more, 'more save')}"
        if (room.seconds_left(seen.now) or 0.0) > WANTED:
            break
    return said


# -- checkpoints and facts -------------------------------------------------------------------------------


def _candidates(seen: Snapshot) -> tuple[Candidate, ...]:
    """The checkpoints of the run and those of its discarded branches. Raises Refused when they cannot be read."""
    from ops.checkpoints import layouts
    from ops.cli.checkpoint import soundness

    found = []
    branches = sorted({f.partition("/")[0] for f in seen.folders if f})
    for branch in ("", *branches):
        place = seen.run.dir / DISCARDED / branch if branch else seen.run.dir
        there = layouts.discarded(seen.run, branch) if branch else seen.checkpoints
        if isinstance(there, Unknown):
            raise Refused(f"the checkpoints are UNKNOWN: {there.reason}", str(place))
        sound = soundness(seen.run, there)
        found += [
            Candidate(
                c.step,
                c.path,
                branch,
                c.complete,
                _since(c.path, c.saved, branch),
                c.markers,
                sound.get(c.path),
                c.files,
            )
            for c in there
        ]
    return tuple(found)


def _since(path: Path, saved: float | None, branch: str) -> float | None:
    """When it was saved; of a discarded one when it was moved there."""
    return path.parent.stat().st_mtime if branch else saved


def _rewound(seen: Snapshot) -> set[int]:
    history = seen.history if isinstance(seen.history, tuple) else ()
    steps = (c.expectation.resume_step for c in history if c.expectation and c.wish.get("kind") == "rewind")
    return {step for step in steps if step is not None}


def _evals(seen: Snapshot) -> Evals:
    if isinstance(seen.evals, Unknown):
        raise Refused(f"the evaluations are UNKNOWN: {seen.evals.reason}", str(seen.run.dir))
    return seen.evals


def _scores(seen: Snapshot) -> tuple[tuple[int, str, float], ...]:
    """Every score under its task's name, and under `task/metric`."""
    from ops.views.tables import parse_score

    found = []
    for line in _evals(seen).lines:
        for metric, value in parse_score(line.score).items() if line.step is not None else ():
            found += [(line.step or 0, name, value) for name in {line.task, f"{line.task}/{metric}"}]
    return tuple(found)


def _pins(run: Run) -> dict[int, str]:
    from ops.interventions import prune as wish

    path = run.dir / OPS_DIR / wish.PINS
    return wish.pins(_text(path) or "", str(path))


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"the pins cannot be read: {error}", str(path)) from None


def _fates(verdicts: tuple[Verdict, ...]) -> list[tuple[Path, bool]]:
    return [(v.candidate.path, v.stays) for v in verdicts]


# -- what is shown ---------------------------------------------------------------------------------------


def _table(seen: Snapshot, verdicts: tuple[Verdict, ...]) -> str:
    from ops.views import words

    rows, sums = [("CHECKPOINT", "FATE", "BYTES", "WHY")], {True: 0, False: 0}
    for verdict in verdicts:
        path, size = verdict.candidate.path, usage(*verdict.candidate.parts)[0]
        sums[verdict.stays] += size
        why = "; ".join(verdict.reasons) if verdict.stays else _gone(verdict.candidate)
        rows.append((str(path.relative_to(seen.run.dir)), "stays" if verdict.stays else "GOES", words.size(size), why))
    count = sum(v.stays for v in verdicts)
    last = f"{count} stay ({words.size(sums[True])}), {len(verdicts) - count} go ({words.size(sums[False])})"
    return "\n".join([*words.table(rows, right=(2,)), last])


def _gone(candidate: Candidate) -> str:
    if candidate.branch:
        return "of a discarded branch"
    return "no rule keeps it" if candidate.complete else "its save never ended"


# -- pins and trash --------------------------------------------------------------------------------------


def _pin(ctx: click.Context, run: Run, changes: dict[int, str | None], dry_run: bool, yes: bool) -> None:
    from ops.cli import carry
    from ops.interventions import prune as wish
    from ops.views.plan import plan_text

    seen = session.look(run)
    made = wish.pinned(seen, _text(run.dir / OPS_DIR / wish.PINS), changes, session.typed())
    session.out(plan_text(made, session.color()))
    if not dry_run:
        session.confirm(yes)
        carry.carried(ctx, run, made)


def _empty(ctx: click.Context, run: Run, grace: float, dry_run: bool, yes: bool) -> None:
    from ops.cli import carry
    from ops.executor import trash
    from ops.interventions import prune as wish
    from ops.views import words

    names = trash.held(run.dir)
    old = wish.expired(names, time.time(), grace)
    size = sum(usage(trash.folder(run.dir) / name)[0] for name in old)
    for name in names:
        inside = words.size(usage(trash.folder(run.dir) / name)[0])
        session.out(f"{name}  {inside}  {'REMOVED FOR GOOD' if name in old else 'stays'}")
    if not old:
        raise Refused(f"nothing in the trash is older than {grace / retention.DAY:g} days", str(trash.folder(run.dir)))
    if dry_run:
        return
    session.say(f"{words.size(size)} are removed; this cannot be undone")
    session.confirm(yes)
    identity = trash.empty(run.dir, old, size, session.typed(), carry.world(run))
    session.say(f"change {identity}: {words.size(size)} free")
