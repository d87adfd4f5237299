"""Heavy work elsewhere: real tasks of a real Slurm array, and processes here."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_run import LiveRun
from runs import Run
from slurm_lab import Cluster
from store_server import BUCKET, Server, serving


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving(tmp_path / "s3") as server:
        for name, value in server.env.items():
            monkeypatch.setenv(name, value)
        yield server


def kept(server: Server) -> int:
    """How many parts of unfinished uploads the store holds."""
    client = server.client
    uploads = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
    found = (client.list_parts(Bucket=BUCKET, Key=u["Key"], UploadId=u["UploadId"]) for u in uploads)
    return sum(len(listed.get("Parts", [])) for listed in found)


def test_slurm_does_the_work_and_a_requeued_task_goes_on(trained: Path, server: Server, slurm: Cluster) -> None:
    run = LiveRun(slurm).make()
    run.adopt(trained)
    with (run.dir / "m4ops.toml").open("a") as config:
        config.write(f'store = "s3://{BUCKET}/work"\n[work]\ntime = "00:20:00"\narray-parallelism = 2\n')
    (run.dir / "opt_step-40" / "unwrapped_model" / "extra.bin").write_bytes(bytes(64 << 20))

    job = run.done("push", "40", "--max-bandwidth", "8MB", "--on", "slurm", "--no-wait").out.strip()
    folder = next((run.dir / ".m4ops" / "work").glob("*-push-*"))
    marker = run.dir / "opt_step-40" / "started-upload-checkpoint"
    run.sees(marker.exists)
    assert run.status()["jobs"] == []
    run.done("rewind", "--to", "20", "-n")
    assert run.told(job, "TimeLimit") == "00:20:00" and run.told(job, "Requeue") == "1"
    slurm.ask("scancel", "-s", "USR2", job)  # as before the time limit: the task ends itself in order
    run.sees(lambda: run.queue()[job][0] == "PENDING")
    assert not marker.exists()
    run.sees(lambda: marker.exists() and kept(server) >= 1)
    slurm.ask("scontrol", "requeue", job)  # as by a preemption: killed, with what it leaves
    run.sees(lambda: run.queue()[job][0] == "PENDING")

    said = run.done("extract", "--all-missing", "--on", "slurm", "--partition", "train", "--", "--nice=5")
    assert "4 of 4 done" in said.err and said.out.count("model.safetensors") == 4
    assert all((run.dir / f"opt_step-{n}" / "unwrapped_model" / "model.safetensors").exists() for n in (10, 20, 30, 40))
    (run.dir / "opt_step-10" / "accelerator_state" / "optimizer.bin").write_bytes(b"torn")
    said = run.m4ops("verify-checkpoint", "10", "20", "--deep", "--on", "slurm")
    assert said.code == 2 and "step-10: exit code 2" in said.err and "step-20: done" in said.err
    assert "optimizer.bin" in said.out

    run.sees(lambda: (folder / "0.json").exists())
    result = json.loads((folder / "0.json").read_text())
    assert result["code"] == 0, result
    assert run.told(job, "Restarts") == "2"
    number, unit, *_ = next(folder.glob("*.out")).read_text().rpartition("sent: ")[2].split()
    assert unit in ("B", "kB") or float(number) < 60, "what had been sent was sent again"  # of 67 MB, less a part of 16
    assert "finished-upload-checkpoint" in {p.name for p in (run.dir / "opt_step-40").iterdir()}
    assert json.loads((folder / "tasks.json").read_text())[0][2:] == ["push", "40", "--max-bandwidth", "8MB"]


def test_processes_here_do_the_work_and_a_failure_is_told(run: Run) -> None:
    shutil.rmtree(run.dir / "opt_step-10" / "accelerator_state")
    said = run.m4ops("extract", "10", "20", "--to-unwrapped-model", "--on", "local", "--array-parallelism", "2")
    assert said.code == 1 and "2 of 2 done" in said.err
    assert "opt_step-20: done" in said.err and "opt_step-10: exit code 1" in said.err
    assert said.out.strip() == str(run.dir / "opt_step-20" / "unwrapped_model" / "model.safetensors")


def test_a_dry_run_shows_the_command_lines_and_what_sbatch_gets(run: Run) -> None:
    (run.dir / "m4ops.toml").write_text('store = "s3://b-b/x"\n[work]\npartition = "cpu"\nexclusive = true\n')
    before = run.tree()
    said = run.done("push", "10", "40", "--workers", "2", "--on", "slurm", "--time", "30", "-n", "--", "--mem=8G")
    head, *rest = said.out.splitlines()
    assert head == "2 tasks on slurm, at most 4 at once: --partition=cpu --exclusive --time=30 --mem=8G"
    assert rest == [f"  step {n}: m4ops --run {run.dir} push {n} --workers 2" for n in (10, 40)]
    assert run.tree() == before


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("extract", "10", "--to-unwrapped-model", "--partition", "x"), "go with --on"),
        (("push", "10", "--on", "local", "--", "--mem=8G"), "sbatch's flags go with --on slurm"),
        (("verify-checkpoint", "10", "--on", "slurm", "--", "--output=x"), "--output=x cannot be passed on"),
        (("verify-checkpoint", "10", "--on", "slurm", "--time", "soon"), "--time soon: no limit of time"),
        (("verify-checkpoint", "ten"), "ten: not a step"),
    ],
)
def test_what_cannot_be_meant_is_said(run: Run, words: tuple[str, ...], error: str) -> None:
    (run.dir / "m4ops.toml").write_text('store = "s3://b-b/x"\n')
    said = run.m4ops(*words)
    assert said.code == 1 and error in said.err


@pytest.mark.parametrize(
    ("library", "words", "hint"),
    [
        ("submitit", ("verify-checkpoint", "10", "--on", "local"), "pip install 'm4ops[work]'"),
        ("boto3", ("push", "10", "--to", "s3://b-b/x"), "pip install 'm4ops[s3]'"),
    ],
)
def test_a_library_that_is_missing_is_named_with_its_extra(
    run: Run, monkeypatch: pytest.MonkeyPatch, library: str, words: tuple[str, ...], hint: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    said = run.m4ops(*words)
    assert said.code == 1 and f"{library} is not installed" in said.err and hint in said.err
