"""Which run is meant, and where its files are.

Order: `--run`, `M4OPS_RUN`, then upwards from the current folder. Any existing m4 SAVE_DIR is a run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ops import config as cfg
from ops import started
from ops.checkpoints import layouts
from ops.errors import BadInput, RunNotFound
from ops.model import DISCARDED, M4, Layout, Run

_OF_JOB = r"%\d*[AaJjNnstuxb]"
"""What stands for the job in the names of its files (Slurm, sbatch, filename pattern)."""
JOBS = 50
"""Logs of jobs that are looked at, where each has its own."""
_YAML_KEYS = ("kill_switch_path", "save_switch_path")


def find(wanted: str | None, cwd: Path, env: dict[str, str] | None = None) -> tuple[Run, cfg.Config]:
    """The run named by `wanted` (a folder or a name), by M4OPS_RUN, or by the current folder. Raises RunNotFound."""
    env = dict(os.environ) if env is None else env
    said = wanted or env.get("M4OPS_RUN", "")
    if said:
        return _named(said, cwd, env)
    for folder in (cwd, *cwd.parents):
        found = os.path.isfile(folder / cfg.FILE)
        with suppress(OSError):  # a run may lie below a folder that is closed
            found = found or _looks_like_run(folder)
        if found:
            return describe(folder)
    raise RunNotFound(
        "no run here: no folder from here up holds latest_opt_step_dir, an opt_step-N, m4ops.toml, or another framework's checkpoints",
        str(cwd),
        "m4ops --run SAVE_DIR status, or export M4OPS_RUN=SAVE_DIR",
    )


def roots(env: dict[str, str]) -> tuple[Path, ...]:
    """Folders whose sub-folders are runs: M4OPS_ROOTS (colon-separated), then `roots` of the user's m4ops.toml."""
    listed = [Path(p) for p in env.get("M4OPS_ROOTS", "").split(":") if p]
    return (*listed, *(_own_file(env).parent / p for p in own(env).roots))


def own(env: dict[str, str]) -> cfg.Config:
    """What the user's own m4ops.toml says. Raises BadInput."""
    home = _own_file(env)
    return cfg.load(home) if home.is_file() else cfg.Config()


def _own_file(env: dict[str, str]) -> Path:
    return Path(env.get("XDG_CONFIG_HOME") or Path(env.get("HOME", "/")) / ".config") / "m4ops" / cfg.FILE


def names(env: dict[str, str]) -> tuple[str, ...]:
    """Run names under the configured roots, for shell completion."""
    return tuple(sorted(folder.name for folder in folders(env)))


def folders(env: dict[str, str]) -> tuple[Path, ...]:
    """Every run's folder under the configured roots, each once.

    A folder that cannot be looked into counts as a run, and so does such a root: who asks for it is told why.
    """
    return tuple(sorted({Path(os.path.realpath(d)) for root in roots(env) for d in _runs_below(root)}))


def _runs_below(root: Path) -> Iterator[Path]:
    try:
        below = sorted(root.iterdir())
    except OSError:
        yield root
        return
    for folder in below:
        try:
            if _looks_like_run(folder):
                yield folder
        except OSError:
            if folder.name != "lost+found":
                yield folder


def _named(said: str, cwd: Path, env: dict[str, str]) -> tuple[Run, cfg.Config]:
    path = cwd / said
    if path.is_dir():
        try:
            found = _looks_like_run(path)
        except OSError as error:
            why = f"this folder cannot be looked into: {error.strerror}"
            raise RunNotFound(why, str(path), f"ls -ld {path}") from None
        if not found and not os.path.isfile(path / cfg.FILE):
            if sharded := next(path.glob("*.ckpt/"), None):
                raise RunNotFound(
                    "a .ckpt that is a folder: the sharded state of Lightning's FSDP or DeepSpeed strategy, which m4ops cannot read",
                    str(sharded),
                    "save a full state: FSDPStrategy(state_dict_type='full')",
                )
            raise RunNotFound(
                "this folder is no run",
                str(path),
                "a run holds latest_opt_step_dir, opt_step-N, logs/main_log.txt, m4ops.toml, or checkpoints of: "
                + ", ".join(layouts.NAMES[1:]),
            )
        return describe(path)
    if "/" not in said:
        for root in roots(env):
            if (root / said).is_dir():
                return describe(root / said)
    import difflib

    near = [] if "/" in said else difflib.get_close_matches(said, names(env), n=3)
    hint = "did you mean " + ", ".join(near) + "?" if near else "give a folder, or list its parent in M4OPS_ROOTS"
    raise RunNotFound(f"no run `{said}`", str(path), hint)


def _looks_like_run(folder: Path) -> bool:
    """Raises OSError where that cannot be told."""
    if os.path.isfile(folder / "logs" / "main_log.txt") or os.path.isdir(folder / ".m4ops"):
        return True
    if folder.parent.name == DISCARDED or not os.path.isdir(folder):
        return False
    os.stat(os.path.join(folder, "."))
    os.listdir(folder)
    return bool(layouts.claims(folder))


def describe(folder: Path) -> tuple[Run, cfg.Config]:
    """The run of a folder, with its files' places from m4ops.toml, the newest `{job_id}_config.yaml` and convention."""
    file = folder / cfg.FILE
    config = cfg.load(file) if file.is_file() else cfg.Config()
    save_dir = Path(os.path.abspath(folder / config.save_dir))
    if not save_dir.is_dir():
        raise BadInput(f"save_dir `{config.save_dir}` is no folder", str(file))
    if config.progress:
        from ops.logs.template import template

        template(config.progress, str(file))
    name = config.name or save_dir.name
    log, *earlier = _said_logs(folder, config.log) if config.log else _logs(save_dir)
    said = _trainer_paths(save_dir)

    def place(key: str, *conventions: Path | None) -> Path | None:
        text = getattr(config, key)
        if text:
            return Path(os.path.abspath(folder / text))
        return next((p for p in conventions if p is not None), None)

    evals = save_dir.parent / "evals" / "results" / f"{name}_evaluations.jsonl"
    run = Run(
        dir=save_dir,
        name=name,
        log=log,
        earlier_logs=tuple(path for path in earlier if path),
        evals=_followed(place("evals", evals if os.path.isfile(evals) else None)),
        kill_switch=place("kill_switch", said.get("kill_switch_path")),
        save_switch=place("save_switch", said.get("save_switch_path")),
        trainer_config=place("trainer_config"),
        ds_config=place("ds_config"),
        on_save=config.on_save,
        cluster=config.cluster,
        progress=config.progress,
        layout=_layout(save_dir, config.layout, file),
    )
    return run, config


def _layout(save_dir: Path, said: str, file: Path) -> Layout:
    """Whose checkpoints these are; m4's while there are none. Raises BadInput."""
    if said and said not in layouts.NAMES:
        raise BadInput(f"there is no layout `{said}`", str(file), "layouts: " + ", ".join(layouts.NAMES))
    return layouts.named(said or layouts.detect(save_dir) or M4.name).LAYOUT


def _followed(path: Path | None) -> Path | None:
    """Where a symbolic link leads: that file is trimmed, its archives lie beside it, and the link stays."""
    return path and Path(os.path.realpath(path))


def _logs(save_dir: Path) -> Sequence[Path | None]:
    """`logs/main_log.txt`, else `logs/*.out` (Slurm's own output files), the newest first."""
    main = save_dir / "logs" / "main_log.txt"
    try:
        if main.is_file():
            return (main,)
        return _newest_first((save_dir / "logs").glob("*.out")) or (None,)
    except OSError:  # whoever reads it learns why
        return (main,)


def _said_logs(folder: Path, said: str) -> Sequence[Path]:
    """The log that m4ops.toml names: of a pattern all files, the newest first, or the pattern itself while there is none."""
    path = Path(os.path.abspath(folder / said))
    if not any(sign in said for sign in "*?[%") or path.exists():
        return (path,)
    from glob import glob

    with suppress(OSError):
        found = glob(re.sub(_OF_JOB, "*", said), root_dir=folder)
        return _newest_first(Path(os.path.abspath(folder / name)) for name in found) or (path,)
    return (path,)


def _newest_first(files: Iterable[Path]) -> list[Path]:
    return sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[:JOBS]


def _trainer_paths(save_dir: Path) -> dict[str, Path]:
    """Kill and save switch as the newest `{job_id}_config.yaml` names them (anywhere in it).

    A relative path is passed over: it depends on the folder the job was started in, which nothing here tells. One that
    cannot be read names none.
    """
    try:
        file = started.newest(save_dir)
        return switches(file.read_text(encoding="utf-8", errors="replace")) if file else {}
    except OSError:
        return {}


def switches(text: str) -> dict[str, Path]:
    """`kill_switch_path` and `save_switch_path` of a trainer's config, where they are absolute."""
    said = {key: started.value(text, key) for key in _YAML_KEYS}
    return {key: Path(value) for key, value in said.items() if value.startswith("/")}
