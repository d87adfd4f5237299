"""A queue in memory that answers squeue, scontrol and scancel as Slurm 22.05 does, and notes what it was told."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ops.shell import Answer

HELD = {"hold": "JobHeldUser", "requeuehold": "JobHeldUser", "release": "Priority", "requeue": "BeginTime"}


@dataclass(frozen=True)
class Row:
    """One line of the queue. `task` is "" for a plain job, `3` or `4-9%1` for an array's."""

    array: str = "100"
    task: str = ""
    state: str = "RUNNING"
    reason: str = "None"
    name: str = "tr_other"
    user: str = "root"
    workdir: str = "/"
    comment: str = ""

    @property
    def fields(self) -> tuple[str, ...]:
        nodes = "n[1-2]" if self.state == "RUNNING" else ""
        who = (self.user, self.workdir, self.comment or "(null)", "train", self.name)
        return (self.array, self.task or "N/A", self.array, self.state, self.reason, nodes, "2", "0", "0", "0", *who)


@dataclass
class FakeSlurm:
    """`down` makes the controller silent; `on_order` is called with every order that was obeyed."""

    rows: list[Row] = field(default_factory=list)
    down: bool = False
    orders: list[tuple[str, str]] = field(default_factory=list)
    on_order: Callable[[str, str], None] = lambda verb, job: None

    def __call__(self, argv: Sequence[str], timeout: float) -> Answer:
        if self.down:
            return Answer(1, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)")
        if argv[0] == "squeue":
            return Answer(0, "".join("\x1f".join(row.fields) + "\n" for row in self.rows), "")
        verb, job = ("cancel", argv[1]) if argv[0] == "scancel" else (argv[1], argv[2])
        return self._obey(verb, job)

    def _obey(self, verb: str, job: str) -> Answer:
        array, _, task = job.partition("_")
        meant = [row for row in self.rows if row.array == array and task in ("", row.task)]
        if not meant:
            return Answer(1, "", f"Invalid job id specified for job {job}")
        self.orders.append((verb, job))
        for row in meant:
            self.rows.remove(row)
            if verb != "cancel":
                self.rows.append(_told(row, verb))
        self.on_order(verb, job)
        return Answer(0, "", "")


def _told(row: Row, verb: str) -> Row:
    if verb.startswith("requeue"):
        return replace(row, state="PENDING", reason=HELD[verb])
    return replace(row, reason=HELD[verb]) if row.state == "PENDING" else row
