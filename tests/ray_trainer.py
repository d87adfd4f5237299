"""A small training whose checkpoints Ray Train's own checkpoint manager keeps, in one process and without a cluster.

    python ray_trainer.py ray_train=ROOT…

Goes on from the manager's latest checkpoint in each ROOT/run to step 20, reporting one every five steps. ROOT/record gets a JSON
line before each optimizer step: the step, every group's LR, how many steps the moments hold.
"""

import asyncio
import json
import sys
from pathlib import Path

import torch
from ray.train import Checkpoint, CheckpointConfig
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.storage import StorageContext
from ray.train.v2._internal.execution.training_report import _TrainingReport


async def main(root: Path) -> None:
    context = StorageContext(storage_path=str(root), experiment_dir_name="run")
    manager = CheckpointManager(CheckpointConfig(), context)
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100, eta_min=1e-5)
    first, latest = 0, manager.latest_checkpoint_result
    if latest is not None:
        state = torch.load(Path(latest.checkpoint.path) / "state.pt")
        first = state["step"]
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["lr_scheduler"])
    with (root / "record").open("w") as lines:
        for step in range(first + 1, 21):
            lrs = [g["lr"] for g in optimizer.param_groups]
            held = max((int(s["step"]) for s in optimizer.state.values()), default=0)
            lines.write(json.dumps({"step": step, "lrs": lrs, "held": held}) + "\n")
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % 5 == 0:
                folder = root / "run" / f"checkpoint_2026-01-01_00-00-{step:02d}.000000"
                folder.mkdir()
                state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "lr_scheduler": schedule.state_dict()}, folder / "state.pt")
                manager.register_checkpoint(
                    _TrainingReport(checkpoint=Checkpoint(str(folder)), metrics={"step": step}, validation=False)
                )


if __name__ == "__main__":
    for training in (word for word in sys.argv[1:] if word != "--resume"):
        asyncio.run(main(Path(training.partition("=")[2])))  # the manager tells its waiters by the loop
