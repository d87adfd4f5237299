"""A change that is killed, or fails, at any call to the file system: taken back to the byte, or finished."""

import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import STEPS, Run, changed, copied
from torch.distributed import checkpoint as dcp

from ops.executor import files

CALLS = (
    "replace", "link", "rename", "mkdir", "rmdir", "unlink", "pwrite", "write", "fsync", "ftruncate", "chmod", "fchmod",
)  # fmt: skip
GROWING = ("mkdir", "link", "write")
"""Calls that a full disk refuses."""
TORN = ("pwrite", "write")
JOURNAL = "journal.jsonl"
KILLED = -signal.SIGKILL


@dataclass
class Layer:
    """Stands between this process and the file system: notes each call, and lets `fault` have a word before it."""

    fault: Callable[[int, str, tuple[Any, ...]], None] = lambda at, name, args: None
    calls: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def between(self) -> Iterator["Layer"]:
        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, self._wrapped(name, getattr(os, name)))
            yield self

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            self.calls.append("staged" if name == "pwrite" and staged(args[0]) else name)
            self.fault(len(self.calls), name, args)
            return call(*args, **options)

        return wrapped


def staged(handle: int) -> bool:
    """Whether these bytes go to new content that is still being built."""
    return "/.m4ops/" in os.readlink(f"/proc/self/fd/{handle}")


def killer(at: int, torn: bool, synced: Path | None = None) -> Callable[[int, str, tuple[Any, ...]], None]:
    """SIGKILL before call number `at`; `torn`: half of its bytes are written still.

    `synced` is told how long the journal is each time it is made durable.
    """
    write, pwrite = os.write, os.pwrite

    def fault(number: int, name: str, args: tuple[Any, ...]) -> None:
        if number != at:
            if synced and name == "fsync" and os.readlink(f"/proc/self/fd/{args[0]}").endswith(JOURNAL):
                synced.write_text(str(os.fstat(args[0]).st_size))
            return
        if torn and name in TORN:
            half = args[1][: len(args[1]) // 2]
            write(args[0], half) if name == "write" else pwrite(args[0], half, args[2])
        os.kill(os.getpid(), signal.SIGKILL)

    return fault


def killed(run: Run, at: int, words: tuple[str, ...], torn: bool = False, synced: Path | None = None) -> int:
    """The command in a process of its own that dies at that call; its exit code."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            with Layer(killer(at, torn, synced)).between():
                code = run.m4ops(*words).code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@dataclass
class Story:
    """A change, the tree before it and after it, and the calls that lead there."""

    run: Run
    words: tuple[str, ...]
    before: dict[str, object]
    after: dict[str, object]
    calls: list[str]

    def anew(self) -> Run:
        shutil.rmtree(self.run.root)
        shutil.copytree(self.run.root.with_name("origin"), self.run.root, symlinks=True)
        return self.run

    def aside(self) -> Callable[[], None]:
        """Keeps the tree as it is now; what is returned brings it back."""
        shutil.copytree(self.run.root, kept := self.run.root.with_name("kept"), symlinks=True)

        def back() -> None:
            shutil.rmtree(self.run.root)
            os.rename(kept, self.run.root)

        return back


def story(run: Run, *words: str) -> Story:
    """Play the change once, undisturbed, and set everything back."""
    words = (*words, "-y")
    shutil.copytree(run.root, run.root.with_name("origin"), symlinks=True)
    before = run.tree()
    with Layer().between() as layer:
        said = run.m4ops(*words)
    assert said.code == 0, said.err
    told = Story(run, words, before, run.tree(), layer.calls)
    assert told.before != told.after
    told.anew()
    return told


def everything(run: Run) -> Story:
    return story(run, "rewind", "--to", "10", "--scale-lr", "0.5", "--reset-optimizer")


def in_place(run: Run, patch: pytest.MonkeyPatch) -> Story:
    """The scheduler's numbers keep their length; one of the optimizer's takes another, so its file gets a new end."""
    patch.setattr(files, "SMALL", 0)
    path = run.state(20, "optimizer.bin")
    state = torch.load(path)
    state["param_groups"][1]["initial_lr"] = 1
    torch.save(state, path)
    return story(run, "set-lr", "1e-4", "--at", "20")


def by_config(run: Run) -> Story:
    (run.root / "train.yaml").write_text("hparams:\n  load_optimizer_states: True\n  seed: 5\n")
    (run.dir / "m4ops.toml").write_text('trainer_config = "../train.yaml"\n')
    return story(run, "reset-optimizer")


def by_copy(run: Run) -> Story:
    """In a Lightning run, whose resume must find a copy of the wanted file."""
    for step, optimizer, schedule in other_layout(run):
        states = {"optimizer_states": [optimizer.state_dict()], "lr_schedulers": [schedule.state_dict()]}
        whole = {"pytorch-lightning_version": "2.6.6", "global_step": step, "state_dict": {}, **states}
        torch.save(whole, run.dir / f"epoch=0-step={step}.ckpt")
    shutil.copyfile(run.dir / "epoch=0-step=20.ckpt", run.dir / "last.ckpt")
    return story(run, "rewind", "--to", "10", "--scale-lr", "0.5", "--reset-optimizer")


def of_hf_trainer(run: Run) -> Story:
    """Checkpoints of which a resume takes the highest, and whose folders keep their time."""
    for step, optimizer, schedule in other_layout(run):
        (place := run.dir / f"checkpoint-{step}").mkdir()
        torch.save({}, place / "pytorch_model.bin")
        torch.save(optimizer.state_dict(), place / "optimizer.pt")
        torch.save(schedule.state_dict(), place / "scheduler.pt")
        (place / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    return story(run, "rewind", "--to", "10", "--set-lr", "1e-4")


def distributed(run: Run, patch: pytest.MonkeyPatch) -> Story:
    """torchtitan's: many values in one file, each with checksums of its own, changed in their places."""
    patch.setattr(files, "SMALL", 0)
    for step, optimizer, schedule in other_layout(run):
        state = {"optimizer": optimizer.state_dict(), "lr_scheduler": schedule.state_dict()}
        with warnings.catch_warnings(action="ignore"):  # that no process group is there
            dcp.save(state, checkpoint_id=str(run.dir / f"step-{step}"), no_dist=True)
    return story(run, "rewind", "--to", "10", "--scale-lr", "0.5")


def other_layout(run: Run) -> Iterator[tuple[int, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]]:
    """A training in the place of the run's own; what it has after steps 10 and 20."""
    for step in STEPS[:3]:
        shutil.rmtree(run.dir / f"opt_step-{step}")
    run.pointer.unlink()
    weight = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([weight])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for step in range(1, 21):
        weight.grad = torch.ones(4)
        optimizer.step()
        schedule.step()
        if step % 10 == 0:
            yield step, optimizer, schedule


@pytest.fixture
def run(trained: Path) -> Iterator[Run]:
    """A lean copy in memory, where there is room in it: hundreds of copies are made of it."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        run = copied(trained, Path(folder) / "world")
        for step in STEPS:
            for name in ("tokenizer", "unwrapped_model", "resumable_states"):
                shutil.rmtree(run.dir / f"opt_step-{step}" / name)
            run.state(step, "random_states_0.pkl").unlink()
        shutil.rmtree(run.dir / "opt_step-40")
        run.pointer.write_text(str(run.dir / "opt_step-30"))
        yield run


STORIES: dict[str, Callable[[Run], Story]] = {
    "everything": everything, "by-config": by_config, "by-copy": by_copy, "of-hf-trainer": of_hf_trainer,
}  # fmt: skip
IN_PLACE = {"in-place": in_place, "distributed": distributed}


@pytest.fixture(params=[*STORIES, *IN_PLACE])
def told(request: pytest.FixtureRequest, run: Run, monkeypatch: pytest.MonkeyPatch) -> Story:
    name = request.param
    return STORIES[name](run) if name in STORIES else IN_PLACE[name](run, monkeypatch)


def points(calls: list[str]) -> Iterator[tuple[int, bool]]:
    """Before every call that changes what counts, and for those that write also in the middle of it."""
    for at, name in enumerate(calls, 1):
        if name not in ("fsync", "staged"):
            yield at, False
        if name in TORN:
            yield at, True


def assert_same(now: dict[str, object], wanted: dict[str, object], when: str) -> None:
    assert not changed(now, wanted), when


def test_killed_at_any_call_it_is_undone_or_finished(told: Story) -> None:
    assert len(told.calls) > 20
    for at, torn in points(told.calls):
        when = f"killed before call {at} ({told.calls[at - 1]}{', torn' if torn else ''})"
        run = told.anew()
        assert killed(run, at, told.words, torn) == KILLED, when
        back = told.aside()
        said = run.m4ops("undo", "-y")
        assert said.code == 0 or "no change to take" in said.err, f"{when}: {said.err}"
        assert_same(run.tree(), told.before, f"{when}, undone")
        back()
        begun = said.code == 0
        said = run.m4ops("apply", "1", "-y")
        assert said.code == 0 or "nothing to finish" in said.err or not begun, f"{when}: {said.err}"
        assert_same(run.tree(), told.after if begun else told.before, f"{when}, finished")


@pytest.mark.parametrize("told", ["everything", "in-place"], indirect=True)
def test_what_the_journal_loses_with_the_power_the_files_tell(told: Story) -> None:
    synced = told.run.root.with_name("synced")
    lost = 0
    for at in (number for number, name in enumerate(told.calls, 1) if name in ("write", "pwrite", "replace", "rename")):
        run = told.anew()
        synced.write_text("0")
        assert killed(run, at, told.words, synced=synced) == KILLED
        with contextlib.suppress(FileNotFoundError), open(run.dir / ".m4ops" / JOURNAL, "r+b") as journal:
            lost += journal.seek(0, os.SEEK_END) > int(synced.read_text())
            journal.truncate(int(synced.read_text()))
        said = run.m4ops("undo", "-y")
        assert said.code == 0 or "no change to take" in said.err, f"before call {at}: {said.err}"
        assert_same(run.tree(), told.before, f"the power went before call {at}")
    assert lost


def test_an_undo_killed_at_any_call_is_ended_by_another(told: Story) -> None:
    run = told.anew()
    run.done(*told.words)
    back = told.aside()
    with Layer().between() as layer:
        run.done("undo", "-y")
    calls = list(layer.calls)
    back()
    for at, torn in points(calls):
        back = told.aside()
        when = f"undo killed before call {at} ({calls[at - 1]}{', torn' if torn else ''})"
        assert killed(run, at, ("undo", "-y"), torn) == KILLED
        said = run.m4ops("undo", "-y")
        assert said.code == 0 or "no change to take" in said.err, f"{when}: {said.err}"
        assert_same(run.tree(), told.before, when)
        back()


def test_killed_again_while_it_is_taken_back(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    told = in_place(run, monkeypatch)
    middle = [at for at, name in enumerate(told.calls, 1) if name == "pwrite"]
    for at in middle[::3]:
        told.anew()
        assert killed(run, at, told.words, torn=True) == KILLED
        again = 0
        while killed(run, again := again + 1, ("undo", "-y"), torn=True) == KILLED:
            assert again < 200
        assert_same(run.tree(), told.before, f"killed before call {at}, then at each call of the undo")
        assert "there is no change" in run.m4ops("undo", "-y").err


# -- a call fails ----------------------------------------------------------------------------------------


def failing(at: int, code: int, lasting: bool) -> Callable[[int, str, tuple[Any, ...]], None]:
    """Call number `at` fails; `lasting`: and so does every later one that needs space."""

    def fault(number: int, name: str, args: tuple[Any, ...]) -> None:
        if number == at or (lasting and number > at and name in GROWING):
            raise OSError(code, os.strerror(code), str(args[0]))

    return fault


@pytest.mark.parametrize("told", ["everything", "by-config", "by-copy", "in-place"], indirect=True)
@pytest.mark.parametrize(("code", "lasting"), [(errno.EIO, False), (errno.ENOSPC, True)], ids=["EIO", "disk-full"])
def test_a_failing_call_rolls_everything_back(told: Story, code: int, lasting: bool) -> None:
    for at, name in enumerate(told.calls, 1):
        if (lasting and name not in GROWING) or (name == told.calls[at - 2] == "staged"):
            continue
        run = told.anew()
        when = f"call {at} ({name}) fails"
        with Layer(failing(at, code, lasting)).between():
            said = run.m4ops(*told.words)
        if said.code == 0:
            assert_same(run.tree(), told.after, f"{when}, and it does not matter")
            continue
        if "all is done, but" in said.err:
            assert_same(run.tree(), told.after, f"{when}: {said.err}")
            continue
        assert os.strerror(code) in said.err, f"{when}: {said.err}"
        assert "Traceback" not in said.err
        assert_same(run.tree(), told.before, f"{when}: {said.err}")
        shutil.rmtree(run.dir / ".m4ops" / "lock", ignore_errors=True)  # the process that held it has ended
        again = run.m4ops(*told.words)
        assert again.code == 0, f"{when}, then once more: {again.err}"
        assert_same(run.tree(), told.after, f"{when}, then once more")


def test_what_keeps_no_original_is_finished_or_said_to_be_done(run: Run) -> None:
    told = story(run, "reset-optimizer", "--no-originals", "--at", "20")
    for at in (number for number, name in enumerate(told.calls, 1) if name in ("replace", "write")):
        told.anew()
        assert killed(run, at, told.words) == KILLED
        back = told.aside()
        said = run.m4ops("undo", "-y")
        if said.code == 0 or "no change to take" in said.err:
            assert_same(run.tree(), told.before, f"killed before call {at}, undone")
        else:
            assert "to take it back with" in said.err or "nothing to take back" in said.err, said.err
            assert_same(run.tree(), told.after, f"killed before call {at}: done")
        back()
        if run.m4ops("apply", "1", "-y").code == 0:
            assert_same(run.tree(), told.after, f"killed before call {at}, finished")
