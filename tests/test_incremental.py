"""A tick costs what is new, and what m4ops remembers can be lost: it is made again from the log, with the same findings."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from test_detectors import bf16, healthy

from ops import discovery
from ops.judging import judge
from ops.logs import read_log
from ops.model import Finding, LogView, Severity, Snapshot
from ops.state import Memory

NOISE = "some other output of a rank that says nothing of interest\n" * 60
"""What stands between two progress lines: the log is long, as real ones are."""


def line(step: int, loss: float) -> str:
    return f"iteration: {step:>6}/500000   3% | elapsed time: 00:00:{step % 60:02d} | per_token_loss: {loss:.4f} | lr: 1.000E-05 |\n"


def losses(rows: int) -> list[float]:
    """Quantised as bf16 is, with a spike that heals, one that does not, and a creep."""
    draw = random.Random(5)
    level = [1.7 + 3 / (1 + i / 20) + draw.gauss(0, 0.01) for i in range(rows)]
    spiked = [loss + (0.8 if 600 <= i < 606 else 0) for i, loss in enumerate(level)]
    return [bf16(loss + 0.06 * max(0, i - rows + 60)) for i, loss in enumerate(spiked)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose log has 1000 rows in some megabytes."""
    folder = tmp_path_factory.mktemp("long") / "tr_1"
    (folder / "logs").mkdir(parents=True)
    with (folder / "logs" / "main_log.txt").open("w") as log:
        for i, loss in enumerate(losses(1000)):
            log.write(NOISE + line(25 * (i + 1), loss))
    return folder


def seen(folder: Path) -> Snapshot:
    found = discovery.describe(folder)[0]
    assert found.log is not None
    log = read_log(found.log, 1 << 18)
    assert isinstance(log, LogView)
    return replace(healthy(), run=found, log=log)


def read_by(action: Callable[[], Any]) -> int:
    """Bytes that this process reads from files meanwhile, as the kernel counts them."""

    def count() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = count()
    action()
    return count() - before


def rows(picture: Snapshot) -> list[tuple[int, float, int, dict[str, float]]]:
    """The end of the log as views and detectors see it."""
    assert isinstance(picture.log, LogView)
    return [(s.step, s.loss, s.line, dict(s.fields)) for s in picture.log.samples]


def plain(memory: Memory) -> object:
    """As it is saved."""
    return json.loads(json.dumps([memory.cursor, memory.detectors, memory.tail, memory.measures]))


def shown(findings: tuple[Finding, ...]) -> list[str]:
    return [f"{f.kind} {f.step} {f.summary}" for f in findings if f.kind.startswith("loss")]


def test_a_tick_reads_what_is_new(run: Path) -> None:
    picture = seen(run)
    size = picture.log.size if isinstance(picture.log, LogView) else 0
    assert size > 3_000_000
    memory = Memory()
    assert read_by(lambda: judge(picture, memory)) > size
    memory = judge(picture, memory).memory
    with (run / "logs" / "main_log.txt").open("a") as log:
        log.write(line(25 * 1001, 5.0))
    assert read_by(lambda: judge(picture, memory)) < size / 20
    memory = judge(picture, memory).memory
    assert read_by(lambda: judge(picture, memory)) < 500, "an unchanged log is not opened"
    assert judge(picture, memory).memory == memory
    assert len(json.dumps(memory.detectors)) < 100_000
    os.truncate(run / "logs" / "main_log.txt", size)


BROKEN: dict[str, Callable[[Memory], Memory]] = {
    "lost": lambda memory: Memory(),
    "the detectors' alone": lambda memory: replace(memory, detectors={}),
    "of another version": lambda memory: replace(memory, detectors={**memory.detectors, "version": 1}),
    "torn": lambda memory: replace(memory, detectors={**memory.detectors, "loss": {"fast": {"no": "episode"}}}),
    "the place in the log": lambda memory: replace(memory, cursor={**memory.cursor, "progress": [1]}),
    "the log's end": lambda memory: replace(memory, tail={**memory.tail, "samples": [[1]]}),
    "foreign": lambda memory: replace(memory, detectors={**memory.detectors, "incident": [1, 2]}),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_memory_that_is_gone_is_made_again_from_the_log(run: Path, how: str) -> None:
    picture = seen(run)
    first = judge(picture, Memory())
    found, memory = first.findings, first.memory
    assert shown(found)[0].startswith("loss-divergence")
    again = judge(picture, BROKEN[how](memory))
    assert shown(again.findings) == shown(found)
    assert plain(again.memory) == plain(memory)


def test_what_the_config_says_of_progress_lines_counts_for_all_of_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "tr_1"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "main_log.txt").write_text("".join(f"upd={n} xent {3 - n / 100}\n" for n in range(1, 60)))
    first = judge(seen(folder), Memory())
    assert isinstance(first.snapshot.log, LogView)
    assert first.snapshot.log.samples == ()
    (folder / "m4ops.toml").write_text('progress = "upd={step} xent {loss}"\n')
    told = judge(seen(folder), first.memory)
    assert [step for step, *_ in rows(told.snapshot)] == list(range(1, 60))
    assert judge(seen(folder), told.memory).memory == told.memory


def test_looking_after_every_piece_says_the_same(run: Path, tmp_path: Path) -> None:
    """The log as it grew, looked at 23 times, the memory through JSON each time, and lost once on the way."""
    whole = (run / "logs" / "main_log.txt").read_bytes()
    copy = tmp_path / "tr_1"
    (copy / "logs").mkdir(parents=True)
    memory = Memory()
    for part in range(1, 24):
        with (copy / "logs" / "main_log.txt").open("ab") as log:
            log.write(whole[(part - 1) * len(whole) // 23 : part * len(whole) // 23])
        memory = Memory() if part == 11 else replace(memory, detectors=json.loads(json.dumps(memory.detectors)))
        judged = judge(seen(copy), memory)
        memory = judged.memory
    at_once = judge(seen(copy), Memory())
    assert shown(judged.findings) == shown(at_once.findings)
    assert rows(judged.snapshot) == rows(at_once.snapshot)


def begun(folder: Path, rows: int = 400) -> tuple[Path, Memory]:
    """A run's log of so many quiet rows, and the memory after them."""
    (folder / "logs").mkdir(parents=True)
    log = folder / "logs" / "main_log.txt"
    draw = random.Random(3)
    log.write_text("".join(line(25 * (i + 1), 2 + draw.gauss(0, 0.01)) for i in range(rows)))
    return log, judge(seen(folder), Memory()).memory


def told(folder: Path, memory: Memory) -> tuple[list[str], Memory]:
    judged = judge(seen(folder), memory)
    kinds = ("loss", "node", "log")
    return [f.kind for f in judged.findings if f.kind.startswith(kinds)], judged.memory


@pytest.mark.parametrize(
    "new", ["starting\n", line(25 * 402, 2.0), line(25 * 402, 2.8)], ids=["words", "step", "spike"]
)
def test_a_log_that_is_rotated_loses_no_line_and_no_noise(tmp_path: Path, new: str) -> None:
    """What was written to the old file since the last look is read under its new name, its torn last line too."""
    folder = tmp_path / "tr_1"
    log, memory = begun(folder)
    with log.open("a") as file:
        file.write(line(25 * 401, 2.0) + "srun: error: Node failure on n42")
    log.rename(log.with_name("main_log.txt.1"))
    log.write_text(new)
    kinds, memory = told(folder, memory)
    assert "log-unseen" not in kinds
    assert "node-failure" in kinds
    with log.open("a") as file:
        file.write(line(25 * 403, 2.9) + line(25 * 404, 3.0))
    kinds, memory = told(folder, memory)
    assert [kind[:5] for kind in kinds] == ["loss-", "node-"], (
        "by the noise of 400 rows, of which the new file has none"
    )
    assert told(folder, memory)[1] == memory


def test_what_was_cut_before_it_was_read_is_told(tmp_path: Path) -> None:
    """Once; the noise stays known where the steps go on, and a file that begins at the start tells all itself."""
    folder = tmp_path / "tr_1"
    log, memory = begun(folder)
    with log.open("r+") as file:
        file.truncate(0)
        file.write(line(25 * 390, 2.0))
    first = judge(seen(folder), memory)
    (unseen,) = (f for f in first.findings if f.kind == "log-unseen")
    assert unseen.severity == Severity.WARNING
    with log.open("a") as file:
        file.write("".join(line(25 * (391 + i), 2.8 + i / 10) for i in range(3)))
    kinds, memory = told(folder, first.memory)
    assert [kind[:5] for kind in kinds] == ["loss-"]

    log.write_text("".join(line(25 * (i + 1), 2.0) for i in range(9)))
    kinds, memory = told(folder, memory)
    assert kinds == ["log-unseen"]
    assert memory.detectors == judge(seen(folder), Memory()).memory.detectors


def test_one_log_a_job_is_followed_from_one_to_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "tr_1"
    log, memory = begun(folder)
    (folder / "m4ops.toml").write_text('log = "logs/slurm-%j.out"\n')
    log.rename(log.with_name("slurm-1.out"))
    kinds, memory = told(folder, memory)
    assert not kinds, "the same file under its new name"
    with log.with_name("slurm-1.out").open("a") as file:
        file.write(line(25 * 401, 2.0) + "srun: error: Node failure on n42\n")
    log.with_name("slurm-2.out").write_text(line(25 * 390, 2.8) + line(25 * 391, 2.9) + line(25 * 392, 3.0))
    os.utime(log.with_name("slurm-1.out"), (1000, 1000))
    kinds, memory = told(folder, memory)
    assert sorted(kind[:5] for kind in kinds) == ["loss-", "node-"]
