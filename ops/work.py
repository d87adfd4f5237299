"""Heavy work elsewhere: command lines of m4ops as the tasks of a Slurm job array, or in processes here, by submitit.

What is handed over is a command line for each checkpoint and the name of what answers it: the pickle that submitit makes
of it holds no data, and what comes back is JSON. All of it lies in `SAVE_DIR/.m4ops/work/ID/`: `tasks.json`, the logs, and
`N.json` for the result of task N. A task that is requeued (by a time limit, a preemption, a lost node) gives its command
again, and the commands go on where they ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from ops import lease, shell, slurm
from ops.errors import BadInput, Busy, OpsError, Refused, Unreachable
from ops.model import OPS_DIR, Run, Unknown
from ops.shell import Shell

Runner = Callable[[Sequence[str]], tuple[int, str]]
"""Answers a command line: its exit code and what it printed. Raises OpsError."""
MINUTES = 120
"""The time limit of a task where none is given; it is warned before, requeued, and goes on."""
REQUEUES = 100
PARALLEL, PROCESSES = 4, 2
LOOK, ASK = 1.0, 30.0
"""Seconds between two looks for results, and between two questions to Slurm."""
TURN = 15.0
"""Seconds after which a task that was started again asks anew for the lease of its lost predecessor."""
TURNS = 80


class Task(Struct, frozen=True):
    """One command line, and what it is about."""

    name: str
    argv: tuple[str, ...]


class Result(Struct, frozen=True):
    """How a task ended: its exit code, what it printed, and what it said of a failure."""

    task: Task
    code: int
    out: str
    said: str = ""


class Sent(Struct, frozen=True):
    """Tasks on their way: the job array's id, and the folder with logs and results."""

    tasks: tuple[Task, ...]
    folder: Path
    job: str = ""


class Call(Struct, frozen=True):
    """What a job carries out. submitit pickles it, and calls `checkpoint` when the job is to be requeued."""

    argv: tuple[str, ...]
    result: str
    runner: Runner

    def __call__(self) -> int:
        code, out, said = _answered(self.argv, self.runner)
        place = Path(self.result)
        part = place.with_name(f".{place.name}.{secrets.token_hex(4)}")
        part.write_text(json.dumps({"code": code, "out": out, "said": said}), encoding="utf-8")
        os.replace(part, place)
        return code

    def checkpoint(self) -> Any:
        """The same once more: the command itself knows what it has done."""
        return _submitit().helpers.DelayedSubmission(self)


def _answered(argv: Sequence[str], runner: Runner) -> tuple[int, str, str]:
    again = int(os.environ.get("SLURM_RESTART_COUNT") or 0) > 0
    for turn in range(TURNS):
        try:
            return (*runner(argv), "")
        except Busy as error:
            if not again or turn == TURNS - 1:
                return error.exit_code, "", str(error)
            print(f"waiting for the lease of an earlier start: {error.what}", file=sys.stderr, flush=True)
            time.sleep(TURN)
        except OpsError as error:
            print(f"m4ops: {error}", file=sys.stderr)
            return error.exit_code, "", str(error)
    raise AssertionError("the last turn returns")


def to_slurm(
    run: Run, what: str, tasks: Sequence[Task], runner: Runner, flags: Mapping[str, str], parallel: int
) -> Sent:
    """Submit the tasks as one job array, at most `parallel` at a time. `flags` are sbatch's long options.

    Raises Refused without submitit, OpsError with sbatch's own words.
    """
    submitit, minutes = _submitit(), _minutes(flags.get("time"))
    sent, calls = _prepared(run, what, tasks, runner)
    plain = {name: True if value == "True" else value for name, value in flags.items()}
    more = {"requeue": True, **plain} | ({"clusters": run.cluster} if run.cluster else {})
    try:
        with _own_environment():
            executor = submitit.SlurmExecutor(sent.folder, max_num_timeout=REQUEUES)
            executor.update_parameters(
                job_name=f"m4ops-{what}",
                comment=f"{slurm.WORK}{run.dir}",
                time=minutes,
                array_parallelism=parallel,
                additional_parameters=more,
                stderr_to_stdout=True,
                wckey=None,
            )
            jobs = executor.submit_array(calls)
    except RuntimeError as error:
        raise Unreachable(f"there is no Slurm here: {error}", hint="m4ops … --on local") from None
    except submitit.core.utils.FailedJobError as error:
        said = " ".join(str(error).split())
        raise OpsError(f"sbatch refused: {said}", str(sent.folder), "mend that, then give the command again") from None
    return Sent(sent.tasks, sent.folder, str(jobs[0].job_id).partition("_")[0])


def wait(sent: Sent, ask: Shell, told: Callable[[int], None] = lambda done: None) -> tuple[Result, ...]:
    """Wait until every task has its result or left the queue without one. `told` gets how many are done."""
    asked, gone, seen = time.monotonic(), 0, -1
    while True:
        done = sum(_place(sent.folder, n).exists() for n in range(len(sent.tasks)))
        if done != seen:
            seen = done
            told(done)
        if done == len(sent.tasks) or gone >= 2:
            return results(sent)
        if time.monotonic() - asked >= ASK:
            asked = time.monotonic()
            queued = slurm.queue(ask)
            there = isinstance(queued, Unknown) or any(j.array_id == sent.job for j in queued)
            gone = 0 if there else gone + 1
        time.sleep(LOOK)


def here(
    run: Run, what: str, tasks: Sequence[Task], runner: Runner, parallel: int, told: Callable[[int], None]
) -> tuple[Result, ...]:
    """The tasks in processes of this machine, at most `parallel` at a time. Interrupted, they are ended too."""
    submitit = _submitit()
    sent, calls = _prepared(run, what, tasks, runner)
    executor = submitit.LocalExecutor(sent.folder)
    executor.update_parameters(timeout_min=60 * 24 * 365, stderr_to_stdout=True)
    running: list[Any] = []
    waiting, ended = list(calls), 0
    try:
        while waiting or running:
            while waiting and len(running) < parallel:
                running.append(executor.submit(waiting.pop(0)))
            time.sleep(0.1)
            left = [job for job in running if not job.done()]
            if len(left) < len(running):
                ended += len(running) - len(left)
                told(ended)
            running = left
    finally:
        for job in running:
            job.cancel()
    return results(sent)


def results(sent: Sent) -> tuple[Result, ...]:
    """How each task ended, in their order; one without a result failed, and its log tells more."""
    return tuple(_result(sent, number, task) for number, task in enumerate(sent.tasks))


def _result(sent: Sent, number: int, task: Task) -> Result:
    try:
        data = json.loads(_place(sent.folder, number).read_text(encoding="utf-8"))
        return Result(task, int(data["code"]), str(data["out"]), str(data["said"]))
    except (OSError, ValueError, KeyError):
        return Result(task, 1, "", f"it ended without a result\n  where: {sent.folder}")


def _prepared(run: Run, what: str, tasks: Sequence[Task], runner: Runner) -> tuple[Sent, list[Call]]:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = run.dir / OPS_DIR / "work" / f"{stamp}-{what}-{secrets.token_hex(2)}"
    lease.make_folder(folder)
    (folder / "tasks.json").write_text(json.dumps([list(t.argv) for t in tasks], indent=1), encoding="utf-8")
    calls = [Call(t.argv, str(_place(folder, n)), runner) for n, t in enumerate(tasks)]
    return Sent(tuple(tasks), folder), calls


def _place(folder: Path, number: int) -> Path:
    return folder / f"{number}.json"


def _minutes(limit: str | None) -> int:
    """A `--time` of sbatch in minutes, for submitit's own count. Raises BadInput."""
    from ops.interventions.sbatch_flags import seconds

    if limit is None:
        return MINUTES
    found = seconds(limit)
    if not found:
        raise BadInput(f"--time {limit}: no limit of time", hint="minutes, or hours:minutes:seconds")
    return max(1, found // 60)


@contextlib.contextmanager
def _own_environment() -> Iterator[None]:
    """The user's own environment, as a job is to get it: nothing of a job that surrounds us."""
    before = dict(os.environ)
    own = shell.submission({})
    try:
        os.environ.clear()
        os.environ.update(own)
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _submitit() -> Any:
    """The library. Raises Refused, naming the extra, where it is not installed."""
    try:
        import submitit
        import submitit.core.utils
    except ImportError:
        raise Refused("submitit is not installed here", sys.prefix, "pip install 'm4ops[work]'") from None
    return submitit
