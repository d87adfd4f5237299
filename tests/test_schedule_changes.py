"""`m4ops shift-schedule`, `set-lr` of a group, a peak, 0 and back, and DeepSpeed's own schedulers: resumed for real."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import runs
import torch
import two_ranks
from runs import Run
from torch.optim import lr_scheduler as t

RATES = (1e-3, 4e-4)


def recorded(path: Path) -> dict[int, list[float]]:
    """Step → LR of each group as that step used it."""
    return {line["step"]: line["lrs"] for line in map(json.loads, path.read_text().splitlines())}


def resumed(run: Run, until: int, name: str = "resumed.jsonl", every: str = "10") -> dict[int, list[float]]:
    record = run.root / name
    options = ("--steps", "40", "--until", str(until), "--save-every", every, "--lr-record", str(record))
    runs.train(run.dir, *options)
    return recorded(record)


def restarted(run: Run, step: int, epoch: int) -> None:
    """The schedule begins anew, as when a trainer skipped the scheduler's state."""
    path = run.state(step)
    state = torch.load(path, weights_only=False)
    torch.save({**state, "last_epoch": epoch, "_step_count": epoch + 1}, path)


def test_a_schedule_that_began_anew_is_set_to_its_step(run: Run) -> None:
    plain = recorded(run.root / "lrs.jsonl")
    run.done("rewind", "--to", "20", "-y")
    restarted(run, 20, 3)
    before = run.tree()
    run.done("shift-schedule", "--to-step", "20", "-y")
    run.done("undo", "-y")
    assert run.tree() == before
    said = run.done("shift-schedule", "--to-step", "20", "-y")
    assert re.search(r"lambdas\s+live\s+in\s+the\s+trainer's\s+code", said.out)
    now = resumed(run, 26)
    assert now == {step: plain[step] for step in range(21, 27)}


def test_the_lr_is_0_for_a_while_and_comes_back_from_the_journal(run: Run) -> None:
    plain = recorded(run.root / "lrs.jsonl")
    run.done("rewind", "--to", "20", "--set-lr", "0", "-y")
    frozen = resumed(run, 24, "frozen.jsonl", every="4")
    assert [frozen[step] for step in range(21, 25)] == [[0.0, 0.0]] * 4
    said = run.done("set-lr", "back", "-y")
    assert "0 → 0.00166667" in said.out
    now = resumed(run, 28)
    assert now[25] == plain[21]  # the optimizer's own, as it was; from then on the schedule's at its step
    assert [now[step] for step in range(26, 29)] == [plain[step] for step in range(26, 29)]


# -- torch's schedulers, whose formula m4ops knows -------------------------------------------------------


class Training:
    """Two parameter groups under a scheduler; as m4's files in a run."""

    def __init__(self, make: Any, steps: int = 0) -> None:
        groups = [{"params": [torch.nn.Parameter(torch.ones(2))], "lr": lr} for lr in RATES]
        self.optimizer = torch.optim.AdamW(groups)
        self.scheduler = make(self.optimizer)
        self.train(steps)

    def train(self, steps: int) -> list[list[float]]:
        used = []
        for _ in range(steps):
            used.append([float(group["lr"]) for group in self.optimizer.param_groups])
            for group in self.optimizer.param_groups:
                group["params"][0].grad = torch.ones(2)
            self.optimizer.step()
            self.scheduler.step()
        return used

    def save(self, run: Run, step: int) -> None:
        torch.save(self.optimizer.state_dict(), run.state(step, "optimizer.bin"))
        torch.save(self.scheduler.state_dict(), run.state(step))

    def load(self, run: Run, step: int) -> None:
        self.optimizer.load_state_dict(torch.load(run.state(step, "optimizer.bin")))
        self.scheduler.load_state_dict(torch.load(run.state(step), weights_only=False))


def sequential(o: torch.optim.Optimizer) -> Any:
    return t.SequentialLR(
        o, [t.LinearLR(o, 0.1, total_iters=6), t.CosineAnnealingLR(o, 20, eta_min=1e-5)], milestones=[14]
    )


SCHEDULERS = {
    "SequentialLR": sequential,
    "OneCycleLR": lambda o: t.OneCycleLR(o, [1e-3, 2e-3], total_steps=400),
    "CosineAnnealingWarmRestarts": lambda o: t.CosineAnnealingWarmRestarts(o, 9, T_mult=2, eta_min=1e-5),
}


@pytest.mark.filterwarnings("ignore")
def test_schedulers_go_on_from_another_step_with_its_lr(run: Run) -> None:
    for name, make in SCHEDULERS.items():
        for there in (3, 17, 300) if name != "SequentialLR" else (3, 17):
            Training(make, 10).save(run, 10)
            said = run.done("shift-schedule", "--to-step", str(there), "--at", "10", "-y")
            back, real = Training(make), Training(make, there)
            back.load(run, 10)
            wanted = real.train(20)
            shown = re.findall(r"group 0 in the next steps: .*?→ ([\d.e-]+)", said.out.replace("\n", " "))
            assert [float(shown[0])] == pytest.approx([wanted[0][0]], rel=1e-5)
            assert back.train(20) == [pytest.approx(rates, rel=1e-9, abs=1e-15) for rates in wanted], (name, there)


def of_code(o: torch.optim.Optimizer) -> Any:
    return t.LambdaLR(o, lambda step: min(1.0, (1 + step) / 40))


def test_the_first_lr_can_be_said_where_only_the_code_knows_it(run: Run) -> None:
    Training(of_code, 10).save(run, 10)
    wanted, back = Training(of_code, 25).train(20), Training(of_code)
    run.done("shift-schedule", "--to-step", "25", "--lr", str(wanted[0][0]), "--at", "10", "-y")
    back.load(run, 10)
    assert back.train(20) == [pytest.approx(rates, rel=1e-12) for rates in wanted]


@pytest.mark.parametrize("words", [("--group", "1"), ("--peak",), ()], ids=["group", "peak", "current"])
def test_an_lr_is_set_where_the_plan_says(run: Run, words: tuple[str, ...]) -> None:
    Training(of_code, 10).save(run, 10)
    plain, back = Training(of_code, 10).train(20), Training(of_code)
    said = " ".join(run.done("set-lr", "1e-5", *words, "--at", "10", "-y").out.split())
    back.load(run, 10)
    now = back.train(20)
    if words[:1] == ("--group",):
        assert "the current LR of group 1 is 0.00011 and becomes 1e-05" in said
        wanted = [[a, b * (1e-5 / plain[0][1])] for a, b in plain]
    elif words:
        assert "the schedule's peak is 0.001 and becomes 1e-05" in said
        wanted = [[lr / 100 for lr in rates] for rates in plain]
    else:
        assert now[0][0] == 1e-5
        wanted = [[lr * (1e-5 / plain[0][0]) for lr in rates] for rates in plain]
    assert now == [pytest.approx(rates, rel=1e-12) for rates in wanted]


@pytest.mark.filterwarnings("ignore")
def test_the_plan_shows_the_lrs_that_the_next_steps_will_have(run: Run) -> None:
    Training(sequential, 10).save(run, 10)
    said = run.done("scale-lr", "0.5", "--at", "10", "-y").out
    back = Training(sequential)
    back.load(run, 10)
    line = re.search(r"LR of group 1 in the next steps: ((?:[\d.e-]+ → [\d.e-]+,? ?)+)", " ".join(said.split()))
    assert line
    shown = [float(after) for after in re.findall(r"→ ([\d.e-]+)", line[1])]
    assert shown == pytest.approx([rates[1] for rates in back.train(5)], rel=1e-5)


def test_what_has_no_schedule_is_not_moved(run: Run) -> None:
    path = run.state(30)
    torch.save({"patience": 2, "min_lrs": [0.0, 0.0], "last_epoch": 30, "_last_lr": [1e-3, 1e-3]}, path)
    said = run.m4ops("shift-schedule", "--to-step", "5", "--at", "30", "-y")
    assert (said.code, "it follows the loss" in said.err) == (1, True)
    assert run.m4ops("shift-schedule", "--to-step", "-5", "--at", "30", "-y").code == 1


# -- DeepSpeed's own schedulers --------------------------------------------------------------------------


RATE = 1e-3
OWN: dict[str, tuple[dict[str, object], float | None]] = {
    "WarmupLR": ({"warmup_min_lr": 1e-6, "warmup_max_lr": [3e-4], "warmup_num_steps": 60}, 3e-4),
    "WarmupDecayLR": ({"warmup_max_lr": 1e-3, "warmup_num_steps": 12, "total_num_steps": 90, "warmup_type": "linear"}, 1e-3),
    "WarmupCosineLR": ({"warmup_min_ratio": 0.1, "warmup_num_steps": 12, "total_num_steps": 80}, RATE),
    "OneCycle": ({"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-3, "cycle_first_step_size": 20, "decay_step_size": 3, "decay_lr_rate": 0.1}, 1e-3),
    "LRRangeTest": ({"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 4, "lr_range_test_step_rate": 0.5}, None),
}  # fmt: skip
"""DeepSpeed's own schedulers, by what the config gives them, and the highest LR of each."""


def own_scheduler(run: Run, params: dict[str, object], kind: str = "WarmupLR") -> Path:
    """DeepSpeed's state in the checkpoint of step 30, and the config from which it takes its LR."""
    config = run.root / "ds.json"
    told = {"optimizer": {"type": "Adam", "params": {"lr": RATE}}, "scheduler": {"type": kind, "params": params}}
    config.write_text(json.dumps(told, indent=3))
    run.state(30).unlink(missing_ok=True)
    with_deepspeed(run, config, 30, resume=False, save=True)
    return config


def with_deepspeed(run: Run, config: Path, steps: int = 20, resume: bool = True, save: bool = False) -> list[float]:
    """The LRs of the next steps, by DeepSpeed's scheduler with its config and the checkpoint's state."""
    from deepspeed.runtime import lr_schedules

    said = json.loads(config.read_text())
    rate, scheduler = said["optimizer"]["params"]["lr"], said["scheduler"]
    optimizer = torch.optim.AdamW([{"params": [torch.nn.Parameter(torch.ones(2))], "lr": rate}])
    schedule = getattr(lr_schedules, scheduler["type"])(optimizer, **scheduler["params"])
    if resume:
        optimizer.load_state_dict(torch.load(run.state(30, "optimizer.bin")))
        schedule.load_state_dict(torch.load(run.state(30, "scheduler.bin")))
    used = []
    for _ in range(steps):
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    if save:
        torch.save(optimizer.state_dict(), run.state(30, "optimizer.bin"))
        torch.save(schedule.state_dict(), run.state(30, "scheduler.bin"))
    return used


def test_deepspeeds_own_scheduler_is_changed_in_its_config(run: Run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = own_scheduler(run, {"warmup_min_lr": 0, "warmup_max_lr": 3e-4, "warmup_num_steps": 100})
    refused = run.m4ops("scale-lr", "0.5", "--at", "30", "-y")
    assert refused.code == 1
    assert "ds_config" in refused.err
    (run.dir / "m4ops.toml").write_text('ds_config = "../ds.json"\n')
    plain, text, before = with_deepspeed(run, config), config.read_text(), run.tree()
    said = run.done("scale-lr", "0.5", "--at", "30", "-y")
    assert '`"warmup_max_lr": 0.0003' in " ".join(said.out.split())
    assert config.read_text() == text.replace("0.0003", "0.00015").replace("0.001", "0.0005")
    assert with_deepspeed(run, config) == pytest.approx([lr / 2 for lr in plain], rel=1e-12)
    run.done("undo", "-y")
    assert run.tree() == before
    config.write_text(text.replace("0.0003", '"auto"'))
    assert "which the trainer fills in" in run.m4ops("scale-lr", "0.5", "--at", "30", "-y").err


@pytest.mark.filterwarnings("ignore")
def test_deepspeeds_own_schedulers_have_a_peak_and_come_back_from_0(run: Run) -> None:
    (run.dir / "m4ops.toml").write_text('ds_config = "../ds.json"\n')
    for kind, (params, peak) in OWN.items():
        config = own_scheduler(run, params, kind)
        before, plain = run.tree(), with_deepspeed(run, config)
        planned = " ".join(run.done("scale-lr", "0.5", "--at", "30", "--again", "-n").out.split())
        shown = re.findall(r"([\d.e-]+) → ([\d.e-]+)", planned.partition("LR in the next steps: ")[2])[:5]
        assert [float(lr) for lr, _ in shown] == pytest.approx(plain[:5], rel=1e-5), kind
        assert [float(lr) for _, lr in shown] == pytest.approx([lr / 2 for lr in plain[:5]], rel=1e-5), kind
        highest = ("set-lr", repr((peak or 1.0) * 0.7), "--peak", "--at", "30", "--again", "-y")
        if peak is None:
            assert f"{kind} has none" in run.m4ops(*highest).err
        else:
            run.done(*highest)
            assert with_deepspeed(run, config) == pytest.approx([lr * 0.7 for lr in plain], rel=1e-12), kind
            run.done("undo", "-y")
        assert run.tree() == before
        run.done("set-lr", "0", "--at", "30", "--again", "-y")
        assert with_deepspeed(run, config, 10, save=True) == [0.0] * 10, kind
        off = run.tree()
        run.done("set-lr", "back", "--at", "30", "-y")
        assert with_deepspeed(run, config, 10) == pytest.approx(plain[10:], rel=1e-12), kind
        run.done("undo", "-y")
        assert run.tree() == off


def test_the_config_of_another_scheduler_is_not_brought_back(run: Run) -> None:
    (run.dir / "m4ops.toml").write_text('ds_config = "../ds.json"\n')
    config = own_scheduler(run, {"warmup_max_lr": 3e-4, "warmup_num_steps": 100})
    run.done("set-lr", "0", "--at", "30", "-y")
    config.write_text(config.read_text().replace("WarmupLR", "WarmupDecayLR"))
    refused = run.m4ops("set-lr", "back", "--at", "30", "-y")
    assert (refused.code, "a WarmupDecayLR now, and had a WarmupLR" in refused.err) == (1, True)
    (run.dir / "m4ops.toml").write_text("")
    refused = run.m4ops("set-lr", "back", "--at", "30", "-y")
    assert (refused.code, "in another ds_config than m4ops.toml names" in refused.err) == (1, True)


# -- a scheduler that Accelerate prepared ------------------------------------------------------------------


def test_the_plan_knows_that_accelerate_steps_a_prepared_scheduler_once_for_every_process(tmp_path: Path) -> None:
    two_ranks.launch("prepared_trainer.py", str(tmp_path))
    place = ("--run", str(tmp_path / "run"))
    for words in (
        ("scale-lr", "0.5"),
        ("set-lr", "1e-4"),
        ("shift-schedule", "--to-step", "30"),
        ("rewind", "--to", "0", "--scale-lr", "0.5"),
    ):
        said = " ".join(runs.m4ops(*place, *words, "--dry-run").out.split())
        shown = re.findall(r"([\d.e-]+) → [\d.e-]+", said.partition("LR in the next steps: ")[2])[:5]
        for rank in (0, 1):
            real = json.loads((tmp_path / f"lrs.{rank}").read_text())
            assert [float(lr) for lr in shown] == pytest.approx(real, rel=1e-5), words
    assert runs.m4ops(*place, "shift-schedule", "--to-step", "30", "-y").code == 0
    again = " ".join(runs.m4ops(*place, "scale-lr", "0.5", "--dry-run").out.split())
    assert "its scheduler stands at 60 after 5 optimizer steps of 2 processes" in again
    further = " ".join(runs.m4ops(*place, "shift-schedule", "--to-step", "40", "--dry-run").out.split())
    assert "counts 2 for each optimizer step: it is set to 80" in further
