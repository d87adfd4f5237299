"""How a lab cluster is: its size, and the configuration files that say so (slurm.conf(5), slurmdbd.conf(5) of 22.05)."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

PORTS = 100
"""Ports a cluster claims: slurmctld, slurmdbd, and from 11 on one for each slurmd."""


@dataclass(frozen=True)
class Shape:
    """What the cluster pretends to have."""

    nodes: int = 4
    cpus: int = 8
    gpus: int = 0
    memory: int = 4000
    """MB a node."""
    dbd: bool = False
    """Accounting: slurmdbd with a MariaDB of its own."""
    extra: tuple[str, ...] = ()
    """More lines for slurm.conf; one replaces the line of the same key."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"n{i}" for i in range(1, self.nodes + 1))


def write(shape: Shape, folder: Path, port: int) -> None:
    """All configuration files below `folder/etc`."""
    for part in ("etc", "run", "log", "state", "munge", "dev", "jobs", *(f"spool/{name}" for name in shape.names)):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "jobs").chmod(0o1777)
    (folder / "munge").chmod(0o700)
    (folder / "munge" / "key").write_bytes(os.urandom(1024))
    (folder / "munge" / "key").chmod(0o600)
    (folder / "etc" / "hosts").write_text(
        f"127.0.0.1 localhost {socket.gethostname()}\n" + "".join(f"127.0.0.1 {name}\n" for name in shape.names)
    )
    (folder / "etc" / "slurm.conf").write_text(_slurm(shape, folder, port))
    (folder / "etc" / "gres.conf").write_text(_gpus(shape, folder))
    if shape.dbd:
        (folder / "etc" / "my.cnf").write_text(_mariadb(folder))
        (folder / "etc" / "slurmdbd.conf").write_text(_slurmdbd(folder, port))
        (folder / "etc" / "slurmdbd.conf").chmod(0o600)  # slurmdbd refuses one that others can read


def _slurm(shape: Shape, folder: Path, port: int) -> str:
    many = shape.nodes > 1
    names = f"n[1-{shape.nodes}]" if many else "n1"
    ports = f"[{port + 11}-{port + 10 + shape.nodes}]" if many else str(port + 11)
    gpus = f" Gres=gpu:{shape.gpus}" if shape.gpus else ""
    text = f"""\
ClusterName=lab
SlurmctldHost={socket.gethostname()}(127.0.0.1)
SlurmctldPort={port}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# cred_expire: how long a requeued job waits before it may start again (default 120 s; less than 5 is not taken)
AuthInfo=socket={folder}/run/munge.sock,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
# no cgroups, no affinity, no MPI
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# nodes may claim more than the machine has
SlurmdParameters=config_overrides
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
# A dead node is DOWN after some 10 s (defaults: 300, 10, 30). MessageTimeout is also how long clients wait.
SlurmctldTimeout=10
SlurmdTimeout=4
MessageTimeout=3
KillWait=2
UnkillableStepTimeout=30
OverTimeLimit=0
ReturnToService=1
JobRequeue=1
MinJobAge=300
MaxArraySize=100001
MaxJobCount=200000
ScronParameters=enable
# a job in `urgent` takes nodes from `train` (requeued) and `scavenge` (cancelled)
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName={names} NodeAddr=127.0.0.1 Port={ports} CPUs={shape.cpus} RealMemory={shape.memory}{gpus} State=UNKNOWN
PartitionName=train    Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=REQUEUE State=UP
PartitionName=scavenge Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=CANCEL State=UP
PartitionName=urgent   Nodes=ALL MaxTime=INFINITE PriorityTier=50 PreemptMode=OFF State=UP
PartitionName=debug    Nodes=n1 MaxTime=5 PriorityTier=10 PreemptMode=OFF State=UP
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobcomp.log
"""
    if shape.dbd:
        text += f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port + 1}
AccountingStoragePass={folder}/run/munge.sock
"""
    replaced = {line.partition("=")[0] for line in shape.extra} - {"NodeName", "PartitionName", "DownNodes", "NodeSet"}
    kept = [line for line in text.splitlines() if line.partition("=")[0] not in replaced]
    return "\n".join([*kept, *shape.extra]) + "\n"


def _gpus(shape: Shape, folder: Path) -> str:
    """slurmd insists on character devices: copies of /dev/null."""
    if not shape.gpus:
        return ""
    for gpu in range(shape.gpus):
        device = folder / "dev" / f"gpu{gpu}"
        if not device.exists():
            os.mknod(device, 0o20666, os.makedev(1, 3))
    files = f"gpu[0-{shape.gpus - 1}]" if shape.gpus > 1 else "gpu0"
    return "".join(f"NodeName={name} Name=gpu File={folder}/dev/{files}\n" for name in shape.names)


def _mariadb(folder: Path) -> str:
    return f"""\
[mariadbd]
user=root
datadir={folder}/mysql
socket={folder}/run/mysql.sock
pid-file={folder}/run/mysql.pid
log-error={folder}/log/mysql.log
skip-networking
innodb_log_file_size=16M
innodb_buffer_pool_size=64M
innodb_lock_wait_timeout=900
innodb_flush_log_at_trx_commit=0
"""


def _slurmdbd(folder: Path, port: int) -> str:
    return f"""\
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
DbdHost={socket.gethostname()}
DbdAddr=127.0.0.1
DbdPort={port + 1}
SlurmUser=root
PidFile={folder}/run/slurmdbd.pid
LogFile={folder}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
"""
