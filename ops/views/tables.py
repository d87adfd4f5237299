"""Tables of a run's checkpoints, evaluations and changes."""

from __future__ import annotations

from collections.abc import Sequence

from ops.model import Change, Checkpoint, EvalLine, Evals, Pointer, Snapshot, Unknown
from ops.views import words
from ops.views.disk import disk_line
from ops.views.words import NO_EVALS, clean, paint, unknown

BAD_LINES_SHOWN = 10


def checkpoints_text(snapshot: Snapshot, color: bool = False, width: int = 100) -> str:
    """Every checkpoint, the newest last: whether a resume can take it, and whether the next one will."""
    found = snapshot.checkpoints
    if isinstance(found, Unknown):
        return f"checkpoints  {paint(unknown(found), 'magenta', color)}"
    found = tuple(sorted(found, key=lambda c: c.step))
    titles = ("STEP", "STATE", "LOOKED AT", "SAVED", "SIZE", "WANDB RUN", "MARKERS")
    rows = [titles, *(_checkpoint_cells(c, snapshot.now) for c in found)]
    head, *table = words.table(rows, right=(0, 4))
    lines = [paint(head, "bold", color)] if found else [f"no checkpoints in {clean(str(snapshot.run.dir))}"]
    for row, checkpoint in zip(table, found, strict=True):
        lines.append(_checkpoint_row(row, checkpoint, snapshot, color))
        for kind, names in (
            ("missing or damaged", checkpoint.problems),
            ("does not belong here", checkpoint.stray),
            ("lies there, and nothing loads it", checkpoint.idle),
            ("suspect", words.doubts(checkpoint)),
            (f"the copy in {clean(checkpoint.pushed)} is stale (m4ops push): changed since", checkpoint.stale),
        ):
            if names:
                style = "bad" if kind.startswith("missing") else "yellow"
                told = words.folded(f"{kind}: {clean('; '.join(names))}", width - 6, "  ")
                lines += ["      " + paint(line, style, color) for line in told]
    room = f"disk  {disk_line(snapshot.disk, snapshot.now, color)}"
    said = [*_pointer_lines(snapshot, found, color), *_beside(snapshot, color, width), *_discarded(snapshot)]
    return "\n".join([*lines, *said, room])


def evals_text(snapshot: Snapshot, color: bool = False, width: int = 100) -> str:
    """Scores by step and task, the steps going down; then every line that has no step, named."""
    evals = snapshot.evals
    if not snapshot.run.evaluated:
        return f"evals  {NO_EVALS}"
    if isinstance(evals, Unknown):
        return f"evals  {paint(unknown(evals), 'magenta', color)}"
    scores = _scores(evals)
    lines = [clean(str(evals.path))]
    for block in _blocks(scores, width):
        lines += ["", *_matrix(block, scores, color)]
    if not scores:
        lines.append("no evaluation in it")
    if any(len(v) > 1 for v in scores.values()):
        lines += ["", "* evaluated more than once: the last one is shown"]
    if evals.archives:
        names = ", ".join(str(k) for k in evals.archives)
        lines += ["", f"evaluations of discarded checkpoints: archives exp {names}"]
    return "\n".join([*lines, *_bad_lines(evals, color, width)])


def history_text(snapshot: Snapshot, color: bool = False, width: int = 100) -> str:
    """Every change that m4ops made to the run, the newest last, with the command that made it."""
    history = snapshot.history
    if isinstance(history, Unknown):
        return f"history  {paint(unknown(history), 'magenta', color)}"
    if not history:
        return "m4ops has changed nothing in this run"
    rows = [("ID", "WHEN", "WHO", "STATUS", "CHANGE"), *(_change_cells(c) for c in history)]
    head, *table = words.table(rows)
    lines = [paint(head, "bold", color)]
    for change, row in zip(history, table, strict=True):
        style = {"applied": "green", "undone": "dim", "rolled back": "yellow"}.get(change.status, "bad")
        lines.append(row.replace(f"  {change.status}  ", f"  {paint(change.status, style, color)}  ", 1))
        lines += ["      " + paint(line, "dim", color) for line in _change_details(change, width - 6)]
    if any(c.status == "unfinished" for c in history):
        lines.append(paint("an unfinished change: `m4ops undo` takes it back", "bad", color))
    return "\n".join(lines)


def parse_score(text: str) -> dict[str, float]:
    """The numbers of a `score`: a string holding a dict in Python's or JSON's writing, or one number."""
    import ast
    import json

    try:
        value = json.loads(text)
    except ValueError:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return {}
    pairs = value.items() if isinstance(value, dict) else [("", value)]
    return {str(k): float(v) for k, v in pairs if isinstance(v, int | float) and not isinstance(v, bool)}


def _checkpoint_cells(checkpoint: Checkpoint, now: float) -> tuple[str, ...]:
    saved = words.ago(now - checkpoint.saved) if checkpoint.saved is not None else "UNKNOWN"
    size = words.size(checkpoint.size) if checkpoint.size is not None else "UNKNOWN"
    wandb = _wandb(checkpoint.wandb_id)
    state = "complete" if checkpoint.complete else "UNUSABLE"
    return (
        str(checkpoint.step),
        state,
        _looked_at(checkpoint, now),
        saved,
        size,
        wandb,
        clean(" ".join(checkpoint.markers)),
    )


def _looked_at(checkpoint: Checkpoint, now: float) -> str:
    """When its files were looked at together, and how deep."""
    known = checkpoint.checked
    if not known:
        return "no"
    when = "now" if known.time >= now else words.ago(now - known.time)
    return f"{when}, every byte" if known.deep else when


def _wandb(known: str | Unknown | None) -> str:
    if known is None:
        return "-"
    return "UNKNOWN" if isinstance(known, Unknown) else clean(known) or "a new one"


def _checkpoint_row(row: str, checkpoint: Checkpoint, snapshot: Snapshot, color: bool) -> str:
    word, style = ("complete", "green") if checkpoint.complete else ("UNUSABLE", "bad")
    pointed = not isinstance(snapshot.pointer, Unknown) and snapshot.pointer.step == checkpoint.step
    arrow = paint("  ← a resume starts here", "bold", color) if pointed else ""
    return row.replace(word, paint(word, style, color), 1) + arrow


def _pointer_lines(snapshot: Snapshot, found: Sequence[Checkpoint], color: bool) -> list[str]:
    pointer = snapshot.pointer
    if isinstance(pointer, Unknown):
        return [f"pointer  {paint(unknown(pointer), 'magenta', color)}"]
    if pointer.problem:
        return [f"pointer  {paint('BROKEN', 'bad', color)}: {clean(pointer.problem)}"]
    if pointer.step not in {c.step for c in found}:
        return [f"pointer  {paint('BROKEN', 'bad', color)}: there is no {snapshot.run.layout.called(pointer.step)}"]
    return []


def _beside(snapshot: Snapshot, color: bool, width: int) -> list[str]:
    """What lies beside the checkpoints and is taken for one."""
    strays = snapshot.pointer.strays if isinstance(snapshot.pointer, Pointer) else ()
    told = (f"beside   {clean(stray.path.name)}: {clean(stray.effect)}" for stray in strays)
    return [paint(line, "yellow", color) for text in told for line in words.folded(text, width, "         ")]


def _discarded(snapshot: Snapshot) -> list[str]:
    names = [clean(f) for f in snapshot.folders if f]
    return [f"discarded branches, kept in discarded/: {', '.join(names)}"] if names else []


Key = tuple[str, int | None, str]
Scores = dict[tuple[int, Key], list[float]]


def _scores(evals: Evals) -> Scores:
    scores: Scores = {}
    for line in evals.lines:
        if line.step is None:
            continue
        for metric, value in (parse_score(line.score) or {"": float("nan")}).items():
            scores.setdefault((line.step, (clean(line.task), line.shots, clean(metric))), []).append(value)
    return scores


def _title(key: Key) -> tuple[str, str]:
    task, shots, metric = key
    return (
        task or "(no task)",
        " ".join([*([f"{shots}-shot"] if shots is not None else []), metric]).strip(),
    )


def _blocks(scores: Scores, width: int) -> list[list[Key]]:
    """The columns, in as many blocks as the width needs."""
    blocks: list[list[Key]] = []
    room = 0
    for key in dict.fromkeys(k for _, k in scores):
        needed = max(8, *map(len, _title(key))) + 2
        if needed > room:
            blocks.append([])
            room = width - 8
        blocks[-1].append(key)
        room -= needed
    return blocks


def _matrix(keys: Sequence[Key], scores: Scores, color: bool) -> list[str]:
    steps = sorted({step for step, key in scores if key in keys})
    titles = [_title(k) for k in keys]
    rows = [("STEP", *(t[0] for t in titles)), ("", *(t[1] for t in titles))]
    rows += [(str(step), *(_score_cell(scores.get((step, key))) for key in keys)) for step in steps]
    first, second, *rest = words.table(rows, right=range(len(keys) + 1))
    return [paint(first, "bold", color), paint(second, "dim", color), *rest]


def _score_cell(values: Sequence[float] | None) -> str:
    if not values:
        return "-"
    return words.loss(values[-1]) + ("*" if len(values) > 1 else "")


def _bad_lines(evals: Evals, color: bool, width: int) -> list[str]:
    bad: list[EvalLine] = [line for line in evals.lines if line.step is None]
    if not bad:
        return []
    head = f"{words.count(len(bad), 'line')} of no checkpoint (a rewind keeps them):"
    lines = ["", paint(head, "yellow", color)]
    for line in bad[:BAD_LINES_SHOWN]:
        task = f" (task {clean(line.task)})" if line.task else ""
        lines += words.folded(f"  line {line.line}: {clean(line.problem) or 'no step'}{task}", width, "    ")
    return [*lines, f"  … and {len(bad) - BAD_LINES_SHOWN} more (--json)"] if len(bad) > BAD_LINES_SHOWN else lines


def _change_cells(change: Change) -> tuple[str, ...]:
    return (
        clean(change.id),
        words.clock(change.time),
        clean(change.user),
        change.status,
        clean(change.title),
    )


def _change_details(change: Change, width: int) -> list[str]:
    command = words.folded(f"$ {clean(change.command)}", width, "    ") if change.command else []
    return command + ([f"takes back {clean(change.undoes)}"] if change.undoes else [])
