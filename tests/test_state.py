"""Bookkeeping: kept whole or begun anew, with the run where one may write, at home where not."""

import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops import state
from ops.alerts.words import Episode, Health, Message, News, Pending
from ops.errors import Busy, OpsError
from ops.model import Finding, Run, Severity
from ops.state import Memory

NOBODY = 65534


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "tr_190_01_64n"
    folder.mkdir()
    return Run(folder, folder.name)


def full_memory() -> Memory:
    finding = Finding(
        "loss-spike", Severity.CRITICAL, "Verlust ×3 \udc80", ("line 12: loss 9.1", "…"), 16250, 12, "node-7", "loss-spikes.md", ("m4ops rewind",)
    )  # fmt: skip
    news = News("opened", finding, 1716883872.25, 1716883800.0, True)
    message = Message((news,), 1716883872.25, "tr_190_01_64n", "/gpfs/tr_190", "login2", "3fj2k1ab")
    return Memory(
        cursor={"path": "main_log.txt", "offset": 2**40, "lines": [1, 2]},
        detectors={"loss": {"window": [1.5, float("inf")], "seen": None}},
        episodes=(
            Episode(finding, 1.5, 2.5, 3, Severity.WARNING, 1.75, 2.25, 2, True),
            Episode(Finding("a", Severity.UNKNOWN, "b"), 0, 0),
        ),
        outbox=(Pending(message, ("0123456789abcdef",), True),),
        held=(news,),
        pace=1716884000.5,
        sinks=(Health("0123456789abcdef", "https://h/***", 1.5, 2.5, 3, "it answered 500"),),
        vetted=("0123456789abcdef",),
    )


def as_nobody(what: Callable[[], str]) -> str:
    """The answer of a function, asked by a user who owns nothing: root ignores modes."""
    if os.getuid():
        return what()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        answer = "died"
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = what()
        finally:
            os.write(writer, answer.encode())
            os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return answer


def test_what_is_saved_is_loaded(run: Run) -> None:
    assert state.load(run) == Memory()
    state.save(run, full_memory())
    assert state.load(run) == full_memory()
    assert [p.name for p in (run.dir / ".m4ops" / "state").iterdir()] == ["memory.json"]


def test_a_torn_file_is_told_and_begun_anew_wherever_it_is_torn(run: Run) -> None:
    state.save(run, full_memory())
    file = state.folder(run) / "memory.json"
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        memory = state.load(run)
        assert memory == Memory(problem=memory.problem)
        assert str(file) in memory.problem and "torn" in memory.problem
    state.save(run, memory)
    assert state.load(run) == Memory()


def damaged() -> list[object]:
    """What something else, or another version, may have left there: each field gone, or of another kind."""
    whole = json.loads(json.dumps(state._to_json(full_memory())))
    cases: list[object] = [[], 5, None, "text", {}, whole | {"version": 1}, whole | {"m4ops": "plan"}]
    for wrong in (None, 5, "x", [[]], [{}], [None]):
        cases += [whole | {name: wrong} for name in ("cursor", "detectors", "episodes", "outbox", "held", "sinks")]
    for name in whole["episodes"][0]["finding"]:
        less = json.loads(json.dumps(whole))
        del less["episodes"][0]["finding"][name]
        cases.append(less)
    for name, wrong in (("since", "x"), ("told", 99), ("ticks", float("inf")), ("finding", [])):
        other = json.loads(json.dumps(whole))
        other["episodes"][0][name] = wrong
        cases.append(other)
    return cases


def test_foreign_content_is_told_and_begun_anew(run: Run) -> None:
    state.save(run, Memory())
    file = state.folder(run) / "memory.json"
    for case in damaged():
        file.write_text(json.dumps(case))
        assert state.load(run).problem, case
        assert state.load(run).episodes == ()
    file.write_bytes(b"[" * 100_000)
    assert "torn" in state.load(run).problem
    file.unlink()
    file.mkdir()
    assert "cannot be read" in state.load(run).problem


def test_a_full_disk_leaves_what_was_there(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    state.save(run, full_memory())

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OpsError, match="No space left"):
            state.save(run, Memory())
    assert state.load(run) == full_memory()
    assert [p.name for p in state.folder(run).iterdir()] == ["memory.json"]


@pytest.mark.parametrize(("mode", "of_folder", "of_file"), [(0o2775, 0o2775, 0o664), (0o755, 0o755, 0o644)])
def test_the_group_keeps_its_access(run: Run, mode: int, of_folder: int, of_file: int) -> None:
    run.dir.chmod(mode)
    before = os.umask(0o077)
    try:
        state.save(run, Memory())
    finally:
        os.umask(before)
    folder = run.dir / ".m4ops" / "state"
    assert {p.stat().st_mode & 0o7777 for p in (folder.parent, folder)} == {of_folder}
    assert (folder / "memory.json").stat().st_mode & 0o7777 == of_file


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A temporary folder that everybody may enter; pytest keeps its own to their owner."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_viewer_keeps_his_own_books(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [Run(open_folder / parent / "tr_1", "tr_1") for parent in ("a", "b")]
    home = open_folder / "home"
    home.mkdir()
    home.chmod(0o777)
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    for run in runs:
        run.dir.mkdir(parents=True)
        run.dir.chmod(0o555)

    def look() -> str:
        for run in runs:
            state.save(run, Memory(cursor={"of": str(run.dir)}))
        return "\n".join(f"{state.folder(run)} {state.load(run).cursor['of']}" for run in runs)

    lines = [line.split() for line in as_nobody(look).splitlines()]
    assert [line[1] for line in lines] == [str(run.dir) for run in runs]
    assert {Path(line[0]).parent for line in lines} == {home / "m4ops"}
    assert all(Path(line[0]).name.startswith("tr_1-") for line in lines)
    assert [list(run.dir.iterdir()) for run in runs] == [[], []]


def test_without_xdg_the_state_folder_is_in_the_home(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setenv("HOME", "/home/alice")
    for value in ("", "relative/is/ignored"):
        monkeypatch.setenv("XDG_STATE_HOME", value)
        assert state.folder(run).parent == Path("/home/alice/.local/state/m4ops")


def test_one_tick_at_a_time(run: Run) -> None:
    with state.lease(run, "tick", 60), pytest.raises(Busy, match="tick"), state.lease(run, "tick", 60):
        pass
    with state.lease(run, "tick", 60):
        pass
