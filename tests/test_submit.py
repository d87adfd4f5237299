"""`m4ops submit` and `m4ops diff`, with the embedded scheduler in Slurm's place; tests/test_live_submit.py has the real one."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

import pytest
from runs import Said
from slurm_lab.processes import until

from ops import cli, secrecy
from ops.cli import session
from ops.demo import scheduler
from ops.errors import BadInput
from ops.executor import submission
from ops.interventions import sbatch_flags
from ops.resources import resource
from ops.shell import Answer

KEY = "7f3e9b1c5d2a8640e1f7c3b9d5a2864017e3f9b1"


class Login:
    """A person on the login node: a folder, a run, an environment."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.run, self.patch = root, root / "tr_new", patch
        self.run.mkdir()
        self.env(M4OPS_EMBEDDED=str(root / "slurm"), TRAIN_CMD="sleep 60", WANDB_API_KEY=KEY)
        patch.chdir(root)

    def env(self, **more: str) -> None:
        for name, value in more.items():
            self.patch.setenv(name, value)

    def m4ops(self, *words: str) -> Said:
        out, err = io.StringIO(), io.StringIO()
        argv = ["m4ops", "--run", str(self.run), *words]
        with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = 0
            try:
                cli.main()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Said(code, out.getvalue(), err.getvalue())

    def done(self, *words: str) -> str:
        said = self.m4ops(*words)
        assert said.code == 0, said.err
        return said.out

    def refused(self, *words: str) -> str:
        said = self.m4ops(*words)
        assert said.code == 1, said.out + said.err
        return said.err

    def planned(self, *words: str) -> tuple[str, ...]:
        """The sbatch command that would run."""
        file = self.root / "plan.json"
        self.done("submit", "--out", str(file), *words)
        return tuple(json.loads(file.read_text())["actions"][0]["argv"])

    def queue(self, what: str = "%i") -> list[str]:
        said = scheduler.answer(["squeue", "-h", "-o", what], self.root / "slurm", os.environ, self.root)
        return said.stdout.split()

    def kept(self) -> list[Path]:
        return sorted(self.run.glob(".m4ops/submitted/*"))

    def written(self) -> str:
        """Everything below the run that is written down, m4ops's own folder included."""
        files = [p for p in self.root.rglob("*") if p.is_file() and not p.is_relative_to(self.root / "slurm")]
        return "\n".join(p.read_text(errors="replace") for p in files)


@pytest.fixture
def login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Login]:
    yield Login(tmp_path, monkeypatch)
    scheduler.stop(tmp_path / "slurm")


def test_a_dry_run_prints_the_very_script_and_changes_nothing(login: Login) -> None:
    text = login.done("submit", "--array", "1-20%1", "-n", "--", "--nodes=4")
    assert resource("slurm_templates", "train.slurm").read_text() in text
    assert "--array=1-20%1" in text and "--nodes=4" in text and "WANDB_API_KEY" in text and KEY not in text
    assert list(login.run.iterdir()) == [] and login.queue() == []


def test_what_is_submitted_is_kept_without_its_secrets(login: Login) -> None:
    (login.root / "c.yaml").write_text("lr: 0.1\n")
    login.env(TRAIN_CMD="sleep 60 # --config c.yaml", NCCL_DEBUG="INFO", DATABASE_URL="postgres://me:hunter2@db/x")
    login.done("submit", "-y")
    (folder,) = login.kept()
    assert (folder / "script.slurm").read_text() == resource("slurm_templates", "train.slurm").read_text()
    assert (folder / "config.yaml").read_text() == "lr: 0.1\n"
    env = json.loads((folder / "environment.json").read_text())
    assert env["values"]["NCCL_DEBUG"] == "INFO"
    assert {"WANDB_API_KEY", "DATABASE_URL"} <= set(env["withheld"])
    record = json.loads((folder / "submission.json").read_text())
    assert record["job"] == "1" and record["argv"][-1] == str(folder / "script.slurm")
    assert KEY not in login.written() and "hunter2" not in login.written()


def test_a_second_submission_needs_again_and_waits_for_the_first(login: Login) -> None:
    login.done("submit", "--array", "1-3%1", "-y")
    assert "in the queue already" in login.refused("submit", "-y")
    assert len(login.kept()) == 1
    assert "--dependency=afterany:1" in login.planned("--again")
    assert "--dependency=singleton" in login.planned("--again", "--after", "singleton")
    assert not [w for w in login.planned("--again", "--after", "none") if w.startswith("--dependency")]
    login.done("submit", "--again", "-y")
    assert len(login.kept()) == 2


def test_undo_cancels_the_job_that_was_made_and_no_other(login: Login) -> None:
    login.done("submit", "-y")
    login.done("submit", "-y", "--again")
    assert until(lambda: sorted(login.queue()) == ["1", "2"])
    login.done("undo", "2", "-y")
    assert until(lambda: login.queue() == ["1"])
    assert login.m4ops("undo", "2", "-y").code == 1


def test_sbatch_variables_and_the_scripts_own_lines_are_not_overruled(login: Login) -> None:
    own = login.root / "mine.slurm"
    own.write_text("#!/bin/bash\n#SBATCH --output=mine-%j.out -J from_script\nsleep 1\n")
    names = [w.partition("=")[0] for w in login.planned("--template", str(own))]
    assert "--output" not in names and "--job-name" not in names
    login.env(SBATCH_JOB_NAME="from_env", SBATCH_OUTPUT=f"{login.root}/%j.out", SBATCH_TIMELIMIT="30")
    names = [w.partition("=")[0] for w in login.planned()]
    assert "--output" not in names and "--job-name" not in names and "--time" not in names
    login.done("submit", "-y")
    assert login.queue("%j") == ["from_env"]


def test_the_job_gets_the_users_environment_and_nothing_of_ours(login: Login) -> None:
    login.env(TRAIN_CMD='env > "$SAVE_DIR/seen"', SLURM_JOB_ID="77", SLURM_CPU_BIND="none", CACHE="/scratch/me")
    login.done("submit", "-y")
    assert until(lambda: login.queue() == [])
    seen = dict(line.partition("=")[::2] for line in (login.run / "seen").read_text().splitlines())
    assert seen["WANDB_API_KEY"] == KEY and seen["CACHE"] == "/scratch/me"
    assert seen["SLURM_JOB_ID"] == "1" and "SLURM_CPU_BIND" not in seen
    assert "SLURM_TIME_FORMAT" not in seen and "SLURM_BITSTR_LEN" not in seen


def test_a_chosen_environment_is_handed_on_with_what_the_script_needs(login: Login) -> None:
    login.env(SBATCH_EXPORT="CACHE", CACHE="/scratch/me")
    export = next(w for w in login.planned() if w.startswith("--export="))
    assert set(export.partition("=")[2].split(",")) == {"CACHE", "TRAIN_CMD", "M4OPS_SAVE_DIR", "M4OPS_SUBMISSION"}
    said = " ".join(login.done("submit", "-n").split())
    assert (
        "nothing else of your environment reaches the tasks" in said and "WANDB_API_KEY" not in said.partition("#!")[0]
    )
    assert "nothing else of your environment" not in login.done("submit", "-n", "--", "--export=ALL,CACHE")


SPILLS = [
    ("flags", ("--", f"--export=ALL,WANDB_API_KEY={KEY}"), {}),
    ("TRAIN_CMD", (), {"TRAIN_CMD": f"WANDB_API_KEY={KEY} python train.py"}),
    ("TRAIN_CMD", (), {"TRAIN_CMD": "HF_TOKEN=abc123def456 python train.py"}),
    ("TRAIN_CMD", (), {"TRAIN_CMD": "python train.py --x violets", "M4OPS_SECRETS": "FLOWER", "FLOWER": "violets"}),
]


@pytest.mark.parametrize(("where", "words", "env"), SPILLS)
def test_a_secret_where_everybody_reads_is_refused_by_name(
    login: Login, where: str, words: tuple[str, ...], env: Mapping[str, str]
) -> None:
    login.env(**env)
    said = login.refused("submit", "-y", *words)
    assert f"stands in the {where}" in said or f"stands in {where}" in said
    assert KEY not in said and "abc123def456" not in said and "violets" not in said
    assert login.kept() == [] and not (login.run / ".m4ops" / "journal.jsonl").exists()


def test_a_plan_of_another_carries_its_command_but_no_secret(login: Login) -> None:
    login.env(TRAIN_CMD="sleep 61")
    login.planned()
    plan = login.root / "plan.json"
    assert KEY not in plan.read_text()
    login.env(TRAIN_CMD="sleep 99")
    login.patch.delenv("WANDB_API_KEY")
    assert "WANDB_API_KEY was set when this was planned" in login.refused("apply", str(plan), "-y")
    login.env(WANDB_API_KEY=KEY)
    login.done("apply", str(plan), "-y")
    assert json.loads((login.kept()[0] / "submission.json").read_text())["variables"]["TRAIN_CMD"] == "sleep 61"


def test_a_job_that_came_meanwhile_stops_a_plan(login: Login) -> None:
    login.planned()
    login.done("submit", "-y")
    assert "came into the queue meanwhile" in login.refused("apply", str(login.root / "plan.json"), "-y")
    assert len(login.kept()) == 1 and login.queue() == ["1"]


def test_the_same_again_needs_nothing_typed(login: Login) -> None:
    login.env(TRAIN_CMD="true")
    login.done("submit", "--array", "1-2%1", "-y", "--", "--time=100", "-N1")
    assert until(lambda: login.queue() == [])
    first = json.loads((login.kept()[0] / "submission.json").read_text())["argv"]
    login.patch.delenv("TRAIN_CMD")
    login.patch.delenv("WANDB_API_KEY")
    login.patch.chdir("/")
    assert "TRAIN_CMD is not set" in login.refused("submit", "-n")
    assert "were set last time and are not now: WANDB_API_KEY" in login.done("submit", "--same", "-n")
    again = login.planned("--same")
    assert [w for w in again if "submi" not in w] == [w for w in first if "submi" not in w]


def test_words_that_would_change_what_is_run_are_refused(login: Login) -> None:
    assert "`other.slurm` is no option" in login.refused("submit", "-n", "--", "-N", "2", "other.slurm")
    assert "--template FILE" in login.refused("submit", "-n", "--", "--wrap=hostname")
    assert "--wait cannot" in login.refused("submit", "-n", "--", "--wait")
    assert "given twice" in login.refused("submit", "-n", "--array", "1-2", "--", "-a1-2")
    assert "exclude one another" in login.refused("submit", "-n", "--after", "singleton", "--", "-d", "after:1")
    assert "keep SAVE_DIR from the job" in login.refused("submit", "-n", "--", "--export=NONE")
    assert "there are: evals, train" in login.refused("submit", "-n", "--template", "nosuch")


def test_output_in_a_folder_that_is_missing_would_lose_the_job(login: Login) -> None:
    """Slurm fails such a job and writes no log anywhere."""
    said = login.refused("submit", "-y", "--", "--output=/nonexistent/%j.out")
    assert "does not exist" in said and login.kept() == [] and login.queue() == []


def test_a_look_right_after_shows_the_job(login: Login) -> None:
    (login.run / "logs").mkdir()
    (login.run / "logs" / "main_log.txt").touch()
    assert "NONE in the queue" in login.done("status")
    login.done("submit", "-y", "--", "--hold")
    assert "NONE in the queue" not in login.done("status")


def test_nodes_the_run_is_kept_away_from_stay_excluded(login: Login) -> None:
    (login.run / ".m4ops").mkdir()
    (login.run / ".m4ops" / "exclude").write_text("n3\nn7\n")
    excluded = [w for w in login.planned("--", "-N2", "-x", "n4") if w.startswith(("-x", "--exclude"))]
    assert excluded == ["--exclude=n[3-4,7]"]
    login.env(SBATCH_EXCLUDE="n8")
    assert "--exclude=n[3,7-8]" in login.planned()


@pytest.mark.parametrize(
    ("limit", "signal"), [("10", "B:USR1@200"), ("20:00:00", ""), ("19", "B:USR1@380"), ("1-0", "")]
)
def test_a_short_job_gets_its_warning_later(login: Login, limit: str, signal: str) -> None:
    added = [w.removeprefix("--signal=") for w in login.planned("--", f"--time={limit}") if w.startswith("--signal")]
    assert added == ([signal] if signal else [])


def _unanswered(login: Login, heard: bool) -> Callable[[Sequence[str], float, Mapping[str, str]], Answer]:
    """sbatch that times out, whether or not the controller heard it."""
    real = session.submitter()

    def submit(argv: Sequence[str], timeout: float, env: Mapping[str, str]) -> Answer:
        if heard:
            assert real(argv, timeout, env).returncode == 0
        return Answer(1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation")

    login.patch.setattr(session, "submitter", lambda: submit)
    login.patch.setattr(submission, "PAUSE", 0.02)
    return real


def test_an_unanswered_submission_that_was_heard_is_made_once(login: Login) -> None:
    _unanswered(login, heard=True)
    said = login.m4ops("submit", "-y")
    assert said.code == 0 and "job 1 is submitted" in said.err
    assert login.queue() == ["1"] and len(login.kept()) == 1


def test_an_unanswered_submission_that_was_not_heard_says_so(login: Login) -> None:
    _unanswered(login, heard=False)
    assert "no job was made" in login.refused("submit", "-y")
    assert login.queue() == [] and login.kept() == []


@pytest.mark.parametrize("heard", [True, False])
def test_what_nobody_can_tell_is_unfinished_and_finished_later(login: Login, heard: bool) -> None:
    real, silent = _unanswered(login, heard), []
    look = session.scheduler()

    def ask(argv: Sequence[str], timeout: float) -> Answer:
        down = silent and argv[0] == "squeue"
        return Answer(1, "", "slurm_load_jobs error: Socket timed out") if down else look(argv, timeout)

    def submit(argv: Sequence[str], timeout: float, env: Mapping[str, str]) -> Answer:
        silent.append(True)
        return session_submit(argv, timeout, env)

    session_submit = session.submitter()
    login.patch.setattr(session, "submitter", lambda: submit)
    login.patch.setattr(session, "scheduler", lambda: ask)
    login.patch.setattr(submission, "LOOK_LIMIT", 0.1)
    said = login.m4ops("submit", "-y")
    assert said.code == 2 and "whether the job was submitted is UNKNOWN" in said.err
    silent.clear()
    login.patch.setattr(session, "submitter", lambda: real)
    login.done("apply", "1", "-y")
    assert login.queue() == ["1"] and len(login.kept()) == 1


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("command", ["apply", "undo"])
def test_a_submission_that_was_cut_short_is_finished_once_or_taken_back(
    login: Login, heard: bool, command: str
) -> None:
    real = session.submitter()

    def cut(argv: Sequence[str], timeout: float, env: Mapping[str, str]) -> Answer:
        if heard:
            real(argv, timeout, env)
        raise KeyboardInterrupt

    login.patch.setattr(session, "submitter", lambda: cut)
    said = login.m4ops("submit", "-y")
    assert said.code == 2 and "change 1 is unfinished" in said.err
    assert "unfinished" in login.m4ops("submit", "--again", "-y").err
    login.patch.setattr(session, "submitter", lambda: real)
    login.done(command, "1", "-y")
    assert until(lambda: login.queue() == (["1"] if command == "apply" else []))
    assert len(login.kept()) == 1


def test_a_refusal_is_slurms_own_words_and_leaves_nothing(login: Login) -> None:
    said = login.refused("submit", "-y", "--array", "5-1")
    assert "Invalid job array specification" in said and "no job was made" in said
    assert login.kept() == []


NAMES = {
    "WANDB_API_KEY": True, "HF_TOKEN": True, "AWS_SECRET_ACCESS_KEY": True, "DBPASSWORD": True, "GH_PAT": True,
    "SLACK_WEBHOOK_URL": True, "TOKENIZERS_PARALLELISM": False, "PATH": False, "PWD": False, "NUM_WORKERS": False,
    "XDG_SESSION_TYPE": False, "KEYBOARD": False, "MONKEY": False,
}  # fmt: skip
VALUES = {
    "https://me:pw@host/x": True, KEY: True, "hf_abcdef": True, "/home/me/data": False, "1,2,3,4": False, "INFO": False,
    "postgresql://host/db": False, "/scratch/run-2026-11-21/opt_step-16000": False, "eyJhbGciOiJIUzI1NiJ9.x": True,
}  # fmt: skip


@pytest.mark.parametrize(("name", "secret"), NAMES.items())
def test_a_secret_is_told_by_its_name(name: str, secret: bool) -> None:
    assert secrecy.is_secret(name, "x") is secret


@pytest.mark.parametrize(("value", "secret"), VALUES.items())
def test_a_secret_is_told_by_its_value(value: str, secret: bool) -> None:
    assert secrecy.is_secret("SOMETHING", value) is secret


def test_a_value_that_repeats_a_secret_is_withheld_too() -> None:
    plain, withheld = secrecy.parted({"MY_PASSWORD": "open sesame", "OPTS": "--pw open sesame", "A": "b"})
    assert plain == {"A": "b"} and withheld == ("MY_PASSWORD", "OPTS")


def test_options_are_told_from_values_as_sbatch_does() -> None:
    words = ("-N2", "-p", "train", "--time", "10", "--exclu=n1", "-Hv", "--exclusive", "--newer-flag=3", "-a", "1-3")
    flags = sbatch_flags.parse(words)
    assert [(f.name, f.value) for f in flags] == [
        ("nodes", "2"), ("partition", "train"), ("time", "10"), ("exclu", "n1"), ("hold", ""), ("verbose", ""),
        ("exclusive", ""), ("newer-flag", "3"), ("array", "1-3"),
    ]  # fmt: skip
    assert " ".join(w for f in flags for w in f.words) == " ".join(words).replace("-Hv", "-H -v")
    with pytest.raises(BadInput, match="lacks its value"):
        sbatch_flags.parse(("--time",))


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("30", 1800), ("30:15", 1815), ("2:00:00", 7200), ("1-12", 129600), ("1-0:30", 88200), ("UNLIMITED", None)],
)
def test_a_time_limit_is_understood(limit: str, seconds: int | None) -> None:
    assert sbatch_flags.seconds(limit) == seconds


def test_two_starts_of_a_chain_are_compared(login: Login) -> None:
    login.env(TRAIN_CMD='echo "torch==2.$SLURM_ARRAY_TASK_ID" > "$SAVE_DIR/${SLURM_JOB_ID}_requirements.txt"')
    login.done("submit", "--array", "1-2%1", "-y")
    assert until(lambda: login.queue() == [])
    text = login.done("diff", "1_1", "1_2")
    assert "torch: 2.1 → 2.2" in text
    assert "secret" not in text  # one submission, one environment
    said = json.loads(login.done("diff", "1_1", "1_2", "--json"))
    assert said["schema"] == "m4ops.diff/1" and said["sections"]["environment"] == []
    assert "unknown" in said["sections"]["config"]
    assert "nothing is known of job 9" in login.refused("diff", "1_1", "9")
    login.env(WANDB_API_KEY=KEY[::-1], FOO="bar")
    login.done("submit", "-y")
    assert until(lambda: login.queue() == [])
    text = login.done("diff", "1_2", "3")
    assert "+ FOO: bar" in text and "WANDB_API_KEY" in text.split("whether the value of a secret changed:")[1]


def test_an_id_that_slurm_gives_again_does_not_mix_two_jobs(login: Login) -> None:
    """A controller that lost its state, or whose ids ran over, begins anew: both jobs are job 1."""
    login.env(TRAIN_CMD='echo "torch==2.1" > "$SAVE_DIR/1_requirements.txt"', FOO="old")
    login.done("submit", "-y")
    assert until(lambda: login.queue() == [])
    (first,) = login.kept()
    start = login.run / ".m4ops" / "starts" / "1.0"
    (start.parent / "1.1").write_text(start.read_text().replace("restart=0", "restart=1"))
    for path in (*start.parent.iterdir(), login.run / "1_requirements.txt"):  # long ago
        path.write_text(path.read_text().replace("time=1", "time=0"))
        os.utime(path, (1e9, 1e9))
    scheduler.stop(login.root / "slurm")
    shutil.rmtree(login.root / "slurm")
    login.env(TRAIN_CMD="true", FOO="new")
    login.done("submit", "-y")
    assert until(lambda: login.queue() == [])
    text = login.done("diff", first.name, "1")
    assert "FOO: old → new" in text
    assert "1_requirements.txt is older than this start" in login.done("diff", "1", "1", "--json")
    said = login.done("diff", f"{first.name}:0", f"{first.name}:1", "--json")
    assert "a later start of the job, or of one of the same id, wrote over it" in said
    assert "nothing is known of job 1:1" in login.refused("diff", "1", "1:1")
    assert login.done("diff", "1:0", "1").split("\n")[1:] == login.done("diff", "1", "1").split("\n")[1:]


def test_code_that_changed_in_the_queue_is_told_by_what_ran(login: Login) -> None:
    code = login.root / "code"
    code.mkdir()

    def git(*words: str) -> None:
        subprocess.run(("git", "-C", code, "-c", "user.name=x", "-c", "user.email=x@y", *words), check=True)

    git("init", "-q")
    (code / "a.py").write_text("1\n")
    git("add", "a.py")
    git("commit", "-qm", "one")
    login.env(M4OPS_REPO=str(code), TRAIN_CMD="true")
    login.done("submit", "-y")
    assert until(lambda: login.queue() == [])
    login.done("submit", "-y", "--", "--hold")
    (code / "a.py").write_text("2\n")
    scheduler.answer(["scontrol", "release", "2"], login.root / "slurm", os.environ, login.root)
    assert until(lambda: login.queue() == [])
    (row,) = json.loads(login.done("diff", "1", "2", "--json"))["sections"]["commit"]
    assert row["after"] == row["before"] + row["after"][40:] and "with changes" in row["after"]


WAITING = """\
import os, pathlib, signal, time
save_dir, ended = pathlib.Path(os.environ["SAVE_DIR"]), []
signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
(save_dir / f"up_{os.environ['SLURM_JOB_ID']}").touch()
while not ended:
    time.sleep(0.02)
print("saved by", os.environ["SLURM_JOB_ID"], flush=True)
"""


def test_near_the_limit_a_task_of_a_chain_saves_and_leaves_the_rest_to_the_next(login: Login) -> None:
    (login.root / "train.py").write_text(WAITING)
    login.env(TRAIN_CMD=f"cd / && {sys.executable} {login.root}/train.py; echo after it")
    login.done("submit", "--array", "1-2%1", "-y")
    for task, job in (("1_1", "2"), ("1_2", "1")):
        assert until((login.run / f"up_{job}").exists)
        argv = ["scancel", "--batch", "--signal=USR1", task]
        scheduler.answer(argv, login.root / "slurm", os.environ, login.root)
        assert until(lambda job=job: f"saved by {job}" in (login.run / "logs" / "main_log.txt").read_text())
    assert until(lambda: login.queue() == [])
    assert sorted(p.name for p in login.run.glob(".m4ops/starts/*")) == ["1_1.0", "1_2.0"]
    log = (login.run / "logs" / "main_log.txt").read_text()
    assert log.count("SIGTERM to the training") == 2 and log.count("after it") == 2 and "requeue" not in log


@pytest.mark.parametrize("code", [0, 3])
def test_the_job_ends_as_its_training_ended(login: Login, code: int) -> None:
    login.env(TRAIN_CMD=f"exit {code}")
    login.done("submit", "-y")
    assert until(lambda: login.queue() == [])
    said = scheduler.answer(["sacct", "-n", "-P", "-X", "-o", "exitcode"], login.root / "slurm", os.environ, login.root)
    assert said.stdout.split() == [f"{code}:0"]


@pytest.mark.parametrize("template", sorted(resource("slurm_templates").glob("*.slurm")), ids=lambda p: p.name)
def test_a_template_passes_shellcheck(template: Path, need: Callable[[str, str], str]) -> None:
    done = subprocess.run((need("shellcheck", "shellcheck"), template), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_template_tells_sbatch_what_a_long_training_needs() -> None:
    flags = sbatch_flags.in_script(resource("slurm_templates", "train.slurm").read_text())
    said = {f.name: f.value for f in flags}
    assert said["open-mode"] == "append" and "requeue" in said and said["signal"].startswith("B:USR1@")
