"""Programs as m4ops starts them: what they say, how they end, and that no pipe and no process is left."""

import os
from pathlib import Path

import pytest

from ops import shell

LONG = 60.0


def sh(script: str, timeout: float = LONG, **env: str) -> shell.Answer:
    return shell.run(("sh", "-c", script), timeout, {**os.environ, **env})


def test_what_a_program_says_and_how_it_ends():
    assert sh("echo out; echo err >&2; exit 3") == (3, "out\n", "err\n")
    assert sh("kill -9 $$").returncode == -9
    assert sh("cat") == (0, "", "")  # it is given nothing to read
    assert sh("echo $SAID", SAID="ü") == (0, "ü\n", "")
    assert sh("printf '\\377'").stdout == "\N{REPLACEMENT CHARACTER}"


def test_both_ends_are_heard_however_much_is_said():
    said = sh("yes | head -c 3000000; yes | head -c 300000 >&2")  # `yes` ends by SIGPIPE, in silence
    assert (said.returncode, len(said.stdout), len(said.stderr)) == (0, 3_000_000, 300_000)


def test_what_cannot_be_started(tmp_path: Path):
    assert shell.run(("no-such-program",), LONG) == (127, "", "no-such-program: command not found")
    (plain := tmp_path / "plain").write_text("#!/bin/sh\n")
    assert shell.run((str(plain),), LONG) == (126, "", f"{plain}: Permission denied")
    (odd := tmp_path / "odd").write_text("what is this")
    odd.chmod(0o755)
    assert shell.run((str(odd),), LONG) == (126, "", f"{odd}: Exec format error")


@pytest.mark.parametrize(
    "script", ["sleep 1000", "sleep 5 & wait", "exec >&- 2>&-; sleep 1000", "trap '' TERM; sleep 1000"]
)
def test_who_does_not_end_is_ended(script: str, tmp_path: Path):
    said = sh(f"echo $$ > {tmp_path}/pid; {script}", timeout=1)
    assert said == (124, "", "sh did not answer within 1 s")
    pid = (tmp_path / "pid").read_text().strip()
    assert not pid or not Path(f"/proc/{pid}").exists()


def test_nothing_is_left_open():
    before = os.listdir("/proc/self/fd")
    for script, timeout in (("true", LONG), ("sleep 1000", 0.1)):
        sh(script, timeout)
    shell.run(("no-such-program",), LONG)
    assert os.listdir("/proc/self/fd") == before
