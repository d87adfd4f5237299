"""The heavy Keep commands: extract."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ops.cli import elsewhere, meter, session
from ops.cli.elsewhere import Where
from ops.errors import BadInput, Refused
from ops.model import FINISHED, M4, OPS_DIR, Checkpoint, Snapshot

if TYPE_CHECKING:
    from ops.extract import Extracted, Job

DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


@click.command()
@click.argument("words", nargs=-1, metavar="STEP|DIR…")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="The folder to write, which is made.")
@click.option("--to-unwrapped-model", "unwrapped", is_flag=True, help="Into the checkpoint's unwrapped_model/.")
@click.option(
    "--all-missing", is_flag=True, help="Every complete checkpoint whose unwrapped_model/ has no weights yet."
)
@click.option(
    "--dtype", type=click.Choice(tuple(DTYPES)), help="Default: fp32; in unwrapped_model/ bf16, as m4's own converter."
)
@click.option("--max-shard-size", default="5GB", show_default=True, metavar="SIZE", help="Of one file: 500MB, 5GB.")
@click.option("--check-with-deepspeed", "check", is_flag=True, help="Compare with DeepSpeed's own converter (slow).")
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be written and stop.")
@elsewhere.options
@click.pass_context
def extract(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    out: Path | None,
    unwrapped: bool,
    all_missing: bool,
    dtype: str | None,
    max_shard_size: str,
    check: bool,
    dry_run: bool,
    where: Where,
) -> None:
    """Write a checkpoint's weights as safetensors, at the speed of the disk.

    From DeepSpeed ZeRO-1, 2 and 3, Accelerate, HF Trainer, Lightning and torch's DCP, without torch; of ZeRO byte for byte
    what DeepSpeed's zero_to_fp32 --safe_serialization writes. STEP is a step, `latest`, -1, or a checkpoint's folder or
    file. Interrupted work goes on where it ended when the same command is given again.
    """
    steps, flags = elsewhere.parted(words, where)
    if (out is None) == (not (unwrapped or all_missing)) or bool(steps) == all_missing or (out and len(steps) > 1):
        raise BadInput(
            "say what to extract and where to",
            hint="m4ops extract STEP --out DIR; m4ops extract STEP --to-unwrapped-model; m4ops extract --all-missing",
        )
    from ops import extract as effect

    kind = DTYPES[dtype or ("fp32" if out else "bf16")]
    limit = meter.size(max_shard_size, "--max-shard-size")
    places = [place for step in steps or (None,) for place in _checkpoints(ctx, step)]
    if where.elsewhere:
        return _sent(ctx, places, (where, flags))
    for place in places:
        target = Path(os.path.abspath(out)) if out else place / "unwrapped_model"
        work = planned(place, target, kind, limit)
        _about(work)
        if not dry_run:
            with meter.meter() as told:
                done = effect.extract(work, partial(_of, told, work.size))
            _tell(done, sum(len(file.header) for file in work.files))
            if check:
                _checked(work, place, kind)


def _sent(ctx: click.Context, places: list[Path], said: tuple[Where, tuple[str, ...]]) -> None:
    from ops.work import Task

    run, config = session.find(ctx)
    typed = elsewhere.given(ctx, ("words", "all_missing", "dry_run"))
    typed += [] if ctx.params["out"] or ctx.params["unwrapped"] else ["--to-unwrapped-model"]
    tasks = [Task(p.name, ("--run", str(run.dir), "extract", str(p), *typed)) for p in places]
    elsewhere.end(elsewhere.sent(ctx, run, config, tasks, said) if tasks else 0)


# -- what is meant ---------------------------------------------------------------------------------------


def _checkpoints(ctx: click.Context, step: str | None) -> tuple[Path, ...]:
    """The checkpoint folders that are meant. Raises Refused for one whose save is not finished."""
    from ops import extract as effect

    if step is not None and not step.lstrip("-").isdigit() and step != "latest":
        return (_finished(Path(os.path.abspath(step))),)
    run, _ = session.find(ctx)
    if run.layout != M4 and not ctx.params["out"]:
        raise Refused(
            f"unwrapped_model/ belongs to m4's checkpoints, not to those of the {run.layout.name} layout",
            str(run.dir),
            "m4ops extract STEP --out DIR",
        )
    seen = session.look(run)
    if step is not None:
        return (_of_step(seen, step).path,)
    found = [c.path for c in seen.checkpoints or () if c.complete and not effect.held(c.path / "unwrapped_model")]
    if not found:
        session.say("nothing is missing: every complete checkpoint has its weights in unwrapped_model/")
    return tuple(found)


def _of_step(seen: Snapshot, step: str) -> Checkpoint:
    from ops.interventions import targets

    number = targets.resolve(seen, step)
    found = next((c for c in targets.known(seen) if c.step == number), None)
    if found is None:
        raise BadInput(f"there is no checkpoint of step {number}", str(seen.run.dir), "m4ops checkpoints")
    if found.problems and found.layout != M4.name:
        raise Refused(f"the checkpoint is not whole: {'; '.join(found.problems)}", str(found.path), "m4ops checkpoints")
    _finished(found.path)
    return found


def _finished(path: Path) -> Path:
    """A checkpoint's folder, of m4 with its marker; or Lightning's file. Raises BadInput, Refused."""
    if not path.exists():
        raise BadInput("neither a step nor a checkpoint", str(path), "m4ops checkpoints")
    if (path / "accelerator_state").is_dir() and not (path / FINISHED).exists():
        raise Refused(
            f"{FINISHED} is missing: the save is not finished",
            str(path),
            "wait for it, or name the folder of an earlier one",
        )
    return path


def planned(place: Path, target: Path, kind: str, limit: int | None = None) -> Job:
    """The work of extracting a checkpoint's weights. Raises Refused, StateError."""
    from ops import extract as effect
    from ops.checkpoints.weights import weights_of

    if target.name == "unwrapped_model" and target.parent == place:
        if not (target / "config.json").is_file():
            raise Refused("unwrapped_model/config.json is missing: nothing could load the weights there", str(place))
        staging = place.parent / OPS_DIR / "extract" / place.name
    else:
        staging = target.parent / f".m4ops-extract-{target.name}"
    return effect.job(weights_of(place), target, staging, kind, limit or effect.SHARD)


# -- doing it --------------------------------------------------------------------------------------------


def _about(work: Job) -> None:
    from ops.views import words

    count = words.count(len(work.weights.tensors), "tensor")
    files = words.count(len(work.files), "file")
    session.say(f"{work.target}: {count}, {words.size(work.size)} in {files}, from {work.weights.kind}")
    for name, same in work.weights.tied:
        session.say(f"  {name} is left out: it is {same} (tied weights; Transformers ties them again)")
    if work.weights.unlisted:
        names = ", ".join(work.weights.unlisted[:4]) + (", …" if len(work.weights.unlisted) > 4 else "")
        session.say(f"  {names}: frozen, and kept by the trainer in the model's type alone")


def _tell(done: Extracted, headers: int) -> None:
    from ops.views import words

    rate = done.copied / max(done.seconds, 1e-3) / 1e9
    earlier = (
        f" ({words.size(done.size - headers - done.copied)} were there from an earlier attempt)"
        if done.copied < done.size - headers
        else ""
    )
    session.say(f"written: {words.size(done.size)} in {done.seconds:.1f} s, {rate:.2f} GB/s{earlier}")
    for path in done.files:
        session.out(str(path))


# -- checking --------------------------------------------------------------------------------------------


def _checked(work: Job, place: Path, kind: str) -> None:
    """Have DeepSpeed convert the same checkpoint and compare every tensor's bytes. Raises OpsError when one differs."""
    from ops import shell
    from ops.extract import reference
    from ops.views import words

    session.say("DeepSpeed's own converter reads the checkpoint (this takes its time and memory) …")
    same, more = reference.compared(work, place, kind, shell.run)
    extra = f"; it leaves out {words.count(more, 'frozen tensor')}" if more else ""
    session.say(f"identical with DeepSpeed's: {words.count(same, 'tensor')}{extra}")


def _of(told: Callable[[int, int], None], total: int, there: int) -> None:
    told(there, total)
