"""Where the value of a top-level key lies in JSON source text, so that it can be replaced and every other byte stays."""

from __future__ import annotations

import json
import re

from ops.errors import BadInput

_SPACE = re.compile(r"[ \t\n\r]*")


def value_span(text: str, key: str) -> tuple[int, int]:
    """Start and end of the value of `key` in a JSON object's text. Raises BadInput if there is none, or two."""
    decoder = json.JSONDecoder()
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        raise BadInput("not a JSON object")
    at, found = _skip(text, at + 1), []
    try:
        while text[at] != "}":
            name, at = decoder.raw_decode(text, at)
            at = _skip(text, at)
            start = _skip(text, at + 1)
            _, end = decoder.raw_decode(text, start)
            if name == key:
                found.append((start, end))
            at = _skip(text, end)
            at = _skip(text, at + 1) if text[at] == "," else at
    except (ValueError, IndexError) as error:
        raise BadInput(f"torn JSON: {error}") from None
    if len(found) != 1:
        raise BadInput(f"`{key}` stands {len(found)} times in the JSON object, not once")
    return found[0]


def value(text: str, key: str) -> str:
    """The source text of the value of a top-level key."""
    start, end = value_span(text, key)
    return text[start:end]


def replaced(text: str, key: str, new: str) -> str:
    """The text with the value of `key` replaced by the JSON source `new`."""
    start, end = value_span(text, key)
    return text[:start] + new + text[end:]


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
