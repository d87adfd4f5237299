"""Each file of a checkpoint damaged in turn, whatever the layout: `verify-checkpoint --deep` must say so, and of a sound one nothing."""

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import damage
from trainings import Training

AT, OTHER = 10, 5
STATES = (".pt", ".pth", ".bin", ".ckpt", ".distcp", ".safetensors")


def cut(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def emptied(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def lost(path: Path, other: Path) -> None:
    path.unlink()


def of_another_step(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


def flipped(path: Path, other: Path) -> None:
    damage.flipped_bit_of(path)


def pickle_torn(path: Path, other: Path) -> None:
    """Bytes of the pickle that are no opcodes."""
    at = path.read_bytes().index(b"\x80\x02}")
    damage.put(path, at + 3, b"\xff" * 8)


def every_damage_is_seen(training: Training) -> None:
    """The files are given back after each; 1 is suspect, 2 damaged."""
    places = {c["step"]: Path(c["path"]) for c in json.loads(training.done("checkpoints", "--json"))["checkpoints"]}
    step = training.called(AT)
    assert training.m4ops("verify-checkpoint", step, "--deep").code == 0, training.framework
    for path, other in pairs(places[int(step)], places[int(training.called(OTHER))]):
        whole = path.read_bytes()
        for kind, worst in kinds(path, other):
            kind(path, other)
            said = training.m4ops("verify-checkpoint", step, "--deep")
            path.write_bytes(whole)
            assert said.code in worst, f"{training.framework}: {path.name} {kind.__name__}: {said.out}{said.err}"


def pairs(one: Path, other: Path) -> Iterator[tuple[Path, Path]]:
    """Each state file, and what it is at the other step."""
    if one.is_file():
        yield one, other
    for path in sorted(one.rglob("*")):
        if path.suffix in STATES and path.is_file():
            yield path, other / path.relative_to(one)


def kinds(path: Path, other: Path) -> Iterator[tuple[Callable[[Path, Path], None], tuple[int, ...]]]:
    """What can be done to this file, and what exit codes may follow."""
    yield cut, (2,)
    yield emptied, (2,)
    if "checkpoint" in path.parent.name or path.parent.name.isdigit():  # else the checkpoint itself is gone with it
        yield lost, (1, 2)
    if path.read_bytes() != other.read_bytes() and "rng" not in path.name and "random" not in path.name:
        yield of_another_step, (1, 2)
    if path.suffix != ".safetensors" and zipfile.is_zipfile(path) and path.suffix != ".distcp":
        if b"\x80\x02}" in path.read_bytes():
            yield pickle_torn, (2,)
        with zipfile.ZipFile(path) as zipped:
            if any("/data/" in name and any(zipped.read(name)) for name in zipped.namelist()):
                yield flipped, (2,)
