"""Runs of other users, whole or closed in part: what cannot be seen is UNKNOWN, hides nothing else, and nothing is done there."""

import importlib
import json
import os
import pickle
import pkgutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm
from receivers import Web
from runs import Said, m4ops, tree
from test_state import NOBODY, as_nobody

import ops

LINE = "iteration: {0}/500 0% | elapsed time: 00:00:{0:02d} | per_token_loss: 2.1 | lr: 1.0E-05 |\n"
GBS = dict.fromkeys(
    ("global_batch_size_current", "global_seen_samples", "next_goal_samples", "grad_acc_size_current"), 1
)
INFOS = {"train_logs": {}, "wandb_run_id": "a", "seed": 1, "resume_epoch": 0, "gbs_running": GBS, "resume_opt_step": 5}
CLOSED = {
    "tr_open": "",
    "tr_log": "logs/main_log.txt",
    "tr_logs": "logs",
    "tr_checkpoint": "opt_step-5",
    "tr_weights": "opt_step-5/accelerator_state/model.safetensors",
    "tr_pointer": "latest_opt_step_dir",
    "tr_bookkeeping": ".m4ops",
    "tr_folder": ".",
    "tr_config": "m4ops.toml",
}
"""What of each run only its owner may read."""


def made(folder: Path) -> Path:
    """A run whose last checkpoint is complete, and after whose saves something is to be done."""
    state = folder / "opt_step-5" / "accelerator_state"
    for place in (folder / "logs", folder / ".m4ops" / "state", folder / ".m4ops" / "cron", state):
        place.mkdir(parents=True)
    (folder / "logs" / "main_log.txt").write_text("".join(LINE.format(n) for n in range(1, 6)))
    for name in ("custom_checkpoint_0.pkl", "optimizer.bin", "random_states_0.pkl"):
        (state / name).write_bytes(pickle.dumps({}))
    (state / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (state.parent / "finished-saving").touch()
    (state.parent / "resume_run_infos.json").write_text(json.dumps(INFOS))
    (folder / "latest_opt_step_dir").write_text(str(state.parent))
    (folder / "m4ops.toml").write_text(f'on_save = ["verify"]\nsinks = ["prometheus:{folder}/../{folder.name}.prom"]\n')
    return folder


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs of root's, each closed in one place, and one of the user who looks, with a node lost."""
    for module in pkgutil.walk_packages(ops.__path__, "ops."):  # they may lie where that user cannot read
        if not module.name.endswith("__main__") and ".demo" not in module.name:
            importlib.import_module(module.name)
    mask = os.umask(0o022)  # what is not closed here is open
    elsewhere = tmp_path_factory.mktemp("imports") / "tr_0"
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o777)
        for run, closed in CLOSED.items():
            path = made(root / run) / closed
            if closed:
                path.chmod(0o700 if path.is_dir() else 0o600)
        own = made(root / "tr_own")
        with (own / "logs" / "main_log.txt").open("a") as log:
            log.write("srun: error: Node failure on n7\n")
        for path in (own, *own.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_STATE_HOME", str(root / "state"))
            patch.setenv("XDG_CONFIG_HOME", name)
            m4ops("--run", str(made(elsewhere)), "check", "--saves", slurm=FakeSlurm([]))  # imports the rest
            patch.setenv("M4OPS_ROOTS", name)
            yield root
    os.umask(mask)


def asked(*words: str) -> Said:
    """m4ops as that user."""

    def said() -> str:
        done = m4ops(*words, slurm=FakeSlurm([]))
        return json.dumps([done.code, done.out, done.err])

    return Said(*json.loads(as_nobody(said)))


def test_what_is_closed_is_unknown_and_hides_nothing_else(root: Path) -> None:
    before = tree(root)
    said = asked("check", "--all", "--saves", "--json")
    assert said.code == 2, said.err
    told: dict[str, Any] = json.loads(said.out)
    found = {run["run"]["name"]: {f["kind"]: f["severity"] for f in run["findings"]} for run in told["runs"]}
    absent = {"job-absent": "CRITICAL"}
    assert found == {
        "tr_open": absent,
        "tr_log": {**absent, "log-unknown": "UNKNOWN"},
        "tr_logs": {**absent, "log-unknown": "UNKNOWN", "series-unknown": "UNKNOWN"},
        "tr_checkpoint": {**absent, "checkpoints-unknown": "UNKNOWN"},
        "tr_weights": absent,
        "tr_pointer": {**absent, "pointer-broken": "UNKNOWN"},
        "tr_bookkeeping": absent,
        "tr_own": {**absent, "node-failure": "CRITICAL"},
    }
    lost = {run["name"]: run["why"] for run in told["unknown"]}
    assert lost.keys() == {"tr_folder", "tr_config"}
    assert all("Permission denied" in why for why in lost.values())
    assert all(f"UNKNOWN: {name}: " in said.err for name in lost)
    after = {path: about for path, about in tree(root).items() if not path.startswith("state/")}
    assert after.keys() - before.keys() == {"state", "tr_own.prom"}, "written where another user's run says"


def test_nothing_is_done_after_the_saves_of_another_users_run(root: Path) -> None:
    """What a run declares would be done with the rights of whoever checks it."""
    asked("check", "--all", "--saves")
    served = {path.parent.parent.name for path in (root / "state" / "m4ops").rglob("*") if "save" in path.name}
    assert served == set()
    assert [path.name for path in (root / "tr_own" / ".m4ops" / "state").iterdir() if "save" in path.name]


def test_a_viewers_check_tells_the_viewer_and_not_the_runs_sinks_again(root: Path, web: Web) -> None:
    own = Web(0).listen()
    run = made(root / "team" / "tr_1")
    (run / "m4ops.toml").write_text(f'sinks = ["{web.uri}"]\nescalate_to = ["{web.uri}"]\nheartbeat = "{web.uri}"\n')
    check = ("--run", str(run), "check")
    try:
        seen = asked(*check)
        assert seen.code == 2 and "CRITICAL tr_1: no job" in seen.out and web.asked == []
        assert asked(*check).out == "", "a viewer is told once too"
        assert "its owner's" in asked("--run", str(run), "cron", "install", "-n").err
        m4ops(*check, slurm=FakeSlurm([]))
        asked(*check, "--sink", own.uri)
        (run / "logs" / "main_log.txt").write_text(
            "".join(LINE.format(n) for n in range(1, 7)) + "srun: error: Node failure on n7\n"
        )
        asked(*check, "--sink", own.uri)
        m4ops(*check, slurm=FakeSlurm([]))
    finally:
        own.down()
    assert [text.split(":")[0] for text in web.texts()] == ["CRITICAL tr_1", "CRITICAL tr_1"]
    assert [{n["kind"] for n in post["news"]} for post in web.posted()] == [{"job-absent"}, {"node-failure"}]
    assert [{n["kind"] for n in post["news"]} for post in own.posted()] == [{"node-failure"}]
    assert len(web.asked) == 2, "and only the owner's checks are a sign of life"


@pytest.mark.parametrize("run", ["tr_folder", "tr_config"])
def test_whoever_asks_for_a_closed_run_is_told_why(root: Path, run: str) -> None:
    said = asked("--run", str(root / run), "status")
    assert (said.code, said.out) == (1, "")
    assert "Permission denied" in said.err
    assert str(root / run) in said.err


def test_a_root_that_is_not_there_is_told_of(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M4OPS_ROOTS", f"{root}/unmounted:{root}")
    said = asked("check", "--all", "--json")
    told = json.loads(said.out)
    assert "unmounted" in {run["name"] for run in told["unknown"]}
    assert "tr_own" in {run["run"]["name"] for run in told["runs"]}
