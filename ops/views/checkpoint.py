"""One checkpoint looked into: what it is, and what is wrong with it; as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from ops.checkpoints.about import About
from ops.checkpoints.verify import Fault
from ops.model import LrSite, Severity, Unknown
from ops.views import words
from ops.views.words import clean, paint

LARGEST = 6
"""Files named by size."""


def about_text(found: About, color: bool = False, width: int = 100) -> str:
    """What a checkpoint is, a line a fact, and every LR field with its value."""
    rows = [
        ("", clean(str(found.path))),
        ("layout", found.layout),
        ("saved by", _saved_by(found)),
        ("step", _steps(found.steps)),
        ("scheduler", "; ".join(found.schedulers) or "UNKNOWN: no scheduler's state"),
        ("optimizer", "; ".join(found.optimizers) or "UNKNOWN: no optimizer's state"),
        ("weights", _weights(found)),
        ("LR", _current(found.lr)),
        ("size", _sizes(found.sizes)),
    ]
    lines = [paint(rows[0][1], "bold", color)]
    for name, text in rows[1:]:
        first, *more = words.folded(clean(text), width - 12, "") or [""]
        lines += [f"{name:<11} {paint(first, 'magenta', color and first.startswith('UNKNOWN'))}"]
        lines += [" " * 12 + line for line in more]
    lines += [paint(f"cannot be read: {clean(reason)}", "bad", color) for reason in found.unread]
    if not isinstance(found.lr, Unknown):
        head, *table = words.table([("LR FIELD", "VALUE", "STORED AS", "IN"), *_lr_rows(found.lr)])
        lines += ["", paint(head, "bold", color), *table]
    return "\n".join(lines)


def about_json(found: About) -> dict[str, Any]:
    """`m4ops.inspect/1`: one checkpoint.

    - `schema`; `path`; `layout`; `engine`; `world`: ranks that saved it; `writers`; `schedulers`, `optimizers`: kinds, told
      from the fields they save; `unread`: files that cannot be read, and why
    - `steps`: list of {`by`: who says so, `step`}; `weights`: list of {`part`, `dtype`, `elements`}
    - `lr`: list of {`file`, `label`, `value`, `kind`: how it is stored, `offset` in the file}
    - `files`: list of {`file`, `size_bytes`}
    """
    return {
        "schema": "m4ops.inspect/1",
        "path": found.path,
        "layout": found.layout,
        "engine": found.engine,
        "world": found.world,
        "writers": list(found.writers),
        "schedulers": list(found.schedulers),
        "optimizers": list(found.optimizers),
        "steps": [{"by": by, "step": step} for by, step in found.steps],
        "weights": to_builtins(found.weights),
        "lr": found.lr if isinstance(found.lr, Unknown) else to_builtins(found.lr),
        "files": [{"file": name, "size_bytes": size} for name, size in found.sizes],
        "unread": list(found.unread),
    }


def severity(faults: Sequence[Fault]) -> Severity:
    """OK without faults, WARNING where all may be meant, else CRITICAL."""
    if not faults:
        return Severity.OK
    return Severity.CRITICAL if any(f.sure for f in faults) else Severity.WARNING


def faults_text(checked: Mapping[Path, Sequence[Fault]], deep: bool, color: bool = False, width: int = 100) -> str:
    """One line a checkpoint, and below it what is wrong with it."""
    lines = []
    for path, faults in checked.items():
        worst = severity(faults)
        said = {Severity.OK: "sound", Severity.WARNING: "suspect"}.get(worst, "DAMAGED")
        extra = " to the last byte of states and weights" if deep and not faults else ""
        lines.append(f"{path.name:<16} {paint(said, words.SEVERITY_STYLE[worst], color)}{extra}")
        for fault in faults:
            told = f"{fault.file}: {fault.what}" if fault.file else fault.what
            style = "bad" if fault.sure else "yellow"
            lines += ["    " + paint(line, style, color) for line in words.folded(clean(told), width - 4, "  ")]
    return "\n".join(lines)


def faults_json(checked: Mapping[Path, Sequence[Fault]], deep: bool) -> dict[str, Any]:
    """`m4ops.verify-checkpoint/1`: what is wrong with each checkpoint looked at.

    - `schema`; `deep`: whether every byte was read; `verdict`, `exit_code`: the worst checkpoint's
    - `checkpoints`: list of {`path`, `verdict`, `faults`: list of {`file`: empty for more than one, `what`,
      `sure`: false where it may be meant, `resumed`: false where a resume does not need that file}}
    """
    worst = max((severity(f) for f in checked.values()), default=Severity.UNKNOWN)
    return {
        "schema": "m4ops.verify-checkpoint/1",
        "deep": deep,
        "verdict": worst.name,
        "exit_code": int(worst),
        "checkpoints": [
            {"path": path, "verdict": severity(faults).name, "faults": to_builtins(faults)}
            for path, faults in checked.items()
        ],
    }


def _saved_by(found: About) -> str:
    if isinstance(found.world, Unknown):
        ranks = f"ranks UNKNOWN: {found.world.reason}"
    else:
        ranks = words.count(found.world, "rank")
    return f"{found.engine}, {ranks} ({', '.join(found.writers)})"


def _steps(steps: Sequence[tuple[str, int]]) -> str:
    by: dict[int, list[str]] = {}
    for who, step in steps:
        by.setdefault(step, []).append(who)
    return "; ".join(f"{step} ({', '.join(who)})" for step, who in by.items()) or "UNKNOWN: nothing says it"


def _weights(found: About) -> str:
    parts = [f"{w.part}: {w.elements:,} {w.dtype}" if w.elements else f"{w.part}: {w.dtype}" for w in found.weights]
    return "; ".join(parts) or "UNKNOWN: none found"


def _current(sites: tuple[LrSite, ...] | Unknown) -> str:
    if isinstance(sites, Unknown):
        return words.unknown(sites)
    now: dict[str, float] = {}
    for site in sites:
        if site.label.endswith("].lr"):
            now.setdefault(site.label.rpartition("[")[2].partition("]")[0], site.value)
    many = len(now) > 1
    groups = sorted(now.items(), key=lambda group: (len(group[0]), group[0]))  # they may lie in several files
    return ", ".join(words.lr(v) + (f" (group {k})" if many else "") for k, v in groups) or "UNKNOWN: no optimizer"


def _lr_rows(sites: Sequence[LrSite]) -> list[tuple[str, ...]]:
    """One row a field and value, however many ranks hold it."""
    rows: dict[tuple[str, float, str], list[str]] = {}
    for site in sites:
        rows.setdefault((site.label, site.value, site.kind), []).append(site.file)
    return [
        (
            label,
            f"{value:.6g}",
            kind,
            files[0].rpartition("/")[2] + (f" and {len(files) - 1} more" if files[1:] else ""),
        )
        for (label, value, kind), files in rows.items()
    ]


def _sizes(sizes: Sequence[tuple[str, int]]) -> str:
    largest = sorted(sizes, key=lambda s: -s[1])[:LARGEST]
    short = [name.rpartition("/")[2] for name, _ in sizes]
    named = ", ".join(
        f"{s if short.count(s := n.rpartition('/')[2]) == 1 else n} {words.size(size)}" for n, size in largest
    )
    return f"{words.size(sum(s for _, s in sizes))} in {words.count(len(sizes), 'file')}: {named}"
