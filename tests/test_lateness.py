"""Saves, evaluations, time limits, the disk and the pace, judged by the run's own habits."""

import random
from collections.abc import Iterable

import pytest
from msgspec.structs import replace
from test_detectors import DIR, EVERY, checkpoints, event, healthy, job, kinds, log_of, series

from ops.detectors import judge
from ops.detectors.replay import Raised, replay
from ops.model import Disk, EvalLine, Evals, Finding, LogEvent, Sample, Severity, Snapshot, Unknown

NOW = 1e6 + 60


def trained(steps: int, saved: Iterable[int], events: Iterable[LogEvent] = (), **job_: float) -> Snapshot:
    """A job that logs every 25 steps, 16 s a step, and has these checkpoints."""
    rows = series([2.0] * (steps // EVERY))
    return healthy(
        log=log_of(rows, tuple(events)),
        checkpoints=checkpoints(*saved),
        jobs=(replace(job(), **job_),),
        pointer=Unknown(""),
    )


def seen(snapshot: Snapshot) -> list[Finding]:
    return [f for f in judge(snapshot, None, {})[1] if f.kind != "pointer-broken"]


def one(snapshot: Snapshot) -> Finding:
    (finding,) = seen(snapshot)
    return finding


def test_saves_that_come_as_usual_are_well() -> None:
    assert seen(trained(2900, (500, 1000, 1500, 2000, 2500))) == []
    # A save between two others, by the save switch or at a job's end, is no new habit.
    assert seen(trained(3400, (500, 1000, 1500, 2000, 2130, 2500))) == []


def test_no_save_for_too_long() -> None:
    late = one(trained(3600, (500, 1000, 1500, 2000, 2500)))
    assert (late.kind, late.severity, late.step) == ("checkpoint-late", Severity.WARNING, 2500)
    assert "1100 steps ago" in late.summary and "every 500 steps" in late.summary and "4.9 h of work" in late.summary
    assert late.actions[0] == "m4ops save"
    assert one(trained(4600, (500, 1000, 1500, 2000, 2500))).severity is Severity.CRITICAL
    assert (
        seen(replace(trained(3600, (500, 1000, 1500, 2000, 2500)), jobs=Unknown("squeue")))[0].kind == "queue-unknown"
    )


def test_a_save_of_the_last_minutes_is_not_late_however_many_steps_ago() -> None:
    saved = tuple(replace(c, saved=NOW - 60) for c in checkpoints(500, 1000, 1500, 2000, 2500))
    assert seen(replace(trained(3600, (500,)), checkpoints=saved)) == []
    old = tuple(replace(c, saved=NOW - 4000) for c in saved)
    assert one(replace(trained(3600, (500,)), checkpoints=old)).kind == "checkpoint-late"


def test_saves_that_were_torn_are_named() -> None:
    snapshot = trained(3600, (500, 1000, 1500, 2000, 2500, 3000, 3500))
    assert isinstance(snapshot.checkpoints, tuple)
    torn = tuple(
        replace(c, problems=("finished-saving is missing",)) if c.step >= 3000 else c for c in snapshot.checkpoints
    )
    late = one(replace(snapshot, checkpoints=torn))
    assert late.kind == "checkpoint-late"
    assert [e for e in late.evidence if "opt_step-3500: finished-saving is missing" in e]


def test_checkpoints_that_were_cleared_away_are_known_from_the_log() -> None:
    said = [event("saved", n, f"{DIR}/opt_step-{n * EVERY}") for n in (20, 40, 60, 80, 100)]
    assert seen(trained(2900, (2500,), said)) == []
    assert one(trained(3600, (2500,), said)).kind == "checkpoint-late"


def test_a_job_that_never_saved_and_is_half_over() -> None:
    assert one(trained(100, (), start=NOW - 40000, end=NOW + 30000)).kind == "checkpoint-late"
    assert seen(trained(100, (), start=NOW - 1000, end=NOW + 30000)) == []


def test_a_time_limit_that_comes_before_the_next_save() -> None:
    """400 steps of 16 s are missing to the next save: 107 minutes."""
    near = trained(2600, (500, 1000, 1500, 2000, 2500), end=NOW + 3600)
    limit = one(near)
    assert (limit.kind, limit.severity, limit.actions) == ("limit-before-save", Severity.WARNING, ("m4ops save",))
    assert "in 60 min" in limit.summary and "in 107 min" in limit.summary and "87 min of work" in limit.summary
    assert seen(trained(2600, (500, 1000, 1500, 2000, 2500), end=NOW + 7200)) == []


def test_a_job_that_saves_as_it_ends_has_no_such_trouble() -> None:
    """m4's trainer saves when its own time is over; slurm_templates/train.slurm has it save before the limit."""
    ended = [event("time-over", 21), event("saved", 22, f"{DIR}/opt_step-525")]
    steps = (500, 1000, 1500, 2000, 2500)
    assert seen(trained(2600, steps, ended, end=NOW + 3600)) == []
    assert kinds(seen(trained(2600, steps, ended[:1], end=NOW + 3600)))[0] == "limit-before-save"
    near = trained(2600, steps, end=NOW + 3600)
    tagged = replace(job(), end=NOW + 3600, comment="m4ops:/runs/tr_1 m4ops-submission:3")
    assert kinds(seen(replace(near, jobs=(tagged,)))) == ["limit-before-save"]
    switch = replace(near.run, save_switch=DIR / "save")
    assert seen(replace(near, jobs=(tagged,), run=switch)) == []


def evaluated(*steps: int) -> Evals:
    return Evals(DIR / "evals.jsonl", "", tuple(EvalLine(i, step, "Vqav2") for i, step in enumerate(steps)))


def test_evaluations_that_lag_behind() -> None:
    steps = (500, 1000, 1500, 2000, 2500, 3000)
    assert seen(replace(trained(3025, steps), evals=evaluated(500, 1000, 1500))) == []
    late = one(replace(trained(3525, (*steps, 3500)), evals=evaluated(500, 1000, 1500)))
    assert (late.kind, late.severity, late.step) == ("evals-late", Severity.WARNING, 1500)
    assert "the newest checkpoint is of step 3500" in late.summary
    assert seen(replace(trained(3525, (*steps, 3500)), evals=Unknown("no file"))) == []


GB = 10**9


@pytest.mark.parametrize(
    ("free", "inodes", "severity", "said"),
    [
        (900 * GB, None, None, ""),
        (90 * GB, None, Severity.WARNING, "room for 9 more saves, at the pace of saving within 20 h"),
        (9 * GB, None, Severity.CRITICAL, "no room for another save"),
        (900 * GB, 450, Severity.WARNING, "room for 4 more saves"),
    ],
)
def test_a_disk_that_fills_at_the_pace_of_saving(
    free: int, inodes: int | None, severity: Severity | None, said: str
) -> None:
    disk = Disk(free, inodes, save_bytes=10 * GB, save_files=100, interval=7200, last=NOW - 100)
    findings = seen(replace(trained(2600, (500, 1000, 1500, 2000, 2500)), disk=disk))
    assert [f.severity for f in findings] == ([] if severity is None else [severity])
    assert all(f.kind == "disk-filling" and said in f.summary for f in findings)


def test_a_disk_on_which_old_saves_are_cleared_away_is_full_only_when_it_is() -> None:
    disk = Disk(90 * GB, None, save_bytes=10 * GB, save_files=100, interval=7200, last=NOW - 100)
    assert seen(replace(trained(9600, (8500, 9000, 9500)), disk=disk)) == []
    assert one(replace(trained(9600, (8500, 9000, 9500)), disk=replace(disk, free=20 * GB))).kind == "disk-filling"


def paced(paces: Iterable[float], first: int = EVERY, line: int = 1) -> list[Sample]:
    """Rows of one job that took so many seconds a step, printed as whole seconds."""
    rows, clock = [], 0.0
    for i, pace in enumerate(paces):
        clock += pace * EVERY
        rows.append(Sample(first + i * EVERY, 2.0, None, line + i, (line + i) * 200, elapsed=float(int(clock))))
    return rows


def usual(rows: int, pace: float = 16.0, seed: int = 1) -> list[float]:
    """Noise of 1 %, a save every 20 rows, an evaluation now and then, a hiccup of ten times the usual."""
    draw = random.Random(seed)
    paces = [draw.gauss(pace, 0.01 * pace) + (0.4 * pace if i % 20 == 0 else 0) for i in range(rows)]
    return [p * (10 if i == rows // 2 else 1) for i, p in enumerate(paces)]


def slow_downs(samples: list[Sample]) -> list[Raised]:
    return [r for r in replay(samples, healthy()) if r.finding.kind == "slow-down"]


@pytest.mark.parametrize("seed", range(3))
def test_saves_evaluations_and_hiccups_are_no_slow_down(seed: int) -> None:
    assert slow_downs(paced(usual(600, seed=seed))) == []


@pytest.mark.parametrize("more", [1.07, 1.5])
def test_slower_for_good(more: float) -> None:
    (slow,) = slow_downs(paced([*usual(200), *usual(60, 16 * more)]))
    assert 205 <= slow.row <= 220
    assert slow.resolved_row is None
    assert slow.finding.step is not None and abs(slow.finding.step - 201 * EVERY) <= 2 * EVERY
    assert f"a step takes {16 * more:.3g} s" in slow.finding.summary or more < 1.1
    assert "before that it took 16 s" in slow.finding.summary


def test_a_slow_stretch_that_ends_is_over_and_a_small_one_is_none() -> None:
    (passed,) = slow_downs(paced([*usual(200), *usual(40, 20), *usual(60)]))
    assert passed.resolved_row is not None and 240 <= passed.resolved_row <= 250
    assert slow_downs(paced([*usual(200), *usual(60, 16.4)])) == []


def test_a_restart_on_a_slower_node_is_seen_and_loading_the_model_is_not_counted() -> None:
    first = paced(usual(200))
    assert slow_downs(first + paced(usual(60), first=201 * EVERY, line=300)) == []
    (slow,) = slow_downs(first + paced(usual(60, 18), first=201 * EVERY, line=300))
    assert slow.finding.step in (202 * EVERY, 203 * EVERY)


def test_the_trainers_own_figure_counts_where_it_prints_one() -> None:
    rows = [
        Sample(i, 2.0, None, i, i * 200, fields={"elapsed time per iteration (ms)": 1e3 * pace})
        for i, pace in enumerate([*usual(2500, 1.0), *usual(900, 1.2)], 1)
    ]
    (slow,) = slow_downs(rows)
    assert "a step takes 1.23 s since step 2499; before that it took 1.02 s (+20%)" in slow.finding.summary
