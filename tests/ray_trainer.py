"""A small training whose checkpoints Ray Train's own checkpoint manager keeps, in one process and without a cluster.

    python ray_trainer.py STORAGE NAME RECORD

Goes on from the manager's latest checkpoint to step 20, reporting one every five steps. RECORD gets a JSON line before each
optimizer step: the step and every group's LR.
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


async def main(storage: str, name: str, record: Path) -> None:
    context = StorageContext(storage_path=storage, experiment_dir_name=name)
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
    with record.open("w") as lines:
        for step in range(first + 1, 21):
            lines.write(json.dumps({"step": step, "lrs": [g["lr"] for g in optimizer.param_groups]}) + "\n")
            model(torch.randn(3, 4)).square().sum().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % 5 == 0:
                folder = Path(storage) / name / f"checkpoint_2026-01-01_00-00-{step:02d}.000000"
                folder.mkdir()
                state = {"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "lr_scheduler": schedule.state_dict()}, folder / "state.pt")
                manager.register_checkpoint(
                    _TrainingReport(checkpoint=Checkpoint(str(folder)), metrics={"step": step}, validation=False)
                )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))  # the manager tells its waiters by the loop
