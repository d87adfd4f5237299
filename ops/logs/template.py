"""Progress lines that no format knows: as `progress` in m4ops.toml says them (`step {step} | loss: {loss}`), and a CSV's."""

from __future__ import annotations

import math
import re
from functools import cache

from msgspec import Struct

from ops.errors import BadInput
from ops.fields import LOSS, NORM, RATE, STEP
from ops.logs.formats import NUMERAL, SCALE, SCALED, Progress, first

_FIELD = re.compile(r"\{(\w*)\}")
_EXAMPLE = 'for instance: progress = "step {step}/{total} | loss: {loss} | lr: {lr} | {} | gnorm {grad_norm}"'


class Columns(Struct, frozen=True):
    """The columns of a CSV, as its first line names them: each of its lines is a progress line."""

    names: tuple[str, ...]
    literal: bytes = b","
    """What parts the cells."""

    def read(self, text: str) -> Progress | None:
        """What a row says, or None if it has no step or no loss: a validation's, or the first line itself."""
        fields = {
            name: value
            for name, cell in self.said(_cells(text, self.literal.decode())).items()
            if (value := self.number(cell)) is not None
        }
        step, loss = (first(fields, names) for names in (STEP, LOSS))
        if step is None or loss is None or not math.isfinite(step):
            return None
        return Progress(int(step), None, {**fields, "loss": loss})

    def said(self, cells: list[str]) -> dict[str, str]:
        """The cells of one line by their names."""
        return dict(zip(self.names, cells, strict=False))

    def number(self, cell: str) -> float | None:
        """What a cell says, if it is a number; where `;` parts the cells, the comma may be the decimal one."""
        try:
            return float(cell.replace(",", ".") if self.literal == b";" else cell)
        except ValueError:
            return None


def columns(head: bytes) -> Columns:
    """Those that a CSV's first line names, parted by commas, semicolons or tabs.

    The table of a wandb chart calls them `RUN - KEY`: of a single run they are called as the key is. TensorBoard's calls
    the one it shows `Value`. Capitals, spaces and what joins words do not count.
    """
    text = head.decode("utf-8-sig", "replace").strip("\r\n").removeprefix("#")
    apart = max(",;\t", key=text.count)
    names = [name.strip() for name in _cells(text, apart)]
    if names == ["Wall time", "Step", "Value"]:
        names[2] = "loss"
    keys = [name.rpartition(" - ")[2] for name in names]
    known = {*LOSS, *NORM, *RATE}
    plain = [key if key in known and keys.count(key) == 1 else name for name, key in zip(names, keys, strict=True)]
    usual = [name if name in known else USUAL.get(_joined(name), name) for name in plain]
    return Columns(
        tuple(name if usual.count(name) == 1 else own for name, own in zip(usual, plain, strict=True)), apart.encode()
    )


def _joined(name: str) -> str:
    return re.sub(r"[\s/_.-]+", "_", name.lower())


USUAL = {_joined(name): name for name in reversed((*STEP, *RATE, *NORM, *LOSS))}
"""How trainers write a name that people write in another way."""


def _cells(text: str, apart: str) -> list[str]:
    import csv

    return next(csv.reader([text], delimiter=apart), [])


class Template(Struct, frozen=True):
    """`line` finds the fields; `literal`, its longest fixed text, is in each such line."""

    line: re.Pattern[str]
    literal: bytes

    def read(self, text: str) -> Progress | None:
        """What a line says, or None if it is no progress line."""
        match = self.line.search(text)
        if match is None:
            return None
        fields = {name: _number(said) for name, said in match.groupdict().items()}
        step, total = fields.pop("step"), fields.pop("total", None)
        if not math.isfinite(step):
            return None
        return Progress(int(step), None if total is None or not math.isfinite(total) else int(total), fields)


@cache
def template(text: str, where: str = "") -> Template:
    """The template that a text (in the file `where`) says: `{name}` is a number, `{}` anything, white space any white space.

    Raises BadInput when it has no `{step}` or no `{loss}`, a name twice, or no fixed text to look for.
    """
    names = [name for name in _FIELD.findall(text) if name]
    wrong = [f"it has no `{{{name}}}`" for name in ("step", "loss") if name not in names]
    wrong += [f"`{{{name}}}` stands in it twice" for name in sorted(set(names)) if names.count(name) > 1]
    wrong += [f"`{name}` is no name" for name in names if not name.isidentifier()]
    texts = _FIELD.split(text)[::2]
    literal = max((word for part in texts for word in part.split()), key=len, default="")
    wrong += [] if literal else ["it has no fixed text"]
    if wrong:
        raise BadInput(f"`progress` is no pattern of a progress line: {', '.join(wrong)}", where, _EXAMPLE)
    line = _any_space(texts[0])
    for name, after in zip(_FIELD.split(text)[1::2], texts[1:], strict=True):
        line += (_value(name, after) if name else ".*?") + _any_space(after)
    return Template(re.compile(line), literal.encode())


def _any_space(text: str) -> str:
    return r"\s+".join(map(re.escape, re.split(r"\s+", text)))


def _value(name: str, after: str) -> str:
    """A number, whole: a letter behind it is one of the text's."""
    return rf"\s*(?P<{name}>(?i:(?:{NUMERAL})[KMBT]?))" + ("" if after[:1].isalpha() else r"(?!\w)")


def _number(said: str) -> float:
    match = SCALED.fullmatch(said)
    assert match is not None  # the line's pattern is made of it
    return float(match[1].replace(",", "")) * SCALE[match[2].upper()]
