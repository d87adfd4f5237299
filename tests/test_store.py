"""push and pull against a real S3 server: whole or not at all, resumed, verified, and honest about what is stale."""

import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from runs import Run, changed, tree
from store_server import BUCKET, Server, Wire, serving

from ops import discovery, lease, store
from ops.checkpoints import layouts
from ops.errors import Busy, Drift, OpsError, Unreachable
from ops.model import Checkpoint
from ops.store import How, manifest

PART = 5 << 20
"""S3's smallest part; the tests use it to have several parts of little data."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in server.env.items():
            patch.setenv(name, value)
        patch.setattr(manifest, "PART", PART)
        yield server


@pytest.fixture
def pushed(server: Server, run: Run, request: pytest.FixtureRequest) -> Run:
    """A run whose m4ops.toml names a prefix of its own."""
    (run.dir / "m4ops.toml").write_text(f'store = "s3://{BUCKET}/{request.node.name}"\n')
    return run


def test_a_checkpoint_is_pushed_and_pulled_to_the_byte(pushed: Run, server: Server) -> None:
    before = tree(pushed.dir / "opt_step-20")
    said = pushed.done("push", "20")
    assert said.out.endswith("/tr_other/opt_step-20\n")
    marked = tree(pushed.dir / "opt_step-20")
    assert changed(before, marked) == {"finished-upload-checkpoint"}
    shutil.rmtree(pushed.dir / "opt_step-20")
    pushed.done("pull", "20")
    assert tree(pushed.dir / "opt_step-20") == marked
    assert pushed.m4ops("verify-checkpoint", "20").code == 0
    again = pushed.m4ops("pull", "20")
    assert again.code == 1 and "overwrites nothing" in again.err


def test_an_edit_in_place_makes_the_copy_stale_and_only_what_changed_is_sent_again(pushed: Run, server: Server) -> None:
    pushed.done("push", "40")
    nothing = pushed.done("push", "40")
    assert "sent: 0 B of" in nothing.err
    marker = pushed.dir / "opt_step-40" / "finished-upload-checkpoint"
    pushed.done("scale-lr", "0.5", "-y")
    assert not marker.exists()
    told = " ".join(pushed.done("checkpoints").out.split())
    assert "is stale (m4ops push): changed since: accelerator_state/custom_checkpoint_0.pkl;" in told
    pushed.done("undo", "-y")
    assert marker.exists() and "stale" not in pushed.done("checkpoints").out
    pushed.done("scale-lr", "0.5", "--again", "-y")
    shown = pushed.done("push", "-n", "40").out
    assert "changed" in shown and "custom_checkpoint_0.pkl" in shown and "model.safetensors" not in shown
    sent = objects(server, pushed)
    again = pushed.done("push", "40")
    assert "sent: 7.4 kB of" in again.err
    now = objects(server, pushed)
    replaced = {name for name in now if now[name] != sent[name]}
    assert {n.rpartition("opt_step-40")[2] for n in replaced} == {
        ".m4ops.json",
        "/accelerator_state/custom_checkpoint_0.pkl",
        "/accelerator_state/optimizer.bin",
    }
    copy = tree(pushed.dir / "opt_step-40")
    shutil.rmtree(pushed.dir / "opt_step-40")
    pushed.done("pull", "40")
    assert tree(pushed.dir / "opt_step-40") == copy


def objects(server: Server, run: Run) -> dict[str, Any]:
    """The MD5 of each object of the run."""
    prefix = (run.dir / "m4ops.toml").read_text().split('"')[1].partition(f"{BUCKET}/")[2]
    found = server.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix + "/")["Contents"]
    return {o["Key"]: o["ETag"] for o in found}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("AWS_SECRET_ACCESS_KEY", "wrong", "the store refuses: SignatureDoesNotMatch"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:1", "the store does not answer"),
    ],
)
def test_a_store_that_lets_nobody_in_leaves_no_marker(
    pushed: Run, monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    before = tree(pushed.dir)
    monkeypatch.setenv(name, value)
    said = pushed.m4ops("push", "10")
    assert said.code in (1, 3) and words in said.err and "only-for-the-test" not in said.err
    assert tree(pushed.dir) == before


# --- what goes wrong on the way -----------------------------------------------------------------------------


def made_large(run: Run, step: int) -> Checkpoint:
    """The checkpoint of a step with two files of several parts each, as an extraction leaves them."""
    drawn = random.Random(step)
    for number in (1, 2):
        path = run.dir / f"opt_step-{step}" / "unwrapped_model" / f"model-0000{number}-of-00002.safetensors"
        path.write_bytes(drawn.randbytes(2 * PART + 12345 * number))
    found = layouts.read(discovery.describe(run.dir)[0])
    assert isinstance(found, tuple)
    return next(c for c in found if c.step == step)


def url(run: Run) -> str:
    return (run.dir / "m4ops.toml").read_text().split('"')[1]


def at(size: int, event: Callable[[], object]) -> Callable[[int, int], None]:
    """Progress in which this happens once, as soon as so many bytes are done."""
    left = [event]

    def told(done: int, _: int) -> None:
        if left and done >= size:
            left.pop()()

    return told


def test_push_and_pull_go_through_a_server_that_is_killed_twice(pushed: Run, server: Server) -> None:
    checkpoint, run = made_large(pushed, 20), discovery.describe(pushed.dir)[0]
    restarts: list[threading.Thread] = []

    def dies() -> None:
        server.kill()
        restarts.append(threading.Thread(target=server.start))
        restarts[-1].start()

    store.push(run, checkpoint, url(pushed), how=How(2), told=at(PART, dies))
    restarts[0].join()
    copy = tree(checkpoint.path)
    shutil.rmtree(checkpoint.path)
    pulled = store.pull(run, "opt_step-20", url(pushed), how=How(2), told=at(PART, dies))
    restarts[1].join()
    pulled.staging.rename(pulled.target)
    store.settle(run, pulled)
    assert tree(checkpoint.path) == copy


def test_connections_that_are_cut_are_made_again(pushed: Run, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, run = made_large(pushed, 30), discovery.describe(pushed.dir)[0]
    wire = Wire(server.ports[3])
    monkeypatch.setenv("AWS_ENDPOINT_URL", wire.endpoint)
    wire.cut_after = PART + PART // 3
    store.push(run, checkpoint, url(pushed))
    cuts = wire.cuts
    copy = tree(checkpoint.path)
    shutil.rmtree(checkpoint.path)
    pulled = store.pull(run, "opt_step-30", url(pushed))
    assert cuts >= 2 and wire.cuts >= cuts + 2
    pulled.staging.rename(pulled.target)
    store.settle(run, pulled)
    assert tree(checkpoint.path) == copy
    wire.close()


def test_what_was_cut_short_goes_on_where_it_ended(
    pushed: Run, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, run = made_large(pushed, 10), discovery.describe(pushed.dir)[0]
    before = tree(pushed.dir)
    wire = Wire(server.ports[3])
    monkeypatch.setenv("AWS_ENDPOINT_URL", wire.endpoint)
    with pytest.raises(Unreachable, match="does not answer"):
        store.push(run, checkpoint, url(pushed), how=How(2, patience=0.1), told=at(2 * PART, wire.close))
    assert tree(pushed.dir) == before, "a marker is left after a failure"
    assert store.held(run, url(pushed), server.endpoint) == ()
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
    done = store.push(run, checkpoint, url(pushed))
    assert done.sent < done.size - PART
    copy = tree(checkpoint.path)
    shutil.rmtree(checkpoint.path)
    wire = Wire(server.ports[3])
    with pytest.raises(Unreachable, match="does not answer"):
        store.pull(
            run, "opt_step-10", url(pushed), endpoint=wire.endpoint, how=How(2, patience=0.1),
            told=at(2 * PART, wire.close),
        )  # fmt: skip
    assert not checkpoint.path.exists()
    said = pushed.done("pull", "10")
    assert "fetched: " in said.err and tree(checkpoint.path) == copy
    assert store.standing(run, checkpoint.path) == store.Standing(f"{url(pushed)}/tr_other/opt_step-10", ())


def test_what_is_damaged_in_the_store_is_never_moved_in_and_sent_again_by_a_push(pushed: Run, server: Server) -> None:
    pushed.done("push", "10")
    kept = pushed.dir / "kept"
    (pushed.dir / "opt_step-10").rename(kept)
    file = "accelerator_state/model.safetensors"
    key = f"{url(pushed).partition(f'{BUCKET}/')[2]}/tr_other/opt_step-10/{file}"
    content = (kept / file).read_bytes()
    server.client.put_object(Bucket=BUCKET, Key=key, Body=bytes(reversed(content)))
    said = pushed.m4ops("pull", "10")
    assert said.code == 1 and "the copy is damaged" in said.err and file in said.err
    assert not (pushed.dir / "opt_step-10").exists()
    kept.rename(pushed.dir / "opt_step-10")
    again = pushed.done("push", "10")
    assert f"sent: {len(content)} B of" in again.err
    server.client.delete_object(Bucket=BUCKET, Key=key)
    (pushed.dir / "opt_step-10").rename(kept)
    said = pushed.m4ops("pull", "10")
    assert said.code == 1 and "no longer in the store" in said.err


def test_a_full_disk_stops_a_pull_which_goes_on_when_there_is_room(pushed: Run, server: Server, tmp_path: Path) -> None:
    checkpoint, run = made_large(pushed, 20), discovery.describe(pushed.dir)[0]
    store.push(run, checkpoint, url(pushed))
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32M", "tmpfs", str(small)], check=True)
    try:
        there = small / "tr_other"
        there.mkdir()
        shutil.copy(pushed.dir / "m4ops.toml", there)
        other, hog = discovery.describe(there)[0], small / "hog"
        hog.write_bytes(bytes(20 << 20))
        with pytest.raises(OpsError, match="are to be fetched"):
            store.pull(other, "opt_step-20", url(pushed))
        hog.unlink()

        def fill() -> None:
            with pytest.raises(OSError), hog.open("wb") as file:
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()

        with pytest.raises(OpsError, match="cannot be written: No space left"):
            store.pull(other, "opt_step-20", url(pushed), how=How(1), told=at(PART, fill))
        hog.unlink()
        pulled = store.pull(other, "opt_step-20", url(pushed))
        assert 0 < pulled.fetched < pulled.manifest.size - PART + 1
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_step_is_pushed_by_one_at_a_time_and_others_work_is_left_alone(pushed: Run, server: Server) -> None:
    folder = pushed.dir / ".m4ops" / "state" / "store"
    with lease.acquire(folder / "opt_step-10.lease", "push opt_step-10", 600):
        said = pushed.m4ops("push", "10")
        assert said.code == 1 and "somebody else is at work" in said.err
    run = discovery.describe(pushed.dir)[0]
    found = layouts.read(run)
    assert isinstance(found, tuple)
    with ThreadPoolExecutor(6) as pool:
        racing = [pool.submit(store.push, run, found[1], url(pushed)) for _ in range(6)]
    assert {type(r.exception()) for r in racing} <= {Busy, type(None)}
    assert len([r for r in racing if r.exception() is None and r.result().sent]) == 1
    (pushed.dir / "opt_step-10" / "started-upload-checkpoint").touch()
    said = pushed.m4ops("push", "10")
    assert said.code == 1 and "began to upload" in said.err
    assert (pushed.dir / "opt_step-10" / "started-upload-checkpoint").exists()
    os.utime(pushed.dir / "opt_step-10" / "started-upload-checkpoint", (0, 0))
    pushed.done("push", "10")
    assert not (pushed.dir / "opt_step-10" / "started-upload-checkpoint").exists()


def test_the_time_limit_ends_a_push_without_a_marker(pushed: Run, server: Server) -> None:
    checkpoint = made_large(pushed, 10)
    before = tree(checkpoint.path)
    said = pushed.m4ops("push", "10", "--max-bandwidth", "2MB", "--time-limit", "0.01")
    assert said.code == 3 and "the time limit has come" in said.err and "goes on" in said.err
    assert tree(checkpoint.path) == before


def test_the_store_is_asked_for_what_is_not_known_here(pushed: Run, server: Server, tmp_path: Path) -> None:
    pushed.done("push", "10", "40")
    elsewhere = tmp_path / "elsewhere" / "tr_other"
    elsewhere.mkdir(parents=True)
    there = Run(elsewhere.parent)
    listed = there.done("pull", "--from", url(pushed))
    assert listed.out.split() == ["opt_step-10", "opt_step-40"]
    missing = there.m4ops("pull", "20", "--from", url(pushed))
    assert missing.code == 1 and "no whole copy of step 20" in missing.err and "10, 40" in missing.err
    there.done("pull", "40", "--from", url(pushed))
    assert tree(elsewhere / "opt_step-40") == tree(pushed.dir / "opt_step-40")
    assert there.done("push", "--all-missing", "--to", url(pushed)).err.startswith("nothing is missing")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("push", "10", "--to", "s3://key:secret@ckpt/x"), "a store's URL holds no credentials"),
        (("push", "10", "--to", "http://ckpt"), "names no store"),
        (("push",), "say which checkpoints"),
        (("push", "11"), "there is no checkpoint of step 11"),
        (("push", "10", "--to", "s3://no-such-bucket/x"), "there is no such bucket"),
    ],
)
def test_what_cannot_be_meant_is_said(pushed: Run, words: tuple[str, ...], error: str) -> None:
    said = pushed.m4ops(*words)
    assert said.code == 1 and error in said.err and "secret" not in said.err


def test_a_checkpoint_that_is_one_file_is_as_good_as_a_folder(pushed: Run, server: Server) -> None:
    run, path = discovery.describe(pushed.dir)[0], pushed.dir / "epoch=0-step=70.ckpt"
    path.write_bytes(random.Random(7).randbytes(PART + 70))
    before = tree(pushed.dir)
    store.push(run, Checkpoint(70, path), url(pushed))
    assert store.current(run, path, url(pushed)) and tree(pushed.dir) == before
    path.unlink()
    pushed.done("pull", "70")
    assert tree(pushed.dir) == before and list((pushed.dir / ".m4ops" / "pull").iterdir()) == []


def test_of_a_large_file_that_was_edited_only_the_part_that_changed_is_sent(pushed: Run, server: Server) -> None:
    checkpoint, run = made_large(pushed, 10), discovery.describe(pushed.dir)[0]
    store.push(run, checkpoint, url(pushed))
    large = checkpoint.path / "unwrapped_model" / "model-00002-of-00002.safetensors"
    about = large.stat()

    def edit() -> None:
        with large.open("r+b") as file:
            file.seek(PART + 5)
            file.write(b"LR")
        os.utime(large, ns=(about.st_atime_ns, about.st_mtime_ns))

    edit()
    done = store.push(run, checkpoint, url(pushed))
    assert (done.sent, done.reused) == (PART, about.st_size - PART)
    copy = tree(checkpoint.path)
    shutil.rmtree(checkpoint.path)
    pushed.done("pull", "10")
    assert tree(checkpoint.path) == copy
    before = tree(checkpoint.path)
    large.write_bytes(random.Random(1).randbytes(about.st_size))
    with pytest.raises(Drift, match="changed while it was pushed"):
        store.push(run, checkpoint, url(pushed), told=at(PART, edit))
    assert changed(before, tree(checkpoint.path)) == {
        "finished-upload-checkpoint", "unwrapped_model/model-00002-of-00002.safetensors",
    }  # fmt: skip
    assert store.held(run, url(pushed)) == ()
