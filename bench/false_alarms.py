"""Does `verify-checkpoint --deep` find anything in good checkpoints? More than fifty of them, by those who write them.

    python bench/false_alarms.py

Schedulers of torch saved by plain Accelerate, by transformers' Trainer and by Lightning, and by real DeepSpeed ZeRO-1, 2
and 3 in two processes. Each is looked at with every byte read; fails if one is not sound. What is damaged and must be
found, kind by kind, is in tests/damage.py (plain: tests/test_verify_checkpoint.py, ZeRO: tests/test_deepspeed.py).
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path

from lr_deepspeed import SCHEDULERS, STAGES, launch
from lr_schedulers import BY_LOSS, TORCH
from lr_trainings import FRAMEWORKS, SAVED

from ops.checkpoints import deep, layouts, verify
from ops.discovery import describe

EACH = 11
"""Schedulers a framework."""


def faults(run: Path) -> list[str]:
    """All that is found in the run's one checkpoint."""
    found = layouts.read(describe(run)[0])
    if not found or len(found) != 1:
        return [f"{len(found or ())} checkpoints found, not one"]
    seen = list(verify.faults(found[0]))
    for path in verify.state_files(found[0]):
        seen += deep.faults(path, path.name, not path.name.startswith(("random_states", "rng_state")), lambda _: None)
    return [f"{f.file} {f.what}" for f in seen]


def main() -> None:
    warnings.simplefilter("ignore")
    names = [name for name in TORCH if name not in BY_LOSS][:EACH]
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder, f"{name}-zero-{stage}") for name in SCHEDULERS for stage in STAGES]
        launch(runs, SAVED)
        for framework in FRAMEWORKS:
            for name in names:
                run = Path(folder, f"{framework.name}-{name}")
                run.mkdir()
                framework.save(run, TORCH[name])
                runs.append(run)
        alarms = {run.name: told for run in runs if (told := faults(run))}
    for name, told in alarms.items():
        print(f"FALSE ALARM {name}: {'; '.join(told)}")
    print(f"{len(runs)} good checkpoints of {len(FRAMEWORKS)} frameworks and DeepSpeed: {len(alarms)} false alarms")
    sys.exit(bool(alarms))


if __name__ == "__main__":
    main()
