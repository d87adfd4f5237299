"""How trainers print their progress: one format a framework, recognised by itself.

Formats are ordered: one that names the trainer's step is trusted more than a progress bar. Sources: the trainers'
own code and logs in public repositories (huggingface/smollm, NVIDIA/Megatron-LM, EleutherAI/gpt-neox,
huggingface/nanotron, huggingface/transformers, pytorch/torchtitan, allenai/OLMo, mosaicml/llm-foundry,
karpathy/nanoGPT, karpathy/llm.c, InternLM/InternEvo, NVIDIA/NeMo, facebookresearch/metaseq, facebookresearch/fairseq
fairseq/logging/progress_bar.py, deepspeedai/DeepSpeed deepspeed/runtime/pipe/engine.py, Lightning-AI/litgpt
litgpt/pretrain.py, pytorch/torchtune recipes, huggingface/pytorch-image-models train.py, yunjey/pytorch-tutorial, tqdm).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from sys import intern

from msgspec import Struct

from ops.fields import LOSS, STEP

NUMERAL = r"[+-]?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)"
NUMBER = re.compile(NUMERAL, re.IGNORECASE)
SCALED = re.compile(rf"({NUMERAL})([KMBT]?)", re.IGNORECASE)
SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
WORD = re.compile(
    r"((?:\b(?:loss|val|valid|validation|eval|evaluation|test) )?[A-Za-z_][\w./-]*)['\"]?"
    rf"(?:=\{{'\w+': |\s*[:=]\s*|\s+)['\"]?({NUMERAL})(?![\w.])",
    re.IGNORECASE,
)
EVALUATION = re.compile(
    r"\b(?:[Vv]al(?:id(?:at\w+)?)?|[Ee]val\w*)\b(?: DataLoader \d+)?(?:[ :|\]]+(?!train)[a-z]+){0,2}"
    r"(?:\W*\d+%\|[^|]*\|)?\W*$"
)
"""What stands before the step of an evaluation: `validate step: 100` of torchtitan, `eval metrics after step: 5` of
MaxText, `Validation DataLoader 0:  10%|#  | 1/10 [` of Lightning. Its loss is none of the training's."""


class Progress(Struct, frozen=True):
    """What one line says. `step` None: it does not tell; `loss` None: it has none (a header, or skipped steps)."""

    step: int | None
    total: int | None
    fields: Mapping[str, float]
    elapsed: str = ""

    @property
    def loss(self) -> float | None:
        return first(self.fields, LOSS)


class Format(Struct, frozen=True):
    """`hint` is in each of its lines; `head` finds step and total; `values` reads what follows."""

    name: str
    hint: str
    head: str
    values: Callable[[str], Mapping[str, float]]
    opens: bool = False
    """A header: the loss stands in a later line."""


def first(fields: Mapping[str, float], names: tuple[str, ...]) -> float | None:
    for name in names:
        if name in fields:
            return fields[name]
    return None


def pipes(text: str) -> Mapping[str, float]:
    """`| key: value | key: value |`; a value may be `93.2K`."""
    found: dict[str, float] = {}
    for part in text.split("|"):
        key, colon, value = part.rpartition(": ")
        match = SCALED.fullmatch(value.strip()) if colon else None
        if match:
            found[intern(key.strip())] = float(match[1].replace(",", "")) * SCALE[match[2].upper()]
    return found


def words(text: str) -> Mapping[str, float]:
    """`key: value key=value 'key': 'value' key={'group': value}`; what carries a unit is left out, of two the first counts."""
    return {intern(key): float(value.replace(",", "")) for key, value in reversed(WORD.findall(text))}


def document(text: str) -> Mapping[str, float]:
    """The numbers of a JSON object, of the objects in it too; numbers may be written as strings."""
    try:
        data, _ = json.JSONDecoder().raw_decode(text[text.index("{") :])
    except ValueError:
        return {}
    flat = {**data, **{k: v for inner in data.values() if isinstance(inner, dict) for k, v in inner.items()}}
    return {k: float(v) for k, v in flat.items() if isinstance(v, str | int | float) and NUMBER.fullmatch(str(v))}


def nothing(text: str) -> Mapping[str, float]:
    return {}


_STEP = r"(?P<step>[\d,]+)"
_VALIDATION = r'.*"(?:set|split|mode)": "(?:val|eval)'
_TOTAL = r"(?P<total>[\d,]+)"
_BAR_LOSS = r"(?=[^\]]*\b(?:[Ll]oss|train_loss|train_loss_step|reduced_train_loss)=)"
FORMATS: tuple[Format, ...] = (
    Format("m4, nanotron", "iteration:", rf"iteration:\s*{_STEP}\s*/\s*{_TOTAL}\b", pipes),
    Format("NeMo", "global_step: ", rf"Training epoch \d+, iteration \d+/\d+ \|.*?global_step: {_STEP}", pipes),
    Format("Megatron, GPT-NeoX", "iteration ", rf"iteration\s+{_STEP}/\s*{_TOTAL}\s*\|", pipes),
    Format("MLPerf", ":::MLLOG", r":::MLLOG (?=\{)", document),
    Format("metaseq, fairseq", "train_inner", r"\| train_inner \| (?=\{)", document),
    Format("fairseq", "train_inner", rf"\| train_inner \| epoch (?P<epoch>\d+):\s+{_STEP} / {_TOTAL}(?= loss=)", words),
    Format("InternEvo", "step=", rf"\bstep={_STEP}[\s,|]+(?=loss=)", words),
    Format("OLMo", "[step=", rf"\[step={_STEP}(?:/{_TOTAL})?[\],]", nothing, opens=True),
    Format("Composer", "[batch=", rf"\[batch={_STEP}/{_TOTAL}\]:", nothing, opens=True),
    Format("litgpt", "iter ", rf"\biter\s+\d+ step {_STEP}(?::| \|) (?=loss )", words),
    Format("nanoGPT", "iter ", rf"\biter {_STEP}: (?=loss )", words),
    Format("llm.c", "trl:", rf"(?:^|\s)s:{_STEP} (?=trl:)", words),
    Format("torchtitan, modded-nanogpt", "step", rf"(?:^|[\s|]|\[0m)step:?\s*{_STEP}(?:\s*/\s*{_TOTAL})?(?=[\s|:,])(?!: train loss \S+ val loss )", words),
    Format("DeepSpeed", "steps: ", rf"(?:^|\W)steps: {_STEP} (?=loss: )", words),
    Format("torchtune", "|Loss: ", rf"\b\d+\|{_STEP}\|(?=Loss: )", words),
    Format("timm", "Train: ", rf"\bTrain: (?P<epoch>\d+) \[\s*{_STEP}/{_TOTAL} \(\s*\d+%\)\](?=\s+Loss: )", words),
    Format("epochs", "poch", rf"[Ee]poch\W{{0,3}}(?P<epoch>\d+)(?:/\d+)?\W{{1,4}}(?:[Ii]teration|[Ii]ter|[Bb]atch|[Ss]tep)\W{{0,2}}{_STEP}\s*/\s*{_TOTAL}\b", words),
    Format("m4's logs.jsonl", '"iteration": "', rf'^(?=\{{(?!{_VALIDATION}).*"iteration": "\s*{_STEP}/{_TOTAL}\b)', document),
    Format("JSON lines", '{"', rf'^(?=\s*\{{(?!{_VALIDATION})")', document),
    Format("Trainer", "'loss':", r"(?=\{'loss': |\{'[\w/.-]+': (?=[^{}]*'epoch': )[^{}]*'loss': )", words),
    Format("tqdm", " [", rf"(?:\b[Ee]poch (?P<epoch>\d+).*?)?\b{_STEP}/{_TOTAL} \[{_BAR_LOSS}", words),
)  # fmt: skip
LATER = re.compile(
    r"(?:train/(?:CrossEntropyLoss|CE loss)=|Train (?:loss/train/total|LanguageCrossEntropy|loss): )"
    rf"({NUMERAL})",
    re.IGNORECASE,
)
"""The loss of OLMo and Composer, lines after its header."""
BAR = re.compile(r"(\d+)/(\d+) \[")
LITERALS = (b"loss", b"Loss", b"trl:", b"[step=", b"[batch=", b"iteration ", b"iteration:", b"LanguageCrossEntropy")
"""What a progress line contains."""


@cache
def _head(index: int) -> re.Pattern[str]:
    return re.compile(FORMATS[index].head)


def read_line(text: str, weakest: int = len(FORMATS)) -> tuple[int, Progress] | None:
    """What a line says in the first format that fits, and which that is. Formats after `weakest` are not tried."""
    for index, form in enumerate(FORMATS[: weakest + 1]):
        if form.hint in text and (match := _head(index).search(text)):
            if form.values is words and EVALUATION.search(text, max(0, match.start() - 80), match.start()):
                return None
            if found := _read(form, match, text):
                return index, found
    return None


def _read(form: Format, match: re.Match[str], text: str) -> Progress | None:
    groups = match.groupdict()
    step, total = (_whole(groups.get(name)) for name in ("step", "total"))
    rest = text[match.end() :]
    # Two writers' lines glued: the second one's values are not the first one's.
    glued = rest.find("iteration:") if form.hint == "iteration:" else -1
    rest = rest if glued < 0 else rest[:glued]
    fields = form.values(rest)
    if form.opens:
        return Progress(step, total, {})
    if form.values is document and step is None:
        step = next((int(fields[k]) for k in STEP if math.isfinite(fields.get(k, math.nan))), None)
        if step is None:
            return None
    if math.isfinite(updates := fields.get("num_updates", math.nan)):
        step, total = int(updates), None
    elif "epoch" in groups and groups["epoch"] and total:
        step, total = int(groups["epoch"]) * total + (step or 0), None if form.name == "epochs" else total
    found = Progress(step, total, fields, _elapsed(rest))
    if found.loss is None and "skipped iterations" not in rest:
        return None
    return found


def _whole(text: str | None) -> int | None:
    return int(text.replace(",", "")) if text else None


def _elapsed(rest: str) -> str:
    at = rest.find("elapsed time: ")
    return rest[at + 14 :].partition("|")[0].strip() if at >= 0 else ""
