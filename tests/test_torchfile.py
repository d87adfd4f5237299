"""Reading torch's files without torch: the same values, the right bytes, and nothing executed."""

import io
import os
import pickle
import struct
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ops.checkpoints import torchfile
from ops.checkpoints.symbols import Call
from ops.checkpoints.torchfile import StateError, Tensor, extents, read, structure_problems

FORMATS = [
    pytest.param({}, id="zip"),
    pytest.param({"pickle_protocol": 5}, id="zip, protocol 5"),
    pytest.param({"_use_new_zipfile_serialization": False}, id="unzipped"),
]


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    def save(state: Any, name: str = "state.pt", **options: Any) -> Path:
        path = tmp_path / name
        torch.save(state, path, **options)
        return path

    return save


def bytes_of(path: Path, tensor: Tensor) -> bytes:
    """A tensor's own bytes, at the place the reader gives."""
    start, _ = extents(read(path), [tensor.storage])[tensor.storage.key]
    size = torchfile.ITEMSIZE[tensor.dtype]
    return path.read_bytes()[start + tensor.offset * size :][: tensor.numel * size]


@pytest.mark.parametrize("options", FORMATS)
def test_values_are_where_the_reader_says(saved: Callable[..., Path], options: dict[str, Any]) -> None:
    shared = [1.5, -2, 300, 70000, 2**40, True, None]
    state = {"a": shared, "again": shared, "t": ("é", 2.5), 7: OrderedDict(x=torch.Size([2, 3]))}
    path = saved(state, **options)
    tree, raw = read(path).tree, path.read_bytes()
    assert tree == {"a": shared, "again": shared, "t": ("é", 2.5), 7: {"x": (2, 3)}}
    assert tree["again"] is tree["a"]
    assert raw[tree["a"][0].at : tree["a"][0].end] == b"G" + struct.pack(">d", 1.5)
    assert raw[tree["a"][2].at : tree["a"][2].end] == b"M" + struct.pack("<H", 300)


@pytest.mark.parametrize("options", FORMATS)
def test_tensors_are_where_the_reader_says(saved: Callable[..., Path], options: dict[str, Any]) -> None:
    base = torch.arange(12.0)
    state = {
        "view": base[4:7],
        "base": base,
        "bf16": torch.tensor([1.5, -3], dtype=torch.bfloat16),
        "parameter": torch.nn.Parameter(torch.full((2, 2), 9.0)),
        "step": torch.tensor(5, dtype=torch.int64),
        "none": torch.zeros(0),
    }
    path = saved(state, **options)
    tree = read(path).tree
    assert tree["view"].storage == tree["base"].storage
    for name, tensor in state.items():
        found = tree[name]
        assert (found.shape, found.dtype) == (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        content = tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
        assert bytes_of(path, found) == content, name


def test_a_numpy_scalar_is_its_value(saved: Callable[..., Path]) -> None:
    import numpy as np

    for protocol in (2, 4):
        path = saved({"lr": np.float64(3e-5), "zero": np.float32(0)}, pickle_protocol=protocol)
        assert read(path).tree == {"lr": 3e-5, "zero": 0.0}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles(tmp_path: Path, protocol: int) -> None:
    state = {"last_epoch": 4, "base_lrs": [1e-4] * 3, "text": "é" * 300, "many": list(range(3000)), "one": (1,)}
    path = tmp_path / "state.pkl"
    path.write_bytes(pickle.dumps(state, protocol))
    assert read(path).tree == state
    assert structure_problems(path) == ()


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_in_a_file_is_executed(tmp_path: Path, protocol: int) -> None:
    marker, path = tmp_path / "marker", tmp_path / "custom_checkpoint_0.pkl"
    torch.save({"evil": Evil(marker), "lr": 1.0}, path, pickle_protocol=protocol)
    tree = read(path).tree
    assert isinstance(tree["evil"], Call)
    assert tree["evil"].func.name == "system"
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists(), "the file was harmless: the test shows nothing"


@pytest.mark.parametrize(
    "text",
    [b"\x80\x04", b"\x80\x04}", b"\x80\x04e.", b"\x80\x04].]", b"\x80\x04]K\x01K\x02s.", b"\x80\x04}(]K\x01u.",
     b"\x80\x04K\x01\x85\x86.", b"\x80\x04h\x05.", b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", b"\x80\x02cos\n",
     b"\x80\x09N.", b"\x80\x04\xff.", b"\x80\x04X\x01\x00\x00\x00\xff.", b"(dp0\nF1.", b"F1x\n.", b"S'a\n.", b"Ione\n.", b"g7\n.", b"N"],
)  # fmt: skip
def test_a_malformed_pickle_is_one_clear_error(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "state.pkl"
    path.write_bytes(text)
    with pytest.raises(StateError) as caught:
        read(path)
    assert caught.value.where == str(path)
    assert structure_problems(path)


def test_every_truncation_is_seen(saved: Callable[..., Path], tmp_path: Path) -> None:
    raw = saved({"state": {0: torch.ones(3)}, "lr": 0.1}).read_bytes()
    path = tmp_path / "cut.pt"
    for length in [*range(0, len(raw), 37), *range(len(raw) - 30, len(raw))]:
        path.write_bytes(raw[:length])
        assert structure_problems(path), f"{length} of {len(raw)} bytes"
        with pytest.raises(StateError):
            read(path)
    path.write_bytes(raw + b"\0")
    assert structure_problems(path)


@pytest.mark.parametrize("options", FORMATS[2:])
def test_a_truncated_unzipped_file_is_seen(saved: Callable[..., Path], options: dict[str, Any]) -> None:
    path = saved({"w": torch.ones(3)}, **options)
    assert structure_problems(path) == ()
    path.write_bytes(path.read_bytes()[:-1])
    assert structure_problems(path)


def test_what_is_no_torch_file_is_said_so(tmp_path: Path) -> None:
    page, archive, packed = tmp_path / "page", tmp_path / "archive", tmp_path / "packed"
    page.write_bytes(b"<html>404</html>")
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("readme", "no state")
    stored = io.BytesIO()
    torch.save({"lr": 1.0}, stored)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as zipped, zipfile.ZipFile(stored) as source:
        for name in source.namelist():
            zipped.writestr(name, source.read(name))
    expected = {page: "neither a torch file", archive: "no torch file", packed: "compressed", tmp_path: "read"}
    for path, words in expected.items():
        with pytest.raises(StateError, match=words):
            read(path)
    assert "No such file" in structure_problems(tmp_path / "missing")[0]


def test_damage_to_the_structure_is_seen(saved: Callable[..., Path]) -> None:
    path = saved({"w": torch.ones(100), "v": torch.zeros(7)})
    assert structure_problems(path) == ()
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as zipped:
        record = zipped.getinfo("state/data/0")
    directory = raw.rfind(b"PK\x01\x02")
    for at in (record.header_offset, record.header_offset + 31, directory, raw.find(b"PK\x07\x08") + 5):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 0x10]) + raw[at + 1 :])
        assert structure_problems(path), f"byte {at}"
    hole = record.header_offset
    path.write_bytes(raw[:hole] + bytes(len(raw) - hole))
    assert structure_problems(path)


def test_every_bit_without_which_torch_reads_no_file_is_seen(saved: Callable[..., Path]) -> None:
    path = saved({"last_epoch": 3, "base_lrs": [1e-3]}, "scheduler.pt")
    raw = path.read_bytes()
    fatal = 0
    for at in range(raw.index(b"PK\x01\x02"), len(raw)):
        for bit in (1 << at % 8, 1 << (at + 5) % 8):
            changed = raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :]
            try:
                loaded = torch.load(io.BytesIO(changed))
            except (RuntimeError, ValueError, pickle.UnpicklingError):
                fatal += 1
                path.write_bytes(changed)
                assert structure_problems(path), f"bit {bit} of byte {at}"
            else:
                assert loaded == {"last_epoch": 3, "base_lrs": [1e-3]}
    assert fatal > 300


def test_ten_times_the_parameters_take_ten_times_the_time(saved: Callable[..., Path]) -> None:
    def seconds(count: int) -> float:
        moments = {i: {"step": torch.ones(()), "exp_avg": torch.ones(1)} for i in range(count)}
        path = saved({"state": moments, "param_groups": [{"lr": 1e-3, "params": list(range(count))}]})
        start = time.process_time()
        assert len(read(path).tree["state"]) == count
        return time.process_time() - start

    seconds(10)
    assert seconds(10_000) < 40 * seconds(1_000)  # a step that looks at all others would take 100
