"""One incident a failure: its first cause, node and rank, from lines as trainers, Slurm and drivers print them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ops.catalogue import kinds
from ops.catalogue.signatures import SIGNATURES
from ops.cli import cli
from ops.logs import parse_event

ROOT = Path(__file__).resolve().parent.parent
STEP = "iteration: {:5d}/900   1% | per_token_loss: 2.5000 |\n"


def incidents(folder: Path, text: str) -> list[dict[str, Any]]:
    log = folder / "main_log.txt"
    log.write_text(text)
    done = CliRunner().invoke(cli, ["replay", "--json", str(log)], catch_exceptions=False)
    return [found for found in json.loads(done.stdout) if found["detector"] == "incident"]


def rank_noise(rank: int) -> str:
    return (
        f"[rank{rank}]: [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)\n"
        f"[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File x\n"
        f"[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: ncclRemoteError: x\n"
    )


def test_fifty_ranks_of_fallout_are_one_incident_with_its_cause_and_node(tmp_path: Path) -> None:
    text = STEP.format(5) + "srun: error: Node failure on n37\n" + "".join(map(rank_noise, range(50)))
    text += "slurmstepd: error: *** STEP 19.0 ON n1 CANCELLED AT 2023-03-06T03:17:51 DUE TO NODE FAILURE ***\n"
    (found,) = incidents(tmp_path, text)
    assert (found["kind"], found["severity"], found["node"], found["line"]) == ("node-failure", "CRITICAL", "n37", 2)
    assert "101 more lines of the same failure" in found["evidence"]


def test_a_heavier_cause_takes_the_incident_over(tmp_path: Path) -> None:
    text = STEP.format(5) + "  what():  CUDA error: unknown error\nsrun: error: Node failure on n49\n"
    first, second = incidents(tmp_path, text)
    assert (first["kind"], first["line"], first["resolved_row"]) == ("cuda-error", 2, second["row"])
    assert (second["kind"], second["line"], second["node"]) == ("node-failure", 3, "n49")


def test_the_first_traceback_names_a_failure_without_a_better_cause(tmp_path: Path) -> None:
    error = "[rank4]: Traceback (most recent call last):\n[rank4]:   File x\n[rank4]: ValueError: bad shape\n"
    (found,) = incidents(tmp_path, STEP.format(5) + error + error.replace("rank4", "rank5").replace("bad", "other"))
    assert (found["kind"], found["rank"], found["line"]) == ("traceback", 4, 4)
    assert "ValueError: bad shape" in found["evidence"][1]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (" DUE TO TIME LIMIT ***", "time-limit"),
        (" DUE TO PREEMPTION ***", "preempted"),
        (" DUE TO JOB REQUEUE ***", "requeued"),
        (" ***", "cancelled"),
    ],
)
def test_an_ending_is_well_and_its_teardown_is_nothing(tmp_path: Path, reason: str, kind: str) -> None:
    end = "slurmstepd: error: *** JOB 18 ON n3 CANCELLED AT 2021-05-24T09:50:34" + reason + "\n"
    (found,) = incidents(tmp_path, STEP.format(5) + end + "".join(map(rank_noise, range(3))))
    assert (found["kind"], found["severity"], found["line"]) == (kind, "OK", 2)


def test_a_port_that_was_taken_is_named_where_it_ended_the_program(tmp_path: Path) -> None:
    trace = "Traceback (most recent call last):\n  File x\nOSError: [Errno 98] Address already in use\n"
    (found,) = incidents(tmp_path, STEP.format(5) + trace)
    assert (found["kind"], found["severity"]) == ("rendezvous", "CRITICAL")


def test_a_killed_program_is_told_with_the_node_that_srun_names_after_it(tmp_path: Path) -> None:
    (found,) = incidents(tmp_path, STEP.format(5) + "Killed\nsrun: error: n7: task 3: Exited with exit code 137\n")
    assert (found["kind"], found["severity"], found["line"], found["node"]) == ("task-killed", "CRITICAL", 2, "n7")


def test_a_hang_that_ended_the_process_is_critical(tmp_path: Path) -> None:
    rank = "[rank0]:[F1 ProcessGroupNCCL.cpp:1] [PG 0 (default_pg) Rank 0] "
    hang = rank + "First PG on this rank that detected no heartbeat of its watchdog.\n"
    end = (
        rank + "Terminating the process after attempting to dump debug info, due to collective timeout or exception.\n"
    )
    assert [(f["kind"], f["severity"]) for f in incidents(tmp_path, STEP.format(5) + hang)] == [
        ("nccl-hang", "WARNING")
    ]
    found = incidents(tmp_path, STEP.format(5) + hang + end)
    assert [(f["kind"], f["severity"], f["rank"]) for f in found][-1] == ("nccl-timeout", "CRITICAL", 0)


def test_a_task_that_crashed_was_not_killed(tmp_path: Path) -> None:
    (found,) = incidents(tmp_path, STEP.format(5) + "srun: error: n5: task 12: Bus error\n")
    assert (found["kind"], found["node"]) == ("crash", "n5")


def test_a_node_that_srun_did_not_live_to_name_is_none_of_those_that_were_told_to_end(tmp_path: Path) -> None:
    """As a loaded machine of the suite logged it: the line `Node failure on n2` never came."""
    text = STEP.format(77) + (
        "slurmstepd-n1: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-11-21T15:29:09 DUE TO NODE FAILURE, SEE SLURMCTLD LOG ***\n"
        "srun: got SIGCONT\n"
        "srun: Job step aborted: Waiting up to 4 seconds for job step to finish.\n"
        "srun: error: n3: task 2: Terminated\n"
    )
    (lost,) = incidents(tmp_path, text)
    assert (lost["kind"], lost["node"]) == ("node-failure", None)
    assert lost["summary"].startswith("a node (the log does not say which) failed after step 77")
    (lost,) = incidents(tmp_path, text + "srun: error: Node failure on n2\n")
    assert lost["node"] == "n2"
    late = STEP.format(78) + "srun: error: Node failure on n2\n"  # n1 ends its step first
    (lost,) = incidents(tmp_path, text + late)
    assert (lost["node"], lost["severity"]) == ("n2", "CRITICAL") and "nothing was logged since" in lost["summary"]
    two = incidents(tmp_path, text + late + STEP.format(79) + "srun: error: Node failure on n3\n")
    assert [lost["node"] for lost in two] == ["n2", "n3"]


def test_what_training_survived_is_no_critical_matter(tmp_path: Path) -> None:
    on = "".join(STEP.format(n) for n in range(6, 12))
    trace = "Traceback (most recent call last):\n  File x\nValueError: of a helper thread\n"
    (found,) = incidents(tmp_path, STEP.format(5) + trace + on)
    assert found["resolved_row"] is not None
    (lost,) = incidents(tmp_path, STEP.format(5) + "srun: error: Node failure on n2\n" + on)
    assert lost["severity"] == "WARNING"


def test_two_jobs_and_two_nodes_are_two_incidents(tmp_path: Path) -> None:
    oom = "slurmstepd: error: Detected 1 oom_kill event in StepId={}.0. Some of the step tasks have been OOM Killed.\n"
    died = "srun: error: n{}: tasks 1-3: Out Of Memory\n"
    found = incidents(tmp_path, oom.format(4) + died.format(1) + oom.format(5) + died.format(2))
    assert [(f["kind"], f["node"], f["line"]) for f in found] == [("host-oom", "n1", 1), ("host-oom", "n2", 3)]
    xid = "May 19 07:08:57 {} kernel: [6801.6] NVRM: Xid (PCI:0000:10:1c): {}, pid=1850, x\n"
    found = incidents(tmp_path, xid.format("n1", 63) + xid.format("n2", 64) + xid.format("n2", 64))
    assert [(f["kind"], f["severity"], f["node"]) for f in found] == [
        ("xid-63", "WARNING", "n1"),
        ("xid-64", "CRITICAL", "n2"),
    ]


def test_torchruns_report_names_host_and_rank(tmp_path: Path) -> None:
    report = (
        "Failures:\n[1]:\n  host      : n8\n  rank      : 9 (local_rank: 1)\n  exitcode  : 1 (pid: 3)\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2023\n  host      : n7\n"
        "  rank      : 4 (local_rank: 0)\n  exitcode  : -9 (pid: 2)\n"
    )
    (found,) = incidents(tmp_path, report)
    assert (found["kind"], found["node"], found["rank"]) == ("rank-died", "n7", 4)


@pytest.mark.parametrize(
    "line",
    [
        'assert ok, "Error: CUDA out of memory is not handled here"',
        "# we raise: Traceback (most recent call last) will follow",
        'logger.error("srun: error: Node failure on n1")',
        "the story of a node failure, an error of fate, killed",
        "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
        "step:1/6200 train_loss:10.9 train_time:74701ms step_avg:nanms",
        "| GPU  Name   Persistence-M | Bus-Id   Disp.A | Volatile Uncorr. ECC |",
        "n1:12:34 [0] NCCL INFO Connected all rings",
        "srun: error: unpack_header: protocol_version 65363 not supported",
        "slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused",
        "srun: error: n3: task 3: Terminated",
        "submitit WARNING (2022-08-12 02:06:12,301) - Bypassing signal SIGTERM",
        "[Wed Mar  1 17:50:44 2023] sshd[30792]: segfault at 0 ip 00 sp 00 error 14 in sshd[55bb]",
        "OSError: [Errno 98] Address already in use, trying the next port",
        "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use).",
        "Killed by death, the sample says",
        "this run was Killed",
        "we saw: Transport endpoint is not connected, LustreError: 11-0 and worse",
        "srun: error: slurm_receive_msg: Transport endpoint is not connected",
        "the UNCORRECTABLE MEMORY ERROR AT dawn and a task FAILED (non-zero exit code or other failure mode)",
        "nginx[12]: segfault at 0 ip 00007f sp 00007f error 4 in libssl.so.3[7f+1]",
        "Minimum loss scale reached by the best model: 2.1",
    ],
)
def test_what_only_looks_alarming_alerts_nothing(tmp_path: Path, line: str) -> None:
    found = incidents(tmp_path, STEP.format(5) + line + "\n" + STEP.format(6))
    assert [f for f in found if f["severity"] != "OK"] == []


@pytest.mark.parametrize(
    ("line", "kind", "value"),
    [
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda-error", "an illegal memory access was encountered"),
        ("[rank7]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "cuda-oom", ""),
        ("OSError: [Errno 28] No space left on device", "disk-full", ""),
        ("OSError: [Errno 116] Stale file handle", "fs-error", ""),
        ("[6781741.5] NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', GPU has fallen off the bus.", "xid-79", "79"),
        ("nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up", "nvswitch", "20034"),
        ("INFO: task python:280058 blocked for more than 120 seconds.", "hung-task", "python"),
        ("srun: error: Task launch for StepId=36.0 failed on node cn131: Job credential expired", "launch-failure", ""),
        ("n1:1:2 [0] NCCL WARN Connect to 10.0.0.7<4321> failed : Connection refused", "nccl-connect", "10.0.0.7"),
        ("Exception: Current loss scale already at minimum - cannot decrease scale anymore.", "loss-scale-minimum", ""),
        ("FloatingPointError: Minimum loss scale reached (0.0001). Your loss is probably exploding.", "loss-scale-minimum", ""),
        ("LustreError: 11-0: fs-OST0000-osc-ff: operation ost_read to node 10.0.1.5@tcp failed: rc = -107", "fs-error", ""),
        ("[23952.015] LustreError: 11-0: fs-OST0042-osc-ff: operation ost_write to node x failed: rc = -107", "fs-error", ""),
        ("OSError: [Errno 107] Transport endpoint is not connected: '/gpfs/x'", "fs-error", ""),
        ("ls: cannot access '/gpfs/x': Transport endpoint is not connected", "fs-error", ""),
        ("Killed", "killed", ""),
        ("/var/spool/slurmd/job12/slurm_script: line 9: 12345 Killed                  python train.py", "killed", ""),
        ("srun: error: n7: task 3: Exited with exit code 137", "task-died", "n7"),
        ("[81.2] Memory cgroup out of memory: Killed process 1234 (python) total-vm:1kB, anon-rss:1kB", "host-oom", ""),
        ("[81.2] python[1234]: segfault at 0 ip 00007f sp 00007f error 4 in libcuda.so.550[7f+1]", "segfault", ""),
        ("slurmstepd: error: *** STEP 12.0 ON n1 UNCORRECTABLE MEMORY ERROR AT 2024-01-01T00:00:00 ***", "host-memory", ""),
        ("slurmstepd: error: *** STEP 12.0 ON n1 FAILED (non-zero exit code or other failure mode) ***", "step-failed", ""),
        ("[rank0]:[E ProcessGroupNCCL.cpp:1375] [PG 0 (default_pg) Rank 0] First PG on this rank that detected no heartbeat of its watchdog.", "nccl-hang", ""),
        ("[rank0]:[F725 02:47 ProcessGroupNCCL.cpp:1653] [PG ID 0 Rank 0] [PG ID 0 Rank 0] Terminating the process after attempting to dump debug info, due to collective timeout or exception.", "nccl-timeout", ""),
        ("[rank2]:[F725 ProcessGroupNCCL.cpp:1306] [PG ID 0 PG GUID 0(default_pg) Rank 2] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.", "nccl-hang", ""),
        ("NVRM: Xid (PCI:0000:04:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", "xid-154-reset", "154"),
        ("NVRM: Xid (PCI:0000:04:00): 154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", "xid-154", "154"),
        ("NVRM: Xid (PCI:0000:04:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", "xid-154", "154"),
        ("RuntimeError: The server socket has failed to listen on any local network address.", "rendezvous", ""),
    ],
)  # fmt: skip
def test_a_signature(line: str, kind: str, value: str) -> None:
    event = parse_event(line.encode())
    assert event is not None
    assert (event.kind, event.value) == (kind, value)


EXCERPT = re.compile(
    r"(?P<mark>[!.-])(?:(?<=!)(?P<kind>[\w-]+)(?:@(?P<node>[^\s#]+))?(?:#(?P<rank>\d+))?)? (?P<text>.*)"
)
"""A line of `recorded/failures.txt`: `!kind@node#rank` tells of the failure, `-` belongs to it, `.` is nothing."""


def excerpts() -> list[tuple[str, list[re.Match[str]]]]:
    parts = (ROOT / "tests" / "recorded" / "failures.txt").read_text().split("=== ")[1:]
    told = [(part.splitlines()[0], [EXCERPT.fullmatch(line) for line in part.splitlines()[1:]]) for part in parts]
    return [(source, [line for line in lines if line]) for source, lines in told]


@pytest.mark.parametrize(("source", "lines"), excerpts(), ids=[source.split()[0] for source, _ in excerpts()])
def test_failures_as_people_met_them(tmp_path: Path, source: str, lines: list[re.Match[str]]) -> None:
    found = incidents(tmp_path, "".join(line["text"] + "\n" for line in lines))
    told = [(f["kind"], f["line"], f["node"], f["rank"]) for f in found if f["resolved_row"] is None]
    wanted = [(m["kind"], n, m["node"], m["rank"] and int(m["rank"])) for n, m in enumerate(lines, 1) if m["kind"]]
    assert told == wanted


def test_every_kind_that_is_raised_or_named_is_explained() -> None:
    raised = set()
    for source in (ROOT / "ops" / "detectors").glob("*.py"):
        raised |= set(re.findall(r"(?:kind=|Finding\(\s*)\"([a-z-]+)\"", source.read_text()))
    assert raised - set(kinds()) == set()
    assert {s.kind for s in SIGNATURES if s.kind} <= set(kinds())
    assert all(len({s.kind for s in SIGNATURES if s.event == event}) == 1 for event in {s.event for s in SIGNATURES})
    for kind in kinds().values():
        assert kind.meaning and kind.action and kind.source and kind.confirm
        assert not kind.runbook or (ROOT / "runbooks" / f"{kind.runbook}.md").is_file()
        told = CliRunner().invoke(cli, ["explain", kind.name])
        assert told.exit_code == 0
        assert kind.name in told.stdout


def test_an_unknown_kind_names_its_likes() -> None:
    done = CliRunner().invoke(cli, ["explain", "node-failur"])
    assert done.exit_code == 1
    assert "node-failure" in str(done.exception.hint)  # type: ignore[union-attr]
    assert len(CliRunner().invoke(cli, ["explain"]).stdout.splitlines()) == len(kinds())


def test_a_code_of_nvidias_is_explained_in_capitals_and_when_it_is_not_known() -> None:
    assert "fallen off the bus" in CliRunner().invoke(cli, ["explain", "XID-79"]).stdout
    assert CliRunner().invoke(cli, ["explain", "xid-9999"]).stdout == CliRunner().invoke(cli, ["explain", "xid"]).stdout
