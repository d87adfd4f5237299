"""What the pages say is true: their commands run, with the output and exit codes shown; their files exist."""

import ast
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import docs_reference
import docs_run
import pytest

from ops import config
from ops.cli import COMMANDS, cli
from ops.demo.scheduler.stop import stop

ROOT = docs_run.ROOT
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "runbooks").glob("*.md"))]
TEXTS = [*PAGES, ROOT / "CHANGELOG.md"]
PATIENCE = 30.0
"""Seconds for which a job may take its time to start or to end."""
HEADINGS = ["Symptom", "Confirm", "Act", "Verify", "Undo"]
NOT_RUN = {
    "make demo": "takes minutes and installs packages; what it runs is tested in tests/test_demo.py",
    "make test": "is what runs this test",
    "m4ops demo --slurm -- --partition=cpu --account=abc": "is played on a lab cluster by tests/test_demo_slurm.py",
    'eval "$(make -s slurm-lab)"': "is played on a lab cluster by tests/test_demo_slurm.py",
    "m4ops demo --slurm": "is played on a lab cluster by tests/test_demo_slurm.py",
    "python -m tests.slurm_lab down": "is what tests/test_slurm_lab.py runs",
    "pip install m4ops": "needs a package index; make test installs the same project",
}
"""The commands of console blocks that no test here runs, each with the reason."""


@dataclass(frozen=True)
class Step:
    """One command of a console block, what is shown below it, and the exit code that it ends with."""

    command: str
    shown: tuple[str, ...]
    exit_code: int


@dataclass(frozen=True)
class Story:
    """The commands that follow one another on a page in one run."""

    page: Path
    number: int
    run: str
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        return f"{self.page.stem}-{self.number}-{self.run.replace(' ', '_') or 'no_run'}"


def stories(page: Path) -> Iterator[Story]:
    """A page cut at its `<!-- run: … -->` comments."""
    parts = re.split(r"<!-- run: (.+?) -->", "\n" + page.read_text())
    for number, (run, text) in enumerate(zip(["", *parts[1::2]], parts[::2], strict=True)):
        blocks = re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        if steps := tuple(step for block in blocks for step in steps_of(block)):
            yield Story(page, number, run, steps)


def steps_of(block: str) -> Iterator[Step]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.replace("\\\n", " ").splitlines()
        code = re.search(r"# exit (\d)", command)
        yield Step(re.sub(r"\s+#.*", "", command), tuple(shown), int(code[1]) if code else 0)


STORIES = [story for page in PAGES for story in stories(page)]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / docs_run.NAME
    docs_run.save_checkpoints(folder)
    return folder


@pytest.mark.parametrize("story", [s for s in STORIES if s.run], ids=str)
def test_commands_of_a_page_do_what_it_shows(story: Story, saved: Path, tmp_path: Path) -> None:
    try:
        page = docs_run.prepare(saved, tmp_path, story.run)
        for step in story.steps:
            code, said = page.bash(step.command)
            end = time.monotonic() + PATIENCE
            while looks(step.command) and not matches(step.shown, said) and time.monotonic() < end:
                code, said = page.bash(step.command)
            assert code == step.exit_code, f"$ {step.command}\n{said}\nexit {code}"
            assert matches(step.shown, said), f"$ {step.command}\n{said}\nis not what is shown:\n" + "\n".join(
                step.shown
            )
    finally:
        stop(tmp_path / "slurm")


def looks(command: str) -> bool:
    """Whether it changes nothing: a reader who does not see yet what the page shows looks again."""
    program, word = (*shlex.split(command), "")[:2]
    return program == "squeue" or (program == "m4ops" and word in COMMANDS["Look"])


def matches(shown: tuple[str, ...], said: str) -> bool:
    """Whether the output is what is shown. `…` stands for anything; lines may break elsewhere, as paths differ."""
    pattern = re.escape(" ".join(" ".join(shown).split())).replace("…", ".*").replace("\\ .*", "(?: .*)?")
    return not shown or re.fullmatch(pattern, " ".join(said.split())) is not None


def test_every_command_is_run_or_named_with_a_reason() -> None:
    outside = [step.command for story in STORIES if not story.run for step in story.steps]
    assert sorted(outside) == sorted(NOT_RUN)


def test_an_ellipsis_stands_for_more_and_nothing_else_does() -> None:
    assert matches(("a  … c", "…", "z"), "a b\nc\n1\n2\nz\n") and matches(("a", "…", "z"), "a\nz")
    assert matches(("a", "…"), "a\nb\nc") and matches(("…", "c"), "a\nb\nc") and matches(("a", "…"), "a\n")
    assert not matches(("a",), "a\nb") and not matches(("b",), "a\nb") and not matches(("a", "…", "z"), "a\nb")


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent.name == "runbooks"], ids=lambda p: p.stem)
def test_a_runbook_page_is_symptom_confirm_act_verify_undo(page: Path) -> None:
    text = page.read_text()
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == HEADINGS
    assert any(story.run for story in stories(page))
    assert f"runbooks/{page.name}" in (ROOT / "README.md").read_text(), "whoever looks for the symptom finds it"


def test_every_page_that_a_finding_names_exists() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "ops").rglob("*.py"))
    named = set(re.findall(r'(?:runbook=|RUNBOOK = )"([a-z-]+)"', sources))
    assert named and named <= {page.stem for page in PAGES}


@pytest.mark.parametrize("page", TEXTS, ids=lambda p: p.stem)
def test_links_and_named_files_exist(page: Path) -> None:
    text = page.read_text()
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    anchors = {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", text, re.M)
    }
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", prose):
        path, _, anchor = target.partition("#")
        assert not path or (page.parent / path).exists(), target
        assert not anchor or path or anchor in anchors, target
    tops = "|".join(re.escape(entry.name) for entry in docs_reference.entries(ROOT))
    for name in re.findall(rf"`((?:{tops})(?:/[\w./-]*)?)`", prose):
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("page", docs_reference.PAGES, ids=lambda p: p.stem)
def test_generated_parts_are_current(page: Path) -> None:
    assert page.read_text() == docs_reference.current(page), "run `python tests/docs_reference.py`"


def test_every_kind_that_a_detector_raises_is_in_the_catalogue() -> None:
    raised = set()
    for path in (ROOT / "ops" / "detectors").glob("*.py"):
        for call in [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]:
            if isinstance(call.func, ast.Name) and call.func.id == "Finding":
                said = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "kind")]
                raised |= {str(value.value) for value in said if isinstance(value, ast.Constant)}
    assert len(raised) > 15
    assert raised <= set(docs_reference.catalogue())


def mentions(text: str) -> Iterator[str]:
    """What a page says after `m4ops` where that is a command: in code spans and console blocks."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield from (
            step.command.removeprefix("m4ops ") for step in steps_of(block) if step.command.startswith("m4ops ")
        )
    yield from re.findall(r"`m4ops ([^`]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", TEXTS, ids=lambda p: p.stem)
def test_no_page_mentions_a_command_or_option_that_is_not_there(page: Path) -> None:
    handwritten = re.sub(r"(<!-- commands:).*(<!-- /commands -->)", "", page.read_text(), flags=re.DOTALL)
    for mention in mentions(handwritten):
        assert not unknown(mention), f"m4ops {mention}: {unknown(mention)}"
    prose = re.sub(r"^```.*?^```$", "", handwritten, flags=re.DOTALL | re.MULTILINE)
    for option in re.findall(r"`(--[a-z-]+)[^`]*`", prose):
        assert option in {*all_options(), "--exclude", "--signal"}, option


def test_findings_consider_only_commands_that_are_there() -> None:
    for path in sorted((ROOT / "ops" / "detectors").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and str(node.value).startswith("m4ops "):
                assert not unknown(str(node.value).removeprefix("m4ops ")), f"{path.name}: {node.value}"


def unknown(mention: str) -> str:
    """The first word of a command line that m4ops does not know; empty when it knows all."""
    words = shlex.split(mention)
    words = words[: words.index("--")] if "--" in words else words  # what follows is another program's
    while words and words[0] == "--run":
        words = words[2:]
    command: click.Command = cli
    while words and isinstance(command, click.Group) and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        if found is None:
            return words[0]
        command, words = found, words[1:]
    known = {name for p in command.get_params(click.Context(command)) for name in (*p.opts, *p.secondary_opts)}
    return next((w for w in words if re.match(r"--?[a-z]", w) and w.partition("=")[0] not in known), "")


def all_options() -> set[str]:
    listed = [command for section in COMMANDS.values() for _, command in docs_reference.commands_of(section)]
    return {name for command in (cli, *listed) for p in command.get_params(click.Context(command)) for name in p.opts}


def test_the_list_of_commands_says_what_each_command_says() -> None:
    for section in COMMANDS.values():
        for name, (_, about) in section.items():
            command = cli.get_command(click.Context(cli), name)
            assert command is not None and command.help is not None
            assert " ".join(command.help.split("\n\n")[0].split()) == about, name


def test_every_schema_of_the_json_that_m4ops_prints_is_named() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "ops").rglob("*.py"))
    schemas = set(re.findall(r"`(m4ops\.[a-z-]+/\d+)`|\"(m4ops\.[a-z-]+/\d+)\"", sources))
    named = {name for page in PAGES for name in re.findall(r"`(m4ops\.[a-z-]+/\d+)`", page.read_text())}
    assert named == {a or b for a, b in schemas}


def test_the_example_of_a_configuration_is_one(tmp_path: Path) -> None:
    examples = [e for page in PAGES for e in re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.DOTALL | re.M)]
    assert len(examples) > 3
    for example in examples:
        (tmp_path / config.FILE).write_text(example)
        assert config.load(tmp_path / config.FILE) != config.Config()
