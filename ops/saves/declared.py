"""The steps that `on_save` of m4ops.toml declares, one a line:

on_save = [
  "verify",                       # or "verify deep": every byte
  "extract bf16",                 # weights into unwrapped_model/; or fp32
  "push",                         # to `store`
      "evals 0_shots: sbatch --gpus=8 evals.slurm python evaluate.py --shots 0 --model {weights}",
  "prune",                        # by `keep`
]
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from ops.errors import BadInput

KINDS = ("verify", "extract", "push", "evals", "prune")
"""In the order in which they happen."""
FORMS = ("verify", "verify deep", "extract bf16", "extract fp32", "push", "evals NAME: sbatch …", "prune")
PLACES = ("weights", "checkpoint", "step", "save_dir", "run")
"""What may stand in braces in an evaluation's command."""
_NEEDS = {"extract": ("verify",), "push": ("verify",), "evals": ("verify", "extract"), "prune": ("verify",)}
"""What must have succeeded before, where it is declared."""


class Step(Struct, frozen=True):
    """One thing that happens with every finished checkpoint."""

    kind: str
    how: str = ""
    """`deep`; `bf16` or `fp32`; the name of an evaluation."""
    command: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What tells it from the other steps."""
        return f"evals-{self.how}" if self.kind == "evals" else self.kind

    def needs(self, other: Step) -> bool:
        """Whether the other must have succeeded on the same checkpoint first."""
        return other.kind in _NEEDS.get(self.kind, ())


def steps(lines: Sequence[str]) -> tuple[Step, ...]:
    """The declared steps, in the order they were written. Raises BadInput for one that makes no sense, or its place."""
    found = tuple(_step(" ".join(line.split())) for line in lines)
    for before, after in pairwise(found):
        if KINDS.index(before.kind) > KINDS.index(after.kind):
            raise _wrong(f"`{before.kind}` stands before `{after.kind}`", f"the order is {', '.join(KINDS)}")
    if twice := [s.name for s in found if [o.name for o in found].count(s.name) > 1]:
        raise _wrong(f"`{twice[0]}` is declared twice", "give each evaluation a name of its own")
    return found


def filled(words: Sequence[str], places: dict[str, str]) -> tuple[str, ...]:
    """A command's words with `{weights}` and the others put in."""
    return tuple(re.sub(r"\{(\w+)\}", lambda m: places[m[1]], word) for word in words)


def _step(line: str) -> Step:
    kind, _, rest = line.partition(" ")
    match (kind, rest):
        case ("verify", "" | "deep") | ("extract", "bf16" | "fp32") | ("push" | "prune", ""):
            return Step(kind, rest)
        case ("extract", ""):
            return Step(kind, "bf16")
        case ("evals", said) if found := re.fullmatch(r"(\w+) ?: ?(.+)", said):
            return Step(kind, found[1], _command(found[2]))
    raise _wrong(f"`{line}` is no step", "steps: " + ", ".join(FORMS))


def _command(text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise _wrong(f"`{text}` cannot be split into words: {error}", "close the quote") from None
    if words[0] != "sbatch" or len(words) < 2:
        raise _wrong(f"`{words[0]}` is not sbatch", "evaluations are jobs: evals NAME: sbatch FLAGS SCRIPT …")
    for place in _places(words):
        if place not in PLACES:
            known = ", ".join("{" + p + "}" for p in PLACES)
            raise _wrong(f"{{{place}}} means nothing", f"there are {known}; no shell reads the command")
    return words


def _places(words: Sequence[str]) -> Iterator[str]:
    return (place for word in words for place in re.findall(r"\{(\w+)\}", word))


def _wrong(what: str, hint: str) -> BadInput:
    return BadInput(what, "on_save in m4ops.toml", hint)
