"""What `m4ops replay` says of files made here."""

import bz2
import gzip
import json
import lzma
import math
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ops.cli import cli


def replay(file: Path) -> list[dict[str, Any]]:
    done = CliRunner().invoke(cli, ["replay", "--json", str(file)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def quiet(rows: int = 500) -> list[float]:
    draw = random.Random(1)
    return [2 + 3 / (1 + i / 20) + draw.gauss(0, 0.01) for i in range(rows)]


def losses() -> list[float]:
    """A quiet series with a spike of five rows at row 300."""
    return [loss + (1.5 if 300 <= i < 305 else 0) for i, loss in enumerate(quiet())]


def diverging() -> list[float]:
    return [loss + (0.05 * (i - 300) if i >= 300 else 0) for i, loss in enumerate(quiet(400))]


def write(folder: Path, form: str, values: list[float]) -> Path:
    rows = [{"step": 10 * (i + 1), "loss": loss, "learning_rate": 1e-4} for i, loss in enumerate(values)]
    file = folder / {"csv": "a.csv", "jsonl": "a.jsonl", "state": "trainer_state.json", "log": "main_log.txt"}[form]
    if form == "csv":
        text = "step,loss\n" + "".join(f"{r['step']},{r['loss']}\n" for r in rows)
    elif form == "jsonl":
        m4 = ({"iteration": f" {r['step']}/9000   1%", "set": "train", "per_token_loss": r["loss"]} for r in rows)
        validation = '{"current step": 100, "set": "validation", "val_per_token_loss": 99.0, "per_token_loss": 99.0}\n'
        text = "".join(json.dumps(row) + "\n" for row in m4) + validation + '{"torn": '
    elif form == "state":
        text = json.dumps({"global_step": 5000, "log_history": [*rows, {"step": 5000, "eval_loss": 1.0}]})
    else:
        text = "".join(f"iteration: {r['step']:5d}/9000   1% | per_token_loss: {r['loss']:.4f} |\n" for r in rows)
    file.write_text(text)
    return file


@pytest.mark.parametrize("form", ["csv", "jsonl", "state", "log"])
def test_the_same_series_says_the_same_in_every_form(tmp_path: Path, form: str) -> None:
    (spike,) = replay(write(tmp_path, form, losses()))
    assert (spike["detector"], spike["kind"], spike["severity"]) == ("loss", "loss-spike", "WARNING")
    assert 300 <= spike["row"] <= 302
    assert spike["step"] == 3010
    assert spike["line"] == {"csv": 302, "jsonl": 301, "state": None, "log": 301}[form]
    assert 305 <= spike["resolved_row"] <= 315
    assert spike["node"] is None
    assert spike["rank"] is None


def test_a_verdict_that_changes_is_told_again(tmp_path: Path) -> None:
    spike, divergence = replay(write(tmp_path, "csv", diverging()))
    assert (spike["kind"], divergence["kind"]) == ("loss-spike", "loss-divergence")
    assert spike["resolved_row"] == divergence["row"]
    assert divergence["resolved_row"] is None
    assert divergence["severity"] == "CRITICAL"


def test_nan_is_told_at_its_row(tmp_path: Path) -> None:
    (nan,) = replay(write(tmp_path, "csv", [*quiet(200), math.nan, math.nan]))
    assert (nan["kind"], nan["row"], nan["step"]) == ("loss-nan", 200, 2010)


def test_the_table_names_step_and_kind_and_nothing_is_said_to_be_nothing(tmp_path: Path) -> None:
    told = CliRunner().invoke(cli, ["replay", str(write(tmp_path, "csv", diverging()))]).stdout
    assert "3020" in told
    assert "(loss-divergence from row 32" in " ".join(told.split())
    healed = CliRunner().invoke(cli, ["replay", str(write(tmp_path, "csv", losses()))]).stdout
    assert "(over at row 30" in " ".join(healed.split())
    nothing = CliRunner().invoke(cli, ["replay", str(write(tmp_path, "csv", quiet(250)))]).stdout
    assert nothing == "nothing to report in 250 logged points\n"


@pytest.mark.parametrize(("name", "text"), [("a.csv", "epoch,accuracy\n1,0.5\n"), ("trainer_state.json", "{")])
def test_a_table_without_losses_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    done = CliRunner().invoke(cli, ["replay", str(tmp_path / name)])
    assert done.exit_code == 1
    assert name in str(done.exception)


def test_a_log_that_begins_with_a_blow_up_is_no_noise(tmp_path: Path) -> None:
    """The first rows that are known are the last ones before it: a rise without a step back is none of chance."""
    (spike,) = replay(write(tmp_path, "log", [2.0, 2.1, 2.3, 2.8, 3.4]))
    assert (spike["kind"], spike["row"]) == ("loss-spike", 4)
    assert not replay(write(tmp_path, "log", [2.0, 2.8, 2.3, 3.1, 2.2, 2.9, 2.1, 2.4, 2.8, 2.0]))


def unknown(folder: Path, content: bytes, *piped: str) -> list[dict[str, Any]]:
    """What a replay says of a log in which no progress is known. It ends with 3."""
    (folder / "a.log").write_bytes(content)
    done = CliRunner().invoke(cli, ["replay", "--json", *(piped or [str(folder / "a.log")])], input=content)
    assert done.exit_code == 3, done.output
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_what_is_not_understood_is_unknown(tmp_path: Path) -> None:
    line = "srun: error: Node failure on n42\n"
    for content, why in (
        (b"", "is empty"),
        (random.Random(3).randbytes(5000), "--progress"),
        (b"upd=1 xent 3.5\n", "--progress"),
        (b"\x28\xb5\x2f\xfd and more", "zstdcat a.log | m4ops replay -"),
    ):
        (found,) = unknown(tmp_path, content)
        assert (found["kind"], found["severity"]) == ("progress-unknown", "UNKNOWN")
        assert why in found["summary"]
    assert [f["kind"] for f in unknown(tmp_path, line.encode())] == ["node-failure", "progress-unknown"]
    assert [f["kind"] for f in unknown(tmp_path, line.encode(), "-")] == ["node-failure", "progress-unknown"]


def test_a_compressed_file_is_unpacked(tmp_path: Path) -> None:
    plain = write(tmp_path, "csv", losses())
    for packed, suffix in ((gzip.compress, "gz"), (bz2.compress, "bz2"), (lzma.compress, "xz")):
        file = tmp_path / f"a.csv.{suffix}"
        file.write_bytes(packed(plain.read_bytes()))
        assert [f["kind"] for f in replay(file)] == ["loss-spike"]
    file.write_bytes(file.read_bytes()[:100])
    done = CliRunner().invoke(cli, ["replay", "--json", str(file)])
    assert done.exit_code == 1
    assert "could not be unpacked" in str(done.exception)


HEADS = (
    "Step,Train/Loss",
    "iteration,LM loss",
    "steps,training_loss",
    "# step,loss_mean",
    "Wall time,Step,Value",
    "timestamp,loss",
)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "points.dat", "points"])
def test_a_table_is_known_by_its_first_line(tmp_path: Path, name: str, head: str) -> None:
    """Whatever the file and its columns are called; of one without steps the rows are counted, if it is called a table."""
    if head.startswith("time") and name.startswith("points"):
        return
    wide = head.count(",") - 1
    rows = "".join(f"{'1.5,' * wide}{step},{loss}\n" for step, loss in enumerate(losses()))
    text = f"{head}\n{rows}"
    (tmp_path / name).write_text(text.replace(",", "\t") if name.endswith("tsv") else text)
    (spike,) = replay(tmp_path / name)
    assert (spike["kind"], spike["row"]) == ("loss-spike", 300)


def test_a_log_may_come_from_standard_input(tmp_path: Path) -> None:
    file = write(tmp_path, "log", losses())
    done = CliRunner().invoke(cli, ["replay", "-", "--json"], input=file.read_bytes())
    assert done.exit_code == 0
    assert json.loads(done.stdout)[0]["kind"] == "loss-spike"


@pytest.mark.parametrize(
    ("name", "rows", "first"),
    [
        ("a.csv", "step,loss,lr\n{}\n1,,\n77,much,1e-4\n78", "1,2.0,1e-4"),
        ("a.jsonl", '{}\n{{"_step": 7, "eval_loss": 3.0}}\n{{"_step": 8, "train/loss": "much"}}\n{{"_st', '{"_step": 1, "train/loss": 2.0}'),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_read_are_counted(tmp_path: Path, name: str, rows: str, first: str) -> None:
    file = tmp_path / name
    file.write_text(rows.format(first))
    told = CliRunner().invoke(cli, ["replay", str(file)])
    line = {"a.csv": 4, "a.jsonl": 3}[name]
    assert f"2 rows could not be read, the first is line {line}: left out" in told.stderr
    assert "1 logged point" in told.stdout


@pytest.mark.parametrize(
    ("name", "text", "hint"),
    [
        ("a.csv", "epoch,accuracy\n1,0.5\n", "step,loss"),
        ("a.csv", "step,loss\ninf,2.0\n", "step,loss"),
        ("a.jsonl", '{"epoch": 1}\n', "each line is an object"),
        ("a.json", "5", "log_history"),
        ("a.json", '{"log_history": null}', "log_history"),
    ],
)
def test_the_hint_fits_the_kind_of_file(tmp_path: Path, name: str, text: str, hint: str) -> None:
    (tmp_path / name).write_text(text)
    done = CliRunner().invoke(cli, ["replay", str(tmp_path / name)])
    assert done.exit_code == 1
    assert hint in done.exception.hint  # type: ignore[union-attr]
