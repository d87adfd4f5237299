"""Composer: one `ep0-ba10-rank0.pt` a save and rank, and a symbolic link `latest-rank0.pt` to the last one.

A resume (`autoresume`) follows the link, which is relative to the folder it lies in; where there is none it asks the remote
store, whose own link m4ops does not see. Source: mosaicml/composer `trainer/trainer.py` (`save_latest_filename`,
`_get_autoresume_checkpoint`), `callbacks/checkpoint_saver.py`, `core/state.py` (`state_dict`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from ops.checkpoints.folders import file_problems, modified, names
from ops.model import Checkpoint, Layout, Pointer, Run, Sign, Unknown

LAYOUT = Layout(
    "composer",
    "ba=N",
    "latest-rank0.pt",
    "Composer",
    after_rewind="with a remote save_folder Composer keeps a link there too (latest-rank0.pt.symlink): point that one back as well",
)
NAME = re.compile(r"ep\d+-ba(\d+)-rank(\d+)\.pt")
LATEST = re.compile(r"latest-rank(\d+)\.pt")


def mine(folder: Path, found: frozenset[str]) -> bool:
    """A file of a batch and a rank."""
    return any(NAME.fullmatch(name) for name in found)


def home(run_dir: Path) -> Path:
    """`save_folder` itself."""
    return run_dir


def pointer(run: Run) -> Pointer | Unknown:
    """Where the link of rank 0 leads. A problem is what makes a resume start elsewhere, or not at all."""
    found = {int(match[1]): name for name in names(run.dir) if (match := LATEST.fullmatch(name))}
    links = [run.dir / found[rank] for rank in sorted(found)]
    if not links:
        return Pointer(
            "", None, "there is no latest-rank0.pt", signs=(Sign(run.dir / "latest-rank0.pt", None, link=True),)
        )
    if plain := tuple(link for link in links if not link.is_symlink()):
        signs = tuple(Sign(link, None if link in plain else os.readlink(link), link=True) for link in links)
        problem = f"{plain[0].name} is no symbolic link: autoresume ends with an OSError"
        return Pointer(plain[0].name, None, problem, signs=signs, obstacles=plain)
    signs = tuple(Sign(link, os.readlink(link), link=True) for link in links)
    leads = signs[0].text or ""
    match = NAME.fullmatch(os.path.basename(leads))
    problem = "" if links[0].exists() else f"{links[0].name} leads to {leads}, which is not there"
    return Pointer(leads, int(match[1]) if match else None, problem, signs=signs)


def read(folder: Path, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
    """Every batch that was saved, with the files of all ranks."""
    found: dict[int, dict[int, Path]] = {}
    try:
        listed = os.listdir(folder)
    except OSError as error:
        return Unknown(f"{folder}: {error.strerror}")
    for name in listed:
        if (match := NAME.fullmatch(name)) and not (folder / name).is_symlink():
            found.setdefault(int(match[1]), {})[int(match[2])] = folder / name
    ranks = sorted({rank for files in found.values() for rank in files})
    linked = sorted(int(match[1]) for name in listed if (match := LATEST.fullmatch(name))) or [0]
    wanted = sorted(found.keys() if only is None else found.keys() & only)
    return tuple(_checkpoint(batch, found[batch], ranks, linked, only is not None) for batch in wanted)


def state_files(checkpoint: Path) -> tuple[Path, ...]:
    """The file itself."""
    return (checkpoint,)


def said(checkpoint: Path) -> tuple[tuple[str, int], ...]:
    """The batch of the state's own timestamp."""
    from ops.checkpoints import statefile

    tree = statefile.read(checkpoint).tree
    match tree:
        case {"state": {"timestamp": {"Timestamp": {"batch": int(batch)}}}}:
            return (("its timestamp", int(batch)),)
    return ()


def _checkpoint(
    batch: int, files: dict[int, Path], ranks: Iterable[int], linked: Iterable[int], deep: bool
) -> Checkpoint:
    problems = [f"the file of rank {rank} is missing" for rank in ranks if rank not in files]
    own = tuple(files[rank] for rank in sorted(files))
    if deep:
        problems += [f"{file.name}: {problem}" for file in own for problem in file_problems(file)]
    return Checkpoint(
        step=batch,
        path=own[0],
        problems=tuple(problems),
        saved=modified(own[-1]),
        size=sum(file.stat().st_size for file in own) if deep else None,
        infos=None,
        wandb_id=None,
        layout=LAYOUT.name,
        files=own,
        signs=tuple(files[rank].name for rank in linked if rank in files),
    )
