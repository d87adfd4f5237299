"""The loss in the terminal: the living branch as a line of braille dots, discarded branches as `·`.

The range of the vertical axis is robust (Tukey's outer fences around the living branch), so that a branch
that diverged to 1e6 does not press everything else into one line; what lies beyond is marked at the edge.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from ops.logs.progress import Branch, split_branches
from ops.model import Sample
from ops.views import words
from ops.views.words import paint

DISCARDED = "·"
ABOVE = "▲"
BELOW = "▼"
NAN = "×"
RANGES_SHOWN = 6
FENCE = 3.0
"""How many interquartile ranges beyond the quartiles still belong to the picture."""
STRETCH = 3.0
"""A range so many times that of the fences still shows what is within them."""
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of the dots of a braille cell, by row and column (Unicode, Braille Patterns, U+2800)."""
_PLAIN, _DISCARDED, _MARK = 0, 1, 2

Point = tuple[int, float]


class Curves(Struct, frozen=True):
    """What is drawn: runs of (step, value), living and discarded, in the order of the log."""

    live: tuple[tuple[Point, ...], ...]
    discarded: tuple[tuple[Point, ...], ...]

    @property
    def points(self) -> Iterator[Point]:
        return (p for run in (*self.live, *self.discarded) for p in run)


class Frame(Struct, frozen=True):
    """Where steps and values lie on the canvas of `columns` x `rows` cells."""

    first: int
    last: int
    low: float
    high: float
    columns: int
    rows: int

    def x(self, step: int) -> int:
        """Column of the dot grid (two dots a cell)."""
        return round((step - self.first) / max(1, self.last - self.first) * (self.columns * 2 - 1))

    def y(self, value: float) -> int:
        """Row of the dot grid (four dots a cell), from the top."""
        share = (self.high - value) / (self.high - self.low)
        return round(min(1.0, max(0.0, share)) * (self.rows * 4 - 1))

    def outside(self, value: float) -> str:
        """The mark of a value that is not within the frame; empty for one that is."""
        if math.isnan(value):
            return NAN
        return ABOVE if value > self.high else BELOW if value < self.low else ""


def plot_text(
    samples: Sequence[Sample],
    width: int = 100,
    height: int = 20,
    color: bool = False,
    field: str = "loss",
) -> str:
    """The curve of `field` (`loss`, `lr`, or a name in `Sample.fields`) over the step, in `width` x `height`
    characters, and below it the legend. Without such values it says which fields there are."""
    branches = split_branches(tuple(samples))
    curves = curves_of(branches, field)
    if not any(True for _ in curves.points):
        return _nothing(samples, field)
    frame = _frame(curves, width, height)
    lines = [paint(_title(samples, field), "bold", color), *_canvas(curves, frame, color)]
    return "\n".join([*lines, *_legend(curves, frame, branches, color)])


def curves_of(branches: Sequence[Branch], field: str = "loss") -> Curves:
    """The living and the discarded part of every branch; a discarded one begins where it left the living."""
    live, discarded = [], []
    for branch in branches:
        kept, left = _points(branch.alive, field), _points(branch.discarded, field)
        live.append(kept)
        discarded.append((*kept[-1:], *left) if left else ())
    return Curves(tuple(filter(None, live)), tuple(filter(None, discarded)))


def _points(samples: Sequence[Sample], field: str) -> tuple[Point, ...]:
    return tuple((s.step, v) for s in samples if (v := value_of(s, field)) is not None)


def value_of(sample: Sample, field: str) -> float | None:
    """The value of a field in a sample; None where the line did not have it."""
    if field == "loss":
        return sample.loss
    return sample.lr if field == "lr" else sample.fields.get(field)


def discarded_ranges(branches: Sequence[Branch]) -> list[tuple[int, int, int]]:
    """(first step, last step, step from which a later branch trained again) of each discarded part."""
    ranges = []
    for index, branch in enumerate(branches):
        if branch.discarded:
            again = min(later.samples[0].step for later in branches[index + 1 :])
            ranges.append((branch.discarded[0].step, branch.discarded[-1].step, again))
    return ranges


def _nothing(samples: Sequence[Sample], field: str) -> str:
    if not samples:
        return "nothing to plot: the log has no progress line"
    names = sorted({name for s in samples for name in s.fields} | {"loss", "lr"})
    return f"nothing to plot: no logged line has `{words.clean(field)}`; there are: {', '.join(names)}"


def _title(samples: Sequence[Sample], field: str) -> str:
    last = samples[-1]
    value = value_of(last, field)
    say = {"loss": words.loss, "lr": words.lr}.get(field, words.number)
    now = "" if value is None else f", now {say(value)}"
    return f"{words.clean(field)} over {words.count(len(samples), 'logged step')}{now} at step {last.step}"


def _frame(curves: Curves, width: int, height: int) -> Frame:
    steps = [step for step, _ in curves.points]
    low, high = _range(curves)
    gutter = max(len(_label(t, _spacing(low, high, height))) for t in _ticks(low, high, height)) + 2
    return Frame(min(steps), max(steps), low, high, max(10, width - gutter), max(4, height - 3))


def _range(curves: Curves) -> tuple[float, float]:
    """Everything, if that is not much more than the fences hold; else the living branch, if that is not;
    else what is within the fences."""
    finite = sorted(v for _, v in curves.points if math.isfinite(v))
    living = sorted(v for run in curves.live for _, v in run if math.isfinite(v))
    base = living if len(living) >= 8 else finite
    if not base:
        return 0.0, 1.0
    q1, q3 = base[len(base) // 4], base[(3 * len(base)) // 4]
    reach = FENCE * max(q3 - q1, abs(q3) * 0.02)
    inside = [v for v in finite if q1 - reach <= v <= q3 + reach]
    low, high = inside[0], inside[-1]
    for wider in (finite, base):
        if wider[-1] - wider[0] <= STRETCH * (high - low):
            low, high = wider[0], wider[-1]
            break
    pad = (high - low) * 0.04 or abs(high) * 0.05 or 1.0
    return low - pad, high + pad


def _canvas(curves: Curves, frame: Frame, color: bool) -> list[str]:
    cells = [[0] * frame.columns for _ in range(frame.rows)]
    marks: dict[tuple[int, int], tuple[str, int]] = {}
    for run in curves.discarded:
        for x, y in _strokes(run, frame):
            marks[(y // 4, x // 2)] = (DISCARDED, _DISCARDED)
        marks |= _outliers(run[1:] if len(run) > 1 else run, frame, _DISCARDED)
    for run in curves.live:
        for x, y in _strokes(run, frame):
            cells[y // 4][x // 2] |= DOTS[y % 4][x % 2]
            marks.pop((y // 4, x // 2), None)
    for run in curves.live:
        marks |= _outliers(run, frame, _MARK)
    body = [_line(cells[r], {c: m for (row, c), m in marks.items() if row == r}, color) for r in range(frame.rows)]
    labels = _value_labels(frame)
    gutter = max(map(len, labels.values())) + 2
    rows = [
        (f"{labels[r]:>{gutter - 2}} ┤" if r in labels else " " * (gutter - 1) + "│") + text
        for r, text in enumerate(body)
    ]
    return [*rows, *_step_axis(frame, gutter)]


def _strokes(run: Sequence[Point], frame: Frame) -> Iterator[tuple[int, int]]:
    """The dots of the line through the points; a value outside or not finite interrupts it."""
    before: tuple[int, int] | None = None
    for step, value in run:
        if not math.isfinite(value) or frame.outside(value):
            before = None
            continue
        here = (frame.x(step), frame.y(value))
        yield from _segment(before or here, here)
        before = here


def _segment(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    reach = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    for i in range(reach + 1):
        yield (
            start[0] + round(i * (end[0] - start[0]) / reach),
            start[1] + round(i * (end[1] - start[1]) / reach),
        )


def _outliers(run: Iterable[Point], frame: Frame, kind: int) -> dict[tuple[int, int], tuple[str, int]]:
    marks: dict[tuple[int, int], tuple[str, int]] = {}
    for step, value in run:
        if mark := frame.outside(value):
            cell = (frame.rows - 1 if mark == BELOW else 0, frame.x(step) // 2)
            if marks.get(cell, ("",))[0] != NAN:
                marks[cell] = (mark, kind)
    return marks


def _line(cells: Sequence[int], marks: dict[int, tuple[str, int]], color: bool) -> str:
    """One row; neighbours of one style share one colour sequence."""
    parts: list[tuple[str, str]] = []
    for column, bits in enumerate(cells):
        glyph, kind = marks.get(column, (chr(0x2800 + bits) if bits else " ", _PLAIN))
        style = "yellow" if kind == _DISCARDED else "bad" if kind == _MARK else "cyan" if bits else ""
        if glyph == " " and parts and parts[-1][1] != "bad":
            style = parts[-1][1]  # a blank needs no colour of its own, and over a slow line none is sent for it
        if parts and parts[-1][1] == style:
            parts[-1] = (parts[-1][0] + glyph, style)
        else:
            parts.append((glyph, style))
    parts[-1:] = [(text.rstrip(), style) for text, style in parts[-1:]]
    return "".join(paint(text, style, color) for text, style in parts)


def _value_labels(frame: Frame) -> dict[int, str]:
    spacing = _spacing(frame.low, frame.high, frame.rows)
    return {frame.y(t) // 4: _label(t, spacing) for t in _ticks(frame.low, frame.high, frame.rows)}


def _step_axis(frame: Frame, gutter: int) -> list[str]:
    spacing = max(1, round(_nice((frame.last - frame.first) / max(2, frame.columns // 12))))
    ticks = range(-(-frame.first // spacing) * spacing, frame.last + 1, spacing)
    axis, labels = ["─"] * frame.columns, [" "] * (frame.columns + gutter + 12)
    free = 0
    for tick in ticks:
        column = frame.x(tick) // 2
        axis[column] = "┬"
        start = max(0, gutter + column - len(str(tick)) // 2)
        if start >= free:
            labels[start : start + len(str(tick))] = str(tick)
            free = start + len(str(tick)) + 1
    return [" " * (gutter - 1) + "└" + "".join(axis), "".join(labels).rstrip()]


def _nice(raw: float) -> float:
    """The next of 1, 2, 5 x 10^k."""
    if raw <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * 0.999999)


def _spacing(low: float, high: float, rows: int) -> float:
    return _nice((high - low) / max(2, rows // 3))


def _ticks(low: float, high: float, rows: int) -> list[float]:
    spacing = _spacing(low, high, rows)
    first = math.ceil(low / spacing)
    return [i * spacing for i in range(first, math.floor(high / spacing) + 1)]


def _label(value: float, spacing: float) -> str:
    if not math.isfinite(value):
        return words.loss(value)
    if abs(value) >= 1e5 or 0 < spacing < 1e-4:
        return f"{value:.2e}"
    return f"{value:.{max(0, -math.floor(math.log10(spacing)))}f}" if spacing < 1 else f"{value:.0f}"


def _legend(curves: Curves, frame: Frame, branches: Sequence[Branch], color: bool) -> list[str]:
    lines = []
    ranges = discarded_ranges(branches)
    for first, last, again in ranges[-RANGES_SHOWN:]:
        steps = f"steps {first}-{last}" if last > first else f"step {first}"
        lines.append(f"{paint(DISCARDED, 'yellow', color)} discarded: {steps} (trained again from step {again})")
    if len(ranges) > RANGES_SHOWN:
        lines.append(f"{paint(DISCARDED, 'yellow', color)} and {len(ranges) - RANGES_SHOWN} discarded before (--json)")
    values = [(step, v) for step, v in curves.points]
    nans = sorted({step for step, v in values if math.isnan(v)})
    if nans:
        lines.append(f"{NAN} NaN at {_some(nans)}")
    for mark, told, beyond in (
        (ABOVE, "above", [v for _, v in values if v > frame.high]),
        (BELOW, "below", [v for _, v in values if v < frame.low]),
    ):
        if beyond:
            worst = max(beyond) if mark == ABOVE else min(beyond)
            lines.append(f"{mark} {told} the picture, as far as {words.number(worst)}")
    return lines


def _some(steps: Sequence[int]) -> str:
    shown = ", ".join(map(str, steps[:5]))
    return ("step " if len(steps) == 1 else "steps ") + shown + (f", … ({len(steps)} in all)" if len(steps) > 5 else "")
