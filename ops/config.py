"""`m4ops.toml`: one optional file a run, and one a user for the roots under which runs are found by name.

A run needs no configuration at all; an unknown key is an error with a suggestion, so that a typing mistake is never
a silent default.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ops.errors import BadInput

FILE = "m4ops.toml"


@dataclass(frozen=True)
class Config:
    """What `m4ops.toml` may say. Relative paths are relative to the file's folder."""

    save_dir: str = ""
    """SAVE_DIR, when the file does not lie in it."""
    layout: str = ""
    """Whose checkpoints these are, where the folder alone does not tell: `m4`, …"""
    name: str = ""
    """The run's (and its Slurm jobs') name; default: the name of SAVE_DIR."""
    log: str = ""
    """The main log; default: `logs/main_log.txt`."""
    progress: str = ""
    """How a progress line looks, if no format is recognised: `step {step}/{total} | loss: {loss} | {} | lr: {lr}`."""
    evals: str = ""
    """The evaluations file; default: `../evals/results/{run}_evaluations.jsonl` where it exists."""
    kill_switch: str = ""
    save_switch: str = ""
    """Default of both: what the newest `{job_id}_config.yaml` says."""
    trainer_config: str = ""
    """The config file that the next job will read; needed for `--reset-optimizer` by the trainer's own switch."""
    ds_config: str = ""
    """DeepSpeed's config that the next job will read: the LR of DeepSpeed's own schedulers is changed there."""
    sinks: tuple[str, ...] = ()
    """Where `m4ops check` sends new findings: `stdout:`, `https://…`, `mailto:…`, `smtp://host:port/…`."""
    keep: tuple[str, ...] = ()
    """What `m4ops prune` keeps: `last 3`, `every 5000`, `best 2 by TASK`, `lowest 2 by TASK`, `around incidents`,
    `until uploaded`, `until evaluated`, `discarded 7 days`."""
    store: str = ""
    """Where `m4ops push` sends checkpoints: `s3://BUCKET/PREFIX`; each run has a folder of its name in it."""
    store_endpoint: str = ""
    """The store's address where it is not AWS; default: `AWS_ENDPOINT_URL`, or `endpoint_url` in `~/.aws/config`."""
    on_save: tuple[str, ...] = ()
    """What `m4ops watch-saves` does with each finished checkpoint, in this order: `verify` or `verify deep`, `extract bf16`
    or `extract fp32`, `push`, `evals NAME: sbatch …`, `prune`."""
    cluster: str = ""
    """The Slurm cluster of the run's jobs, given to Slurm's commands as `-M`; default: the one they mean themselves."""
    operators: tuple[str, ...] = ()
    """Users whose `m4ops request` the owner's `m4ops check` carries out; the file must be writable by its owner alone."""
    work: tuple[tuple[str, str], ...] = ()
    """A table of sbatch's options for `--on slurm`: `[work]`, then `partition = "cpu"`, `time = "02:00:00"`, …;
    `array-parallelism`: tasks at once."""
    roots: tuple[str, ...] = ()
    """Folders whose sub-folders are runs; for `--run NAME`."""


def load(path: Path) -> Config:
    """Read one configuration file. Raises BadInput, naming file, key and the nearest known key."""
    import tomllib

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"the configuration cannot be read: {error}", str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"the configuration is no TOML: {error}", str(path)) from None
    return Config(**{key: _checked(key, value, path) for key, value in data.items()})


def _checked(key: str, value: Any, path: Path) -> Any:
    known = {f.name: f.default for f in fields(Config)}
    if key not in known:
        import difflib

        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else "known keys: " + ", ".join(known)
        raise BadInput(f"unknown key `{key}`", str(path), hint)
    if key == "work":
        return _options(value, path)
    if isinstance(known[key], tuple):
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise BadInput(f"`{key}` must be a list of strings", str(path), f'for instance: {key} = ["…"]')
        return tuple(value)
    if not isinstance(value, str):
        raise BadInput(f"`{key}` must be a string", str(path), f'for instance: {key} = "…"')
    return value


def _options(value: Any, path: Path) -> tuple[tuple[str, str], ...]:
    """A table of options with plain values. True stands for an option without a value."""
    plain = isinstance(value, dict) and all(isinstance(v, str | int) for v in value.values())
    if not plain:
        raise BadInput(
            "`work` must be a table of sbatch's options", str(path), 'for instance: [work] partition = "cpu"'
        )
    return tuple((str(name).replace("_", "-"), str(option)) for name, option in value.items())
