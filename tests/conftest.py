"""What every test stands on: an environment without the user's own runs, cluster or state."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("suite", deadline=None, suppress_health_check=(HealthCheck.too_slow,))
settings.load_profile("suite")  # a busy machine is no failure
pytest_plugins = ["slurm_lab.plugin"]


@pytest.fixture(scope="session", autouse=True)
def private_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No variable of a surrounding job or run is seen, and nothing is written to the user's own folders."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith(("M4OPS_", "SLURM_", "SBATCH_", "SQUEUE_", "WANDB_")):
                patch.delenv(name)
        home: Path = tmp_path_factory.mktemp("home")
        patch.setenv("XDG_STATE_HOME", str(home / "state"))
        patch.setenv("XDG_CONFIG_HOME", str(home / "config"))
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("M4OPS_QUEUE_AGE", "0")
        yield


@pytest.fixture(scope="session")
def need() -> Callable[[str, str], str]:
    """``need("crontab", "cron")``: the path of a command; without it the test fails, naming the package."""

    def find(command: str, package: str) -> str:
        path = shutil.which(command)
        if path is None:
            pytest.fail(f"{command} is missing; as root: apt-get install {package}", pytrace=False)
        return path

    return find


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A web server on this machine that keeps what it is given (tests/receivers.py)."""
    from receivers import Web

    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    receiver = Web(0).listen()
    yield receiver
    receiver.down()


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run in it; take `run`, a copy, to change anything."""
    import runs

    return runs.trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Any:
    """A copy of the trained run (tests/runs.py) for one test."""
    import runs

    return runs.copied(trained, tmp_path / "world")


@pytest.fixture
def bare(tmp_path: Path) -> Any:
    """A run with a log of one line, and nobody in the queue."""
    from alerting import PROGRESS

    from ops.model import Run

    folder = tmp_path / "tr_190"
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / "main_log.txt").write_text(PROGRESS.format(5))
    return Run(folder, "tr_190", folder / "logs" / "main_log.txt")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The time at which `check` looks; starts now."""
    hand = SimpleNamespace(now=time.time())
    for command in ("check", "checking", "look", "ack"):
        module = __import__(f"ops.cli.{command}", fromlist=["time"])
        monkeypatch.setattr(module, "time", SimpleNamespace(time=lambda: hand.now))
    return hand


@pytest.fixture(scope="session")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Trainings under other frameworks (tests/trainings.py), trained when first asked for."""
    from trainings import Trained

    return Trained(tmp_path_factory.mktemp("trainings"))
