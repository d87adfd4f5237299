"""`m4ops scale-lr --group`: one parameter group's LR, and no other's."""

import json

import runs
import torch
from runs import Run

FACTOR = 0.25


def test_one_group_resumes_with_the_scaled_lr_and_the_other_as_before(run: Run) -> None:
    before = [json.loads(line) for line in (run.root / "lrs.jsonl").read_text().splitlines()]
    run.done("rewind", "--to", "20", "-y")
    run.done("scale-lr", str(FACTOR), "--group", "1", "--at", "20", "-y")
    record = run.root / "resumed.jsonl"
    runs.train(run.dir, "--steps", "40", "--until", "26", "--lr-record", str(record))
    resumed = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["step"] for line in resumed] == list(range(21, 27))
    for was, now in zip(before[20:26], resumed, strict=True):
        assert now["lrs"] == [was["lrs"][0], FACTOR * was["lrs"][1]]


def test_it_is_undone_to_the_byte_and_an_unknown_group_is_an_error(run: Run) -> None:
    before = run.tree()
    run.done("scale-lr", str(FACTOR), "--group", "0", "--at", "30", "-y")
    assert run.tree() != before
    run.done("undo", "-y")
    assert run.tree() == before
    for words in (("scale-lr", "0.5"), ("set-lr", "1e-4"), ("set-lr", "1e-4", "--peak")):
        said = run.m4ops(*words, "--group", "2", "--at", "30", "-y")
        assert (said.code, "groups: 0, 1" in said.err) == (1, True), said.err


def test_a_floor_of_all_groups_cannot_be_scaled_for_one(run: Run) -> None:
    path = run.state(30)
    state = torch.load(path, weights_only=False)
    torch.save({**state, "eta_min": 1e-5}, path)
    said = run.m4ops("scale-lr", "0.5", "--group", "1", "--at", "30", "-y")
    assert said.code == 1
    assert "eta_min is one number for all groups" in said.err
