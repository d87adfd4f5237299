"""A run of HF Trainer whose log tells nothing: it is judged by what its checkpoints keep of what was logged."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from alerting import configure, m4ops
from fake_slurm import FakeSlurm, Row
from receivers import Web
from runs import m4ops as asked
from test_detectors import healthy, job

from ops import discovery
from ops.checkpoints import layouts
from ops.judging import Judged, judge
from ops.logs.tables import read_table
from ops.model import LogView, Run, Snapshot
from ops.state import Memory

LAST = {"epoch": 3.0, "step": 4000, "total_flos": 1e18, "train_loss": 5.1, "train_runtime": 9.0}


def history(rows: int, spike: int = -1, first: float = 3.0) -> list[dict[str, Any]]:
    """As the Trainer logs it: each tenth step a loss, each hundredth an evaluation too."""
    found = []
    for i in range(1, rows + 1):
        loss = first - i / 1000 + 0.01 * (i % 3) + (2.5 if 0 <= spike < i else 0)
        found.append({"epoch": i / 100, "grad_norm": 1.1, "learning_rate": 1e-05, "loss": loss, "step": 10 * i})
        if i % 10 == 0:
            found.append({"epoch": i / 100, "eval_loss": 9.9, "step": 10 * i})
    return found


def saved(folder: Path, rows: list[dict[str, Any]], at: float = 0.0, name: str = "") -> Path:
    """A checkpoint that keeps these rows."""
    place = folder / (name or f"checkpoint-{rows[-1]['step']}")
    place.mkdir(parents=True, exist_ok=True)
    state = {"global_step": rows[-1]["step"], "log_history": rows, "max_steps": 5000}
    (place / "trainer_state.json").write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
    for path in (place / "trainer_state.json", place):
        os.utime(path, (at or 1e6, at or 1e6))
    return place


def seen(folder: Path, **changes: Any) -> Snapshot:
    run = discovery.describe(folder)[0]
    return healthy(run=run, checkpoints=layouts.read(run), log=None, **changes)


def looked(folder: Path, memory: Memory, **changes: Any) -> Judged:
    return judge(seen(folder, **changes), memory)


def kinds(judged: Judged) -> set[str]:
    return {f.kind for f in judged.findings if f.kind.startswith(("l", "grad", "progress"))}


@pytest.mark.parametrize("log", ["", "loading\nsome words of a rank\n"], ids=["none", "words"])
def test_each_save_is_judged_once_by_the_noise_of_those_before(tmp_path: Path, log: str) -> None:
    folder = tmp_path / "tr_1"
    saved(folder, history(200))
    if log:
        (folder / "logs").mkdir()
        (folder / "logs" / "main_log.txt").write_text(log)
        os.utime(folder / "logs" / "main_log.txt", (1e6, 1e6))
    first = looked(folder, Memory())
    assert isinstance(first.snapshot.log, LogView)
    last = first.snapshot.log.samples[-1]
    assert (len(first.snapshot.log.samples), last.step, last.total, last.lr) == (200, 2000, 5000, 1e-05)
    assert first.snapshot.log.source == folder / "checkpoint-2000" / "trainer_state.json"
    assert not kinds(first) - {"log-unknown"} and looked(folder, first.memory).memory == first.memory
    saved(folder, history(230, spike=203), at=1e6 + 30)
    second = looked(folder, first.memory)
    assert "loss-divergence" in kinds(second) or "loss-spike" in kinds(second)
    (told,) = (f for f in second.findings if f.kind.startswith("loss"))
    assert told.evidence[0] == str(folder / "checkpoint-2300" / "trainer_state.json") and told.step == 2040
    again = looked(folder, Memory())
    assert kinds(again) == kinds(second) and again.memory.detectors == second.memory.detectors


def test_training_that_went_back_is_judged_by_its_own_branch(tmp_path: Path) -> None:
    folder = tmp_path / "tr_1"
    saved(folder, history(200))
    bad = saved(folder, history(240, spike=203), at=1e6 + 10)
    first = looked(folder, Memory())
    assert any(kind.startswith("loss-") for kind in kinds(first))
    bad.rename(tmp_path / "aside")
    second = looked(folder, first.memory)
    assert not any(kind.startswith("loss-") for kind in kinds(second))
    saved(folder, history(250), at=1e6 + 20)
    third = looked(folder, second.memory)
    assert not any(kind.startswith("loss-") for kind in kinds(third))
    assert isinstance(third.snapshot.log, LogView) and third.snapshot.log.samples[-1].step == 2500


def test_a_log_that_tells_steps_counts_alone_and_so_does_one_that_begins_to(tmp_path: Path) -> None:
    folder = tmp_path / "tr_1"
    saved(folder, history(200))
    (folder / "logs").mkdir()
    log = folder / "logs" / "slurm-1.out"
    log.write_text("loading\n")
    first = looked(folder, Memory())
    log.write_text(
        "loading\n" + "".join(f"{{'loss': 2.8, 'learning_rate': 1e-05, 'epoch': 2.{n}}}\n" for n in range(5))
    )
    second = looked(folder, first.memory)
    assert isinstance(second.snapshot.log, LogView)
    assert len(second.snapshot.log.samples) == 5 and second.snapshot.log.source is None and not second.memory.kept
    saved(folder, history(300), at=1e6 + 9)
    third = looked(folder, second.memory)
    assert third.memory.kept == {} and third.memory.detectors == second.memory.detectors


def test_a_state_that_is_being_written_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "tr_1"
    saved(folder, history(200))
    first = looked(folder, Memory())
    place = saved(folder, history(210), at=1e6 + 10)
    whole = (place / "trainer_state.json").read_text()
    (place / "trainer_state.json").write_text(whole[:-300])
    torn = looked(folder, first.memory)
    assert torn.memory.kept == first.memory.kept
    (place / "trainer_state.json").write_text(whole)
    after = looked(folder, torn.memory)
    assert after.memory.kept["rows"] == 210 and not any(k.startswith("loss") for k in kinds(after))


def test_a_hang_without_a_log_shows_by_its_saves(tmp_path: Path) -> None:
    """A checkpoint tells only what was until its save: without two saves nothing is known of the time since."""
    folder, start = tmp_path / "tr_1", 1e6 - 50_000
    saved(folder, history(100), at=start + 5000)
    assert "log-unknown" in kinds(looked(folder, Memory(), jobs=(job(start=start),)))
    saved(folder, history(200), at=start + 10_000)
    at = {"jobs": (job(start=start),)}
    assert kinds(looked(folder, Memory(), now=start + 20_000, **at)) == set()
    hung = looked(folder, Memory(), now=start + 26_000, **at)
    assert kinds(hung) == {"log-stalled"}


def test_the_mean_of_all_that_the_trainer_logs_at_its_end_is_no_row(tmp_path: Path) -> None:
    place = saved(tmp_path / "tr_1", [*history(30), LAST])
    table = read_table(place / "trainer_state.json")
    assert table and [s.step for s in table.samples] == list(range(10, 301, 10)) and table.unread == ()


def test_the_screen_and_the_message_say_where_it_is_from(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "tr_1"
    saved(folder, history(260, spike=203))
    run = Run(folder, "tr_1")
    configure(run, web.uri)
    shown = asked("--run", str(folder), "status", slurm=FakeSlurm([Row(name="tr_1")]))
    assert "step 2600 of 5000" in shown.out and "checkpoint-2600/trainer_state.json" in shown.out
    said = json.loads(asked("--run", str(folder), "status", "--json", slurm=FakeSlurm([])).out)
    assert said["log"]["samples_from"] == str(folder / "checkpoint-2600" / "trainer_state.json")
    points = json.loads(asked("--run", str(folder), "plot", "--field", "lr", "--json", slurm=FakeSlurm([])).out)
    assert len(points["branches"][0]["live"]) == 260
    m4ops(run, monkeypatch, "check")
    m4ops(run, monkeypatch, "check")
    (post,) = web.posted()
    assert any("checkpoint-2600/trainer_state.json" in "".join(n["evidence"]) for n in post["news"])
