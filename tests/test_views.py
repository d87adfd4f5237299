"""What a person reads on the screen and a program in the JSON, for runs built by hand."""

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from ops import actions as act
from ops import plan as plans
from ops.detectors.promise import overall
from ops.model import (
    Change,
    Checkpoint,
    EvalLine,
    Evals,
    Expectation,
    Finding,
    Job,
    LogEvent,
    LogView,
    Pointer,
    Run,
    Sample,
    Severity,
    Snapshot,
    Unknown,
)
from ops.pace import seconds_per_step
from ops.plan import Cost, Plan
from ops.views import data, tables, words
from ops.views.findings import findings_text
from ops.views.plan import plan_text
from ops.views.plot import plot_text
from ops.views.promises import checks_of
from ops.views.record import svg
from ops.views.status import status_text, verdict

NOW = 1716891062.0
HERE = Path("/scratch/runs/tr_190_01")
RUN = Run(HERE, "tr_190_01", log=HERE / "logs/main_log.txt", kill_switch=HERE / "kill_switch")
ESCAPE = "\x1b"


def job(task: str = "3", state: str = "RUNNING", reason: str = "None", **more: object) -> Job:
    name = f"77_[{task}]" if "-" in task else f"77_{task}"
    base = Job(name, "77", task, "77", state, reason, RUN.name, "alice", "", 64)
    return replace(base, **more)  # type: ignore[arg-type]


def sample(step: int, loss: float = 2.0, lr: float | None = 1e-5, elapsed: float | None = None) -> Sample:
    seconds = step * 14.4 if elapsed is None else elapsed
    return Sample(step, loss, lr, step, step * 100, NOW - 60, seconds, 500)


def log(*samples: Sample, events: tuple[LogEvent, ...] = ()) -> LogView:
    return LogView(HERE / "logs/main_log.txt", 40_000, NOW - 45, samples, events)


CHECKPOINTS = tuple(
    Checkpoint(n, RUN.dir / f"opt_step-{n}", saved=NOW - 600, size=1_500_000_000, wandb_id="3fj2k1ab")
    for n in (100, 150)
)
UNFINISHED = Checkpoint(200, RUN.dir / "opt_step-200", problems=("no finished-saving",), size=10)
EVALS = Evals(
    HERE / "tr_190_01_evaluations.jsonl",
    "sha256:0",
    (
        EvalLine(1, 100, "VQAv2", "{'vqa_accuracy': 0.3123}", 4),
        EvalLine(2, 150, "VQAv2", "{'vqa_accuracy': 0.5}", 4),
        EvalLine(3, 150, "COCO", '{"cider": 61.25, "bleu": 0.2}', 0),
        EvalLine(4, None, problem="torn: no JSON"),
        EvalLine(5, None, "Flickr", problem="foreign: no step in model_name_or_path"),
    ),
    (1, 2),
)
CHANGE = Change(
    id="c1",
    time=NOW - 7200,
    user="alice",
    title="rewind to opt_step-150",
    command="m4ops rewind --to 150",
    status="applied",
    expectation=Expectation(resume_step=150, lr=((151, 1e-5), (400, 1e-5))),
    log_offset=15_050,
)
WELL = Snapshot(
    run=RUN,
    now=NOW,
    user="alice",
    jobs=(
        job(nodes="iam[01-64]", start=NOW - 7500, end=NOW + 64500),
        job("4-20%1", "PENDING", "JobArrayTaskLimit", start=NOW + 64500),
    ),
    pointer=Pointer(str(RUN.dir / "opt_step-150"), 150),
    checkpoints=CHECKPOINTS,
    log=log(*(sample(n) for n in range(151, 201))),
    evals=EVALS,
    history=(CHANGE,),
    kill_switch_set=False,
)
DIVERGED = Finding(
    "loss-divergence",
    Severity.CRITICAL,
    "loss diverges since step 180",
    ("main_log.txt:180", "main_log.txt:181", "main_log.txt:182"),
    step=180,
    runbook="loss-diverges",
    actions=("m4ops rewind --to 150",),
)
STALLED = Finding("log-stalled", Severity.WARNING, "nothing logged for 30 min")


def line_of(text: str, label: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(label))


# status


def test_a_healthy_run_is_one_screen_that_answers_the_questions() -> None:
    text = status_text(WELL, ())
    assert text.splitlines()[0].split()[:2] == ["OK", "tr_190_01"]
    assert str(HERE) in text
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 100
    for fact in (
        "77_3",
        "for 2 h 05 min, 17 h 55 min left",
        "64 nodes: iam[01-64]",
        "start in 17 h 55 min",
        "17 tasks (%1)",
        "JobArrayTaskLimit: waits for a running task of its own array",
        "step 200 of 500 (40.0%) · loss 2.0000 · lr 1.000E-05",
        "14.4 s/step · 250 steps/h · 1 h 12 min of training left",
        "log written 45 s ago",
        "a resume starts at step 150 · ok",
        "newest complete 150, saved 10 min ago · 2 in all · 3.0 GB",
        "rewind to opt_step-150 · c1 by alice, 2 h 00 min ago",
        "applied · shown by the log: yes",
    ):
        assert fact in text


def test_the_kill_switch_is_shown_when_set_and_only_then() -> None:
    assert "kill switch" not in status_text(WELL, ())
    text = status_text(replace(WELL, kill_switch_set=True), ())
    assert "SET" in line_of(text, "kill switch")
    assert f"rm {HERE / 'kill_switch'}" in text


@pytest.mark.parametrize(
    ("source", "label"),
    [("jobs", "jobs"), ("log", "progress"), ("pointer", "pointer"), ("checkpoints", "checkpoints")],
)
def test_what_was_not_seen_is_unknown_with_its_reason_and_the_run_is_not_ok(source: str, label: str) -> None:
    blind = replace(WELL, **{source: Unknown("connect failure")})  # type: ignore[arg-type]
    text = status_text(blind, ())
    assert line_of(text, label).split(None, 1)[1] == "UNKNOWN (connect failure)"
    assert text.split()[0] == "UNKNOWN"
    assert f"not seen: {source}" in text
    assert not re.search(r"\bOK\b", text)
    assert verdict(blind, (STALLED,)) is Severity.UNKNOWN
    assert verdict(blind, (DIVERGED,)) is Severity.CRITICAL


@pytest.mark.parametrize(
    ("source", "label"),
    [("evals", "evals"), ("history", "last change"), ("kill_switch_set", "kill switch")],
)
def test_a_lesser_source_that_was_not_seen_is_said_too(source: str, label: str) -> None:
    blind = replace(WELL, **{source: Unknown("permission denied")})  # type: ignore[arg-type]
    assert "UNKNOWN (permission denied)" in line_of(status_text(blind, ()), label)


def test_no_job_in_the_queue_does_not_look_like_an_empty_cell() -> None:
    assert "NONE in the queue" in line_of(status_text(replace(WELL, jobs=()), ()), "jobs")


def test_the_worst_finding_comes_first_with_its_commands() -> None:
    text = status_text(WELL, (STALLED, DIVERGED))
    assert text.split()[0] == "CRITICAL"
    assert "1 critical, 1 warning" in text.splitlines()[0]
    assert text.index(DIVERGED.summary) < text.index(STALLED.summary)
    assert "consider  m4ops rewind --to 150" in text
    assert "runbooks/loss-diverges.md" in text
    assert "… and 1 more" in text, "evidence left out is counted"
    assert len(text.splitlines()) <= 30


def test_many_findings_are_all_named() -> None:
    many = [replace(STALLED, summary=f"trouble number {n}") for n in range(12)]
    text = status_text(WELL, many)
    assert all(f"trouble number {n}" in text for n in range(12))


def test_a_held_job_is_not_called_pending() -> None:
    text = status_text(replace(WELL, jobs=(job("4", "PENDING", "JobHeldUser"),)), ())
    assert line_of(text, "jobs").split()[1] == "HELD"
    assert "m4ops release" in text


@pytest.mark.parametrize(
    ("pointer", "said"),
    [
        (Pointer("", None, "empty"), "BROKEN: empty"),
        (Pointer("/x/opt_step-175", 175), "BROKEN: there is no opt_step-175"),
        (Pointer("/x/opt_step-200", 200), "BROKEN: no finished-saving"),
    ],
)
def test_a_pointer_that_no_resume_can_take_is_broken(pointer: Pointer, said: str) -> None:
    found = replace(WELL, pointer=pointer, checkpoints=(*CHECKPOINTS, UNFINISHED))
    assert said in line_of(status_text(found, ()), "pointer")


def test_a_pointer_is_not_ok_while_its_checkpoint_was_not_seen() -> None:
    row = line_of(status_text(replace(WELL, checkpoints=Unknown("stale handle")), ()), "pointer")
    assert "UNKNOWN" in row and "ok" not in row.split()


def test_a_broken_promise_of_the_last_change_is_not_ok() -> None:
    wrong = replace(WELL, log=log(*(sample(n, lr=1.5e-5) for n in range(151, 201))))
    text = status_text(wrong, ())
    assert text.split()[0] == "WARNING"
    assert "shown by the log: NO" in text
    assert "1e-05 at step 151, the log shows 1.5e-05" in text


def test_a_change_too_far_back_in_a_partly_read_log_is_unknown_not_broken() -> None:
    late = replace(log(*(sample(n) for n in range(400, 451))), size=90_000_000, begin=89_000_000)
    text = status_text(replace(WELL, log=late), ())
    assert "shown by the log: UNKNOWN" in text
    assert text.split()[0] == "OK"


def test_the_whole_log_is_always_enough_to_check_a_change() -> None:
    whole = replace(log(*(sample(n) for n in range(151, 201))), size=90_000_000)
    change = replace(CHANGE, log_offset=10)
    assert isinstance(checks_of(replace(WELL, log=replace(whole, begin=11)), change), Unknown)
    assert overall(checks_of(replace(WELL, log=whole), change) or ()) == "yes"


def test_a_log_that_became_shorter_is_another_log() -> None:
    text = status_text(replace(WELL, log=replace(log(sample(151)), size=100)), ())
    assert "shown by the log: UNKNOWN (main_log.txt is shorter" in text


def test_a_change_before_its_resume_is_not_yet_shown() -> None:
    quiet = replace(WELL, log=log(*(sample(n) for n in range(100, 141))))
    assert "shown by the log: not yet" in status_text(quiet, ())


def test_an_old_progress_line_in_a_fresh_log_is_told_apart() -> None:
    old = log(replace(sample(199), time=NOW - 3600), replace(sample(200), time=NOW - 3590))
    assert "but the last progress line 59 min ago" in line_of(status_text(replace(WELL, log=old), ()), "last")


def test_a_nan_loss_and_an_empty_log_are_said() -> None:
    assert "loss NaN" in status_text(replace(WELL, log=log(sample(1, math.nan))), ())
    assert "UNKNOWN (no progress line" in status_text(replace(WELL, log=log()), ())


def test_speed_is_of_the_present_job_alone() -> None:
    first = [sample(n, elapsed=n * 100.0) for n in range(1, 5)]
    second = [sample(n, elapsed=(n - 3) * 2.0) for n in range(3, 9)]
    assert seconds_per_step([*first, *second]) == pytest.approx(2.0)
    assert seconds_per_step(first[:1]) is None
    assert "UNKNOWN (fewer than two" in status_text(replace(WELL, log=log(sample(5))), ())


def test_another_users_job_is_marked() -> None:
    assert "77_3 of bob" in status_text(replace(WELL, jobs=(job(user="bob"),)), ())


# no terminal


FOREIGN = f"{ESCAPE}[31mred{ESCAPE}[0m {ESCAPE}]0;title\x07 \udcff\n{ESCAPE}[2J"


def every_text(color: bool) -> Iterator[str]:
    dirty = replace(
        WELL,
        jobs=(job(reason=FOREIGN, nodes=FOREIGN, user=FOREIGN),),
        checkpoints=(*CHECKPOINTS, replace(UNFINISHED, problems=(FOREIGN,), stray=(FOREIGN,))),
        evals=replace(EVALS, lines=(*EVALS.lines, EvalLine(6, None, FOREIGN, problem=FOREIGN))),
        history=(replace(CHANGE, title=FOREIGN, command=FOREIGN, status="unfinished"),),
    )
    finding = replace(DIVERGED, summary=FOREIGN, evidence=(FOREIGN,), actions=(FOREIGN,))
    yield status_text(dirty, (finding,), color)
    yield status_text(replace(dirty, jobs=Unknown(FOREIGN), log=Unknown(FOREIGN)), (), color)
    yield findings_text((finding,), color)
    yield tables.checkpoints_text(dirty, color)
    yield tables.evals_text(dirty, color)
    yield tables.history_text(dirty, color)
    yield plan_text(replace(REWIND, title=FOREIGN, notes=(FOREIGN,)), color)
    yield plot_text(TWO_BRANCHES, color=color)


def test_without_colour_there_is_no_escape_code_even_from_a_log() -> None:
    for text in every_text(color=False):
        assert ESCAPE not in text and "\x07" not in text
        text.encode("utf-8")


def test_colour_changes_nothing_but_colour() -> None:
    for plain, coloured in zip(every_text(False), every_text(True), strict=True):
        assert ESCAPE in coloured
        assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


# tables


def test_checkpoints_say_what_is_missing_and_where_a_resume_starts() -> None:
    found = replace(WELL, checkpoints=(UNFINISHED, *CHECKPOINTS), folders=("", "exp_1"))
    text = tables.checkpoints_text(found)
    assert "a resume starts here" in next(x for x in text.splitlines() if x.startswith(" 150"))
    assert text.count("a resume starts here") == 1
    assert text.index(" 150 ") < text.index("UNUSABLE") < text.index("no finished-saving")
    assert "discarded/: exp_1" in text
    assert "UNKNOWN (io)" in tables.checkpoints_text(replace(WELL, checkpoints=Unknown("io")))


def test_stray_files_are_named() -> None:
    stray = replace(CHECKPOINTS[0], stray=("accelerator_state/custom_checkpoint_0.pkl.orig",))
    assert "custom_checkpoint_0.pkl.orig" in tables.checkpoints_text(replace(WELL, checkpoints=(stray,)))


def test_evals_are_scores_by_step_and_every_line_is_accounted_for() -> None:
    text = tables.evals_text(WELL)
    rows = [line.split() for line in text.splitlines()]
    assert ["100", "0.3123", "-", "-"] in rows
    assert ["150", "0.5000", "61.2500", "0.2000"] in rows
    assert "2 lines of no checkpoint" in text
    assert "line 4: torn: no JSON" in text
    assert "line 5: foreign: no step in model_name_or_path (task Flickr)" in text


def test_a_step_evaluated_twice_shows_the_last_and_says_so() -> None:
    again = EvalLine(6, 100, "VQAv2", "{'vqa_accuracy': 0.9}", 4)
    text = tables.evals_text(replace(WELL, evals=replace(EVALS, lines=(*EVALS.lines, again))))
    assert "0.9000*" in text and "more than once" in text


def test_many_tasks_stay_within_the_width() -> None:
    lines = tuple(EvalLine(n, 100, f"a_task_with_a_long_name_{n}", "{'acc': 1}") for n in range(12))
    text = tables.evals_text(replace(WELL, evals=replace(EVALS, lines=lines)), width=80)
    assert max(map(len, text.splitlines())) <= 80
    assert all(f"a_task_with_a_long_name_{n}" in text for n in range(12))


@pytest.mark.parametrize(
    ("score", "numbers"),
    [
        ("{'a': 1, 'b': 'x', 'c': True}", {"a": 1.0}),
        ('{"a": 0.5, "b": null}', {"a": 0.5}),
        ("0.25", {"": 0.25}),
        ("__import__('os').system('true')", {}),
        ("{'a': ", {}),
    ],
)
def test_scores_are_read_and_never_run(score: str, numbers: dict[str, float]) -> None:
    assert tables.parse_score(score) == numbers


def test_history_shows_who_did_what_and_what_is_unfinished() -> None:
    undone = replace(CHANGE, status="undone")
    half = replace(CHANGE, id="c2", status="unfinished", undoes="c1")
    text = tables.history_text(replace(WELL, history=(undone, half)))
    assert "$ m4ops rewind --to 150" in text
    assert "takes back c1" in text
    assert "m4ops undo" in text
    assert "undone" in text
    assert tables.history_text(replace(WELL, history=())) == "m4ops has changed nothing in this run"


# plan


def at(name: str) -> str:
    return str(HERE / name)


REWIND = Plan(
    run=str(HERE),
    title="rewind to opt_step-150",
    actions=(
        act.Schedule("hold", "77"),
        act.WaitFor("stopped", 1800.0),
        act.SetJson(at("opt_step-150/resume_run_infos.json"), "wandb_run_id", '"3fj"', '""'),
        act.Folder(at("discarded")),
        *(act.Move(at(f"opt_step-{n}"), at(f"discarded/opt_step-{n}")) for n in range(200, 2000, 50)),
        act.WriteText(at("latest_opt_step_dir"), at("opt_step-1950"), at("opt_step-150")),
        act.Schedule("cancel", "77_3"),
    ),
    expectation=Expectation(150, ((151, 7.5e-6),), wandb_new=True, wandb_id="3fj"),
    cost=Cost(1800, None),
    notes=("2 evaluation lines have no step",),
)


def test_a_plan_is_numbered_in_the_order_it_runs_and_says_what_it_leaves_out() -> None:
    text = plan_text(REWIND)
    numbers = [int(n) for n in re.findall(r"^ *(\d+)\. ", text, re.MULTILINE)]
    assert numbers == sorted(numbers)
    assert numbers[-1] == len(REWIND.actions)
    left_out = int(re.findall(r"… (\d+) more like these", text)[0])
    assert len(numbers) + left_out == len(REWIND.actions)
    assert "latest_opt_step_dir: opt_step-1950 → opt_step-150" in text, "paths are relative to the run"


def test_a_plan_says_cost_promise_note_and_what_has_no_way_back() -> None:
    text = plan_text(REWIND)
    assert "1800 steps of training, UNKNOWN node-hours" in line_of(text, "costs")
    assert "from step 150" in line_of(text, "the log must show")
    assert "lr 7.500E-06 at step 151" in text
    assert "a new wandb run, not 3fj" in text
    assert "2 evaluation lines have no step" in line_of(text, "note")
    assert "cancel job 77_3" in line_of(text, "cannot be undone")
    assert "cannot be undone" not in plan_text(replace(REWIND, actions=REWIND.actions[:-1]))


def test_a_plan_that_does_nothing_says_so() -> None:
    assert "nothing to do" in plan_text(replace(REWIND, actions=()))


# plot


def course(steps: range, level: float = 2.0) -> list[Sample]:
    return [sample(n, level + math.exp(-n / 40) + 0.01 * (n % 3)) for n in steps]


BLOWN_UP = [sample(n, 2.0 + 1.2 ** (n - 160)) for n in range(160, 211)]
TWO_BRANCHES = (*course(range(1, 160)), *BLOWN_UP, *course(range(151, 261)))


def canvas(text: str) -> list[str]:
    return [
        line.partition("│")[2] or line.partition("┤")[2] for line in text.splitlines()[1:] if re.search("[│┤]", line)
    ]


def has_braille(text: str) -> bool:
    return any("\u2800" < c <= "\u28ff" for c in text)


def test_a_discarded_branch_is_drawn_apart_and_named() -> None:
    text = plot_text(TWO_BRANCHES, 100, 20)
    assert "· discarded: steps 151-210 (trained again from step 151)" in text
    assert sum(row.count("·") for row in canvas(text)) > 5
    assert max(map(len, text.splitlines())) <= 100
    alone = plot_text(course(range(1, 261)), 100, 20)
    assert "discarded" not in alone and "·" not in alone


def test_a_divergence_does_not_press_the_living_branch_flat() -> None:
    text = plot_text(TWO_BRANCHES, 100, 20)
    assert sum(has_braille(row) for row in canvas(text)) >= 10
    assert "▲" in canvas(text)[0]
    assert "▲ above the picture, as far as 9102" in text


def test_a_diverged_loss_that_is_the_present_one_is_seen_to_rise() -> None:
    text = plot_text((*course(range(1, 160)), *BLOWN_UP), 100, 20)
    assert "discarded" not in text
    assert sum(has_braille(row) for row in canvas(text)) >= 10
    assert canvas(text)[0].rstrip().endswith("▲")


def test_nan_is_marked_at_its_place() -> None:
    text = plot_text((*course(range(1, 100)), sample(100, math.nan), sample(101, math.nan)), 60, 12)
    assert canvas(text)[0].rstrip().endswith("×")
    assert "× NaN at steps 100, 101" in text


def test_ticks_are_round_and_stand_where_their_values_are() -> None:
    text = plot_text([sample(n, n / 100) for n in range(201)], 80, 20)
    heights = {line.split("┤")[0].strip(): i for i, line in enumerate(text.splitlines()) if "┤" in line}
    assert {"0.0", "0.5", "1.0", "1.5", "2.0"} == set(heights)
    assert heights["2.0"] < heights["1.0"] < heights["0.0"]
    assert text.splitlines()[-1].split() == ["0", "50", "100", "150", "200"]


@pytest.mark.parametrize("losses", [[2.0], [1.6875] * 40, [0.0] * 3, [math.nan] * 3, [1e-7, 2e-7], [-1.0, 5e9]])
def test_odd_series_are_still_a_picture(losses: list[float]) -> None:
    text = plot_text([sample(n, v) for n, v in enumerate(losses)], 60, 10)
    assert any(has_braille(row) or "×" in row or "▲" in row for row in canvas(text))


def test_other_fields_can_be_plotted_and_a_missing_one_names_those_there_are() -> None:
    samples = [replace(sample(n), fields={"grad_norm": float(n)}) for n in range(20)]
    assert "grad_norm over 20 logged steps, now 19 at step 19" in plot_text(samples, field="grad_norm")
    assert "now 1.000E-05" in plot_text(samples, field="lr")
    assert "there are: grad_norm, loss, lr" in plot_text(samples, field="grad_nrom")
    assert "no progress line" in plot_text(())


# JSON


def parsed(view: data.Data) -> dict[str, object]:
    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    text = data.dumps(view)
    text.encode("utf-8")
    result: dict[str, object] = json.loads(text, parse_constant=refuse)
    return result


def views(snapshot: Snapshot) -> dict[str, data.Data]:
    return {
        "m4ops.status/1": data.status_json(snapshot, (DIVERGED,)),
        "m4ops.check/1": data.check_json(snapshot, (DIVERGED,)),
        "m4ops.checkpoints/1": data.checkpoints_json(snapshot),
        "m4ops.evals/1": data.evals_json(snapshot),
        "m4ops.history/1": data.history_json(snapshot),
        "m4ops.plot/1": data.plot_json(TWO_BRANCHES),
        "m4ops.plan/1": data.plan_json(REWIND),
    }


def test_every_view_is_valid_json_with_its_schema() -> None:
    dirty = replace(WELL, log=log(sample(1, math.nan, math.inf)), user="al\udcff")
    for schema, view in views(dirty).items():
        assert parsed(view)["schema"] == schema


def test_unknown_sources_are_unknown_in_json_too() -> None:
    gone = Unknown("io")
    blind = replace(WELL, jobs=gone, log=gone, pointer=gone, checkpoints=gone, evals=gone, history=gone)
    status = parsed(data.status_json(blind, ()))
    assert status["verdict"] == "UNKNOWN"
    for key in ("jobs", "progress", "log", "pointer", "checkpoints", "evals", "last_change"):
        assert status[key] == {"unknown": "io"}
    assert parsed(data.checkpoints_json(blind))["checkpoints"] == {"unknown": "io"}
    assert parsed(data.evals_json(blind))["evals"] == {"unknown": "io"}
    assert parsed(data.history_json(blind))["changes"] == {"unknown": "io"}
    assert parsed(data.check_json(blind, ()))["exit_code"] == 3


def test_status_json_holds_what_the_screen_shows() -> None:
    status = json.loads(data.dumps(data.status_json(WELL, (STALLED, DIVERGED))))
    assert status["jobs"][1]["meaning"].startswith("waits for a running task")
    assert status["progress"]["seconds_per_step"] == pytest.approx(14.4)
    assert status["pointer"] == {"text": str(RUN.dir / "opt_step-150"), "step": 150, "problem": "", "strays": []}
    assert status["checkpoints"]["newest_complete"] == 150
    assert status["last_change"]["verified"] == "yes"
    assert [f["severity"] for f in status["findings"]] == ["CRITICAL", "WARNING"]
    when = datetime.fromisoformat(status["time"])
    assert when.timestamp() == NOW and when.utcoffset() == timedelta(0)


def test_nan_is_null() -> None:
    plot = json.loads(data.dumps(data.plot_json([sample(1, math.nan), sample(2, 2.0)])))
    assert plot["branches"] == [{"live": [[1, None], [2, 2.0]], "discarded": [], "trained_again_from": None}]


def test_discarded_points_are_apart_in_json() -> None:
    old, new = json.loads(data.dumps(data.plot_json(TWO_BRANCHES)))["branches"]
    assert old["trained_again_from"] == 151
    assert old["live"][-1][0] == 150 and old["discarded"][0][0] == 151
    assert new["discarded"] == [] and new["live"][0][0] == 151


def test_a_plan_survives_its_json() -> None:
    assert plans.loads(data.dumps(data.plan_json(REWIND))) == REWIND


# the picture


def test_the_picture_is_one_svg_that_needs_nothing_from_elsewhere() -> None:
    transcript = [
        ("m4ops status", status_text(WELL, (DIVERGED,), color=True)),
        ("m4ops plot", plot_text(TWO_BRANCHES, 100, 20, color=True)),
        ("", "10%\r100% done\x1b[2K\x1b]0;a title\x07 & <so> \udcff\x00"),
    ]
    picture = svg(transcript, "m4ops & friends")
    root = ElementTree.fromstring(picture)
    assert set(re.findall(r"https?:[^\"'\s)]*", picture)) == {"http://www.w3.org/2000/svg"}
    assert "@font-face" not in picture and "@import" not in picture
    assert not re.search(r"url\((?!#)", picture)
    shown = "\n".join("".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")).replace("\xa0", " ")
    for text in ("m4ops & friends", "m4ops status", "CRITICAL", "100% done", "& <so>", "discarded: steps 151-210"):
        assert text in shown
    assert "10%\n" not in shown and "a title" not in shown
    assert not has_braille(picture), "dots are drawn: not every font has them"
    assert root.findall(".//{http://www.w3.org/2000/svg}path")


def test_columns_of_the_picture_are_where_the_terminal_has_them() -> None:
    root = ElementTree.fromstring(svg([("", "\x1b[1mab\x1b[0m   cd\n     ef")], "t"))
    places = {t.text: float(t.get("x", "-1")) for t in root.iter("{http://www.w3.org/2000/svg}text")}
    assert places["ab"] == 0.0
    assert places["cd"] == places["ef"] == pytest.approx(5 * 12.2)


# words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3599, "59 min"),
        (7500, "2 h 05 min"),
        (273600, "3 d 04 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_a_time_in_the_future_is_not_hidden() -> None:
    assert "FUTURE" in words.ago(-3600)


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.2 kB"), (999_960, "1.0 MB"), (1.2e9, "1.2 GB"), (3e11, "300 GB")],
)
def test_sizes(count: float, text: str) -> None:
    assert words.size(count) == text


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        ("Priority", "higher priority"),
        ("(Resources)", "nodes are free"),
        ("launch_failed_requeued_held", "m4ops release"),
        ("ReqNodeNotAvail, UnavailableNodes:n2", "down, drained or reserved"),
        ("QOSMaxJobsPerUserLimit", "its user runs as many jobs"),
        ("AssocGrpCpuLimit", "the jobs of its account together use all the CPUs they may"),
        ("AssocGrpGRESMinutes", "the GPU minutes of its account are used up"),
        ("QOSMaxGRESPerUser", "its user has all the GPUs that its QOS allows a user"),
        ("QOSMaxNodePerJobLimit", "asks for more nodes than its QOS may have in one job"),
    ],
)
def test_slurms_reasons_in_words(code: str, meaning: str) -> None:
    assert meaning in words.reason(code)


def test_a_reason_not_known_here_is_shown_as_slurm_says_it() -> None:
    assert words.reason("SomethingNew") == ""
    text = status_text(replace(WELL, jobs=(job("4", "PENDING", "SomethingNew"),)), ())
    assert "SomethingNew" in text
