"""What a command may import: a login node has no torch, and --help must not pay for what it does not use."""

import subprocess
import sys
from pathlib import Path

import pytest
from runs import copied

HEAVY = {"torch", "numpy", "wandb", "submitit", "accelerate", "deepspeed", "yaml", "plotly", "rich"}
SLOW = {"subprocess", "statistics", "random", "tempfile", "shutil", "dataclasses"}
"""Of the standard library: 1 to 4 ms each."""
ELSEWHERE = {
    "ops.checkpoints.dcp", "ops.checkpoints.moments", "ops.checkpoints.weights", "ops.checkpoints.deep",
    "ops.detectors", "ops.state", "ops.alerts", "ops.demo", "ops.executor.submission", "ops.secrecy",
}  # fmt: skip
"""What an edit of the LR needs nothing of."""


def modules_of(*arguments: str, cwd: Path, env: dict[str, str]) -> set[str]:
    """Top-level modules in sys.modules when the command ends."""
    program = (
        "import sys\nfrom ops.cli import cli\n"
        "try: cli(prog_name='m4ops')\nexcept SystemExit: pass\n"
        "print('\\nMODULES', *{m.partition('.')[0] for m in sys.modules} | {m for m in sys.modules if m[:4] == 'ops.'})"
    )
    argv = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.rsplit("MODULES", 1)[1].split())


@pytest.fixture
def place(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    run = tmp_path / "tr_1"
    (run / "logs").mkdir(parents=True)
    (run / "logs" / "main_log.txt").write_text("iteration:  5/10  50% | per_token_loss: 2.1 | lr: 1.000E-05 |\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\n")  # nothing runs
    (tmp_path / "bin" / "squeue").chmod(0o755)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    return run, env | {"PYTHONPATH": str(Path(__file__).parents[1])}


def test_help_imports_click_and_nothing_slow(place):
    run, env = place
    found = modules_of("--help", cwd=run, env=env)
    assert "click" in found
    assert not found & HEAVY
    assert {m for m in found if m.startswith("ops.")} == {"ops.cli"}


@pytest.mark.parametrize("command", ["status", "checkpoints", "history", "plot"])
def test_looking_imports_nothing_heavy(place, command):
    run, env = place
    found = modules_of(command, cwd=run, env=env)
    assert "ops.snapshot" in found
    assert not found & (HEAVY | SLOW)


@pytest.mark.parametrize("command", [("scale-lr", "0.5"), ("rewind", "--to", "10")])
def test_an_edit_imports_what_it_uses(place, trained, command):
    _, env = place
    run = copied(trained, Path(env["HOME"]) / "world")
    found = modules_of("--run", str(run.dir), *command, "-y", cwd=run.dir, env=env)
    assert "ops.executor" in found
    assert found & (HEAVY | SLOW | ELSEWHERE) == set()


@pytest.mark.parametrize(("command", "asks"), [("history", False), ("evals", False), ("status", True)])
def test_who_tells_nothing_of_queue_and_log_asks_neither(place, command, asks):
    run, env = place
    asked = Path(env["HOME"]) / "asked"
    (Path(env["HOME"]) / "bin" / "squeue").write_text(f"#!/bin/sh\ntouch {asked}\n")
    assert ("ops.logs" in modules_of(command, cwd=run, env=env)) is asks
    assert asked.exists() is asks
