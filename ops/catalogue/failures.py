"""What failing trainings write into their logs: the kinds."""

from __future__ import annotations

from ops.catalogue.kind import Kind
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
          "errno 5, 107, 108 and 116; Lustre client; Linux ext4, XFS, nvme", 2),
    _root("shm", "a data loader worker died: shared memory is full, or its memory limit",
          "more shared memory or fewer workers", "pytorch DataLoader; bigscience train/tr1"),
    _root("cuda-error", "a GPU failed in a way that programs seldom cause",
          "find the node, check its health, exclude it when it repeats", "pytorch; bigscience train/tr11"),
    _root("cuda-oom", "out of GPU memory; at start or at a barrier it means an occupied or faulty GPU",
          "look for left-over processes on the node; else a smaller batch", "pytorch; bigscience train/tr1"),
    _root("gpu-reset", "a driver resets a GPU that does not answer or reports a fault of its memory", "exclude the node when it repeats; it may need a reboot",
          "Linux amdgpu; ROCm/legacy-rocm-build#5180", 3, _NODE),
    _root("device-error", "an accelerator failed (ROCm, TPU, Gaudi, Ascend)", "find the node, check its health, exclude it when it repeats",
          "ROCm/pytorch#797; pytorch/xla#7138; huggingface/optimum-habana#1611"),
    _root("driver", "the GPU's driver is not there, or does not fit its libraries", "exclude the node; nvidia-smi there, a reboot after an update",
          "NVIDIA driver; lyulyul/shine-cluster#30", 3, _NODE),
    _root("kernel-fault", "the kernel of a node reports a fault of its own or of the hardware", "exclude the node; dmesg there",
          "Linux kernel, mce and EDAC", 3, _NODE),
    _root("checkpoint-unreadable", "a checkpoint could not be loaded: torn, or of another model",
          "m4ops verify-checkpoint --deep; rewind to one that is whole", "pytorch serialization; NVIDIA/Megatron-LM; safetensors", 2, "pointer-broken"),
    _root("nan-check", "the trainer's own check found NaN or infinity", "restart; if it comes again at the same step, rewind to before it",
          "NVIDIA/Megatron-LM param_and_grad_buffer.py, rerun_state_machine.py", 2, "loss-diverges"),
    _root("process-limit", "a limit of the process is reached: open files, threads", "raise it (ulimit -n, -u) or use fewer workers",
          "errno 11 and 24; pytorch DataLoader"),
    _root("nccl-ib", "a link of the network (InfiniBand, RoCE, EFA) or the peer behind it died", "the peer's address is the suspect",
          "NVIDIA/nccl#1814"),
    _root("nccl-connect", "a peer could not be reached", "the node behind the address is the suspect",
          "stas00/ml-engineering"),
    _root("rendezvous", "not all nodes came to the rendezvous, or its port was taken", "find the node that is missing",
          "pytorch/pytorch#79388"),
    _root("loss-scale-minimum", "the loss scale is at its minimum: every step overflows (fp16 collapse)",
          "rewind to before the gradients grew; lower the learning rate", "DeepSpeed loss_scaler.py; fairseq dynamic_loss_scaler.py; arXiv 2205.01068",
          2, "loss-diverges"),
    Kind("hung-task", _WARNING, "root", "a process waits for a file system that does not answer, or cannot be ended",
         "report the file system; the node needs a reboot if it stays", "Linux kernel, hung_task; NFS and Lustre clients; slurmd", weight=2,
         confirm="ps -eo pid,stat,wchan,cmd on the node: state D"),
    Kind("lockup", _WARNING, "root", "a processor of a node did nothing else for long: the kernel is stuck", "look whether steps go on; dmesg on the node",
         "Linux kernel, watchdog and RCU", weight=2),
    _symptom("slurm-refused", "Slurm took no job or no step, or did not answer", "read the reason at the line's end; sinfo, scontrol ping",
             "Slurm srun, sbatch, salloc"),
    _symptom("environment", "a program does not start: a library is missing or of another version", "compare the modules and the container with the last good job",
             "glibc dynamic linker"),
    _symptom("worker-lost", "a worker of the training is gone, and its launcher noticed", "look into that worker's own output, and at its node",
             "Ray; JAX coordination service; Open MPI"),
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
    _symptom("nccl-error", "a collective (NCCL, RCCL, gloo) lost the network or a peer", _LOG_FIRST, "pytorch DistBackendError"),
    _symptom("memory", "the trainer ends itself before the host's memory is used up", "look for a leak",
             "huggingface/smollm trainer.py", _WARNING),
    _consequence("nccl-teardown", "NCCL takes the process down after an error elsewhere", "pytorch ProcessGroupNCCL"),
    Kind("terminated", _CRITICAL, "symptom", "C++ ended the process after an exception", "look for what came before it", "libstdc++"),
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
