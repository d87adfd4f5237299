"""A job as `scontrol show job` describes it."""

from __future__ import annotations

import os

from ops.demo.scheduler import spool, times
from ops.demo.scheduler.rows import Row, begins, elapsed, expected_end
from ops.demo.scheduler.words import PENDING, PLAIN, host


def show(row: Row, one_line: bool) -> str:
    """All the lines of a job, or the same in one line (`-o`)."""
    lines = _lines(row)
    if one_line:
        return " ".join(line.lstrip() for line in lines) + "\n"
    return "\n   ".join(lines) + "\n   \n\n"


def _lines(r: Row) -> list[str]:
    s, t = r.spec, r.task
    alone = bool(t.job_id) or not r.folded
    tasks = "N/A" if t.finished and not r.nodes else str(s.ntasks)
    preempt = [f"PreemptEligibleTime={_moment(r, t.start)} PreemptTime=None"] if t.state != PENDING else []
    cpus = s.ntasks * s.cpus_per_task
    return [
        _first(r),
        f"UserId={s.user}({s.uid}) GroupId={s.group}({s.gid}) MCS_label=N/A",
        f"Priority={t.priority} Nice=0 Account={s.account or '(null)'} QOS=(null)",
        f"JobState={t.shown_state} Reason={r.reason.replace(' ', '_')} Dependency={r.dependency}",
        f"Requeue={int(t.requeue)} Restarts={t.restarts} BatchFlag=1 Reboot=0 ExitCode={exit_code(t.status)}",
        f"RunTime={times.full(elapsed(t, r.now))} TimeLimit={_limit(t.time_limit)} TimeMin=N/A",
        f"SubmitTime={_moment(r, t.submit)} EligibleTime={_moment(r, max(t.begin, t.submit))}",
        f"AccrueTime={_moment(r, max(t.begin, t.submit))}",
        f"StartTime={_moment(r, begins(t, r.now))} EndTime={_moment(r, expected_end(t))} Deadline=N/A",
        *preempt,
        f"SuspendTime=None SecsPreSuspend=0 LastSchedEval={_moment(r, t.start or t.submit)} Scheduler=Main",
        f"Partition={s.partition} AllocNode:Sid={s.submit_host}:1",
        f"ReqNodeList=(null) ExcNodeList={t.exclude or '(null)'}",
        f"NodeList={r.nodes}",
        *([f"BatchHost={host()}"] if r.nodes else []),
        f"NumNodes={s.nodes} NumCPUs={cpus} NumTasks={tasks} CPUs/Task={s.cpus_per_task} ReqB:S:C:T=0:0:*:*",
        f"TRES=cpu={cpus},node={s.nodes},billing={cpus}",
        "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*",
        "MinCPUsNode=1 MinMemoryNode=0 MinTmpDiskNode=0",
        "Features=(null) DelayBoot=00:00:00",
        "OverSubscribe=OK Contiguous=0 Licenses=(null) Network=(null)",
        f"Command={s.command}",
        f"WorkDir={s.workdir}",
        *([f"Comment={t.comment} "] if t.comment else []),
        f"StdErr={spool.errors(s, t, alone=alone)}",
        "StdIn=/dev/null",
        f"StdOut={spool.output(s, t, alone=alone)}",
        "Power=",
    ]


def _first(r: Row) -> str:
    if r.task.index == PLAIN:
        return f"JobId={r.task.id} JobName={r.spec.name}"
    throttle = f" ArrayTaskThrottle={r.spec.throttle}" if r.spec.throttle else ""
    return f"JobId={r.task.id} ArrayJobId={r.spec.array_id} ArrayTaskId={r.indices}{throttle} JobName={r.spec.name}"


def _moment(r: Row, seconds: float) -> str:
    return times.moment(seconds, r.env, "Unknown")


def _limit(seconds: int) -> str:
    return times.full(seconds) if seconds else "UNLIMITED"


def exit_code(status: int) -> str:
    """A raw wait status as `code:signal`."""
    if os.WIFSIGNALED(status):
        return f"0:{os.WTERMSIG(status)}"
    return f"{os.waitstatus_to_exitcode(status)}:0"
