"""How trainers print their progress: one format a framework, recognised by itself.

Formats are ordered: one that names the trainer's step is trusted more than a progress bar. Sources: the trainers'
own code and logs in public repositories (huggingface/smollm, NVIDIA/Megatron-LM, EleutherAI/gpt-neox,
huggingface/nanotron, huggingface/transformers, pytorch/torchtitan, allenai/OLMo, mosaicml/llm-foundry,
karpathy/nanoGPT, karpathy/llm.c, InternLM/InternEvo, NVIDIA/NeMo, facebookresearch/metaseq, facebookresearch/fairseq
fairseq/logging/progress_bar.py, deepspeedai/DeepSpeed deepspeed/runtime/pipe/engine.py, Lightning-AI/litgpt
litgpt/pretrain.py, pytorch/torchtune recipes, huggingface/pytorch-image-models train.py, yunjey/pytorch-tutorial, tqdm,
NVIDIA/dllogger, facebookresearch/detectron2, open-mmlab/mmengine, google/CommonLoopUtils clu/metric_writers, k2-fsa/icefall,
stanford-crfm/levanter, PaddlePaddle, mlfoundations/open_clip, deepspeedai/DeepSpeedExamples, huggingface/trl). Real lines of
each: tests/test_formats.py.
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
    rf"(?:=\{{'\w+': |\s*[:=]\s*|\s+)(?:['\"]|tensor\()?({NUMERAL})(?![\w.])",
    re.IGNORECASE,
)
EVALUATION = re.compile(
    r"\b(?:[Vv]al(?:id(?:at\w+)?)?|VAL|[Ee]val\w*|EVAL|Test)\b(?: DataLoader \d+)?(?:[ :|\]]+(?!train)[a-z]+){0,2}"
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
    epoch: int | None = None
    """Where `step` may be counted from it."""

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
    if isinstance(key := data.get("key"), str):  # MLPerf's
        flat[key] = data.get("value")
    if isinstance(step := data.get("step"), list) and len(step) > 1:  # DLLogger's: of an epoch, or of all it has fewer
        flat["epoch"], flat["step"] = step[0], step[-1]
    return {k: float(v) for k, v in flat.items() if isinstance(v, str | int | float) and NUMBER.fullmatch(str(v))}


def nothing(text: str) -> Mapping[str, float]:
    return {}


_STEP = r"(?P<step>[\d,]+)"
_VALIDATION = r'.*"(?:set|split|mode)": "(?:val|eval)'
_TOTAL = r"(?P<total>[\d,]+)"
_BAR_LOSS = r"(?=[^\]]*\b(?:[Ll]oss|train_loss|train_loss_step|reduced_train_loss|gpt_loss|policy_loss)=)"
FORMATS: tuple[Format, ...] = (
    Format("m4, nanotron", "iteration:", rf"iteration:\s*{_STEP}\s*/\s*{_TOTAL}\b", pipes),
    Format("NeMo", "global_step: ", rf"Training epoch \d+, iteration \d+/\d+ \|.*?global_step: {_STEP}", pipes),
    Format("Megatron, GPT-NeoX", "iteration ", rf"iteration\s+{_STEP}/\s*{_TOTAL}\s*\|", pipes),
    Format("MLPerf", ":::MLLOG", r":::MLLOG (?=\{)", document),
    Format("DLLogger", "DLLL ", r"DLLL (?=\{)", document),
    Format("DLLogger", "Training Iteration: ", rf"DLL .*?\bTraining Epoch: (?P<epoch>\d+) Training Iteration: {_STEP}(?=\s)", words),
    Format("metaseq, fairseq", "train_inner", r"\| train_inner \| (?=\{)", document),
    Format("fairseq", "| epoch ", rf"\| epoch (?P<epoch>\d+):?\s+{_STEP} / {_TOTAL}(?= loss=)", words),
    Format("InternEvo", "step=", rf"\bstep={_STEP}[\s,|]+(?=loss=)", words),
    Format("OLMo", "[step=", rf"\[step={_STEP}(?:/{_TOTAL})?[\],]", nothing, opens=True),
    Format("Composer", "[batch=", rf"\[batch={_STEP}/{_TOTAL}\]:", nothing, opens=True),
    Format("litgpt", "iter ", rf"\biter\s+\d+ step {_STEP}(?::| \|) (?=loss )", words),
    Format("nanoGPT", "iter ", rf"\biter {_STEP}: (?=loss )", words),
    Format("llm.c", "trl:", rf"(?:^|\s)s:{_STEP} (?=trl:)", words),
    Format("DeepSpeed-Chat", "poch: ", rf"[Ee]poch: (?P<epoch>\d+)(?:, | ?\| ?)[Ss]tep: {_STEP}(?:, Rank: 0,| ?\| ?(?:PPO Epoch|ppo_ep): \d+)", words),
    Format("torchtitan, modded-nanogpt", "tep", rf"(?:^|[\s|]|\[0m)[Ss]tep:?\s*{_STEP}(?:\s*/\s*{_TOTAL})?(?=[\s|:,])(?!: train loss \S+ val loss |,? Rank: [1-9])", words),
    Format("DeepSpeed", "steps: ", rf"(?:^|\W)steps: {_STEP} (?=loss: )", words),
    Format("torchtune", "|Loss: ", rf"\b\d+\|{_STEP}\|(?=Loss: )", words),
    Format("detectron2", "iter: ", rf"\biter: {_STEP}\s+(?=total_loss: )", words),
    Format("mmengine", "(train) ", rf"\b(?:Iter|Epoch)\(train\)\s+(?:\[(?P<epoch>\d+)\])?\[\s*{_STEP}/{_TOTAL}\]", words),
    Format("clu", "] ", rf"(?:\] |absl:)\[{_STEP}\] (?:collection=train )?(?=[\w/.-]+=[\d.])", words),
    Format("icefall", "tot_loss[", rf"\bEpoch (?P<epoch>\d+), batch {_STEP}, (?=loss\[)", words),
    Format("levanter", "Progress on:train ", r"Progress on:train (?P<step>[\d.]+[kM]?)it/(?P<total>[\d.]+[kM]?)it .*?(?=elapsed:)", words),
    Format("PaddleOCR", "global_step: ", rf"\bglobal_step: {_STEP}(?=, )", words),
    Format("PaddleSeg", "[TRAIN] epoch: ", rf"\[TRAIN\] epoch: \d+, iter: {_STEP}/{_TOTAL}\b", words),
    Format("samples of an epoch", "Train Epoch: ", rf"\bTrain Epoch: (?P<epoch>\d+) \[\s*{_STEP}/{_TOTAL} \(", words),
    Format("batches of an epoch", "poch: [", rf"\b[Ee]poch: \[(?P<epoch>\d+)\]\s*\[\s*{_STEP}/{_TOTAL}\]", words),
    Format("timm", "Train: ", rf"\bTrain: (?P<epoch>\d+) \[\s*{_STEP}/{_TOTAL} \(\s*\d+%\)\](?=\s+Loss: )", words),
    Format("epochs", "poch", rf"[Ee]poch\W{{0,3}}(?P<epoch>\d+)(?:/\d+)?\W{{1,4}}(?:[Ii]teration|[Ii]ter|[Bb]atch|[Ss]tep)\W{{0,2}}{_STEP}\s*/\s*{_TOTAL}\b", words),
    Format("m4's logs.jsonl", '"iteration": "', rf'^(?=\{{(?!{_VALIDATION}).*"iteration": "\s*{_STEP}/{_TOTAL}\b)', document),
    Format("JSON lines", '{"', rf'^(?=\s*\{{(?!{_VALIDATION})")', document),
    Format("TRL's PPO", "'loss/policy_avg':", r"(?=\{'eps': )", words),
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
SWIFT = re.compile(r"'global_step/max_steps': '(\d+)/(\d+)'")
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
        step, total = _finite(fields, STEP), _finite(fields, ("total_steps",))
        if step is None:
            return None
    elif step is None:
        step, total = _told(text, match.start(), fields)
    epoch = int(groups["epoch"]) if groups.get("epoch") else None
    if (updates := _finite(fields, ("num_updates",))) is not None:
        step, total, epoch = updates, None, None
    elif epoch is not None and total:
        step, total, epoch = epoch * total + (step or 0), None if epoch or form.name == "epochs" else total, None
    elif form.name == "DLLogger" and epoch is None:
        epoch = _finite(fields, ("epoch",))
    found = Progress(step, total, fields, _elapsed(rest), epoch)
    if found.loss is None and "skipped iterations" not in rest:
        return None
    return found


def _told(text: str, at: int, fields: Mapping[str, float]) -> tuple[int | None, int | None]:
    """Step and total that stand among the fields of a Trainer's row, or in the bar before it."""
    if found := SWIFT.search(text, at) or next(BAR.finditer(text, 0, at), None):
        return int(found[1]), int(found[2])
    return _finite(fields, ("global_step",)), None


def _finite(fields: Mapping[str, float], names: tuple[str, ...]) -> int | None:
    return next((int(fields[name]) for name in names if math.isfinite(fields.get(name, math.nan))), None)


def _whole(text: str | None) -> int | None:
    if not text:
        return None
    number = text.replace(",", "")
    return round(float(number[:-1]) * SCALE[number[-1].upper()]) if number[-1].isalpha() else int(float(number))


def _elapsed(rest: str) -> str:
    """`elapsed time: 19:29:30 |`, and levanter's `elapsed:17:46`."""
    at = rest.find("elapsed time: ")
    if at >= 0:
        return rest[at + 14 :].partition("|")[0].strip()
    found = rest.removeprefix("elapsed:").split(" ", 1)[0] if rest.startswith("elapsed:") else ""
    return f"0:{found}" if found.count(":") == 1 else found
