"""Tiny trainings under HF Trainer, Accelerate's automatic naming and Lightning; nothing of `ops` is imported here.

``python framework_trainers.py FRAMEWORK=ROOT… [--resume]`` trains in each ROOT/run, one after the other. Each optimizer step adds
a line to ROOT/record: its number, the learning rate of every parameter group just before it, how many steps the moments hold, and
what tells weights and moments from others.
"""

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

STEPS, EVERY = 20, 5


class Recorder:
    """Writes down what the optimizer really has when it makes a step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def step(self, number: int, model: nn.Module, optimizer: Any) -> None:
        optimizer = getattr(optimizer, "optimizer", optimizer)
        digest, held = hashlib.sha256(), 0
        for parameter in model.parameters():
            digest.update(parameter.detach().numpy().tobytes())
            for name, value in optimizer.state.get(parameter, {}).items():
                digest.update(torch.as_tensor(value).numpy().tobytes())
                held = int(value) if name == "step" else held
        lrs = [g["lr"] for g in optimizer.param_groups]
        line = {"step": number, "lrs": lrs, "held": held, "digest": digest.hexdigest()}
        with self.path.open("a") as record:
            record.write(json.dumps(line) + "\n")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        out = self.last(torch.tanh(self.first(x)))
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}


def examples() -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(2)
    x = torch.randn(2 * STEPS, 4)
    return [{"x": row, "labels": row.sum(0, keepdim=True)} for row in x]


def optimizer_of(net: nn.Module) -> torch.optim.Optimizer:
    groups = [{"params": net.first.parameters()}, {"params": net.last.parameters(), "lr": 3e-3}]  # type: ignore[attr-defined]
    return torch.optim.AdamW(groups, lr=1e-3)


def schedule_of(optimizer: torch.optim.Optimizer, least: float) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS, eta_min=least)


def hf_trainer(folder: Path, recorder: Recorder, resume: bool) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Record(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            recorder.step(state.global_step + 1, kwargs["model"], kwargs["optimizer"])

    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        save_steps=EVERY,
        per_device_train_batch_size=2,
        learning_rate=1e-3,
        warmup_steps=4,
        lr_scheduler_type="linear",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(model=Net(), args=arguments, train_dataset=examples(), callbacks=[Record()])  # type: ignore[arg-type]
    trainer.train(resume_from_checkpoint=resume or None)


def accelerate(folder: Path, recorder: Recorder, resume: bool) -> None:
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    configuration = ProjectConfiguration(str(folder), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, project_config=configuration)
    optimizer = optimizer_of(net := Net())
    loader = torch.utils.data.DataLoader(examples(), batch_size=2)  # type: ignore[arg-type]
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule_of(optimizer, 1e-4))
    done = 0
    if resume:
        accelerator.load_state()
        saves = len(list((folder / "checkpoints").iterdir()))
        done, configuration.iteration = saves * EVERY, saves  # Accelerate counts its saves from 0 again
    for number, batch in enumerate(accelerator.skip_first_batches(loader, done), done + 1):
        accelerator.backward(net(**batch)["loss"])
        recorder.step(number, net, optimizer)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if number % EVERY == 0:
            accelerator.save_state()


def lightning(folder: Path, recorder: Recorder, resume: bool) -> None:
    import pytorch_lightning as pl
    from pytorch_lightning.callbacks import ModelCheckpoint

    class Module(pl.LightningModule):
        def __init__(self, lr: float = 1e-3) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = Net()

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.net(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            optimizer = optimizer_of(self.net)
            return [optimizer], [{"scheduler": schedule_of(optimizer, 0.0), "interval": "step"}]

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            recorder.step(self.global_step + 1, self.net, optimizer)

    trainer = pl.Trainer(
        default_root_dir=folder,
        accelerator="cpu",
        max_steps=STEPS,
        callbacks=[ModelCheckpoint(folder, every_n_train_steps=EVERY, save_top_k=-1, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loader = torch.utils.data.DataLoader(examples(), batch_size=2)  # type: ignore[arg-type]
    trainer.fit(Module(), loader, ckpt_path="last" if resume else None, weights_only=True if resume else None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trainings", nargs="+")
    parser.add_argument("--resume", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for training in asked.trainings:
        framework, _, root = training.partition("=")
        (folder := Path(root, "run")).mkdir(exist_ok=True)
        (record := Path(root, "record")).write_bytes(b"")
        {"hf_trainer": hf_trainer, "accelerate": accelerate, "lightning": lightning}[framework](
            folder, Recorder(record), asked.resume
        )


if __name__ == "__main__":
    main()
