"""The evaluations file: one JSON a line, written by many jobs, sometimes torn, Latin-1 beside UTF-8.

A line's bytes are never changed: it is kept or not. A line whose step cannot be told is kept, and reported.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from ops.model import EvalLine, Evals, Unknown

_STEP = re.compile(r"/opt_step-(\d+)(?:/unwrapped_model)?/?$")


def read(path: Path | None) -> Evals | Unknown:
    """Every line of the evaluations file, with the step of the checkpoint it belongs to."""
    if path is None:
        return Unknown('no evaluations file found; m4ops.toml can name one: evals = "…"')
    try:
        content, archives = path.read_bytes(), _archives(path)
    except OSError as error:
        return Unknown(f"{path}: {error.strerror}")
    parsed = tuple(parse(n, raw) for n, raw in enumerate(lines_of(content), 1))
    return Evals(path, "sha256:" + hashlib.sha256(content).hexdigest(), parsed, archives)


def lines_of(content: bytes) -> list[bytes]:
    """Lines with their `\\n`; only `\\n` ends a line (a torn JSON string may hold `\\r` or U+0085)."""
    parts = content.split(b"\n")
    return [p + b"\n" for p in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


def parse(number: int, raw: bytes) -> EvalLine:
    """One line. The step is the N of `…/opt_step-N/unwrapped_model`."""
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
    match = _STEP.search(str(data.get("model_name_or_path", "")))
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
