"""Runs for the tests of changes: a really trained one, copied for each test, and m4ops called in this process."""

import contextlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from fake_slurm import FakeSlurm

from ops import cli
from ops.cli import session
from ops.shell import Shell

NAME = "tr_other"
TRAINER = Path(__file__).with_name("other_trainer.py")
STEPS = (10, 20, 30, 40)


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


@dataclass
class Run:
    """A run under `root`, with its evaluations and its queue."""

    root: Path
    slurm: FakeSlurm = field(default_factory=FakeSlurm)

    @property
    def dir(self) -> Path:
        return self.root / NAME

    @property
    def evals(self) -> Path:
        return self.root / "evals" / "results" / f"{NAME}_evaluations.jsonl"

    @property
    def pointer(self) -> Path:
        return self.dir / "latest_opt_step_dir"

    def state(self, step: int, name: str = "custom_checkpoint_0.pkl") -> Path:
        return self.dir / f"opt_step-{step}" / "accelerator_state" / name

    def infos(self, step: int) -> Path:
        return self.dir / f"opt_step-{step}" / "resume_run_infos.json"

    def m4ops(self, *words: str) -> Said:
        """The command on this run, in this process."""
        return m4ops("--run", str(self.dir), *words, slurm=self.slurm)

    def done(self, *words: str) -> Said:
        """The same, and it must succeed."""
        said = self.m4ops(*words)
        assert said.code == 0, said.err
        return said

    def tree(self) -> dict[str, object]:
        """Everything under `root` but m4ops's own folder: kind, mode and content of each path."""
        return tree(self.root)


def m4ops(*words: str, slurm: Shell | None = None) -> Said:
    """Call the command line as the entry point does."""
    out, err = io.StringIO(), io.StringIO()
    shell = slurm or FakeSlurm()
    with (
        mock.patch.object(sys, "argv", ["m4ops", *words]),
        mock.patch.object(session, "scheduler", lambda: shell),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = 0
        try:
            cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    return Said(code, out.getvalue(), err.getvalue())


def tree(root: Path) -> dict[str, object]:
    """Kind, mode and content of every path below `root`, without `.m4ops`."""
    return {str(path.relative_to(root)): _about(path) for path in _walk(root)}


def _walk(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        if entry.name == ".m4ops":
            continue
        yield Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path))


def _about(path: Path) -> object:
    info = path.lstat()
    mode = oct(stat.S_IMODE(info.st_mode))
    if stat.S_ISDIR(info.st_mode):
        return ("folder", mode)
    if stat.S_ISLNK(info.st_mode):
        return ("link", os.readlink(path))
    return (mode, path.read_bytes())


def changed(before: dict[str, object], after: dict[str, object]) -> set[str]:
    """Paths that are not the same in both trees."""
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def train(save_dir: Path, *options: str) -> str:
    """Run the other trainer to its end; its output, which is also appended to the run's log."""
    command = [sys.executable, str(TRAINER), "--save-dir", str(save_dir), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (save_dir / "logs").mkdir(parents=True, exist_ok=True)
    with (save_dir / "logs" / "main_log.txt").open("a") as log:
        log.write(done.stdout)
    return done.stdout


def trained(root: Path) -> Path:
    """A run of 40 steps with a checkpoint every 10, its log, and evaluations as they are found in the wild."""
    save_dir = root / NAME
    train(save_dir, "--steps", "40", "--save-every", "10", "--lr-record", str(root / "lrs.jsonl"))
    results = root / "evals" / "results"
    results.mkdir(parents=True)
    (results / f"{NAME}_evaluations.jsonl").write_bytes(evaluations(save_dir))
    return root


def evaluation(save_dir: Path, step: int, task: str) -> str:
    model = f"{save_dir}/opt_step-{step}/unwrapped_model"
    line = {
        "model_name_or_path": model,
        "task": task,
        "score": "{'accuracy': 0.25}",
        "in_context_params": {"num_shots": 4},
    }
    return json.dumps(line, ensure_ascii=False)


def evaluations(save_dir: Path) -> bytes:
    """Kept and dropped lines mixed; UTF-8, Latin-1, CRLF, torn, empty and foreign ones; no newline at the end."""
    return b"\n".join(
        (
            evaluation(save_dir, 10, "plain").encode(),
            evaluation(save_dir, 30, "dropped").encode(),
            evaluation(save_dir, 10, "Complète ça").encode("utf-8"),
            evaluation(save_dir, 20, "Complète ça").encode("latin-1"),
            evaluation(save_dir, 20, "crlf").encode() + b"\r",
            b"",
            evaluation(save_dir, 40, "torn")[:60].encode(),
            b'{"model_name_or_path": "HuggingFaceM4/idefics-9b", "task": "foreign"}',
            evaluation(save_dir, 40, "droppé").encode("latin-1"),
            b'["no object"]',
            evaluation(save_dir, 20, "the last").encode(),
        )
    )


def copied(source: Path, root: Path) -> Run:
    """A copy of the trained run; its pointer names the copy."""
    shutil.copytree(source, root, symlinks=True)
    run = Run(root)
    run.pointer.write_text(str(run.dir / "opt_step-40"))
    return run
