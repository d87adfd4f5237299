"""Which run a command means: any existing SAVE_DIR, without configuration."""

import os
from pathlib import Path

import pytest

from ops import discovery
from ops.errors import BadInput, RunNotFound


@pytest.fixture
def save_dir(tmp_path: Path) -> Path:
    run = tmp_path / "experiments" / "tr_190_01_64n"
    (run / "opt_step-500" / "accelerator_state").mkdir(parents=True)
    (run / "logs").mkdir()
    (run / "logs" / "main_log.txt").write_text("")
    return run


def test_from_deep_inside_a_run(save_dir):
    run, _ = discovery.find(None, save_dir / "opt_step-500" / "accelerator_state", {})
    assert (run.dir, run.name) == (save_dir, "tr_190_01_64n")
    assert run.log == save_dir / "logs" / "main_log.txt"


def test_by_folder_by_variable_and_by_name(save_dir, tmp_path):
    elsewhere = tmp_path
    assert discovery.find(str(save_dir), elsewhere, {})[0].dir == save_dir
    assert discovery.find("experiments/tr_190_01_64n", elsewhere, {})[0].dir == save_dir
    assert discovery.find(None, elsewhere, {"M4OPS_RUN": str(save_dir)})[0].dir == save_dir
    assert discovery.find("tr_190_01_64n", elsewhere, {"M4OPS_ROOTS": f"/nowhere:{save_dir.parent}"})[0].dir == save_dir


def test_the_flag_wins_over_the_variable(save_dir, tmp_path):
    assert discovery.find(str(save_dir), tmp_path, {"M4OPS_RUN": "/nowhere"})[0].dir == save_dir


def test_roots_of_the_users_own_configuration(save_dir, tmp_path):
    home = tmp_path / "home"
    (home / ".config" / "m4ops").mkdir(parents=True)
    (home / ".config" / "m4ops" / "m4ops.toml").write_text(f'roots = ["{save_dir.parent}"]\n')
    assert discovery.find("tr_190_01_64n", tmp_path, {"HOME": str(home)})[0].dir == save_dir


def test_a_mistyped_name_names_the_near_one(save_dir, tmp_path):
    with pytest.raises(RunNotFound, match="no run `tr_190_01_64`") as caught:
        discovery.find("tr_190_01_64", tmp_path, {"M4OPS_ROOTS": str(save_dir.parent)})
    assert "tr_190_01_64n" in caught.value.hint


def test_no_run_anywhere_says_how_to_name_one(tmp_path):
    with pytest.raises(RunNotFound) as caught:
        discovery.find(None, tmp_path, {})
    assert "--run" in caught.value.hint and str(tmp_path) in caught.value.where


def test_switches_and_evals_are_found_where_the_trainer_says(save_dir):
    (save_dir / "11_config.yaml").write_text("hparams:\n  kill_switch_path: /old/kill\n")
    newest = save_dir / "12_config.yaml"
    newest.write_text("hparams:\n  kill_switch_path: '/fsx/kill-tr_190'  # remove it\n  save_switch_path: null\n")
    import os

    os.utime(save_dir / "11_config.yaml", (1, 1))
    results = save_dir.parent / "evals" / "results" / "tr_190_01_64n_evaluations.jsonl"
    results.parent.mkdir(parents=True)
    results.write_text("")
    run, _ = discovery.find(str(save_dir), save_dir, {})
    assert run.kill_switch == Path("/fsx/kill-tr_190")
    assert run.save_switch is None
    assert run.evals == results


def test_what_is_relative_or_not_there_is_not_guessed(save_dir):
    (save_dir / "12_config.yaml").write_text("kill_switch_path: kill\n")
    run, _ = discovery.find(str(save_dir), save_dir, {})
    assert (run.kill_switch, run.evals, run.trainer_config) == (None, None, None)


def test_the_configuration_file_wins_and_is_relative_to_itself(save_dir, tmp_path):
    own = tmp_path / "mine"
    own.mkdir()
    (own / "m4ops.toml").write_text('save_dir = "../experiments/tr_190_01_64n"\nname = "tr"\nkill_switch = "kill"\n')
    run, _ = discovery.find(None, own, {})
    assert (run.dir, run.name, run.kill_switch) == (save_dir, "tr", own / "kill")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('kil_switch = "x"\n', ["unknown key `kil_switch`", "kill_switch"]),
        ("kill_switch = 3\n", ["`kill_switch` must be a string"]),
        ('sinks = "stdout:"\n', ["`sinks` must be a list of strings"]),
        ("name = \n", ["no TOML"]),
        ('progress = "loss {loss}"\n', ["no `{step}`", "m4ops.toml"]),
        ('save_dir = "nowhere"\n', ["save_dir `nowhere` is no folder"]),
    ],
)
def test_a_wrong_configuration_is_an_error_that_says_what_is_meant(save_dir, text, words):
    (save_dir / "m4ops.toml").write_text(text)
    with pytest.raises(BadInput) as caught:
        discovery.find(str(save_dir), save_dir, {})
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize("said", ["logs/slurm-*.out", "logs/%x-%j.out", "logs/slurm-%A.out", "logs/slurm-[12].out"])
def test_one_log_a_job_is_named_by_a_pattern(tmp_path: Path, said: str) -> None:
    (tmp_path / "m4ops.toml").write_text(f'log = "{said}"\n')
    (tmp_path / "logs").mkdir()
    logs = [tmp_path / "logs" / name for name in ("slurm-1.out", "slurm-2.out", "other.err")]
    assert discovery.describe(tmp_path)[0].log == tmp_path / said, "there is none yet"
    for newest in logs[:2]:
        for log in logs:
            log.write_text("")
            os.utime(log, (1000, 2000 if log == newest else 1000))
        os.utime(logs[2], (1000, 3000))
        assert discovery.describe(tmp_path)[0].log == newest
