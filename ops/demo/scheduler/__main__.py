"""`python -m ops.demo.scheduler CMD ARGS…`: what the shims in ROOT/bin run; ROOT is `M4OPS_EMBEDDED`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

if not __package__:  # run as a file, by a shim or as the runner, in an interpreter without site packages
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))


def main(argv: list[str]) -> int:
    """Run one command, the runner, or a step."""
    if argv and argv[0] == "runner":
        from ops.demo.scheduler import runner

        runner.main(Path(argv[1]), int(argv[2]))
        return 0
    if "M4OPS_EMBEDDED" not in os.environ:
        sys.stderr.write("ops.demo.scheduler: M4OPS_EMBEDDED is not set: it names the scheduler's folder\n")
        return 1
    if argv and argv[0] == "srun":
        from ops.demo.scheduler import srun

        return srun.run(argv[1:])
    return _command(argv)


def _command(argv: list[str]) -> int:
    from ops.demo.scheduler.commands import answer

    reads_script = bool(argv) and argv[0] == "sbatch" and not sys.stdin.isatty()
    stdin = sys.stdin.read() if reads_script and not _has_script(argv[1:]) else ""
    said = answer(argv, Path(os.environ["M4OPS_EMBEDDED"]), os.environ, Path.cwd(), stdin)
    sys.stdout.write(said.stdout)
    sys.stdout.flush()
    sys.stderr.write(said.stderr)
    return said.returncode


def _has_script(argv: list[str]) -> bool:
    """Whether sbatch gets its script by name or --wrap, and so must leave standard input alone."""
    from ops.demo.scheduler import options, sbatch
    from ops.demo.scheduler.words import Refused

    try:
        given, words = options.parse(sbatch.RULES, argv)
    except Refused:
        return True
    return bool(words) or any(name in ("wrap", "version") for name, _ in given)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
