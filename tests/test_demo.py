"""The main job, whole: `m4ops demo` as a person would type it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], str, Path]:
    place = tmp_path_factory.mktemp("demo")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("M4OPS_", "SLURM_"))}
    argv = [sys.executable, "-m", "ops.cli", "demo", "--dir", place / "stage"]
    argv += ["--transcript", place / "transcript.txt", "--svg", place / "demo.svg"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=280, check=False)
    text = (place / "transcript.txt").read_text() if (place / "transcript.txt").exists() else ""
    return done, text, place


def test_the_demo_ends_by_itself_and_well(played):
    done, _, _ = played
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_divergence_is_caught_and_the_promise_kept(played):
    _, transcript, _ = played
    assert "CRITICAL tr_demo: loss diverges since step" in transcript
    assert re.search(r"rewind to opt_step-\d+ with LR × 0.5", transcript)
    verdicts = re.findall(r"^  (step|lr|wandb id) +(yes|no|not yet)", transcript, re.MULTILINE)
    assert verdicts == [("step", "yes"), ("lr", "yes"), ("wandb id", "yes")]
    assert "nothing wrong seen" in transcript.split("$ m4ops --run tr_demo history")[0].rsplit("status", 1)[1]


def test_the_loss_really_diverged_and_really_recovered(played):
    """Read from the trainer's own log, not from what the demo says of itself."""
    _, _, place = played
    lines = (place / "stage/tr_demo/logs/main_log.txt").read_text().splitlines()
    found = [re.search(r"iteration: +(\d+)/.*\| per_token_loss: ([\d.]+) .*\| lr: (\S+)", line) for line in lines]
    samples = [(int(m[1]), float(m[2]), float(m[3])) for m in found if m]
    cut = next(i for i in range(1, len(samples)) if samples[i][0] < samples[i - 1][0])
    old, new = samples[:cut], samples[cut:]
    resumed = new[0][0]
    level = min(loss for step, loss, _ in old if step < resumed)
    assert max(loss for _, loss, _ in old) > 1.5 * level
    assert max(loss for _, loss, _ in new) < 1.3 * level
    assert sorted(loss for _, loss, _ in new[-10:])[5] < level
    assert {lr for _, _, lr in new} == {old[-1][2] / 2}


def test_what_was_discarded_lies_aside(played):
    _, transcript, place = played
    target = int(re.search(r"rewind to opt_step-(\d+)", transcript)[1])
    aside = sorted(int(p.name.split("-")[1]) for p in (place / "stage/tr_demo/discarded/exp_1").iterdir())
    assert aside and min(aside) > target
    archive = place / "stage/evals/results/tr_demo_evaluations_archive_exp_1.jsonl"
    assert any(f"opt_step-{aside[0]}/" in line for line in archive.read_text().splitlines())


def test_nothing_is_left_running(played):
    _, _, place = played
    left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(place).encode() in _read(p)]
    assert left == []


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_the_picture_shows_the_rewind(played):
    _, _, place = played
    picture = (place / "demo.svg").read_text()
    assert "rewind" in picture and "http://" not in picture.replace("http://www.w3.org", "")
