"""Resume from an earlier checkpoint: the intervention that cures most divergences, alone or with a lower LR."""

from __future__ import annotations

from typing import ClassVar

from msgspec.structs import replace

from ops.actions import LONG, Action, Copy, Folder, Link, Move, PatchState, Rewrite, WriteText
from ops.errors import BadInput, Refused
from ops.interventions import evaluations, forecast, optimizer, parking, targets, wandb_run
from ops.interventions import learning_rate as lr
from ops.interventions.lr_promise import Earlier
from ops.interventions.wish import Edit
from ops.model import DISCARDED, Checkpoint, Evals, Expectation, LogView, Pointer, Sign, Snapshot, Unknown
from ops.pace import WINDOW, seconds_per_step
from ops.plan import Cost


class Rewind(Edit, frozen=True):
    """Resume from an earlier checkpoint, with whatever belongs to that: evals, wandb run, discarded checkpoints, LR."""

    kind: ClassVar[str] = "rewind"
    to: str
    scale_lr: float | None = None
    set_lr: float | None = None
    reset_optimizer: bool = False
    keep_discarded: bool = False
    keep_wandb_run: bool = False
    again: bool = False

    @property
    def resets(self) -> bool:
        return self.reset_optimizer

    def title(self, snapshot: Snapshot) -> str:
        extra = [f"LR × {self.scale_lr:g}"] if self.scale_lr is not None else []
        extra += [f"LR = {self.set_lr:g}"] if self.set_lr is not None else []
        extra += ["fresh optimizer"] if self.reset_optimizer else []
        return f"rewind to {targets.name(snapshot, self._step(snapshot))}" + (
            " with " + ", ".join(extra) if extra else ""
        )

    def inspects(self, snapshot: Snapshot) -> frozenset[int]:
        return frozenset({self._step(snapshot)})

    def actions(self, snapshot: Snapshot) -> tuple[Action, ...]:
        target = targets.resumable(snapshot, self._step(snapshot))
        self._refuse_mixing(snapshot, target)
        changes = self._lr(snapshot, target)
        edits = (
            *changes,
            *self._wandb(target),
            *trimmed(snapshot, target.step),
            *copies(snapshot, target, changes),
            *(() if self.keep_discarded else moves(snapshot, target.step)),
            *pointed_at(snapshot, target),
        )
        if not edits and not parking.stops(snapshot, self.parking):
            raise Refused(
                f"the run already resumes from {target.name}, and nothing lies beyond it",
                str(snapshot.run.dir),
                "m4ops status",
            )
        return self.parked(snapshot, edits)

    def expect(self, snapshot: Snapshot) -> Expectation | None:
        target = targets.resumable(snapshot, self._step(snapshot))
        old = target.wandb_id if isinstance(target.wandb_id, str) else ""
        promise = lr.promised(snapshot, target, self.scale_lr, self.set_lr)
        known = target.infos is not None
        return replace(promise, wandb_new=not self.keep_wandb_run if known else None, wandb_id=old)

    def cost(self, snapshot: Snapshot) -> Cost:
        return discarded_work(snapshot, self._step(snapshot))

    def notes(self, snapshot: Snapshot) -> tuple[str, ...]:
        step = self._step(snapshot)
        said = [*evaluations.about(snapshot, step)]
        if self.set_lr is not None:
            said += lr.about_set(snapshot, targets.resumable(snapshot, step), lr.Aim(self.set_lr))
        if self.scale_lr is not None or self.set_lr is not None:
            target = targets.resumable(snapshot, step)
            said += forecast.said(target, self._lr(snapshot, target), snapshot.ds_config)
        if snapshot.run.layout.after_rewind:
            said.append(snapshot.run.layout.after_rewind)
        if self.keep_discarded:
            said.append("discarded checkpoints stay where they are: new saves of the same steps will mix with them")
        if self.reset_optimizer:
            said += optimizer.about(snapshot)
        if any(a.kind == "wait-for" for a in self.actions(snapshot)):
            said.append(
                "what follows the stop is computed again then: a checkpoint saved while the job ends is discarded too"
            )
        return tuple(said)

    def resolved(self, snapshot: Snapshot) -> Rewind:
        return replace(self, to=str(self._step(snapshot)))

    def _step(self, snapshot: Snapshot) -> int:
        return targets.resolve(snapshot, self.to)

    def _lr(self, snapshot: Snapshot, target: Checkpoint) -> tuple[Action, ...]:
        changes = lr.wished(snapshot, target, self.scale_lr, self.set_lr, self.again)
        return optimizer.reset(snapshot, target, changes) if self.reset_optimizer else changes

    def _refuse_mixing(self, snapshot: Snapshot, target: Checkpoint) -> None:
        """Later checkpoints cannot stay where a resume takes the last one."""
        pointer = snapshot.pointer
        if self.keep_discarded and isinstance(pointer, Pointer) and pointer.rule != "named":
            raise BadInput(
                f"a resume takes {snapshot.run.layout.chosen_by}: while later checkpoints stay it never takes {target.name}",
                hint="without --keep-discarded they move to discarded/",
            )

    def _wandb(self, target: Checkpoint) -> tuple[Action, ...]:
        return () if self.keep_wandb_run or target.infos is None else wandb_run.emptied(target)


def pointed_at(snapshot: Snapshot, target: Checkpoint) -> tuple[Action, ...]:
    """Every sign of the layout says what makes a resume take the target; nothing where a rule alone decides."""
    pointer = snapshot.pointer
    if isinstance(pointer, Unknown):
        raise Refused(f"what a resume takes is UNKNOWN: {pointer.reason}", str(snapshot.run.dir))
    if not pointer.problem and pointer.step == target.step:
        return ()
    pairs = zip(pointer.signs, target.signs, strict=True)
    return tuple(_says(sign, text, target) for sign, text in pairs if sign.text != text)


def _says(sign: Sign, text: str, target: Checkpoint) -> Action:
    if sign.link:
        return Link(str(sign.path), sign.text, text)
    why = f"it takes {target.name}" if len(text) > LONG else ""
    return WriteText(str(sign.path), sign.text, text, why, points=True)


def copies(snapshot: Snapshot, target: Checkpoint, changes: tuple[Action, ...]) -> tuple[Action, ...]:
    """The copies of the target, with the `changes` of its own file, that a resume takes from then on."""
    if snapshot.pointer and not snapshot.pointer.problem and snapshot.pointer.step == target.step:
        return ()
    source = str(target.path)
    own = next((a for a in changes if isinstance(a, PatchState | Rewrite) and a.path == source), None)
    zero = own.zero if isinstance(own, Rewrite) else ()
    return tuple(Copy(source, str(path), zero, own.edits if own else ()) for path in target.copies)


def moves(snapshot: Snapshot, step: int) -> tuple[Action, ...]:
    """Every checkpoint beyond `step` into `discarded/exp_K/`: no name there trips a resume, a rotation or an upload script.

    The latest goes last, so where the highest number wins a resume takes it until all is done.
    """
    obstacles = snapshot.pointer.obstacles if isinstance(snapshot.pointer, Pointer) else ()
    beyond = [*(p for c in targets.known(snapshot) if c.step > step for p in c.parts), *obstacles]
    if not beyond:
        return ()
    base = snapshot.run.dir / DISCARDED
    home = base / f"exp_{evaluations.experiment(snapshot)}"
    folders = () if "" in snapshot.folders else (Folder(str(base)),)
    return (*folders, Folder(str(home)), *(Move(str(p), str(home / p.name)) for p in beyond))


def trimmed(snapshot: Snapshot, step: int) -> tuple[Action, ...]:
    """Evaluations beyond `step` rolled back, when there are any."""
    evals = snapshot.evals
    if not isinstance(evals, Evals) or not evaluations.beyond(evals, step):
        return ()
    return (evaluations.rollback(evals, step, evaluations.experiment(snapshot)),)


def discarded_work(snapshot: Snapshot, step: int) -> Cost:
    """Steps beyond `step` that are thrown away, and their node-hours where the log and the queue tell them.

    Raises Earlier where a brief part of the log has not all points of the present pace.
    """
    if snapshot.run.layout.counts_saves:
        return Cost()
    log = snapshot.log
    if isinstance(log, LogView) and log.brief and len(log.samples) < WINDOW:
        raise Earlier
    reached = max((c.step for c in snapshot.checkpoints or ()), default=step)
    if not isinstance(log, LogView) or not log.samples:
        return Cost(max(0, reached - step) or None)
    last = log.samples[-1]
    steps = max(reached, last.step) - step
    speed = seconds_per_step(log.samples)
    nodes = max((j.node_count for j in snapshot.jobs or () if j.running), default=0)
    return Cost(steps, steps * speed * nodes / 3600 if speed and nodes else None)
