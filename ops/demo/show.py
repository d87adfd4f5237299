"""`m4ops demo`: one real training launched, diverging, caught, rewound with a lower LR, resumed, and proven healthy.

Every command shown is really run, as a process of its own; every step waits for its condition with a limit. The loss
that diverges and recovers is that of the trainer in `ops.demo.trainer`, not a script's.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import click

from ops.demo import scheduler
from ops.errors import OpsError
from ops.logs import reader
from ops.logs.progress import split_branches
from ops.model import LogView, Sample

NAME = "tr_demo"
LIMIT = 150.0
"""Seconds any one step may wait for its condition."""
WIDTH = 110
FACTOR = 0.5
DIVERGES = "loss diverges"
CONFIG = """\
save_dir: {folder}/{name}
kill_switch_path: {folder}/kill_switch
save_switch_path: {folder}/save_switch
evals_dir: {folder}/evals
max_num_opt_steps: 420
train_logging_opt_steps: 2
train_saving_opt_steps: 20
val_logging_opt_steps: 40
eval_opt_steps: 20
step_seconds: 0.08
fault:
  diverge_at: 160
"""


@dataclass
class Show:
    """The stage: its folder, the environment of its commands, and what was shown."""

    folder: Path
    env: dict[str, str]
    transcript: list[tuple[str, str]] = field(default_factory=list)
    picture: list[tuple[str, str]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.folder / NAME / "logs" / "main_log.txt"


def run(folder: Path | None, svg: Path | None, transcript: Path | None) -> None:
    """Play the whole demo. Raises OpsError as soon as a step does not show what it must."""
    _need_extra()
    place = (folder or Path(tempfile.mkdtemp(prefix="m4ops-demo-"))).absolute()
    if (place / NAME).exists():
        raise OpsError("a demo was played here already", str(place / NAME), "choose another --dir")
    show = Show(place, _environment(place))
    _clear_stage(show)
    try:
        _play(show)
    finally:
        scheduler.stop(place / "scheduler")
        if transcript is not None:
            transcript.write_text("".join(f"$ {line}\n{text}\n" for line, text in show.transcript), encoding="utf-8")
    if svg is not None:
        from ops.views import record

        svg.write_text(record.svg(show.picture, "m4ops demo", WIDTH), encoding="utf-8")
        _say(f"picture: {svg}")
    _say(f"The run stays in {place}. To look around: cd {place}/{NAME} && export M4OPS_EMBEDDED={place}/scheduler")


def _play(show: Show) -> None:
    began = time.monotonic()
    _say(f"A small model is trained for real (torch + Accelerate on the CPU), in {show.folder}.")
    _say("Launch it as a job array: whenever a task ends, the next one resumes.")
    _submit(show)
    _wait("the first logged step", lambda: bool(_samples(show)), show)
    _m4ops(show, "status")
    _say("cron would now run `m4ops check` every few minutes; here it is asked every second.")
    _m4ops(show, "cron", "install", "--minutes", "10", "-n")
    target = _caught(show)
    _m4ops(show, "plot", "--height", "12")
    _say("Rewind to the checkpoint before the onset, halve the LR, start a new wandb run, let the next task go.")
    _m4ops(show, "rewind", "--to", str(target), "--scale-lr", str(FACTOR), "--restart", "--yes", picture=True)
    _say("A change is done when the log shows it.")
    _m4ops(show, "verify", "--wait", str(int(LIMIT)), picture=True)
    total = _samples(show)[-1].total
    _say("Train on to the end.")
    _wait("the last step", lambda: _samples(show)[-1].step == total, show)
    _m4ops(show, "plot", "--height", "16", picture=True)
    _wait("an empty queue", lambda: not _command(show, ("squeue", "-h"), hidden=True)[1].strip(), show)
    _m4ops(show, "check")
    _m4ops(show, "status")
    _m4ops(show, "history")
    _proven(show, target)
    _say(f"Diverged, caught, rewound, recovered, in {time.monotonic() - began:.0f} s.")


def _submit(show: Show) -> None:
    save_dir = show.folder / NAME
    (save_dir / "logs").mkdir(parents=True)
    (show.folder / "config.yaml").write_text(CONFIG.format(folder=show.folder, name=NAME), encoding="utf-8")
    trainer = (sys.executable, "-u", "-m", "ops.demo.trainer", "--config", str(show.folder / "config.yaml"))
    show.env["TRAIN_CMD"] = shlex.join(trainer)
    _m4ops(show, "submit", "--array", "1-4%1", "--yes")


def _caught(show: Show) -> int:
    """Ask `m4ops check` until it tells of the divergence; the step it would rewind to.

    The exit code alone does not do: on a busy machine something else may be critical first.
    """
    end, told = time.monotonic() + LIMIT, False
    while time.monotonic() < end:
        _, text = _command(show, ("m4ops", "--run", NAME, "check"), hidden=True)
        if text.strip():
            _shown(show, f"m4ops --run {NAME} check", text, picture=True)
        told = told or DIVERGES in click.unstyle(text)
        if told:
            found = json.loads(_command(show, ("m4ops", "--run", NAME, "check", "--json"), hidden=True)[1])
            for finding in found["findings"]:
                if finding["kind"] == "loss-divergence":
                    return _step(finding["actions"])
        time.sleep(1.0)
    raise OpsError(f"the monitor named no divergence within {LIMIT:.0f} s", str(show.log))


def _step(actions: list[str]) -> int:
    words = next((a.split() for a in actions if "--to" in a), [])
    if not words:
        raise OpsError(f"the divergence was found, but no checkpoint to rewind to was named: {actions}")
    return int(words[words.index("--to") + 1])


def _proven(show: Show, target: int) -> None:
    """The loss really diverged, and really recovered: by its own figures in the log."""
    branches = split_branches(_samples(show))
    before = min(s.loss for s in branches[0].alive[-6:])
    worst = max(s.loss for s in branches[0].discarded)
    last = sorted(s.loss for s in branches[-1].samples[-6:])[3]
    _say(f"Loss at the rewind point (step {target}): {before:.4f}; at its worst: {worst:.4f}; in the end: {last:.4f}.")
    if not (worst > 1.5 * before and last < before):
        raise OpsError(
            "the demo did not show what it should: a loss that diverges, and one that recovers", str(show.log)
        )


def _samples(show: Show) -> tuple[Sample, ...]:
    log = reader.read_log(show.log) if show.log.exists() else None
    return log.samples if isinstance(log, LogView) else ()


def _wait(what: str, holds: Callable[[], bool], show: Show) -> None:
    end = time.monotonic() + LIMIT
    while not holds():
        if time.monotonic() > end:
            tail = show.log.read_text(errors="replace")[-2000:] if show.log.exists() else "(no log)"
            raise OpsError(f"{what} did not come within {LIMIT:.0f} s; the log ends:\n{tail}", str(show.log))
        time.sleep(0.3)


def _m4ops(show: Show, *arguments: str, picture: bool = False) -> None:
    """Run an m4ops command of the story, which must succeed."""
    code, text = _command(show, ("m4ops", "--run", NAME, *arguments), picture=picture)
    if code != 0:
        raise OpsError(f"`m4ops {shlex.join(arguments)}` ended with {code}: {text}")


def _command(show: Show, argv: tuple[str, ...], hidden: bool = False, picture: bool = False) -> tuple[int, str]:
    module = ["ops.cli", *argv[1:]] if argv[0] == "m4ops" else ["ops.demo.scheduler", *argv]
    done = subprocess.run(
        [sys.executable, "-m", *module],
        cwd=show.folder,
        env=show.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=2 * LIMIT,
        check=False,
    )
    text = done.stdout.decode("utf-8", "replace")
    if not hidden:
        _shown(show, shlex.join(argv), text, picture)
    return done.returncode, text


def _shown(show: Show, line: str, text: str, picture: bool = False) -> None:
    show.transcript.append((line, click.unstyle(text)))
    if picture:
        show.picture.append((line, text))
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    click.echo(click.style(f"$ {line}", bold=True) if coloured else f"$ {line}")
    click.echo(text if coloured else click.unstyle(text))


def _say(text: str) -> None:
    click.echo(f"# {text}\n")


def _environment(place: Path) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_", "M4OPS_", "WANDB_"))}
    return kept | {
        "M4OPS_EMBEDDED": str(place / "scheduler"),
        "FORCE_COLOR": "1",
        "COLUMNS": str(WIDTH),
        "OMP_NUM_THREADS": "1",
        "WANDB_MODE": "offline",
        "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")))),
    }


def _clear_stage(show: Show) -> None:
    show.env.pop("NO_COLOR", None)
    show.folder.mkdir(parents=True, exist_ok=True)


def _need_extra() -> None:
    missing = [m for m in ("torch", "accelerate", "wandb", "jsonlines") if importlib.util.find_spec(m) is None]
    if missing:
        raise OpsError(f"the demo trains a real model and needs {', '.join(missing)}", hint="pip install 'm4ops[demo]'")
