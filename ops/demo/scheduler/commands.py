"""One entrance for all commands: `answer(("squeue", "-h"), root, env, cwd)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from ops.demo.scheduler import runner
from ops.demo.scheduler.words import Call, Refused
from ops.shell import Answer

NAMES = ("sbatch", "squeue", "scontrol", "scancel", "sacct", "sinfo")


def answer(argv: Sequence[str], root: Path, env: Mapping[str, str], cwd: Path, stdin: str = "") -> Answer:
    """What a Slurm command says: `argv[0]` is its name, `root` the folder the first sbatch makes.

    Never raises for what a command refuses; another program than Slurm's is answered with 127.
    """
    name = Path(argv[0]).name if argv else ""
    if name not in NAMES:
        return Answer(127, "", f"{name}: command not found\n")
    call = Call(root.absolute(), env, cwd, stdin)
    runner.ensure(call.root, env)
    try:
        said = _command(name)(list(argv[1:]), call)
    except Refused as no:
        said = Answer(no.returncode, "", no.stderr)
    if name not in ("squeue", "sacct", "sinfo"):
        runner.ensure(call.root, env)
    return said


def _command(name: str) -> Callable[[list[str], Call], Answer]:
    run: Callable[[list[str], Call], Answer] = import_module(f"ops.demo.scheduler.{name}").run
    return run
