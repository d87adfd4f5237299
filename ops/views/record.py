"""A terminal recording as a picture: commands and their output in one SVG that needs nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape, unescape

from ops.views.plot import DOTS

FONTS = "'DejaVu Sans Mono', 'Fira Code', Menlo, Consolas, 'Liberation Mono', monospace"
_FONT_FACE = re.compile(r"@font-face\s*\{[^}]*\}\s*")
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
_FONT = re.compile(r"font-family:\s*(?:Fira Code, monospace|arial)")
_TEXT = re.compile(
    r'<text class="([^"]+)" x="([^"]+)" y="([^"]+)" textLength="[^"]+" (clip-path="[^"]+")>([^<]*)</text>'
)
_PHRASE = re.compile("[\u2800-\u28ff]+|[^\\s\u2800-\u28ff]+(?:\u00a0[^\\s\u2800-\u28ff]+)*")
"""A run of braille, or words with single blanks between them."""
_CELL, _LINE, _SIZE = 12.2, 24.4, 20
"""Width and height of a character cell, and size of the font, as rich draws them."""
_OTHER_ESCAPES = re.compile(r"\x1b(?!\[[0-9;]*m)(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def svg(transcript: Sequence[tuple[str, str]], title: str, width: int = 110) -> str:
    """The transcript as the text of an SVG file: each command behind a prompt, below it its coloured output.

    An empty command gives output without a prompt. `width` is in characters; longer lines are folded. No web
    font and no other address is in it, so it looks the same offline.
    """
    import io

    from rich.console import Console
    from rich.text import Text

    console = Console(
        record=True,
        width=width,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        legacy_windows=False,
        highlight=False,
        _environ={},
    )
    for command, output in transcript:
        if command:
            console.print(Text.assemble(("$ ", "bold green"), (screen(command), "bold")))
        if shown := screen(output).rstrip("\n"):
            console.print(Text.from_ansi(shown), overflow="fold")
        console.print()
    return _TEXT.sub(_placed, _offline(console.export_svg(title=title)))


def screen(output: str) -> str:
    """What a terminal would show in the end: of a line overwritten by carriage returns the last state, no
    cursor movements, no characters that a terminal does not print; colours stay."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in output.split("\n"))
    return _CONTROLS.sub("", _OTHER_ESCAPES.sub("", "\n".join(lines)))


def _offline(picture: str) -> str:
    return _FONT.sub(f"font-family: {FONTS}", _COMMENT.sub("", _FONT_FACE.sub("", picture)))


def _placed(match: re.Match[str]) -> str:
    """A line's text in pieces, each at its own place: columns stay columns whatever font and viewer there are."""
    from rich.cells import cell_len

    style, left, y, clip, content = match.groups()
    text, placed = unescape(content), []
    for piece in _PHRASE.finditer(text):
        x, shown = float(left) + cell_len(text[: piece.start()]) * _CELL, piece.group()
        if "\u2800" <= shown[0] <= "\u28ff":
            placed.append(_dots(style, shown, x, float(y)))
            continue
        size = f'x="{x:g}" y="{y}" textLength="{cell_len(shown) * _CELL:g}"'
        placed.append(f'<text class="{style}" {size} {clip}>{escape(shown, quote=False)}</text>')
    return "".join(placed)


def _dots(style: str, piece: str, x: float, y: float) -> str:
    """Braille as drawn dots: many fonts lack it, or have it in another width."""
    path = "".join(
        f"M{x + (at + 0.25 + 0.5 * column) * _CELL - 1.6:.1f} {y - _SIZE + (0.2 + 0.25 * row) * _LINE - 1.6:.1f}h3.2v3.2h-3.2z"
        for at, char in enumerate(piece)
        for row, column in _raised(ord(char) - 0x2800)
    )
    return f'<path class="{style}" d="{path}"/>'


def _raised(bits: int) -> Iterator[tuple[int, int]]:
    """(row, column) of each raised dot of a braille cell."""
    return ((r, c) for r, pair in enumerate(DOTS) for c, bit in enumerate(pair) if bits & bit)
