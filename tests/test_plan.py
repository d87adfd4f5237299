"""A plan as a file: both ways, and only about its own run."""

from pathlib import Path

import pytest

from ops import plan as plans
from ops.actions import Edit, Folder, Move, PatchState, Rewrite, Schedule, SetJson, WaitFor, WriteText
from ops.errors import BadInput
from ops.model import Expectation, Run, Span
from ops.plan import Cost, Plan

RUN = Run(
    Path("/fsx/tr_1"), "tr_1", evals=Path("/fsx/evals/results/tr_1_evaluations.jsonl"), kill_switch=Path("/fsx/kill")
)
EVERY_KIND = (
    Schedule("hold", "12"),
    WriteText("/fsx/kill", None, "", "on"),
    WaitFor("stopped", 60, replan=True),
    PatchState("/fsx/tr_1/opt_step-5/accelerator_state/optimizer.bin", (Edit("lr", 8, 0.1, 0.05),)),
    Rewrite("/fsx/tr_1/opt_step-5/x.bin", "/fsx/tr_1/.m4ops/originals/x", "sha256:a", zero=(Span("m", 4, 9),)),
    Rewrite(
        str(RUN.evals), "/fsx/evals/results/tr_1_evaluations_archive_exp_1.jsonl", "sha256:b", keep=((1, 3), (5, 5))
    ),
    SetJson("/fsx/tr_1/opt_step-5/resume_run_infos.json", "wandb_run_id", '"a"', '""'),
    Folder("/fsx/tr_1/discarded"),
    Move("/fsx/tr_1/opt_step-9", "/fsx/tr_1/discarded/exp_1/opt_step-9"),
    WriteText("/fsx/tr_1/latest_opt_step_dir", "a\udcff", "b"),
)


def plan(*actions):
    promise = Expectation(5, ((6, 1e-5), (7, 2e-5)), wandb_new=True, wandb_id="a")
    return Plan(
        "/fsx/tr_1", "t", actions, wish={"kind": "rewind"}, expectation=promise, cost=Cost(4, 0.5), notes=("n",)
    )


def test_every_kind_of_action_survives_the_file():
    made = plan(*EVERY_KIND)
    assert plans.loads(plans.dumps(made)) == made


def test_undo_of_undo_is_the_plan_again():
    actions = tuple(a for a in EVERY_KIND if a.inverse() is not None and a.__class__ is not WriteText)
    back = plans.inverse(plan(*actions), "1", actions).actions
    assert plans.inverse(plan(*back), "2", back).actions == actions


def test_a_plan_of_this_run_names_nothing_foreign():
    assert plans.foreign(plan(*EVERY_KIND), RUN) == ()


@pytest.mark.parametrize(
    "path", ["/etc/cron.d/x", "/fsx/tr_2/latest_opt_step_dir", "/fsx/tr_1/../tr_2/x", "/fsx/tr_1", "/fsx/evals/x"]
)
def test_a_plan_that_reaches_out_of_its_run_is_told(path):
    assert plans.foreign(plan(WriteText(path, None, "x")), RUN) == (path,)
    assert plans.foreign(plan(Move("/fsx/tr_1/a", path)), RUN) == (path,)


ONE = plans.dumps(plan(EVERY_KIND[0]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": "m4ops.plan/2"}',
        '{"schema": "m4ops.plan/1"}',
        ONE.replace("schedule", "shell"),
        ONE.replace('"verb"', '"v"'),
    ],
)
def test_what_is_no_plan_is_bad_input(text):
    with pytest.raises(BadInput):
        plans.loads(text)
