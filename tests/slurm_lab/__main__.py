"""The lab from a shell; see the package's docstring."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

from . import cluster
from .cluster import Cluster, LabError
from .shape import Shape

ACTS = ("stop", "kill", "freeze", "thaw", "start", "revive")


def main() -> None:
    words = _parser().parse_args()
    try:
        words.act(words)
    except LabError as error:
        sys.exit(f"slurm lab: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.slurm_lab", description="A real Slurm cluster on this machine."
    )
    verbs = parser.add_subparsers(required=True, metavar="up|down|list|stop|kill|freeze|thaw|start|revive")
    up = verbs.add_parser("up", help="bring a cluster up; stdout is shell code that exports SLURM_CONF")
    up.set_defaults(act=_up)
    up.add_argument("--dir", type=Path, help="folder of the cluster (default: a new one in /tmp)")
    up.add_argument("--nodes", type=int, default=Shape.nodes, help="n1 … nN, at most 32 (default: %(default)s)")
    up.add_argument("--cpus", type=int, default=Shape.cpus, help="CPUs a node claims to have (default: %(default)s)")
    up.add_argument("--gpus", type=int, default=Shape.gpus, help="GPUs a node claims to have (default: none)")
    up.add_argument("--memory", type=int, default=Shape.memory, help="MB a node claims to have (default: %(default)s)")
    up.add_argument("--dbd", action="store_true", help="with slurmdbd and MariaDB, so that sacct works")
    up.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a line for slurm.conf")
    listed = verbs.add_parser("list", help="the clusters of this machine")
    listed.set_defaults(act=_list)
    down = verbs.add_parser("down", help="end a cluster and remove its folder")
    down.set_defaults(act=lambda w: _meant(w.dir).down(w.keep))
    down.add_argument("--keep", action="store_true", help="keep the folder with its logs")
    down.add_argument("--dir", type=Path, help="which one (default: the only one)")
    for name in ACTS:
        act = verbs.add_parser(name, help=f"{name} a node or a daemon")
        act.set_defaults(act=lambda w, name=name: getattr(_meant(w.dir), name)(w.what))
        act.add_argument("what", help="n1, n2, …, slurmctld, slurmdbd, mariadbd or munged")
        act.add_argument("--dir", type=Path, help="of which cluster (default: the only one)")
    return parser


def _up(words: argparse.Namespace) -> None:
    wanted = Shape(words.nodes, words.cpus, words.gpus, words.memory, words.dbd, tuple(words.conf))
    began = time.monotonic()
    made = Cluster.up(wanted, words.dir)
    print(f"export SLURM_CONF={made.conf}")
    print(f"export M4OPS_DEMO_LOSE_NODE={shlex.quote(shlex.join(made.kill_command))}")
    say = f"# {words.nodes} nodes are idle after {time.monotonic() - began:.1f} s. Jobs may write to {made.jobs}"
    print(f"{say}\n# To take it down: python -m tests.slurm_lab down --dir {made.folder}", file=sys.stderr)


def _list(words: argparse.Namespace) -> None:
    for found in cluster.running():
        print(f"SLURM_CONF={found.conf}  {found.shape.nodes} nodes{' with slurmdbd' if found.shape.dbd else ''}")


def _meant(folder: Path | None) -> Cluster:
    if folder is not None:
        if not (folder / "run" / "processes").exists():
            raise LabError(f"no cluster in {folder}")
        return Cluster(folder.resolve())
    found = cluster.running()
    if len(found) != 1:
        raise LabError(
            f"{len(found)} clusters run: name one by --dir (list shows them)" if found else "no cluster runs"
        )
    return found[0]


if __name__ == "__main__":
    main()
