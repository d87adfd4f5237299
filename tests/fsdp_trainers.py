"""FSDP under Accelerate, HF Trainer and torch alone: three ranks on CPUs, by their own code; nothing of `ops` is imported here.

    python fsdp_trainers.py FRAMEWORK=ROOT… [--resume]

trains in each ROOT/run, one after the other, as tests/framework_trainers.py does. FRAMEWORK is one of `KINDS`: whose checkpoints
they are, which FSDP, and how its state is saved. Each optimizer step adds a line to ROOT/record.

Accelerate takes FSDP for a training on GPUs alone: in `AcceleratorState` (`state.py`) CPUs are not among the kinds of processes that
it is for, and the plugin is passed over in silence. Here CPUs are (`on_cpus`); all else is as it is installed. With the first FSDP a
whole state dict cannot be had on CPUs: torch's `_full_post_state_dict_hook` copies from memory that was freed, and the process dies.
"""

import argparse
import hashlib
import json
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import framework_trainers
import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, ProjectConfiguration, save_fsdp_model, save_fsdp_optimizer
from framework_trainers import EVERY, STEPS, optimizer_of
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Trainer, TrainerCallback, TrainingArguments

KINDS = {
    "accelerate-fsdp2": (2, "SHARDED_STATE_DICT"),
    "accelerate-fsdp2-full": (2, "FULL_STATE_DICT"),
    "accelerate-fsdp1": (1, "SHARDED_STATE_DICT"),
    "hf_trainer-fsdp2": (2, "SHARDED_STATE_DICT"),
    "hf_trainer-fsdp2-full": (2, "FULL_STATE_DICT"),
    "dcp-fsdp2": (2, "an LR for each parameter"),
}
RANKS = 3
"""What all ranks hold alike, as the LRs, is shared out among the files of those that have least to save: from three ranks on, many."""


def on_cpus(made: Any = AcceleratorState.__init__) -> None:
    """Have Accelerate take FSDP's plugin for CPUs too."""

    def made_for_cpus(self: Any, *args: Any, fsdp_plugin: Any = None, **words: Any) -> None:
        made(self, *args, fsdp_plugin=fsdp_plugin, **words)
        if self.__dict__.setdefault("fsdp_plugin", fsdp_plugin) is not None:
            self.distributed_type = DistributedType.FSDP
        self.device = torch.device("cpu")

    AcceleratorState.__init__ = made_for_cpus  # type: ignore[method-assign]


class Net(framework_trainers.Net):
    """Of a size that three ranks do not share evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Linear(8, 2)


def examples() -> list[dict[str, torch.Tensor]]:
    """One for each rank and step."""
    x = torch.randn(RANKS * STEPS, 4, generator=torch.Generator().manual_seed(2))
    return [{"x": row, "labels": row.sum(0, keepdim=True)} for row in x]


class Recorder:
    """Writes down what the optimizers of all ranks really have when they make a step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def step(self, number: int, optimizer: Any) -> None:
        optimizer = getattr(optimizer, "optimizer", optimizer)
        held, digest = 0, hashlib.sha256()
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                digest.update(_bytes(parameter))
                for name, value in sorted(optimizer.state.get(parameter, {}).items()):
                    digest.update(_bytes(torch.as_tensor(value)))
                    held = int(value) if name == "step" else held
        mine = ([float(g["lr"]) for g in optimizer.param_groups], held, digest.hexdigest())
        every: list[Any] = [None] * RANKS
        dist.all_gather_object(every, mine)
        lrs, held, _ = every[0]
        if dist.get_rank() == 0:
            same = all(rank[:2] == (lrs, held) for rank in every)
            line = {"step": number, "lrs": lrs if same else [], "held": held, "digest": " ".join(r[2] for r in every)}
            with self.path.open("a") as record:
                record.write(json.dumps(line) + "\n")


def _bytes(tensor: Any) -> bytes:
    """The part of a tensor that this rank has."""
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return bytes(local.detach().contiguous().numpy().tobytes())


def hf_trainer(folder: Path, recorder: Recorder, kind: tuple[int, str], resume: bool) -> None:
    class Record(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            recorder.step(state.global_step + 1, kwargs["optimizer"])

    version, saved_as = kind
    config = {"version": version, "state_dict_type": saved_as, "cpu_ram_efficient_loading": False, "min_num_params": 8}
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        save_steps=EVERY,
        per_device_train_batch_size=1,
        learning_rate=1e-3,
        warmup_steps=4,
        fsdp=True,
        fsdp_config=config,
        ddp_backend="gloo",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(model=Net(), args=arguments, train_dataset=examples(), callbacks=[Record()])  # type: ignore[arg-type]
    trainer.train(resume_from_checkpoint=resume or None)


def accelerate(folder: Path, recorder: Recorder, kind: tuple[int, str], resume: bool) -> None:
    version, saved_as = kind
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version,
        state_dict_type=saved_as,
        auto_wrap_policy="size_based_wrap",
        min_num_params=8,
        use_orig_params=True if version == 1 else None,
        cpu_ram_efficient_loading=False,
    )
    configuration = ProjectConfiguration(str(folder), automatic_checkpoint_naming=True)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, project_config=configuration)
    optimizer = optimizer_of(net := Net())
    loader = torch.utils.data.DataLoader(examples(), batch_size=1)  # type: ignore[arg-type]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=RANKS * STEPS)
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)
    done = 0
    if resume:
        accelerator.load_state()
        saves = len(list((folder / "checkpoints").iterdir()))
        done, configuration.iteration = saves * EVERY, saves
    for number, batch in enumerate(accelerator.skip_first_batches(loader, done), done + 1):
        accelerator.backward(net(**batch)["loss"])
        recorder.step(number, optimizer)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if number % EVERY == 0:
            accelerator.save_state()
    if kind == KINDS["accelerate-fsdp2"] and not resume:
        by_rank(accelerator, net, optimizer, folder)


def by_rank(accelerator: Accelerator, net: Any, optimizer: Any, folder: Path) -> None:
    """What each rank has, once more in a file of its own, beside the last save's scheduler and random states."""
    place = folder.parent / "by-rank" / "run" / "checkpoints" / "checkpoint_0"
    plugin = accelerator.state.fsdp_plugin
    save_fsdp_model(plugin, accelerator, net, str(place), use_dcp=False)
    save_fsdp_optimizer(plugin, accelerator, optimizer, net, str(place), use_dcp=False)
    last = folder / "checkpoints" / f"checkpoint_{STEPS // EVERY - 2}"
    for name in ("scheduler.bin", f"random_states_{dist.get_rank()}.pkl"):
        shutil.copy(last / name, place / name)


def dcp(folder: Path, recorder: Recorder, kind: tuple[int, str], resume: bool) -> None:
    """A trainer of one's own: torch alone. Its checkpoints are called as torchtitan's are."""
    net = Net()
    for module in (net.first, net.last, net):
        fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)))
    optimizer = optimizer_of(net)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=RANKS * STEPS)
    options = StateDictOptions(flatten_optimizer_state_dict=True)

    def state() -> dict[str, Any]:
        weights, moments = get_state_dict(net, optimizer, options=options)
        return {"model": weights, "optimizer": moments, "lr_scheduler": schedule.state_dict()}

    done = 0
    if resume:
        done = max(int(path.name.partition("-")[2]) for path in folder.glob("step-*"))
        held = state()
        checkpoint.load(held, checkpoint_id=str(folder / f"step-{done}"))
        moments = held["optimizer"]
        set_state_dict(net, optimizer, model_state_dict=held["model"], optim_state_dict=moments, options=options)
        schedule.load_state_dict(held["lr_scheduler"])
    for number in range(done + 1, STEPS + 1):
        row = examples()[RANKS * (number - 1) + dist.get_rank()]
        net(**row)["loss"].backward()
        recorder.step(number, optimizer)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if number % EVERY == 0:
            checkpoint.save(state(), checkpoint_id=str(folder / f"step-{number}"))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("trainings", nargs="+")
    parser.add_argument("--resume", action="store_true")
    asked = parser.parse_args()
    for training in asked.trainings:
        framework, _, root = training.partition("=")
        folder, record = Path(root, "run"), Path(root, "record")
        if dist.get_rank() == 0:
            folder.mkdir(exist_ok=True)
            record.write_bytes(b"")
        train = {"hf_trainer": hf_trainer, "accelerate": accelerate, "dcp": dcp}[framework.partition("-")[0]]
        train(folder, Recorder(record), KINDS[framework], asked.resume)
        dist.barrier()
        AcceleratorState._reset_state(reset_partial_state=True)
        PartialState._reset_state()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    on_cpus()
    with tempfile.TemporaryDirectory() as name:
        others = [os.fork()]  # what is imported serves all ranks
        while others[-1] and len(others) < RANKS - 1:
            others.append(os.fork())
        rank = 0 if others[-1] else len(others)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS))
        dist.init_process_group("gloo", init_method=f"file://{name}/store", rank=rank, world_size=RANKS)
        main()
        if rank:
            os._exit(0)
    os._exit(0)  # with all written: an exit sometimes aborts while gloo's threads end (torch 2.13)
