"""The generated parts of the pages: README's tree, the command reference, the keys of m4ops.toml, the kinds of findings.

    python tests/docs_reference.py

writes them anew between their markers; `tests/test_docs.py` fails when they are stale.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

import click

from ops.catalogue import kinds as catalogue
from ops.cli import COMMANDS, cli

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 112
"""Characters of a docstring's sentence that the tree shows whole."""
ABOUT = {
    ".ci/": "what a continuous integration runs: `make test`, and the Debian packages it needs",
    ".gitignore": "what is made here and never committed",
    ".pre-commit-config.yaml": "ruff and mypy before a commit",
    "CHANGELOG.md": "what each version brought",
    "LICENSE": "Apache 2.0",
    "Makefile": "make demo, make test, and what they need",
    "README.md": "this page",
    "bench/": "one program a figure",
    "constraints.txt": "the versions m4ops is developed and tested with",
    "demo.svg": "the picture above, rendered from a real run by `m4ops demo --svg demo.svg`",
    "docs/": "every command and setting, how the check judges, and what was measured by which program",
    "ops/": "the package; the distribution and the command are called m4ops",
    "pyproject.toml": "package, dependencies, ruff, mypy, pytest",
    "runbooks/": "one page a symptom: Symptom, Confirm, Act, Verify, Undo; a test runs every command",
    "slurm_templates/": "job scripts; parameters travel as sbatch flags and exported variables",
    "tests/": "the suite, and the programs it needs",
    "ops/checkpoints/": "What a checkpoint holds, read without torch and without running a pickle",
}
"""What the entries are that have no docstring of their own."""


def entries(folder: Path) -> Iterator[Path]:
    """The files and folders of the project in a folder; not what tools leave there, and no empty folder."""
    ignored = [line.strip().rstrip("/") for line in (ROOT / ".gitignore").read_text().splitlines() if line.strip()]
    for path in sorted(folder.iterdir(), key=lambda p: (p.is_file(), p.name)):
        made = path.name == ".git" or any(fnmatch(path.name, pattern) for pattern in ignored)
        if not made and (path.is_file() or any(entries(path))):
            yield path


def tree() -> str:
    """Every top-level entry, and every module of ops with the first sentence of its docstring."""
    rows = list(_rows(ROOT, 0))
    column = max(len(name) for name, _ in rows) + 2
    return "```text\n" + "\n".join(f"{name:<{column}}{about}" for name, about in rows) + "\n```"


def _rows(folder: Path, depth: int) -> Iterator[tuple[str, str]]:
    for path in entries(folder):
        relative = str(path.relative_to(ROOT)) + ("/" if path.is_dir() else "")
        if (depth and not (path.is_dir() or path.suffix == ".py")) or path.name == "__init__.py":
            continue
        yield "  " * depth + path.name + ("/" if path.is_dir() else ""), ABOUT.get(relative) or _sentence(path)
        if path.is_dir() and relative.startswith("ops/"):
            yield from _rows(path, depth + 1)


def _sentence(path: Path) -> str:
    """The first sentence of a module's docstring, in one line."""
    source = path / "__init__.py" if path.is_dir() else path
    text = ast.get_docstring(ast.parse(source.read_text())) if source.is_file() else None
    if not text:
        raise SystemExit(f"{source}: no docstring; give it one, or an entry in ABOUT of {__file__}")
    sentence = re.split(r"(?<=[.?]) ", text.split("\n\n")[0].replace("\n", " "))[0]
    return (sentence if len(sentence) <= LONGEST else re.split(r"[:;] ", sentence)[0]).removesuffix(".")


def config_keys() -> str:
    """The keys of m4ops.toml with the docstrings of `ops.config.Config`."""
    module = ast.parse((ROOT / "ops" / "config.py").read_text())
    body = next(n for n in module.body if isinstance(n, ast.ClassDef) and n.name == "Config").body
    lines, names = ["| key | meaning |", "| --- | --- |"], []
    for node in body[1:]:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(f"`{node.target.id}`")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines.append(f"| {', '.join(names)} | {' '.join(str(node.value.value).split())} |")
            names = []
    return "\n".join(lines)


def commands() -> str:
    """Every command with its docstring, arguments and options, from click itself."""
    found = {section: list(commands_of(names)) for section, names in COMMANDS.items()}
    listed = [option for group in found.values() for _, command in group for option in options(command)]
    shared = {option: text for option, text in listed if listed.count((option, text)) > 2}
    parts = [_command("m4ops", cli, {}), "Options of several commands:\n\n" + _bullets(list(shared.items()))]
    for section, group in found.items():
        parts += [f"### {section}", *(_command(name, command, shared) for name, command in group)]
    return "\n\n".join(parts)


def commands_of(names: Iterable[str]) -> Iterator[tuple[str, click.Command]]:
    """The commands of those names and their sub-commands, each with its whole name."""
    for name in names:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        yield f"m4ops {name}", command
        if isinstance(command, click.Group):
            yield from ((f"m4ops {name} {sub}", found) for sub, found in command.commands.items())


def options(command: click.Command) -> list[tuple[str, str]]:
    """How click shows each option, with its help; without --help, which all have."""
    context = click.Context(command)
    shown = [p.get_help_record(context) for p in command.get_params(context) if "--help" not in p.opts]
    return [record for record in shown if record and record[0].startswith("-")]


def _command(name: str, command: click.Command, shared: Mapping[str, str]) -> str:
    usage = " ".join([name, *command.collect_usage_pieces(click.Context(command))])
    paragraphs = [" ".join(p.split()) for p in (command.help or "").split("\n\n")]
    own = [(option, text) for option, text in options(command) if shared.get(option) != text]
    also = [f"`{option}`" for option, text in options(command) if shared.get(option) == text]
    parts = [f"#### `{usage}`", *paragraphs, _bullets(own), "Also: " + ", ".join(also) + "." if also else ""]
    return "\n\n".join(part for part in parts if part)


def _bullets(items: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- `{option}`: {text.strip()}" for option, text in items)


def kinds() -> str:
    """Every kind of finding with its severity when fresh, and its meaning."""
    rows = [f"| `{kind.name}` | {kind.severity.name} | {kind.role} | {kind.meaning} |" for kind in catalogue().values()]
    return "\n".join(["| kind | severity | role | meaning |", "| --- | --- | --- | --- |", *rows])


DOCS = ROOT / "docs"
PAGES: Mapping[Path, tuple[str, Callable[[], str]]] = {
    ROOT / "README.md": ("tree", tree),
    DOCS / "commands.md": ("commands", commands),
    DOCS / "configuration.md": ("config", config_keys),
    DOCS / "monitor.md": ("kinds", kinds),
}
"""The pages that have a generated part, its name, and what makes it."""


def current(page: Path) -> str:
    """The page with its generated part as it must be."""
    name, make = PAGES[page]
    text = page.read_text()
    pattern = re.compile(rf"(<!-- {name}: .*?-->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{page} lost its marker <!-- {name}: … -->")
    return pattern.sub(lambda found: f"{found[1]}\n{make()}\n\n{found[2]}", text)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(current(page))
