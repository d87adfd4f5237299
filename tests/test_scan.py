"""All ways to search a log find the same, whatever the log holds."""

import random

import pytest

from ops.logs import reader, scan

LITERALS = tuple(reader.LITERALS)
BITS = [
    *LITERALS,
    b" ",
    b"\n",
    b"\r",
    b"\0",
    b"\xff\xfe",
    b"0123",
    b"los",
    b"Traceback (most",
    b"iterationn",
    b"[step",
    b"error: ",
]


def places(way: object, data: bytes, end: int, jump: int) -> list[int]:
    assert callable(way)
    following, found, at = way(data, end), [], 0
    while (hit := following(at)) >= 0:
        found.append(hit)
        at = hit + jump
    return found


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("library", ["hyperscan", "re2"])
def test_a_library_finds_the_same_places_as_none(library: str, seed: int) -> None:
    draw = random.Random(seed)
    data = b"".join(draw.choices(BITS, k=200))
    end = len(data) - draw.randrange(50)
    fast = getattr(scan, library)(LITERALS)
    assert fast, f"{library} is missing: pip install m4ops[fast]"
    jump = draw.choice([1, 7, 40])
    assert places(fast, data, end, jump) == places(scan.plain(LITERALS), data, end, jump)


def test_a_log_reads_the_same_without_the_library(tmp_path, monkeypatch) -> None:
    draw = random.Random(5)
    lines = [
        b"iteration: %d/900 1%% | per_token_loss: 2.5 |" % draw.randrange(900),
        b"[rank3]: RuntimeError: CUDA error: unspecified launch failure",
        b"srun: error: Node failure on n7",
        b"\x1b[31mstep: 20  \x1b[32mloss:  4.8\x1b[0m",
        b"  7%|#  | 7/100 [00:01<00:09]\r{'loss': 2.9, 'epoch': 0.1}",
        b"an error of fate, a loss of nerve",
        b"Traceback (most recent call last):\n  File x\nValueError: no",
    ]
    log = tmp_path / "log"
    log.write_bytes(b"\n".join(draw.choices(lines, k=500)) + b"\n")
    monkeypatch.setattr(scan, "SMALL", 0)
    monkeypatch.setattr(scan, "LARGE", 0)
    first = reader.read_log(log)
    for library in ("hyperscan", "re2"):  # the one, then the other, then none
        monkeypatch.setattr(scan, library, lambda literals: None)
        assert reader.read_log(log) == first
    assert first.samples
    assert first.events
