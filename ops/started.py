"""What the newest job was started with, as its trainer wrote it down: the newest `{job_id}_config.yaml` in SAVE_DIR.

huggingface/smollm, vision/m4/training: a resumed job writes the values that it took from the checkpoint.
"""

from __future__ import annotations

import re
from pathlib import Path

from ops.model import Started, Unknown

SUFFIX = "_config.yaml"


def newest(save_dir: Path) -> Path | None:
    """The newest `{job_id}_config.yaml`; not Accelerate's."""
    configs = [p for p in save_dir.glob(f"*{SUFFIX}") if "accelerate" not in p.name]
    return max(configs, key=lambda p: (p.stat().st_mtime, p.name), default=None)


def read(save_dir: Path) -> Started | Unknown:
    """What it says. Only the few keys that are compared are looked for, anywhere in it: no YAML parser is needed."""
    try:
        file = newest(save_dir)
        if file is None:
            return Unknown("no {job_id}_config.yaml")
        text, time = file.read_text(encoding="utf-8", errors="replace"), file.stat().st_mtime
    except OSError as error:
        return Unknown(f"{error.filename}: {error.strerror}")
    seed, loads = value(text, "seed"), value(text, "load_optimizer_states").lower()
    return Started(
        job=file.name.removesuffix(SUFFIX),
        file=file,
        time=time,
        seed=int(seed) if seed.isdecimal() else None,
        optimizer={"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(loads),
    )


def value(text: str, key: str) -> str:
    """The plain value of a key of a YAML text, wherever in it; empty if it has none."""
    match = re.search(rf"^[ \t]*{key}[ \t]*:[ \t]*(.+?)[ \t]*(?:#.*)?$", text, re.MULTILINE)
    return match.group(1).strip("'\"") if match else ""
