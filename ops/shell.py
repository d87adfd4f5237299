"""The one place where m4ops starts a process. Commands are argv tuples; there is no shell string anywhere.

A `Shell` is any callable `(argv, timeout) -> Answer`; the real one runs the program, the demo's answers from the
embedded scheduler, a test's from a recording.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

SCRUBBED = ("SQUEUE_", "SINFO_", "SACCT_", "SCONTROL_", "SCANCEL_")
"""Environment prefixes that change what Slurm's commands print (squeue(1), sinfo(1), sacct(1))."""


class Answer(NamedTuple):
    """What a command said. `returncode` 124: it did not answer within the time limit (as timeout(1) says it)."""

    returncode: int
    stdout: str
    stderr: str


_SIGKILL, _IGNORED = 9, (13, 25)
"""SIGKILL; SIGPIPE and SIGXFSZ, which Python ignores: signal(7). The `signal` module alone takes 0.4 ms to import."""
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

    `env` is its whole environment; without one it gets that for Slurm's questions. It reads nothing, and hears SIGPIPE,
    which Python ignores. By posix_spawn(3), for to import `subprocess` would take every command 3 ms.
    """
    ends = time.monotonic() + timeout
    (out, out_in), (err, err_in) = os.pipe(), os.pipe()
    given = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, out_in, 1),
        (os.POSIX_SPAWN_DUP2, err_in, 2),
    )
    try:
        try:
            child = os.posix_spawnp(
                argv[0], list(argv), environment() if env is None else env, file_actions=given, setsigdef=_IGNORED
            )
        finally:
            os.close(out_in)
            os.close(err_in)
        said = {out: bytearray(), err: bytearray()}
        code = _heard(child, said, ends)
    except FileNotFoundError:
        return Answer(127, "", f"{argv[0]}: command not found")
    except OSError as error:
        return Answer(126, "", f"{argv[0]}: {error.strerror}")
    finally:
        os.close(out)
        os.close(err)
    if code is None:
        return Answer(124, "", f"{argv[0]} did not answer within {timeout:g} s")
    return Answer(code, *(text.decode("utf-8", "replace") for text in said.values()))


def _heard(child: int, said: Mapping[int, bytearray], ends: float) -> int | None:
    """The exit code of a child that says something at these ends of pipes. None: its time was over, and it was killed."""
    code = None
    try:
        if _all_said(said, ends):
            code = _ended(child, ends)
    finally:
        if code is None:
            os.kill(child, _SIGKILL)
            os.waitpid(child, 0)
    return code


def _all_said(said: Mapping[int, bytearray], ends: float) -> bool:
    """Listen until nobody holds the other ends any more; False: the time was over before."""
    listening, left = select.poll(), len(said)
    for end in said:
        listening.register(end, select.POLLIN)
    while left and (seconds := ends - time.monotonic()) > 0:
        for end, _ in listening.poll(1000 * seconds):
            if part := os.read(end, 1 << 16):
                said[end].extend(part)
            else:
                listening.unregister(end)
                left -= 1
    return not left


def _ended(child: int, ends: float) -> int | None:
    """The exit code of a child that has said all, and so ends soon; None: it had not at `ends`."""
    pause = 1e-4
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > ends:
            return None
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
