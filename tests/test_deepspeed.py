"""Real DeepSpeed ZeRO-1, 2 and 3 with two ranks: m4ops changes its checkpoints, and DeepSpeed resumes from them."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import damage
import pytest
import runs
import torch
import two_ranks

STAGES = (1, 2, 3)
RANKS = (0, 1)
SAVED, END = 4, 10
FACTOR = 0.7


def launch(folders: list[Path], until: int) -> None:
    """Train the runs, one after the other, with two processes."""
    two_ranks.launch("sharded_trainer.py", "--until", str(until), *map(str, folders))


@dataclass(frozen=True)
class Sharded:
    """For each stage a run resumed as it was saved, with its LR scaled, and with its optimizer reset."""

    root: Path

    def run(self, kind: str, stage: int) -> Path:
        return self.root / kind / f"zero-{stage}"

    def files(self, kind: str, stage: int) -> dict[str, bytes]:
        """Every file of the saved checkpoint as it lay there when the resume began."""
        return {k: v for k, v in json_bytes(self.root / f"{kind}.tree").items() if k.startswith(f"zero-{stage}/")}

    def steps(self, kind: str, stage: int, rank: int) -> list[dict[str, float]]:
        """What the resumed rank noted before each of its steps."""
        lines = (self.run(kind, stage) / f"lrs.{rank}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines][SAVED:]


def json_bytes(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def resumed(root: Path) -> Sharded:
    """Two launches in all: one saves every stage, one resumes every stage from every kind of checkpoint."""
    launch([root / "saved" / f"zero-{stage}" for stage in STAGES], SAVED)
    kinds = {"plain": (), "scaled": ("scale-lr", str(FACTOR)), "fresh": ("reset-optimizer",)}
    for kind, words in kinds.items():
        shutil.copytree(root / "saved", root / kind)
        for stage in STAGES if words else ():
            run = root / kind / f"zero-{stage}"
            (run / "latest_opt_step_dir").write_text(str(run / f"opt_step-{SAVED}"))
            before = runs.tree(run)
            for step in ((*words, "-y"), ("undo", "-y"), (*words, "-y")):
                said = runs.m4ops("--run", str(run), *step)
                assert said.code == 0, said.err
                assert (runs.tree(run) == before) == (step[0] == "undo")
        for stage in STAGES:
            run = root / kind / f"zero-{stage}"
            (run / "latest_opt_step_dir").write_text(str(run / f"opt_step-{SAVED}"))
        shutil.copytree(root / kind, root / f"{kind}.tree", ignore=shutil.ignore_patterns(".m4ops"))
    launch([root / kind / f"zero-{stage}" for kind in kinds for stage in STAGES], END)
    return Sharded(root)


def test_deepspeed_resumes_from_what_m4ops_changed(tmp_path: Path) -> None:
    """One test, so that parallel workers do not each launch DeepSpeed for their share."""
    sharded = resumed(tmp_path)
    for stage in STAGES:
        every_rank_has_the_scaled_curve_from_its_first_step(sharded, stage)
        a_reset_leaves_every_rank_its_master_weights_and_lr(sharded, stage)
        only_the_lr_and_its_checksums_are_written(sharded, stage)
        every_good_checkpoint_is_sound(sharded, stage)
        every_damage_is_seen(sharded, stage)
        a_scheduler_that_the_engine_steps_is_no_missing_one(sharded, stage)


def every_rank_has_the_scaled_curve_from_its_first_step(sharded: Sharded, stage: int) -> None:
    for rank in RANKS:
        plain, scaled = (sharded.steps(kind, stage, rank) for kind in ("plain", "scaled"))
        assert [line["step"] for line in scaled] == list(range(SAVED + 1, END + 1))
        assert len({tuple(line["lrs"]) for line in plain}) > 2
        for a, b in zip(plain, scaled, strict=True):
            assert b["lrs"] == pytest.approx([FACTOR * lr for lr in a["lrs"]], rel=1e-12, abs=0)
        assert scaled[0]["moments"] == plain[0]["moments"] == SAVED
        assert scaled[0]["masters"] == plain[0]["masters"]


def a_reset_leaves_every_rank_its_master_weights_and_lr(sharded: Sharded, stage: int) -> None:
    for rank in RANKS:
        plain, fresh = (sharded.steps(kind, stage, rank) for kind in ("plain", "fresh"))
        assert (plain[0]["moments"], fresh[0]["moments"]) == (SAVED, 0)
        assert fresh[0]["masters"] == plain[0]["masters"]
        assert [line["lrs"] for line in fresh] == [line["lrs"] for line in plain]
        assert fresh[1]["masters"] != plain[1]["masters"]


def only_the_lr_and_its_checksums_are_written(sharded: Sharded, stage: int) -> None:
    before, after = sharded.files("plain", stage), sharded.files("scaled", stage)
    assert before.keys() == after.keys()
    differ = {name.rpartition("/")[2]: name for name in before if before[name] != after[name]}
    differ.pop("latest_opt_step_dir")
    expected = {f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in RANKS}
    assert differ.keys() == expected | {"custom_checkpoint_0.pkl"}
    for name in differ.values():
        changed = sum(a != b for a, b in zip(before[name], after[name], strict=True))
        assert changed <= 4 * 8 + 2 * 4


def every_good_checkpoint_is_sound(sharded: Sharded, stage: int) -> None:
    for kind in ("plain", "scaled", "fresh"):
        run = str(sharded.run(kind, stage))
        said = runs.m4ops("--run", run, "verify-checkpoint", "--deep", str(SAVED), str(END))
        assert (said.code, said.out.count("sound to the last byte")) == (0, 2), said.out + said.err
    about = json.loads(runs.m4ops("--run", run, "inspect", "--json").out)
    assert (about["engine"], about["world"], about["optimizers"]) == (f"DeepSpeed ZeRO-{stage}", len(RANKS), ["AdamW"])
    assert {pair["step"] for pair in about["steps"]} == {SAVED + 6, 6}  # the reset optimizer has made six


def every_damage_is_seen(sharded: Sharded, stage: int) -> None:
    run = sharded.run("plain", stage)
    at_once = [*damage.OF_ANY, *damage.OF_SHARDS]
    for kinds, how in ((at_once, ()), (damage.IN_THE_DATA, ("--deep",))):
        for kind, broken in damage.damaged(run, SAVED, END, tuple(kinds)):
            said = runs.m4ops("--run", str(broken), "verify-checkpoint", *how, str(SAVED))
            assert said.code == 2, f"{kind}: {said.out}{said.err}"


def a_scheduler_that_the_engine_steps_is_no_missing_one(sharded: Sharded, stage: int) -> None:
    """Accelerate writes no file of its own for it."""
    run = sharded.run("fresh", stage)
    state = run / f"opt_step-{SAVED}" / "accelerator_state"
    (state / "custom_checkpoint_0.pkl").unlink()
    assert "(the LR scheduler) is missing" in runs.m4ops("--run", str(run), "checkpoints", "--json").out
    for shard in (state / "pytorch_model").glob("*_model_states.pt"):
        torch.save(
            {**torch.load(shard, weights_only=False), "lr_scheduler": {"last_batch_iteration": SAVED - 1}}, shard
        )
    found = json.loads(runs.m4ops("--run", str(run), "checkpoints", "--json").out)["checkpoints"]
    assert [(c["step"], c["complete"]) for c in found] == [(SAVED, True), (END, True)]
    about = json.loads(runs.m4ops("--run", str(run), "inspect", str(SAVED), "--json").out)
    assert about["schedulers"] == ["DeepSpeed's own scheduler"]
