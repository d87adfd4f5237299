"""`wandb.alert` for the run that is trained, beside its trainer and without disturbing it.

wandb's shared mode lets a second process add to a run (`x_primary`, `x_update_finish_state`: wandb/sdk/wandb_settings.py
in wandb/wandb), so the run neither ends nor gets metrics of this host. wandb works in a process of its own, which a
time limit ends. With WANDB_MODE=offline the alert waits in SAVE_DIR/.m4ops/wandb for `wandb sync`.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from ops import shell
from ops.alerts.text import subject, text
from ops.alerts.words import Message
from ops.errors import OpsError
from ops.model import OPS_DIR, Severity

TIMEOUT = 45.0
_LEVELS = {Severity.CRITICAL: "ERROR", Severity.WARNING: "WARN", Severity.UNKNOWN: "WARN", Severity.OK: "INFO"}
LONGEST_TITLE = 63


def send(project: str, message: Message) -> None:
    """Deliver one message. Raises OSError with what wandb said, OpsError while no wandb run is known."""
    if not message.wandb:
        raise OpsError("the run has no wandb id yet")
    entity, _, name = project.rpartition("/")
    words = {"id": message.wandb, "entity": entity or None, "project": name or None, "dir": message.dir}
    words |= {"title": subject(message)[:LONGEST_TITLE], "text": text(message), "level": _LEVELS[message.severity]}
    answer = shell.run((sys.executable, "-P", "-m", __name__, json.dumps(words)), TIMEOUT, dict(os.environ))
    if answer.returncode:
        last = (answer.stderr.strip() or answer.stdout.strip() or f"exit code {answer.returncode}").splitlines()[-1]
        raise OSError(f"wandb: {last}")


def alert(words: dict[str, str | None]) -> None:
    """In a process of its own: the alert."""
    import wandb

    offline = os.environ.get("WANDB_MODE") in ("offline", "dryrun")
    settings = wandb.Settings(
        mode="offline" if offline else "shared",
        x_primary=False,
        x_update_finish_state=False,
        x_disable_stats=True,
        x_disable_meta=True,
        x_label="m4ops",
        console="off",
        silent=True,
        disable_git=True,
        save_code=False,
    )
    place = Path(str(words["dir"])) / OPS_DIR
    run = wandb.init(
        id=words["id"],
        entity=words["entity"],
        project=words["project"],
        resume=None if offline else "must",
        dir=place if os.access(place, os.W_OK) else None,
        settings=settings,
    )
    run.alert(str(words["title"]), str(words["text"]), level=str(words["level"]), wait_duration=1)
    run.finish()


if __name__ == "__main__":
    alert(json.loads(sys.argv[1]))
