"""CPU time of `m4ops --help`, `m4ops status` and `m4ops check` beside a bare click group with as many commands.

    python bench/startup.py [pairs]

Each pair runs the bare group and m4ops one after the other with the same interpreter; the figure is the median of the
pairs' ratios of user + system time, children included. Prints one line a figure, and fails on none.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from ops.checkpoints.layouts.m4 import GBS_KEYS
from ops.cli import COMMANDS

BARE = """\
import click
@click.group()
def cli(): pass
{commands}
cli(prog_name="bare")
"""
COMMAND = '''\
@cli.command({name!r})
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def {function}(as_json):
    """{about}"""
'''


def bare(folder: Path) -> Path:
    """A click program with m4ops's command names and short helps, one option each, and nothing behind them."""
    commands = "".join(
        COMMAND.format(name=name, function=name.replace("-", "_"), about=about)
        for section in COMMANDS.values()
        for name, (_, about) in section.items()
    )
    program = folder / "bare.py"
    program.write_text(BARE.format(commands=commands), encoding="utf-8")
    return program


def cpu(argv: list[str], env: dict[str, str]) -> float:
    """User and system seconds of a process and its children. Raises if it fails; a check may end with what it found."""
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in ((0, 1, 2) if argv[-1] == "check" else (0,)):
            raise SystemExit(f"{argv} ended with {process.returncode}: {process.stderr.read().decode()}")
    return used.ru_utime + used.ru_stime


def a_run(folder: Path) -> dict[str, str]:
    """A run with four checkpoints and 2,000 logged steps, with an empty queue; the environment to see it with."""
    run = folder / "tr_bench"
    (run / "logs").mkdir(parents=True)
    line = "[2026-01-01 00:00:00] iteration: {:9d}/500000   0% | elapsed time: 00:{:02d}:{:02d} | per_token_loss: 2.1 | lr: 1.000E-05 |\n"
    log = "".join(line.format(25 * n, n // 60 % 60, n % 60) for n in range(1, 2001))
    (run / "logs" / "main_log.txt").write_text(log, encoding="utf-8")
    infos = {
        "train_logs": {},
        "wandb_run_id": "a",
        "seed": 1,
        "resume_epoch": 0,
        "gbs_running": dict.fromkeys(GBS_KEYS, 1),
    }
    for step in range(48500, 50001, 500):
        state = run / f"opt_step-{step}" / "accelerator_state"
        state.mkdir(parents=True)
        for name, tree in (("custom_checkpoint_0", {"last_epoch": step}), ("optimizer", {"param_groups": []})):
            suffix = "pkl" if name[0] == "c" else "bin"
            with zipfile.ZipFile(state / f"{name}.{suffix}", "w") as file:
                file.writestr(f"{name}/data.pkl", pickle.dumps(tree, protocol=2))
        (state / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
        (state / "random_states_0.pkl").write_bytes(pickle.dumps({}, protocol=2))
        (state.parent / "finished-saving").touch()
        (state.parent / "resume_run_infos.json").write_text(json.dumps(infos | {"resume_opt_step": step}))
    (run / "latest_opt_step_dir").write_text(str(run / "opt_step-50000"))
    (folder / "scheduler").mkdir()
    return {
        **os.environ,
        "M4OPS_EMBEDDED": str(folder / "scheduler"),
        "M4OPS_RUN": str(run),
        "XDG_STATE_HOME": str(folder / "state"),
    }


def main(pairs: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env, program = a_run(folder), [sys.executable, str(bare(folder)), "--help"]
        for arguments, limit in ((["--help"], 1.3), (["status"], 2.5), (["check"], 3.0)):
            own = [sys.executable, "-m", "ops.cli", *arguments]
            cpu(own, env)
            found = [(cpu(program, env), cpu(own, env)) for _ in range(pairs)]
            ratio = statistics.median(b / a for a, b in found)
            ms = [1000 * statistics.median(column) for column in zip(*found, strict=True)]
            print(
                f"m4ops {arguments[0]:8} {ratio:.2f} x a bare click group ({ms[1]:.0f} ms against {ms[0]:.0f} ms CPU; aim {limit} x)"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 21)
