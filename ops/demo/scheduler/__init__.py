"""A scheduler for a machine without Slurm: it answers sbatch, squeue, scontrol, scancel, sacct, sinfo, srun.

One host, no fair share, no accounts to speak of: it exists so that the demo and newcomers need no cluster.
Outputs, messages and exit codes follow Slurm 22.05.8 as seen by running it. All state is one folder on
local disk, named by the environment variable `M4OPS_EMBEDDED`.
"""

from ops.demo.scheduler.commands import answer
from ops.demo.scheduler.stop import stop
from ops.shell import Answer

__all__ = ["Answer", "answer", "stop"]
