"""What is done with a finished checkpoint: once each, in order, whatever fails or dies. On really trained runs."""

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest import mock

import pytest
from fake_slurm import FakeSlurm, Row
from runs import Run, Said
from test_crash import KILLED, Layer, killer

from ops import extract, journal, state
from ops.cli import saves, session
from ops.errors import BadInput
from ops.model import Change
from ops.resources import resource
from ops.saves import declared
from ops.shell import Answer

POINTS = int(os.environ.get("M4OPS_POINTS", "12"))
"""Places at which a look is killed; 1000 are all of them."""
HOUR = 3600.0
DAY = 24 * HOUR
EVALS = "evals 0_shots: sbatch --time=5 evals.slurm true {weights}"


@dataclass
class Queue(FakeSlurm):
    """The queue, which also takes jobs: `refuse` is what sbatch answers, `lose` takes a job and gives no answer.

    With a `spool` every process that asks sees the same jobs.
    """

    refuse: str = ""
    lose: bool = False
    spool: Path | None = None
    submitted: list[Sequence[str]] = field(default_factory=list)
    given: list[dict[str, str]] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], timeout: float, env: object = None) -> Answer:
        if argv[0] == "sacct":
            return Answer(1, "", "Slurm accounting storage is disabled")
        if self.spool and self.spool.exists():
            self.rows[:] = [Row(*line.split("\t")) for line in self.spool.read_text().splitlines()]
        if argv[0] != "sbatch":
            return super().__call__(argv, timeout)
        if self.refuse:
            return Answer(1, "", self.refuse)
        self.submitted.append(argv)
        self.given.append(dict(env))  # type: ignore[call-overload]
        comment = next(w for w in argv if w.startswith("--comment=")).partition("=")[2]
        job = str(501 + len(self.rows))
        self.rows.append(Row(job, "", "PENDING", "None", "evals", "root", "/", comment))
        if self.spool:
            with self.spool.open("a") as file:
                file.write("\t".join((job, "", "PENDING", "None", "evals", "root", "/", comment)) + "\n")
        return Answer(124, "", "sbatch did not answer within 15 s") if self.lose else Answer(0, f"{job}\n", "")

    def end(self, how: str = "COMPLETED") -> None:
        """The jobs end; the queue still remembers them."""
        self.rows[:] = [replace(row, state=how) for row in self.rows]


@dataclass
class Site:
    """A run with `on_save`, a queue, and a clock that can be moved on."""

    run: Run
    slurm: Queue
    later: float = 0.0

    def declare(self, *steps: str, keep: str = "last 2") -> None:
        """The run's m4ops.toml."""
        (self.run.dir / "m4ops.toml").write_text(f"on_save = {json.dumps(steps)}\nkeep = {json.dumps([keep])}\n")

    def tick(self, *words: str) -> Said:
        """What cron runs."""
        with (
            mock.patch.object(session, "submitter", lambda: self.slurm),
            mock.patch.object(saves.time, "time", lambda: NOW() + self.later),
        ):
            return self.run.m4ops("watch-saves", *words)

    def path(self, step: int) -> Path:
        return self.run.dir / f"opt_step-{step}"

    def weights(self, step: int) -> tuple[str, ...]:
        return extract.held(self.path(step) / "unwrapped_model")

    def markers(self, step: int) -> set[str]:
        return {p.name for p in self.path(step).iterdir() if p.name.startswith(("run_", "start"))}


NOW = time.time


@pytest.fixture
def site(run: Run) -> Site:
    """Steps 10 to 40, saved a day apart, the last one now; unwrapped_model/ as m4 leaves it."""
    for number, step in enumerate((10, 20, 30, 40)):
        (run.dir / f"opt_step-{step}" / "unwrapped_model").mkdir(exist_ok=True)
        (run.dir / f"opt_step-{step}" / "unwrapped_model" / "config.json").write_text("{}")
        saved(run, step, NOW() - (3 - number) * DAY - 60)
    run.slurm = Queue()
    return Site(run, run.slurm)


def saved(run: Run, step: int, when: float) -> None:
    os.utime(run.dir / f"opt_step-{step}" / "finished-saving", (when, when))


def test_each_step_happens_once_and_in_its_order(site: Site) -> None:
    site.declare("verify deep", "extract bf16", EVALS, "prune")
    before = site.run.tree()
    planned = site.tick("-n")
    assert planned.out.count("WOULD BE DONE") == 4
    assert "opt_step-40" in planned.out
    assert site.run.tree() == before
    said = site.tick()
    assert said.code == 0, said.err
    told = [line.split()[:3] for line in said.out.splitlines()]
    assert [word for _, *word in told] == [
        ["verify", "done:"], ["extract", "done:"], ["evals-0_shots", "submitted:"], ["prune", "done:"],
    ]  # fmt: skip
    assert site.weights(40) == ("model.safetensors",)
    assert site.markers(40) == {"start_run_evals_0_shots"}
    assert sorted(p.name for p in site.run.dir.glob("opt_step-*")) == ["opt_step-30", "opt_step-40"]
    again = site.tick()
    assert again.code == 0
    assert "evals-0_shots runs: job 501 PENDING" in again.out
    assert len(site.slurm.submitted) == 1
    site.slurm.end()
    assert site.tick().out == ""
    assert site.markers(40) == {"run_evals_0_shots_done"}
    assert site.tick("-n").out.count("done") == 4
    assert "nothing to take back" not in site.run.m4ops("undo", "-n").err


def test_older_checkpoints_are_left_alone_and_later_ones_are_not(site: Site) -> None:
    site.declare("extract")
    assert site.tick().out.count("\n") == 1
    site.path(40).rename(site.path(40).with_name("opt_step-50"))  # a new save, by its name and time
    infos = json.loads((site.path(50) / "resume_run_infos.json").read_text())
    (site.path(50) / "resume_run_infos.json").write_text(json.dumps({**infos, "resume_opt_step": 50}))
    (site.path(50) / "unwrapped_model" / "model.safetensors").unlink()
    site.run.pointer.write_text(str(site.path(50)))
    saved(site.run, 50, NOW() + 5)
    (site.path(50) / "finished-saving").rename(site.path(50) / "kept")
    assert site.tick().out == ""  # being saved
    (site.path(50) / "kept").rename(site.path(50) / "finished-saving")
    assert "opt_step-50 extract done" in site.tick().out
    assert [site.weights(step) for step in (10, 20, 30)] == [(), (), ()]


def test_bookkeeping_that_is_lost_is_made_again_from_what_is_there(site: Site) -> None:
    site.declare("verify", "extract", EVALS)
    saved(site.run, 30, NOW() - 2 * HOUR)
    site.tick()
    for file in state.folder(find(site)).glob("saves*"):
        file.write_text("torn {") if file.is_file() else None
    again = site.tick()
    assert again.code == 0, again.err
    assert [line.split()[1] for line in again.out.splitlines()] == ["verify", "evals-0_shots"]
    assert "runs: job 501" in again.out  # by the tag in its comment
    assert len(site.slurm.submitted) == 1
    assert site.weights(30) == ()


def test_a_damaged_checkpoint_is_not_passed_on(site: Site) -> None:
    site.declare("verify", "extract", EVALS, "prune")
    weights = site.path(40) / "accelerator_state" / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 100)
    said = site.tick()
    assert said.code == 1
    assert "opt_step-40 verify failed: damaged: " in said.out
    assert said.out.count("waits: for verify") == 3
    assert not site.slurm.submitted
    assert len(list(site.run.dir.glob("opt_step-*"))) == 4
    finding = site.run.m4ops("check").out
    assert "CRITICAL" in finding
    assert "after a save: verify failed for step 40" in finding
    assert "m4ops verify-checkpoint 40" in finding


def test_what_fails_holds_up_nothing_else_and_is_tried_again_after_a_pause(site: Site) -> None:
    site.declare("verify", "extract", EVALS, "prune")
    (site.path(40) / "unwrapped_model" / "config.json").unlink()
    said = site.tick()
    assert said.code == 1
    assert "extract failed: unwrapped_model/config.json is missing" in said.out
    assert "again in 5 min" in said.out
    assert "prune done" in said.out
    (site.path(40) / "unwrapped_model" / "config.json").write_text("{}")
    assert "extract failed" in site.tick().out  # not yet
    assert "m4ops extract 40 --to-unwrapped-model --dtype bf16" in site.run.m4ops("check").out
    site.later = 301
    assert "extract done" in site.tick().out
    assert len(site.slurm.submitted) == 1
    assert "save-step" not in site.run.m4ops("check", "--json").out


def test_the_pause_grows_and_has_a_limit() -> None:
    from ops.saves.ledger import Record

    record = Record()
    waits = []
    for _ in range(8):
        record = record.begun(0.0)
        waits.append(record.next_try)
    assert waits == [300, 600, 1200, 2400, 3600, 3600, 3600, 3600]


def test_nobody_who_watches_is_said(site: Site) -> None:
    site.declare("verify")
    saved(site.run, 40, NOW() - 2 * HOUR)
    found = json.loads(site.run.m4ops("check", "--json").out)["findings"]
    (finding,) = [f for f in found if f["kind"] == "saves-waiting"]
    assert "opt_step-40" in finding["summary"]
    assert "m4ops cron install" in finding["actions"]
    site.tick()
    assert "saves-waiting" not in site.run.m4ops("check", "--json").out


# -- crashes, and two at once ----------------------------------------------------------------------------


def test_killed_anywhere_everything_is_done_once_and_nothing_else(site: Site, tmp_path: Path) -> None:
    site.declare("verify deep", "extract bf16", EVALS, "prune")
    site.slurm.spool = tmp_path / "spool"
    origin = tmp_path / "origin"
    shutil.copytree(site.run.root, origin, symlinks=True)
    with Layer().between() as layer:
        assert site.tick().code == 0
    wanted = site.run.tree()
    count = len(layer.calls)
    for at in range(1, count + 1, max(1, count // POINTS)):
        shutil.rmtree(site.run.root)
        shutil.copytree(origin, site.run.root, symlinks=True)
        site.slurm.spool.unlink()
        site.slurm.rows.clear()
        site.later = 0
        assert killed_tick(site, at) == KILLED
        for _ in range(3):  # the next looks of cron
            site.tick()
            site.later += 301
        assert site.tick().code == 0, site.tick().out
        assert site.slurm.spool.read_text().count("\n") == 1, f"killed at call {at}: {layer.calls[at - 1]}"
        assert site.run.tree() == wanted, f"killed at call {at}: {layer.calls[at - 1]}"
    assert count > 40


def killed_tick(site: Site, at: int) -> int:
    """A look in a process of its own that is killed at that call to the file system."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            with Layer(killer(at, torn=at % 2 == 0)).between():
                code = site.tick().code
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_two_login_nodes_at_once_do_everything_once(site: Site, tmp_path: Path) -> None:
    site.declare("verify deep", "extract bf16", EVALS, "prune")
    site.slurm.spool = tmp_path / "spool"
    children = []
    for _ in range(4):
        if not (child := os.fork()):
            os._exit(site.tick().code)
        children.append(child)
    assert {os.waitpid(child, 0)[1] for child in children} == {0}
    site.tick()
    assert site.slurm.spool.read_text().count("\n") == 1
    assert site.weights(40) == ("model.safetensors",)
    assert [c.title for c in changes(site)] == ["prune 2 of 4 checkpoints"]
    assert not list(state.folder(find(site)).glob("*.lease"))


def changes(site: Site) -> tuple[Change, ...]:
    found = journal.history(journal.read(site.run.dir))
    assert isinstance(found, tuple)
    return found


def test_a_prune_after_a_save_is_not_what_undo_means(site: Site) -> None:
    site.run.done("scale-lr", "0.5", "-y")
    site.declare("prune")
    assert "2 of 4 checkpoints to the trash" in site.tick().out
    assert [c.unattended for c in changes(site)] == [False, True]
    assert "scale the LR" in site.run.done("status").out or "0.5" in site.run.done("status").out
    assert "undo of change 1" in site.run.done("undo", "-n").out
    site.run.done("undo", "2", "-y")
    assert len(list(site.run.dir.glob("opt_step-*"))) == 4


# -- evaluations -----------------------------------------------------------------------------------------


def test_the_job_of_an_evaluation_is_told_all_and_is_no_job_of_the_training(site: Site) -> None:
    own = site.run.dir / "my evals.sh"
    own.write_text("#!/bin/bash\n")
    site.declare("evals ppl: sbatch -N 2 --comment=mine 'my evals.sh' {step} {weights} --name {run}")
    assert site.tick().code == 0
    (argv,), (env,) = site.slurm.submitted, site.slurm.given
    assert argv[:3] == ("sbatch", "-N", "2")
    assert list(argv[-5:]) == [str(own), "40", str(site.path(40) / "unwrapped_model"), "--name", site.run.dir.name]
    (comment,) = [w for w in argv if w.startswith("--comment=m4ops-saves:")]
    assert comment.endswith(" mine")
    assert f"--chdir={site.run.root}" in argv
    assert env["M4OPS_CHECKPOINT"] == str(site.path(40))
    assert env["M4OPS_EVALS"] == "ppl"
    assert "NONE in the queue" in site.run.m4ops("status").out


def test_an_evaluation_that_fails_is_submitted_again_three_times_at_most(site: Site) -> None:
    site.declare(EVALS)
    for _ in range(5):
        site.tick()
        site.slurm.end("FAILED")
        said = site.tick()
        assert said.code == 1
        assert "ended with FAILED" in said.out
        assert site.markers(40) == set()
        site.later += 2 * HOUR
    assert len(site.slurm.submitted) == 3
    assert "not tried again by itself" in said.out
    found = site.run.m4ops("check").out
    assert "it is not tried again by itself" in found
    own = resource("slurm_templates", "evals.slurm")
    told = f"env M4OPS_CHECKPOINT={site.path(40)} M4OPS_EVALS=0_shots sbatch --time=5 {own} true {site.path(40)}/unwrapped_model"
    assert told in found


def test_a_refused_sbatch_leaves_no_marker(site: Site) -> None:
    site.declare(EVALS)
    site.slurm.refuse = "sbatch: error: Batch job submission failed: Invalid account"
    said = site.tick()
    assert "Invalid account" in said.out
    assert site.markers(40) == set()


def test_a_submission_without_an_answer_is_found_by_its_tag(site: Site) -> None:
    site.declare(EVALS)
    site.slurm.lose = True
    assert "unknown" in site.tick().out
    site.slurm.lose, site.later = False, 2 * HOUR
    assert "runs: job 501" in site.tick().out
    site.slurm.rows.clear()  # and one that never came is submitted again
    for file in state.folder(find(site)).glob("saves-evals*.json"):
        file.write_text(file.read_text().replace('"501"', '"?"'))
    assert "failed: no job with its tag" in site.tick().out
    site.later += 2 * HOUR
    assert "evals-0_shots submitted: job" in site.tick().out
    assert len(site.slurm.submitted) == 2


def test_a_job_of_which_nothing_is_known_is_not_submitted_again(site: Site) -> None:
    site.declare(EVALS)
    site.tick()
    site.slurm.rows.clear()  # MinJobAge is over, and there is no accounting
    site.later = 10 * HOUR
    assert "UNKNOWN (Slurm accounting storage is disabled)" in site.tick().out
    site.slurm.down = True
    assert "the queue is UNKNOWN" in site.tick().out
    assert len(site.slurm.submitted) == 1
    (site.path(40) / "run_evals_0_shots_done").touch()
    assert site.tick().out == ""


def test_an_evaluation_of_somebody_else_is_left_to_them(site: Site) -> None:
    site.declare(EVALS)
    (site.path(40) / "start_run_evals_0_shots").touch()
    assert "if nobody evaluates it, remove the file" in site.tick().out
    assert not site.slurm.submitted


# -- what is declared ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("extract", "verify"), "`extract` stands before `verify`"),
        (("prune", EVALS), "`prune` stands before `evals`"),
        (("verifiy",), "is no step"),
        (("extract fp16",), "is no step"),
        (("evals: sbatch x.slurm",), "is no step"),
        (("evals a: python x.py",), "is not sbatch"),
        (("evals a: sbatch x.slurm {model}",), "{model} means nothing"),
        (("evals a: sbatch 'x.slurm",), "cannot be split"),
        ((EVALS, EVALS), "declared twice"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_done(lines: tuple[str, ...], said: str) -> None:
    with pytest.raises(BadInput) as error:
        declared.steps(lines)
    assert said in str(error.value)


def test_the_tick_of_cron_does_it_too_and_is_silent(site: Site) -> None:
    assert " --saves" in site.run.done("cron", "install", "-n").out
    site.declare("verify", "extract")
    said = site.run.m4ops("check", "--saves", "--sink", "stdout:")
    assert "opt_step" not in said.out + said.err
    assert site.weights(40) == ("model.safetensors",)
    site.declare("verifiy")
    again = site.run.m4ops("check", "--saves")
    assert "on_save: `verifiy` is no step" in again.out


def test_without_a_declaration_the_command_says_how_and_cron_is_silent(site: Site) -> None:
    said = site.tick()
    assert said.code == 1
    assert 'on_save = ["verify"' in said.err
    assert site.run.m4ops("check", "--saves").err == ""
    site.declare("verify", "prune", keep="last 1")
    assert "fewer than two" in site.tick().err


def find(site: Site) -> "state.Run":
    from ops import discovery

    return discovery.find(str(site.run.dir), Path("/"))[0]


# -- what the original satellite scripts got wrong -------------------------------------------------------


def test_fault_1_an_upload_that_failed_five_times_is_not_marked_finished_and_its_only_copy_stays(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("MAX_ATTEMPTS", "1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    site.declare("push", "prune")
    with (site.run.dir / "m4ops.toml").open("a") as file:
        file.write('store = "s3://nobody/there"\nstore_endpoint = "http://127.0.0.1:1"\n')
    text = (site.run.dir / "m4ops.toml").read_text().replace('["last 2"]', '["last 2", "until uploaded"]')
    (site.run.dir / "m4ops.toml").write_text(text)
    for _ in range(6):
        said = site.tick()
        assert "push failed: " in said.out
        assert not list(site.run.dir.glob("*/*upload*"))
        site.later += 2 * HOUR
    assert len(list(site.run.dir.glob("opt_step-*"))) == 4
    assert "m4ops push 40" in site.run.m4ops("check").out


def test_fault_2_after_a_rewind_clean_up_keeps_what_is_resumed_from_not_the_highest_numbers(site: Site) -> None:
    for step in (30, 40):
        saved(site.run, step, NOW() - 9 * DAY)
    site.run.pointer.write_text(str(site.path(20)))  # by hand, without m4ops
    saved(site.run, 20, NOW() - 5 * DAY)
    site.declare("prune")
    assert site.tick().code == 0
    assert sorted(p.name for p in site.run.dir.glob("opt_step-*")) == ["opt_step-10", "opt_step-20"]


def test_fault_3_what_is_declared_names_no_run_so_a_copy_cannot_name_another(site: Site, tmp_path: Path) -> None:
    site.declare("extract")
    other = Run(tmp_path / "other")
    shutil.copytree(site.run.root, other.root)
    other.pointer.write_text(str(other.dir / "opt_step-40"))
    lines = [r.done("cron", "install", "-n").out for r in (site.run, other)]
    assert [str(r.dir) in line for r in (site.run, other) for line in lines] == [True, False, False, True]
    other.done("watch-saves")
    assert extract.held(other.dir / "opt_step-40" / "unwrapped_model")
    assert site.weights(40) == ()


def test_fault_4_a_crash_leaves_no_marker_that_blocks_the_work_for_hours(site: Site) -> None:
    """That two jobs never both win is the test with two login nodes."""
    site.declare("extract")
    marker = site.path(40) / "unwrapped_model" / "started-convert-checkpoint"
    child = os.fork()
    if not child:
        with mock.patch("ops.extract.copying.build", lambda *_: os.kill(os.getpid(), signal.SIGKILL)):
            site.tick()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    assert marker.exists()
    site.later = 301
    assert "extract done" in site.tick().out
    assert not marker.exists()


def test_fault_5_a_failed_sbatch_ends_nothing_and_is_told(site: Site) -> None:
    site.declare(EVALS)
    site.slurm.refuse = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    site.tick()
    assert "after a save: evals-0_shots failed for step 40" in site.run.m4ops("check").out
    site.slurm.refuse, site.later = "", 301
    assert "submitted: job 501" in site.tick().out


def test_fault_6_an_eval_roll_back_loses_no_line_that_nobody_can_parse(site: Site) -> None:
    before = site.run.evals.read_bytes().split(b"\n")
    site.run.done("trim-evals", "--to", "20", "-y")
    after = [p.read_bytes().split(b"\n") for p in site.run.evals.parent.iterdir()]
    assert before in after  # whole, as an archive
    torn = [
        line
        for line in before
        if line.startswith((b"[", b'{"model_name_or_path": "Hugging')) or not line.endswith(b"}")
    ]
    assert all(line in site.run.evals.read_bytes().split(b"\n") for line in torn)
    site.run.done("undo", "-y")
    assert site.run.evals.read_bytes().split(b"\n") == before


def test_fault_7_the_lr_recipe_run_twice_is_refused(site: Site) -> None:
    site.run.done("scale-lr", "0.75", "-y")
    before = site.run.tree()
    again = site.run.m4ops("scale-lr", "0.75", "-y")
    assert again.code == 1 and "--again" in again.err
    assert site.run.tree() == before


def test_fault_8_an_absent_job_is_told_once_not_on_every_tick(site: Site) -> None:
    log = site.run.dir / "logs" / "main_log.txt"
    log.write_text("".join(line for line in log.read_text().splitlines(True)[:20] if "maximum" not in line.lower()))
    first, second, third = (site.run.m4ops("check") for _ in range(3))
    assert first.code == 2 and "is running or queued" in first.out
    assert (second.code, second.out, third.out) == (2, "", "")
