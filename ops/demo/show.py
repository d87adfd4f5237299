"""`m4ops demo`: one real training launched, diverging, caught, rewound with a lower LR, resumed, and proven healthy.

Every command shown is really run, as a process of its own; every step waits for its condition with a limit. The loss
that diverges and recovers is that of the trainer in `ops.demo.trainer`, not a script's. With a cluster the same story
is played under its Slurm, on two nodes, and one of them may be lost.
"""

from __future__ import annotations

import importlib.util
import shlex
import sys
import tempfile
import time
from pathlib import Path

import click

from ops.demo import cluster, scheduler
from ops.demo.cluster import Cluster
from ops.demo.stage import NAME, WIDTH, Stage, environment, say
from ops.errors import OpsError
from ops.logs.progress import split_branches

LIMIT = 150.0
"""Seconds any one step may wait for its condition."""
PAUSE = 0.08
"""Least seconds of a training step: the loss is to be watched."""
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
step_seconds: {pause}
fault:
  diverge_at: 160
"""


def run(folder: Path | None, svg: Path | None, transcript: Path | None, slurm: Cluster | None = None) -> None:
    """Play the whole demo. Raises OpsError as soon as a step does not show what it must."""
    _need_extra()
    if slurm is not None:
        cluster.check(slurm)
    # A real cluster's nodes rarely see this one's temporary folder.
    place = (folder or Path(tempfile.mkdtemp(prefix="m4ops-demo-", dir=Path.cwd() if slurm else None))).absolute()
    if (place / NAME).exists():
        raise OpsError("a demo was played here already", str(place / NAME), "choose another --dir")
    place.mkdir(parents=True, exist_ok=True)
    if slurm is not None:
        stage = Stage(place, environment(()), cluster.LIMIT)
    else:
        stage = Stage(place, environment(("SLURM_", "SBATCH_")) | {"M4OPS_EMBEDDED": str(place / "scheduler")}, LIMIT)
    try:
        _play(stage, slurm)
    finally:
        _leave_nothing_running(stage, slurm)
        if transcript is not None:
            transcript.write_text("".join(f"$ {line}\n{text}\n" for line, text in stage.transcript), encoding="utf-8")
    if svg is not None:
        from ops.views import record

        svg.write_text(record.svg(stage.picture, "m4ops demo", WIDTH), encoding="utf-8")
        say(f"picture: {svg}")
    embedded = "" if slurm else f" && export M4OPS_EMBEDDED={place}/scheduler"
    say(f"The run stays in {place}. To look around: cd {place}/{NAME}{embedded}")


def _play(stage: Stage, slurm: Cluster | None) -> None:
    began = time.monotonic()
    say(f"A small model is trained for real (torch + Accelerate on the CPU), in {stage.folder}.")
    say("Launch it as a job array: whenever a task ends, the next one resumes.")
    _submit(stage, slurm)
    stage.wait("the first logged step", lambda: bool(stage.samples()))
    stage.m4ops("status")
    if slurm and slurm.lose_node:
        cluster.lose_a_node(stage, slurm.lose_node)
    elif slurm:
        say("No node is lost: that is for the cluster's owner, by --lose-node.")
    say("cron would now run `m4ops check` every few minutes; here it is asked every second.")
    stage.m4ops("cron", "install", "--minutes", "10", "-n")
    target = _caught(stage)
    stage.m4ops("plot", "--height", "12")
    say("Rewind to the checkpoint before the onset, halve the LR, start a new wandb run, let the next task go.")
    stage.m4ops("rewind", "--to", str(target), "--scale-lr", str(FACTOR), "--restart", "--yes", picture=True)
    say("A change is done when the log shows it.")
    stage.m4ops("verify", "--wait", str(int(stage.limit)), picture=True)
    _finish(stage, slurm)
    _proven(stage, target)
    say(f"Diverged, caught, rewound, recovered, in {time.monotonic() - began:.0f} s.")


def _finish(stage: Stage, slurm: Cluster | None) -> None:
    total = stage.samples()[-1].total
    say("Train on to the end.")
    stage.wait("the last checkpoint", lambda: (stage.run / f"opt_step-{total}" / "finished-saving").exists())
    stage.m4ops("plot", "--height", "16", picture=True)
    if slurm:
        say("What is left of the chain has nothing to do.")
        stage.m4ops("cancel", "--yes")
    stage.wait("an empty queue", lambda: not stage.asked("status")["jobs"])
    stage.m4ops("check")
    stage.m4ops("status")
    stage.m4ops("history")


def _submit(stage: Stage, slurm: Cluster | None) -> None:
    stage.log.parent.mkdir(parents=True)
    # Hours pass in a minute here: what is found is told at once, not spread over the hour.
    (stage.run / "m4ops.toml").write_text("messages_per_hour = 36000\n", encoding="utf-8")
    config = stage.folder / "config.yaml"
    config.write_text(
        CONFIG.format(folder=stage.folder, name=NAME, pause=PAUSE if slurm is None else cluster.PAUSE), encoding="utf-8"
    )
    if slurm:
        stage.env["TRAIN_CMD"] = cluster.train_command(config)
        stage.m4ops("submit", "--array", cluster.CHAIN, "--yes", "--", *cluster.FLAGS, *slurm.flags)
    else:
        stage.env["TRAIN_CMD"] = shlex.join((sys.executable, "-u", "-m", "ops.demo.trainer", "--config", str(config)))
        stage.m4ops("submit", "--array", "1-4%1", "--yes")


def _caught(stage: Stage) -> int:
    """Ask `m4ops check` until it tells of the divergence; the step it would rewind to.

    The exit code alone does not do: on a busy machine something else may be critical first.
    """
    end, told = time.monotonic() + stage.limit, False
    while time.monotonic() < end:
        _, text = stage.quietly("check")
        if text.strip():
            stage.show(f"m4ops --run {NAME} check", text, picture=True)
        told = told or DIVERGES in click.unstyle(text)
        if told:
            for finding in stage.asked("check")["findings"]:
                if finding["kind"] == "loss-divergence":
                    return _step(finding["actions"])
        time.sleep(1.0)
    raise OpsError(f"the monitor named no divergence within {stage.limit:.0f} s", str(stage.log))


def _step(actions: list[str]) -> int:
    words = next((a.split() for a in actions if "--to" in a), [])
    if not words:
        raise OpsError(f"the divergence was found, but no checkpoint to rewind to was named: {actions}")
    return int(words[words.index("--to") + 1])


def _proven(stage: Stage, target: int) -> None:
    """The loss really diverged, and really recovered: by its own figures in the log."""
    branches = split_branches(stage.samples())
    at = next(i for i, branch in enumerate(branches) if any(s.step > target for s in branch.discarded))
    before = min(s.loss for s in branches[at].alive[-6:])
    worst = max(s.loss for s in branches[at].discarded)
    last = sorted(s.loss for s in branches[-1].samples[-6:])[3]
    say(f"Loss at the rewind point (step {target}): {before:.4f}; at its worst: {worst:.4f}; in the end: {last:.4f}.")
    if not (worst > 1.5 * before and last < before):
        raise OpsError(
            "the demo did not show what it should: a loss that diverges, and one that recovers", str(stage.log)
        )


def _leave_nothing_running(stage: Stage, slurm: Cluster | None) -> None:
    if slurm is None:
        scheduler.stop(stage.folder / "scheduler")
    elif (stage.run / ".m4ops").exists() and stage.asked("status")["jobs"] and stage.quietly("cancel", "--yes")[0] != 0:
        say(f"Jobs of this demo may be left in the queue: m4ops --run {shlex.quote(str(stage.run))} cancel")


def _need_extra() -> None:
    missing = [m for m in ("torch", "accelerate", "wandb", "jsonlines") if importlib.util.find_spec(m) is None]
    if missing:
        raise OpsError(f"the demo trains a real model and needs {', '.join(missing)}", hint="pip install 'm4ops[demo]'")
