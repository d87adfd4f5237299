"""An optimizer's moments and step counters: where they stand, and which bytes make it a fresh optimizer.

Only states that a fresh optimizer starts at zero are touched. Source: pytorch `torch/optim/*.py`,
DeepSpeed `ops/adam` (a step in the parameter group), DeepSpeed `runtime/zero` (weights beside the state).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from ops.checkpoints.lr import Edits, NotSameLength, changes_of, optimizer_states
from ops.checkpoints.opcodes import LINES
from ops.checkpoints.patch import Splice, crc_of_zeros, crc_splices, with_crc
from ops.checkpoints.statefile import read
from ops.checkpoints.symbols import Call, Float, Int
from ops.checkpoints.torchfile import StateError, Storage, Tensor, TorchFile, extents, opened
from ops.checkpoints.torchzip import data_at, read_at
from ops.model import Span

ZERO_AT_START = {
    "step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg",
    "acc_delta", "exp_avg_sq_row", "exp_avg_sq_col", "row_var", "col_var", "variance", "RMS",
}  # fmt: skip
"""Names of optimizer states that torch, DeepSpeed and transformers start at zero."""


class _Moments(Struct, frozen=True):
    tensors: tuple[tuple[str, Tensor], ...]
    numbers: tuple[tuple[str, Float | Int], ...]
    entries: frozenset[int]
    """Identities of the dicts these stand in."""


def moment_ranges(path: Path) -> tuple[Span, ...]:
    """The bytes of every moment and step tensor, storage by storage; never those of master weights.

    StateError for a state that is not known to start at zero, and for a storage that holds more than moments.
    """
    return ranges_of(read(path))


def ranges_of(file: TorchFile) -> tuple[Span, ...]:
    """The same of a file that was read."""
    return _ranges(file, _moments(file))


def zeroing(path: Path, edits: Edits = ()) -> tuple[tuple[Span, ...], tuple[Splice, ...]]:
    """Ranges to fill with zeros, and what must change besides: checksums, and steps kept as numbers.

    LR `edits` of the same file may be made at once; their bytes, too, are among the splices.
    """
    file, changes = changes_of(path, edits)
    if longer := [c for c in changes if len(c.old) != len(c.new)]:
        raise NotSameLength(f"the LR at byte {longer[0].offset} does not fit where it stands", str(path))
    moments = _moments(file)
    ranges = _ranges(file, moments)
    with opened(path) as fd:
        steps = {node.at: _zero_number(fd, label, node) for label, node in moments.numbers}
        splices = [*with_crc(file, (*changes, *(s for s in steps.values() if s.old != s.new)))]
        splices += _crcs_of_zeros(fd, file, ranges)
    return ranges, tuple(sorted(splices, key=lambda s: s.offset))


def _moments(file: TorchFile) -> _Moments:
    tensors, numbers, foreign = [], [], []
    entries = list(_entries(file))
    for label, entry, names in entries:
        for key in (k for k in entry if names is None or k in names):
            value, where = entry[key], f"{label}.{key}"
            if value is None:
                continue
            if key not in ZERO_AT_START or not isinstance(value, Tensor | Float | Int):
                foreign.append(where)
            elif isinstance(value, Tensor):
                tensors.append((where, value))
            else:
                numbers.append((where, value))
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise StateError(
            f"{foreign[0]}{more}: m4ops does not know that this state starts at zero",
            str(file.path),
            "let the trainer start with a fresh optimizer (load_optimizer_states: False)",
        )
    whole = frozenset(id(entry) for _, entry, names in entries if names is None)
    return _Moments(tuple(tensors), tuple(numbers), whole)


def _entries(file: TorchFile) -> Iterator[tuple[str, dict[Any, Any], tuple[str, ...] | None]]:
    """Each parameter's state (all of it), and each parameter group (its step, where it is kept there)."""
    found = False
    for label, optimizer in optimizer_states(file.tree):
        found = True
        state = optimizer.get("state")
        for key, entry in state.items() if isinstance(state, dict) else ():
            if isinstance(entry, dict):
                yield f"{label}.state[{key}]", entry, None
        for index, group in enumerate(optimizer["param_groups"]):
            yield f"{label}.param_groups[{index}]", group, ("step",)
    if not found and not file.many:  # of a distributed checkpoint another file has it
        raise StateError("no optimizer state that m4ops knows", str(file.path))


def _ranges(file: TorchFile, moments: _Moments) -> tuple[Span, ...]:
    names: dict[str, str] = {}
    for label, tensor in moments.tensors:
        names.setdefault(tensor.storage.key, label)
    if shared := names.keys() & _other_storages(file.tree, moments):
        label = names[min(shared)]
        raise StateError(f"{label} shares its memory with what is no moment", str(file.path))
    found = extents(file, {t.storage.key: t.storage for _, t in moments.tensors}.values())
    return tuple(Span(names[key], start, end - start) for key, (start, end) in found.items() if end > start)


def _other_storages(tree: Any, moments: _Moments) -> set[str]:
    """Keys of all storages that are reached other than through a parameter's optimizer state."""
    found: set[str] = set()
    steps = {id(t) for label, t in moments.tensors if ".param_groups[" in label}
    todo, seen = [tree], set(moments.entries)
    while todo:
        node = todo.pop()
        if isinstance(node, str | int | float | bytes | None) or id(node) in seen or id(node) in steps:
            continue
        seen.add(id(node))
        match node:
            case Tensor():
                found.add(node.storage.key)
            case Storage():
                found.add(node.key)
            case dict():
                todo += node.values()
            case list() | tuple() | set() | frozenset():
                todo += node
            case Call():
                todo += (node.args, node.state, node.items)
    return found


def _zero_number(fd: int, label: str, node: Float | Int) -> Splice:
    """Zero in the opcode and width the number has."""
    old = read_at(fd, node.at, node.end - node.at)
    head = {b"\x8a": 2, b"C": 2, b"B": 5}.get(old[:1], 1)
    if old[:1] in (b"X", b"\x8c"):
        raise ValueError(f"{label} is a numpy scalar of pickle protocol 2: it cannot be set to zero in place")
    if old[:1] in LINES:
        raise ValueError(f"{label} is a text of pickle protocol 0: it cannot be set to zero in place")
    return Splice(node.at, old, old[:head] + bytes(len(old) - head))


def _crcs_of_zeros(fd: int, file: TorchFile, ranges: Iterable[Span]) -> Iterator[Splice]:
    if file.directory is None:
        return
    records = {data_at(fd, r): r for r in file.directory.records if "/data/" in r.name and r.size}
    for span in ranges:
        yield from crc_splices(fd, records[span.offset], crc_of_zeros(span.length))
