"""A log that is rotated under us, by logrotate itself: nothing is missed, nothing is read twice, the curve stays whole."""

import gzip
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm
from msgspec.structs import replace
from runs import m4ops
from test_detectors import job as detectors_job
from test_incremental import line, seen

from ops import discovery
from ops.judging import judge
from ops.logs import read_batches, rotated
from ops.model import LogView
from ops.state import Memory

Rotate = Callable[..., None]
WAYS = ["create", "copytruncate", "create compress", "copytruncate compress", "create dateext"]


@pytest.fixture
def rotate(need: Callable[[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rotate:
    """Rotates a log now, in the way of these words of logrotate.conf(5)."""
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
    program = need("logrotate", "logrotate")

    def rotated(log: Path, way: str) -> None:
        config = tmp_path / "logrotate.conf"
        for number, dated in enumerate(sorted(log.parent.glob("*.txt-2*"))):
            dated.rename(log.with_name(f"{log.name}-2001010{number}"))
        config.write_text("\n".join([f"{log} {{", "rotate 9", *way.split(), "}", ""]))
        config.chmod(0o600)
        subprocess.run([program, "--force", "--state", str(tmp_path / "rotated"), str(config)], check=True)

    return rotated


class Trainer:
    """Appends steps to a log, whatever became of the file, as a job does that opens it for each line."""

    def __init__(self, folder: Path) -> None:
        (folder / "logs").mkdir(parents=True)
        (folder / "logs").chmod(0o755)  # logrotate refuses what a group may write to
        self.folder, self.log, self.step = folder, folder / "logs" / "main_log.txt", 0
        self.draw = random.Random(3)

    def logs(self, rows: int, *more: str) -> None:
        with self.log.open("a") as log:
            for _ in range(rows):
                self.step += 25
                log.write(line(self.step, 2 + self.draw.gauss(0, 0.01)))
            log.writelines(more)


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    return Trainer(tmp_path / "tr_1")


def kinds(trainer: Trainer, memory: Memory) -> tuple[list[str], Memory]:
    judged = judge(seen(trainer.folder), memory)
    return [f.kind for f in judged.findings if f.kind.startswith(("loss", "node", "log"))], judged.memory


def steps(log: object) -> list[int]:
    assert isinstance(log, LogView)
    return [sample.step for sample in log.samples]


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_between_two_looks_is_read_once(trainer: Trainer, rotate: Rotate, way: str) -> None:
    """Twice rotated since the last look: its rest, the whole file between, and the new one."""
    trainer.logs(400)
    _, memory = kinds(trainer, Memory())
    trainer.logs(3, "srun: error: Node failure on n42\n")
    rotate(trainer.log, way)
    trainer.logs(5, "srun: error: Node failure on n43\n")
    rotate(trainer.log, way)
    assert len(list(trainer.log.parent.iterdir())) >= 2
    trainer.logs(2)
    judged = judge(seen(trainer.folder), memory)
    found = sorted(f.node for f in judged.findings if f.kind == "node-failure")
    assert found == ["n42", "n43"] and not [f for f in judged.findings if f.kind == "log-unseen"]
    assert steps(judged.snapshot.log)[-410:] == list(range(25, 25 * 411, 25)), "what was read before is still there"
    after = judge(seen(trainer.folder), judged.memory)
    assert after.memory == judged.memory and steps(after.snapshot.log) == steps(judged.snapshot.log)
    trainer.logs(3, line(trainer.step + 100, 3.2), line(trainer.step + 125, 3.3))
    told, _ = kinds(trainer, judged.memory)
    assert [kind[:5] for kind in told] == ["loss-", "node-", "node-"], "by the noise of the rows before"


@pytest.mark.parametrize("way", ["create", "copytruncate compress"])
def test_the_curve_and_the_screen_go_back_as_far_as_before(
    trainer: Trainer, rotate: Rotate, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for whoever looks the first time, with nothing remembered."""
    for _ in range(3):
        trainer.logs(60)
        rotate(trainer.log, way)
    trainer.logs(1)
    monkeypatch.chdir(trainer.folder)
    points = json.loads(m4ops("plot", "--json", slurm=FakeSlurm([])).out)
    assert [step for branch in points["branches"] for step, _ in branch["live"]] == list(range(25, 25 * 182, 25))
    shown = json.loads(m4ops("status", "--json", slurm=FakeSlurm([])).out)
    assert shown["progress"]["step"] == 25 * 181 and shown["progress"]["seconds_per_step"]
    trainer.log.write_text("")
    assert "step 4500" in m4ops("status", slurm=FakeSlurm([])).out, "a file without a step yet"


def test_jobs_with_logs_of_their_own_are_read_one_after_the_other(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that began and ended between two looks; the next one may still be loading its model."""
    (trainer.folder / "m4ops.toml").write_text('log = "logs/slurm-%A_%a.out"\n')
    begun = time.time() - 9000

    def job(number: int, rows: int, *more: str) -> None:
        trainer.log = trainer.folder / "logs" / f"slurm-7_{number}.out"
        trainer.logs(rows, *more)
        os.utime(trainer.log, (begun + 60 * number, begun + 60 * number))

    job(1, 60)
    _, memory = kinds(trainer, Memory())
    job(2, 0, "srun: error: Node failure on n42\n")
    job(3, 2, "srun: error: Node failure on n43\n")
    job(4, 0, "loading\n")
    told = judge(seen(trainer.folder), memory)
    assert sorted(f.node for f in told.findings if f.kind == "node-failure") == ["n42", "n43"]
    assert steps(told.snapshot.log) == list(range(25, 25 * 63, 25))
    monkeypatch.chdir(trainer.folder)
    points = json.loads(m4ops("plot", "--json", slurm=FakeSlurm([])).out)
    assert sum(len(branch["live"]) for branch in points["branches"]) == 62
    trainer.step = 25 * 30
    job(5, 5)
    points = json.loads(m4ops("plot", "--json", slurm=FakeSlurm([])).out)
    assert [len(branch["live"]) for branch in points["branches"]][-1] == 5, "after a rewind to before the last job"
    assert sum(len(branch["live"]) + len(branch["discarded"]) for branch in points["branches"]) == 67
    loading = replace(told.snapshot, now=begun + 240 + 600, jobs=(detectors_job(start=begun + 200),))
    assert "log-stalled" not in {f.kind for f in judge(loading, told.memory).findings}


def test_what_is_known_to_nobody_is_unseen_and_copies_are_no_history(trainer: Trainer, rotate: Rotate) -> None:
    trainer.logs(50)
    shutil.copy(trainer.log, trainer.log.with_name("main_log.txt.1"))
    trainer.logs(50)
    assert steps(rotated.read(trainer.log)) == list(range(25, 25 * 101, 25)), "a copy, not what it was before"
    _, memory = kinds(trainer, Memory())
    whole = trainer.log.read_text()
    trainer.log.write_text(line(25 * 101, 2))
    assert kinds(trainer, memory)[0] == ["log-unseen"], "the copy lacks what was read since"
    for name in ("main_log.txt.2", "main_log.txt.3"):
        trainer.log.with_name(name).write_text(whole)
    assert kinds(trainer, memory)[0] == ["log-unseen"], "either may be it"
    trainer.log.with_name("main_log.txt.3").unlink()
    trainer.log.with_name("main_log.txt.1").unlink()
    trainer.log.with_name("main_log.txt.2").write_text(whole + line(25 * 100 + 1, 2))
    told = judge(seen(trainer.folder), memory)
    assert not told.findings or "log-unseen" not in {f.kind for f in told.findings}
    assert steps(told.snapshot.log)[-2:] == [25 * 100 + 1, 25 * 101]


def test_a_torn_archive_is_where_the_history_begins(trainer: Trainer) -> None:
    trainer.logs(50)
    text = trainer.log.read_bytes()
    _, memory = kinds(trainer, Memory())
    trainer.log.with_name("main_log.txt.1.gz").write_bytes(gzip.compress(text)[:-20])
    trainer.log.write_text(line(25 * 51, 2) + line(25 * 52, 2))
    assert kinds(trainer, memory)[0] == ["log-unseen"]
    assert steps(rotated.read(trainer.log)) == [25 * 51, 25 * 52]


def test_another_training_under_the_same_name_has_no_part_in_the_history(trainer: Trainer) -> None:
    trainer.logs(50)
    trainer.log.rename(trainer.log.with_name("main_log.txt.1"))
    trainer.step = 0
    trainer.logs(5)
    assert steps(rotated.read(trainer.log)) == [25, 50, 75, 100, 125]
    assert steps(judge(seen(trainer.folder), Memory()).snapshot.log) == [25, 50, 75, 100, 125]


def test_a_large_archive_is_read_in_small_pieces(trainer: Trainer) -> None:
    """Its bytes are those of the file it was, also where a reader looks back."""
    noise = "".join(f"rank {n % 512}: {n * 2654435761 % 10**9} some other output\n" for n in range(150_000))
    text = line(25, 2.0) + noise + line(50, 2.0) + noise + line(75, 2.0)
    packed = trainer.log.with_name("main_log.txt.1.gz")
    packed.write_bytes(gzip.compress(text.encode(), 1))
    trainer.log.write_text(line(100, 2.0))
    found = discovery.describe(trainer.folder)[0].log
    assert found == trainer.log
    whole = [view for view, _ in read_batches(found, None)]
    assert [s.step for view in whole for s in view.samples] == [25, 50, 75, 100]
    assert len(whole) > 10
    assert steps(rotated.read(found)) == [25, 50, 75, 100]
    unpacked = rotated.Unpacked(packed)
    for start in (9_000_000, 8_999_000, 17, 4_000_000):
        unpacked.seek(start)
        assert unpacked.read(100) == text.encode()[start : start + 100]
    assert unpacked.length() == len(text)
    unpacked.close()
