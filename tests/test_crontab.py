"""The crontab line: one a run, nobody else's touched, and what cron makes of it is the command that was meant."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ops import crontab
from ops.errors import BadInput, OpsError
from ops.model import Run
from ops.shell import Answer

THEIRS = (
    "MAILTO=alice\n\n# m4ops:/not/a/line\n  0 3 * * *\tbackup 100\\% # ümlaut\r\n#*/5 * * * * x # m4ops:/scratch/tr_1"
)
TAG = "# m4ops:/scratch/tr_1"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "tr_190", "tr_190")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `crontab` program that keeps this file, and refuses what Debian's refuses."""
    kept = tmp_path / "kept"
    program = tmp_path / "bin" / "crontab"
    program.parent.mkdir()
    program.write_text(
        f"""#!/bin/sh
if [ "$1" = -l ]; then
    [ -e '{kept}' ] || {{ echo "no crontab for alice" >&2; exit 1; }}
    exec cat '{kept}'
fi
if [ -s "$1" ] && [ "$(tail -c 1 "$1" | wc -l)" -eq 0 ]; then
    echo "new crontab file is missing newline before EOF, can't install." >&2; exit 1
fi
echo written >>'{kept}.writes'
exec cp "$1" '{kept}'
"""
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return kept


def test_the_line_is_there_once_however_often_it_is_installed(run: Run, fake: Path) -> None:
    assert crontab.installed(run) is None
    line = crontab.install(run, 5)
    assert crontab.install(run, 5) == line
    assert fake.read_text() == f"{line}\n"
    assert fake.with_name("kept.writes").read_text() == "written\n"
    assert crontab.installed(run) == line
    other = crontab.install(run, 10)
    assert fake.read_text() == f"{other}\n" and other.startswith("*/10 * * * * cd / && ")


def test_every_run_has_its_own_line(fake: Path, tmp_path: Path) -> None:
    runs = [Run(tmp_path / name, name) for name in ("tr_1", "tr_11", "1")]
    lines = [crontab.install(run, 5) for run in runs]
    assert fake.read_text().splitlines() == lines
    assert crontab.remove(runs[0]) and not crontab.remove(runs[0])
    assert [crontab.installed(run) for run in runs] == [None, *lines[1:]]


def test_other_lines_stay_byte_for_byte(run: Run, fake: Path) -> None:
    fake.write_bytes(THEIRS.encode())
    line = crontab.install(run, 5)
    assert fake.read_bytes() == f"{THEIRS}\n{line}\n".encode()
    crontab.remove(run)
    assert fake.read_bytes() == f"{THEIRS}\n".encode()


def test_a_line_somebody_commented_out_is_theirs() -> None:
    after = crontab.with_line(THEIRS + "\n", "*/5 * * * * new", TAG)
    assert after == f"{THEIRS}\n*/5 * * * * new {TAG}\n"


def test_doubled_lines_become_one_in_their_place() -> None:
    before = f"a\nold {TAG}\nb\nolder {TAG}\n"
    assert crontab.with_line(before, "new", TAG) == f"a\nnew {TAG}\nb\n"


@given(st.text(alphabet=st.sampled_from("a #%*\n\r\t\x0b\u2028" + TAG), max_size=80), st.booleans())
def test_any_crontab_gets_one_line_and_keeps_the_rest(text: str, once: bool) -> None:
    text = crontab.without_line(text, TAG)
    before = crontab.with_line(text, "old", TAG) if once else text
    after = crontab.with_line(before, "new", TAG)
    assert after.split("\n").count(f"new {TAG}") == 1
    assert crontab.with_line(after, "new", TAG) == after
    assert crontab.without_line(after, TAG) == text + ("\n" if text and not text.endswith("\n") else "")


NAMES = ["plain", "with space", "50%", "it's", '"', "$HOME`id`", "a#b", "ä\\%\\", "; exit 3;", "!x", "* ?"]


@pytest.mark.parametrize("name", NAMES)
def test_what_cron_makes_of_the_line_is_what_was_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The line, read as crontab(5) says and run as cron runs it: bare environment, /bin/sh."""
    run = Run(tmp_path / name, name)
    record = tmp_path / "py thon%"
    record.write_text('#!/bin/sh\nexport -p >"$0.env"\npwd >"$0.argv"\nprintf "%s\\n" "$@" >>"$0.argv"\n')
    record.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(record))
    env = {"PATH": "/usr/bin:/bin:/opt/100%/bin", "SLURM_CONF": "/etc/s c.conf", "M4OPS_EMBEDDED": "", "HOME": "/x"}
    line = f"{crontab.line(run, 7, ('--sink', 'mailto:a b'), env)} {crontab.tag(run)}"
    fields = line.split(" ", 5)
    assert fields[:5] == ["*/7", "*", "*", "*", "*"]
    command = _as_cron_reads(fields[5])
    done = subprocess.run(["/bin/sh", "-c", command], env={"HOME": "/h"}, check=True, capture_output=True, text=True)
    assert done.stdout == done.stderr == ""
    argv = Path(f"{record}.argv").read_text().splitlines()
    assert argv == ["/", "-P", "-m", "ops.cli", "--run", str(run.dir), "check", "--every", "7", "--sink", "mailto:a b"]
    exported = Path(f"{record}.env").read_text().replace('"', "'")
    assert f"PATH='{env['PATH']}'" in exported and f"SLURM_CONF='{env['SLURM_CONF']}'" in exported
    assert "HOME='/h'" in exported and "M4OPS_EMBEDDED" not in exported


def _as_cron_reads(command: str) -> str:
    r"""`\%` is a percent sign; a bare `%` ends the command (crontab(5))."""
    kept, position = "", 0
    while position < len(command) and command[position] != "%":
        escaped = command[position : position + 2] == r"\%"
        kept += "%" if escaped else command[position]
        position += 2 if escaped else 1
    return kept


def test_a_relative_run_is_written_with_its_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run(Path("tr_1"), "tr_1")
    assert f"--run {tmp_path / 'tr_1'} check" in crontab.line(run, 5)
    assert crontab.tag(run) == f"# m4ops:{tmp_path / 'tr_1'}"


@pytest.mark.parametrize("minutes", [0, 60, -5])
def test_a_period_cron_cannot_keep_is_refused(run: Run, fake: Path, minutes: int) -> None:
    with pytest.raises(BadInput, match="1 to 59"):
        crontab.install(run, minutes)
    assert not fake.exists()


def test_a_line_break_cannot_smuggle_a_line_in(fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="line break"):
        crontab.install(Run(tmp_path / "a\n* * * * * evil", "a"), 5)
    monkeypatch.setenv("SLURM_CONF", "/etc/x\n* * * * * evil")
    with pytest.raises(BadInput, match="line break"):
        crontab.install(Run(tmp_path / "a", "a"), 5)
    assert not fake.exists()


def answers(*given: Answer) -> Callable[..., Answer]:
    """A shell that gives these answers in turn, and fails the test when asked more."""
    left = iter(given)
    return lambda argv, timeout: next(left)


def test_no_crontab_program_is_said_with_the_package(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for ask in (crontab.installed, crontab.remove, lambda run: crontab.install(run, 5)):
        with pytest.raises(OpsError) as error:
            ask(run)
        assert "no crontab program" in error.value.what and "apt-get install cron" in error.value.hint


def test_a_crontab_that_cannot_be_read_is_not_overwritten(run: Run) -> None:
    refused = Answer(1, "", "You (alice) are not allowed to use this program (crontab)")
    with pytest.raises(OpsError, match="not allowed"):
        crontab.install(run, 5, shell=answers(refused))
    with pytest.raises(OpsError, match="did not answer"):
        crontab.install(run, 5, shell=answers(Answer(124, "", "crontab did not answer within 30 s")))


def test_a_crontab_it_would_damage_is_left_alone(run: Run, fake: Path) -> None:
    latin = "# caf\xe9\n".encode("latin-1")
    fake.write_bytes(latin)
    with pytest.raises(OpsError, match="no UTF-8"):
        crontab.install(run, 5)
    assert fake.read_bytes() == latin


def test_a_refused_write_is_an_error(run: Run) -> None:
    full = Answer(1, "", "crontab: write error: No space left on device")
    with pytest.raises(OpsError, match="No space left") as error:
        crontab.install(run, 5, shell=answers(Answer(0, "", ""), full))
    assert "as it was" in error.value.what


@pytest.fixture
def real_crontab(need: Callable[[str, str], str]) -> Iterator[Callable[[], bytes]]:
    """The user's real crontab, put back after the test."""
    program = need("crontab", "cron")

    def read() -> bytes:
        return subprocess.run([program, "-l"], capture_output=True, check=False).stdout

    before = read()
    yield read
    if read() != before:
        subprocess.run([program, "-"] if before else [program, "-r"], input=before, check=True)


def test_the_real_crontab_takes_the_line_and_gives_it_back(run: Run, real_crontab: Callable[[], bytes]) -> None:
    before = real_crontab()
    line = crontab.install(run, 5, ("--sink", "mailto:50%@example.org"))
    assert crontab.installed(run) == line
    assert real_crontab() == before + line.encode() + b"\n"
    assert crontab.remove(run)
    assert real_crontab() == before


def test_the_command_line_named_in_the_line_exists() -> None:
    """`python -m ops.cli` is what cron will start."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "ops.cli", "check", "--help"],
        cwd="/", capture_output=True, text=True, check=False, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
