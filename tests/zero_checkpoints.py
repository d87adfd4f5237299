"""Real DeepSpeed checkpoints, and what DeepSpeed's own converter makes of them.

    python tests/zero_checkpoints.py OUT z3_bf16_w2 z1_tied_w3 …

writes of `dcp_w{ranks}` tensors cut among the ranks by torch's distributed checkpoint, whole in OUT/NAME/weights.bin, and
makes of each name z{stage}_{kind}_w{ranks} (kinds: bf16, fp32, tied) OUT/NAME/accelerator_state as Accelerate's
`save_state` does, and beside it fp32/, bf16/ and (of z3_bf16) several/ in safetensors or, for tied weights, weights.bin.
"""

import argparse
import contextlib
import io
import os
import pathlib
import re
import sys
import traceback

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import torch
from deepspeed.utils import zero_to_fp32

# A C++ extension for inference: a minute of compiling, under one lock for all processes, that nothing here needs.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None

parser = argparse.ArgumentParser()
parser.add_argument("out", type=pathlib.Path)
parser.add_argument("names", nargs="+")
parser.add_argument("--size", type=int, default=7, help="width of the model")
parser.add_argument("--layers", type=int, default=3)
parser.add_argument("--no-reference", action="store_true", help="do not run DeepSpeed's converter")
args = parser.parse_args()


class Model(torch.nn.Module):
    """Odd sizes, a frozen layer, buffers of several types, two of which do not lie in one piece."""

    def __init__(self, stage, kind):
        super().__init__()
        width = args.size
        self.embed = torch.nn.Embedding(2 * width + 1, width)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(args.layers))
        self.norm = torch.nn.LayerNorm(width)
        self.scale = torch.nn.Parameter(torch.tensor([1.5]))
        self.head = torch.nn.Linear(width, 2 * width + 1, bias=False)
        self.register_buffer("positions", torch.arange(5).expand(2, 5))
        self.register_buffer("rotated", torch.randn(3, 4).t())
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("forgotten", torch.zeros(3), persistent=False)
        # At stage 1 DeepSpeed saves no frozen parameters for its converter, which then leaves them out.
        self.layers[-1].requires_grad_(stage == 1 and kind != "tied")
        if kind == "tied":
            self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(self.norm(x) * self.scale)


def config(stage, kind):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": kind != "fp32"},
        "zero_optimization": {
            "stage": stage,
            "sub_group_size": 50 if args.size < 100 else 10_000_000,
            "reduce_bucket_size": 5_000_000,
            "allgather_bucket_size": 5_000_000,
            "stage3_prefetch_bucket_size": 5_000_000,
            "stage3_param_persistence_threshold": 10,
        },
    }


def groups(model):
    """Two parameter groups, as weight decay makes them."""
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


def train(stage, kind, place):
    torch.manual_seed(stage)
    model = Model(stage, kind)
    optimizer = torch.optim.AdamW(groups(model), lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(stage, kind))
    for step in range(2):
        torch.manual_seed(10 * step + torch.distributed.get_rank())
        engine.backward(engine(torch.randint(0, 2 * args.size, (2,))).float().square().mean())
        engine.step()
    engine.save_checkpoint(str(place / "accelerator_state"), tag="pytorch_model")
    engine.destroy()


def save_sharded(place):
    """Tensors cut by rows, by columns, or not at all; one does not lie in the order of its elements."""
    from torch.distributed import checkpoint
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    whole = {
        "rows": torch.randn(7, 5),
        "columns": torch.randn(6, 8, 2),
        "bias": torch.randn(3),
        "count": torch.tensor(4),
    }
    model = {name: tensor.clone() for name, tensor in whole.items()}
    model["rows"] = distribute_tensor(whole["rows"], mesh, [Shard(0)])
    model["columns"] = distribute_tensor(whole["columns"], mesh, [Shard(1)])
    state = {"model": model, "optimizer": {"exp_avg": torch.ones(3)}, "step": 3}
    checkpoint.save(state, checkpoint_id=str(place / "sharded"))
    if torch.distributed.get_rank() == 0:
        torch.save(whole, place / "weights.bin")


def convert(place, kind):
    if kind == "tied":  # the converter cannot write shared tensors as safetensors
        weights = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(str(place / "accelerator_state"))
        torch.save(weights, place / "weights.bin")
        return
    for name, dtype, largest in (("fp32", "fp32", "5GB"), ("bf16", "bf16", "5GB"), ("several", "fp32", "0.6KB")):
        zero_to_fp32.convert_zero_checkpoint_to_state_dict(
            str(place / "accelerator_state"), str(place / name), dtype, largest, safe_serialization=True
        )


def parsed(name):
    """Stage, kind and ranks."""
    if name.startswith("dcp_w"):
        return 0, "dcp", int(name.removeprefix("dcp_w"))
    stage, kind, ranks = re.fullmatch(r"z([123])_(bf16|fp32|tied)_w(\d+)", name).groups()
    return int(stage), kind, int(ranks)


def save(names):
    """What one rank does."""
    for name in names:
        stage, kind, _ = parsed(name)
        if kind == "dcp":
            save_sharded(args.out / name)
            continue
        train(stage, kind, args.out / name)
        torch.distributed.barrier()
        if torch.distributed.get_rank() == 0 and not args.no_reference:
            with contextlib.redirect_stdout(io.StringIO()):
                convert(args.out / name, kind)
    torch.distributed.barrier()


def launch(ranks, names):
    """A process for each rank, forked from this one: torch and DeepSpeed are imported once for all of them."""
    meeting = args.out / f".meeting-{ranks}"
    children = []
    for rank in range(ranks):
        if child := os.fork():
            children.append(child)
            continue
        code = 1
        try:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks))
            torch.distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=ranks)
            deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
            save(names)
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    ended = [os.waitpid(child, 0)[1] for child in children]
    if any(ended):
        sys.exit(f"a rank of {ranks} failed")
    meeting.unlink(missing_ok=True)


args.out.mkdir(parents=True, exist_ok=True)
for ranks in sorted({parsed(name)[2] for name in args.names}):
    launch(ranks, [name for name in args.names if parsed(name)[2] == ranks])
