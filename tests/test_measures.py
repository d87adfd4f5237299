"""The model's own series, from files as m4's trainer writes them to what the detector says of them."""

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm, Row
from runs import m4ops
from test_detectors import healthy

from ops.detectors import judge
from ops.logs import measures
from ops.model import Finding, Measure, Severity

LAYERS = [f"model.layers.{n}.mlp.down_proj.weight" for n in range(4)]
ACTIVATIONS, PARAMETERS = "7_logs_activations.jsonl", "7_logs_params_grads_stats.jsonl"


def stats(series: str, largest: float) -> dict[str, float]:
    """What the trainer takes of one tensor."""
    return {f"{series}_var_min": -largest, f"{series}_abs_var_max": largest, f"{series}_var_norm_2": 1e-6 * largest}


def healthy_row(step: int, layer: int, draw: random.Random) -> dict[str, Any]:
    """A parameter's row while the warm-up still goes on: moments grow, the weight hardly moves, the gradient wavers."""
    grow = min(1.0, step / 3000)
    row: dict[str, Any] = {"name": LAYERS[layer], "step": step}
    for series, value in (("hp", 0.4 + 1e-5 * step), ("hp_grad", 1e-3 * math.exp(draw.gauss(0, 0.4)))):
        row |= stats(series, value)
    return row | stats("exp_avg_sq", 1e-8 * grow * math.exp(draw.gauss(0, 0.2)))


def write(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    with (folder / name).open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def training(folder: Path, steps: range, **factor: float) -> None:
    """The parameters' statistics of all layers; those of layer 2 times a factor, by series."""
    draw = random.Random(steps.start)
    rows = [healthy_row(step, layer, draw) for step in steps for layer in range(4)]
    for row in rows:
        for series, times in factor.items():
            if row["name"] == LAYERS[2]:
                row[f"{series}_abs_var_max"] *= times
    write(folder, PARAMETERS, rows)


class Watcher:
    """Looks at a folder again and again, as the check does."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.places, self.memory = folder, dict[str, Any](), dict[str, Any]()

    def look(self) -> tuple[Finding, ...]:
        new, places = measures.read_new(self.folder, json.loads(json.dumps(self.places)))
        self.memory, found = judge(healthy(), None, json.loads(json.dumps(self.memory)), new)
        self.places = places
        return found


def test_a_warm_up_is_no_explosion(tmp_path: Path) -> None:
    training(tmp_path, range(100, 12_000, 100))
    assert Watcher(tmp_path).look() == ()


def test_the_module_where_it_began_is_named(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    training(tmp_path, range(100, 5000, 100))
    assert watcher.look() == ()
    training(tmp_path, range(5000, 5200, 100), hp_grad=60.0)
    training(tmp_path, range(5200, 5400, 100), hp_grad=900.0, exp_avg_sq=1e5)
    (finding,) = watcher.look()
    assert (finding.kind, finding.severity) == ("series-explosion", Severity.WARNING)
    assert finding.summary.startswith(f"{LAYERS[2]} hp_grad rose from 0.00")
    assert finding.summary.endswith("1 more series since")
    assert finding.step in (5000, 5100)
    assert str(tmp_path / PARAMETERS) in finding.evidence[0]
    training(tmp_path, range(5400, 5700, 100))
    assert watcher.look() == ()


def test_an_activation_that_is_nan_is_told_at_once(tmp_path: Path) -> None:
    first = {"name": "model.vision", "type": "Encoder", **stats("output[0]", 12.0), "batches": 1, "step": 50}
    write(tmp_path, ACTIVATIONS, [first, {**first, **stats("output[0]", math.nan), "step": 100}])
    (finding,) = Watcher(tmp_path).look()
    assert finding.severity is Severity.CRITICAL
    assert "model.vision output[0] is NaN or infinite at step 100" in finding.summary


def test_a_resume_begins_anew_and_a_higher_level_that_stays_is_the_usual_one(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path)
    training(tmp_path, range(100, 5000, 100))
    training(tmp_path, range(5000, 5300, 100), hp=30.0)
    assert len(watcher.look()) == 1
    training(tmp_path, range(4000, 4200, 100))
    assert watcher.look() == ()
    training(tmp_path, range(5300, 12_000, 100), hp=30.0)
    assert watcher.look() == ()


def test_only_what_is_new_is_read_and_torn_lines_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(places: dict[str, Any]) -> tuple[list[Measure], dict[str, Any]]:
        found, after = measures.read_new(tmp_path, places)
        return list(found), after

    def append(text: str) -> None:
        with (tmp_path / PARAMETERS).open("a") as file:
            file.write(text)

    training(tmp_path, range(100, 300, 100))
    append('{"name": "torn", "step": 300, "hp_abs_var')
    all_, places = read({})
    assert len(all_) == 2 * 4 * 3
    assert read(places) == ([], places)
    append('_max": 2.0}\n["foreign"]\nno json\n')
    (last,), places = read(places)
    assert (last.module, last.series, last.value) == ("torn", "hp", 2.0)
    monkeypatch.setattr(measures, "FIRST", 1500)
    monkeypatch.setattr(measures, "BLOCK", 100)
    tail, _ = read({})
    assert 3 <= len(tail) < len(all_)
    assert tail == [*all_[1 - len(tail) :], last]
    assert read(dict.fromkeys(places, 5))[0] == tail
    write(tmp_path, f"8{PARAMETERS[1:]}", [healthy_row(400, 0, random.Random(1))])
    assert [m.step for m in read(places)[0]] == [400] * 3


def test_a_file_that_cannot_be_read_is_unknown_until_it_can_be(tmp_path: Path) -> None:
    places: dict[str, Any] = {}

    def look() -> list[str]:
        nonlocal places
        new, after = measures.read_new(tmp_path, json.loads(json.dumps(places)))
        list(new)
        places = after
        return [f"{Path(file).name}: {why}" for file, why in measures.unread(places)]

    training(tmp_path, range(100, 300, 100))
    (tmp_path / ACTIVATIONS).mkdir()
    assert look() == look() == [f"{ACTIVATIONS}: Is a directory"]
    (tmp_path / ACTIVATIONS).rmdir()
    size = (tmp_path / PARAMETERS).stat().st_size
    with (tmp_path / PARAMETERS).open("a") as file:
        file.write('{"name": "torn", "st{"name": "glued"}\n')
    write(tmp_path, PARAMETERS, [healthy_row(300, 0, random.Random(1))])
    torn = f"{PARAMETERS}: 1 of 2 lines are torn, from byte {size} on"
    assert look() == look() == [torn]
    write(tmp_path, PARAMETERS, [healthy_row(400, 0, random.Random(1))])
    assert look() == []
    assert measures.UNREAD not in places


def test_check_and_status_say_what_could_not_be_read_and_replay_too(tmp_path: Path) -> None:
    run = M4(tmp_path / "tr_1")
    run.train(30)
    training(run.folder / "logs", range(100, 5000, 100))
    training(run.folder / "logs", range(5000, 5300, 100), hp_grad=900.0)
    (run.folder / "logs" / ACTIVATIONS).mkdir()
    slurm = FakeSlurm([Row(name="tr_1")])
    checked = [m4ops("--run", str(run.folder), "check", slurm=slurm) for _ in range(2)]
    assert [said.code for said in checked] == [3, 3]
    assert f"logs/{ACTIVATIONS}: Is a directory" in checked[1].out
    status = m4ops("--run", str(run.folder), "status", slurm=slurm)
    assert f"logs/{ACTIVATIONS}: Is a directory" in " ".join(status.out.split())
    with (run.folder / "logs" / PARAMETERS).open("a") as file:
        file.write("torn\n")
    again = m4ops("replay", "--json", str(run.folder / "logs" / PARAMETERS), slurm=slurm)
    explosion, unknown = json.loads(again.out)
    assert (explosion["kind"], explosion["row"]) == ("series-explosion", 49)
    assert explosion["step"] == 5000
    assert (unknown["kind"], unknown["severity"]) == ("series-unknown", "UNKNOWN")
    assert "1 of 209 lines are torn" in unknown["summary"]
    cut = tmp_path / ACTIVATIONS
    cut.write_text('{"name": "model.vision", "step": 100, "output[0]_abs_var_max": 2.0}\n{"name": "model.vision", "st')
    (unknown,) = json.loads(m4ops("replay", "--json", str(cut), slurm=slurm).out)
    assert unknown["summary"].endswith("its last line is torn, at byte 68")


class M4:
    """A run of m4's trainer: the log tells the whole loss, `{job_id}_logs.jsonl` that of each data set too."""

    def __init__(self, folder: Path) -> None:
        (folder / "logs").mkdir(parents=True)
        self.folder, self.step, self.draw = folder, 0, random.Random(3)

    def train(self, rows: int, job: int = 7, whole: float = 0.0, **more: float) -> None:
        """Log so many rows more; the whole loss and those of some data sets are higher by so much."""
        with (
            (self.folder / "logs" / "main_log.txt").open("a") as log,
            (self.folder / "logs" / f"{job}_logs.jsonl").open("a") as beside,
        ):
            for _ in range(rows):
                self.step += 25
                done, loss = f"{self.step:>6}/500000   1%", 1.7 + whole + self.draw.gauss(0, 0.004)
                parts = {
                    f"per_token_loss/{name}": 1.5 + 0.3 * i + more.get(name, 0.0) + self.draw.gauss(0, 0.01)
                    for i, name in enumerate(("cm4", "laion", "wiki"))
                }
                log.write(f"iteration: {done} | elapsed time: 00:00:01 | per_token_loss: {loss:.4f} | lr: 1.0E-05 |\n")
                row = {"iteration": done, "elapsed_time": "00:00:01", "set": "train", "per_token_loss": loss, **parts}
                beside.write(json.dumps(row) + "\n")
            validation = {"current step": f"{self.step}", "set": "validation", "per_token_loss/cm4": 9.0}
            beside.write(json.dumps(validation) + "\n")

    def check(self) -> dict[str, dict[str, Any]]:
        """The findings about the loss, by kind."""
        said = m4ops("--run", str(self.folder), "check", "--json", slurm=FakeSlurm([Row(name=self.folder.name)]))
        found = json.loads(said.out)["findings"]
        return {f["kind"]: f for f in found if "loss" in f["kind"] or "dataset" in f["kind"]}


def test_a_data_set_told_beside_the_log_is_watched_live_and_named_in_a_spike(tmp_path: Path) -> None:
    run = M4(tmp_path / "tr_1")
    run.train(150)
    assert run.check() == {}
    run.train(4, cm4=0.6)
    risen = run.check()["dataset-spike"]
    assert "the loss of a data set rose at step 3775, the whole did not: cm4 from 1." in risen["summary"]
    assert risen["evidence"] == [f"{run.folder}/logs/7_logs.jsonl: step 3775"]
    run.train(30)
    assert run.check() == {}
    run.train(3, job=8, whole=0.5, laion=1.1)
    spike = run.check()["loss-spike"]
    assert "; of the data sets rose laion from 1." in spike["summary"]
    assert "cm4" not in spike["summary"]
