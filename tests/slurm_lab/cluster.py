"""A lab cluster: brought up, taken down, and made to fail."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from . import processes, shape
from .processes import Process, until
from .shape import Shape

PREFIX = "m4ops-lab-"
PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "setpriv": "util-linux",
    "unshare": "util-linux",
}
DBD_PACKAGES = {
    "slurmdbd": "slurmdbd slurm-wlm-mysql-plugin",
    "mariadbd": "mariadb-server-core",
    "mariadb": "mariadb-client-core",
}
START_LIMIT = 90.0
"""Seconds a daemon is given to answer, on a machine that is busy with other things."""
NODE = Path(__file__).with_name("node.sh")


class LabError(Exception):
    """The cluster could not be brought up, or there is none."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster, all of it below one folder. `run/processes` names its processes."""

    folder: Path

    @property
    def conf(self) -> Path:
        return self.folder / "etc" / "slurm.conf"

    @property
    def jobs(self) -> Path:
        """A folder that every node sees and every user may write to."""
        return self.folder / "jobs"

    @property
    def env(self) -> dict[str, str]:
        """The environment of a person who exported SLURM_CONF, with nothing of a surrounding job."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "SQUEUE"))}
        return kept | {"SLURM_CONF": str(self.conf), "PATH": f"{kept.get('PATH', '/usr/bin')}:/usr/sbin:/sbin"}

    @property
    def kill_command(self) -> tuple[str, ...]:
        """What a person types to take `{node}`'s power, from anywhere (`m4ops demo --lose-node`)."""
        here = Path(__file__).resolve().parents[2]
        words = ("-m", "tests.slurm_lab", "kill", "{node}", "--dir", str(self.folder))
        return ("env", f"--chdir={here}", sys.executable, *words)

    @property
    def shape(self) -> Shape:
        kept = json.loads((self.folder / "run" / "shape").read_text())
        return Shape(**kept | {"extra": tuple(kept["extra"])})

    @classmethod
    def up(cls, wanted: Shape, folder: Path | None = None, tied: bool = False) -> Cluster:
        """A new cluster with all its nodes idle. `tied`: it dies with this process. Raises LabError."""
        _check(wanted)
        sweep()
        made = folder.resolve() if folder else Path(tempfile.mkdtemp(prefix=PREFIX, dir="/tmp"))
        made.mkdir(parents=True, exist_ok=True)
        made.chmod(0o755)
        if len(str(made)) > 80:
            raise LabError(f"a unix socket cannot be bound below so long a path: {made}")
        cluster = cls(made)
        if any(p.alive for p in cluster._processes().values()):
            raise LabError(f"a cluster runs already in {made}: take it down first")
        with _claimed() as (claim, port):
            shape.write(wanted, made, port)
            (made / "run" / "shape").write_text(json.dumps(asdict(wanted)))
            (made / "run" / "processes").write_text("{}")
            try:
                cluster._holder(claim, tied)
                cluster._bring_up(tied)
            except BaseException:
                cluster.down(keep=True)
                raise
        return cluster

    def down(self, keep: bool = False) -> None:
        """End every process, nodes first; remove the folder unless its logs are to be kept."""
        recorded = self._processes()
        nodes = [p for name, p in recorded.items() if _is_node(name)]
        for process in nodes:
            process.send(signal.SIGKILL)
        for process in nodes:
            process.end()
        for name in ("slurmctld", "slurmdbd", "mariadbd", "munged", "claim"):
            if name in recorded:
                recorded[name].send(signal.SIGCONT)
                gentle = signal.SIGTERM if name in ("slurmdbd", "mariadbd") and keep else signal.SIGKILL
                recorded[name].end(gentle)
        (self.folder / "run" / "processes").unlink(missing_ok=True)
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, name: str) -> None:
        """A node loses its power, or a daemon gets SIGKILL."""
        process = self._process(name)
        if _is_node(name) and (first := processes.child(process.pid)):
            os.kill(first, signal.SIGKILL)
        process.end()

    def stop(self, name: str) -> None:
        """End a daemon as a service is stopped: by SIGTERM, its state saved."""
        self._process(name).end(signal.SIGTERM)

    def freeze(self, name: str) -> None:
        """SIGSTOP for a daemon, or for all that runs on a node."""
        self._signal(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        self._signal(name, signal.SIGCONT)

    def start(self, name: str, tied: bool = False) -> None:
        """Start a node or a daemon that has ended. Raises LabError when it runs."""
        if name in self._processes() and self._processes()[name].alive:
            raise LabError(f"{name} runs already")
        # A daemon that finds the pid file of another ends that process, and the pid may be anybody's by now.
        (self.folder / "run" / f"{'slurmd.' if _is_node(name) else ''}{name}.pid").unlink(missing_ok=True)
        output = self.folder / "log" / f"{name}.err"
        self._record(name, processes.start(self._command(name), self._daemon_env(name), output, tied))

    def revive(self, name: str, tied: bool = False) -> None:
        """Start what has ended, or thaw what is frozen, until it answers; a node is idle or at work then."""
        recorded = self._processes().get(name)
        if recorded and recorded.alive:
            self.thaw(name)
        else:
            self.start(name, tied)
        self._answers(name)

    def ask(self, *argv: str, user: str = "", cwd: Path | None = None, limit: float = 30.0) -> str:
        """What a Slurm command says, its last line end cut. Raises CalledProcessError."""
        ids = {"user": user, "group": "nogroup", "extra_groups": []} if user else {}
        done = subprocess.run(
            argv, env=self.env, cwd=cwd or self.jobs, capture_output=True, text=True, timeout=limit, **ids
        )
        if done.returncode != 0:
            error = subprocess.CalledProcessError(done.returncode, argv, done.stdout, done.stderr)
            error.add_note(done.stderr)
            raise error
        return done.stdout.rstrip("\n")

    def node_states(self) -> dict[str, str]:
        """Each node's state as `sinfo` shows it: `idle`, `alloc*`, `down`, …"""
        rows = self.ask("sinfo", "-h", "-N", "-p", "train", "-o", "%N %t")
        return dict(row.split() for row in rows.splitlines())

    def _bring_up(self, tied: bool) -> None:
        for name in self._daemons():
            self.start(name, tied)
            self._answers(name)
            if name == "mariadbd":
                self._sql(
                    "create database if not exists slurm_acct_db;"
                    "create user if not exists slurm@localhost identified by 'slurm';"
                    "grant all on slurm_acct_db.* to slurm@localhost"
                )
            elif name == "slurmdbd":
                self.ask("sacctmgr", "-i", "add", "cluster", "lab")
        for name in self.shape.names:
            self.start(name, tied)
        if not until(self._all_idle, START_LIMIT):
            raise LabError(f"the nodes did not become idle: {self.node_states()}; see {self.folder}/log")

    def _daemons(self) -> tuple[str, ...]:
        return ("munged", *(("mariadbd", "slurmdbd") if self.shape.dbd else ()), "slurmctld")

    def _command(self, name: str) -> list[str]:
        d = self.folder
        if name == "munged":
            return [
                "munged", "-F", f"--key-file={d}/munge/key", f"--socket={d}/run/munge.sock",
                f"--pid-file={d}/run/munged.pid", f"--log-file={d}/log/munged.log", f"--seed-file={d}/munge/seed",
                "--num-threads=4", "--force",
            ]  # fmt: skip
        if name == "mariadbd":
            if not (d / "mysql" / "mysql").is_dir():
                self._install_database()
            return ["mariadbd", f"--defaults-file={d}/etc/my.cnf"]
        if _is_node(name):
            spaces = ["--pid", "--uts", "--mount", "--fork", "--kill-child=KILL", "--mount-proc"]
            return ["unshare", *spaces, "bash", str(NODE), name, str(d)]
        return [name, "-D"]

    def _daemon_env(self, name: str) -> dict[str, str]:
        more = {"MYSQL_UNIX_PORT": str(self.folder / "run" / "mysql.sock")} if name == "slurmdbd" else {}
        return self.env | more

    def _answers(self, name: str) -> None:
        def answers() -> bool:
            return self._probe(name)

        if not until(answers, START_LIMIT, 0.05):
            log = self.folder / "log" / f"{name}.err"
            last = "\n".join(log.read_text(errors="replace").splitlines()[-5:]) if log.exists() else ""
            raise LabError(f"{name} does not answer: {last or 'it said nothing'}; see {self.folder}/log")

    def _probe(self, name: str) -> bool:
        socket_file = str(self.folder / "run" / "munge.sock")
        probes = {
            "munged": ("munge", "-S", socket_file, "-n"),
            "mariadbd": self._mariadb("select 1"),
            "slurmdbd": ("sacctmgr", "-n", "-P", "show", "cluster"),
            "slurmctld": ("scontrol", "ping"),
        }
        with contextlib.suppress(subprocess.SubprocessError):
            if name in probes:
                self.ask(*probes[name])
                return True
            state = self.node_states()[name]
            if state.rstrip("*") in ("down", "drain", "drng", "fail") and not state.endswith("*"):
                self.ask("scontrol", "update", f"nodename={name}", "state=resume")
            return state in ("idle", "mix", "alloc", "comp")
        return False

    def _all_idle(self) -> bool:
        with contextlib.suppress(subprocess.SubprocessError):
            return all(state == "idle" for state in self.node_states().values())
        return False

    def _install_database(self) -> None:
        subprocess.run(
            ["mariadb-install-db", f"--defaults-file={self.folder}/etc/my.cnf", "--user=root",
             f"--datadir={self.folder}/mysql", "--auth-root-authentication-method=normal", "--skip-test-db"],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip

    def _mariadb(self, query: str) -> tuple[str, ...]:
        return ("mariadb", "--no-defaults", "-S", str(self.folder / "run" / "mysql.sock"), "-uroot", "-e", query)

    def _sql(self, query: str) -> None:
        self.ask(*self._mariadb(query))

    def _signal(self, name: str, number: int) -> None:
        process = self._process(name)
        first = processes.child(process.pid) if _is_node(name) else None
        for pid in processes.inside(first) if first else (process.pid,):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _process(self, name: str) -> Process:
        recorded = self._processes().get(name)
        if recorded is None or not recorded.alive:
            raise LabError(f"{name} does not run; {', '.join(self._processes()) or 'nothing'} was started")
        return recorded

    def _holder(self, claim: socket.socket, tied: bool) -> None:
        """A process that keeps the claim on the ports for as long as the cluster lives."""
        claim.set_inheritable(True)
        self._record("claim", processes.start(["sleep", "infinity"], self.env, Path("/dev/null"), tied))
        claim.set_inheritable(False)

    def _processes(self) -> dict[str, Process]:
        try:
            kept = json.loads((self.folder / "run" / "processes").read_text())
        except FileNotFoundError:
            return {}
        return {name: Process(pid, start) for name, (pid, start) in kept.items()}

    def _record(self, name: str, process: Process) -> None:
        kept = self._processes() | {name: process}
        new = self.folder / "run" / "processes.new"
        new.write_text(json.dumps({n: [p.pid, p.start] for n, p in kept.items()}))
        new.rename(self.folder / "run" / "processes")


def running() -> list[Cluster]:
    """The clusters of this machine, in folders of their own making."""
    found = (Cluster(folder) for folder in sorted(Path("/tmp").glob(PREFIX + "*")))
    return [c for c in found if any(p.alive for p in c._processes().values())]


def sweep() -> None:
    """Remove the folders of clusters that died with their test."""
    for folder in Path("/tmp").glob(PREFIX + "*"):
        old = time.time() - folder.stat().st_mtime > 60
        if old and not any(p.alive for p in Cluster(folder)._processes().values()):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _claimed():
    """A block of ports that nobody listens on, and the claim to it: an abstract socket, gone with its last holder."""
    for port in random.sample(range(17000, 32000, shape.PORTS), 150):
        with socket.socket(socket.AF_UNIX) as claim:
            try:
                claim.bind(f"\0{PREFIX}{port}")
            except OSError:
                continue
            if all(_free(p) for p in range(port, port + 44)):
                yield claim, port
                return
    raise LabError("no free block of ports between 17000 and 32000")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _is_node(name: str) -> bool:
    return name[:1] == "n" and name[1:].isdigit()


def missing(wanted: Shape) -> str:
    """What this machine lacks for such a cluster, as a sentence; empty when nothing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    needed = PACKAGES | (DBD_PACKAGES if wanted.dbd else {})
    packages = [package for command, package in needed.items() if shutil.which(command, path=path) is None]
    if packages:
        return f"as root: apt-get install --no-install-recommends {' '.join(dict.fromkeys(packages))}"
    return "" if os.geteuid() == 0 else "a Slurm cluster on one machine needs root (namespaces, jobs of several users)"


def _check(wanted: Shape) -> None:
    if lacking := missing(wanted):
        raise LabError(lacking)
    if not 1 <= wanted.nodes <= 32:
        raise LabError(f"{wanted.nodes} nodes: 1 to 32 are possible")
