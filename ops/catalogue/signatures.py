"""What failing trainings write into their logs: the kinds, and the lines that tell of them."""

from __future__ import annotations

from ops.catalogue.kind import Kind, Signature
from ops.model import Severity

_OK, _WARNING, _CRITICAL = Severity.OK, Severity.WARNING, Severity.CRITICAL
_NODE = "node-failure"
_LOG_FIRST = "find the first error over all ranks: this one is printed by every rank that waits"


def _root(name: str, meaning: str, action: str, source: str, weight: int = 2, runbook: str = "") -> Kind:
    return Kind(name, _CRITICAL, "root", meaning, action, source, runbook=runbook, weight=weight)


def _symptom(name: str, meaning: str, action: str, source: str, severity: Severity = _CRITICAL) -> Kind:
    return Kind(name, severity, "symptom", meaning, action, source, weight=1)


def _consequence(name: str, meaning: str, source: str) -> Kind:
    return Kind(name, _OK, "consequence", meaning, "look for what came before it", source)


def _ending(name: str, meaning: str, action: str, source: str) -> Kind:
    return Kind(name, _OK, "ending", meaning, action, source, "m4ops status: is the next job of the chain queued?")


KINDS: tuple[Kind, ...] = (
    _root("node-failure", "Slurm lost a node", "exclude and report the node that srun names, requeue",
          "Slurm srun; huggingface/m4-logs tr_141", 4, _NODE),
    _root("launch-failure", "the job step could not be launched on a node", "exclude the node, submit again",
          "Slurm srun and slurmstepd", 3, _NODE),
    _root("host-oom", "the host ran out of memory, or the job reached its memory limit",
          "fewer loader workers, look for a leak or offloading; restart", "Slurm slurmstepd; Linux kernel", 3),
    _root("cuda-ecc", "uncorrectable error in GPU memory", "exclude the node and have it drained",
          "bigscience-workshop/bigscience train/tr1", 3, _NODE),
    _root("host-memory", "uncorrectable error in a node's memory",
          "find the node (dmesg, EDAC; Slurm names the step's first one only) and have it drained",
          "SchedMD/slurm src/slurmd/slurmstepd/req.c, SIG_UME", 3, _NODE),
    _root("gpu-lost", "a GPU is gone from its bus", "exclude the node; it needs a reboot", "NVIDIA driver", 3, _NODE),
    _root("nvswitch", "fatal NVSwitch error", "exclude the node; its fabric needs a reset", "NVIDIA driver, SXid", 3,
          _NODE),
    _root("fabric-manager", "the NVIDIA fabric manager is not running", "exclude the node; restart the service there",
          "pytorch/pytorch#35710", 3, _NODE),
    _root("disk-full", "the file system is full, or the quota is used up: checkpoints may be torn",
          "make room; verify the last checkpoint before any rewind", "errno 28 and 122", 3),
    _root("fs-error", "the file system did not answer as it must", "check the mount on that node, then requeue",
          "errno 5, 107, 108 and 116; Lustre client", 2),
    _root("shm", "a data loader worker died: shared memory is full, or its memory limit",
          "more shared memory or fewer workers", "pytorch DataLoader; bigscience train/tr1"),
    _root("cuda-error", "a GPU failed in a way that programs seldom cause",
          "find the node, check its health, exclude it when it repeats", "pytorch; bigscience train/tr11"),
    _root("cuda-oom", "out of GPU memory; at start or at a barrier it means an occupied or faulty GPU",
          "look for left-over processes on the node; else a smaller batch", "pytorch; bigscience train/tr1"),
    _root("nccl-ib", "an InfiniBand link or the peer behind it died", "the peer's address is the suspect",
          "NVIDIA/nccl#1814"),
    _root("nccl-connect", "a peer could not be reached", "the node behind the address is the suspect",
          "stas00/ml-engineering"),
    _root("rendezvous", "not all nodes came to the rendezvous, or its port was taken", "find the node that is missing",
          "pytorch/pytorch#79388"),
    _root("loss-scale-minimum", "the loss scale is at its minimum: every step overflows (fp16 collapse)",
          "rewind to before the gradients grew; lower the learning rate", "DeepSpeed loss_scaler.py; fairseq dynamic_loss_scaler.py; arXiv 2205.01068",
          2, "loss-diverges"),
    Kind("hung-task", _WARNING, "root", "a process of the training waits for a file system that does not answer",
         "report the file system; the node needs a reboot if it stays", "Linux kernel, hung_task", weight=2,
         confirm="ps -eo pid,stat,wchan,cmd on the node: state D"),
    _symptom("traceback", "a Python program ended with an exception", "read the exception", "Python"),
    _symptom("rank-died", "torchrun reports the first process that failed", "look into that rank's own output",
             "pytorch torch.distributed.elastic"),
    _symptom("crash", "a process crashed (segmentation fault, abort, bus error)", "look for a core file; py-spy",
             "Python faulthandler; Slurm srun; Linux kernel"),
    _symptom("task-killed", "a task was killed", "look for host memory (dmesg, sacct MaxRSS)", "Slurm srun; bash"),
    _symptom("step-failed", "Slurm ended the step because something in it failed",
             "find the task that ended first, and its output; sacct -j JOB",
             "SchedMD/slurm src/slurmd/slurmstepd/req.c, SIG_FAILURE"),
    _symptom("nccl-timeout", "a collective timed out: some rank did not join it",
             "the suspect is the rank that does NOT print it; look for an earlier error", "pytorch ProcessGroupNCCL"),
    Kind("nccl-hang", _WARNING, "symptom", "a CUDA or NCCL call hangs; finished runs may say it too at their very end",
         "py-spy dump, dmesg on the node", "pytorch ProcessGroupNCCL"),
    _symptom("nccl-error", "NCCL lost the network or a peer", _LOG_FIRST, "pytorch DistBackendError"),
    _symptom("memory", "the trainer ends itself before the host's memory is used up", "look for a leak",
             "huggingface/smollm trainer.py", _WARNING),
    _consequence("nccl-teardown", "NCCL takes the process down after an error elsewhere", "pytorch ProcessGroupNCCL"),
    _consequence("terminated", "C++ ended the process after an exception", "libstdc++"),
    _consequence("told-to-stop", "the process was told to stop", "torchrun, submitit, trainers"),
    _consequence("task-exit", "a task ended with an error code, or was terminated", "Slurm srun"),
    _consequence("report", "a line of torchrun's report", "pytorch torch.distributed.elastic"),
    _ending("time-limit", "the job reached its time limit", "check that the next job is queued", "Slurm slurmstepd"),
    _ending("preempted", "the job was preempted", "nothing, if it is queued again", "Slurm slurmstepd; submitit"),
    _ending("requeued", "the job was put back into the queue", "nothing", "Slurm slurmstepd"),
    _ending("cancelled", "somebody cancelled the job", "nothing, if you did", "Slurm slurmstepd"),
    _ending("kill-switch", "the trainer saw the kill switch and ended", "remove the switch before the next job",
            "huggingface/smollm trainer.py"),
    _ending("time-over", "the trainer's own time was over", "check that the next job is queued",
            "huggingface/smollm trainer.py"),
    _ending("max-steps", "the trainer reached its last step", "nothing", "huggingface/smollm trainer.py"),
)  # fmt: skip

_STEPD = r"slurmstepd(?:-\S+)?: error: "
_ENDED = _STEPD + r"\*\*\* (?:STEP|JOB) (?P<value>(?P<job>\d+)\S*)(?: ON (?P<node>\S+))? .*"
_DIED = r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,\-\[\]]+): "
_ERROR = r"(?:[\w.]*(?:Error|Exception|error): (?:transform: failed to synchronize: )?)?"
_NVRM = r"(?:.*?(?P<node>[\w.-]+) kernel: .*?|.*?)"

_NCCL = r".*Rank (?P<rank>\d+)\]\S* Terminating the process after attempting to dump debug info"


def _s(event: str, literals: str, pattern: str, kind: str = "") -> Signature:
    return Signature(event, tuple(literals.split("|")), pattern, kind)


SIGNATURES: tuple[Signature, ...] = (
    # The trainer of huggingface/smollm, vision/m4/training/trainer.py.
    _s("saved", "** Saving finished", r"\*\* Saving finished at `(?P<value>.+?)`"),
    _s("wandb-id", "** `wandb_run_id`", r"\*\* `wandb_run_id`: (?P<value>\S+)"),
    _s("kill-switch", "** Kill switch", r"\*\* Kill switch activated"),
    _s("sigterm", "** SIGTERM", r"\*\* SIGTERM signal received", "told-to-stop"),
    _s("time-over", "** Training time", r"\*\* Training time is over"),
    _s("max-steps", "** Maximum number",
       r"\*\* Maximum number of steps has been reached for this (?P<value>training|run)"),
    _s("memory", "** CPU memory", r"\*\* CPU memory is close to explosion"),
    _s("validation", "Validation logs", r"Validation logs: val_per_token_loss: (?P<value>\S+)"),
    # Slurm 20.11 to 23.11. The node after ON is the step's first one, not the one that failed.
    _s("node-failure", "Node failure on", r"srun: error: Node failure on (?P<value>(?P<node>\S+))"),
    _s("node-failure-step", "DUE TO NODE FAILURE", _STEPD + r"\*\*\* (?:STEP|JOB) (?P<job>\d+).* DUE TO NODE FAILURE",
       "node-failure"),
    _s("time-limit", "DUE TO TIME LIMIT", _ENDED + "DUE TO TIME LIMIT"),
    _s("preempted", "DUE TO PREEMPTION", _ENDED + "DUE TO PREEMPTION"),
    _s("preempted", "job is preempted", r"submitit \w+ .*this job is preempted"),
    _s("requeued", "DUE TO JOB REQUEUE", _ENDED + "DUE TO JOB REQUEUE"),
    _s("host-memory", "UNCORRECTABLE MEMORY ERROR AT", _STEPD + r"\*\*\* (?:STEP|JOB) (?P<job>\d+)\S* ON \S+ UNCORRECTABLE MEMORY"),
    _s("step-failed", "FAILED (non-zero exit code",
       _STEPD + r"\*\*\* (?:STEP|JOB) (?P<job>\d+)\S* ON \S+ FAILED \(non-zero exit code or"),
    _s("cancelled", "CANCELLED AT", _ENDED + r"CANCELLED AT \S+ \*\*\*"),
    _s("host-oom", "oom_kill event|oom-kill event",
       _STEPD + r"Detected \d+ oom[-_]kill event.*?(?:StepId=|step )(?P<job>\d+)"),
    _s("host-oom", "oom-kill:constraint|ut of memory: Kill",
       r".*?(?:oom-kill:constraint=|(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process \d+)"),
    _s("killed", "Killed", r"(?:\S+: line \d+:\s+\d+ Killed\s+\S|Killed\s*$)", "task-killed"),
    _s("task-died", "Exited with exit code 137", _DIED + r"Exited with exit code 137\b", "task-killed"),
    _s("task-died", ": Killed|: Out Of Memory", _DIED + r"(?:Killed|Out Of Memory)", "task-killed"),
    _s("task-crashed", ": Bus error|: Segmentation fault|: Aborted", _DIED + r"(?:Bus error|Segmentation fault|Aborted)", "crash"),
    _s("task-exit", ": Exited with|: Terminated", _DIED + r"(?:Exited with|Terminated)"),
    _s("launch-failure", "Task launch for",
       r"srun: error: Task launch for (?:StepId=)?(?P<job>\d+)?.* failed on node (?P<node>[\w.-]+)"),
    _s("launch-failure", "Unable to create step", r"srun: error: Unable to create step for job (?P<job>\d+)"),
    _s("launch-failure", "execve()", _STEPD + r"execve\(\)"),
    # The kernel and the NVIDIA driver.
    _s("segfault", "segfault at ",
       r"(?:.*kernel: )?(?:\[[^\]]*\] ?){0,3}(?:(?:python|pt_|torchrun|accelerate|deepspeed)[\w.:/-]{0,60}\[\d+\]: segfault at .*"
       r"|[\w.:/-]{1,60}\[\d+\]: segfault at .* in (?:libcu|libnccl|libtorch|libc10|libnvidia).*)", "crash"),
    _s("xid-154-reset", "NVRM: Xid", _NVRM + r"NVRM: Xid \((?:PCI:)?[0-9a-fA-F:.]+\): (?P<value>154), .{0,99} to (?:0x\w+ )?\(?"
       r"(?:Node Reboot|OS Reboot|GPU Reset|Drain and Reset)"),
    _s("xid", "NVRM: Xid", _NVRM + r"NVRM: Xid \((?:PCI:)?[0-9a-fA-F:.]+\): (?P<value>\d+)"),
    _s("gpu-lost", "fallen off the bus|GPU is lost|Unable to determine the device handle",
       r"(?:.*NVRM: GPU .*(?:fallen off the bus|GPU is lost)|Unable to determine the device handle for GPU)"),
    _s("nvswitch", "SXid (PCI:", r".*SXid \(PCI:[^)]*\): (?P<value>\d+), Fatal"),
    _s("hung-task", "blocked for more than", r".*?INFO: task (?P<value>(?:python|pt_|torchrun|accelerate|deepspeed)[^\s:]*):\d+ blocked for more than \d+ seconds"),
    _s("fabric-manager", "Error 802: system not yet initialized", r".*Error 802: system not yet initialized"),
    # PyTorch, NCCL, Python.
    _s("cuda-ecc", "uncorrectable ECC error|ECCUncorrectable",
       r"(?:what\(\):\s+)?" + _ERROR + r"(?:CUDA error: uncorrectable ECC|cudaErrorECCUncorrectable|uncorrectable ECC error)"),
    _s("cuda-oom", "CUDA out of memory|CUDA error: out of memory|OutOfMemoryError",
       r"(?:what\(\):\s+)?(?:" + _ERROR + r"CUDA (?:error: )?out of memory|[\w.]*OutOfMemoryError: )"),
    _s("cuda-error", "CUDA error: |cuDNN error: |HIP error: ", r"(?:what\(\):\s+)?" + _ERROR + r"(?:CUDA|cuDNN|HIP) error: (?P<value>[^.\n]*)"),
    _s("cuda-error", "c10::CUDAError", r"terminate called after throwing an instance of .*c10::CUDAError"),
    _s("terminated", "terminate called after", r"terminate called after throwing"),
    _s("shm", "insufficient shared memory|is killed by signal",
       r"(?:ERROR: Unexpected bus error encountered in worker|" + _ERROR + r"DataLoader worker \(pid[^)]*\) is killed by signal)"),
    _s("disk-full", "No space left on device|Disk quota exceeded|[Errno 28]|[Errno 122]",
       r"(?:[\w./ -]+: ){0,6}" + _ERROR + r"(?:\[Errno (?:28|122)\] |\S[^\"']*: )?(?:No space left on device|Disk quota exceeded)"),
    _s("fs-error", "Stale file handle|[Errno 5]|[Errno 108]|[Errno 116]|Transport endpoint is not|LustreError:",
       r"(?!srun|slurm)(?:[\w./ -]+: ){0,6}(?:" + _ERROR + r"(?:\[Errno (?:5|116|108)\]|\[Errno 107\] [\w ]+: '/)|.*kernel: .*LustreError: "
       r"|(?:\[[^\]]*\] ?){0,3}LustreError: [\d(]"
       r"|(?:\S[^\"']*: |\S+: cannot [\w ]+ '[^']+': |)(?:Stale file handle|Transport endpoint is not connected)$)"),
    _s("loss-scale-minimum", "loss scale already at minimum|Minimum loss scale reached",
       r"(?:.*loss scale already at minimum|" + _ERROR + r"(?:AMP: )?Minimum loss scale reached \()"),
    _s("nccl-timeout", "Watchdog caught collective operation timeout",
       r".*?\[?Rank (?P<rank>\d+)\]?\S* Watchdog caught collective operation timeout: (?P<value>.*)"),
    _s("nccl-hang", "Heartbeat monitor timed out|watchdog got stuck for|that detected no heartbeat",
       r".*?(?:\[?Rank (?P<rank>\d+)\]?.*)?(?:Heartbeat monitor timed out|watchdog got stuck for \d+ sec"
       r"|First PG on this rank that detected no heartbeat)"),
    _s("nccl-hang", "attempting to dump debug info", _NCCL + r".* due to ProcessGroupNCCL watchdog hang"),
    _s("nccl-timeout", "attempting to dump debug info", _NCCL),
    _s("nccl-teardown", "Some NCCL operations have failed|taking the entire process down|detected by watchdog",
       r".*(?:Some NCCL operations have failed|taking the entire process down|detected by watchdog)"),
    _s("nccl-ib", "NCCL WARN NET/IB", r".*NCCL WARN NET/IB ?: Got completion from peer (?P<value>\S+)"),
    _s("nccl-ib", "NCCL WARN NET/IB", r".*NCCL WARN NET/IB ?: Got (?:completion|async event).*"),
    _s("nccl-connect", "NCCL WARN Connect to", r".*NCCL WARN Connect to (?P<value>[\d.]+)\S* failed"),
    _s("nccl-error", "DistBackendError|ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandledCudaError",
       _ERROR + r"(?:NCCL error|.*?nccl(?:System|Remote|Internal|UnhandledCuda)Error: )"),
    _s("rendezvous", "RendezvousTimeoutError|RendezvousConnectionError|RendezvousClosedError|client socket has timed out|server socket has failed to listen",
       r"(?:[\w.]*Error: The server socket has failed to listen on any local|[\w.]*Rendezvous(?:Timeout|Connection|Closed)Error|" + _ERROR + r".*client socket has timed out after \d+)"),
    _s("elastic-root", "Root Cause (first observed failure)", r"Root Cause \(first observed failure\):", "rank-died"),
    _s("elastic-host", "  host      : ", r"host +: (?P<node>\S+)", "report"),
    _s("elastic-rank", "  rank      : ", r"rank +: (?P<rank>\d+) \(local_rank", "report"),
    _s("elastic-exit", "  exitcode  : ", r"exitcode +: (?P<value>-?\d+)", "report"),
    _s("elastic-child", "ChildFailedError", r"[\w.]*ChildFailedError:?", "report"),
    _s("told-to-stop", " death signal|got signal: 15|SIGTERM, exiting",
       r".*(?:Received \d+ death signal|SignalException: Process \d+ got signal: 15|process received SIGTERM, exiting)"),
    _s("crash", "Fatal Python error", r"Fatal Python error: (?P<value>.*)"),
)  # fmt: skip
