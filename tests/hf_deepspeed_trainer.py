"""HF Trainer under real DeepSpeed, several runs one after the other; nothing of `ops` is imported here.

Started on every rank by torch.distributed.run, on CPUs (`DS_ACCELERATOR=cpu`). A run's `ds.json` is its DeepSpeed config, and
`learning_rate` in its `args.json` is what TrainingArguments gets; a run with a checkpoint goes on from its last.
`RUN/lrs.RANK.jsonl` gets one line before each optimizer step: the step and the LR that every parameter group of that rank really
has, the steps that its moments hold, and a sum of its fp32 master weights.

    python -m torch.distributed.run --nproc-per-node 2 tests/hf_deepspeed_trainer.py DIR/linear DIR/warmup
"""

import argparse
import json
import os
import pathlib
import warnings

import deepspeed.ops
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

STEPS, EVERY = 16, 5


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = torch.nn.Linear(6, 17), torch.nn.Linear(17, 2)

    def forward(self, x, labels):
        out = self.last(torch.tanh(self.first(x.to(self.first.weight.dtype))))
        return {"loss": (out.float() - labels).square().mean(), "logits": out}


class Record(TrainerCallback):
    def __init__(self, path):
        self.path = path

    def on_step_begin(self, args, state, control, **kwargs):
        optimizer = kwargs["optimizer"].optimizer
        held = max((int(s["step"]) for s in optimizer.state.values() if "step" in s), default=0)
        masters = sum(m.detach().double().sum().item() for m in optimizer.single_partition_of_fp32_groups)
        lrs = [float(g["lr"]) for g in optimizer.param_groups]
        line = {"step": state.global_step + 1, "lrs": lrs, "moments": held, "masters": masters}
        with self.path.open("a") as record:
            record.write(json.dumps(line) + "\n")


def train(run):
    arguments = TrainingArguments(
        output_dir=str(run),
        max_steps=STEPS,
        save_steps=EVERY,
        per_device_train_batch_size=2,
        learning_rate=json.loads((run / "args.json").read_text())["learning_rate"],
        warmup_steps=6,
        bf16=True,
        use_cpu=True,
        ddp_backend="gloo",
        deepspeed=str(run / "ds.json"),
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    x = torch.randn(4 * STEPS, 6, generator=torch.Generator().manual_seed(5))
    examples = [{"x": row, "labels": row[:2]} for row in x]
    record = Record(run / f"lrs.{os.environ['RANK']}.jsonl")
    trainer = Trainer(model=Net(), args=arguments, train_dataset=examples, callbacks=[record])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(run)))


parser = argparse.ArgumentParser()
parser.add_argument("runs", type=pathlib.Path, nargs="+")
warnings.simplefilter("ignore")
deepspeed.ops.__compatible_ops__ = {}  # gloo in the place of shared-memory operators, which take half a minute to compile
torch.set_num_threads(1)
for run in parser.parse_args().runs:
    train(run)
os._exit(0)  # with all written: an exit sometimes aborts while gloo's threads end (torch 2.13)
