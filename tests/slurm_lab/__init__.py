"""A real Slurm cluster of several nodes on one machine: Debian's daemons as plain processes under one folder.

Each node is a small container (pid, host name and mount namespace) with its own slurmd: to kill it is a power loss.

    python -m tests.slurm_lab up --nodes 4      prints the SLURM_CONF to export
    python -m tests.slurm_lab kill n2           revive, freeze, thaw; also of slurmctld, slurmdbd, mariadbd, munged
    python -m tests.slurm_lab down
"""

from .cluster import Cluster, LabError
from .shape import Shape

__all__ = ["Cluster", "LabError", "Shape"]
