"""Optimizer states of more than 4 GiB, where a zip needs its 64-bit records: written by torch, without their zeros."""

import os
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import Run
from torch.serialization import skip_data

GIB4 = 1 << 32
BLOCK = 4096
Content = tuple[int, dict[int, bytes]]


def written(run: Run, lr: float) -> Path:
    """The optimizer's state of step 40 with a moment of 4.3 GB, of which only the last four numbers are not 0."""
    path = run.state(40, "optimizer.bin")
    moment = torch.empty(GIB4 // 4 + (1 << 20))  # no memory is touched
    groups = [{"lr": lr, "initial_lr": 1e-4, "params": [0]}]
    with skip_data():
        torch.save({"state": {0: {"step": torch.zeros(()), "exp_avg": moment}}, "param_groups": groups}, path)
    with zipfile.ZipFile(path) as zipped, path.open("r+b") as file:
        record = zipped.getinfo("optimizer/version")
        assert record.header_offset > GIB4
        os.pwrite(file.fileno(), b"\x3f" * 16, moment_end(path))
    return path


def moment_end(path: Path) -> int:
    """Where the last four numbers of the moment begin."""
    with zipfile.ZipFile(path) as zipped, path.open("rb") as file:
        record = zipped.getinfo("optimizer/data/1")
        header = os.pread(file.fileno(), 30, record.header_offset)
        names, extras = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        return record.header_offset + 30 + names + extras + record.file_size - 16


def content(path: Path) -> Content:
    """Size, and every block that is not all zeros; holes are not read."""
    with path.open("rb") as file:
        size, at, found = os.fstat(file.fileno()).st_size, 0, {}
        while at < size:
            try:
                begin = os.lseek(file.fileno(), at, os.SEEK_DATA) // BLOCK * BLOCK
            except OSError:  # nothing but a hole to the end
                break
            at = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            for place in range(begin, at, BLOCK):
                if any(block := os.pread(file.fileno(), BLOCK, place)):
                    found[place] = block
        return size, found


def loaded(path: Path) -> dict[str, Any]:
    """As torch loads it; a record's CRC is checked where the pickle is read."""
    with zipfile.ZipFile(path) as zipped:
        zipped.read("optimizer/data.pkl")
    state: dict[str, Any] = torch.load(path, mmap=True)
    return state


@pytest.mark.parametrize("lr", [1, 2e-3])
def test_an_lr_is_changed_and_comes_back(run: Run, lr: float) -> None:
    """An integer needs another length as a fraction: the pickle is appended. A float is changed in its place."""
    path = written(run, lr)
    before = content(path)
    run.done("scale-lr", "0.5", "--at", "40", "-y")
    size, _ = content(path)
    assert (size > before[0]) == (lr == 1)
    with zipfile.ZipFile(path) as zipped:
        assert (zipped.getinfo("optimizer/data.pkl").header_offset > GIB4) == (lr == 1)
    state = loaded(path)
    assert state["param_groups"] == [{"lr": lr / 2, "initial_lr": 5e-5, "params": [0]}]
    moment = state["state"][0]["exp_avg"]
    assert (moment[0].item(), moment[-5].item(), moment[-4:].view(torch.uint8).unique().tolist()) == (0, 0, [0x3F])
    assert "optimizer.bin" not in run.m4ops("verify-checkpoint", "40").out
    run.done("scale-lr", "0.5", "--at", "40", "--again", "-y")
    assert loaded(path)["param_groups"][0]["lr"] == lr / 4
    run.done("undo", "-y")
    run.done("undo", "-y")
    assert content(path) == before


def test_moments_become_zero_and_come_back(run: Run) -> None:
    path = written(run, 2e-3)
    before = content(path)
    run.done("reset-optimizer", "--at", "40", "-y")
    assert not loaded(path)["state"][0]["exp_avg"][-4:].any()
    assert path.stat().st_blocks * 512 < 1 << 20  # the zeros take no room
    run.done("undo", "-y")
    assert content(path) == before


def test_a_cut_off_end_is_seen(run: Run) -> None:
    path = written(run, 2e-3)
    os.truncate(path, path.stat().st_size - 1)
    said = run.m4ops("verify-checkpoint", "40")
    assert (said.code, "optimizer.bin" in said.out) == (2, True)
