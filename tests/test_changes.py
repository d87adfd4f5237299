"""Each change does exactly what it promised, and its undo leaves no trace."""

import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_slurm import FakeSlurm, Row
from runs import Run, changed

from ops import snapshot
from ops.executor import files
from ops.model import LOOK

EVALS = "evals/results/tr_other_evaluations.jsonl"
ARCHIVE = "evals/results/tr_other_evaluations_archive_exp_{}.jsonl"
POINTER = "tr_other/latest_opt_step_dir"


def state_of(run: Run, step: int, name: str) -> Any:
    return torch.load(run.state(step, name), weights_only=True)


def scheduler(step: int) -> str:
    return f"tr_other/opt_step-{step}/accelerator_state/custom_checkpoint_0.pkl"


def optimizer(step: int) -> str:
    return f"tr_other/opt_step-{step}/accelerator_state/optimizer.bin"


def infos(step: int) -> str:
    return f"tr_other/opt_step-{step}/resume_run_infos.json"


def without_discarded(paths: set[str], *steps: int) -> set[str]:
    """The changed paths but those of checkpoints that were moved, which are told otherwise."""
    moved = [f"tr_other/{where}opt_step-{s}" for s in steps for where in ("", "discarded/exp_1/")]
    return {p for p in paths if not any(p == m or p.startswith(m + "/") for m in moved)}


# -- rewind ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("to", "step"), [("20", 20), ("latest", 40), ("-1", 30), ("-3", 10)])
def test_rewind_points_where_it_is_told(run: Run, to: str, step: int) -> None:
    before = run.tree()
    run.done("rewind", "--to", to, "-y")
    assert run.pointer.read_bytes() == os.fsencode(run.dir / f"opt_step-{step}")
    run.done("undo", "-y")
    assert run.tree() == before


def test_rewind_changes_what_belongs_to_it_and_nothing_else(run: Run) -> None:
    before = run.tree()
    run.done("rewind", "--to", "20", "-y")
    after = run.tree()
    discarded = {"tr_other/discarded", "tr_other/discarded/exp_1"}
    assert without_discarded(changed(before, after), 30, 40) == {
        POINTER, infos(20), EVALS, ARCHIVE.format(1), *discarded
    }  # fmt: skip
    for step in (30, 40):
        was = {k: v for k, v in before.items() if k.startswith(f"tr_other/opt_step-{step}")}
        assert {
            k.replace("/opt_step", "/discarded/exp_1/opt_step", 1): v for k, v in was.items()
        }.items() <= after.items()
        assert not (run.dir / f"opt_step-{step}").exists()
    old, new = before[infos(20)], after[infos(20)]
    assert isinstance(old, tuple) and isinstance(new, tuple)
    wandb = json.loads(old[1])["wandb_run_id"]
    assert new[1] == old[1].replace(f'"{wandb}"'.encode(), b'""')
    run.done("undo", "-y")
    assert run.tree() == before


def test_rewind_can_leave_the_discarded_and_the_wandb_run(run: Run) -> None:
    before = run.tree()
    said = run.done("rewind", "--to", "20", "--keep-discarded", "--keep-wandb-run", "-y")
    assert "will mix" in said.out
    assert changed(before, run.tree()) == {POINTER, EVALS, ARCHIVE.format(1)}
    run.done("undo", "-y")
    assert run.tree() == before


@pytest.mark.parametrize("step", [10, 20, 30, 40])
def test_a_promise_is_found_however_far_back_the_log_tells_it(run: Run, step: int) -> None:
    def promise() -> Any:
        run.done("rewind", "--to", str(step), "--scale-lr", "0.5", "-n", "--out", str(run.root / "plan.json"))
        return json.loads((run.root / "plan.json").read_text())["expectation"]

    told = promise()
    log = run.dir / "logs" / "main_log.txt"
    noise = "n1: shard 7 ready\n" * 2_000
    log.write_text("".join(line + noise for line in log.read_text().splitlines(keepends=True)))
    assert promise() == told


@pytest.mark.parametrize(
    "shape",
    ["it went on", "and said much", "said much before", "a branch went on, the next one ended there", "two went on"],
)
def test_a_brief_look_at_the_log_plans_what_a_look_does(run: Run, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    log = run.dir / "logs" / "main_log.txt"
    line = "iteration: {0:>9}/40 50% | elapsed time: 00:{1:02}:{2:02} | per_token_loss: 2.1 | lr: {3:.3E} |\n"
    lr = state_of(run, 20, "optimizer.bin")["param_groups"][0]["lr"]
    slower = [line.format(step, *divmod(step * step, 60), lr) for step in range(1, 41)]  # every second counts
    rows, noise = "".join(slower), "n1: shard 7 ready\n" * (2 * snapshot.BRIEF // 18)
    told = {
        "it went on": rows,
        "and said much": rows + noise,
        "said much before": "".join([*slower[:18], noise, *slower[18:24]]),
        "a branch went on, the next one ended there": "".join([rows, noise, *slower[:20]]),
        "two went on": "".join([rows, noise, *slower[:30]]),
    }
    log.write_text(told[shape])
    run.slurm.rows = [Row()]

    def plans() -> Iterator[dict[str, Any]]:
        for words in (("scale-lr", "0.5", "--at", "20"), ("rewind", "--to", "20", "--scale-lr", "0.5")):
            run.done(*words, "--restart", "-n", "--out", str(run.root / "plan.json"))
            yield {**json.loads((run.root / "plan.json").read_text()), "created": 0}

    briefly = list(plans())
    assert briefly[1]["cost"]["node_hours"]
    monkeypatch.setattr(snapshot, "BRIEF", LOOK)
    assert list(plans()) == briefly


@pytest.mark.parametrize("options", [("--scale-lr", "0.5"), ("--set-lr", "1e-4")])
def test_rewind_carries_a_new_lr(run: Run, options: tuple[str, str]) -> None:
    before, old = run.tree(), state_of(run, 20, "custom_checkpoint_0.pkl")
    run.done("rewind", "--to", "20", *options, "-y")
    assert {scheduler(20), optimizer(20)} <= changed(before, run.tree())
    factor = 0.5 if options[0] == "--scale-lr" else 1e-4 / old["_last_lr"][0]
    new = state_of(run, 20, "custom_checkpoint_0.pkl")
    for key in ("base_lrs", "_last_lr"):
        assert new[key] == [lr * factor for lr in old[key]]
    groups = state_of(run, 20, "optimizer.bin")["param_groups"]
    assert [g["lr"] for g in groups] == new["_last_lr"]
    run.done("undo", "-y")
    assert run.tree() == before


def test_rewind_resets_the_optimizer_in_the_checkpoint(run: Run) -> None:
    before, old = run.tree(), state_of(run, 20, "optimizer.bin")
    run.done("rewind", "--to", "20", "--reset-optimizer", "--scale-lr", "0.5", "-y")
    new = state_of(run, 20, "optimizer.bin")
    assert any(entry["exp_avg"].any() for entry in old["state"].values())
    assert not any(t.any() for entry in new["state"].values() for t in entry.values())
    assert [g["lr"] for g in new["param_groups"]] == [g["lr"] * 0.5 for g in old["param_groups"]]
    weights = "tr_other/opt_step-20/accelerator_state/model.safetensors"
    assert before[weights] == run.tree()[weights]
    run.done("undo", "-y")
    assert run.tree() == before


def test_reset_optimizer_by_the_trainers_switch_touches_no_checkpoint(run: Run) -> None:
    text = b"hparams:\r\n  load_optimizer_states: True  # \xe9\n  seed: 5\n"
    (run.root / "train.yaml").write_bytes(text)
    (run.dir / "m4ops.toml").write_text('trainer_config = "../train.yaml"\n')
    before = run.tree()
    run.done("reset-optimizer", "-y")
    assert changed(before, run.tree()) == {"train.yaml"}
    assert (run.root / "train.yaml").read_bytes() == text.replace(b"True", b"False")
    assert "does not stand" in run.m4ops("reset-optimizer", "-y").err
    run.done("undo", "-y")
    assert run.tree() == before


def test_a_reset_in_the_checkpoint_without_originals_keeps_no_copy(run: Run) -> None:
    (run.root / "train.yaml").write_text("load_optimizer_states: True\n")
    (run.dir / "m4ops.toml").write_text('trainer_config = "../train.yaml"\n')
    path = run.state(20, "optimizer.bin")
    before, inode = state_of(run, 20, "optimizer.bin"), path.stat().st_ino
    words = ("reset-optimizer", "--in-checkpoint", "--no-originals", "--scale-lr", "0.5", "--at", "20")
    said = run.done(*words, "-y")
    assert "cannot be undone" in said.out
    assert "no undo brings the moments back" in " ".join(said.out.split())
    after = state_of(run, 20, "optimizer.bin")
    assert not any(t.any() for entry in after["state"].values() for t in entry.values())
    assert [g["lr"] for g in after["param_groups"]] == [g["lr"] * 0.5 for g in before["param_groups"]]
    assert (run.root / "train.yaml").read_text() == "load_optimizer_states: True\n"
    assert not (run.dir / ".m4ops" / "originals").exists()
    assert path.stat().st_ino != inode
    assert "sound to the last byte" in run.done("verify-checkpoint", "--deep", "20").out
    assert state_of(run, 20, "custom_checkpoint_0.pkl")["_last_lr"] == [g["lr"] for g in after["param_groups"]]


def test_a_config_behind_a_link_is_edited_and_the_link_stays(run: Run) -> None:
    (run.root / "v3.yaml").write_text("load_optimizer_states: True\n")
    (run.root / "train.yaml").symlink_to("v3.yaml")
    (run.dir / "m4ops.toml").write_text('trainer_config = "../train.yaml"\n')
    before = run.tree()
    run.done("rewind", "--to", "30", "--reset-optimizer", "-y")
    assert (run.root / "v3.yaml").read_text() == "load_optimizer_states: False\n"
    run.done("undo", "-y")
    assert run.tree() == before


# -- the others ------------------------------------------------------------------------------------------


def test_scale_lr_scales_every_lr_of_the_checkpoint_a_resume_takes(run: Run) -> None:
    before = run.tree()
    old = state_of(run, 20, "optimizer.bin")["param_groups"]
    run.done("scale-lr", "0.75", "--at", "20", "-y")
    assert changed(before, run.tree()) == {scheduler(20), optimizer(20)}
    new = state_of(run, 20, "optimizer.bin")["param_groups"]
    assert [(g["lr"], g["initial_lr"]) for g in new] == [(g["lr"] * 0.75, g["initial_lr"] * 0.75) for g in old]
    run.done("undo", "-y")
    assert run.tree() == before


def test_an_lr_of_nothing_and_back(run: Run) -> None:
    run.done("rewind", "--to", "30", "-y")
    before = run.tree()
    run.done("set-lr", "0", "-y")
    assert changed(before, run.tree()) == {scheduler(30), optimizer(30)}
    groups = state_of(run, 30, "optimizer.bin")["param_groups"]
    assert [g["lr"] for g in groups] == [0.0, 0.0]
    run.done("undo", "-y")
    assert run.tree() == before


def test_the_same_lr_change_twice_is_a_mistake(run: Run) -> None:
    run.done("rewind", "--to", "30", "--scale-lr", "0.5", "-y")
    before = run.tree()
    for words in (("scale-lr", "0.5"), ("set-lr", "1e-4"), ("rewind", "--to", "30", "--scale-lr", "0.5")):
        said = run.m4ops(*words, "-y")
        assert said.code == 1
        assert "already changed by change 1" in said.err
        assert "--again" in said.err
        assert "m4ops undo 1" in said.err
        assert run.tree() == before
    lr = state_of(run, 30, "custom_checkpoint_0.pkl")["base_lrs"][0]
    run.done("scale-lr", "0.5", "--again", "-y")
    assert state_of(run, 30, "custom_checkpoint_0.pkl")["base_lrs"][0] == lr * 0.5
    run.done("undo", "-y")
    run.done("undo", "-y")
    run.done("rewind", "--to", "30", "--scale-lr", "0.5", "-y")


def test_a_factor_of_one_changes_nothing_and_says_so(run: Run) -> None:
    before = run.tree()
    said = run.m4ops("scale-lr", "1", "--at", "20", "-y")
    assert said.code == 1
    assert "already" in said.err
    assert run.tree() == before


def test_reset_wandb_empties_one_value(run: Run) -> None:
    before = run.tree()
    run.done("reset-wandb", "-y")
    assert changed(before, run.tree()) == {infos(40)}
    assert json.loads(run.infos(40).read_text())["wandb_run_id"] == ""
    assert "empty already" in run.m4ops("reset-wandb", "-y").err
    run.done("undo", "-y")
    assert run.tree() == before


# -- evaluations -----------------------------------------------------------------------------------------


def test_trimmed_evaluations_keep_their_bytes_and_the_whole_file_stays(run: Run) -> None:
    before, content = run.tree(), run.evals.read_bytes()
    said = run.done("trim-evals", "--to", "20", "-y")
    assert changed(before, run.tree()) == {EVALS, ARCHIVE.format(1)}
    lines = content.split(b"\n")
    beyond = {1, 8}
    assert run.evals.read_bytes() == b"\n".join(line for n, line in enumerate(lines) if n not in beyond)
    assert (run.root / ARCHIVE.format(1)).read_bytes() == content
    for number, problem in ((6, "empty"), (7, "torn"), (8, "foreign"), (10, "foreign")):
        assert f"line {number} ({problem}" in " ".join(said.out.split())
    assert "no evaluation lies beyond" in run.m4ops("trim-evals", "--to", "20", "-y").err
    run.done("undo", "-y")
    assert run.tree() == before


def test_archives_are_counted_over_all_there_are(run: Run) -> None:
    results = run.evals.parent
    (results / "tr_other_evaluations_archive_exp_7.jsonl").write_text("{}\n")
    (results / "tr_other_2_evaluations_archive_exp_40.jsonl").write_text("{}\n")
    run.done("rewind", "--to", "30", "-y")
    assert (run.root / ARCHIVE.format(8)).exists()
    assert (run.dir / "discarded" / "exp_8" / "opt_step-40").is_dir()
    run.done("rewind", "--to", "10", "-y")
    assert (run.root / ARCHIVE.format(9)).exists()
    assert (run.dir / "discarded" / "exp_9" / "opt_step-20").is_dir()


def test_an_evaluations_file_of_another_name_can_be_trimmed_twice(run: Run) -> None:
    run.evals.rename(run.root / "scores.jsonl")
    (run.dir / "m4ops.toml").write_text('evals = "../scores.jsonl"\n')
    run.done("trim-evals", "--to", "30", "-y")
    run.done("trim-evals", "--to", "10", "-y")
    assert {p.name for p in run.root.glob("scores*")} == {
        "scores.jsonl", "scores_archive_exp_1.jsonl", "scores_archive_exp_2.jsonl"
    }  # fmt: skip


def test_evaluations_behind_a_link_stay_behind_it(run: Run) -> None:
    real = run.root / "elsewhere.jsonl"
    run.evals.rename(real)
    run.evals.symlink_to(real)
    before = run.tree()
    run.done("trim-evals", "--to", "20", "-y")
    assert run.evals.is_symlink()
    assert b'"task": "dropped"' not in real.read_bytes()
    run.done("undo", "-y")
    assert run.tree() == before


def test_evaluations_are_trimmed_also_while_the_training_runs(run: Run) -> None:
    run.slurm.rows = [Row()]
    before = run.tree()
    run.done("trim-evals", "--to", "20", "-y")
    run.done("undo", "-y")
    assert run.tree() == before


# -- undo ------------------------------------------------------------------------------------------------


def test_undo_undo_undo(run: Run) -> None:
    trees = [run.tree()]
    for words in (("rewind", "--to", "20"), ("scale-lr", "0.5"), ("rewind", "--to", "10", "--set-lr", "1e-4")):
        run.done(*words, "-y")
        trees.append(run.tree())
    for tree in reversed(trees[:-1]):
        run.done("undo", "-y")
        assert run.tree() == tree
    said = run.m4ops("undo", "-y")
    assert said.code == 1
    assert "no change to take" in said.err


def test_rewind_scale_reset_wandb_and_back(run: Run) -> None:
    before = run.tree()
    run.done("rewind", "--to", "20", "--keep-wandb-run", "-y")
    run.done("scale-lr", "0.75", "-y")
    run.done("reset-wandb", "-y")
    for _ in range(3):
        run.done("undo", "-y")
    assert run.tree() == before


def test_an_undo_undone_is_the_change_again(run: Run) -> None:
    before = run.tree()
    run.done("rewind", "--to", "20", "--scale-lr", "0.5", "--reset-optimizer", "-y")
    after = run.tree()
    for number, wanted in ((1, before), (2, after), (3, before), (4, after)):
        run.done("undo", str(number), "-y")
        assert run.tree() == wanted
        told = json.loads(run.done("history", "--json").out)["changes"]
        first = next(c for c in told if c["id"] == "1")
        assert first["status"] == ("applied" if wanted is after else "undone")


def test_an_older_change_under_a_newer_one_is_not_undone(run: Run) -> None:
    run.done("scale-lr", "0.5", "--at", "20", "-y")
    run.done("scale-lr", "0.5", "--at", "20", "--again", "-y")
    before = run.tree()
    said = run.m4ops("undo", "1", "-y")
    assert said.code == 1
    assert "nothing was touched" in said.err
    assert run.tree() == before


def test_after_the_trainer_saved_again_nothing_is_overwritten(run: Run) -> None:
    run.done("rewind", "--to", "20", "-y")
    (run.dir / "opt_step-30").mkdir()
    run.pointer.write_text(str(run.dir / "opt_step-30"))
    before = run.tree()
    said = run.m4ops("undo", "-y")
    assert said.code == 1
    assert "nothing was touched" in said.err
    assert run.tree() == before


# -- plans -----------------------------------------------------------------------------------------------

ALL = ("rewind", "--to", "20", "--scale-lr", "0.5", "--reset-optimizer")


def test_a_dry_run_writes_nothing_at_all(run: Run) -> None:
    before = times(run)
    assert "opt_step-20" in run.done(*ALL, "-n").out
    for words in (("scale-lr", "0.5"), ("reset-wandb",), ("trim-evals", "--to", "10"), ("reset-optimizer",)):
        run.done(*words, "-n")
    assert times(run) == before


def times(run: Run) -> dict[Path, tuple[int, int]]:
    """When each path, m4ops's own too, was last written to and renamed."""
    return {p: (p.stat().st_mtime_ns, p.stat().st_ctime_ns) for p in run.root.rglob("*")}


def test_nobody_there_to_say_yes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run.tree()
    monkeypatch.setattr("sys.stdin", io.StringIO())
    said = run.m4ops(*ALL)
    assert said.code == 1
    assert "-y" in said.err
    assert run.tree() == before


def test_a_saved_plan_does_the_same_as_the_command(run: Run, tmp_path: Path) -> None:
    before, plan = run.tree(), tmp_path / "plan.json"
    run.done(*ALL, "--out", str(plan))
    assert run.tree() == before
    assert json.loads(plan.read_text())["schema"] == "m4ops.plan/1"
    run.done("apply", str(plan), "-n")
    assert run.tree() == before
    run.done("apply", str(plan), "-y")
    after = run.tree()
    run.done("undo", "-y")
    assert run.tree() == before
    run.done(*ALL, "-y")
    assert run.tree() == after


def test_a_plan_with_bytes_that_are_no_utf8_can_be_saved(run: Run, tmp_path: Path) -> None:
    run.pointer.write_bytes(b"/old/\xe9t\xe9/opt_step-40")
    before = run.tree()
    run.done("rewind", "--to", "30", "--out", str(tmp_path / "plan.json"))
    run.done("apply", str(tmp_path / "plan.json"), "-y")
    assert run.pointer.read_text() == str(run.dir / "opt_step-30")
    run.done("undo", "-y")
    assert run.tree() == before


# -- files that others share -----------------------------------------------------------------------------


def test_files_stay_open_to_the_group(run: Run) -> None:
    for path in (run.root, *run.root.rglob("*")):
        path.chmod(0o2775 if path.is_dir() else 0o664)
    run.done(*ALL, "-y")
    modes = {path.stat().st_mode & 0o7777 for path in run.root.rglob("*") if path.is_file()}
    folders = {path.stat().st_mode & 0o7777 for path in run.root.rglob("*") if path.is_dir()}
    assert modes == {0o664}
    assert folders == {0o2775}


def test_other_names_of_a_state_file_keep_their_content(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SMALL", 0)
    snapshot = run.root / "snapshot.bin"
    os.link(run.state(20, "optimizer.bin"), snapshot)
    before, content = run.tree(), snapshot.read_bytes()
    run.done("scale-lr", "0.5", "--at", "20", "-y")
    assert snapshot.read_bytes() == content != run.state(20, "optimizer.bin").read_bytes()
    run.done("undo", "-y")
    assert run.tree() == before


# -- the queue -------------------------------------------------------------------------------------------

HELD = Row(task="4-9%1", state="PENDING", reason="JobHeldUser")
LOOSE = Row(task="4-9%1", state="PENDING", reason="Priority")


@pytest.mark.parametrize("rows", [[Row()], [LOOSE], [Row(task="3"), HELD]], ids=["running", "loose", "array"])
@pytest.mark.parametrize("words", [("rewind", "--to", "20"), ("scale-lr", "0.5", "--at", "20"), ("reset-wandb",)])
def test_a_run_that_runs_or_may_start_is_not_edited(run: Run, rows: list[Row], words: tuple[str, ...]) -> None:
    run.slurm.rows = rows
    before = run.tree()
    said = run.m4ops(*words, "-y")
    assert said.code == 1
    assert "not parked" in said.err
    assert "--restart" in said.err and "m4ops hold" in said.err
    assert run.tree() == before
    assert run.slurm.orders == []


def test_a_held_run_is_edited(run: Run) -> None:
    run.slurm.rows = [HELD]
    run.done("rewind", "--to", "20", "-y")


def test_the_job_of_somebody_else_is_never_acted_on(run: Run) -> None:
    run.slurm.rows = [Row(user="alice", workdir=str(run.dir))]
    before = run.tree()
    for words in (("rewind", "--to", "20"), ("rewind", "--to", "20", "--restart"), ("hold",), ("requeue",)):
        said = run.m4ops(*words, "-y")
        assert said.code == 1
        assert "alice" in said.err and "ask alice" in said.err
    assert run.slurm.orders == []
    assert run.tree() == before


def test_a_silent_controller_is_no_empty_queue(run: Run) -> None:
    run.slurm.down = True
    before = run.tree()
    said = run.m4ops("rewind", "--to", "20", "-y")
    assert said.code == 1
    assert "UNKNOWN" in said.err and "--assume-stopped" in said.err
    assert run.tree() == before
    run.done("rewind", "--to", "20", "--assume-stopped", "-y")
    assert "UNKNOWN" in run.m4ops("undo", "-y").err
    run.done("undo", "--assume-stopped", "-y")
    assert run.tree() == before


def test_a_job_that_started_while_the_plan_lay_is_seen(run: Run, tmp_path: Path) -> None:
    plan = str(tmp_path / "plan.json")
    run.slurm.rows = [LOOSE]
    run.done("rewind", "--to", "20", "--hold", "--out", plan)
    run.slurm.rows = [Row(task="4"), LOOSE]
    before = run.tree()
    said = run.m4ops("apply", plan, "-y")
    assert said.code == 1
    assert "not parked" in said.err
    assert run.tree() == before
    assert run.slurm.orders == []


def test_a_job_that_starts_while_the_operator_thinks_is_seen(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run.tree()
    monkeypatch.setattr("ops.cli.session.confirm", lambda yes: run.slurm.rows.append(Row()))
    said = run.m4ops("rewind", "--to", "20")
    assert said.code == 1
    assert "not parked" in said.err
    assert run.tree() == before


def test_hold_and_release(run: Run) -> None:
    run.slurm.rows = [Row(task="3"), LOOSE]
    before = run.tree()
    said = run.done("hold", "--why", "I detected a bug", "--until", "Monday", "-y")
    assert run.slurm.orders == [("hold", "100")]
    assert "I detected a bug" in said.out and "Monday" in said.out and "n[1-2]" in said.out
    run.done("release", "-y")
    assert run.slurm.orders == [("hold", "100"), ("release", "100")]
    run.done("undo", "-y")
    assert run.slurm.orders[-1] == ("hold", "100")
    assert run.tree() == before


def test_park_edit_and_restart_are_one_plan(run: Run) -> None:
    kill = run.root / "kill"
    (run.dir / "m4ops.toml").write_text('kill_switch = "../kill"\n')
    run.slurm.rows = [Row(task="3"), LOOSE]
    before = run.tree()
    stop_when_killed(run.slurm, kill)
    run.done("rewind", "--to", "20", "--scale-lr", "0.5", "--restart", "-y")
    assert run.slurm.orders == [("hold", "100"), ("release", "100")]
    assert not kill.exists()
    assert [row.reason for row in run.slurm.rows] == ["Priority"]
    assert run.pointer.read_text().endswith("opt_step-20")
    run.done("undo", "-y")
    assert run.tree() == before
    assert run.slurm.orders[2:] == [("hold", "100"), ("release", "100")]


def stop_when_killed(slurm: FakeSlurm, kill: Path) -> None:
    """The running task ends when it sees the kill switch, between two looks at the queue."""
    ask = FakeSlurm.__call__

    class Stopping(FakeSlurm):
        def __call__(self, argv: Any, timeout: float) -> Any:
            if kill.exists():
                self.rows = [row for row in self.rows if row.state != "RUNNING"]
            return ask(self, argv, timeout)

    slurm.__class__ = Stopping


# -- nothing extra in a checkpoint -----------------------------------------------------------------------


def names_in_checkpoints(run: Run) -> frozenset[str]:
    return frozenset(f"{p.parent.name}/{p.name}" for p in run.dir.glob("**/opt_step-*/accelerator_state/*"))


@pytest.mark.parametrize("small", [1 << 20, 0], ids=["renamed-in", "in-place"])
def test_no_call_leaves_anything_extra_in_a_checkpoint(run: Run, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr(files, "SMALL", small)
    allowed = names_in_checkpoints(run)
    looks = [0]

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            look()
            try:
                return call(*args, **options)
            finally:
                look()

        def look() -> None:
            looks[0] += 1
            seen = frozenset(p for s in folders() for p in os.listdir(s))
            assert {f"accelerator_state/{name}" for name in seen} <= allowed

        def folders() -> Iterator[Path]:
            yield from (p for p in run.dir.glob("opt_step-*/accelerator_state"))
            yield from (p for p in run.dir.glob("discarded/*/opt_step-*/accelerator_state"))

        return wrapped

    for name in ("replace", "link", "rename", "mkdir", "unlink", "pwrite", "fsync"):
        monkeypatch.setattr(os, name, watched(getattr(os, name)))
    run.done(*ALL, "-y")
    run.done("undo", "-y")
    run.done("scale-lr", "0.5", "--at", "40", "-y")
    run.done("undo", "-y")
    assert looks[0] > 200


def test_a_watcher_never_sees_an_extra_file(run: Run) -> None:
    folder = run.dir / "opt_step-20"
    state = folder / "accelerator_state"
    allowed = frozenset(os.listdir(state)), frozenset(os.listdir(folder))
    over, seen, looks = threading.Event(), set[str](), [0]

    def watch() -> None:
        while not over.is_set():
            seen.update(set(os.listdir(state)) - allowed[0], set(os.listdir(folder)) - allowed[1])
            looks[0] += 1

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        for _ in range(6):
            run.done(*ALL, "-y")
            run.done("undo", "-y")
    finally:
        over.set()
        thread.join()
    assert seen == set()
    assert looks[0] > 100


def test_an_edited_checkpoint_stays_as_old_as_it_was_and_its_files_do_not(run: Run) -> None:
    """Frameworks that sort checkpoints look at the folder's time, syncs at a file's."""
    folder, file = run.state(20).parent, run.state(20)
    os.utime(folder, (1e9, 1e9))
    for words in (("scale-lr", "0.5", "--at", "20"), ("undo",)):
        os.utime(file, (1e9, 1e9))
        run.done(*words, "-y")
        assert folder.stat().st_mtime == 1e9
        assert file.stat().st_mtime > 1e9
