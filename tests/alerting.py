"""What the tests of alerts share: two troubles, a message, and a run whose checks are steered from outside."""

import json
import os
from collections.abc import Sequence

import pytest
from click.testing import CliRunner

from ops import state
from ops.alerts import notify
from ops.alerts.words import Message, News
from ops.cli import cli
from ops.model import Finding, Run, Severity
from ops.policy import Policy

NOW = 1716883872.0
SPIKE = Finding(
    "loss-spike",
    Severity.WARNING,
    "loss 9.12 at step 16250, 4.1 above the median",
    evidence=("main_log.txt line 812: per_token_loss: 9.1200",),
    step=16250,
    line=812,
    runbook="loss-spikes",
    actions=("m4ops rewind --to 16000",),
)
NAN = Finding("nan", Severity.CRITICAL, "loss is NaN")
PROGRESS = "iteration: {:6d}/500000   0% | per_token_loss: 2.1000 | lr: 1.000E-05 |\n"


def news(finding: Finding, time: float = NOW, event: str = "opened", since: float = NOW) -> News:
    return News(event, finding, time, since)


def message(finding: Finding = SPIKE, event: str = "opened") -> Message:
    told = (news(finding, event=event, since=NOW - 7500),)
    return Message(told, NOW, "tr_190", "/gpfs/runs/tr_190", "login2", "3fj2k1ab")


def failed(count: int) -> list[Finding]:
    return [Finding("node-failure", Severity.CRITICAL, f"n{i} failed", node=f"n{i}") for i in range(count)]


def tick(run: Run, findings: Sequence[Finding], policy: Policy, now: float = NOW) -> tuple[str, ...]:
    """What a tick does, with the bookkeeping on disk as between two cron jobs; what it says went wrong."""
    with state.lease(run, "tick", 60):
        desk = notify.Desk(run, policy, lambda memory: state.save(run, memory))
        return notify.notify(desk, state.load(run), findings, now)[1]


def configure(run: Run, *sinks: str, more: str = "") -> None:
    (run.dir / "m4ops.toml").write_text(f"sinks = {json.dumps(sinks)}\n{more}\n")


def lines(run: Run, *more: str) -> None:
    """The run's log goes on."""
    with open(run.dir / "logs" / "main_log.txt", "a") as log:
        log.writelines(more)


def m4ops(run: Run, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    """What a command says."""
    if "M4OPS_EMBEDDED" not in os.environ:
        monkeypatch.setenv("M4OPS_EMBEDDED", str(run.dir.parent / "slurm"))
    done = CliRunner().invoke(cli, ["--run", str(run.dir), *words])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output
