"""Ten steps of a training with a given scheduler, saved, and the 25 after a resume: by Accelerate, Trainer, Lightning.

Each is a `Framework`: what saves a run and what resumes it, both by the framework's own means. A resume answers the LR of
each parameter group as each optimizer step used it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lr_schedulers import RATES, Make, steps_by_loss

SAVED, AHEAD = 10, 25
Rates = list[tuple[float, ...]]


@dataclass(frozen=True)
class Framework:
    """`scheduler` says where in a run's files the scheduler's state is: a file, and the way to it inside."""

    name: str
    save: Callable[[Path, Make], None]
    resume: Callable[[Path, Make], Rates]
    scheduler: tuple[str, tuple[Any, ...]]
    by_loss: bool = False
    """Whether it can step a scheduler that follows the loss, at each step."""


class Net(torch.nn.Module):
    """A body and a head, each with an LR of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor | None = None, **_: Any) -> dict[str, torch.Tensor]:
        out = self.head(self.body(x))
        return {"loss": out.square().mean(), "out": out}


def optimizer_of(net: Net, tensor_lr: bool = False) -> torch.optim.AdamW:
    rates = [torch.tensor(r) if tensor_lr else r for r in RATES]
    groups = [{"params": p.parameters(), "lr": r} for p, r in zip((net.body, net.head), rates, strict=True)]
    return torch.optim.AdamW(groups, lr=rates[0])


def used(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups)


# -- plain Accelerate, as huggingface/smollm vision/m4 ----------------------------------------------------


class _Accelerated:
    def __init__(self, make: Make, tensor_lr: bool) -> None:
        import accelerate

        net = Net()
        optimizer = optimizer_of(net, tensor_lr)
        self.accelerator = accelerate.Accelerator(cpu=True)
        self.model, self.optimizer = self.accelerator.prepare(net, optimizer)
        self.scheduler = make(optimizer)
        self.accelerator.register_for_checkpointing(self.scheduler)

    def train(self, steps: int) -> Rates:
        rates = []
        for _ in range(steps):
            self.accelerator.backward(self.model(torch.ones(2, 3))["loss"])
            rates.append(used(self.optimizer))
            self.optimizer.step()
            self.scheduler.step(*[1.0] if steps_by_loss(self.scheduler) else [])
            self.optimizer.zero_grad()
        return rates


def _accelerate(tensor_lr: bool = False) -> Framework:
    def save(run: Path, make: Make) -> None:
        training = _Accelerated(make, tensor_lr)
        training.train(SAVED)
        checkpoint = run / f"opt_step-{SAVED}"
        training.accelerator.save_state(str(checkpoint / "accelerator_state"))
        sizes = dict.fromkeys(("global_batch_size_current", "global_seen_samples"), 1)
        sizes |= dict.fromkeys(("next_goal_samples", "grad_acc_size_current"), 1)
        infos = {"train_logs": {}, "wandb_run_id": "", "seed": 1, "resume_opt_step": SAVED, "resume_epoch": 0}
        (checkpoint / "resume_run_infos.json").write_text(json.dumps({**infos, "gbs_running": sizes}))
        (checkpoint / "finished-saving").touch()
        (run / "latest_opt_step_dir").write_text(str(checkpoint))

    def resume(run: Path, make: Make) -> Rates:
        training = _Accelerated(make, tensor_lr)
        training.accelerator.load_state(str(run / f"opt_step-{SAVED}" / "accelerator_state"))
        return training.train(AHEAD)

    state = f"opt_step-{SAVED}/accelerator_state/custom_checkpoint_0.pkl"
    return Framework("Accelerate", save, resume, (state, ()), by_loss=True)


# -- transformers' Trainer ---------------------------------------------------------------------------------


class _Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.ones(3)}


def _trainer(run: Path, make: Make, steps: int) -> tuple[Any, Rates]:
    import transformers

    rates: Rates = []

    class Noted(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, optimizer: Any = None, **kwargs: Any) -> None:
            rates.append(used(optimizer))

    net = Net()
    optimizer = optimizer_of(net)
    arguments = transformers.TrainingArguments(
        output_dir=str(run),
        max_steps=steps,
        save_steps=SAVED,
        per_device_train_batch_size=2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_strategy="no",
        remove_unused_columns=False,
    )
    optimizers = (optimizer, make(optimizer))
    trainer = transformers.Trainer(net, arguments, train_dataset=_Rows(), optimizers=optimizers, callbacks=[Noted()])
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer, rates


def _save_trainer(run: Path, make: Make) -> None:
    _trainer(run, make, SAVED)[0].train()


def _resume_trainer(run: Path, make: Make) -> Rates:
    trainer, rates = _trainer(run, make, SAVED + AHEAD)
    trainer.args.save_strategy = "no"
    trainer.train(resume_from_checkpoint=str(run / f"checkpoint-{SAVED}"))
    return rates


# -- Lightning ---------------------------------------------------------------------------------------------


def _lightning(run: Path, make: Make, steps: int) -> tuple[Any, Any, Any, Rates]:
    import logging

    import pytorch_lightning as lightning

    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    rates: Rates = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net()

        def training_step(self, batch: Any, index: int) -> Any:
            return self.net(batch["x"])["loss"]

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            rates.append(used(optimizer))

        def configure_optimizers(self) -> Any:
            optimizer = optimizer_of(self.net)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": make(optimizer), "interval": "step"}}

    trainer = lightning.Trainer(
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(run),
    )
    return trainer, Module(), torch.utils.data.DataLoader(_Rows(), batch_size=2), rates


def _save_lightning(run: Path, make: Make) -> None:
    trainer, module, data, _ = _lightning(run, make, SAVED)
    trainer.fit(module, data)
    trainer.save_checkpoint(run / "last.ckpt")


def _resume_lightning(run: Path, make: Make) -> Rates:
    trainer, module, data, rates = _lightning(run, make, SAVED + AHEAD)
    trainer.fit(module, data, ckpt_path=str(run / "last.ckpt"))
    return rates


ACCELERATE, TENSOR_LR = _accelerate(), _accelerate(tensor_lr=True)
TRAINER = Framework("Trainer", _save_trainer, _resume_trainer, (f"checkpoint-{SAVED}/scheduler.pt", ()))
LIGHTNING = Framework("Lightning", _save_lightning, _resume_lightning, ("last.ckpt", ("lr_schedulers", 0)))
FRAMEWORKS = (ACCELERATE, TRAINER, LIGHTNING)
