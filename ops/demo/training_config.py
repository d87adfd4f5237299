"""The YAML config of the demo training.

Keys are named as in m4's `hparams` and `optim_param` (huggingface/smollm vision/m4/training/config.py); they
may stand in those two sections or at the top level. An unknown key is an error.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

SECTIONS = ("hparams", "optim_param")


@dataclass(frozen=True)
class Faults:
    """What shall go wrong; see the table in `ops.demo.trainer`. Steps are optimizer steps, counted from 1."""

    diverge_at: int | None = None
    spike_at: int | None = None
    nan_at: int | None = None
    hang_at: int | None = None
    lose_node_at: int | None = None
    node: str | None = None
    slow_save_seconds: float = 0.0


@dataclass(frozen=True)
class Config:
    """One job's settings. Times in seconds; paths absolute after `read_config`."""

    save_dir: Path
    kill_switch_path: Path | None = None
    save_switch_path: Path | None = None
    evals_dir: Path | None = None
    load_optimizer_states: bool = True
    max_num_opt_steps: int = 400
    max_num_opt_steps_this_run: int | None = None
    jz_job_time_sec: float | None = None
    train_logging_opt_steps: int = 5
    train_saving_opt_steps: int = 40
    val_logging_opt_steps: int = 80
    eval_opt_steps: int = 80
    seed: int = 13
    batch_size_per_gpu: int = 256
    lr: float = 0.38
    momentum: float = 0.8
    vl_lr_scheduler: str = "get_constant_schedule_with_warmup"
    num_warmup_steps: int = 20
    grad_clip: float = 100.0
    step_seconds: float = 0.0
    wandb_enable: bool = True
    wandb_project: str = "m4ops-demo"
    fault: Faults = field(default_factory=Faults)


def read_config(path: Path) -> Config:
    """The config in a YAML file. Relative paths start at the file's folder. ValueError names a wrong key."""
    import yaml

    raw = yaml.safe_load(path.read_text())
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: a config is a mapping with at least `save_dir`")
    flat: dict[str, Any] = {key: value for key, value in raw.items() if key not in SECTIONS}
    for section in SECTIONS:
        flat.update(raw.get(section) or {})
    flat["fault"] = Faults(**_known(Faults, flat.get("fault") or {}, f"{path}: fault"))
    for key in ("save_dir", "kill_switch_path", "save_switch_path", "evals_dir"):
        if flat.get(key) is not None:
            flat[key] = path.parent.absolute() / Path(flat[key]).expanduser()
    if "save_dir" not in flat:
        raise ValueError(f"{path}: `save_dir` is missing")
    return Config(**_known(Config, flat, str(path)))


def _known(kind: type, given: dict[str, Any], where: str) -> dict[str, Any]:
    known = [f.name for f in fields(kind)]
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"{where}: unknown key {', '.join(unknown)}; known are {', '.join(known)}")
    return given
