"""What m4ops does on a real Slurm cluster, as its user would: nothing here stands in for Slurm."""

import json
import shutil
from pathlib import Path

import pytest
from live_run import LiveRun
from slurm_lab import Cluster

from ops import shell
from ops import slurm as reader
from ops.model import Job


@pytest.fixture
def run(slurm: Cluster) -> LiveRun:
    return LiveRun(slurm).make()


def jobs(run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> dict[str, Job]:
    """The queue as `ops.slurm` reads it from the real squeue."""
    monkeypatch.setenv("SLURM_CONF", str(run.cluster.conf))
    found = reader.queue(shell.run)
    assert isinstance(found, tuple), found
    return {job.id: job for job in found}


# --- the queue ----------------------------------------------------------------------------------------------


def test_every_kind_of_job_is_read_as_it_is(run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    running = run.sbatch("-N2", "--comment=m4ops:/a b", "--time=10", "--job-name=two words | and a bar")
    array = run.sbatch("-N1", "--array=1-20%1")
    run.sees(lambda: run.queue().get(f"{array}_1", ("",))[0] == "RUNNING")
    waiting = run.sbatch("-N3", "--exclusive")
    held = run.sbatch("-H")
    dependent = run.sbatch(f"--dependency=afterok:{running}")
    ended = run.sbatch("-N1", "--overcommit", wrap="true")
    run.sees(lambda: ended not in run.queue() and run.queue()[waiting][1] in ("Resources", "Priority"))
    seen = jobs(run, monkeypatch)

    assert set(seen) == {running, waiting, held, dependent, f"{array}_1", f"{array}_[2-20%1]"}
    assert seen[running].running and seen[running].node_count == 2 and seen[running].nodes == "n[1-2]"
    assert seen[running].name == "two words | and a bar" and seen[running].comment == "m4ops:/a b"
    assert seen[running].start and seen[running].end == seen[running].start + 600
    assert seen[waiting].pending and not seen[waiting].held
    assert seen[held].held and seen[held].reason == "JobHeldUser"
    assert seen[dependent].pending and seen[dependent].reason == "Dependency"
    rest = seen[f"{array}_[2-20%1]"]
    assert rest.pending and rest.array_id == array and rest.reason == "JobArrayTaskLimit"
    assert seen[f"{array}_1"].array_id == array and seen[f"{array}_1"].task == "1"


def test_status_shows_the_task_that_runs_and_how_many_wait(run: LiveRun) -> None:
    array = run.train("--array=1-10%1", "-N2")
    run.trains(3)
    text = run.screen()
    assert "RUNNING" in text and f"{array}_1" in text and "2 nodes: n[1-2]" in text
    assert "9 tasks (%1)" in text and "waits for a running task of its own array" in text
    shown = run.status()["jobs"]
    assert {job["id"]: (job["running"], job["pending"]) for job in shown} == {
        f"{array}_1": (True, False),
        f"{array}_[2-10%1]": (False, True),
    }


@pytest.mark.parametrize(
    ("holder", "reason", "words"),
    [
        ("root", "JobHeldAdmin", "held by an administrator, who alone can release it"),
        ("nobody", "JobHeldUser", "held by its owner; `m4ops release` lets it go"),
    ],
)
def test_who_held_a_job_is_told_in_words(run: LiveRun, holder: str, reason: str, words: str) -> None:
    shutil.chown(run.dir, "nobody")
    job = run.sbatch("--begin=now+1hour", user="nobody")
    run.cluster.ask("scontrol", "hold", job, user=holder)
    assert run.queue()[job][1] == reason
    text = run.screen()
    assert "HELD" in text and words in text


def test_a_dependency_that_never_comes_true_is_told_in_words(run: LiveRun) -> None:
    first = run.sbatch(wrap="false")
    second = run.sbatch(f"--dependency=afterok:{first}", "--begin=now")
    run.sees(lambda: run.queue().get(second, ("", ""))[1] == "DependencyNeverSatisfied")
    assert "will never start: the job it depends on did not end as asked" in run.screen()


def test_nodes_that_are_not_there_are_told_in_words(run: LiveRun) -> None:
    run.cluster.ask("scontrol", "update", "nodename=n3", "state=down", "reason=burnt")
    job = run.sbatch("-N3")
    run.sees(lambda: run.queue()[job][1] not in ("None", "Priority"))
    assert "down, drained or reserved" in run.screen(), run.queue()


def test_what_a_user_may_not_have_is_told_in_words(run: LiveRun) -> None:
    job = run.sbatch("-N9")
    run.sees(lambda: run.queue()[job][1] not in ("None", "Priority"))
    shown = run.screen()  # PartitionConfig at first, PartitionNodeLimit when the scheduler has looked again
    assert "its partition cannot run such a job" in shown or "needs 9 nodes, and 3 of partition train are" in shown


# --- orders -------------------------------------------------------------------------------------------------


def test_hold_keeps_the_rest_of_an_array_and_lets_the_running_task_go_on(run: LiveRun) -> None:
    array = run.train("--array=1-20%1", "-N2")
    run.trains()
    said = run.done("hold", "-y", "--why", "loss")
    assert f"{array}_1 goes on running on n[1-2]" in said.out
    assert run.queue() == {f"{array}_1": ("RUNNING", "JobHeldAdmin"), f"{array}_[2-20%1]": ("PENDING", "JobHeldAdmin")}
    run.trains(2)
    again = run.m4ops("hold", "-y")
    assert again.code == 1 and "held already" in again.err


def test_release_lets_the_next_task_start(run: LiveRun) -> None:
    array = run.train("--array=1-3%1", "--hold", "-N1", steps=3)
    assert run.queue()[f"{array}_[1-3%1]"][1] == "JobHeldUser"
    said = run.done("release", "-y")
    run.trains()
    assert f"release job {array}" in said.out


def test_whole_array_orders_succeed_though_tasks_have_ended(run: LiveRun) -> None:
    go, ran = run.dir / "go", run.dir / "ran"
    waits = f'[ "$SLURM_ARRAY_TASK_ID" -lt 3 ] || until [ -e {go} ]; do sleep 0.1; done'
    array = run.sbatch("--array=1-4%1", "-N1", wrap=f"{waits}; echo $SLURM_ARRAY_TASK_ID >> {ran}")
    run.sees(lambda: f"{array}_3" in run.queue())
    run.done("hold", "-y")
    assert [reason for state, reason in run.queue().values() if state == "PENDING"] == ["JobHeldAdmin"]
    go.touch()
    run.sees(lambda: list(run.queue()) == [f"{array}_4"])
    run.done("release", "-y")
    run.sees(lambda: run.queue() == {})
    assert ran.read_text().split() == ["1", "2", "3", "4"]


def test_undo_of_a_hold_lets_the_jobs_go(run: LiveRun) -> None:
    array = run.train("--array=1-3%1", "--begin=now+1hour")
    run.done("hold", "-y")
    run.done("undo", "1", "-y")
    assert not run.queue()[f"{array}_[1-3%1]"][1].startswith("JobHeld")


def test_requeue_starts_the_task_again_and_counts(run: LiveRun) -> None:
    array = run.sbatch("--array=1-3%1", "-N1", wrap='[ "$SLURM_ARRAY_TASK_ID" = 2 ] && sleep 300; true')
    run.sees(lambda: run.queue().get(f"{array}_2", ("",))[0] == "RUNNING")
    said = run.done("requeue", "-y")
    assert f"requeue job {array}_2" in said.out
    assert run.told(f"{array}_2", "Restarts") == "1"
    assert f"{array}_1" not in run.queue(), "an ended task was revived"
    run.sees(lambda: run.queue().get(f"{array}_2", ("",))[0] == "RUNNING")


def test_a_task_that_does_not_run_is_not_requeued(run: LiveRun) -> None:
    job = run.sbatch("--begin=now+1hour")
    said = run.m4ops("requeue", job, "-y")
    assert said.code == 1 and f"no running task {job} of this run" in said.err


def test_requeued_and_held_is_told_and_released(run: LiveRun) -> None:
    job = run.train("-N1")
    run.trains()
    run.cluster.ask("scontrol", "requeuehold", job)
    run.sees(lambda: run.queue()[job] == ("PENDING", "job requeued in held state"))
    text = run.screen()
    assert "HELD" in text and "requeued and held; `m4ops release` lets it go" in text
    run.done("release", "-y")
    run.trains()


def test_stop_saves_ends_the_task_and_holds_the_rest(run: LiveRun) -> None:
    array = run.train("--array=1-5%1", "-N2")
    run.trains(3)
    run.done("stop", "-y")
    last = run.steps
    assert run.queue() == {f"{array}_[2-5%1]": ("PENDING", "JobHeldAdmin")}
    assert (run.dir / "latest_opt_step_dir").read_text().endswith(f"opt_step-{last}")
    assert (run.dir / f"opt_step-{last}" / "finished-saving").exists()
    assert not (run.dir / "kill").exists()
    run.done("release", "-y")
    run.sees(lambda: f"Resuming from {run.dir}/opt_step-{last}" in run.log)


def test_hold_stop_saves_where_tasks_follow(run: LiveRun) -> None:
    array = run.train("--array=1-3%1", "-N1")
    run.trains(2)
    run.done("hold", "--stop", "-y")
    assert run.queue() == {f"{array}_[2-3%1]": ("PENDING", "JobHeldAdmin")}
    assert "** Saving finished" in run.log and not (run.dir / "kill").exists()


def test_hold_stop_parks_a_single_job_in_the_queue(run: LiveRun) -> None:
    job = run.train("-N1")
    run.trains(2)
    said = run.done("hold", "--stop", "-y")
    assert "ended without a last save" in said.out
    assert run.queue() == {job: ("PENDING", "job requeued in held state")}
    run.done("release", "-y")
    run.trains()


def test_cancel_ends_one_task_or_all_and_cannot_be_undone(run: LiveRun) -> None:
    array = run.train("--array=1-4%1", "-N1")
    run.trains(2)
    unasked = run.m4ops("cancel")
    assert unasked.code == 1 and "nobody is there to say yes" in unasked.err
    run.done("cancel", f"{array}_1", "-y")
    run.sees(lambda: run.queue().get(f"{array}_2", ("",))[0] == "RUNNING")
    said = run.done("cancel", "-y")
    assert "killed without a save" in said.out and "It cannot be taken back" in said.err
    run.sees(lambda: run.queue() == {})
    again = run.m4ops("cancel", "-y")
    assert again.code == 1 and "no job of this run is in the queue" in again.err


def test_a_run_that_was_requeued_often_is_not_requeued_without_a_word(run: LiveRun) -> None:
    job = run.train("-N1")
    journal = run.dir / ".m4ops" / "journal.jsonl"
    run.trains()
    run.done("requeue", "-y")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for number in range(2, 6):
        with journal.open("a") as more:
            more.writelines(json.dumps(line | {"id": str(number)}) + "\n" for line in lines)
    run.trains()
    said = run.m4ops("requeue", "-y")
    assert said.code == 1 and "was requeued 5 times within a day" in said.err
    assert run.told(job, "Restarts") == "1"
    run.done("requeue", "--again", "-y")
    assert run.told(job, "Restarts") == "2"


def test_save_waits_for_the_checkpoint(run: LiveRun) -> None:
    run.train("-N1")
    run.trains(2)
    run.done("save", "-y")
    assert run.status()["checkpoints"]["newest_complete"] is not None
    assert not (run.dir / "save").exists()
    run.trains(2)


def test_a_live_array_is_rewound_and_its_next_task_resumes_from_the_target(trained: Path, run: LiveRun) -> None:
    run.adopt(trained)
    array = run.train("--array=1-5%1", "-N2")
    run.sees(lambda: "iteration: 43/" in run.log)
    run.done("rewind", "--to", "20", "--restart", "-y")
    run.sees(lambda: f"Resuming from {run.dir}/opt_step-20" in run.log)
    run.sees(lambda: "iteration: 23/" in run.log)
    assert run.queue()[f"{array}_2"][0] == "RUNNING"
    assert run.queue()[f"{array}_[3-5%1]"][1] == "JobArrayTaskLimit"
    kept = {p.name for p in run.dir.glob("opt_step-*")}
    gone = {p.name for p in run.dir.glob("discarded/*/opt_step-*")}
    assert kept == {"opt_step-10", "opt_step-20"}
    assert {"opt_step-30", "opt_step-40"} < gone and len(gone) == 3, "the save of the stop is discarded too"
    assert json.loads(run.done("history", "--json").out)["changes"][-1]["status"] == "applied"


def test_anothers_jobs_are_shown_and_not_touched(run: LiveRun) -> None:
    shutil.chown(run.dir, "nobody")
    job = run.sbatch("--begin=now+1hour", user="nobody")
    assert f"{job} of nobody" in run.screen()
    for verb in ("hold", "release", "requeue", "stop"):
        said = run.m4ops(verb, "-y")
        assert said.code == 1 and "belongs to nobody" in said.err
    assert run.queue() == {job: ("PENDING", "BeginTime")}
