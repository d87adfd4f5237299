"""Accelerate with a prepared scheduler, on two processes; nothing of `ops` is imported here.

Saves after five steps, loads that save, and writes to FOLDER/lrs.RANK the LR that each of the next five really has.

    python -m torch.distributed.run --nproc-per-node 2 tests/prepared_trainer.py FOLDER
"""

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator, InitProcessGroupKwargs

accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")])
folder = Path(sys.argv[1])
save = str(folder / "run" / "checkpoints" / "checkpoint_0")
net = torch.nn.Linear(6, 2)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)


def step() -> float:
    used = float(optimizer.param_groups[0]["lr"])
    accelerator.backward(net(torch.ones(4, 6)).sum())
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    return used


for _ in range(5):
    step()
accelerator.save_state(save)
accelerator.wait_for_everyone()  # the first rank writes what all load
accelerator.load_state(save)
(folder / f"lrs.{accelerator.process_index}").write_text(json.dumps([step() for _ in range(5)]))
os._exit(0)  # with all written: one exit of 25 aborts while gloo's threads end (torch 2.13, a loaded machine)
