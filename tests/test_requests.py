"""Requests of teammates: carried out for whom the owner named, once, and never on a forged word."""

import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from fake_slurm import FakeSlurm, Row
from runs import Said, m4ops

from ops import requests
from ops.errors import OpsError
from ops.model import Run

NOBODY, OTHER = 65534, 65533
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@contextmanager
def acting_as(uid: int, folder: Path) -> Iterator[None]:
    """As that user: what is left in the folder is theirs. (Really to become one would hide root's Python from itself.)"""
    before = set(folder.glob("*.json"))
    with mock.patch.object(os, "geteuid", lambda: uid):
        yield
    for file in set(folder.glob("*.json")) - before:
        os.chown(file, uid, -1)


class Place:
    """A run of root's, which is in the queue, on a file system that others can reach."""

    def __init__(self, root: Path) -> None:
        self.dir = root / "tr_0"
        (self.dir / "logs").mkdir(parents=True)
        (self.dir / "logs" / "main_log.txt").write_text("iteration: 5/10 50% | per_token_loss: 2.1 | lr: 1.000E-05 |\n")
        self.toml('operators = ["nobody"]\n')
        self.run = Run(self.dir, "tr_0")
        requests.folder(self.run).mkdir(parents=True)
        requests.folder(self.run).chmod(0o1777)
        self.slurm = FakeSlurm([Row("7", "2-9%1", "PENDING", "JobArrayTaskLimit", "tr_0")])

    def toml(self, text: str) -> Path:
        file = self.dir / "m4ops.toml"
        file.write_text(text)
        file.chmod(0o644)
        return file

    def __call__(self, *words: str, uid: int = 0) -> Said:
        with acting_as(uid, requests.folder(self.run)):
            return m4ops("--run", str(self.dir), *words, slurm=self.slurm)

    def left(self) -> Path:
        (file,) = requests.folder(self.run).glob("*.json")
        return file

    def outcomes(self) -> list[tuple[str, str]]:
        return [(r.verb, r.outcome) for r in requests.replies(self.run)]


@pytest.fixture
def place() -> Iterator[Place]:
    root = Path(tempfile.mkdtemp(prefix="m4ops-requests-"))
    root.chmod(0o755)
    yield Place(root)
    shutil.rmtree(root)


def test_what_a_teammate_asks_for_is_done_by_the_owners_check_and_both_are_told(place: Place) -> None:
    said = place("request", "hold", "--why", "the file system goes down", uid=NOBODY)
    assert said.code == 0, said.err
    assert place.left().stat().st_uid == NOBODY and place.slurm.orders == []
    said = place("check")
    assert place.slurm.orders == [("hold", "7")]
    assert "request of nobody to hold (the file system goes down): done: change 1" in said.err
    assert "asked for by nobody: the file system goes down" in place("history").out
    assert "done" in place("request", uid=NOBODY).out
    place("check")
    assert place.slurm.orders == [("hold", "7")], "once"
    assert place("undo", "-y").code == 0 and place.slurm.orders[-1] == ("release", "7")


def test_a_stranger_is_refused_at_once_and_again_by_the_owner(place: Place) -> None:
    said = place("request", "hold", "--why", "x", uid=OTHER)
    assert said.code == 1 and "not among the operators" in said.err and f'operators = ["{OTHER}"]' in said.err
    with acting_as(OTHER, requests.folder(place.run)):
        requests.leave(place.run, "hold", "x", time.time(), 60.0)
    said = place("check")
    assert "refused: 65533 is not among the operators" in said.err
    assert place.slurm.orders == [] and place.outcomes() == [("hold", "refused")]


def test_the_owner_needs_no_permission_and_no_configuration(place: Place) -> None:
    (place.dir / "m4ops.toml").unlink()
    assert place("request", "hold", "--why", "by hand").code == 0
    place("check")
    assert place.slurm.orders == [("hold", "7")]


def test_a_request_that_cannot_be_done_is_told_with_its_reason(place: Place) -> None:
    place("request", "stop", "--why", "now", uid=NOBODY)
    said = place("check")
    assert "refused: no job of this run is running" in said.err and place.outcomes() == [("stop", "refused")]
    assert "no job of this run is running" in place("request", uid=NOBODY).out


def test_an_expired_request_is_not_carried_out(place: Place) -> None:
    with acting_as(NOBODY, requests.folder(place.run)):
        requests.leave(place.run, "hold", "long ago", 1e9, 60.0)
    place("check")
    assert place.slurm.orders == [] and place.outcomes() == [("hold", "expired")]


def test_while_slurm_is_silent_a_request_waits(place: Place) -> None:
    place("request", "hold", "--why", "x", uid=NOBODY)
    place.slurm.down = True
    place("check")
    assert place.outcomes() == [] and place.left().exists()
    place.slurm.down = False
    place("check")
    assert place.outcomes() == [("hold", "done")]


def test_only_the_owners_tick_carries_out(place: Place) -> None:
    place("request", "hold", "--why", "x", uid=NOBODY)
    os.chown(place.dir, OTHER, -1)
    place("check")
    assert place.slurm.orders == [] and place.left().exists()


def forged(file: Path, how: str) -> None:
    text = json.loads(file.read_text())
    match how:
        case "writable by others":
            file.chmod(0o664)
        case "a link to another's file":
            target = file.with_name("theirs")
            file.rename(target)
            file.symlink_to(target)
        case "a second name":
            os.link(file, file.with_name("again"))
        case "of another run":
            file.write_text(json.dumps({**text, "run": "/elsewhere"}))
        case "no verb of ours":
            file.write_text(json.dumps({**text, "verb": "cancel"}))
        case "for ever":
            file.write_text(json.dumps({**text, "expires": 1e15}))
        case "torn":
            file.write_text('{"verb": "ho')
        case "a pipe":
            file.unlink()
            os.mkfifo(file)


FORGERIES = [
    "writable by others", "a link to another's file", "a second name", "of another run", "no verb of ours", "for ever",
    "torn", "a pipe",
]  # fmt: skip


@pytest.mark.parametrize("how", FORGERIES)
def test_a_request_that_somebody_else_may_have_made_is_refused(place: Place, how: str) -> None:
    place("request", "hold", "--why", "x", uid=NOBODY)
    forged(place.left(), how)
    said = place("check")
    assert "refused" in said.err and place.slurm.orders == []
    assert [outcome for _, outcome in place.outcomes()] == ["refused"]


@pytest.mark.parametrize("how", ["group", "owner", "link"])
def test_operators_that_others_could_have_written_are_nobody(place: Place, how: str) -> None:
    place("request", "hold", "--why", "x", uid=NOBODY)
    file = place.dir / "m4ops.toml"
    if how == "group":
        file.chmod(0o664)
    elif how == "owner":
        os.chown(file, NOBODY, -1)
    else:
        shutil.copy(file, place.dir / "theirs.toml")
        file.unlink()
        file.symlink_to(place.dir / "theirs.toml")
    said = place("check")
    assert place.slurm.orders == [] and place.outcomes() == [("hold", "refused")], said.err


def test_an_answer_that_the_owner_did_not_write_is_not_shown(place: Place) -> None:
    place("request", "hold", "--why", "x", uid=NOBODY)
    place("check")
    (answer,) = (requests.folder(place.run) / "answers").glob("*.json")
    os.chown(answer, OTHER, -1)
    assert "nobody asked" in place("request").out


def test_a_request_begun_by_a_tick_that_died_is_not_done_twice(place: Place) -> None:
    place("request", "hold", "--why", "x", uid=NOBODY)
    (asked,) = requests.waiting(place.run)
    assert requests.take(place.run, asked) and not requests.take(place.run, asked)
    said = place("check")
    assert "unknown: it was begun" in said.err and said.code == 1
    assert place.slurm.orders == [] and place.outcomes() == [("hold", "unknown")]


def test_what_the_group_may_write_it_may_write_afterwards(place: Place) -> None:
    place.dir.chmod(0o2775)
    (place.dir / ".m4ops").chmod(0o2775)
    place("request", "hold", "--why", "x", uid=NOBODY)
    place("check")
    assert stat.S_IMODE((place.dir / ".m4ops" / "journal.jsonl").stat().st_mode) == 0o664
    assert stat.S_IMODE(place.dir.stat().st_mode) == 0o2775


def test_who_may_not_write_there_is_told_what_the_owner_can_do(place: Place) -> None:
    requests.folder(place.run).chmod(0o755)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(OpsError, match="cannot be left") as refused:
            requests.leave(place.run, "hold", "x", 1e9, 60.0)
    finally:
        os.seteuid(0)
    assert "chmod 1777" in refused.value.hint


@pytest.mark.parametrize(
    "words", [("hold",), ("hold", "--why", " "), ("hold", "--why", "x", "--expires", "8d"), ("rm", "--why", "x")]
)
def test_what_is_no_request_is_refused(place: Place, words: tuple[str, ...]) -> None:
    assert place("request", *words).code != 0 and requests.waiting(place.run) == ()
