"""Ray Train: a folder for each checkpoint that was reported, and `checkpoint_manager_snapshot.json`, which lists them.

A run of the same name goes on from the snapshot's `latest_checkpoint_result`; every checkpoint that it lists must be there. What
lies in a folder is the trainer's own affair. N is the report that brought it. Source: ray-project/ray
`python/ray/train/v2/_internal/execution/checkpoint/checkpoint_manager.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ops.checkpoints.folders import file_problems, modified, names, size
from ops.model import Checkpoint, Layout, Pointer, Run, Sign, Unknown

SNAPSHOT = "checkpoint_manager_snapshot.json"
LAYOUT = Layout("ray_train", "the checkpoint of report N", SNAPSHOT, "Ray Train", counts_saves=True)
_LATEST, _RESULTS, _INDICES = "latest_checkpoint_result", "checkpoint_results", "checkpoint_report_indices"
_NAMES = (
    "validated_checkpoint_dir_names",
    "timed_out_validation_checkpoint_dir_names",
    "failed_validation_checkpoint_dir_names",
)
_STATES = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
_NOTE = "whether the trainer takes its LR from these files is said by its code alone: compare the first step's LR (m4ops verify)"


def mine(folder: Path, found: frozenset[str]) -> bool:
    """The snapshot."""
    return SNAPSHOT in found


def home(run_dir: Path) -> Path:
    """The experiment's folder itself."""
    return run_dir


def pointer(run: Run) -> Pointer | Unknown:
    """What the snapshot calls the latest. A problem is what makes Ray refuse to go on."""
    file = run.dir / SNAPSHOT
    try:
        text = file.read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        return Pointer("", None, "missing")
    except OSError as error:
        return Unknown(f"{file}: {error.strerror}")
    signs, said = (Sign(file, text),), _listed(text)
    if said is None:
        return Pointer("", None, f"{SNAPSHOT} is torn", signs=signs)
    told = json.loads(text).get(_LATEST)
    latest = str(told.get("checkpoint_dir_name")) if isinstance(told, dict) else ""
    step = next((index for index, name in said if name == latest), None)
    if step is None:
        return Pointer(latest, None, "names no latest checkpoint" if not latest else f"lists no {latest}", signs=signs)
    gone = [name for _, name in said if not (run.dir / name).is_dir()]
    return Pointer(
        latest, step, f"lists {gone[0]}, which is not there: Ray refuses to start" if gone else "", signs=signs
    )


def read(folder: Path, only: frozenset[int] | None = None) -> tuple[Checkpoint, ...] | Unknown:
    """Every checkpoint that the snapshot lists; of a discarded branch, every folder."""
    try:
        text = (folder / SNAPSHOT).read_bytes().decode("utf-8", "surrogateescape")
    except FileNotFoundError:
        there = sorted(name for name in names(folder) if name.startswith("checkpoint_") and (folder / name).is_dir())
        every = enumerate(there)
        return tuple(_checkpoint(n, folder / name, False, ()) for n, name in every if only is None or n in only)
    except OSError as error:
        return Unknown(f"{folder / SNAPSHOT}: {error.strerror}")
    said = _listed(text)
    if said is None:
        return Unknown(f"{folder / SNAPSHOT} is torn")
    wanted = sorted((n, name) for n, name in said if only is None or n in only)
    return tuple(_checkpoint(n, folder / name, only is not None, (_until(text, n),)) for n, name in wanted)


def state_files(checkpoint: Path) -> tuple[Path, ...]:
    """Whatever the trainer saved by torch."""
    return tuple(sorted(p for p in checkpoint.rglob("*") if p.suffix in _STATES and p.is_file()))


def said(checkpoint: Path) -> tuple[tuple[str, int], ...]:
    """Nothing that all trainers save."""
    return ()


def _listed(text: str) -> tuple[tuple[int, str], ...] | None:
    """Report and folder of each checkpoint; None when the text is no snapshot."""
    try:
        data = json.loads(text)
        pairs = zip(data[_INDICES], data[_RESULTS], strict=True)
        return tuple((int(index), str(result["checkpoint_dir_name"])) for index, result in pairs)
    except (ValueError, KeyError, TypeError):
        return None


def _until(text: str, last: int) -> str:
    """The snapshot as if the checkpoint of report `last` were the latest."""
    data: dict[str, Any] = json.loads(text)
    pairs = [p for p in zip(data[_INDICES], data[_RESULTS], strict=True) if p[0] <= last]
    kept = {result["checkpoint_dir_name"] for _, result in pairs}
    data[_INDICES], data[_RESULTS] = [index for index, _ in pairs], [result for _, result in pairs]
    data[_LATEST] = next(result for index, result in pairs if index == last)
    waiting = zip(data.get("pending_training_results", ()), data.get("pending_validation_specs", ()), strict=True)
    waiting_on = [pair for pair in waiting if pair[0]["checkpoint_dir_name"] in kept]
    if "pending_training_results" in data:
        data["pending_training_results"] = [result for result, _ in waiting_on]
        data["pending_validation_specs"] = [spec for _, spec in waiting_on]
    for key in _NAMES:
        if key in data:
            data[key] = [name for name in data[key] if name in kept]
    data["current_report_index"] = last + 1
    return json.dumps(data, separators=(",", ":"))


def _checkpoint(report: int, path: Path, deep: bool, signs: tuple[str, ...]) -> Checkpoint:
    problems = [] if path.is_dir() else ["the folder is missing: Ray refuses to start while the snapshot lists it"]
    if deep and not problems:
        problems += [f"{f.relative_to(path)}: {p}" for f in state_files(path) for p in file_problems(f)]
    return Checkpoint(
        step=report,
        path=path,
        problems=tuple(problems),
        saved=modified(path),
        size=size(path) if deep and path.is_dir() else None,
        infos=None,
        wandb_id=None,
        layout=LAYOUT.name,
        signs=signs,
        lr_note=_NOTE,
    )
