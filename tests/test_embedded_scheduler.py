"""The scheduler for a machine without Slurm, held against what Slurm 22.05.8 was seen to answer."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ops.demo.scheduler import Answer, answer, runner, stop
from ops.demo.scheduler.processes import birth, descendants
from ops.demo.scheduler.ranges import compress, hostnames, parse_array
from ops.demo.scheduler.times import full, parse_limit, short
from ops.demo.scheduler.words import host

LIMIT = 60.0
HELD = "JobHeldAdmin" if os.getuid() == 0 else "JobHeldUser"


@dataclass(frozen=True)
class Machine:
    """One scheduler of its own, in its own folder."""

    root: Path
    cwd: Path
    env: dict[str, str]

    def ask(self, *argv: str, stdin: str = "", **env: str) -> Answer:
        return answer(argv, self.root, self.env | env, self.cwd, stdin)

    def say(self, *argv: str) -> str:
        said = self.ask(*argv)
        assert (said.returncode, said.stderr) == (0, "")
        return said.stdout

    def submit(self, text: str, *options: str, **env: str) -> str:
        said = self.ask("sbatch", "--parsable", *options, stdin=f"#!/bin/sh\n{text}\n", **env)
        assert said.returncode == 0, said.stderr
        return said.stdout.strip()

    def queue(self, form: str = "%i %T %r", *options: str) -> list[str]:
        return self.say("squeue", "-h", "-o", form, *options).splitlines()

    def all(self, form: str = "%i %T") -> list[str]:
        return sorted(self.queue(form, "-r", "-t", "all"))

    def wait(self, *expected: str, form: str = "%i %T") -> None:
        """Until the whole queue, finished jobs included, is this."""
        until(lambda: self.all(form) == sorted(expected), lambda: self.all(form))

    def show(self, job: str, key: str) -> str:
        found = re.search(rf"\b{key}=(\S*)", self.say("scontrol", "-o", "show", "job", job))
        assert found
        return found[1]

    def text(self, name: str) -> str:
        path = self.cwd / name
        return path.read_text() if path.exists() else ""

    def runner(self) -> int:
        return runner.pid(self.root)


def until(true: Callable[[], bool], describe: Callable[[], object] = lambda: "") -> None:
    limit = time.monotonic() + LIMIT
    while not true():
        assert time.monotonic() < limit, describe()
        time.sleep(0.02)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "work").mkdir()
    env = {k: v for k, v in os.environ.items() if not k.startswith("COV_")}
    made = Machine(tmp_path / "slurm", tmp_path / "work", env | {"M4OPS_EMBEDDED_KILLWAIT": "0.3"})
    yield made
    stop(made.root)
    assert not list(_processes(made.root))


def _processes(root: Path) -> Iterator[int]:
    """The runner, the supervisors, and what is below them."""
    for note in [root / "runner.pid", *root.glob("runs/*/pid")]:
        if note.exists():
            pid, born = map(int, note.read_text().split())
            if birth(pid) == born:
                yield pid
                yield from (p for p in descendants(pid) if birth(p))


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


# --- submission -------------------------------------------------------------------------------------------


def test_an_array_runs_one_task_after_the_other(machine: Machine) -> None:
    job = machine.submit("echo $SLURM_ARRAY_TASK_ID >> order; sleep 0.1", "--array=1-4%1", "-J", "tr_1")
    assert job == "1"
    until(lambda: "1_1 RUNNING None" in machine.queue())
    assert machine.queue()[0] == "1_[2-4%1] PENDING JobArrayTaskLimit"
    machine.wait("1_1 COMPLETED", "1_2 COMPLETED", "1_3 COMPLETED", "1_4 COMPLETED")
    assert machine.text("order").split() == ["1", "2", "3", "4"]
    # each task has its own job id, the last keeps the array's
    assert machine.all("%i %A") == ["1_1 2", "1_2 3", "1_3 4", "1_4 1"]
    assert {p.name for p in machine.cwd.glob("slurm-*")} == {f"slurm-1_{n}.out" for n in range(1, 5)}


def test_the_environment_of_a_task(machine: Machine) -> None:
    machine.submit(
        "env",
        "-a",
        "3,5",
        "-J",
        "n",
        "-o",
        "%x_%A_%a_%j.out",
        "--partition=gpu",
        MINE="yes",
        SLURM_ARRAY_TASK_ID="77",
        SLURM_RESTART_COUNT="9",
    )
    machine.wait("1_3 COMPLETED", "1_5 COMPLETED")
    seen = dict(line.partition("=")[::2] for line in machine.text("n_1_3_2.out").splitlines())
    expected = {
        "SLURM_JOB_ID": "2",
        "SLURM_JOBID": "2",
        "SLURM_JOB_NAME": "n",
        "SLURM_ARRAY_JOB_ID": "1",
        "SLURM_ARRAY_TASK_ID": "3",
        "SLURM_ARRAY_TASK_MIN": "3",
        "SLURM_ARRAY_TASK_MAX": "5",
        "SLURM_ARRAY_TASK_COUNT": "2",
        "SLURM_SUBMIT_DIR": str(machine.cwd),
        "SLURM_SUBMIT_HOST": host(),
        "SLURM_JOB_NODELIST": host(),
        "SLURM_NODELIST": host(),
        "SLURM_NNODES": "1",
        "SLURM_NTASKS": "1",
        "SLURM_PROCID": "0",
        "SLURMD_NODENAME": host(),
        "SLURM_JOB_PARTITION": "gpu",
        "MINE": "yes",
        "M4OPS_EMBEDDED": str(machine.root),
        "PWD": str(machine.cwd),
    }
    assert {name: seen.get(name) for name in expected} == expected
    assert "SLURM_CPUS_ON_NODE" in seen
    assert "SLURM_RESTART_COUNT" not in seen
    assert seen["PATH"].startswith(f"{machine.root}/bin:")


def test_options_of_script_environment_and_command_line(machine: Machine) -> None:
    script = machine.cwd / "train.sh"
    script.write_text(
        '#!/bin/sh\n#SBATCH -J "from script" --output=%x.out # a comment\n#SBATCH --time=1:00 -H\n'
        "echo 1\n#SBATCH --comment=too-late\n"
    )
    assert machine.ask("sbatch", "train.sh").stdout == "Submitted batch job 1\n"
    machine.ask("sbatch", "-Jtyped", "train.sh", "a", "--b", SBATCH_TIMELIMIT="5", SBATCH_JOB_NAME="named")
    assert machine.queue("%i|%j|%l|%r|%k|%o") == [
        f"1|from script|1:00|JobHeldUser|(null)|{script}",
        f"2|typed|5:00|JobHeldUser|(null)|{script} a --b",
    ]


def test_the_script_is_copied_at_submission(machine: Machine) -> None:
    script = machine.cwd / "s.sh"
    script.write_text('#!/bin/sh\necho first "$@" > out\n')
    machine.say("sbatch", "-H", "s.sh", "x", "y z")
    script.write_text("#!/bin/sh\necho second > out\n")
    machine.say("scontrol", "release", "1")
    machine.wait("1 COMPLETED")
    assert machine.text("out") == "first x y z\n"


def test_export_chooses_the_environment(machine: Machine) -> None:
    for export in ("ALL", "NONE", "B,C=3", "C=3,ALL"):
        machine.submit('echo "$A-$B-$C"', "-o", f"{export}.out", f"--export={export}", A="1", B="2")
    machine.wait(*(f"{n} COMPLETED" for n in range(1, 5)))
    said = {name: machine.text(f"{name}.out").strip() for name in ("ALL", "NONE", "B,C=3", "C=3,ALL")}
    assert said == {"ALL": "1-2-", "NONE": "--", "B,C=3": "-2-3", "C=3,ALL": "1-2-3"}


FAILED = "sbatch: error: Batch job submission failed: "
UNRECOGNIZED = "sbatch: unrecognized option '--x'\nTry \"sbatch --help\" for more information\n"
REFUSED = [
    (("--x", "s.sh"), 255, UNRECOGNIZED),
    (("--array=1-x", "s.sh"), 1, FAILED + "Invalid job array specification\n"),
    (("--array=3-1", "s.sh"), 1, FAILED + "Invalid job array specification\n"),
    (("--dependency=afterok:abc", "s.sh"), 1, FAILED + "Job dependency problem\n"),
    (("--ntasks=x", "s.sh"), 1, 'sbatch: error: Invalid numeric value "x" for --ntasks.\n'),
    (("--time=xx", "s.sh"), 255, "sbatch: error: Invalid --time specification\n"),
    (("--open-mode=x", "s.sh"), 255, "sbatch: error: Invalid --open-mode specification\n"),
    (("--signal=FOO", "s.sh"), 255, "sbatch: error: Invalid --signal specification\n"),
    (("--nodes=x", "s.sh"), 255, 'sbatch: error: "x" is not a valid node count\n'),
    (("nosuch.sh",), 1, "sbatch: error: Unable to open file nosuch.sh\n"),
    (("empty.sh",), 1, "sbatch: error: Batch script is empty!\n"),
    (
        ("plain.sh",),
        1,
        "sbatch: error: This does not look like a batch script.  The first\n"
        "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
        "sbatch: error: For instance: #!/bin/sh\n",
    ),
    (
        ("dos.sh",),
        1,
        "sbatch: error: Batch script contains DOS line breaks (\\r\\n)\n"
        "sbatch: error: instead of expected UNIX line breaks (\\n).\n",
    ),
]


@pytest.mark.parametrize(("argv", "code", "text"), REFUSED, ids=[" ".join(r[0]) for r in REFUSED])
def test_sbatch_refuses_as_slurm_does(machine: Machine, argv: tuple[str, ...], code: int, text: str) -> None:
    scripts = {"s": "#!/bin/sh\n", "empty": "", "plain": "echo hi\n", "dos": "#!/bin/sh\r\necho\r\n"}
    for name, content in scripts.items():
        (machine.cwd / f"{name}.sh").write_bytes(content.encode())
    assert machine.ask("sbatch", *argv) == (code, "", text)
    assert machine.ask("squeue", "-h") == (0, "", "")
    assert not machine.root.exists()


# --- formats ----------------------------------------------------------------------------------------------


def test_the_lines_slurm_printed(machine: Machine) -> None:
    machine.submit("sleep 60", "--array", "1-3%1", "-J", "arr", "--comment", "a b")
    until(lambda: "1_1 RUNNING None" in machine.queue())
    user = machine.queue("%u")[0]
    assert machine.say("squeue") == (
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)\n"
        f"         1_[2-3%1]      demo      arr {user[:8]:>8} PD       0:00      1 (JobArrayTaskLimit)\n"
        f"               1_1      demo      arr {user[:8]:>8}  R       0:00      1 {host()}\n"
    )
    assert machine.queue("%F|%K|%A|%T|%r|%N|%j", "-r") == [
        "1|2|1|PENDING|JobArrayTaskLimit||arr",
        "1|3|1|PENDING|JobArrayTaskLimit||arr",
        f"1|1|2|RUNNING|None|{host()}|arr",
    ]
    assert machine.queue("%.18i|%10j|%.3j|%.8T|%k")[0] == "         1_[2-3%1]|arr       |arr| PENDING|a b"
    named = machine.say("squeue", "-O", "JobArrayID:|,State:|,Reason:|")
    assert named == "JOBID|STATE|REASON|\n1_[2-3%1]|PENDING|JobArrayTaskLimit|\n1_1|RUNNING|None|\n"
    assert machine.say("squeue", "-h", "-O", "JobID:10,State:.12,Name", "-j", "2") == (
        f"{'2':10}{'RUNNING':>12}{'arr':20}\n"
    )
    heads = machine.say("squeue", "-o", "%F %K %A %i %T %t %r %N %j %L %l %M %D %k %Z %Q %a %o").splitlines()[0]
    assert heads == (
        "ARRAY_JOB_ID ARRAY_TASK_ID JOBID JOBID STATE ST REASON NODELIST NAME TIME_LEFT TIME_LIMIT TIME NODES "
        "COMMENT WORK_DIR PRIORITY ACCOUNT COMMAND"
    )


def test_times_may_be_asked_for_as_epochs(machine: Machine) -> None:
    before = int(time.time())
    machine.submit("sleep 60", "-t", "10")
    until(lambda: machine.queue() == ["1 RUNNING None"])
    said = machine.ask("squeue", "-h", "-o", "%V %S %e %l", SLURM_TIME_FORMAT="%s").stdout.split()
    submit, start, end = map(int, said[:3])
    assert before <= submit <= start <= time.time()
    assert end - start == 600
    assert said[3] == "10:00"
    shown = machine.ask("scontrol", "-o", "show", "job", "1", SLURM_TIME_FORMAT="%s").stdout
    assert f"StartTime={start} EndTime={end} " in shown
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", machine.queue("%S")[0])


def test_scontrol_describes_a_job(machine: Machine) -> None:
    machine.submit("sleep 60", "--array=1-2%1", "-J", "tr", "--comment=m4ops:x y", "-o", "%x_%A_%a.out", "-t", "1:00")
    until(lambda: "1_1 RUNNING None" in machine.queue())
    text = machine.say("scontrol", "show", "job", "1_1")
    assert text.startswith("JobId=2 ArrayJobId=1 ArrayTaskId=1 ArrayTaskThrottle=1 JobName=tr\n   UserId=")
    assert "\n   JobState=RUNNING Reason=None Dependency=(null)\n" in text
    assert "\n   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0\n" in text
    assert " TimeLimit=00:01:00 TimeMin=N/A\n" in text
    assert f"\n   Comment=m4ops:x y \n   StdErr={machine.cwd}/tr_1_1.out\n" in text
    one = machine.say("scontrol", "show", "job", "1_1", "-o")
    assert one.count("\n") == 1
    assert [field for field in one.split() if field in text.split()] == one.split()
    assert machine.show("1", "ArrayTaskId") == "2"


def test_unknown_jobs(machine: Machine) -> None:
    assert machine.say("squeue") == machine.say("squeue", "-o", "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R")
    unknown = "Invalid job id specified"
    machine.submit("true", "-H")
    assert machine.ask("squeue", "-j", "99") == (1, "", f"slurm_load_jobs error: {unknown}\n")
    assert machine.ask("squeue", "-hj", "99,98") == (0, "", "")
    assert machine.ask("scontrol", "show", "job", "99") == (1, "", f"slurm_load_jobs error: {unknown}\n")
    suspend = f"{unknown} for job 99\nslurm_suspend error: {unknown}\n"
    assert machine.ask("scontrol", "hold", "99") == (1, "", suspend)
    assert machine.ask("scontrol", "requeue", "99") == (1, "", f"{unknown} for job 99\n")
    assert machine.ask("scancel", "99") == (0, "", "")
    assert machine.ask("sacct", "-nX", "-j", "99") == (0, "", "")
    bad = machine.ask("squeue", "-t", "nonsense")
    assert (bad.returncode, bad.stderr.splitlines()[0]) == (
        1,
        "squeue: error: Invalid job state specified: nonsense",
    )


def test_what_the_outer_commands_say(machine: Machine) -> None:
    assert machine.say("scontrol", "ping") == f"Slurmctld(primary) at {host()} is UP\n"
    assert machine.say("scontrol", "show", "hostnames", "n[1-3,07],x") == "n1\nn2\nn3\nn07\nx\n"
    assert machine.say("sinfo", "-h", "-N", "-o", "%N|%t|%T|%E|%u|%H") == f"{host()}|idle|idle|none|Unknown|Unknown\n"
    assert machine.say("sbatch", "--version") == "slurm-wlm 22.05.8\n"
    assert machine.ask("srun", "hostname").returncode == 127


# --- hold, release, requeue, update -----------------------------------------------------------------------


def test_hold_keeps_a_running_task_and_parks_it_when_requeued(machine: Machine) -> None:
    machine.submit(
        'echo "start ${SLURM_RESTART_COUNT-none}"; sleep 60', "--array=1-3%1", "--open-mode=append", "-o", "log"
    )
    until(lambda: "start none" in machine.text("log"))
    machine.say("scontrol", "hold", "1")
    assert machine.queue("%i %T %r %Q") == [f"1_[2-3%1] PENDING {HELD} 0", f"1_1 RUNNING {HELD} 0"]
    machine.say("scontrol", "requeue", "1_1")
    machine.wait(*(f"1_{n} PENDING {HELD}" for n in (1, 2, 3)), form="%i %T %r")
    assert machine.ask("scontrol", "requeue", "1_1") == (1, "", "1_1: Job is pending execution\n")
    machine.say("scontrol", "release", "1_1")
    until(lambda: "start 1" in machine.text("log"))
    assert machine.show("1_1", "Restarts") == "1"
    assert machine.queue("%i %A %T", "-j", "1_1") == ["1_1 2 RUNNING"]
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
    line = rf"slurmstepd: error: \*\*\* JOB 2 ON {host()} CANCELLED AT {stamp} DUE TO JOB REQUEUE \*\*\*"
    assert re.fullmatch(rf"start none\n{line}\nstart 1\n", machine.text("log"))


def test_requeued_jobs_wait_and_default_logs_are_truncated(machine: Machine) -> None:
    machine.submit('echo "start ${SLURM_RESTART_COUNT-none}"; sleep 60', "-o", "log")
    until(lambda: machine.text("log") == "start none\n")
    machine.say("scontrol", "requeue", "1")
    until(lambda: machine.queue() == ["1 PENDING BeginTime"], machine.queue)
    until(lambda: machine.text("log") == "start 1\n", lambda: machine.text("log"))
    machine.say("scontrol", "requeuehold", "1")
    until(lambda: machine.queue() == ["1 PENDING job requeued in held state"], machine.queue)
    assert machine.show("1", "Reason") == "job_requeued_in_held_state"
    machine.say("scontrol", "release", "1")
    until(lambda: machine.text("log") == "start 2\n")


def test_what_scontrol_refuses(machine: Machine) -> None:
    machine.submit("sleep 60", "--no-requeue")
    machine.submit("true", "-H")
    until(lambda: "1 RUNNING None" in machine.queue())
    disabled = "Requested operation is presently disabled for job 1\n"
    assert machine.ask("scontrol", "requeue", "1") == (1, "", disabled)
    assert machine.ask("scontrol", "requeue", "2") == (1, "", "Job is pending execution for job 2\n")
    running = "Job is no longer pending execution for job 1\n"
    assert machine.ask("scontrol", "update", "jobid=1", "ExcNodeList=n1") == (1, "", running)
    unsupported = "Update of this parameter is not supported: Foo=1\nRequest aborted\n"
    assert machine.ask("scontrol", "update", "jobid=2", "Foo=1") == (1, "", unsupported)
    assert machine.ask("scontrol", "frobnicate", "1") == (1, "", "invalid keyword: frobnicate\n")


def test_a_whole_array_with_a_finished_task_is_held_and_says_so(machine: Machine) -> None:
    machine.submit('[ "$SLURM_ARRAY_TASK_ID" = 1 ] || sleep 60', "--array=1-4%1")
    until(lambda: "1_2 RUNNING None" in machine.queue())
    said = machine.ask("scontrol", "hold", "1")
    assert said == (1, "", "1_1: Job has already finished\n1_2-4: No error\n")
    assert machine.queue() == [f"1_[3-4%1] PENDING {HELD}", f"1_2 RUNNING {HELD}"]


def test_update_changes_waiting_and_running_jobs(machine: Machine) -> None:
    machine.submit("sleep 60", "--array=1-3%1", "-t", "10")
    until(lambda: "1_1 RUNNING None" in machine.queue())
    machine.say("scontrol", "update", "jobid=1", "ArrayTaskThrottle=2", "TimeLimit=20:00", "Comment=two words")
    until(lambda: "1_2 RUNNING None" in machine.queue())
    assert machine.queue("%i %l %k") == ["1_3 20:00 two words", "1_1 20:00 two words", "1_2 20:00 two words"]
    machine.say("scontrol", "update", "jobid=1_3", "ExcNodeList=n7,n9")
    assert machine.show("1_3", "ExcNodeList") == "n7,n9"


def test_one_task_of_an_array_can_be_held(machine: Machine) -> None:
    machine.submit("true", "--array=1-4%1", "-H")
    machine.say("scontrol", "release", "1_[1-2,4]")
    machine.wait(
        "1_1 COMPLETED None", "1_2 COMPLETED None", "1_3 PENDING JobHeldUser", "1_4 COMPLETED None", form="%i %T %r"
    )


# --- cancelling, limits, signals --------------------------------------------------------------------------


def test_cancel_pending_and_running_tasks(machine: Machine) -> None:
    machine.submit("sleep 60", "--array=1-3%1", "-o", "%a.out")
    until(lambda: "1_1 RUNNING None" in machine.queue())
    machine.say("scancel", "1_3")
    machine.wait("1_1 RUNNING", "1_2 PENDING", "1_3 CANCELLED")
    machine.say("scancel", "1")
    machine.wait("1_1 CANCELLED", "1_2 CANCELLED", "1_3 CANCELLED")
    assert not machine.queue()
    assert re.fullmatch(
        rf"slurmstepd: error: \*\*\* JOB 2 ON {host()} CANCELLED AT \S+ \*\*\*\n", machine.text("1.out")
    )
    assert machine.text("2.out") == ""
    assert machine.show("1_1", "ExitCode") == "0:15"
    uid = os.getuid()
    said = machine.say("sacct", "-nPj", "1_1,1_3", "--format=JobID,JobIDRaw,State,ExitCode,NodeList")
    assert said == (
        f"1_1|2|CANCELLED by {uid}|0:0|{host()}\n"
        f"1_1.batch|2.batch|CANCELLED|0:15|{host()}\n"
        f"1_3|3|CANCELLED by {uid}|0:0|None assigned\n"
    )


def test_a_job_that_ignores_sigterm_is_killed_with_all_it_started(machine: Machine) -> None:
    machine.submit("trap '' TERM; setsid sleep 60 & echo $! > child; sleep 60; sleep 60", "-o", "log")
    until(lambda: machine.text("child") != "")
    child = int(machine.text("child"))
    assert birth(child)
    machine.say("scancel", "1")
    until(lambda: machine.queue("%T %t") == ["COMPLETING CG"])
    machine.wait("1 CANCELLED")
    assert not birth(child)
    assert machine.show("1", "ExitCode") == "0:9"


def test_the_time_limit_ends_a_job(machine: Machine) -> None:
    machine.submit("sleep 60", "--time=0:01", "-o", "log")
    machine.wait("1 TIMEOUT TimeLimit", form="%i %T %r")
    line = rf"slurmstepd: error: \*\*\* JOB 1 ON {host()} CANCELLED AT \S+ DUE TO TIME LIMIT \*\*\*\n"
    assert re.fullmatch(line, machine.text("log"))
    assert machine.say("sacct", "-nXPj1", "--format=State,ExitCode,Timelimit") == "TIMEOUT|0:0|00:00:01\n"


def test_a_job_can_requeue_itself_before_its_limit(machine: Machine) -> None:
    machine.submit(
        "trap 'scontrol requeue $SLURM_JOB_ID' USR1\n[ -n \"$SLURM_RESTART_COUNT\" ] && exit 0\nsleep 60 & wait; wait",
        "--time=0:30",
        "--signal=B:USR1@29",
    )
    machine.wait("1 COMPLETED")
    assert machine.show("1", "Restarts") == "1"
    assert machine.say("sacct", "-nXPDj1", "--format=State") == "REQUEUED\nCOMPLETED\n"


def test_signals_reach_steps_or_the_batch_shell(machine: Machine) -> None:
    machine.submit(
        "trap 'echo shell >> got' USR1\n"
        "srun --label sh -c 'trap \"echo step >> got\" USR1; touch up; while :; do sleep 0.05; done' &\n"
        "while :; do sleep 0.05; done",
    )
    until((machine.cwd / "up").exists)
    machine.say("scancel", "-s", "USR1", "1")
    until(lambda: machine.text("got") == "step\n", lambda: machine.text("got"))
    machine.say("scancel", "-b", "--signal=SIGUSR1", "1")
    until(lambda: machine.text("got") == "step\nshell\n", lambda: machine.text("got"))
    assert machine.queue() == ["1 RUNNING None"]


def test_srun_passes_the_exit_code_on_and_reports_it(machine: Machine) -> None:
    machine.submit(
        "srun -n 4 --kill-on-bad-exit=1 sh -c 'exit 3'; echo $?\n"
        "srun sh -c 'kill -9 $$'; echo $?\n"
        "srun sh -c 'echo $SLURM_PROCID/$SLURM_NTASKS step $SLURM_STEP_ID'\n"
        "exec srun sleep 60",
        "-o",
        "log",
    )
    until(lambda: "step 2" in machine.text("log"), lambda: machine.text("log"))
    assert machine.text("log") == (
        f"srun: error: {host()}: task 0: Exited with exit code 3\n3\n"
        f"srun: error: {host()}: task 0: Killed\nsrun: Force Terminated StepId=1.1\n137\n0/1 step 2\n"
    )
    until(lambda: any(_command(p).startswith(b"sleep") for p in _processes(machine.root)))
    machine.say("scancel", "1")
    machine.wait("1 CANCELLED")
    assert "srun: Job step aborted: Waiting up to" in machine.text("log")
    assert re.search(rf"error: \*\*\* STEP 1\.3 ON {host()} CANCELLED AT \S+ \*\*\*\n", machine.text("log"))
    assert f"srun: error: {host()}: task 0: Terminated\n" in machine.text("log")


def test_failures_and_their_codes(machine: Machine) -> None:
    machine.submit("exit 3")
    machine.submit("exit 130")
    machine.submit("kill -9 $$")
    machine.submit("true", "-o", "no/such/folder/log")
    machine.submit("pwd", "-D", "/nonexistent", "-o", f"{machine.cwd}/cwd.log")
    assert machine.ask("sbatch", "-o", "interp.log", stdin="#!/no/such\n").returncode == 0
    machine.wait("1 FAILED", "2 FAILED", "3 FAILED", "4 FAILED", "5 COMPLETED", "6 FAILED")
    codes = [machine.show(str(n), "ExitCode") for n in range(1, 7)]
    assert codes == ["3:0", "130:0", "0:9", "0:53", "0:0", "2:0"]
    assert machine.show("1", "Reason") == "NonZeroExitCode"
    assert machine.show("4", "Reason") == "JobLaunchFailure"
    assert machine.text("cwd.log") == (
        "slurmstepd: error: couldn't chdir to `/nonexistent': No such file or directory: going to /tmp instead\n/tmp\n"
    )
    assert machine.text("interp.log") == (
        "slurmstepd: error: execve(): bad interpreter(/no/such): No such file or directory\n"
    )
    assert machine.say("sacct", "-nXP", "-j", "2", "--format=State,ExitCode") == "FAILED|2:0\n"


# --- dependencies -----------------------------------------------------------------------------------------


def test_dependencies(machine: Machine) -> None:
    machine.submit("while [ ! -e go ]; do sleep 0.02; done")
    machine.submit("while [ ! -e go ]; do sleep 0.02; done; exit 3")
    kinds = ["afterok:1", "afterok:2", "afternotok:2", "afterany:1:2", "afterok:1,afterok:2", "afterok:777", "after:1"]
    for kind in kinds:
        machine.submit("true", "-d", kind)
    machine.submit("true", "-d", "afterok:2", "--kill-on-invalid-dep=yes")
    until(lambda: len(machine.queue("%i", "-t", "CD")) == 2, machine.queue)
    assert machine.queue("%i|%T|%r|%E", "-t", "PD") == [
        "3|PENDING|Dependency|afterok:1(unfulfilled)",
        "4|PENDING|Dependency|afterok:2(unfulfilled)",
        "5|PENDING|Dependency|afternotok:2(unfulfilled)",
        "6|PENDING|Dependency|afterany:1(unfulfilled),afterany:2(unfulfilled)",
        "7|PENDING|Dependency|afterok:1(unfulfilled),afterok:2(unfulfilled)",
        "10|PENDING|Dependency|afterok:2(unfulfilled)",
    ]
    (machine.cwd / "go").touch()
    machine.wait(
        "1 COMPLETED",
        "2 FAILED",
        "3 COMPLETED",
        "4 PENDING",
        "5 COMPLETED",
        "6 COMPLETED",
        "7 PENDING",
        "8 COMPLETED",
        "9 COMPLETED",
        "10 CANCELLED",
    )
    assert machine.queue("%i|%r|%E") == [
        "4|DependencyNeverSatisfied|afterok:2(failed)",
        "7|DependencyNeverSatisfied|afterok:2(failed)",
    ]
    machine.say("scontrol", "update", "jobid=4", "Dependency=")
    until(lambda: machine.queue("%i", "-t", "all", "-j", "4") != machine.queue("%i", "-j", "4"))


def test_dependency_on_an_array(machine: Machine) -> None:
    machine.submit("while [ ! -e go ]; do sleep 0.02; done", "--array=1-2")
    after_all, after_one = machine.submit("true", "-d", "afterany:1"), machine.submit("true", "-d", "afterok:1_2")
    assert machine.queue("%E", "-j", f"{after_all},{after_one}") == [
        "afterany:1_*(unfulfilled)",
        "afterok:1_2(unfulfilled)",
    ]
    (machine.cwd / "go").touch()
    machine.wait("1_1 COMPLETED", "1_2 COMPLETED", f"{after_all} COMPLETED", f"{after_one} COMPLETED")


def test_singletons_run_one_at_a_time(machine: Machine) -> None:
    for _ in range(2):
        machine.submit("while [ ! -e go ]; do sleep 0.02; done", "-J", "one", "--dependency=singleton")
    machine.submit("true", "-J", "other", "--dependency=singleton")
    machine.wait("1 RUNNING None", "2 PENDING Dependency", "3 COMPLETED None", form="%i %T %r")
    assert machine.queue("%E", "-t", "PD") == ["singleton(unfulfilled)"]
    (machine.cwd / "go").touch()
    machine.wait("1 COMPLETED", "2 COMPLETED", "3 COMPLETED")


# --- surviving --------------------------------------------------------------------------------------------


def test_a_job_outlives_the_process_that_submitted_it(machine: Machine) -> None:
    command = [sys.executable, "-m", "ops.demo.scheduler", "sbatch", "--parsable", "-o", "log", "--wrap"]
    done = subprocess.run(
        [*command, "sleep 0.3; echo done"],
        cwd=machine.cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
        env=machine.env | {"M4OPS_EMBEDDED": str(machine.root), "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    assert done.stdout == "1\n"
    machine.wait("1 COMPLETED")
    assert machine.text("log") == "done\n"


def test_the_shims_answer_inside_and_outside_of_jobs(machine: Machine) -> None:
    machine.submit("squeue -h -o '%i %T %j' > seen; sbatch --parsable -J inner --wrap true > id", "-J", "outer")
    machine.wait("1 COMPLETED", "2 COMPLETED")
    assert machine.text("seen") == "1 RUNNING outer\n"
    assert machine.text("id") == "2\n"
    outside = subprocess.run(
        [machine.root / "bin" / "squeue", "-h", "-t", "all", "-o", "%i %j"],
        capture_output=True,
        text=True,
        check=True,
        timeout=LIMIT,
        env=machine.env,
    )
    assert outside.stdout == "1 outer\n2 inner\n"


def test_a_killed_runner_loses_no_job(machine: Machine) -> None:
    machine.submit("while [ ! -e go ]; do sleep 0.02; done; exit 4", "--array=1-2%1")
    until(lambda: "1_1 RUNNING None" in machine.queue())
    first = machine.runner()
    os.kill(first, signal.SIGKILL)
    until(lambda: not birth(first))
    (machine.cwd / "go").touch()
    machine.wait("1_1 FAILED", "1_2 FAILED")
    assert machine.show("1_1", "ExitCode") == "4:0"
    assert machine.runner() not in (0, first)


def test_a_lost_supervisor_is_a_lost_node(machine: Machine) -> None:
    machine.submit("echo $$ > pid; sleep 60")
    until(lambda: machine.text("pid") != "")
    shell = int(machine.text("pid"))
    os.kill(int((machine.root / "runs" / "1.0" / "pid").read_text().split()[0]), signal.SIGKILL)
    machine.wait("1 NODE_FAIL NodeDown", form="%i %T %r")
    until(lambda: not birth(shell))


def test_the_runner_leaves_when_nothing_is_left_to_do(machine: Machine) -> None:
    machine.submit("true")
    machine.wait("1 COMPLETED")
    until(lambda: machine.runner() == 0)
    machine.submit("true")
    machine.wait("1 COMPLETED", "2 COMPLETED")


# --- notations --------------------------------------------------------------------------------------------


def test_notations() -> None:
    assert parse_array("1-20%1") == (tuple(range(1, 21)), 1)
    assert parse_array("1-10:3,2%2") == ((1, 2, 4, 7, 10), 2)
    assert compress([1, 2, 3, 5, 8, 9]) == "1-3,5,8-9"
    assert hostnames("jean-zay-iam[07-09],x") == ["jean-zay-iam07", "jean-zay-iam08", "jean-zay-iam09", "x"]
    limits = ["5", "1:30", "1:00:00", "1-2", "1-2:3", "1-2:3:4", "UNLIMITED"]
    assert [parse_limit(t) for t in limits] == [300, 90, 3600, 93600, 93780, 93784, 0]
    assert [short(s) for s in (3, 62, 3723, 93784)] == ["0:03", "1:02", "1:02:03", "1-02:03:04"]
    assert [full(s) for s in (3, 93784)] == ["00:00:03", "1-02:03:04"]
    for bad in ("", "1-", "x", "3-1", "1%x", "1-100001"):
        with pytest.raises(ValueError):
            parse_array(bad)


def test_asking_costs_little() -> None:
    """No library slow to import comes with the commands."""
    code = (
        "import sys; from ops.demo.scheduler import answer; from ops.demo.scheduler import squeue, scontrol\n"
        "print(*sorted({m.partition('.')[0] for m in sys.modules} & {'torch', 'numpy', 'rich', 'click', 'yaml', "
        "'ctypes', 'multiprocessing', 'asyncio'}))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True
    )
    assert done.stdout == "\n"
