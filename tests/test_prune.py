"""Retention: what the laws protect never goes, what goes can be taken back, and why is said of each checkpoint.

`M4OPS_CASES=100000 pytest tests/test_prune.py -k never_goes` looks at so many random trees.
"""

import os
import shutil
import time
from pathlib import Path

import pytest
import runs
from fake_slurm import Row
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from runs import Run

from ops.errors import BadInput, Refused
from ops.interventions import retention
from ops.interventions.retention import DAY, Candidate, Policy, Seen, judge, policy

CASES = int(os.environ.get("M4OPS_CASES", "400"))
NOW = 1_700_000_000.0
MARKERS = (
    "finished-upload-checkpoint", "started-upload-checkpoint", "started-cleanup-checkpoint",
    "run_evals_0_shots_done", "start_run_evals_0_shots", "start_run_evals_4_shots",
)  # fmt: skip


# -- random trees ----------------------------------------------------------------------------------------

times = st.one_of(st.none(), st.floats(NOW - 60 * DAY, NOW + 3 * DAY))
markers = st.lists(st.sampled_from(MARKERS), unique=True, max_size=4).map(tuple)
checkpoint = st.tuples(st.integers(0, 30).map(lambda n: 500 * n), st.sampled_from(["", "", "", "exp_1", "exp_2"]))


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[Candidate], Seen, Policy]:
    """A run with rewinds, pins, missing uploads, odd clocks, and any policy."""
    places = draw(st.lists(checkpoint, unique=True, min_size=1, max_size=16))
    candidates = [
        Candidate(
            step,
            Path(f"/r/{branch}/opt_step-{step}"),
            branch,
            draw(st.integers(0, 5)) > 0,
            draw(times),
            draw(markers),
            draw(st.sampled_from([None, None, True, False])),
        )
        for step, branch in places
    ]
    steps = [c.step for c in candidates]
    own = [c.step for c in candidates if not c.branch] or [0]
    some = st.frozensets(st.sampled_from(steps), max_size=3)
    scores = draw(st.lists(st.tuples(st.sampled_from(steps), st.sampled_from(["vqa", "ppl"]), st.floats()), max_size=8))
    seen = Seen(
        draw(st.floats(NOW - 400 * DAY, NOW + 400 * DAY)),
        draw(st.sampled_from(own)),
        draw(some),
        draw(some),
        tuple(scores),
        draw(some),
    )
    best = st.builds(retention.Best, st.integers(1, 3), st.sampled_from(["vqa", "ppl"]), st.booleans())
    wanted = Policy(
        draw(st.integers(2, 5)), draw(st.sampled_from([0, 0, 1000, 2500])), tuple(draw(st.lists(best, max_size=2))),
        draw(st.booleans()), draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from([0.0, DAY, 30 * DAY])),
    )  # fmt: skip
    return candidates, seen, wanted


def protected(c: Candidate, candidates: list[Candidate], seen: Seen, wanted: Policy) -> bool:
    """What must never go, written down a second time, one law a line."""
    kept = [o for o in candidates if not o.branch and o.complete and o.sound is not False and o.step <= seen.pointer]
    own = sorted(o.step for o in kept)
    verified = max((o.step for o in kept if o.sound), default=-1)
    clock = min(
        [
            seen.now,
            *(
                [max(o.saved for o in candidates if o.saved is not None)]
                if any(o.saved is not None for o in candidates)
                else []
            ),
        ]
    )
    age = -1.0 if c.saved is None else clock - c.saved
    uploading = "started-upload-checkpoint" in c.markers and "finished-upload-checkpoint" not in c.markers
    evaluating = "start_run_evals_4_shots" in c.markers or (
        "start_run_evals_0_shots" in c.markers and "run_evals_0_shots_done" not in c.markers
    )
    evaluated = "run_evals_0_shots_done" in c.markers or (not c.branch and c.step in seen.evaluated)
    return (
        (not c.branch and c.step == seen.pointer)
        or (not c.branch and c.step in own[-2:])
        or (not c.branch and c.step == verified)
        or c.sound is False
        or (not c.branch and c.step in own[-wanted.last :])
        or c.step in seen.pins
        or (not c.complete and age < DAY)
        or (not c.branch and c.step > seen.pointer and age < DAY)
        or uploading
        or "started-cleanup-checkpoint" in c.markers
        or evaluating
        or (wanted.uploaded and c.complete and "finished-upload-checkpoint" not in c.markers)
        or (wanted.evaluated and c.complete and not evaluated)
        or (bool(c.branch) and age < wanted.discarded)
    )


@settings(max_examples=CASES, suppress_health_check=list(HealthCheck))
@given(trees())
def test_what_the_laws_protect_never_goes(tree: tuple[list[Candidate], Seen, Policy]) -> None:
    candidates, seen, wanted = tree
    try:
        verdicts = judge(candidates, seen, wanted)
    except Refused:
        assert not any(c.step == seen.pointer and not c.branch for c in candidates) or wanted.best
        return
    assert sorted(v.candidate.path for v in verdicts) == sorted(c.path for c in candidates)
    for verdict in verdicts:
        if protected(verdict.candidate, candidates, seen, wanted):
            assert verdict.stays, verdict
    for verdict in verdicts:
        c = verdict.candidate
        if verdict.stays and not protected(c, candidates, seen, wanted):  # a rule of the operator's, and it says which
            assert any(r.startswith(("every", "best", "lowest", "around")) for r in verdict.reasons), verdict
            assert c.complete
            assert not c.branch


# -- rules -----------------------------------------------------------------------------------------------


def fates(steps: range, pointer: int, *rules: str, **seen: object) -> dict[int, tuple[str, ...]]:
    """The reasons of those that stay, of complete old checkpoints."""
    candidates = [Candidate(n, Path(f"/r/opt_step-{n}"), saved=NOW - (200 - n) * DAY) for n in steps]
    verdicts = judge([*candidates], Seen(NOW, pointer, **seen), policy(rules))  # type: ignore[arg-type]
    return {v.candidate.step: v.reasons for v in verdicts if v.stays}


def test_each_rule_keeps_what_it_names_and_says_so() -> None:
    assert list(fates(range(10, 100, 10), 90, "last 3")) == [70, 80, 90]
    assert list(fates(range(10, 100, 10), 90, "last 2", "every 40 steps")) == [40, 80, 90]
    assert list(fates(range(10, 100, 10), 90, "last 2", "around incidents", incidents=frozenset({35, 60}))) == [
        30,
        40,
        50,
        60,
        70,
        80,
        90,
    ]
    scores = (
        (10, "vqa", 0.1),
        (20, "vqa", 0.9),
        (30, "vqa", 0.8),
        (40, "vqa", float("nan")),
        (50, "ppl", 3.0),
        (60, "ppl", 2.0),
    )
    kept = fates(range(10, 100, 10), 90, "last 2", "best 2 by vqa", "lowest 1 by ppl", scores=scores)
    assert list(kept) == [20, 30, 60, 80, 90]
    assert kept[20] == ("best 2 by vqa",)
    assert kept[90] == ("one of the last two of the kept branch", "the next resume takes it", "one of the last 2")


def test_after_a_rewind_the_checkpoints_before_the_pointer_are_the_last_ones() -> None:
    """Clean-up by the two highest numbers deletes the checkpoint being resumed from, and keeps the diverged ones."""
    kept = fates(range(10, 100, 10), 40, "last 2")
    assert list(kept) == [30, 40, 90]
    assert kept[90] == ("beyond the pointer, and new",)  # by the run's own clock: nothing was saved after it


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ((), "no rule says how many"),
        (("every 100",), "no rule says how many"),
        (("last 1",), "fewer than two"),
        (("last 0",), "how many"),
        (("last two",), "is no rule"),
        (("last 3", "every 0"), "is no rule"),
        (("last 3", "best 2"), "is no rule"),
        (("last 3", "untill uploaded"), "is no rule"),
    ],
)
def test_an_absurd_policy_is_refused(rules: tuple[str, ...], said: str) -> None:
    with pytest.raises((Refused, BadInput), match=said):
        policy(rules)


def test_the_last_verified_stays_and_a_damaged_one_counts_for_nothing() -> None:
    def candidate(step: int, sound: bool | None) -> Candidate:
        return Candidate(step, Path(f"/r/opt_step-{step}"), saved=NOW - (200 - step) * DAY, sound=sound)

    found = [candidate(*c) for c in ((10, True), (20, True), (30, None), (40, None), (50, False), (60, None))]
    kept = {v.candidate.step: v.reasons for v in judge(found, Seen(NOW, 60), policy(["last 2"])) if v.stays}
    assert list(kept) == [20, 40, 50, 60]
    assert kept[20] == ("the last one that was verified",)
    assert kept[50] == ("verify-checkpoint found it damaged: look, then remove it yourself",)


def test_a_score_that_nobody_has_is_refused() -> None:
    with pytest.raises(Refused, match="no checkpoint has a score of 'vqa'") as error:
        fates(range(10, 100, 10), 90, "last 2", "best 1 by vqa", scores=((10, "vqaV2", 0.5),))
    assert "vqaV2" in error.value.hint


# -- on a run --------------------------------------------------------------------------------------------


def old(run: Run, days: float = 30) -> None:
    """Everything was saved long ago."""
    for path in [*run.dir.rglob("*"), run.dir]:
        os.utime(path, (time.time() - days * DAY,) * 2)


def steps(run: Run) -> list[int]:
    return sorted(int(p.name.split("-")[1]) for p in run.dir.glob("opt_step-*"))


def test_a_pruned_run_is_taken_back_byte_for_byte(run: Run) -> None:
    before = run.tree()
    seen = run.done("prune", "--keep", "last 2", "-n")
    assert run.tree() == before
    assert "opt_step-10" in seen.out
    assert "no rule keeps it" in seen.out
    assert "2 stay" in seen.out
    assert "2 go" in seen.out
    said = run.done("prune", "--keep", "last 2", "-y")
    assert steps(run) == [30, 40]
    assert "undo 1" in said.err
    assert "prune 2 of 4 checkpoints" in run.done("history").out
    run.done("undo", "-y")
    assert run.tree() == before


def test_a_running_job_is_no_obstacle_and_its_checkpoint_stays(run: Run) -> None:
    run.slurm.rows.append(Row("1", state="RUNNING", name=runs.NAME))
    run.done("prune", "--keep", "last 2", "-y")
    assert steps(run) == [30, 40]


def test_a_rewound_run_keeps_what_it_resumes_from(run: Run) -> None:
    old(run)
    run.done("rewind", "--to", "20", "-y")
    run.done("prune", "--keep", "last 2", "--keep", "discarded 0 days", "-y")
    assert steps(run) == [10, 20]
    assert not list((run.dir / "discarded").glob("*/opt_step-*"))
    run.done("undo", "-y")
    run.done("undo", "-y")
    assert steps(run) == [10, 20, 30, 40]


def test_a_fresh_discarded_branch_stays_so_that_the_rewind_can_be_undone(run: Run) -> None:
    old(run)
    run.done("rewind", "--to", "20", "-y")
    said = run.m4ops("prune", "--keep", "last 2", "-y")
    assert said.code == 1
    assert "nothing to prune" in said.err
    assert "its rewind can be undone" in said.out


def test_the_pointer_must_say_where_the_run_resumes(run: Run) -> None:
    before = run.tree()
    run.pointer.write_text("")
    said = run.m4ops("prune", "--keep", "last 2", "-y")
    assert said.code == 1
    assert "latest_opt_step_dir is broken" in said.err
    run.pointer.write_text(before[f"{runs.NAME}/latest_opt_step_dir"][1].decode())  # type: ignore[index]
    assert run.tree() == before


def test_pins_hold_until_they_are_taken_out(run: Run) -> None:
    run.done("prune", "--pin", "10", "--pin", "20", "--why", "for the paper", "-y")
    assert (run.dir / ".m4ops" / "pins").read_text() == "10 for the paper\n20 for the paper\n"
    said = run.m4ops("prune", "--keep", "last 2", "-y")
    assert "nothing to prune" in said.err
    assert "pinned" in said.out
    run.done("prune", "--unpin", "10", "-y")
    run.done("prune", "--keep", "last 2", "-y")
    assert steps(run) == [20, 30, 40]
    (run.dir / ".m4ops" / "pins").write_text("20\ntwenty\n")
    said = run.m4ops("prune", "--keep", "last 2", "-y")
    assert said.code == 1
    assert "line 2 of the pins" in said.err


def test_the_rules_of_m4ops_toml_are_the_default_and_none_is_refused(run: Run) -> None:
    assert "no rule says" in run.m4ops("prune", "-y").err
    (run.dir / "m4ops.toml").write_text('keep = ["last 2", "every 20", "until uploaded"]\n')
    assert "nothing to prune" in run.m4ops("prune", "-y").err
    (run.dir / "opt_step-10" / "finished-upload-checkpoint").touch()
    run.done("prune", "-y")
    assert steps(run) == [20, 30, 40]


def test_the_best_by_an_evaluation_stays(run: Run) -> None:
    lines = [runs.evaluation(run.dir, step, "vqa").replace("0.25", score) for step, score in ((10, "0.9"), (20, "0.1"))]
    run.evals.write_text("\n".join(lines))
    run.done("prune", "--keep", "last 2", "--keep", "best 1 by vqa/accuracy", "-y")
    assert steps(run) == [10, 30, 40]


def test_what_verify_checkpoint_read_is_known_to_prune(run: Run) -> None:
    run.done("verify-checkpoint", "20", "--deep")
    weights = run.state(40, "model.safetensors")
    with weights.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\xc0\x7f")  # NaN
    assert run.m4ops("verify-checkpoint", "40", "--deep").code == 2
    run.done("prune", "--keep", "last 2", "-y")
    assert steps(run) == [20, 30, 40]
    os.utime(run.state(20), (1, 1))  # no longer what was read
    said = run.m4ops("prune", "--keep", "last 2", "-y")
    assert "one of the last two" in said.out and "was verified" not in said.out  # 20 is one of two that are whole


def test_the_trash_is_emptied_only_after_its_grace_and_for_good(run: Run) -> None:
    run.done("prune", "--keep", "last 2", "-y")
    early = run.m4ops("prune", "--empty-trash", "-y")
    assert early.code == 1
    assert "older than 3 days" in early.err
    assert "stays" in early.out
    trash = run.dir / ".m4ops" / "trash"
    (folder,) = trash.iterdir()
    (trash / "somebody's").mkdir()
    assert "REMOVED FOR GOOD" in run.done("prune", "--empty-trash", "--older-than", "0", "-n").out
    assert folder.exists()
    run.done("prune", "--empty-trash", "--older-than", "0", "-y")
    assert [p.name for p in trash.iterdir()] == ["somebody's"]
    assert "empty the trash" in run.done("history").out
    assert "nothing to take back" in run.m4ops("undo", "2", "-y").err
    lost = run.m4ops("undo", "1", "-y")
    assert lost.code == 1
    assert "source missing" in lost.err
    assert steps(run) == [30, 40]


def test_a_removal_that_was_cut_short_is_finished_the_next_time(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.done("prune", "--keep", "last 2", "-y")

    def killed(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        assert "Input/output error" in run.m4ops("prune", "--empty-trash", "--older-than", "0", "-y").err
    run.done("prune", "--empty-trash", "-y")
    assert not list((run.dir / ".m4ops" / "trash").iterdir())
