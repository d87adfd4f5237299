"""Leases: one holder at a time, among real processes, and no stale one is taken over twice."""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ops import lease
from ops.errors import Busy, OpsError

Start = Callable[..., subprocess.Popen[str]]
LONG_AGO = 1_000_000.0


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / ".m4ops" / "lock"


def abandon(place: Path) -> lease.Holder:
    """A lease whose process has ended without giving it back."""
    code = "import sys, pathlib; from ops import lease; lease.acquire(pathlib.Path(sys.argv[1]), 'died', 60)"
    subprocess.run([sys.executable, "-c", code, str(place)], check=True)
    holder = lease.look(place)
    assert holder
    return holder


def elsewhere(place: Path) -> None:
    """Let the lease look as if a process on another host held it."""
    holder = lease.look(place)
    assert holder
    file = place / holder.token
    beat = file.stat().st_mtime
    file.write_text(json.dumps(json.loads(file.read_text()) | {"host": "login9", "machine": "another boot"}))
    os.utime(file, (beat, beat))


def silence(place: Path) -> None:
    """Stop the heartbeat long ago."""
    holder = lease.look(place)
    assert holder
    os.utime(place / holder.token, (LONG_AGO, LONG_AGO))


def test_the_second_is_told_who_is_at_work(place: Path) -> None:
    with lease.acquire(place, "rewind --to 16000", 60), pytest.raises(Busy) as refused:
        lease.acquire(place, "scale-lr 0.75", 60)
    told = str(refused.value)
    assert f"pid {os.getpid()}" in told and "rewind --to 16000" in told and str(place) in told
    assert os.uname().nodename in told and " on " in told and "since 0 s" in told


def test_a_lease_given_back_leaves_nothing_behind(place: Path) -> None:
    with lease.acquire(place, "one", 60), pytest.raises(Busy):
        lease.acquire(place, "two", 60)
    assert list(place.parent.iterdir()) == []
    assert lease.acquire(place, "three", 60).release()


WORKER = """
import os, random, sys, time
from pathlib import Path
from ops import lease
from ops.errors import Busy

place, rounds = Path(sys.argv[1]), int(sys.argv[2])
counter, inside = place.parent / "counter", place.parent / "inside"
sys.stdin.readline()
done = 0
while done < rounds:
    try:
        held = lease.acquire(place, "count", 60)
    except Busy:
        time.sleep(random.random() / 500)
        continue
    os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
    counter.write_text(str(int(counter.read_text()) + 1))
    inside.unlink()
    assert held.release()
    done += 1
"""


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts Python programs that end with the test."""
    started: list[subprocess.Popen[str]] = []

    def begin(code: str, *arguments: object) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", code, *map(str, arguments)]
        started.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_eight_processes_never_overlap(place: Path, start: Start) -> None:
    place.parent.mkdir()
    (place.parent / "counter").write_text("0")
    workers = [start(WORKER, place, 40) for _ in range(8)]
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()
    for worker in workers:
        worker.communicate(timeout=120)
    assert [worker.returncode for worker in workers] == [0] * 8
    assert (place.parent / "counter").read_text() == "320"
    assert [path.name for path in place.parent.iterdir()] == ["counter"]


CONTENDER = """
import sys
from pathlib import Path
from ops import lease
from ops.errors import Busy

for line in sys.stdin:
    if line == "go\\n":
        try:
            held = lease.acquire(Path(sys.argv[1]), "inherit", 60)
        except Busy:
            held = None
        print("won" if held else "busy", flush=True)
    elif held:
        print(held.release(), flush=True)
"""


def test_a_stale_lease_has_exactly_one_heir(place: Path, start: Start) -> None:
    dead = abandon(place).pid
    contenders = [start(CONTENDER, place) for _ in range(8)]

    def tell(word: str) -> None:
        for contender in contenders:
            assert contender.stdin
            contender.stdin.write(f"{word}\n")
            contender.stdin.flush()

    def hear(contender: subprocess.Popen[str]) -> str:
        assert contender.stdout
        return contender.stdout.readline().strip()

    for turn in range(30):
        if turn:
            left = lease.acquire(place, "died", 60)
            file = place / left.holder.token
            if turn % 2:
                silence(place)
            else:
                file.write_text(json.dumps(json.loads(file.read_text()) | {"pid": dead}))
        tell("go")
        answers = [hear(contender) for contender in contenders]
        assert sorted(answers) == ["busy"] * 7 + ["won"], f"turn {turn}"
        tell("end")
        assert hear(contenders[answers.index("won")]) == "True"


def test_who_judged_before_another_took_over_comes_too_late(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abandon(place)
    plain = lease._unlink
    winners: list[lease.Lease] = []

    def overtaken(file: Path) -> bool:
        """Between the judgement (stale) and the deed, somebody else takes over, whole."""
        monkeypatch.setattr(lease, "_unlink", plain)
        winners.append(lease.acquire(place, "quicker", 60))
        return plain(file)

    monkeypatch.setattr(lease, "_unlink", overtaken)
    with pytest.raises(Busy, match="quicker"):
        lease.acquire(place, "slower", 60)
    winners[0].renew()
    assert winners[0].release()


def test_one_who_wakes_up_after_the_takeover_learns_it_and_harms_nobody(place: Path) -> None:
    sleeper = lease.acquire(place, "suspended", 60)
    silence(place)
    with lease.acquire(place, "next", 60) as heir:
        assert heir.took_over and heir.took_over.purpose == "suspended"
        with pytest.raises(Busy, match="lost"):
            sleeper.renew()
        assert not sleeper.release()
        heir.renew()
        with pytest.raises(Busy, match="next"):
            lease.acquire(place, "third", 60)


def test_a_heartbeat_keeps_the_lease(place: Path) -> None:
    with lease.acquire(place, "long work", 60) as held:
        elsewhere(place)
        silence(place)
        held.renew()
        with pytest.raises(Busy, match="long work"):
            lease.acquire(place, "impatient", 60)


def test_a_dead_process_of_another_host_is_no_proof(place: Path) -> None:
    abandon(place)
    elsewhere(place)
    with pytest.raises(Busy, match="on login9"):
        lease.acquire(place, "next", 60)
    silence(place)
    assert lease.acquire(place, "next", 60).release()


def test_a_change_is_not_taken_over_for_silence_but_on_request(place: Path) -> None:
    lease.acquire(place, "rewind", 60)
    with pytest.raises(Busy):
        lease.break_stale(place)
    silence(place)
    with pytest.raises(Busy, match="silent") as refused:
        lease.acquire(place, "next", 60, take_expired=False)
    assert "rm -r" in refused.value.hint
    broken = lease.break_stale(place)
    assert broken and broken.purpose == "rewind"
    assert lease.acquire(place, "next", 60, take_expired=False).release()
    assert lease.break_stale(place) is None


def test_a_change_takes_over_from_a_process_proven_dead(place: Path) -> None:
    died = abandon(place)
    with lease.acquire(place, "next", 60, take_expired=False) as held:
        assert held.took_over == died


def test_a_pid_used_again_is_another_process(place: Path) -> None:
    left = lease.acquire(place, "long ago", 60)
    file = place / left.holder.token
    file.write_text(json.dumps(json.loads(file.read_text()) | {"started": "1"}))
    with lease.acquire(place, "next", 60, take_expired=False) as held:
        assert held.took_over and held.took_over.pid == os.getpid()


def test_a_process_that_ended_but_was_not_waited_for_is_dead(place: Path, start: Start) -> None:
    child = start(CONTENDER, place)
    assert child.stdin and child.stdout
    child.stdin.write("go\n")
    child.stdin.flush()
    assert child.stdout.readline() == "won\n"
    holder = lease.look(place)
    assert holder and not holder.dead
    child.kill()
    limit = time.monotonic() + 60
    while not holder.dead and time.monotonic() < limit:
        time.sleep(0.005)
    assert holder.dead


def test_the_group_can_break_what_one_of_it_left(place: Path) -> None:
    place.parent.mkdir()
    place.parent.chmod(0o2775)
    before = os.umask(0o077)
    try:
        with lease.acquire(place, "shared", 60) as held:
            assert place.stat().st_mode & 0o7777 == 0o2775
            assert (place / held.holder.token).stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)


def test_what_cannot_be_read_is_held(place: Path) -> None:
    place.mkdir(parents=True)
    (place / "0123").write_bytes(b"")
    with pytest.raises(Busy, match="its file says nothing"):
        lease.acquire(place, "next", 60)
    silence(place)
    assert lease.acquire(place, "next", 60).release()


def test_a_foreign_file_in_its_place_is_left_alone(place: Path) -> None:
    place.parent.mkdir()
    place.write_text("mine")
    with pytest.raises(OpsError, match="something else"):
        lease.acquire(place, "next", 60)
    assert place.read_text() == "mine"
    assert [path.name for path in place.parent.iterdir()] == ["lock"]


def test_a_full_disk_is_told_and_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OpsError, match="No space left"):
        lease.acquire(place, "next", 60)
    assert list(place.parent.iterdir()) == []
