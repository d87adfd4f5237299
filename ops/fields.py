"""What trainers call the numbers they log. Of several names that stand in a line the first one here counts."""

from __future__ import annotations

from functools import lru_cache

LOSS = (
    "per_token_loss", "loss", "lm loss", "lm-loss", "lm_loss", "reduced_train_loss", "train_loss", "training loss",
    "act_loss", "trl", "train/loss", "loss/train/total", "Loss", "train_loss_step", "loss train", "training_loss", "loss/train",
    "loss_mean", "mean_loss", "train/loss_mean", "train/lm_loss", "train/CrossEntropyLoss", "train/CE loss", "step_loss",
    "total_loss", "gpt_loss", "policy_loss", "actor/pg_loss", "loss/policy_avg", "closs",
)  # fmt: skip
STEP = (
    "step", "current step", "num_opt_steps", "global_step", "iteration", "num_updates", "batch", "iter",
    "train/global_step", "trainer/global_step", "current_steps", "samples_count", "steps", "iterations", "_step", "Step",
)  # fmt: skip
"""The last two are wandb's own count, in a history and in the table of a chart."""
RATE = ("lr", "learning rate", "learning_rate", "LR", "train/learning_rate", "actor/lr")
NORM = ("grad_norm", "grad norm", "gnorm", "norm", "total_norm", "train/grad_norm", "actor/grad_norm")
BATCH = ("global_batch_size_current", "global_batch_size", "global batch size", "batch_size", "gbs")
"""Samples of one optimizer step."""


@lru_cache(4096)
def dataset(name: str) -> str:
    """The data set whose loss a field is: `cm4` of `per_token_loss/cm4` and `per_token_loss.cm4`; else empty."""
    for loss in LOSS:
        rest = name.removeprefix(loss)
        if rest != name and rest[:1] in ("/", ".") and name not in LOSS:
            return rest[1:]
    return ""
