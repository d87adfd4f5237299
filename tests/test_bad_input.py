"""What is wrong with a run or a command line is said in plain words, and nothing of the run is touched."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from runs import Run, m4ops

ROOT = Path(__file__).resolve().parent.parent
TO_20 = ("rewind", "--to", "20")
CHANGES = (
    (*TO_20, "--scale-lr", "0.5"), (*TO_20, "--reset-optimizer"), ("scale-lr", "0.5", "--at", "20"),
    ("set-lr", "1e-4", "--at", "20"), ("reset-optimizer", "--at", "20"), ("reset-wandb", "--at", "20"),
    ("trim-evals", "--to", "10"),
)  # fmt: skip


def refused(run: Run, *words: str, saying: tuple[str, ...], hint: bool = True) -> str:
    """The command fails with these words and a next command, and the tree stays. Returns what it said."""
    before = run.tree()
    said = run.m4ops(words[0], "-y", *words[1:])
    text = " ".join(said.err.split())
    assert said.code == 1, said
    assert "Traceback" not in text
    for word in saying:
        assert word in text
    assert not hint or "next:" in said.err
    assert run.tree() == before
    return text


# -- checkpoints and the pointer -------------------------------------------------------------------------


def test_no_checkpoint(run: Run) -> None:
    for step in (10, 20, 30, 40):
        shutil.rmtree(run.dir / f"opt_step-{step}")
    for words in (TO_20, ("rewind", "--to", "latest"), ("rewind", "--to", "-1"), ("scale-lr", "0.5", "--at", "20")):
        refused(run, *words, saying=("there is no checkpoint", str(run.dir)))


POINTERS = {
    "empty": ("", "empty"),
    "missing folder": ("{dir}/opt_step-50", "does not exist"),
    "outside": ("{root}/opt_step-40", "outside this SAVE_DIR"),
    "relative": ("tr_other/opt_step-40", "relative path"),
    "no step": ("{dir}", "outside"),
}


@pytest.mark.parametrize("kind", POINTERS)
def test_a_broken_pointer(run: Run, kind: str) -> None:
    text, problem = POINTERS[kind]
    (run.root / "opt_step-40").mkdir()
    run.pointer.write_text(text.format(dir=run.dir, root=run.root))
    before = run.tree()
    for words in (("scale-lr", "0.5"), ("reset-wandb",), ("rewind", "--to", "-1"), ("reset-optimizer",)):
        refused(run, *words, saying=("latest_opt_step_dir is broken", problem, "--to latest"))
    run.done("rewind", "--to", "latest", "-y")
    assert run.pointer.read_text() == str(run.dir / "opt_step-40")
    run.done("undo", "-y")
    assert run.tree() == before


def test_no_pointer(run: Run) -> None:
    run.pointer.unlink()
    before = run.tree()
    refused(run, "scale-lr", "0.5", saying=("latest_opt_step_dir is broken", "missing"))
    run.done("rewind", "--to", "latest", "-y")
    run.done("undo", "-y")
    assert run.tree() == before


def truncated(by: Callable[[int], int]) -> Callable[[Path], None]:
    def truncate(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: by(len(content))])

    return truncate


DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "no marker": ("finished-saving", Path.unlink, "finished-saving is missing"),
    "no infos": ("resume_run_infos.json", Path.unlink, "resume_run_infos.json: No such file"),
    "torn infos": ("resume_run_infos.json", truncated(lambda n: n // 2), "resume_run_infos.json is torn"),
    "infos cut by a byte": ("resume_run_infos.json", truncated(lambda n: n - 1), "resume_run_infos.json is torn"),
    "empty infos": ("resume_run_infos.json", truncated(lambda n: 0), "resume_run_infos.json is torn"),
    "infos of another kind": ("resume_run_infos.json", lambda p: p.write_text("[]") and None, "no JSON object"),
    "infos lack keys": ("resume_run_infos.json", lambda p: p.write_text("{}") and None, "lacks train_logs"),
    "scheduler cut by a byte": ("accelerator_state/custom_checkpoint_0.pkl", truncated(lambda n: n - 1), "custom_"),
    "scheduler cut by half": ("accelerator_state/custom_checkpoint_0.pkl", truncated(lambda n: n // 2), "custom_"),
    "empty scheduler": ("accelerator_state/custom_checkpoint_0.pkl", truncated(lambda n: 0), "custom_checkpoint_0"),
    "no scheduler": ("accelerator_state/custom_checkpoint_0.pkl", Path.unlink, "(the LR scheduler) is missing"),
    "optimizer cut by a byte": ("accelerator_state/optimizer.bin", truncated(lambda n: n - 1), "optimizer.bin"),
    "no weights": ("accelerator_state/model.safetensors", Path.unlink, "(the weights) is missing"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint(run: Run, kind: str) -> None:
    name, damage, problem = DAMAGE[kind]
    damage(run.dir / "opt_step-20" / name)
    for words in (TO_20, (*TO_20, "--scale-lr", "0.5"), ("scale-lr", "0.5", "--at", "20")):
        refused(run, *words, saying=("opt_step-20 cannot be resumed from", problem))


def test_an_unfinished_checkpoint_is_not_the_latest(run: Run) -> None:
    (run.dir / "opt_step-40" / "finished-saving").unlink()
    run.done("rewind", "--to", "latest", "-y")
    assert run.pointer.read_text().endswith("opt_step-30")


class Malicious:
    """What a pickle can do to whoever loads it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("inside", [False, True], ids=["whole", "as-a-value"])
def test_a_malicious_pickle_is_not_run(run: Run, tmp_path: Path, inside: bool) -> None:
    trace = tmp_path / "trace"
    evil: object = Malicious(trace)
    state = {"base_lrs": [0.1], "_last_lr": [0.1], "last_epoch": evil} if inside else evil
    for name in ("custom_checkpoint_0.pkl", "optimizer.bin"):
        run.state(20, name).write_bytes(pickle.dumps(state, protocol=2))
        for words in (TO_20, *CHANGES):
            run.m4ops(*words, "-n")
        run.m4ops("checkpoints")
        assert not trace.exists()
    if not inside:
        for words in (TO_20, ("scale-lr", "0.5", "--at", "20")):
            refused(run, *words, saying=("opt_step-20", "custom_checkpoint_0.pkl"))
    assert not trace.exists()
    pickle.loads(run.state(20).read_bytes())
    assert trace.exists(), "it would have"


def test_a_stray_file_in_a_checkpoint(run: Run) -> None:
    shutil.copy(run.state(20), run.state(20, "custom_checkpoint_0.pkl.orig"))
    for words in (TO_20, ("scale-lr", "0.5", "--at", "20"), ("reset-wandb", "--at", "20")):
        refused(run, *words, saying=("custom_checkpoint_0.pkl.orig", "change what a resume loads", "move them out"))
    run.done("rewind", "--to", "30", "-y")


def test_a_stray_file_that_ends_the_job_and_one_that_nothing_loads(run: Run) -> None:
    shutil.copy(run.state(20), run.state(20, "custom_checkpoint_00.pkl"))
    run.state(30, "notes.txt").write_text("spiked here")
    refused(run, *TO_20, saying=("custom_checkpoint_00.pkl", "ends the job"))
    assert run.m4ops("verify-checkpoint", "20").code == 2
    run.done("rewind", "--to", "30", "-y")
    said = run.m4ops("checkpoints").out
    assert "nothing loads it: accelerator_state/notes.txt" in said
    assert "notes.txt" not in run.m4ops("check", "--json").out


def test_a_gap_among_what_accelerate_loads_by_number(run: Run) -> None:
    run.state(20).rename(run.state(20, "custom_checkpoint_1.pkl"))
    refused(run, *TO_20, saying=("custom_checkpoint_0.pkl is missing",))
    assert run.m4ops("verify-checkpoint", "20").code == 2


def test_what_a_layout_tells_of_opened_files_is_also_verified(run: Run) -> None:
    run.state(20).write_bytes(b"cposix\nsystem\n(S'true'\ntR.")
    for how in ((), ("--deep",)):
        assert run.m4ops("verify-checkpoint", *how, "20").code == 2


def test_what_nfs_leaves_of_an_open_file_is_no_stray(run: Run) -> None:
    run.state(20, ".nfs000000000a1b2c3d00000042").write_bytes(b"")
    run.done(*TO_20, "-y")


# -- the command line ------------------------------------------------------------------------------------

WRONG_NUMBERS = {
    ("scale-lr", "0"): "set-lr 0",
    ("scale-lr", "-0.5"): "positive number",
    ("scale-lr", "nan"): "positive number",
    ("scale-lr", "inf"): "positive number",
    ("scale-lr", "--", "-inf"): "positive number",
    ("scale-lr", "half"): "not a number",
    ("scale-lr", "1e9"): "absurd",
    ("scale-lr", "1e-9"): "absurd",
    ("set-lr", "-1e-4"): "between 0 and 10",
    ("set-lr", "nan"): "between 0 and 10",
    ("set-lr", "inf"): "between 0 and 10",
    ("set-lr", "1e9"): "between 0 and 10",
    ("set-lr", "low"): "not a number",
    (*TO_20, "--scale-lr", "0"): "set-lr 0",
    (*TO_20, "--scale-lr", "-0.5"): "positive number",
    (*TO_20, "--scale-lr", "nan"): "positive number",
    (*TO_20, "--set-lr", "word"): "not a number",
    (*TO_20, "--set-lr", "1e-4", "--scale-lr", "0.5"): "exclude each other",
    ("rewind", "--to", "back"): "not a step",
    ("rewind", "--to", "1.5"): "not a step",
    ("rewind", "--to", ""): "not a step",
    ("rewind", "--to", "-9"): "only 3 complete checkpoints",
    ("rewind", "--to", "23"): "the nearest complete ones: 10, 20, 30, 40",
    ("scale-lr", "0.5", "--at", "23"): "there is no checkpoint of step 23",
    ("reset-wandb", "--at", "-7"): "there is no checkpoint of step -7",
}


@pytest.mark.parametrize("words", WRONG_NUMBERS, ids=" ".join)
def test_a_number_that_is_none(run: Run, words: tuple[str, ...]) -> None:
    refused(run, *words, saying=(WRONG_NUMBERS[words],))


def test_a_step_that_was_moved_away(run: Run) -> None:
    run.done(*TO_20, "-y")
    refused(run, "rewind", "--to", "40", saying=("no checkpoint of step 40", "discarded/exp_1/opt_step-40", "history"))


def test_nothing_to_do(run: Run) -> None:
    run.done("rewind", "--to", "latest", "-y")
    refused(run, "rewind", "--to", "40", saying=("already resumes from opt_step-40",))
    refused(run, "undo", "7", saying=("no change 7", "history"))


def test_nothing_to_undo(run: Run) -> None:
    refused(run, "undo", saying=("no change to take", "history"))


# -- evaluations -----------------------------------------------------------------------------------------


def test_evaluations_that_hold_nothing_known(run: Run) -> None:
    odd = b'\n{"torn\n\xff\xfe\n{"model_name_or_path": "a/b", "task": "\xe9"}\n{"model_name_or_path": "/x/opt_step-40"'
    run.evals.write_bytes(odd)
    refused(run, "trim-evals", "--to", "20", saying=("no evaluation lies beyond step 20",))
    said = run.done(*TO_20, "-y")
    assert run.evals.read_bytes() == odd
    assert "line 5 (torn" in " ".join(said.out.split())


def test_no_evaluations(run: Run) -> None:
    shutil.rmtree(run.root / "evals")
    refused(run, "trim-evals", "--to", "20", saying=("UNKNOWN", "m4ops.toml"), hint=False)
    assert "left alone" in run.done(*TO_20, "-y").out


# -- configuration and run -------------------------------------------------------------------------------


def test_an_unknown_key_of_the_configuration(run: Run) -> None:
    (run.dir / "m4ops.toml").write_text('kill_swich = "/x"\n')
    refused(run, *TO_20, saying=("unknown key `kill_swich`", "did you mean `kill_switch`?", "m4ops.toml"))
    (run.dir / "m4ops.toml").write_text("kill_switch = 3\n")
    refused(run, *TO_20, saying=("`kill_switch` must be a string",))
    (run.dir / "m4ops.toml").write_text("kill_switch = \n")
    refused(run, *TO_20, saying=("no TOML",), hint=False)


def test_an_unknown_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("M4OPS_ROOTS", str(run.root))
    assert m4ops("--run", "tr_other", "history").code == 0
    said = m4ops("--run", "tr_othre", "rewind", "--to", "20")
    assert said.code == 1
    assert "no run `tr_othre`" in said.err and "did you mean tr_other?" in said.err
    said = m4ops("--run", str(run.root / "evals"), "history")
    assert said.code == 1
    assert "this folder is no run" in said.err


def test_a_discarded_branch_is_no_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.done(*TO_20, "-y")
    for folder in ("discarded/exp_1", "discarded/exp_1/opt_step-40", "opt_step-20/accelerator_state"):
        monkeypatch.chdir(run.dir / folder)
        assert m4ops("rewind", "--to", "10", "-n", slurm=run.slurm).out.splitlines()[1] == f"in {run.dir}"


# -- plans and the journal -------------------------------------------------------------------------------


def test_a_plan_that_is_none(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    run.done(*TO_20, "--out", str(plan))
    text, data = plan.read_text(), json.loads(plan.read_text())
    for torn in (text[: len(text) // 2], "", text[:-3]):
        plan.write_text(torn)
        refused(run, "apply", str(plan), saying=("no JSON",), hint=False)
    for wrong in ({}, [], {**data, "schema": "m4ops.plan/9"}):
        plan.write_text(json.dumps(wrong))
        refused(run, "apply", str(plan), saying=("no plan of the form m4ops.plan/1",))
    for wrong in (
        {**data, "actions": 3}, {**data, "actions": ["x"]}, {**data, "actions": [{"kind": "explode"}]},
        {**data, "actions": [{"kind": "move", "source": "/a"}]}, {**data, "surprise": 1}, {**data, "cost": None},
        {**data, "actions": [{"kind": "move", "source": 1, "target": 2}]}, {**data, "wish": 5},
        {k: v for k, v in data.items() if k != "actions"},
    ):  # fmt: skip
        plan.write_text(json.dumps(wrong))
        refused(run, "apply", str(plan), saying=(), hint=False)
    plan.write_bytes(b"\xff\xfe")
    refused(run, "apply", str(plan), saying=("cannot be read",), hint=False)
    refused(run, "apply", str(tmp_path / "nowhere.json"), saying=("cannot be read",), hint=False)


def test_a_plan_of_another_run(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    run.done(*TO_20, "--out", str(plan))
    run.root.rename(run.root.with_name("moved"))
    other = Run(run.root.with_name("moved"))
    refused(other, "apply", str(plan), saying=("the plan is for", str(run.dir)))


def test_a_plan_whose_world_moved_on(run: Run, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    run.done(*TO_20, "--scale-lr", "0.5", "--out", str(plan))
    run.evals.write_bytes(run.evals.read_bytes() + b"\n{}")
    refused(run, "apply", str(plan), saying=("not what the plan was made for", "nothing was touched", "plan again"))
    run.done("scale-lr", "0.5", "--at", "20", "-y")
    refused(run, "apply", str(plan), saying=("as the plan would leave it already",))


def test_a_torn_line_of_the_journal(run: Run) -> None:
    before = run.tree()
    run.done(*TO_20, "-y")
    with (run.dir / ".m4ops" / "journal.jsonl").open("ab") as journal:
        journal.write(b'{"id": "2", "event": "pl')
    run.done("scale-lr", "0.5", "-y")
    run.done("undo", "-y")
    run.done("undo", "-y")
    assert run.tree() == before


def test_a_journal_from_somewhere_else(run: Run) -> None:
    (run.dir / ".m4ops").mkdir()
    for content in (b'{"id": "1", "event": "plan"}\n', b'{"id": "1", "event": "plan", "plan": 3}\n', b"\x00\xff\n"):
        (run.dir / ".m4ops" / "journal.jsonl").write_bytes(content)
        foreign = not content.startswith(b"\x00")
        assert ("no m4ops wrote" in run.m4ops("history").out) is foreign
        assert run.m4ops(*TO_20, "-y").code == int(foreign)


def test_somebody_else_is_at_work(run: Run) -> None:
    from ops import lease

    lock = run.dir / ".m4ops" / "lock"
    with lease.acquire(lock, "rewind --to 10", 600):
        refused(run, *TO_20, saying=("somebody else is at work", f"pid {os.getpid()}", "rewind --to 10"))
    run.done(*TO_20, "-y")


# -- no access, no space ---------------------------------------------------------------------------------


@pytest.fixture
def small_disk(run: Run, tmp_path: Path) -> Iterator[Run]:
    """The run on a file system of its own, of 4 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", place], check=False).returncode:
        pytest.skip("mounting a file system needs root")
    try:
        shutil.copytree(run.root, place / "world")
        there = Run(place / "world")
        there.pointer.write_text(str(there.dir / "opt_step-40"))
        yield there
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill(folder: Path) -> Path:
    """Take the last free byte."""
    file = folder / "filler"
    with file.open("wb", buffering=0) as filler:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while filler.write(bytes(size)):
                    pass
            except OSError:
                continue
    return file


@pytest.mark.parametrize("free", [0, 1, 2, 4, 8], ids="{} pages free".format)
def test_a_full_disk(small_disk: Run, free: int) -> None:
    run, place = small_disk, small_disk.root.parent
    for words in CHANGES:
        filler = fill(place)
        with filler.open("r+b") as file:
            file.truncate(max(0, filler.stat().st_size - free * os.sysconf("SC_PAGE_SIZE")))
        before = run.tree()
        said = run.m4ops(*words, "-y")
        if said.code:
            assert "No space left on device" in said.err, words
            assert "Traceback" not in said.err
            assert run.tree() == before, words
        assert said.code or free, f"{words} took no space at all"
        filler.unlink()
        if said.code:
            run.done(*words, "-y")
        run.done("undo", "-y")
        assert run.tree() == before, words


def test_a_read_only_mount(small_disk: Run) -> None:
    run, place = small_disk, small_disk.root.parent
    for prepared in (False, True):
        if prepared:
            run.done("reset-wandb", "-y")
            run.done("undo", "-y")
        subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        for words in CHANGES:
            refused(run, *words, saying=("nothing was touched", str(run.dir)))
        subprocess.run(["mount", "-o", "remount,rw", place], check=True)


def test_a_run_of_somebody_else(run: Run) -> None:
    """As a user who may read everything and write nothing; in a process of its own, for root ignores modes."""
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    run.done(*TO_20, "--scale-lr", "0.5", "-y")  # imports what the other user may not be able to read
    run.done("undo", "-y")
    shutil.rmtree(run.dir / ".m4ops")
    for folder in (run.root, *run.root.parents):
        if folder.stat().st_uid == 0 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    for path in run.root.rglob("*"):
        path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
    before = run.tree()
    for words in CHANGES:
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            code = 70
            try:
                os.setgroups([])
                os.setresgid(65534, 65534, 65534)
                os.setresuid(65534, 65534, 65534)
                said = run.m4ops(*words, "-y")
                code = (
                    0 if said.code == 1 and "Permission denied" in said.err and "nothing was touched" in said.err else 1
                )
                if code:
                    print(said, file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, words
        assert run.tree() == before
