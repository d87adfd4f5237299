"""The architecture's laws, read from the source: who may import whom, and what a pure room may touch.

A new module in ``ops`` gets its room here, or the test names it.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# A module imports only from its own room or from one above it.
ROOMS = {
    "words": {
        "", "model", "pace", "fields", "errors", "config", "resources", "jsontext", "hostlist", "placement", "secrecy",
        "policy", "catalogue", "deepspeed_rates", "schedules", "quantiles",
    },
    "readers": {
        "shell", "slurm", "discovery", "logs", "checkpoints", "evals", "journal", "snapshot", "recent", "fleet",
        "attempts", "nodes", "submitted", "disk", "started",
    },
    "judgement": {"detectors"},
    "intention": {"actions", "plan", "interventions"},
    "effects": {
        "state", "executor", "lease", "alerts", "store", "work", "crontab", "extract", "tick", "checked", "requests", "chain", "scrontab", "saves",
        "watch", "judging",
    },
    "edge": {"views", "cli", "demo", "__main__"},
}  # fmt: skip
ORDER = list(ROOMS)
ROOM_OF = {part: room for room, parts in ROOMS.items() for part in parts}

# The pure parts know words and these.
PURE = {
    "detectors": {"detectors"},
    "actions": {"actions"},
    "plan": {"plan", "actions"},
    "interventions": {"interventions", "plan", "actions"},
}
IMPURE_MODULES = {
    "os", "shutil", "subprocess", "io", "click", "time", "tempfile", "glob", "socket", "random",
}  # fmt: skip
IMPURE_CALLS = {
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "exists", "is_file", "is_dir", "iterdir",
    "stat", "unlink", "mkdir", "touch", "print", "input",
    "datetime.now", "datetime.today", "datetime.utcnow", "date.today",
}  # fmt: skip

PROCESS_MODULES = {"subprocess", "multiprocessing", "pty"}
PROCESS_CALLS = {
    "os.system",
    "os.popen",
    "os.fork",
    "os.posix_spawn",
    "os.posix_spawnp",
    "os.execv",
    "os.execve",
    "os.execvp",
}
SLOW_MODULES = {
    "torch", "deepspeed", "accelerate", "boto3", "botocore", "wandb", "submitit", "plotly", "rich", "yaml", "numpy", "jsonlines",
    "apprise",
}  # fmt: skip
VAGUE_MODULES = {"utils", "helpers", "common", "core"}
VAGUE_CLASSES = ("Manager", "Handler", "Service")
LONG_FILE = 400


@dataclass(frozen=True)
class Import:
    """One imported module, absolute; ``lazy`` if it happens inside a function or for types only."""

    module: str
    line: int
    lazy: bool


@dataclass(frozen=True)
class Module:
    """One source file of ``ops``; ``part`` is the word after ``ops.``, by which rooms are told apart."""

    path: str
    name: str
    tree: ast.Module

    @property
    def part(self) -> str:
        return part_of(self.name)

    @property
    def starts_processes(self) -> bool:
        return self.name == "ops.shell" or self.part == "demo"


def part_of(name: str) -> str:
    return name.partition(".")[2].partition(".")[0]


def parse(path: str, text: str) -> Module:
    parts = Path(path).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return Module(path, name, ast.parse(text, path))


def walk(node: ast.AST, lazy: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below ``node``, and whether an import of the module leaves it unexecuted."""
    for child in ast.iter_child_nodes(node):
        inside = lazy or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        inside = inside or (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test))
        yield child, inside
        yield from walk(child, inside)


def imports(module: Module, known: set[str]) -> Iterator[Import]:
    """What ``module`` imports. ``from ops.logs import tail`` is ``ops.logs.tail`` if that is a module."""
    for node, lazy in walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, lazy)
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield Import(full if full in known else base, node.lineno, lazy)


def absolute(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = module.name if module.path.endswith("__init__.py") else module.name.rpartition(".")[0]
    for _ in range(node.level - 1):
        package = package.rpartition(".")[0]
    return f"{package}.{node.module}" if node.module else package


def calls(module: Module) -> Iterator[tuple[str, str, int]]:
    """Called names as ``(dotted, last part, line)``."""
    for node, _ in walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            last = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            yield ast.unparse(node.func), last, node.lineno


def direction(module: Module, found: Import) -> str | None:
    target = part_of(found.module)
    if target not in ROOM_OF:
        return f"imports {found.module}, which is in no room"
    if module.part in PURE:
        if ROOM_OF[target] != "words" and target not in PURE[module.part]:
            return f"is pure and imports {found.module}"
    elif ORDER.index(ROOM_OF[target]) > ORDER.index(ROOM_OF[module.part]):
        return f"is in {ROOM_OF[module.part]} and imports {found.module} from {ROOM_OF[target]}, below it"
    return None


def foreign(module: Module, found: Import) -> str | None:
    top = found.module.partition(".")[0]
    if module.part in PURE and top in IMPURE_MODULES:
        return f"is pure and imports {found.module}"
    if top in PROCESS_MODULES and not module.starts_processes:
        return f"imports {found.module}; only ops/shell.py and ops/demo start processes"
    if top in SLOW_MODULES and not found.lazy:
        return f"imports {found.module} at its top; import it inside the function that needs it"
    return None


def import_faults(module: Module, known: set[str]) -> Iterator[str]:
    for found in imports(module, known):
        inner = found.module == "ops" or found.module.startswith("ops.")
        fault = direction(module, found) if inner else foreign(module, found)
        if fault:
            yield f"{module.path}:{found.line} {fault}"


def call_faults(module: Module) -> Iterator[str]:
    for dotted, last, line in calls(module):
        if module.part in PURE and (last in IMPURE_CALLS or dotted in IMPURE_CALLS):
            yield f"{module.path}:{line} is pure and calls {dotted}"
        if dotted in PROCESS_CALLS and not module.starts_processes:
            yield f"{module.path}:{line} calls {dotted}; only ops/shell.py and ops/demo start processes"


def name_faults(module: Module) -> Iterator[str]:
    if module.part not in ROOM_OF:
        yield f"{module.path} is in no room; give {module.part!r} one in {Path(__file__).name}"
    if VAGUE_MODULES & set(module.name.split(".")):
        yield f"{module.path} has a vague name; say what is in it"
    for node, _ in walk(module.tree):
        if isinstance(node, ast.ClassDef) and node.name.endswith(VAGUE_CLASSES):
            yield f"{module.path}:{node.lineno} class {node.name} has a vague name; say what it is"


def cycles(modules: list[Module], known: set[str]) -> Iterator[str]:
    graph = {m.name: {i.module for i in imports(m, known) if i.module in known} - {m.name} for m in modules}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        yield f"import cycle: {' <- '.join(error.args[1])}"


def faults(sources: Mapping[str, str]) -> list[str]:
    """All breaches in ``sources`` (path from the root → text), as ``path:line what``."""
    modules = [parse(path, text) for path, text in sources.items()]
    known = {module.name for module in modules}
    found = [fault for module in modules for fault in name_faults(module)]
    placed = [module for module in modules if module.part in ROOM_OF]
    found += [fault for module in placed for fault in (*import_faults(module, known), *call_faults(module))]
    return found + list(cycles(modules, known))


@pytest.fixture(scope="module")
def tree() -> dict[str, str]:
    return {str(p.relative_to(ROOT)): p.read_text() for p in sorted((ROOT / "ops").rglob("*.py"))}


def test_the_tree_keeps_the_rules(tree: dict[str, str]) -> None:
    assert len(tree) > 5
    found = faults(tree)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.filterwarnings("default")
def test_long_files_are_named(tree: dict[str, str]) -> None:
    for path, text in tree.items():
        if (lines := text.count("\n")) > LONG_FILE:
            warnings.warn(f"{path} has {lines} lines, more than {LONG_FILE}: does it hold two things?", stacklevel=1)


BAD = [
    ("ops/detectors/spike.py", "import os", "is pure and imports os"),
    ("ops/detectors/spike.py", "from ops.slurm import squeue", "is pure and imports ops.slurm"),
    ("ops/detectors/spike.py", "def f(p):\n    return open(p)", ":2 is pure and calls open"),
    ("ops/detectors/spike.py", "def f(p):\n    return p.read_text()", ":2 is pure and calls p.read_text"),
    ("ops/detectors/spike.py", "t = datetime.now(UTC)", "is pure and calls datetime.now"),
    ("ops/detectors/spike.py", "from ops.plan import Plan", "is pure and imports ops.plan"),
    ("ops/actions.py", "from .plan import Plan", "is pure and imports ops.plan"),
    ("ops/actions.py", "def f():\n    import shutil", ":2 is pure and imports shutil"),
    ("ops/plan.py", "from ops import interventions", "is pure and imports ops.interventions"),
    (
        "ops/interventions/rewind.py",
        "from ..checkpoints import reader",
        "is pure and imports ops.checkpoints",
    ),
    ("ops/model.py", "from ops.errors import E\nimport ops.slurm", ":2 is in words and imports ops.slurm"),
    (
        "ops/model.py",
        "if TYPE_CHECKING:\n    from ops.plan import Plan",
        ":2 is in words and imports",
    ),
    (
        "ops/logs/tail.py",
        "def f():\n    from ops.executor import apply",
        "is in readers and imports",
    ),
    ("ops/state.py", "import ops.cli", "is in effects and imports ops.cli"),
    ("ops/slurm.py", "import subprocess", "imports subprocess; only ops/shell.py"),
    ("ops/executor/run.py", "import os\nos.system('ls')", ":2 calls os.system"),
    ("ops/demo/trainer.py", "import torch.nn as nn", "imports torch.nn at its top"),
    ("ops/config.py", "try:\n    import yaml\nexcept ImportError:\n    pass", ":2 imports yaml at its top"),
    ("ops/cli/utils.py", "", "has a vague name"),
    ("ops/alerts/mail.py", "class MailManager: ...", "class MailManager has a vague name"),
    ("ops/telepathy.py", "", "is in no room"),
]


@pytest.mark.parametrize(("path", "text", "expected"), BAD)
def test_a_breach_is_seen(path: str, text: str, expected: str) -> None:
    parts = ("actions", "plan", "slurm", "interventions/__init__", "checkpoints/__init__", "executor")
    sources = {f"ops/{part}.py": "" for part in parts} | {path: text}
    found = faults(sources)
    assert len(found) == 1
    assert expected in found[0]
    assert found[0].startswith(path)


def test_a_cycle_is_seen() -> None:
    sources = {
        "ops/logs/tail.py": "from . import read",
        "ops/logs/read.py": "def f():\n    import ops.logs.tail",
    }
    assert [fault.split(":")[0] for fault in faults(sources)] == ["import cycle"]


GOOD = {
    "ops/shell.py": "import subprocess",
    "ops/demo/scheduler.py": "import subprocess\nfrom ops.cli import main",
    "ops/demo/trainer.py": "def train():\n    import torch",
    "ops/cli/__init__.py": "def main():\n    from rich.table import Table",
    "ops/logs/tail.py": "from ops.checkpoints import list_checkpoints\nfrom pathlib import Path",
    "ops/checkpoints/__init__.py": "from ops.checkpoints.layout import complete",
    "ops/checkpoints/layout.py": "from ops.model import Checkpoint",
    "ops/interventions/rewind.py": "from ops.actions import Move\nfrom ops.plan import Plan",
    "ops/interventions/ladder.py": "from .rewind import Rewind",
}


def test_what_is_allowed_is_not_reported() -> None:
    assert faults(GOOD) == []
