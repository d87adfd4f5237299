"""What the detectors say of series made here, and that looking often or once says the same."""

import json
import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from ops.detectors import judge
from ops.model import (
    Change,
    Checkpoint,
    Expectation,
    Finding,
    Job,
    LogEvent,
    LogView,
    Pointer,
    Run,
    Sample,
    Severity,
    Sign,
    Snapshot,
    Unknown,
)
from ops.placement import NodeState
from ops.quantiles import median, quartiles

DIR = Path("/runs/tr_1")
LOG = DIR / "logs/main_log.txt"
EVERY = 25
WIDTH = 200
"""Bytes of a line of the logs made here."""


def job(state: str = "RUNNING", reason: str = "None", start: float = 0.0) -> Job:
    return Job("7_1", "7", "1", "8", state, reason, "tr_1", "ann", nodes="n[1-4]", start=start)


def checkpoints(*steps: int) -> tuple[Checkpoint, ...]:
    return tuple(Checkpoint(step, DIR / f"opt_step-{step}") for step in steps)


def log_of(samples: Sequence[Sample] = (), events: Sequence[LogEvent] = (), modified: float = 1e6) -> LogView:
    return LogView(LOG, 10**6, modified, tuple(samples), tuple(events))


def healthy(**changes: Any) -> Snapshot:
    """A run that trains, a minute after its last line."""
    snapshot = Snapshot(
        run=Run(DIR, "tr_1", log=LOG, kill_switch=Path("/runs/kill")),
        now=1e6 + 60,
        user="ann",
        jobs=(job(),),
        pointer=Pointer(f"{DIR}/opt_step-500", 500),
        checkpoints=checkpoints(*range(500, 20001, 500)),
        log=log_of(),
        evals=Unknown("none"),
        history=(),
        kill_switch_set=False,
    )
    return replace(snapshot, **changes)


def series(losses: Iterable[float], first: int = EVERY, line: int = 1, lr: float | None = 1e-5) -> list[Sample]:
    """Rows as a job logs them, each on its own line."""
    return [
        Sample(first + EVERY * i, loss, lr, line + i, (line + i - 1) * WIDTH, elapsed=400.0 * (i + 1))
        for i, loss in enumerate(losses)
    ]


def falling(rows: int, seed: int, noise: float = 0.02, power: float = 0.7) -> list[float]:
    """A loss that falls as they do, with noise that now and then has a heavy tail."""
    draw = random.Random(seed)
    tail = [noise * (3 if draw.random() < 0.01 else 1) for _ in range(rows)]
    return [1.7 + 6.0 * (1 + i / 8) ** -power + draw.gauss(0, s) for i, s in enumerate(tail)]


def bf16(value: float) -> float:
    """Rounded to bf16's eight bits of precision, printed with four decimals."""
    step = 2.0 ** (math.floor(math.log2(abs(value))) - 7)
    return round(round(value / step) * step, 4)


def found(
    samples: Sequence[Sample], events: Sequence[LogEvent] = (), snapshot: Snapshot | None = None
) -> tuple[Finding, ...]:
    return judge(snapshot or healthy(), log_of(samples, events), {})[1]


def kinds(findings: Iterable[Finding]) -> list[str]:
    return [finding.kind for finding in findings]


def over_time(samples: Sequence[Sample]) -> list[str]:
    """The kind reported after each row, '' for none."""
    memory: dict[str, Any] = {}
    said = []
    for sample in samples:
        memory, findings = judge(healthy(), log_of([sample]), memory)
        said.append(",".join(kinds(findings)))
    return said


@pytest.mark.parametrize("noise", [0.003, 0.02, 0.08])
@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_run_raises_no_alarm(seed: int, noise: float) -> None:
    assert set(over_time(series(falling(700, seed, noise)))) == {""}


@pytest.mark.parametrize("seed", range(2))
def test_a_quantised_loss_raises_no_alarm(seed: int) -> None:
    losses = [bf16(loss) for loss in falling(900, seed, noise=0.004)]
    assert len(set(losses[-100:])) <= 6
    assert set(over_time(series(losses))) == {""}
    assert set(over_time(series([1.7031] * 400 + [1.7109] * 3 + [1.7031] * 100))) == {""}


def test_one_unit_of_rounding_is_no_rise() -> None:
    """A loss in bf16 moves by 0.6 % at 1.24: a shift of 0.4 % shows as one unit, or none."""
    draw = random.Random(0)
    losses = [draw.gauss(1.2425 if row < 700 else 1.2475, 0.004) for row in range(1000)]
    assert set(over_time(series(map(bf16, losses)))) == {""}


def test_a_rise_that_became_the_level_is_told_once() -> None:
    draw = random.Random(0)
    losses = [draw.gauss(1.2425 if row < 500 else 1.275, 0.004) for row in range(1500)]
    said = over_time(series(losses))
    assert said[505] == "loss-spike"
    assert said[540] == "loss-divergence"
    assert set(said[said.index("", 540) :]) == {""}


@pytest.mark.parametrize("level", [0.002, -0.4])
def test_losses_near_zero_and_below_are_judged_by_their_noise(level: float) -> None:
    draw = random.Random(5)
    losses = [level + draw.gauss(0, 0.0005) for _ in range(400)]
    assert set(over_time(series(losses))) == {""}
    assert kinds(found(series([*losses, *[level + 0.05] * 3]))) == ["loss-spike"]


@pytest.mark.parametrize("at", [60, 300, 600])
@pytest.mark.parametrize("quantised", [False, True])
def test_a_spike_that_heals(at: int, quantised: bool) -> None:
    losses = falling(at + 120, seed=at)
    for i in range(8):
        losses[at + i] += 1.2 * 0.7**i
    said = over_time(series([bf16(loss) for loss in losses] if quantised else losses))
    assert set(said[:at]) == {""}
    assert "loss-spike" in said[at : at + 4]
    assert said[at + 20 :] == [""] * 100
    assert "loss-divergence" not in said


def test_a_second_spike_is_seen_after_the_first() -> None:
    losses = falling(500, seed=3)
    for at in (300, 330):
        for i in range(6):
            losses[at + i] += 0.8 * 0.7**i
    said = over_time(series(losses))
    assert said[320] == ""
    assert "loss-spike" in said[331:334]


def test_a_spike_while_the_loss_still_falls_steeply() -> None:
    """Where rows are rare, a run's whole steep begin is among the last forty: that is no noise."""
    losses = [2.5 + 8 * math.exp(-i / 9) + 0.02 * (-1) ** i for i in range(60)]
    losses[48:51] = [loss + 0.35 for loss in losses[48:51]]
    kinds = over_time(series(losses))
    assert "loss-spike" in kinds[48:52] and set(kinds[:48]) == {""}


@pytest.mark.parametrize(("rows", "told"), [([2.4, 3.0], True), ([3.0], False)], ids=["two", "one"])
def test_a_second_spike_among_a_runs_first_rows(rows: list[float], told: bool) -> None:
    """The first one left but a few rows from which noise could be known."""
    quiet = [2.0 + 0.02 * (i % 3) for i in range(12)]
    before = [*quiet, 6.7, 4.5, 2.7, 2.3, *quiet[:9]]
    kinds = over_time(series([*before, *rows, *quiet]))
    assert kinds[len(before) - 1] == ""
    assert ("loss-spike" in kinds[len(before) :]) == told


def test_a_single_outlier_is_no_spike() -> None:
    losses = falling(400, seed=4)
    losses[300] += 0.25
    assert set(over_time(series(losses))) == {""}


def diverging(rows: int = 460, at: int = 400) -> list[float]:
    losses = falling(rows, seed=11)
    return [loss + max(0, i - at) * 0.08 for i, loss in enumerate(losses)]


def test_a_divergence() -> None:
    said = over_time(series(diverging()))
    assert set(said[:400]) == {""}
    assert said[405] == "loss-spike"
    assert set(said[426:]) == {"loss-divergence"}
    (finding,) = found(series(diverging()))
    assert finding.severity is Severity.CRITICAL
    assert finding.step is not None
    assert 400 * EVERY <= finding.step <= 407 * EVERY
    assert finding.evidence == (f"{LOG}:{finding.step // EVERY}",)
    assert finding.line == finding.step // EVERY
    assert finding.runbook == "loss-diverges"
    # Ten rows (250 steps) before the onset at about 10,050 are wanted.
    assert finding.actions == ("m4ops rewind --to 9500", "m4ops rewind --to 9500 --scale-lr 0.75")


def test_the_rewind_proposed_is_to_a_complete_checkpoint() -> None:
    kept = checkpoints(8000, 9000, 9500)
    torn = (*kept[:2], replace(kept[2], problems=("finished-saving is missing",)))
    (finding,) = found(series(diverging()), snapshot=healthy(checkpoints=torn, pointer=Pointer("x", 9000)))
    assert finding.actions[0] == "m4ops rewind --to 9000"
    none = healthy(checkpoints=checkpoints(11000), pointer=Pointer("x", 11000))
    assert found(series(diverging()), snapshot=none)[0].actions == ("m4ops checkpoints",)


def test_a_divergence_stays_open_without_new_lines_and_while_it_stays_high() -> None:
    losses = diverging()
    memory, _ = judge(healthy(), log_of(series(losses)), {})
    for _ in range(3):
        memory, again = judge(healthy(), None, json.loads(json.dumps(memory)))
        assert kinds(again) == ["loss-divergence"]
    flat = series([*losses, *[losses[-1]] * 600])
    assert kinds(found(flat)) == ["loss-divergence"]


def test_a_divergence_that_heals_is_forgotten() -> None:
    losses = [*diverging(), *falling(600, seed=12)[500:]]
    assert over_time(series(losses))[-80:] == [""] * 80


@pytest.mark.parametrize("rise", [0.05, 0.1])
def test_a_slow_rise_of_a_few_percent(rise: float) -> None:
    losses = falling(900, seed=21, power=1.5)
    losses = [loss + rise * min(1.0, max(0, i - 600) / 150) for i, loss in enumerate(losses)]
    said = over_time(series(losses))
    assert set(said[:600]) == {""}
    assert set(said[780:]) == {"loss-divergence"}


@pytest.mark.parametrize("seed", range(3))
def test_a_young_run_that_rises_slowly(seed: int) -> None:
    losses = [loss + 0.03 * max(0, i - 90) for i, loss in enumerate(falling(160, seed, noise=0.05))]
    said = over_time(series(losses))
    assert set(said[:90]) == {""}
    assert set(said[145:]) == {"loss-divergence"}


def test_a_sudden_drop_is_good_news() -> None:
    losses = [*falling(300, seed=5), *[loss - 0.4 for loss in falling(600, seed=6)[300:400]]]
    assert set(over_time(series(losses))) == {""}
    assert set(over_time(series([*falling(30, seed=5), *[2.0] * 60]))) == {""}


def test_a_blow_up_before_the_noise_is_known() -> None:
    losses = [11.0, 10.8, 10.7, *[25.0 + i for i in range(30)]]
    said = over_time(series(losses))
    assert said[5] == "loss-spike"
    assert said[-1] == "loss-divergence"


def test_a_rewind_before_the_onset_ends_it_one_behind_does_not() -> None:
    losses = diverging()
    before = series(losses) + series([losses[100]] * 3, first=380 * EVERY, line=1000)
    assert kinds(found(before)) == []
    behind = series(losses) + series([losses[-1]] * 3, first=440 * EVERY, line=1000)
    assert kinds(found(behind)) == ["loss-divergence"]


def test_the_bump_after_a_resume_is_no_spike_but_a_new_divergence_is_one() -> None:
    losses = falling(400, seed=31)
    resumed = [loss + 0.12 for loss in falling(400, seed=32)[300:340]]
    rows = series(losses) + series(resumed, first=300 * EVERY, line=1000)
    assert set(over_time(rows)) == {""}
    again = [*resumed, *[resumed[-1] + 0.1 * i for i in range(40)]]
    assert kinds(found(series(losses) + series(again, first=300 * EVERY, line=1000))) == ["loss-divergence"]


def change(**changes: Any) -> Change:
    return replace(Change("c1", 1e6, "ann", "rewind to 9500", "m4ops rewind", "applied"), **changes)


def test_a_divergence_that_was_answered_by_a_rewind_waits_for_the_resume() -> None:
    rows = series(diverging())
    end = rows[-1].offset + WIDTH
    rewound = healthy(history=(change(expectation=Expectation(resume_step=9500), log_offset=end),))
    (finding,) = found(rows, snapshot=rewound)
    assert finding.severity is Severity.WARNING
    assert "c1" in finding.summary
    too_late = healthy(history=(change(expectation=Expectation(resume_step=11000), log_offset=end),))
    assert found(rows, snapshot=too_late)[0].severity is Severity.CRITICAL


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nan_at_once_even_at_the_start(value: float) -> None:
    (finding,) = found(series([10.0, 9.0, value]))
    assert (finding.kind, finding.severity, finding.step, finding.line) == (
        "loss-nan",
        Severity.CRITICAL,
        75,
        3,
    )
    late = found(series([*falling(400, seed=1), *[value] * 30]))
    assert kinds(late) == ["loss-nan"]
    assert late[0].actions[0] == "m4ops rewind --to 10000"


def test_nan_is_over_after_a_rewind_or_when_the_numbers_are_back() -> None:
    losses = [*falling(400, seed=1), *[math.nan] * 5]
    rewound = series(losses) + series([2.0], first=390 * EVERY, line=1000)
    assert found(rewound) == ()
    behind = series(losses) + series([2.0], first=403 * EVERY, line=1000)
    assert kinds(found(behind)) == ["loss-nan"]
    passed = falling(440, seed=1)
    passed[400:405] = [math.nan] * 5
    assert found(series(passed)) == ()


def event(kind: str, line: int, value: str = "") -> LogEvent:
    node = value if kind == "node-failure" else ""
    return LogEvent(kind, line, (line - 1) * WIDTH, f"text of {kind}", value, node)


def test_a_node_failure() -> None:
    pending = job("PENDING", "JobArrayTaskLimit")
    snapshot = healthy(jobs=(pending,))
    rows = series(falling(30, seed=1))
    lost = [event("node-failure", 31, "n37"), event("node-failure-step", 32)]
    (finding,) = found(rows, lost, snapshot)
    assert (finding.severity, finding.node, finding.step, finding.line) == (Severity.CRITICAL, "n37", 750, 31)
    assert finding.evidence == (f"{LOG}:31", "1 more line of the same failure")
    assert finding.actions == ("m4ops exclude n37", "m4ops requeue")
    late = series([2.0] * 5, first=775, line=40)
    (after,) = found(rows + late, lost, snapshot)
    assert after.severity is Severity.WARNING
    assert found(rows + series([2.0] * 60, first=775, line=40), lost, snapshot) == ()


def test_a_node_that_only_slurmstepd_told_of_is_not_the_one_it_names() -> None:
    (finding,) = found(series([3.0]), [event("node-failure-step", 5)])
    assert (finding.kind, finding.node) == ("node-failure", "")
    two = found(series([3.0]), [event("node-failure-step", 5), event("node-failure", 6, "n2")])
    assert [f.node for f in two] == ["n2"]
    assert len(found([], [event("node-failure", 5, "n1"), event("node-failure", 6, "n2")])) == 2


def decaying(first: int, rows: int, line: int = 1, factor: float = 1.0) -> list[Sample]:
    """Rows with a cosine LR, as the trainer prints it."""
    rows_ = series([2.0] * rows, first=first, line=line)
    return [replace(s, lr=float(f"{factor * 1e-5 * (1 + math.cos(math.pi * s.step / 20000)) / 2:.3E}")) for s in rows_]


def test_the_lr_goes_on_after_a_resume_as_before() -> None:
    rows = decaying(25, 400)
    assert found(rows + decaying(9025, 30, line=1000)) == ()
    assert found(rows + decaying(10025, 30, line=1000)) == ()


@pytest.mark.parametrize("first", [9025, 10025])
@pytest.mark.parametrize("factor", [0.75, 0.01])
def test_an_lr_that_nobody_promised(first: int, factor: float) -> None:
    (finding,) = found(decaying(25, 400) + decaying(first, 5, line=1000, factor=factor))
    assert (finding.kind, finding.severity) == ("lr-mismatch", Severity.CRITICAL)
    assert (finding.step, finding.line) == (first, 1000)
    expected = 1e-5 * (1 + math.cos(math.pi * first / 20000)) / 2
    seen, promise = (float(word.rstrip(",")) for word in finding.summary.split() if "e-" in word)
    assert seen == pytest.approx(expected * factor, rel=1e-3)
    assert promise == pytest.approx(expected, rel=1e-2)


PROMISE = Expectation(resume_step=9000, lr=tuple((s.step, 0.75 * (s.lr or 0)) for s in decaying(9000, 40)))


def promised(rows: Sequence[Sample], expectation: Expectation | None = PROMISE, **more: Any) -> Snapshot:
    return healthy(history=(change(expectation=expectation, log_offset=rows[-1].offset + WIDTH, **more),))


def test_an_lr_promise_kept_or_broken() -> None:
    rows = decaying(25, 400)
    kept = rows + decaying(9025, 30, line=1000, factor=0.75)
    assert found(kept, snapshot=promised(rows)) == ()
    (broken,) = found(rows + decaying(9025, 1, line=1000), snapshot=promised(rows))
    assert broken.kind == "lr-mismatch"
    assert "promised by change c1" in broken.summary
    assert f"{LOG}:1000" in broken.evidence
    assert "m4ops verify" in broken.actions


def test_a_promise_is_about_the_next_resume_only() -> None:
    rows = decaying(25, 400)
    kept = rows + decaying(9025, 30, line=1000, factor=0.75)
    requeued = kept + decaying(9500, 5, line=2000, factor=0.75)
    assert found(requeued, snapshot=promised(rows)) == ()
    lost = kept + decaying(9500, 5, line=2000)
    assert kinds(found(lost, snapshot=promised(rows))) == ["lr-mismatch"]


def test_a_promise_of_zero() -> None:
    rows = decaying(25, 400)
    zero = promised(rows, Expectation(resume_step=9000, lr=((9000, 0.0),)))
    resumed = decaying(9025, 1, line=1000)
    assert found([*rows, replace(resumed[0], lr=0.0)], snapshot=zero) == ()
    assert kinds(found(rows + resumed, snapshot=zero)) == ["lr-mismatch"]


def test_after_an_undo_nothing_is_known_and_without_a_journal_nothing_is_certain() -> None:
    rows = decaying(25, 400)
    resumed = rows + decaying(9025, 5, line=1000, factor=0.75)
    assert found(resumed, snapshot=promised(rows, None, undoes="c0")) == ()
    (finding,) = found(resumed, snapshot=healthy(history=Unknown("Permission denied")))
    assert finding.severity is Severity.UNKNOWN


def test_an_lr_that_comes_right_is_forgotten() -> None:
    wrong = decaying(25, 400) + decaying(9025, 5, line=1000, factor=0.5)
    assert found(wrong + decaying(9000, 5, line=2000), snapshot=promised(wrong, None, undoes="c0")) != ()
    good = Expectation(lr=tuple((s.step, s.lr or 0) for s in decaying(9000, 9)))
    assert found(wrong + decaying(9000, 5, line=2000), snapshot=promised(wrong, good)) == ()


def story() -> tuple[list[Sample], list[LogEvent]]:
    """A spike, a NaN, a lost node, a divergence, a resume behind it, another LR."""
    losses = falling(500, seed=8)
    for i in range(6):
        losses[200 + i] += 0.9 * 0.7**i
    losses[250] = math.nan
    rows = series([loss + max(0, i - 400) * 0.05 for i, loss in enumerate(losses)])
    again = series([losses[-1] + 4] * 40, first=480 * EVERY, line=600, lr=5e-6)
    return rows + again, [event("node-failure", 502, "n9"), event("node-failure", 639, "n4")]


@pytest.mark.parametrize("size", [1, 7, 100])
def test_in_pieces_as_at_once(size: int) -> None:
    rows, events = story()
    memory, findings = judge(healthy(), log_of(rows, events), {})
    assert kinds(findings) == ["loss-divergence", "node-failure", "lr-mismatch", "node-failure"]
    piece: dict[str, Any] = {}
    for low in range(0, 640, size):
        lines = range(low + 1, low + size + 1)
        part = log_of([s for s in rows if s.line in lines], [e for e in events if e.line in lines])
        piece, said = judge(healthy(), part, json.loads(json.dumps(piece)))
    assert said == findings
    assert piece == json.loads(json.dumps(memory))


def test_the_worst_comes_first_and_a_memory_stays_small() -> None:
    rows, events = story()
    snapshot = healthy(jobs=Unknown("squeue: timed out"), log=log_of(rows))
    memory, findings = judge(snapshot, log_of(rows, events), {})
    severities = [finding.severity for finding in findings]
    assert severities == sorted(severities, key=[2, 3, 1, 0].index)
    assert "queue-unknown" in kinds(findings)
    long = series(falling(6000, seed=2))
    assert len(json.dumps(judge(healthy(), log_of(long), memory)[0])) < 100_000


def only(kind: str, snapshot: Snapshot) -> Finding:
    (finding,) = judge(snapshot, None, {})[1]
    assert finding.kind == kind
    return finding


def well(snapshot: Snapshot) -> bool:
    return judge(snapshot, None, {})[1] == ()


def test_a_run_that_trains_is_well() -> None:
    assert well(healthy(log=log_of(series([2.0] * 60))))


def test_a_job_that_is_absent() -> None:
    rows = [replace(s, total=20000) for s in series([2.0] * 30)]
    log = log_of(rows, [event("time-limit", 31, "19.0")])
    finding = only("job-absent", healthy(jobs=(), log=log))
    assert finding.severity is Severity.CRITICAL
    assert "750 of 20000" in finding.summary
    assert f"{LOG}:31 text of time-limit" in finding.evidence
    assert finding.runbook == "job-not-in-queue"
    assert only("job-absent", healthy(jobs=(job("COMPLETED"),), log=log))


def test_an_absence_with_a_good_reason() -> None:
    rows = [replace(s, total=750) for s in series([2.0] * 30)]
    assert well(healthy(jobs=(), log=log_of(rows)))
    said = [event("max-steps", 31, "training")]
    assert well(healthy(jobs=(), log=log_of(series([2.0] * 30), said)))
    assert well(healthy(jobs=(), log=log_of(series([2.0])), kill_switch_set=True))


def test_an_end_of_one_job_or_before_a_rewind_is_no_good_reason() -> None:
    per_job = log_of(series([2.0] * 30), [event("max-steps", 31, "run")])
    assert only("job-absent", healthy(jobs=(), log=per_job))
    ended = log_of(series([2.0] * 30), [event("max-steps", 31, "training")])
    back = change(expectation=Expectation(resume_step=500), log_offset=31 * WIDTH)
    assert only("job-absent", healthy(jobs=(), log=ended, history=(back,)))


def test_a_queue_that_does_not_answer_is_unknown() -> None:
    finding = only("queue-unknown", healthy(jobs=Unknown("squeue: timed out")))
    assert finding.severity is Severity.UNKNOWN
    assert "timed out" in finding.summary


def test_held_jobs() -> None:
    held = job("PENDING", "JobHeldUser")
    assert only("job-held", healthy(jobs=(held,))).actions == ("m4ops release",)
    assert well(healthy(jobs=(held, job())))
    assert well(healthy(jobs=(held, job("PENDING", "Resources"))))


def test_a_stuck_job_is_critical_only_when_nothing_else_goes_on() -> None:
    never = job("PENDING", "DependencyNeverSatisfied")
    alone = only("job-stuck", healthy(jobs=(never,)))
    assert alone.severity is Severity.CRITICAL
    assert only("job-stuck", healthy(jobs=(never, job()))).severity is Severity.WARNING
    assert only("job-stuck", healthy(jobs=(never, job("PENDING", "Priority")))).severity is Severity.WARNING
    both = found((), snapshot=healthy(jobs=(never, job("PENDING", "JobHeldUser"))))
    assert sorted(kinds(both)) == ["job-held", "job-stuck"]
    assert well(healthy(jobs=(job("PENDING", "NotKnownHere"),)))


def test_a_job_that_needs_more_nodes_than_are_usable_says_which_are_gone() -> None:
    waits = replace(job("PENDING", "ReqNodeNotAvail, UnavailableNodes:n3"), partition="train,other", node_count=3)
    nodes = [NodeState(f"n{i}", "train", "idle") for i in (1, 2)]
    gone = (*nodes, NodeState("n3", "train", "drained", "burnt"), NodeState("g1", "other", "idle"))
    short = only("job-stuck", healthy(jobs=(waits,), nodes=gone))
    assert "needs 3 nodes, and 2 of partition train are usable: n3 is drained (burnt)" in short.summary
    enough = only("job-stuck", healthy(jobs=(replace(waits, node_count=2),), nodes=gone))
    assert (short.severity, enough.severity) == (Severity.CRITICAL, Severity.WARNING)
    reserved = replace(waits, reason="Nodes required for job are DOWN, DRAINED or reserved for jobs in higher …")
    assert only("job-stuck", healthy(jobs=(reserved,), nodes=gone)).severity is Severity.CRITICAL
    assert well(healthy(jobs=(replace(reserved, node_count=2),), nodes=gone))


def test_a_kill_switch_left_behind() -> None:
    waiting = (job("PENDING", "Dependency"),)
    assert "/runs/kill" in only("kill-switch-left", healthy(jobs=waiting, kill_switch_set=True)).summary
    assert well(healthy(jobs=(job(),), kill_switch_set=True))


def test_a_silence_is_judged_by_the_runs_own_gaps() -> None:
    rows = series([2.0] * 60)
    slow = healthy(log=log_of(rows), jobs=(job(start=1e6 - 30000),))
    assert well(replace(slow, now=1e6 + 1100))
    finding = only("log-stalled", replace(slow, now=1e6 + 1300))
    assert (finding.severity, finding.step) == (Severity.CRITICAL, 1500)
    assert "1300 s" in finding.summary
    saves = [replace(s, elapsed=(s.elapsed or 0) + 900 * (s.step > 1000)) for s in rows]
    assert well(replace(slow, log=log_of(saves), now=1e6 + 3800))
    quick = [replace(s, elapsed=s.step / 100) for s in rows]
    assert well(replace(slow, log=log_of(quick), now=1e6 + 100))
    assert only("log-stalled", replace(slow, log=log_of(quick), now=1e6 + 130))
    assert well(replace(slow, now=1e6 + 1300, jobs=(job("PENDING", "Priority"),)))


def test_a_job_that_starts_has_time_to_load() -> None:
    rows = series([2.0] * 60)
    fresh = healthy(log=log_of(rows, modified=1e6), jobs=(job(start=2e6),))
    assert well(replace(fresh, now=2e6 + 1500))
    assert only("log-stalled", replace(fresh, now=2e6 + 1900))


def test_steps_that_stop_while_the_log_goes_on_are_a_stall() -> None:
    """A rank that hangs may go on printing. When a step was read, the tick knows that read it."""
    rows, jobs = series([2.0] * 60), (job(start=1e6 - 30000),)
    memory, found = judge(healthy(log=log_of(rows), jobs=jobs, now=1e6), log_of(rows), {})
    assert found == ()

    def later(seconds: float, **more: Any) -> tuple[Finding, ...]:
        log = log_of(rows, modified=1e6 + seconds - 5)
        seen = replace(healthy(log=log, jobs=jobs, now=1e6 + seconds), **more)
        return judge(seen, None, json.loads(json.dumps(memory)))[1]

    assert later(3500) == ()
    (finding,) = later(4000)
    assert (finding.kind, finding.severity, finding.step) == ("log-stalled", Severity.WARNING, 1500)
    assert "its log is written, but no step was logged for 4000 s since step 1500" in finding.summary
    assert [f.severity for f in later(9000)] == [Severity.CRITICAL]
    assert later(9000, jobs=(job(start=1e6 + 8000),)) == (), "the next job has time to load"
    end = LogEvent(
        "max-steps", 61, 10**9, "** Maximum number of steps has been reached for this training **", "training"
    )
    assert later(9000, log=log_of(rows, [end], modified=1e6 + 8995)) == (), "it uploads, or evaluates"
    (silent,) = later(9000, log=log_of(rows, modified=1e6))
    assert "runs, but nothing was logged for 9000 s" in silent.summary


def test_a_job_whose_log_tells_no_step_is_not_watched_and_that_is_said() -> None:
    strange = replace(log_of([], modified=1e6 + 1), size=5000)
    seen = healthy(log=strange, jobs=(job(start=1e6 - 2000),), now=1e6 + 2)
    (finding,) = judge(seen, strange, {})[1]
    assert (finding.kind, finding.severity) == ("progress-unknown", Severity.UNKNOWN)
    assert well(replace(seen, jobs=(job(start=1e6 - 1000),)))
    assert well(replace(seen, jobs=(job("PENDING", "Priority"),)))


def test_a_log_that_cannot_be_read_is_unknown_unless_nothing_ever_ran() -> None:
    unread = healthy(log=Unknown("log /x: Permission denied"))
    assert "Permission denied" in only("log-unknown", unread).summary
    queued = (job("PENDING", "Priority"),)
    new = healthy(log=Unknown("no log"), jobs=queued, checkpoints=(), pointer=Pointer("", None, "missing"))
    assert well(new)


@pytest.mark.parametrize(
    "pointer",
    [
        Pointer("", None, "missing"),
        Pointer("", None, "empty"),
        Pointer("opt_step-500", 500, "a relative path"),
        Pointer(f"{DIR}/opt_step-77", 77),
        Pointer(f"{DIR}/somewhere", None),
    ],
)
def test_a_broken_pointer(pointer: Pointer) -> None:
    sign = Sign(Path(f"{DIR}/latest_opt_step_dir"), pointer.text)
    finding = only("pointer-broken", healthy(pointer=replace(pointer, signs=(sign,))))
    assert finding.severity is Severity.CRITICAL
    assert finding.evidence[0] == f"{DIR}/latest_opt_step_dir"
    assert finding.actions == ("m4ops rewind --to latest",)


def test_what_cannot_be_seen_of_the_checkpoints_is_unknown() -> None:
    for snapshot, kind in (
        (healthy(pointer=Unknown("Permission denied")), "pointer-broken"),
        (healthy(checkpoints=Unknown("Permission denied")), "checkpoints-unknown"),
    ):
        assert only(kind, snapshot).severity is Severity.UNKNOWN


def test_an_incomplete_checkpoint_matters_where_the_pointer_is() -> None:
    first, second = checkpoints(500, 1000)
    torn = {"problems": ("finished-saving is missing",)}
    assert well(healthy(checkpoints=(first, replace(second, **torn))))
    finding = only("checkpoint-incomplete", healthy(checkpoints=(replace(first, **torn), second)))
    assert finding.severity is Severity.WARNING
    assert "finished-saving is missing" in finding.evidence[0]


@pytest.mark.parametrize(("where", "severity"), [(0, 2), (1, 2), (4, 1)])
def test_a_stray_file(where: int, severity: int) -> None:
    all_ = list(checkpoints(500, 1000, 1500, 2000, 2500))
    all_[where] = replace(all_[where], stray=("accelerator_state/custom_checkpoint_0.pkl.orig",))
    finding = only("stray-file", healthy(checkpoints=tuple(all_)))
    assert finding.severity == severity
    assert finding.evidence == (f"{all_[where].path}/accelerator_state/custom_checkpoint_0.pkl.orig",)


PAGES = {
    "loss-diverges", "loss-spikes", "node-failure", "job-not-in-queue", "log-stalled", "undo", "lr-mismatch",
    "pointer-broken", "save-late", "slow-down", "resume-differs",
}  # fmt: skip
TROUBLES: dict[str, Callable[[], tuple[Finding, ...]]] = {
    "lines": lambda: found(*story()),
    "nan": lambda: found(series([math.nan])),
    "queue": lambda: found([], snapshot=healthy(jobs=(), log=log_of(series([2.0])))),
    "log": lambda: found([], snapshot=healthy(log=Unknown("gone"))),
    "pointer": lambda: found([], snapshot=healthy(pointer=Pointer("", None, "empty"))),
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_every_finding_names_a_page_and_something_to_do(trouble: str) -> None:
    findings = TROUBLES[trouble]()
    assert findings
    for finding in findings:
        assert finding.runbook in PAGES
        assert finding.summary
        assert finding.actions


def test_a_low_bump_that_passes_is_never_called_a_divergence() -> None:
    losses = falling(900, seed=21, power=1.5)
    bump = [loss + (0.045 if 600 <= i < 640 else 0) for i, loss in enumerate(losses)]
    assert "loss-divergence" not in over_time(series(bump))


def peaks(i: int) -> float:
    """Three peaks one after the other, each up within ten rows and down within fifteen."""
    return 1.3 * min((i % 25) / 10, (25 - i % 25) / 15) if 0 <= i < 75 else 0.0


SLOW_HEALING: dict[str, Callable[[int], float]] = {
    "over sixty rows": lambda i: 1.5 * max(0.0, 1 - i / 60) if i >= 0 else 0.0,
    "with a tail": lambda i: 4.0 * 0.7**i + 0.3 * 0.97**i if i >= 0 else 0.0,
    "of three peaks": peaks,
    "that leaps late": lambda i: (0.5 if i < 4 else 4.0 * 0.8 ** (i - 4)) if i >= 0 else 0.0,
}


@pytest.mark.parametrize("shape", SLOW_HEALING)
def test_a_spike_on_its_way_back_is_no_reason_to_rewind(shape: str) -> None:
    losses = [loss + SLOW_HEALING[shape](i - 400) for i, loss in enumerate(falling(600, seed=11))]
    said = over_time(series(losses))
    assert "loss-spike" in said[401:405]
    assert "loss-divergence" not in said
    assert said[-60:] == [""] * 60
    raised = sum(now != before == "" for before, now in pairwise(said))
    assert raised == (3 if shape == "of three peaks" else 1)


STAYING: dict[str, Callable[[int], float]] = {
    "comes down half way": lambda i: 0.8 + 1.2 * 0.8**i,
    "wavers": lambda i: 0.9 + 0.6 * math.sin(i / 2),
    "stays": lambda i: 0.6,
}


@pytest.mark.parametrize("shape", STAYING)
def test_a_rise_that_stays_is_a_divergence_whatever_it_does_up_there(shape: str) -> None:
    losses = [loss + (STAYING[shape](i - 400) if i >= 400 else 0) for i, loss in enumerate(falling(480, seed=11))]
    said = over_time(series(losses))
    assert "loss-divergence" in said[:440]
    assert said[-1] == "loss-divergence"


def test_a_jump_while_the_loss_creeps_is_told_too_and_the_rewind_goes_before_both() -> None:
    losses = falling(900, seed=21, power=1.5)
    creeping = [loss + 0.1 * min(1.0, max(0, i - 600) / 150) for i, loss in enumerate(losses)]
    jumped = [loss + (1.0 if i >= 800 else 0.0) for i, loss in enumerate(creeping)]
    (creep,) = found(series(creeping[:800]))
    both = found(series(jumped[:810]))
    assert sorted(kinds(both)) == ["loss-divergence", "loss-spike"]
    late = found(series(jumped))
    assert kinds(late) == ["loss-divergence"] * 2
    assert len({finding.key for finding in late}) == 2
    assert {finding.actions for finding in late} == {creep.actions}
    assert "m4ops rewind --to 1" in creep.actions[0]


def test_what_is_said_of_a_rise_is_true_when_it_is_said() -> None:
    losses = [loss + SLOW_HEALING["over sixty rows"](i - 400) for i, loss in enumerate(falling(440, seed=11))]
    rows = series(losses)
    assert found(rows[:402])[0].summary.endswith("at step 10050, undecided 1 logged row after the alarm")
    (late,) = found(rows)
    assert late.summary.startswith("loss rose from 2.0")
    assert late.summary.endswith("at step 11000, on its way back")
    (back,) = found(series([*diverging(), *falling(464, seed=12)[460:]]))
    assert back.kind == "loss-divergence"
    assert "on its way back" in back.summary


def norms(rows: int, spike: int | None = None) -> list[Sample]:
    """A healthy series with a gradient norm that is twenty times its usual at one row."""
    return [
        replace(s, grad_norm=20.0 if i == spike else 1.0 + 0.3 * (i % 3))
        for i, s in enumerate(series(falling(rows, seed=2)))
    ]


def test_a_gradient_norm_far_above_its_usual_is_an_early_alarm() -> None:
    said = over_time(norms(130, spike=100))
    assert said[100] == "grad-norm-spike"
    assert set(said[:100] + said[115:]) == {""}


def test_the_gradient_norm_is_judged_by_its_own_noise() -> None:
    """Three times the usual is much for a calm norm and nothing for a wild one; ten times is much for any."""

    def said(spread: float, factor: float) -> list[str]:
        draw = random.Random(7)
        rows = [replace(s, grad_norm=math.exp(draw.gauss(0, spread))) for s in series(falling(160, seed=2))]
        for i in (140, 141):
            rows[i] = replace(rows[i], grad_norm=factor)
        return over_time(rows)[140:143]

    assert said(0.05, 3.0) == ["", "grad-norm-spike", "grad-norm-spike"]
    assert said(0.5, 3.0) == [""] * 3
    assert said(0.5, 40.0) == ["grad-norm-spike"] * 3


def scaled(scales: Sequence[float]) -> list[Sample]:
    return [replace(s, fields={"loss scale": x}) for s, x in zip(series(falling(len(scales), 2)), scales, strict=True)]


def test_a_loss_scale_that_falls_without_end_is_a_collapse() -> None:
    searched = [2.0**32 / 2**i for i in range(16)]
    steady = [65536.0 * (2 if i % 40 > 20 else 1) for i in range(120)]
    assert set(over_time(scaled(searched + steady))) == {""}
    (falls,) = found(scaled([*steady, *[65536.0 / 2**i for i in range(10)]]))
    assert (falls.kind, falls.severity) == ("fp16-collapse", Severity.WARNING)
    assert "the loss scale fell from 131072 to 128" in falls.summary
    (least,) = found(scaled([*steady, *[65536.0 / 2**i for i in range(17)]]))
    assert least.severity is Severity.CRITICAL


def by_dataset(cm4: float, whole: float, rows: int = 200) -> list[Sample]:
    """Two data sets' losses beside the whole's; the last 6 rows of cm4 and of the whole are higher by so much."""
    draw = random.Random(3)
    out = []
    for i, sample in enumerate(series([2.0 + draw.gauss(0, 0.01) for _ in range(rows)])):
        late = i >= rows - 6
        parts = {"cm4": 1.7 + draw.gauss(0, 0.03) + cm4 * late, "laion": 2.4 + draw.gauss(0, 0.03)}
        fields = {"per_token_loss": sample.loss, **{f"per_token_loss/{k}": v for k, v in parts.items()}}
        out.append(replace(sample, loss=sample.loss + whole * late, fields=fields))
    return out


def test_a_spike_is_said_with_the_data_that_caused_it() -> None:
    (finding,) = found(by_dataset(0.9, 0.5))
    assert finding.kind == "loss-spike"
    assert "of the data sets rose cm4 from 1." in finding.summary
    assert "laion" not in finding.summary
    (alone,) = found(by_dataset(0.9, 0.0))
    assert (alone.kind, alone.severity, alone.step) == ("dataset-spike", Severity.WARNING, 196 * EVERY)
    assert "cm4 from 1." in alone.summary
    (whole,) = found(by_dataset(0.0, 0.5))
    assert "data set" not in whole.summary
    assert found(by_dataset(0.0, 0.0)) == ()


def test_a_data_set_that_comes_back_is_forgotten() -> None:
    rows = by_dataset(0.9, 0.0)
    last = rows[-1]
    calm = [
        replace(s, step=last.step + EVERY * (i + 1), line=300 + i, offset=(300 + i) * WIDTH, elapsed=None)
        for i, s in enumerate(rows[:40])
    ]
    assert found(rows + calm) == ()


def test_steps_that_are_skipped_one_after_the_other_are_a_collapse() -> None:
    rows = series(falling(50, seed=3))
    skipped = [replace(event("skipped-steps", 51 + i), value=str(8192 / 2**i)) for i in range(3)]
    (one,) = found(rows, skipped[:1])
    assert (one.kind, one.severity, one.line) == ("fp16-collapse", Severity.WARNING, 51)
    (three,) = found(rows, skipped)
    assert three.severity is Severity.CRITICAL
    assert found([], skipped) == ()
    assert found(rows + series([2.0] * 20, first=1275, line=60), skipped) == ()


def test_a_nan_that_the_trainer_hides_behind_a_zero_is_seen() -> None:
    rows = series(falling(50, seed=3))
    (finding,) = found([*rows, replace(series([0.0], first=1275, line=51)[0], grad_norm=math.nan)])
    assert (finding.kind, finding.step) == ("loss-nan", 1275)


def test_quantiles_are_those_of_statistics() -> None:
    draw = random.Random(5)
    for count in range(2, 50):
        values = [draw.choice((draw.gauss(0, 1), draw.randint(0, 9))) for _ in range(count)]
        assert median(values) == statistics.median(values)
        low, _, high = statistics.quantiles(values, n=4)
        assert quartiles(values) == (low, high)
