"""Trainings under other frameworks, each trained and resumed by a process of its own, and copied for whoever changes one."""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import runs
from runs import Said

PROGRAMS = {
    "framework_trainers.py": ("hf_trainer", "accelerate", "lightning"),
    "source_trainers.py": ("megatron", "nanotron", "composer"),
    "titan_trainer.py": ("torchtitan", "torchtitan-old"),
    "ray_trainer.py": ("ray_train",),
    "fsdp_trainers.py": (
        "accelerate-fsdp2",
        "accelerate-fsdp2-full",
        "accelerate-fsdp1",
        "hf_trainer-fsdp2",
        "hf_trainer-fsdp2-full",
        "dcp-fsdp2",
    ),
}
"""The programs of this folder that train, and under which frameworks. All make 20 steps and save every five."""
BY_SAVES = ("accelerate", "ray_train")
"""Those layouts that number their checkpoints by the save."""


@dataclass(frozen=True)
class Step:
    """What the optimizer really had when it made this step: LRs, steps in its moments, and what tells its content."""

    step: int
    lrs: list[float]
    held: int = 0
    digest: str = ""


Steps = dict[int, Step]


@dataclass(frozen=True)
class Training:
    """A folder that a framework trains in."""

    framework: str
    root: Path

    @property
    def dir(self) -> Path:
        return self.root / "run"

    def called(self, step: int) -> str:
        """What m4ops calls the checkpoint after that step."""
        return str(step // 5 - 1 if self.layout in BY_SAVES else step)

    @property
    def layout(self) -> str:
        """Whose checkpoints these are."""
        return self.framework.partition("-")[0]

    def copied(self, root: Path) -> "Training":
        shutil.copytree(self.dir, root / "run", symlinks=True)
        return Training(self.framework, root)

    def m4ops(self, *words: str) -> Said:
        return runs.m4ops("--run", str(self.dir), *words)

    def done(self, *words: str) -> str:
        said = self.m4ops(*words)
        assert said.code == 0, said.err
        return said.out


def train(program: str, trainings: Sequence[Training], *options: str) -> list[Steps]:
    """Train each, one after the other in one process; each optimizer step by its number."""
    argv = [sys.executable, str(Path(__file__).with_name(program)), *(f"{t.framework}={t.root}" for t in trainings)]
    done = subprocess.run([*argv, *options], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-6000:]
    rows = [map(json.loads, (t.root / "record").read_text().splitlines()) for t in trainings]
    return [{row["step"]: Step(**row) for row in record} for record in rows]


@dataclass
class Trained:
    """What was trained once for all tests of this process."""

    root: Path
    found: dict[str, tuple[Training, Steps]] = field(default_factory=dict)

    def by(self, framework: str) -> tuple[Training, Steps]:
        """The training, not to be changed, and its steps."""
        if framework not in self.found:
            program = next(p for p, names in PROGRAMS.items() if framework in names)
            trainings = [Training(name, self.root / name) for name in PROGRAMS[program]]
            for training in trainings:
                training.root.mkdir()
            steps = train(program, trainings)
            self.found |= {t.framework: (t, s) for t, s in zip(trainings, steps, strict=True)}
        return self.found[framework]
