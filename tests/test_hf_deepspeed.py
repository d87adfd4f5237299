"""HF Trainer under real DeepSpeed with two ranks: m4ops changes its checkpoints, and the Trainer resumes from them."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import runs
import two_ranks

START, END, FACTOR, RATE = 5, 16, 0.5, 1e-3
OPTIMIZER = {"optimizer": {"type": "AdamW", "params": {"lr": RATE, "torch_adam": True}}}
WARMUP = {"warmup_min_lr": "auto", "warmup_max_lr": RATE, "warmup_num_steps": "auto"}
DECAY = {"warmup_min_lr": 1e-5, "warmup_max_lr": RATE, "warmup_num_steps": "auto", "total_num_steps": "auto"}
KINDS = {
    "the-trainers": (1, {}),
    "the-trainers-in-the-engine": (2, OPTIMIZER),
    "deepspeeds": (2, {"scheduler": {"type": "WarmupLR", "params": WARMUP}}),
    "all-deepspeeds": (1, {**OPTIMIZER, "scheduler": {"type": "WarmupDecayLR", "params": DECAY}}),
}
"""Whose scheduler it is: the ZeRO stage, and what the config holds of it."""


@dataclass(frozen=True)
class Training:
    """A run that was trained to its end on both ranks, and is trained again from what m4ops left."""

    dir: Path
    stage: int

    @property
    def own(self) -> bool:
        """Whether the scheduler is DeepSpeed's own."""
        return "scheduler" in json.loads((self.dir / "ds.json").read_text())

    def prepare(self, config: dict[str, object]) -> None:
        self.dir.mkdir()
        auto = dict.fromkeys(("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")
        whole = {"zero_optimization": {"stage": self.stage}, "bf16": {"enabled": True}, **auto, **config}
        (self.dir / "ds.json").write_text(json.dumps(whole, indent=2))
        self.learn(RATE)

    def learn(self, rate: float) -> None:
        """What the next job's TrainingArguments say."""
        (self.dir / "args.json").write_text(json.dumps({"learning_rate": rate}))

    def steps(self, rank: int) -> list[dict[str, float]]:
        return [json.loads(line) for line in (self.dir / f"lrs.{rank}.jsonl").read_text().splitlines()]

    def m4ops(self, *words: str) -> runs.Said:
        return runs.m4ops("--run", str(self.dir), *words)

    def done(self, *words: str) -> str:
        said = self.m4ops(*words)
        assert said.code == 0, said.err
        return " ".join(said.out.split())


def test_the_trainer_resumes_from_what_m4ops_changed(tmp_path: Path) -> None:
    """One test with two launches: one trains every kind, one resumes them."""
    trainings = {kind: Training(tmp_path / kind, stage) for kind, (stage, _) in KINDS.items()}
    for kind, training in trainings.items():
        training.prepare(dict(KINDS[kind][1]))
    two_ranks.launch("hf_deepspeed_trainer.py", *(str(t.dir) for t in trainings.values()))
    for training in trainings.values():
        every_checkpoint_is_whole(training)
        a_lost_scheduler_is_seen(training)
        deepspeeds_own_is_said(training)
        edited_undone_and_edited_again(training)
    two_ranks.launch("hf_deepspeed_trainer.py", *(str(t.dir) for t in trainings.values()))
    for training in trainings.values():
        for rank in (0, 1):
            the_lr_is_the_promised_one(training, rank)


def every_checkpoint_is_whole(training: Training) -> None:
    found = json.loads(training.done("checkpoints", "--json"))["checkpoints"]
    assert [(c["step"], c["complete"]) for c in found] == [(step, True) for step in (5, 10, 15, 16)]
    assert training.done("verify-checkpoint", "--deep", "5", "16").count("sound to the last byte") == 2
    about = json.loads(training.done("inspect", "5", "--json"))
    assert (about["engine"], about["world"]) == (f"DeepSpeed ZeRO-{training.stage}", 2)
    assert {pair["step"] for pair in about["steps"]} == {5}


def a_lost_scheduler_is_seen(training: Training) -> None:
    """Where the Trainer keeps it: in a file of its own."""
    file = training.dir / f"checkpoint-{START}" / "scheduler.pt"
    if not file.exists():
        return
    file.rename(training.dir / "aside")
    refused = training.m4ops("rewind", "--to", str(START), "-y")
    assert (refused.code, "scheduler.pt is missing" in refused.err) == (1, True)
    (training.dir / "aside").rename(file)


def deepspeeds_own_is_said(training: Training) -> None:
    """Its LR lives in the config, which the Trainer compares with its own arguments."""
    if not training.own:
        return
    refused = training.m4ops("rewind", "--to", str(START), "--scale-lr", str(FACTOR), "-y")
    assert (refused.code, "ds_config" in refused.err) == (1, True)
    (training.dir / "m4ops.toml").write_text('ds_config = "ds.json"\n')
    config = training.dir / "ds.json"
    text = config.read_text()
    config.write_text(text.replace(f'"warmup_max_lr": {RATE}', '"warmup_max_lr": "auto"'))
    refused = training.m4ops("rewind", "--to", str(START), "--scale-lr", str(FACTOR), "-y")
    assert (refused.code, "write the number into ds_config" in refused.err) == (1, True)
    config.write_text(text.replace("warmup_max_lr", "a_default_stands_for_it"))
    assert "hold none of warmup_max_lr" in training.m4ops("scale-lr", str(FACTOR), "-y").err
    config.write_text(text)


def edited_undone_and_edited_again(training: Training) -> None:
    """Half the LR, by scaling or by half the peak; all of DeepSpeed's is off for a while."""
    wish = ["rewind", "--to", str(START)] + (["--reset-optimizer"] if training.stage == 2 else [])
    half = ["--scale-lr", str(FACTOR)]
    wishes = [wish + half]
    if training.dir.name == "deepspeeds":
        wishes = [wish, ["set-lr", "0"], ["set-lr", "back"], ["set-lr", repr(FACTOR * RATE), "--peak", "--again"]]
    for words in wishes:
        before = runs.tree(training.dir)
        planned = training.done(*words, "-y")
        training.done("undo", "-y")
        assert runs.tree(training.dir) == before
        training.done(*words, "-y")
    assert ("ds_config says no number for warmup_" in planned and "learning_rate" in planned) == training.own
    assert "pointer a resume starts at step 5 · ok" in training.done("status")
    if training.own:
        training.learn(json.loads((training.dir / "ds.json").read_text())["scheduler"]["params"]["warmup_max_lr"])


def the_lr_is_the_promised_one(training: Training, rank: int) -> None:
    steps = training.steps(rank)
    unedited, resumed = steps[START:END], steps[END:]
    assert [line["step"] for line in resumed] == list(range(START + 1, END + 1))
    assert len({tuple(line["lrs"]) for line in unedited}) > 2
    for was, now in zip(unedited, resumed, strict=True):
        assert now["lrs"] == pytest.approx([FACTOR * lr for lr in was["lrs"]], rel=1e-12, abs=0), now["step"]
    assert resumed[0]["masters"] == unedited[0]["masters"]
    assert resumed[0]["moments"] == (0 if training.stage == 2 else unedited[0]["moments"])
    assert resumed[1]["masters"] != unedited[1]["masters"]
