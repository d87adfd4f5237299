"""The lab itself: clusters side by side, nodes that die and come back, and nothing left behind."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm_lab import Cluster
from slurm_lab.processes import until

ROOT = Path(__file__).resolve().parent.parent


def test_two_clusters_do_not_see_each_other(slurm_lab: Callable[..., Cluster]) -> None:
    one, two = slurm_lab(nodes=1), slurm_lab(nodes=2)
    one.ask("sbatch", "--job-name=only-here", "--wrap=sleep 60")
    assert one.ask("squeue", "-h", "-o", "%j") == "only-here"
    assert two.ask("squeue", "-h", "-o", "%j") == ""
    assert set(two.node_states()) == {"n1", "n2"}


def test_a_node_that_loses_its_power_takes_its_tasks_along_and_comes_back(slurm: Cluster) -> None:
    slurm.ask(
        "sbatch",
        "--nodelist=n2",
        f"--output={slurm.jobs}/out",
        f"--wrap=echo $$ at $(hostname) > {slurm.jobs}/up; sleep 61.5",
    )
    assert until(lambda: (slurm.jobs / "up").exists())
    slurm.kill("n2")
    assert " at n2" in (slurm.jobs / "up").read_text()
    assert not [line for line, _ in _all() if b"61.5" in line]
    slurm.revive("n2")
    assert slurm.node_states()["n2"] in ("idle", "mix")


def test_a_cluster_dies_with_its_test() -> None:
    program = (
        "import time; from slurm_lab import Cluster, Shape\n"
        "c = Cluster.up(Shape(nodes=2), tied=True); print(c.folder, flush=True); time.sleep(600)"
    )
    env = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env) as test:
        assert test.stdout is not None
        folder = test.stdout.readline().strip()
        assert folder and _of(folder)
        test.send_signal(signal.SIGKILL)
    try:
        assert until(lambda: not _of(folder)), _of(folder)
    finally:
        Cluster(Path(folder)).down()


def test_the_command_brings_up_what_it_says_and_takes_it_down() -> None:
    said = _lab("up", "--nodes", "2")
    shell = 'eval "$0"; echo "$SLURM_CONF"; echo "$M4OPS_DEMO_LOSE_NODE"'
    conf, lose_node = subprocess.check_output(["bash", "-c", shell, said], text=True).splitlines()
    folder = Path(conf).parent.parent
    try:
        assert sorted(Cluster(folder).ask("srun", "-N2", "hostname").split()) == ["n1", "n2"]
        subprocess.run(shlex.split(lose_node.replace("{node}", "n2")), cwd="/", check=True)
        assert until(lambda: not [line for line in _of(str(folder)) if b"node.sh\0n2\0" in line])
        _lab("revive", "n2", "--dir", str(folder))
    finally:
        _lab("down", "--dir", str(folder))
    assert not folder.exists()
    assert not _of(str(folder))


def _lab(*words: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", "tests.slurm_lab", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def _of(folder: str) -> list[bytes]:
    """The processes of the cluster in a folder: those that were told so by their environment."""
    return [line for line, env in _all() if f"SLURM_CONF={folder}/".encode() in env]


def _all() -> Iterator[tuple[bytes, bytes]]:
    """Command line and environment of every process."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield (process / "cmdline").read_bytes(), (process / "environ").read_bytes()
