"""Why Slurm does not start a job: what each of its reasons means, whether the waiting ends by itself, and what to do.

The codes are those of Slurm 22.05 (squeue(1), "JOB REASON CODES") and of slurm.schedmd.com/job_reason_codes.html.
"""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import replace

from ops.model import Severity


class Reason(Struct, frozen=True):
    """A reason. `severity`: of a run that waits for nothing else; OK where the waiting ends by itself."""

    code: str
    meaning: str
    severity: Severity = Severity.OK
    do: str = ""
    commands: tuple[str, ...] = ()
    """To be considered, with `{job}` in the job's place."""
    held: bool = False
    """Somebody holds it: it waits because it shall."""
    nodes: bool = False
    """It waits for nodes: how many are usable tells whether they can come."""

    @property
    def stuck(self) -> bool:
        """Whether the job waits for what does not come by itself."""
        return self.severity is not Severity.OK and not self.held


_W, _C = Severity.WARNING, Severity.CRITICAL
_SHOW = "scontrol show job {job}"
_CANCEL = "m4ops cancel {job}"
_RELEASE = "m4ops release"
HELD_BY_ADMIN = "JobHeldAdmin"
_LESS = "submit it again and ask for less; a pending job may also ask for less"


def _update(what: str) -> str:
    return f"scontrol update jobid={{job}} {what}"


_KNOWN: tuple[Reason, ...] = (
    # it ends by itself
    Reason("Priority", "jobs of higher priority are before it"),
    Reason("Resources", "it is next, and waits until enough nodes are free"),
    Reason("JobArrayTaskLimit", "waits for a running task of its own array (the %N of --array)"),
    Reason("Dependency", "waits for the job it depends on"),
    Reason("BeginTime", "its begin time has not come; a requeued job waits about two minutes"),
    Reason("Nodes required for job are DOWN, DRAINED or reserved", "nodes it needs are down, drained or reserved",
           nodes=True),
    Reason("Reservation", "waits for its reservation to begin"),
    Reason("Licenses", "waits for a licence"),
    Reason("Prolog", "the prolog still runs on its nodes"),
    Reason("Cleaning", "its last run is still being cleaned up"),
    Reason("QOSJobLimit", "its QOS runs as many jobs as it may"),
    Reason("QOSResourceLimit", "its QOS has used up its resources"),
    Reason("AssociationJobLimit", "its account has as many jobs as it may"),
    Reason("AssociationResourceLimit", "its account uses as much as it may"),
    Reason("AssocMaxJobsLimit", "its user runs as many jobs in this account as allowed"),
    Reason("AssocMaxSubmitJobLimit", "its user has as many jobs queued in this account as allowed"),
    Reason("QOSMaxJobsPerUserLimit", "its user runs as many jobs in this QOS as allowed"),
    Reason("QOSMaxSubmitJobPerUserLimit", "its user has as many jobs queued in this QOS as allowed"),
    Reason("WaitingForScheduling", "the scheduler has not looked at it yet"),
    Reason("SchedDefer", "told to be scheduled later"),
    Reason("BurstBufferResources", "waits until the burst buffer has room"),
    Reason("BurstBufferStageIn", "its data is being brought into the burst buffer"),
    Reason("PowerNotAvail", "waits until there is power for it"),
    Reason("PowerReserved", "waits until there is power for it"),
    Reason("FedJobLock", "the clusters of the federation settle where it starts"),
    # somebody holds it
    Reason("JobHeldUser", "held by its owner; `m4ops release` lets it go", _W, "release it when it may go on",
           (_RELEASE,), held=True),
    Reason("job requeued in held state", "requeued and held; `m4ops release` lets it go", _W,
           "release it when it may go on", (_RELEASE,), held=True),
    Reason(HELD_BY_ADMIN, "held by an administrator, who alone can release it", _W,
           "ask the administrators why, and to release it", (_SHOW,), held=True),
    # something must be done first
    Reason("launch failed requeued held", "its start failed (node or prolog); held until `m4ops release`", _C,
           "see which node was drained and why (sinfo -R), keep the run away from it, then release",
           ("m4ops nodes", "m4ops exclude NODE", _RELEASE)),
    Reason("JobHoldMaxRequeue", "held: it was requeued more often than this cluster allows (MaxBatchRequeue)", _C,
           "find what ends it each time, then release it", ("m4ops check", _RELEASE)),
    Reason("DependencyNeverSatisfied", "will never start: the job it depends on did not end as asked", _C,
           "see how that job ended; then take the dependency off, or cancel this one and submit it again",
           (_update("dependency="), _CANCEL)),
    Reason("BadConstraints", "no node of the cluster can satisfy what it asks for", _C,
           "compare its features, GPUs and memory with what `sinfo -N -l` shows; a changed request lets it go",
           (_SHOW, _update("features="), _CANCEL)),
    Reason("PartitionNodeLimit", "asks for more nodes than its partition gives, or than are up", _C,
           "ask for fewer nodes, or for another partition", (_update("numnodes=N"), _update("partition=NAME")), nodes=True),
    Reason("PartitionTimeLimit", "asks for more time than its partition gives", _C,
           "ask for less time, or for another partition",
           ("scontrol show partition", _update("timelimit=HH:MM:SS"), _update("partition=NAME"))),
    Reason("PartitionConfig", "its partition cannot run such a job: it may ask for more nodes than there are", _C,
           "compare what it asks for with the partition", ("scontrol show partition", _SHOW, _CANCEL)),
    Reason("PartitionDown", "its partition is down", _W, "ask the administrators, or take another partition",
           ("sinfo", _update("partition=NAME"))),
    Reason("PartitionInactive", "its partition takes no new starts now", _W,
           "ask the administrators, or take another partition", ("sinfo", _update("partition=NAME"))),
    Reason("ReqNodeNotAvail", "a node it needs is down, drained or reserved", _W,
           "do without that node, or have it repaired; a reservation (maintenance) ends by itself",
           ("sinfo -R", "scontrol show reservation", _update("reqnodelist=")), nodes=True),
    Reason("NodeDown", "a node it needs is down", _W, "have it repaired", ("sinfo -R",), nodes=True),
    Reason("FrontEndDown", "no front end node is up", _W, "ask the administrators", ("sinfo -R",)),
    Reason("ReservationDeleted", "its reservation is gone: it will not start", _C, "take it out of the reservation",
           (_update("reservation="), _RELEASE)),
    Reason("BurstBufferOperation", "the burst buffer failed it", _C, "ask the administrators", (_SHOW,)),
    Reason("InvalidAccount", "its account does not exist or may not be used", _C, "give it another account",
           ("sacctmgr show assoc where user=$USER", _update("account=NAME"))),
    Reason("InvalidQOS", "its QOS does not exist or may not be used", _C, "give it another QOS",
           ("sacctmgr show assoc where user=$USER", _update("qos=NAME"))),
    Reason("AccountNotAllowed", "its account may not use this partition", _C, "take another account or partition",
           ("scontrol show partition", _update("account=NAME"), _update("partition=NAME"))),
    Reason("QOSNotAllowed", "its QOS may not use this partition", _C, "take another QOS or partition",
           ("scontrol show partition", _update("qos=NAME"), _update("partition=NAME"))),
    Reason("QOSUsageThreshold", "its QOS has used up its threshold", _W, "ask for more, or take another QOS",
           (_update("qos=NAME"),)),
    Reason("QOSTimeLimit", "its QOS has used up its time", _C, "ask for more, or take another QOS",
           (_update("qos=NAME"),)),
    Reason("AssociationTimeLimit", "its account has used up its time", _C, "ask for more, or take another account",
           (_update("account=NAME"),)),
    Reason("AccountingPolicy", "a limit of its account or QOS keeps it", _W, "ask the administrators which", (_SHOW,)),
    Reason("MaxMemPerLimit", "asks for more memory than a CPU or node may give (MaxMemPerCPU, MaxMemPerNode)", _C,
           _LESS, (_SHOW, _CANCEL)),
    Reason("DeadLine", "it cannot end before its deadline", _C, "move its deadline", (_SHOW, _CANCEL)),
    # of jobs that have ended
    Reason("InactiveLimit", "reached the limit of inactivity"),
    Reason("NonZeroExitCode", "its program ended with an error"),
    Reason("JobLaunchFailure", "could not be launched (file system, credential, or no such program)"),
    Reason("SystemFailure", "Slurm, the file system or the network failed"),
    Reason("TimeLimit", "reached its time limit"),
    Reason("RaisedSignal", "ended by a signal"),
    Reason("OutOfMemory", "ran out of memory"),
)  # fmt: skip

_BUDGET = "ask for a larger budget or a reset, or take another account or QOS"
_RULES: tuple[tuple[str, Reason], ...] = (
    (r"(Assoc|QOS)Grp(.*)RunMinutes(?:Limit)?", Reason("", "the {thing} that {whose} may have running are taken")),
    (r"(Assoc|QOS)Grp(.*)Minutes(?:Limit)?",
     Reason("", "the {thing} of {whose} are used up", _C, _BUDGET, (_update("account=NAME"), _update("qos=NAME")))),
    (r"(Assoc|QOS)Grp(Wall)(?:Limit)?",
     Reason("", "the {thing} of {whose} is used up", _C, _BUDGET, (_update("account=NAME"), _update("qos=NAME")))),
    (r"(Assoc|QOS)Grp(.*)", Reason("", "the jobs of {whose} together use all the {thing} they may")),
    (r"(Assoc|QOS)Max(.*)Per(?:Job|Node)(?:Limit)?",
     Reason("", "asks for more {thing} than {whose} may have in one job", _C, _LESS, (_SHOW, _CANCEL))),
    (r"(QOS)Min(.*)",
     Reason("", "asks for fewer {thing} than {whose} demands", _C, "ask for more, or take another QOS",
            (_update("qos=NAME"), _CANCEL))),
    (r"(QOS)Max(.*)PerUser(?:Limit)?", Reason("", "its user has all the {thing} that {whose} allows a user")),
    (r"(QOS|)Max(.*)PerAccount(?:Limit)?", Reason("", "its account has all the {thing} that {whose} allows an account")),
    (r"(Assoc|QOS)Max(.*)", Reason("", "{whose} has all the {thing} it may")),
)  # fmt: skip
"""Families of reasons: accounting limits, by what they limit. The first rule that fits."""

_THINGS = {
    "BB": "burst buffer",
    "CPU": "CPU",
    "Cpu": "CPUs",
    "GRES": "GPUs",
    "Jobs": "jobs",
    "License": "licences",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "SubmitJob": "queued jobs",
    "SubmitJobs": "queued jobs",
    "Unknown": "resources",
    "Wall": "wall time",
    "WallDuration": "wall time",
}
_BY_CODE = {reason.code: reason for reason in _KNOWN}
_SPELLED = {
    "launch_failed_requeued_held": "launch failed requeued held",
    "job_requeued_in_held_state": "job requeued in held state",
}
"""As scontrol writes what squeue writes with blanks."""
_DETAILED = ("ReqNodeNotAvail", "Nodes required for job are DOWN, DRAINED or reserved", "RaisedSignal")
"""Reasons that go on: with the nodes, the signal, a reservation."""


def reason_of(text: str) -> Reason | None:
    """The reason that Slurm's word or sentence stands for; None for no reason, and for one that is not known here."""
    code = text.strip("()")
    code = _SPELLED.get(code, code)
    if code in _BY_CODE:
        return _BY_CODE[code]
    for known in _DETAILED:
        if code.startswith(known):
            return _BY_CODE[known]
    for pattern, rule in _RULES:
        if found := re.fullmatch(pattern, code):
            whose = "its account" if found[1] == "Assoc" else "its QOS"
            return replace(rule, code=code, meaning=rule.meaning.format(thing=_thing(found[2], code), whose=whose))
    return None


def _thing(part: str, code: str) -> str:
    """What a limit counts: `Cpu` is CPUs, or CPU minutes if the whole code says so."""
    part = part.removesuffix("Limit").removesuffix("NotSatisfied").removesuffix("Minutes")
    named = _THINGS.get(part, part.lower() or "resources")
    return f"{named.removesuffix('s')} minutes" if "Minutes" in code else named
