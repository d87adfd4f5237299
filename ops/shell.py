"""The one place where m4ops starts a process. Commands are argv tuples; there is no shell string anywhere.

A `Shell` is any callable `(argv, timeout) -> Answer`; the real one runs the program, the demo's answers from the
embedded scheduler, a test's from a recording.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

SCRUBBED = ("SQUEUE_", "SINFO_", "SACCT_", "SCONTROL_", "SCANCEL_")
"""Environment prefixes that change what Slurm's commands print (squeue(1), sinfo(1), sacct(1))."""


class Answer(NamedTuple):
    """What a command said. `returncode` 124: it did not answer within the time limit (as timeout(1) says it)."""

    returncode: int
    stdout: str
    stderr: str


Shell = Callable[[Sequence[str], float], Answer]
Submitter = Callable[[Sequence[str], float, Mapping[str, str]], Answer]
"""A shell for what hands its environment on: sbatch gives a job the one it was called with."""
_PERSONAL = ("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_EXIT_ERROR", "SLURM_UMASK", "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN")
"""What a person sets of SLURM_*, also within a job: the rest is that job's."""


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for Slurm's commands: the user's, less what changes output formats, with times as epochs."""
    base = os.environ if env is None else env
    kept = {k: v for k, v in base.items() if not k.startswith(SCRUBBED)}
    return kept | {"SLURM_TIME_FORMAT": "%s", "SLURM_BITSTR_LEN": "0", "LC_ALL": "C.UTF-8"}


def submission(more: Mapping[str, str], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment a job is to get: the user's own and `more`, with nothing of ours and of a surrounding job.

    The variables of such a job (SLURM_NTASKS, SLURM_CPU_BIND, …) would bind the srun of the new one. SBATCH_WAIT is left
    out: m4ops does not wait for the job's end.
    """
    base = os.environ if env is None else env
    within = "SLURM_JOB_ID" in base
    kept = {k: v for k, v in base.items() if not (within and k.startswith("SLURM")) or k in _PERSONAL}
    kept.pop("SBATCH_WAIT", None)
    return kept | dict(more)


def run(argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> Answer:
    """Run a program to its end, for at most `timeout` seconds. Never raises for what the program does.

    `env` is its whole environment; without one it gets that for Slurm's questions.
    """
    import subprocess

    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            env=environment() if env is None else dict(env),
            check=False,
        )
    except FileNotFoundError:
        return Answer(127, "", f"{argv[0]}: command not found")
    except PermissionError as error:
        return Answer(126, "", f"{argv[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Answer(124, "", f"{argv[0]} did not answer within {timeout:g} s")
    return Answer(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))
