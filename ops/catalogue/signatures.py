"""The lines that tell of a failure: how each of the kinds looks in a log."""

from __future__ import annotations

from ops.catalogue.kind import Signature

_STEPD = r"(?:slurmstepd(?:-\S+)?: )?error: "
"""In the job's output, and in slurmd's log."""
_ENDED = _STEPD + r"\*\*\* (?:STEP|JOB) (?P<value>(?P<job>\d+)\S*)(?: ON (?P<node>\S+))? .*"
_DIED = r"srun: error: (?P<node>[\w.-]+): tasks? (?P<tasks>[\d,\-\[\]]+): "
_ERROR = r"(?:[\w.]*(?:Error|Exception|error): (?:transform: failed to synchronize: )?)?"
_SAID = r"(?:what\(\):\s+)?" + _ERROR
_KERNEL = r"(?:(?:.*?\s)?(?P<node>(?=\S*[A-Za-z-])[\w.-]+) kernel: .*?|.*?)"
"""Of syslog, or of dmesg, which names no host."""
_NET = r"(?:.*?(?<![\w.-])(?P<node>[\w.-]+):\d+:\d+ \[\d+\] )?.*?"
"""Of NCCL: the host that tells, not the peer."""
_GLOO = _SAID + r"\[?\S*gloo/transport/tcp/\S+\] "
_SURVIVED = r"(?!.*(?:\b[Rr]e-?try|\btrying\b|\b[Ss]kipp|\b[Ii]gnor|\b[Ff]all(?:ing)? back|\b[Cc]ontinu))"
"""What a program says that goes on."""

_NCCL = r".*Rank (?P<rank>\d+)\]\S* Terminating the process after attempting to dump debug info"


def _s(event: str, literals: str, pattern: str, kind: str = "") -> Signature:
    return Signature(event, tuple(literals.split("|")), pattern, kind)


def _exits(literals: str, before: str, after: str = "") -> tuple[Signature, ...]:
    """A launcher's line with an exit code: a signal's, negative or as a shell has it, or the program's own."""
    return (
        _s("exit-stopped", literals, before + r"(?:-2|-15|130|143)\b" + after, "told-to-stop"),
        _s("exit-killed", literals, before + r"(?:-9|137)\b" + after, "task-killed"),
        _s("exit-crashed", literals, before + r"(?:-\d+|13[4-9])\b" + after, "crash"),
        _s("exit-failed", literals, before + r"(?P<value>[1-9]\d*)\b" + after, "rank-died"),
    )


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
    _s("step-stuck", "DUE TO JOB NOT ENDING WITH SIGNALS", _STEPD + r"\*\*\* (?:STEP|JOB) (?P<job>\d+)\S* STEPD TERMINATED ON (?P<node>\S+)", "hung-task"),
    _s("host-oom", "oom_kill event|oom-kill event",
       _STEPD + r"Detected \d+ oom[-_]kill event.*?(?:StepId=|step )(?P<job>\d+)"),
    _s("host-oom", "oom-kill:constraint|ut of memory: Kill",
       _KERNEL + r"(?:oom-kill:constraint=|(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process \d+)"),
    _s("host-oom", "MemoryError|DefaultCPUAllocator|[Errno 12]|std::bad_alloc",
       r"(?:[\w.]*MemoryError(?:$|: (?!CUDA|HIP))|" + _SAID + r"(?:.*DefaultCPUAllocator: (?:can't|not enough)|\[Errno 12\] |std::bad_alloc))"),
    _s("crash", "(core dumped)", r"(?:.*(?:it/s|s/it)\]?|\S+: line \d+:\s+\d+ )?(?:Segmentation fault|Bus error|Aborted|Illegal instruction|Floating point exception)\s+\(core dumped\)"),
    _s("crash", ": line ", r"\S+: line \d+: +\d+ (?:Segmentation fault|Bus error|Aborted|Illegal instruction) "),
    _s("crash", "*** Process received signal ***", r"\[(?P<node>[\w.-]+):\d+\] \*\*\* Process received signal"),
    _s("task-killed", "exited on signal 9", r"\w+ noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<node>\S+) exited on signal 9\b"),
    _s("crash", "exited on signal", r"\w+ noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<node>\S+) exited on signal (?!15\b|2\b)\d+"),
    _s("mpi-failed", "processes exited with non-zero status|MPI_ABORT was invoked|Local abort before MPI_INIT",
       r"(?:\w+ detected that one or more processes exited with non-zero status|MPI_ABORT was invoked on rank (?P<rank>\d+)"
       r"|\[(?P<node>[\w.-]+):\d+\] Local abort before MPI_INIT)", "rank-died"),
    _s("crash", "*** SIG", r"\*\*\* SIG(?:ABRT|SEGV|BUS|FPE|ILL) received by PID"),
    _s("host-oom", "low on resource: memory|reason: OOMKilled|Reason:       OOMKilled", r".*(?:The node was low on resource: memory|[Rr]eason: +OOMKilled)"),
    _s("crash", "died with <Signals.SIG", r".*died with <Signals\.SIG(?:SEGV|BUS|ABRT|FPE|ILL)"),
    _s("task-killed", "died with <Signals.SIG", r".*died with <Signals\.SIGKILL"),
    _s("killed", "Killed", r"(?:\S+: line \d+:\s+\d+ Killed\s+\S|Killed\s*$)", "task-killed"),
    _s("task-died", "Exited with exit code 137", _DIED + r"Exited with exit code 137\b", "task-killed"),
    _s("task-died", ": Killed|: Out Of Memory", _DIED + r"(?:Killed|Out Of Memory)", "task-killed"),
    _s("task-crashed", ": Bus error|: Segmentation fault|: Aborted", _DIED + r"(?:Bus error|Segmentation fault|Aborted)", "crash"),
    _s("task-exit", ": Exited with|: Terminated", _DIED + r"(?:Exited with|Terminated)"),
    _s("launch-failure", "Task launch for",
       r"srun: error: Task launch for (?:StepId=)?(?P<job>\d+)?.* failed on node (?P<node>[\w.-]+)"),
    _s("launch-failure", "Unable to create step", r"srun: error: Unable to create step for job (?P<job>\d+)"),
    _s("launch-failure", "execve()", _STEPD + r"execve\(\)"),
    _s("launch-failure", "launch failed", r"srun: error: (?:(?P<node>[\w.-]+): )?(?:task \d+|Application) launch failed"),
    _s("launch-failure", "couldn't start container|container start failed|Failed to invoke spank",
       r"slurmstepd(?:-(?P<node>\S+))?: error: (?:pyxis: (?:couldn't start container|container start failed)|Failed to invoke spank)"),
    _s("launch-failure", "rolog", r"(?:srun|slurmstepd\S*): error: (?!.*No such file).*[Pp]rolog\w* (?:hook )?failed"),
    _s("slurm-refused", "Unable to allocate|Batch job submission failed|Job submit/allocate failed|Unable to confirm allocation",
       r"(?:srun|salloc|sbatch): error: (?:Unable to allocate resources|Batch job submission failed|Job submit/allocate failed"
       r"|Unable to confirm allocation)[\w ]*: (?P<value>.*)"),
    _s("slurm-refused", "Unable to contact slurm controller|establish a configuration source|Munge encode failed|Munge decode failed",
       r"s\w+: (?:error|fatal): .*(?:Unable to contact slurm controller|establish a configuration source|Munge (?:en|de)code failed)"),
    # The kernel and the NVIDIA driver.
    _s("segfault", "segfault at ",
       r"(?:.*kernel: )?(?:\[[^\]]*\] ?){0,3}(?:(?:python|pt_|torchrun|accelerate|deepspeed)[\w.:/-]{0,60}\[\d+\]: segfault at .*"
       r"|[\w.:/-]{1,60}\[\d+\]: segfault at .* in (?:libcu|libnccl|libtorch|libc10|libnvidia).*)", "crash"),
    _s("xid-154-reset", "NVRM: Xid", _KERNEL + r"NVRM: Xid \((?:PCI:)?[0-9a-fA-F:.]+\): (?P<value>154), .{0,99} to (?:0x\w+ )?\(?"
       r"(?:Node Reboot|OS Reboot|GPU Reset|Drain and Reset)"),
    _s("xid", "NVRM: Xid", _KERNEL + r"NVRM: Xid \((?:PCI:)?[0-9a-fA-F:.]+\): (?P<value>\d+)"),
    _s("gpu-lost", "fallen off the bus|GPU is lost|GPU_IS_LOST|Unable to determine the device handle",
       r"(?:" + _KERNEL + r"NVRM: .*(?:fallen off the bus|GPU is lost|GPU_IS_LOST)|Unable to determine the device handle for GPU)"),
    _s("nvswitch", "SXid (PCI:", r".*SXid \(PCI:[^)]*\): (?P<value>\d+), Fatal"),
    _s("hung-task", "blocked for more than", r".*?INFO: task (?P<value>(?:python|pt_|torchrun|accelerate|deepspeed)[^\s:]*):\d+ blocked for more than \d+ seconds"),
    _s("lockup", "soft lockup|hard LOCKUP|detected stall|self-detected",
       _KERNEL + r"(?:BUG: soft lockup - CPU#\d+ stuck|Watchdog detected hard LOCKUP|rcu\S*(?: INFO:)?\s.*detected (?:expedited )?stall)"),
    _s("kernel-fault", "[Hardware Error]|UE memory|UE page|Kernel panic|unable to handle|protection fault",
       _KERNEL + r"(?:mce: \[Hardware Error\]: CPU \d+: Machine Check|EDAC \S+ [1-9]\d* UE |\[Hardware Error\]: .*severity: fatal"
       r"|Kernel panic - not syncing|BUG: unable to handle|traps: .*general protection fault)"),
    _s("gpu-reset", "amdgpu", _KERNEL + r"amdgpu.*(?: ring \S+ timeout|GPU reset begin|uncorrectable hardware errors? detected)"),
    _s("xid-critical", "Detected Critical Xid Error", r"(?:.*\s)?GPU \S+: Detected Critical Xid Error", "xid"),
    _s("fs-stalls", "not responding|was lost; in progress operations",
       _KERNEL + r"(?:nfs: server \S+ not responding|Lustre: .*Connection to \S+ .*was lost; in progress operations)", "hung-task"),
    _s("fs-error", "mmfs: [", r"(?:.*?(?<![\w.-])(?P<node>[\w.-]+) )?mmfs: \[[EX]\] "),
    _s("fs-error", "EXT4-fs error|XFS (|Buffer I/O error|I/O error, dev|Remounting filesystem read-only|timeout, aborting|timeout, reset controller",
       _KERNEL + r"(?:EXT4-fs error|XFS \(\S+\): (?:.*I/O [Ee]rror|.*[Ss]hutting down|Corruption)|Buffer I/O error on|I/O error, dev|.*Remounting filesystem read-only"
       r"|nvme\d*\S* \S*:? ?I/O \d+ .*timeout, (?:aborting|reset controller))"),
    _s("driver", "RmInitAdapter failed", _KERNEL + r"NVRM: GPU \S+ RmInitAdapter failed"),
    _s("nvswitch", "detected NVSwitch fatal error", r".*detected NVSwitch fatal error (?P<value>\d+)"),
    _s("kernel-fault", "severity=Uncorrect", _KERNEL + r"PCIe Bus Error: severity=Uncorrect\w+ \(Fatal\)"),
    _s("nccl-ib", "health compromised|status definitely down", _KERNEL + r"(?:mlx5_core .*health compromised|\S+: link status definitely down for interface ib)"),
    _s("fabric-manager", "Error 802: system not yet initialized", r".*Error 802: system not yet initialized"),
    # PyTorch, NCCL, Python.
    _s("cuda-ecc", "uncorrectable ECC error|ECCUncorrectable",
       r"(?:what\(\):\s+)?" + _ERROR + r"(?:CUDA error: uncorrectable ECC|cudaErrorECCUncorrectable|uncorrectable ECC error)"),
    _s("cuda-oom", "CUDA out of memory|CUDA error: out of memory|OutOfMemoryError|cuda runtime error (2)",
       r"(?:what\(\):\s+)?(?:" + _ERROR + r"(?:CUDA (?:error: )?out of memory(?:[.:!]|$)|cuda runtime error \(2\))|[\w.]*OutOfMemoryError: )"),
    _s("driver", "initialize NVML|NVIDIA-SMI has failed|driver version is insufficient|No CUDA GPUs|no CUDA-capable|forward compatibility was",
       r"(?:Failed to initialize NVML: |NVIDIA-SMI has failed|" + _SAID + r"(?:CUDA error: |Check failed: .*|cuda\w+\(\) failed\S* (?:Status: )?)?"
       r"(?:CUDA driver version is insufficient|No CUDA GPUs are available|no CUDA-capable device|.*forward compatibility was attempted))"),
    _s("device-error", "Memory access fault by GPU|HSA_STATUS_ERROR|synStatus=|halted unexpectedly|halted prematurely",
       r"(?:Memory access fault by GPU|.*HSA_STATUS_ERROR_\w|" + _SAID + r"synStatus=(?!0\b|1 \[[Ss]uccess)\d+ |.*(?:Core halted unexpectedly|device halted prematurely))"),
    _s("nccl-timeout", "EI0002: |EI0006: ", r"EI000[26]: "),
    _s("device-error", "EE1|EH9999: |EI0|EL0|EZ9999: ", r"E[A-Z]\d{4}: (?!.*[Ww]arning)"),
    _s("device-error", ", RankID:", r"(?:\[ERROR\] )?\d{4}-\d\d-\d\d-[\d:]+ \(PID:\d+, Device:-?\d+, RankID:(?:(?P<rank>\d+)|-\d+)\) ERR\d{5} "),
    _s("exception", "Exception in device=", r"Exception in device=(?P<value>[\w:]+): ", "traceback"),
    _s("cuda-error", "Assertion `", r"\S*\.(?:cuh?|hip)(?::\d+|\(\d+\)): .*Assertion `.* failed"),
    _s("cuda-error", "cuda runtime error (", _SAID + r"cuda runtime error \(\d+\) : (?P<value>[^.\n]*)"),
    _s("cuda-error", "create cublas handle|create cudnn handle", r"(?:[Ff]ailed to|[Cc]ould not) create (?:cublas|cudnn) handle: "),
    _s("cuda-error", "CUDA error: |cuDNN error: |HIP error: ", r"(?:what\(\):\s+)?" + _ERROR + r"(?:CUDA|cuDNN|HIP) error: (?P<value>[^.\n]*)"),
    _s("cuda-error", "c10::CUDAError", r"terminate called after throwing an instance of .*c10::CUDAError"),
    _s("terminated", "terminate called after", r"terminate called after throwing"),
    _s("shm", "insufficient shared memory|is killed by signal|exited unexpectedly|shared memory object|write to file </torch|unable to mmap",
       r"(?:(?:ERROR: )?Unexpected bus error encountered in worker|" + _ERROR + r"(?:DataLoader worker \(pid(?:\(s\))?[^)]*\) (?:is killed by signal|exited unexpectedly)"
       r"|unable to (?:open shared memory object|write to file|mmap \d+ bytes from file) </torch))"),
    _s("process-limit", "[Errno 24]|Too many open files|can't start new thread|[Errno 11]|pthread_create failed|Thread creation failed",
       _SURVIVED + r"(?:" + _SAID + r"(?:\[Errno 24\] |Too many open files|can't start new thread|\[Errno 11\] Resource)"
       r"|libgomp: Thread creation failed|OpenBLAS blas_thread_init: pthread_create failed)"),
    _s("disk-full", "No space left on device|Disk quota exceeded|[Errno 28]|[Errno 122]",
       _SURVIVED + r"(?:[\w./ -]+: ){0,6}" + _ERROR + r"(?:\[Errno (?:28|122)\] |\S[^\"']*: |.*IoError\(Os \{ code: 28, .*\")?(?:No space left on device|Disk quota exceeded)"),
    _s("checkpoint-unreadable", "PytorchStreamReader failed|loading state_dict|CheckpointException|deserializing header|invalid load key|Ran out of input",
       _ERROR + r"(?:(?:\[enforce fail [^\]]*\][ .]*)?PytorchStreamReader failed|Error\(s\) in loading state_dict|CheckpointException\b"
       r"|Error while deserializing header|invalid load key, |Ran out of input$)"),
    _s("fs-error", "failed with Input/output error|'Stale file handle'", _ERROR + r".*(?:failed with Input/output error|error message = 'Stale file handle')"),
    _s("fs-error", "Stale file handle|[Errno 5]|[Errno 108]|[Errno 116]|Transport endpoint is not|LustreError:",
       r"(?!srun|slurm)(?:[\w./ -]+: ){0,6}(?:" + _ERROR + r"(?:\[Errno (?:5|116|108)\]|\[Errno 107\] [\w ]+: '/)|.*kernel: .*LustreError: "
       r"|(?:\[[^\]]*\] ?){0,3}LustreError: [\d(]"
       r"|(?:\S[^\"']*: |\S+: cannot [\w ]+ '[^']+': |)(?:Stale file handle|Transport endpoint is not connected)$)"),
    _s("loss-scale-minimum", "loss scale already at minimum|Minimum loss scale reached",
       r"(?:.*loss scale already at minimum|" + _ERROR + r"(?:AMP: )?Minimum loss scale reached \()"),
    _s("nccl-timeout", "Watchdog caught collective operation timeout",
       r".*?\[?Rank (?P<rank>\d+)\]?\S* Watchdog caught collective operation timeout: (?P<value>.*)"),
    _s("nccl-timeout", "flight recorder dump signal|dump signal due to a collective",
       r".*(?:Observed flight recorder dump signal from another rank|dump signal due to a collective timeout from +rank (?P<rank>\d+))"),
    _s("nccl-timeout", "gloo/transport/tcp/|caused pair closure", r"(?:" + _GLOO + r"Timed out waiting|" + _SAID + r"Application timeout caused pair closure)"),
    _s("nccl-error", "gloo/transport/tcp/", _GLOO),
    _s("nccl-hang", "Heartbeat monitor timed out|watchdog got stuck for|that detected no heartbeat",
       r".*?(?:\[?Rank (?P<rank>\d+)\]?.*)?(?:Heartbeat monitor timed out|watchdog got stuck for \d+ sec"
       r"|First PG on this rank that detected no heartbeat)"),
    _s("nccl-hang", "attempting to dump debug info", _NCCL + r".* due to ProcessGroupNCCL watchdog hang"),
    _s("nccl-timeout", "attempting to dump debug info", _NCCL),
    _s("nccl-teardown", "Some NCCL operations have failed|taking the entire process down|detected by watchdog",
       r".*(?:Some NCCL operations have failed|taking the entire process down|detected by watchdog)"),
    _s("nccl-ib", "NCCL WARN NET/IB", _NET + r"NCCL WARN NET/IB ?: Got completion from peer (?P<value>\S+)"),
    _s("nccl-ib", "NCCL WARN NET/IB", _NET + r"NCCL WARN NET/IB ?: (?:\S+ )?Got (?:completion|async event).*"),
    _s("nccl-ib", "::efa:cq:", r"libfabric:\S+::efa:cq:\S+<warn> err: \d+"),
    _s("nccl-connect", "NCCL WARN Connect to", r".*NCCL WARN Connect to (?P<value>[\d.]+)\S* failed"),
    _s("nccl-error", "NCCL WARN", _NET + r"NCCL WARN (?!.*(?:dlopen|libibverbs|libnccl|[Pp]lugin|not supported|_device failed|get_async_event|open device))"
       r".*(?:[Ff]ail|[Ee]rror|closed by remote|reset by|refused|unreachable|[Tt]imed? ?out|Couldn't|already checked in|mismatch)"),
    _s("nccl-error", "NCCL error", r"(?:.*raised the following async exception: |" + _SAID + r"(?:.*[Ee]rror\w* during training: )?|: )NCCL error"),
    _s("nccl-error", "DistBackendError|ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandledCudaError",
       _ERROR + r"(?:NCCL error|.*?nccl(?:System|Remote|Internal|UnhandledCuda)Error: )"),
    _s("rendezvous", "DistStoreError|Socket Timeout|connect() timed out|wait timeout after",
       r"(?:[\w.]*DistStoreError|" + _ERROR + r"(?:Socket Timeout$|connect\(\) timed out|wait timeout after \d+))"),
    _s("rendezvous", "RendezvousTimeoutError|RendezvousConnectionError|RendezvousClosedError|client socket has timed out|server socket has failed to listen",
       r"(?:(?:[\w.]*Error: )?The server socket has failed to listen on any local|(?:\"message\": \")?[\w.]*Rendezvous(?:Timeout|Connection|Closed)Error(?:[:(\"]|$)|" + _ERROR + r".*client socket has timed out after \d+)"),
    _s("nan-check", "found NaN in|found Inf in|returned nan values in|Loss is nan, stopping|Loss is inf, stopping",
       _SAID + r"(?:Rank (?P<rank>\d+): )?(?:found (?:NaN|Inf) in|Function '\w+' returned nan values in its|Loss is (?:nan|inf), stopping)"
       r"(?:.* node: (?P<node>[\w.-]+))?"),
    _s("nan-check", "Unexpected result nan|Unexpected result inf", r"Unexpected result (?:nan|inf) on rank (?P<rank>\d+)"),
    _s("worker-lost", "worker died or was killed|ActorDiedError|RayActorError|NodeDiedError|heartbeat timeout|lost communication with",
       r"(?:A worker died or was killed while executing|ray\.exceptions\.(?:Actor|RayActor|Node)(?:Died)?Error"
       r"|.*Task /job:\S+ heartbeat timeout|ORTE has lost communication with)"),
    *_exits("failed (exitcode: ", r".*failed \(exitcode: ", r"\) local_rank"),
    *_exits("exits with return code = ", r".*exits with return code = "),
    *_exits("crashed with exit code|) exited with code", r"(?:Global r|R)ank (?P<rank>\d+) (?:\(PID \d+\) exited with|crashed with exit) code "),
    *_exits("command terminated with exit code", r"command terminated with exit code "),
    _s("elastic-root", "Root Cause (first observed failure)", r"Root Cause \(first observed failure\):", "rank-died"),
    _s("elastic-host", "  host      : ", r"host +: (?P<node>\S+)", "report"),
    _s("elastic-rank", "  rank      : ", r"rank +: (?P<rank>\d+) \(local_rank", "report"),
    _s("elastic-exit", "  exitcode  : ", r"exitcode +: (?P<value>-?\d+)", "report"),
    _s("elastic-child", "ChildFailedError", r"[\w.]*ChildFailedError:?", "report"),
    _s("told-to-stop", " death signal|got signal: 15|SIGTERM, exiting",
       r".*(?:Received \d+ death signal|SignalException: Process \d+ got signal: 15|process received SIGTERM, exiting)"),
    _s("crash", "Fatal Python error", r"Fatal Python error: (?P<value>.*)"),
    _s("environment", "loading shared libraries|version `GLIBC",
       r"(?:\S+: error while loading shared libraries: |" + _ERROR + r"(?:\S+: )*.*version `GLIBC\S*' not found)"),
    # The end of a traceback whose begin was not met. A quotation does not stand at a line's begin.
    _s("exception", "Error: |Exception: ", r"(?<!^\s)(?<!\s\s)" + _SURVIVED + r"(?P<value>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): \S", "traceback"),
)  # fmt: skip
