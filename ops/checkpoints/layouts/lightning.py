"""Lightning: one `.ckpt` file a save, in the run's folder, its `checkpoints/`, or `lightning_logs/version_K/checkpoints/`.

A training that is given no path takes, under Slurm, `hpc_ckpt_K.ckpt` with the highest K; one that is given `last` the newest
file called `last*.ckpt`, by its time; else the path it is given. So a rewind moves later files away and leaves a copy under the
name that is looked for: not a link, since the next save would be written through it where /tmp is another disk. Source:
pytorch_lightning `trainer/connectors/checkpoint_connector.py` (`_parse_ckpt_path`, `_hpc_resume_path`),
`callbacks/model_checkpoint.py` (`_find_last_checkpoints`); fsspec `implementations/local.py` (`LocalFileOpener.commit`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from ops.checkpoints.folders import file_problems, modified, names
from ops.model import Checkpoint, Layout, Pointer, Run, Unknown

LAYOUT = Layout(
    "lightning",
    "step=N",
    "the newest last*.ckpt or the highest hpc_ckpt_K.ckpt",
    "Lightning",
    after_rewind="a training that is given a path of its own (ckpt_path) takes that, whatever else lies here",
)
VERSION = "pytorch-lightning_version"
_PLACES = ("", "checkpoints", "lightning_logs/version_*/checkpoints")
_STEP = re.compile(r"step=(\d+)")
_HPC = re.compile(r"hpc_ckpt_(\d+)\.ckpt")


class _File(Struct, frozen=True):
    """One `.ckpt`: the step it is of, or why that cannot be told."""

    path: Path
    step: int | None
    time: float
    problem: str = ""

    @property
    def last(self) -> bool:
        return self.path.name.startswith("last")

    @property
    def hpc(self) -> int | None:
        match = _HPC.fullmatch(self.path.name)
        return int(match[1]) if match else None


def mine(folder: Path, found: frozenset[str]) -> bool:
    """A `.ckpt` that Lightning wrote."""
    here = any(n.endswith(".ckpt") for n in found) or found & {"checkpoints", "lightning_logs"}
    return bool(here) and any(_global_step(path)[0] is not None for path in _paths(folder))


def home(run_dir: Path) -> Path:
    """The run's folder: the files lie in it or below."""
    return run_dir


def pointer(run: Run) -> Pointer | Unknown:
    """What is looked for when no path is given."""
    files = _files(run.dir)
    odd = tuple(run.dir / n for n in sorted(names(run.dir)) if "hpc_ckpt_" in n and not _HPC.fullmatch(n))
    if odd:
        problem = f"Lightning reads a number out of {odd[0].name}, and looks for that hpc_ckpt_K.ckpt"
        return Pointer(odd[0].name, None, problem, "highest", obstacles=odd)
    if hpc := max((f for f in files if f.hpc is not None), key=lambda f: f.hpc or 0, default=None):
        return Pointer(hpc.path.name, hpc.step, hpc.problem, "highest")
    if last := max((f for f in files if f.last), key=lambda f: f.time, default=None):
        return Pointer(last.path.name, last.step, last.problem, "newest")
    step = max((f.step for f in files if f.step is not None), default=None)
    return Pointer("", step, "" if files else "missing")


def read(folder: Path, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
    """Every step that was saved, with all its files: a `last.ckpt` is most often of a step that has a file of its own."""
    files = _files(folder)
    by_step: dict[int, list[_File]] = {}
    for file in files:
        if file.step is not None:
            by_step.setdefault(file.step, []).append(file)
    wanted = sorted(by_step.keys() if only is None else by_step.keys() & only)
    return tuple(_checkpoint(s, by_step[s], files, folder, only is not None) for s in wanted)


def state_files(checkpoint: Path) -> tuple[Path, ...]:
    """The file itself."""
    return (checkpoint,)


def said(checkpoint: Path) -> tuple[tuple[str, int], ...]:
    """Its `global_step`."""
    step, _ = _global_step(checkpoint)
    return () if step is None else (("global_step", step),)


def _checkpoint(step: int, own: list[_File], files: list[_File], folder: Path, deep: bool) -> Checkpoint:
    own = sorted(own, key=lambda f: (f.last, f.hpc is not None, f.path.is_symlink(), f.path))
    problems = [f"{f.path.name}: {f.problem}" for f in own if f.problem]
    for file in own if deep and not problems else ():
        found = file_problems(file.path)
        problems += [f"{file.path.name}: {p}" for p in found]
        there = None if found else _global_step(file.path)[0]
        if there not in (None, step):
            problems.append(f"{file.path.name}: its global_step is {there}")
    return Checkpoint(
        step=step,
        path=own[0].path,
        problems=tuple(problems),
        saved=modified(own[0].path),
        size=sum(f.path.stat().st_size for f in own if not f.path.is_symlink()) if deep else None,
        infos=None,
        wandb_id=None,
        layout=LAYOUT.name,
        files=tuple(f.path for f in own),
        copies=tuple(_copies(step, files, folder)),
    )


def _copies(step: int, files: list[_File], folder: Path) -> Iterator[Path]:
    """Under which names, free as yet, a copy is what a resume takes at once, and still when later steps are gone."""
    stay = [f for f in files if f.step is not None and f.step <= step]
    if used := [f.hpc for f in files if f.hpc is not None]:
        highest = max((f for f in stay if f.hpc is not None), key=lambda f: f.hpc or 0, default=None)
        if highest is None or highest.step != step:
            yield folder / f"hpc_ckpt_{max(used) + 1}.ckpt"
    if lasts := sorted((f for f in files if f.last), key=lambda f: f.time):
        newest = max((f for f in stay if f.last), key=lambda f: f.time, default=None)
        if newest is None or newest.step != step:
            taken = {f.path for f in files}
            tries = (lasts[-1].path.with_name(f"last-v{v}.ckpt") for v in range(1, len(files) + 2))
            yield next(path for path in tries if path not in taken)


# -- files -----------------------------------------------------------------------------------------------


def _paths(folder: Path) -> Iterator[Path]:
    for place in _PLACES:
        for inside in sorted(folder.glob(place)) if "*" in place else [folder / place]:
            yield from sorted(inside / n for n in names(inside) if n.endswith(".ckpt"))


def _files(folder: Path) -> list[_File]:
    """Every `.ckpt`; the step is its name's where that tells it, else it is read."""
    found = []
    for path in _paths(folder):
        time = modified(path)
        match = _STEP.search(path.name)
        if path.is_dir():
            problem = "a folder of shards, which m4ops cannot change"
            found.append(_File(path, int(match[1]) if match else None, time or 0.0, problem))
        elif time is not None:
            step, problem = (int(match[1]), "") if match else _global_step(path)
            found.append(_File(path, step, time, problem))
    return found


def _global_step(path: Path) -> tuple[int | None, str]:
    """`global_step` of a file that Lightning wrote, or what is wrong with it."""
    from ops.checkpoints import statefile
    from ops.errors import OpsError

    try:
        tree = statefile.read(path).tree
    except OpsError as error:
        return None, error.what
    except OSError as error:
        return None, str(error.strerror)
    if not isinstance(tree, dict) or VERSION not in tree or not isinstance(tree.get("global_step"), int):
        return None, "no checkpoint of Lightning's"
    return int(tree["global_step"]), ""
