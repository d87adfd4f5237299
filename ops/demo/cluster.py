"""The demo's training under a real Slurm, on two nodes or more: how it is started there, and a node that is lost.

m4ops never takes a node from a cluster. Whoever owns the cluster says how one is lost, by a command
(tests/slurm_lab/ has one); without it that part of the story is left out.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import time
from pathlib import Path

from msgspec import Struct

from ops.demo.stage import Stage, say
from ops.errors import OpsError
from ops.hostlist import expand, natural

LIMIT = 1800.0
"""Seconds any one step may wait: the queue of a real cluster is long, and a lost node is noticed after minutes."""
NODES = 2
CHAIN = "1-9%1"
"""More tasks than the story needs: one that finds the training at its end only starts and ends."""
PAUSE = 0.03
"""Least seconds of a training step; the processes' talk takes as long again."""
FLAGS = (f"--nodes={NODES}", "--ntasks-per-node=1", "--time=30")
PORT = '$((10000 + $(cksum <<<"$SAVE_DIR $SLURM_JOB_ID $SLURM_RESTART_COUNT" | cut -d " " -f 1) % 7000))'
"""One for each start: another run's training, or the one before, may still hold its own."""


class Cluster(Struct, frozen=True):
    """The user's own Slurm: more flags for sbatch, and the command that loses `{node}` (empty: none)."""

    flags: tuple[str, ...] = ()
    lose_node: str = ""


def check(cluster: Cluster) -> None:
    """Raises OpsError where there is no Slurm, or the command to lose a node names none."""
    if shutil.which("sbatch") is None:
        raise OpsError(
            "there is no sbatch here",
            "PATH",
            "m4ops demo needs none; make slurm-lab brings one up",
        )
    if cluster.lose_node and "{node}" not in cluster.lose_node:
        raise OpsError(
            "the command does not say which node", cluster.lose_node, "write {node} where the node's name belongs"
        )


def train_command(config: Path) -> str:
    """One torchrun for each of srun's tasks, which meet on the job's first node; a line for the shell of each task."""
    meeting = '"$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"'
    trainer = f"-m ops.demo.trainer --config {shlex.quote(str(config))}"
    return (
        f'{shlex.quote(sys.executable)} -m torch.distributed.run --nnodes="$SLURM_NTASKS" --node_rank="$SLURM_PROCID" '
        f'--nproc_per_node=1 --master_addr={meeting} --master_port="{PORT}" {trainer}'
    )


def lose_a_node(stage: Stage, command: str) -> None:
    """Lose the last node of the running task, see it found and named, and the chain go on without it. Raises OpsError."""
    stage.wait("the first checkpoint", lambda: any(stage.run.glob("opt_step-*/finished-saving")))
    node = _last_node(stage)
    say(f"Node {node} is lost, by the command of the cluster's owner. Slurm takes a while to notice.")
    words = tuple(word.replace("{node}", node) for word in shlex.split(command))
    code, text = stage.start(words)
    stage.show(shlex.join(words), text)
    if code != 0:
        raise OpsError(f"the command that loses a node ended with {code}", shlex.join(words))
    before = len(stage.samples())
    _found(stage, node)
    stage.m4ops("nodes")
    stage.m4ops("exclude", node, "--yes")
    say("The chain goes on, on other nodes.")
    stage.wait("the next task's first logged step", lambda: len(stage.samples()) > before)
    stage.m4ops("status")


def _last_node(stage: Stage) -> str:
    """The last node of the run's job: when the first one dies, which runs the batch script, the log says nothing."""
    nodes = [node for job in stage.asked("status")["jobs"] for node in expand(job["nodes"])]
    if len(nodes) < NODES:
        raise OpsError(f"the training runs on {len(nodes)} nodes: none can be lost", str(stage.run))
    return sorted(nodes, key=natural)[-1]


def _found(stage: Stage, node: str) -> None:
    """Ask `m4ops check` until it names the failed node. Raises OpsError when it is another one."""
    end = time.monotonic() + stage.limit
    while time.monotonic() < end:
        failed = [f["node"] for f in stage.asked("check")["findings"] if f["kind"] == "node-failure"]
        _, text = stage.quietly("check")
        if text.strip():
            stage.show(f"m4ops --run {stage.run.name} check", text)
        if node in failed:
            return
        if failed:
            raise OpsError(f"{node} was lost, and {', '.join(failed)} is said to have failed", str(stage.log))
        time.sleep(1.0)
    raise OpsError(f"the loss of {node} was not found within {stage.limit:.0f} s", str(stage.log))
