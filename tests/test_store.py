"""push and pull against a real S3 server: whole or not at all, resumed, verified, and honest about what is stale."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from runs import Run, changed, tree
from store_server import BUCKET, Server, serving

PART = 16 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in server.env.items():
            patch.setenv(name, value)
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
    pushed.done("scale-lr", "0.5", "-y")
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
