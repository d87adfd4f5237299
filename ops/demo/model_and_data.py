"""The demo's model and data: a next-character model with a small image beside each text.

Texts are random contexts of four characters; the next character is one of eight, and the last character says
which eight: the loss falls from ln 32 towards ln 8. A batch holds two data sets, `cm4` (web pages) and `pmd`
(image captions). Why a divergence is real is told in `ops.demo.trainer`.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from ops.demo.training_config import Config, Faults

if TYPE_CHECKING:
    import torch
    from torch.optim.lr_scheduler import LambdaLR

VOCABULARY, CONTEXT, FOLLOWERS = 32, 4, 8
EMBEDDING, IMAGE, HIDDEN = 12, 8, 64
WEB_SHARE = 0.8
LANGUAGE_SEED = 7
REPEATED_PAGE = (3, 1, 4, 1)
RAMP_STEPS = 40
SPIKE_STEPS = 6

MODEL_CONFIG = {
    "model_type": "demo_next_character",
    "architectures": ["DemoNextCharacter"],
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "context_length": CONTEXT,
}


class Batch(Struct, frozen=True):
    """Contexts, images, next characters; the first `web` rows are cm4, the others pmd."""

    contexts: "torch.Tensor"
    images: "torch.Tensor"
    targets: "torch.Tensor"
    web: int

    def mean_by_set(self, losses: "torch.Tensor") -> dict[str, float]:
        """Mean loss of the whole batch and of each data set, in nats a token."""
        parts = {"all": losses, "cm4": losses[: self.web], "pmd": losses[self.web :]}
        return {name: part.mean().item() for name, part in parts.items()}


def build_model() -> "torch.nn.Module":
    """The model with fresh weights from torch's random state, about 6,000 parameters."""
    import torch

    class NextCharacter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.characters = torch.nn.Embedding(VOCABULARY, EMBEDDING)
            self.mix = torch.nn.Linear(CONTEXT * EMBEDDING + IMAGE, HIDDEN)
            self.norm = torch.nn.LayerNorm(HIDDEN, elementwise_affine=False)
            self.head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False)
            torch.nn.init.normal_(self.head.weight, std=0.02)

        def forward(self, contexts: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
            seen = torch.cat([self.characters(contexts).flatten(1), images], dim=1)
            logits: torch.Tensor = self.head(self.norm(torch.tanh(self.mix(seen))))
            return logits

    return NextCharacter()


def build_optimizer(model: "torch.nn.Module", config: Config) -> "torch.optim.Optimizer":
    """SGD with momentum: unlike Adam it has a sharp stability limit, 2 (1 + momentum) / curvature."""
    import torch

    return torch.optim.SGD(model.parameters(), lr=config.lr, momentum=config.momentum)


def build_scheduler(optimizer: "torch.optim.Optimizer", config: Config) -> "LambdaLR":
    """A LambdaLR over a `functools.partial`, as in transformers/optimization.py: at step 0 the LR is 0."""
    import torch

    factors = {
        "get_constant_schedule_with_warmup": partial(_constant, warmup=config.num_warmup_steps),
        "get_linear_schedule_with_warmup": partial(
            _linear, warmup=config.num_warmup_steps, total=config.max_num_opt_steps
        ),
    }
    if config.vl_lr_scheduler not in factors:
        raise ValueError(f"vl_lr_scheduler {config.vl_lr_scheduler}: known are {', '.join(factors)}")
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factors[config.vl_lr_scheduler])


def _constant(step: int, *, warmup: int) -> float:
    return min(1.0, step / max(1, warmup))


def _linear(step: int, *, warmup: int, total: int) -> float:
    if step < warmup:
        return step / max(1, warmup)
    return max(0.0, (total - step) / max(1, total - warmup))


class DataStream:
    """Endless batches in an order that `seed` decides; the faults of the data happen at fixed steps."""

    def __init__(self, seed: int, size: int, fault: Faults, fired: Mapping[str, int]) -> None:
        import torch

        self._random = torch.Generator().manual_seed(seed)
        self._size, self._fault, self._fired = size, fault, fired
        language = torch.Generator().manual_seed(LANGUAGE_SEED)
        rows = [torch.randperm(VOCABULARY, generator=language)[:FOLLOWERS] for _ in range(VOCABULARY)]
        self._followers = torch.stack(rows)

    def batch(self, step: int) -> Batch:
        """The batch of optimizer step `step`."""
        import torch

        size, web = self._size, round(self._size * WEB_SHARE)
        contexts = torch.randint(VOCABULARY, (size, CONTEXT), generator=self._random)
        repeated = torch.rand(size, generator=self._random) < self._repeated_share(step)
        repeated[web:] = False
        contexts[repeated] = torch.tensor(REPEATED_PAGE)
        choice = torch.randint(FOLLOWERS, (size,), generator=self._random)
        targets = self._followers[contexts[:, -1], choice]
        images = 0.1 * torch.randn(size, IMAGE, generator=self._random)
        if self._happens("spike_at", step, SPIKE_STEPS):
            targets = torch.randint(VOCABULARY, (size,), generator=self._random)
        if self._happens("nan_at", step, 1):
            images[0, 0] = torch.inf
        return Batch(contexts, images, targets, web)

    def _happens(self, fault: str, step: int, length: int) -> bool:
        first = getattr(self._fault, fault)
        return first is not None and fault not in self._fired and first <= step < first + length

    def _repeated_share(self, step: int) -> float:
        first = self._fault.diverge_at
        return 0.0 if first is None else min(1.0, max(0.0, (step - first + 1) / RAMP_STEPS))
