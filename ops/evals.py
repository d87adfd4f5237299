"""The evaluations file: one JSON a line, written by many jobs, sometimes torn, Latin-1 beside UTF-8.

A line's bytes are never changed: it is kept or not. A line whose step cannot be told is kept, and reported.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ops.model import M4, EvalLine, Evals, Layout, Unknown

_NONE = re.compile(r"(?!)()")


def read(path: Path | None, layout: Layout = M4) -> Evals | Unknown:
    """Every line of the evaluations file, with the step of the checkpoint it belongs to."""
    if path is None:
        return Unknown('no evaluations file found; m4ops.toml can name one: evals = "…"')
    try:
        content, archives = path.read_bytes(), _archives(path)
    except OSError as error:
        return Unknown(f"{path}: {error.strerror}")
    import hashlib

    name = names(layout)
    parsed = tuple(parse(n, raw, name) for n, raw in enumerate(lines_of(content), 1))
    return Evals(path, "sha256:" + hashlib.sha256(content).hexdigest(), parsed, archives)


def lines_of(content: bytes) -> list[bytes]:
    """Lines with their `\\n`; only `\\n` ends a line (a torn JSON string may hold `\\r` or U+0085)."""
    parts = content.split(b"\n")
    return [p + b"\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def names(layout: Layout) -> re.Pattern[str]:
    """How the path of a model ends that is a checkpoint of this layout, or lies in one; the group is its N.

    No path is a checkpoint's where the layout's names are bare numbers, or say none.
    """
    called = re.escape(layout.pattern).replace("N", r"0*(\d+)")
    if layout.pattern == "N" or " " in layout.pattern:
        return _NONE
    if "=" in layout.pattern:  # a file, whose name says more than the step
        called = rf"[^/]*?{called.replace('=', '=?')}(?!\d)[^/]*"
    return re.compile(rf"/{called}(?:/[^/]+)?/?$")


def parse(number: int, raw: bytes, name: re.Pattern[str]) -> EvalLine:
    """One line. The step is that of the checkpoint which `model_name_or_path` names."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        text = raw.decode("latin-1")
    if not text.strip():
        return EvalLine(number, None, problem="empty")
    try:
        data = json.loads(text)
    except ValueError:
        return EvalLine(number, None, problem="torn: no JSON")
    if not isinstance(data, dict):
        return EvalLine(number, None, problem="foreign: no JSON object")
    match = name.search(str(data.get("model_name_or_path", "")))
    params = data.get("in_context_params")
    shots = params.get("num_shots") if isinstance(params, dict) else None
    return EvalLine(
        number,
        int(match.group(1)) if match else None,
        str(data.get("task", "")),
        str(data.get("score", "")),
        shots if isinstance(shots, int) else None,
        "" if match else "foreign: no step in model_name_or_path",
    )


def _archives(path: Path) -> tuple[int, ...]:
    """The K of each archive of this very file: another run's name may begin alike."""
    name = re.compile(re.escape(path.name.removesuffix(".jsonl")) + r"_archive_exp_(\d+)\.jsonl")
    found = (name.fullmatch(p.name) for p in path.parent.iterdir())
    return tuple(sorted(int(m.group(1)) for m in found if m))
