"""A small training by torchtitan's own checkpointer, optimizer and scheduler containers, in one process.

    python titan_trainer.py torchtitan=ROOT… torchtitan-old=ROOT…

Resumes each from what torchtitan finds in ROOT/run and goes on to step 20, saving at every fifth. ROOT/record gets a JSON line
before each optimizer step: the step, every parameter group's LR, how many steps the moments hold. `torchtitan-old`: the
scheduler saves all of its state, as torchtitan did before 0.3 (`components/lr_scheduler.py`).
"""

import copy
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torchtitan.components.checkpointer.dcp import CheckpointManager
from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer
from torchtitan.components.optimizer.optimizer import default_adamw


class Old(LRSchedulersContainer):
    """Saves and loads what torch's own scheduler does."""

    def state_dict(self) -> dict[str, Any]:
        return self.schedulers[0].state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for scheduler in self.schedulers:
            scheduler.load_state_dict(copy.deepcopy(state))


class Train:
    """The step, as torchtitan's trainer keeps it."""

    step = 0

    def state_dict(self) -> dict[str, Any]:
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = int(state["step"])


def main(folder: str, record: Path, old: bool) -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    optimizers = default_adamw(lr=1e-3).build(model_parts=[model])
    schedule = LRSchedulersContainer.Config(warmup_steps=3).build(optimizers=optimizers, training_steps=100)
    if old:
        schedule.__class__ = Old
    train = Train()
    manager = CheckpointManager(
        CheckpointManager.Config(enable=True, interval=5),
        dataloader=None,
        model_parts=[model],
        optimizers=optimizers,
        lr_schedulers=schedule,
        states={"train_state": train},
        sd_adapter=None,
        base_folder=folder,
    )
    manager.load(step=-1)
    with record.open("w") as lines:
        while train.step < 20:
            train.step += 1
            lrs = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
            held = max((int(s["step"]) for o in optimizers for s in o.state.values() if "step" in s), default=0)
            lines.write(json.dumps({"step": train.step, "lrs": lrs, "held": held}) + "\n")
            model(torch.randn(3, 4)).square().sum().backward()
            optimizers.step()
            schedule.step()
            optimizers.zero_grad()
            manager.save(train.step)
    manager.close()


if __name__ == "__main__":
    os.environ.update(LOCAL_RANK="0", RANK="0", WORLD_SIZE="1")
    with tempfile.TemporaryDirectory() as name:
        dist.init_process_group("gloo", init_method=f"file://{name}/store", rank=0, world_size=1)
        for training in (word for word in sys.argv[1:] if word != "--resume"):
            framework, _, root = training.partition("=")
            main(f"{root}/run", Path(root, "record"), framework == "torchtitan-old")
        dist.destroy_process_group()
