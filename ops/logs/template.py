"""Progress lines that no format knows: as `progress` in m4ops.toml says them (`step {step} | loss: {loss}`), and a CSV's."""

from __future__ import annotations

import math
import re
from functools import cache

from msgspec import Struct

from ops.errors import BadInput
from ops.fields import LOSS, STEP
from ops.logs.formats import NUMERAL, SCALE, SCALED, Progress, first

_FIELD = re.compile(r"\{(\w*)\}")
_EXAMPLE = 'for instance: progress = "step {step}/{total} | loss: {loss} | lr: {lr} | {} | gnorm {grad_norm}"'


class Columns(Struct, frozen=True):
    """The columns of a CSV, as its first line names them: each of its lines is a progress line."""

    names: tuple[str, ...]
    literal: bytes = b","

    def read(self, text: str) -> Progress | None:
        """What a row says, or None if it has no step or no loss: a validation's, or the first line itself."""
        cells = zip(self.names, cells_of(text), strict=False)
        fields = {name: value for name, cell in cells if (value := _cell(cell)) is not None}
        step, loss = (first(fields, names) for names in (STEP, LOSS))
        if step is None or loss is None or not math.isfinite(step):
            return None
        return Progress(int(step), None, {**fields, "loss": loss})


def columns(head: bytes) -> Columns:
    """Those that a CSV's first line names."""
    return Columns(tuple(name.strip() for name in cells_of(head.decode("utf-8-sig", "replace").strip("\r\n"))))


def cells_of(text: str) -> list[str]:
    """The cells of one line of a CSV."""
    import csv

    return next(csv.reader([text]), [])


def _cell(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
