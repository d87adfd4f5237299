"""Whether the run is checked as often as was meant: missed ticks are told of by the next one, and a silence by anybody."""

import subprocess
import time
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, Row
from runs import Said, m4ops

from ops import discovery, state, watch
from ops.model import Run
from ops.shell import Answer

LINE = "iteration: 5/10 50% | per_token_loss: 2.1 | lr: 1.000E-05 |\n"


def made(folder: Path) -> Run:
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "main_log.txt").write_text(LINE)
    return discovery.describe(folder)[0]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made(tmp_path / "tr_0")


def cron(*words: str) -> Said:
    """`m4ops cron` where there is no scrontab."""
    return m4ops(*words, slurm=lambda argv, timeout: Answer(127, "", f"{argv[0]}: command not found"))


def said(run: Run, *words: str) -> str:
    """What a command says of the run, with its job in the queue."""
    return m4ops("--run", str(run.dir), *words, slurm=FakeSlurm([Row(name=run.name)])).out


def test_a_missed_check_is_told_of_by_the_next_one_once(run: Run) -> None:
    watch.expect(run, time.time() - 30 * 60, 10)
    assert "WARNING tr_0: 2 checks of this run did not come, between" in said(run, "check", "--every", "10")
    assert said(run, "check", "--every", "10") == "", "that checks come again is no news"


@pytest.mark.parametrize(("minutes", "missed"), [(10, False), (17, False), (20, True), (60, True)])
def test_a_check_that_comes_late_is_no_missed_one(run: Run, minutes: int, missed: bool) -> None:
    """The queue of a chain's link takes its time; of every other tick none may be lost unseen."""
    watch.expect(run, 1e9, 10)
    assert [f.kind for f in watch.checked(run, 1e9 + minutes * 60, 10)] == ["check-missed"] * missed
    assert watch.checked(run, 1e9 + minutes * 60 + 600, 10) == ()


def test_nobody_who_checks_any_more_is_told_of_to_whoever_looks(run: Run) -> None:
    watch.expect(run, time.time() - 3 * 3600, 10)
    assert "nobody checked this run for 3.0 h; a check every 10 minutes was meant" in " ".join(
        said(run, "status").split()
    )
    assert "WARNING tr_0: nobody checked" in said(run, "check"), "a check by hand is no tick of cron"
    assert "nobody checked" not in said(run, "check")
    assert "m4ops cron status" in said(run, "check", "--json")


def test_a_check_that_never_came_is_missed_as_well(run: Run, crontab: Path) -> None:
    assert cron("--run", str(run.dir), "cron", "install").code == 0
    assert watch.silent(run, time.time() + 1700) == ()
    assert [f.kind for f in watch.silent(run, time.time() + 1900)] == ["check-silent"]
    assert cron("--run", str(run.dir), "cron", "remove").code == 0
    assert watch.silent(run, time.time() + 1900) == (), "nobody was meant to"


@pytest.fixture
def crontab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `crontab` program that keeps this file."""
    kept, program = tmp_path / "crontab.kept", tmp_path / "bin" / "crontab"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nif [ "$1" = -l ]; then exec cat {kept}; fi\nexec cp "$1" {kept}\n')
    program.chmod(0o755)
    kept.touch()
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return kept


def test_one_line_checks_every_run_of_the_roots(tmp_path: Path, crontab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "my runs"
    runs = [made(root / name) for name in ("tr_1", "tr_2")]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("M4OPS_ROOTS", "my runs")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setenv("M4OPS_EMBEDDED", str(tmp_path / "slurm"))
    for _ in range(2):
        assert cron("cron", "install", "--all", "--minutes", "5").code == 0
    (line,) = crontab.read_text().splitlines()
    assert "check --all --every 5" in line
    for run in runs:
        watch.expect(run, time.time() - 3600, 5)
    command = line.split(" ", 5)[5]
    told = subprocess.run(["/bin/sh", "-c", command], env={"HOME": str(tmp_path)}, capture_output=True, text=True)
    assert [f"WARNING {run.name}: 11 checks of this run did not come" in told.stdout for run in runs] == [True, True]
    for words in (("cron", "status", "--all"), ("--run", str(runs[0].dir), "cron", "status")):
        status = cron(*words)
        assert status.code == 0 and line in status.out
    assert "exclude one another" in cron("--run", str(runs[0].dir), "cron", "install", "--all").err
    assert cron("cron", "remove", "--all").code == 0 and crontab.read_text() == ""
    assert cron("cron", "status", "--all").code == 1
    assert [state.kept(run, watch.FILE) for run in runs] == [{}, {}]


def test_no_run_to_check_is_refused(tmp_path: Path, crontab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M4OPS_ROOTS", str(tmp_path))
    assert "no run lies under the configured roots" in cron("cron", "install", "--all").err
    assert crontab.read_text() == ""
