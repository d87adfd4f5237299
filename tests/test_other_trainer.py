"""A trainer that shares no code with m4ops resumes from what m4ops left: step, LR, moments, from its first step on."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from runs import Run, m4ops, train

from ops.shell import Answer

RESUMED = ("--steps", "40", "--save-every", "10")


@dataclass(frozen=True)
class Step:
    """What the optimizer really had when it made this step."""

    step: int
    lrs: list[float]
    moments: int


def recorded(path: Path) -> list[Step]:
    return [Step(**json.loads(line)) for line in path.read_text().splitlines()]


@pytest.fixture
def unedited(run: Run) -> dict[int, Step]:
    """Every optimizer step of the run as it was, by step."""
    return {s.step: s for s in recorded(run.root / "lrs.jsonl")}


def resume(run: Run, *options: str) -> tuple[list[Step], str]:
    """The next job: its optimizer steps, and its output, which goes to the log as well."""
    record = run.root / "resumed.jsonl"
    said = train(run.dir, *RESUMED, "--lr-record", str(record), *options)
    return recorded(record), said


def test_rewound_with_half_the_lr(run: Run, unedited: dict[int, Step]) -> None:
    run.done("rewind", "--to", "20", "--scale-lr", "0.5", "-y")

    def asked(argv: Sequence[str], timeout: float) -> Answer:
        raise AssertionError(f"to wait for a line of the log asks nothing of the controller, not {argv}")

    assert m4ops("--run", str(run.dir), "verify", "--wait", "1", slurm=asked).code == 3
    steps, said = resume(run)
    assert f"Resuming from {run.dir}/opt_step-20" in said
    assert "`wandb_run_id`" in said
    assert [s.step for s in steps] == list(range(21, 41))
    for s in steps:
        assert s.lrs == [lr * 0.5 for lr in unedited[s.step].lrs], f"step {s.step}"
        assert s.moments == s.step - 1
    assert (
        json.loads(run.infos(40).read_text())["wandb_run_id"]
        != json.loads((run.dir / "discarded" / "exp_1" / "opt_step-40" / "resume_run_infos.json").read_text())[
            "wandb_run_id"
        ]
    )
    assert run.m4ops("verify").code == 0
    with (run.dir / "logs" / "main_log.txt").open("a") as log:
        log.write("n1: shard 7 ready\n" * 100_000)
    assert run.m4ops("verify").code == 0, "the lines that prove it are now far back"


def test_an_lr_set_to_a_value(run: Run, unedited: dict[int, Step]) -> None:
    run.done("rewind", "--to", "30", "-y")
    run.done("set-lr", "1e-4", "-y")
    steps, _ = resume(run)
    assert steps[0].lrs[0] == 1e-4
    factor = 1e-4 / unedited[31].lrs[0]
    for s in steps:
        assert s.lrs == pytest.approx([lr * factor for lr in unedited[s.step].lrs], rel=1e-12, abs=0)


def test_a_fresh_optimizer_with_the_lr_it_had(run: Run, unedited: dict[int, Step]) -> None:
    run.done("rewind", "--to", "20", "--reset-optimizer", "--scale-lr", "0.25", "-y")
    steps, _ = resume(run, "--until", "24")
    assert [s.moments for s in steps] == [0, 1, 2, 3]
    assert [s.lrs for s in steps] == [[lr * 0.25 for lr in unedited[s.step].lrs] for s in steps]


def test_without_learning_until_it_is_undone(run: Run, unedited: dict[int, Step]) -> None:
    run.done("rewind", "--to", "20", "-y")
    run.done("set-lr", "0", "-y")
    run.done("undo", "-y")
    steps, _ = resume(run, "--until", "22")
    assert [s.lrs for s in steps] == [unedited[21].lrs, unedited[22].lrs]


def test_a_resume_that_does_not_do_what_was_promised(run: Run) -> None:
    run.done("rewind", "--to", "20", "--scale-lr", "0.5", "-y")
    resume(run, "--steps", "80", "--until", "30")  # another schedule than the one that was promised
    said = run.m4ops("verify")
    assert said.code == 2
    assert "lr" in said.out and "no" in said.out
