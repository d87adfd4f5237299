"""Ways in which a checkpoint is damaged, each a function of its folder and of one of another step."""

import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

Damage = Callable[[Path, Path], None]


def shard(folder: Path, rank: int) -> Path:
    return next(folder.rglob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"))


def optimizer(folder: Path) -> Path:
    return next(iter([*folder.rglob("optimizer.bin"), *folder.rglob("*zero_pp_rank_1_mp_rank_00_optim_states.pt")]))


def weights(path: Path) -> tuple[zipfile.ZipInfo, int, int]:
    """The largest record of a torch file that is not all zeros, and where its data begin and end."""
    raw = path.read_bytes()
    with zipfile.ZipFile(path) as zipped:
        infos = [i for i in zipped.infolist() if "/data/" in i.filename and any(zipped.read(i))]
    info = max(infos, key=lambda i: i.file_size)
    name, extra = struct.unpack("<HH", raw[info.header_offset + 26 : info.header_offset + 30])
    start = info.header_offset + 30 + name + extra
    return info, start, start + info.file_size


def put(path: Path, at: int, data: bytes) -> None:
    raw = bytearray(path.read_bytes())
    assert raw[at : at + len(data)] != data
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def truncated(folder: Path, other: Path) -> None:
    path = optimizer(folder)
    path.write_bytes(path.read_bytes()[:-1])


def cut_in_half(folder: Path, other: Path) -> None:
    path = optimizer(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(folder: Path, other: Path) -> None:
    optimizer(folder).write_bytes(b"")


def tail_of_zeros(folder: Path, other: Path) -> None:
    path = optimizer(folder)
    path.write_bytes(path.read_bytes()[:-300] + bytes(300))


def web_page(folder: Path, other: Path) -> None:
    optimizer(folder).write_text("<html><body>503 Service Unavailable</body></html>")


def header_of_a_record(folder: Path, other: Path) -> None:
    info, _, _ = weights(optimizer(folder))
    put(optimizer(folder), info.header_offset, b"\0\0\0\0")


def lost_scheduler(folder: Path, other: Path) -> None:
    (folder / "accelerator_state" / "custom_checkpoint_0.pkl").unlink()


def unfinished(folder: Path, other: Path) -> None:
    (folder / "finished-saving").unlink()


def infos_of_another_step(folder: Path, other: Path) -> None:
    shutil.copy(other / "resume_run_infos.json", folder)


def hole(folder: Path, other: Path) -> None:
    _, start, end = weights(optimizer(folder))
    put(optimizer(folder), start, bytes(min(8192, end - start)))


def flipped_bit(folder: Path, other: Path) -> None:
    flipped_bit_of(optimizer(folder))


def flipped_bit_of(path: Path) -> None:
    _, start, _ = weights(path)
    put(path, start, bytes([path.read_bytes()[start] ^ 1]))


def not_a_number(folder: Path, other: Path, value: bytes = b"\0\0\xc0\x7f") -> None:
    """A NaN that was there when the file was written: its checksums are right."""
    path = optimizer(folder)
    info, start, end = weights(path)
    put(path, start + 4, value)
    raw = path.read_bytes()
    crc = zlib.crc32(raw[start:end]).to_bytes(4, "little")
    path.write_bytes(raw.replace(info.CRC.to_bytes(4, "little"), crc))


def infinite(folder: Path, other: Path) -> None:
    not_a_number(folder, other, b"\0\0\x80\xff")


def lost_rank(folder: Path, other: Path) -> None:
    shard(folder, 1).unlink()


def lost_last_model_states(folder: Path, other: Path) -> None:
    max(folder.rglob("*_model_states.pt")).unlink()


def one_rank_too_many(folder: Path, other: Path) -> None:
    path = shard(folder, 1)
    shutil.copy(path, path.with_name(path.name.replace("rank_1_", "rank_2_")))


def copy_of_another_rank(folder: Path, other: Path) -> None:
    shutil.copy(shard(folder, 0), shard(folder, 1))


def swapped_ranks(folder: Path, other: Path) -> None:
    first, second = shard(folder, 0), shard(folder, 1)
    first_bytes = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(first_bytes)


def shard_of_another_step(folder: Path, other: Path) -> None:
    shutil.copy(shard(other, 1), shard(folder, 1))


def wrong_latest(folder: Path, other: Path) -> None:
    (folder / "accelerator_state" / "latest").write_text("global_step4")


def lost_latest(folder: Path, other: Path) -> None:
    (folder / "accelerator_state" / "latest").unlink()


OF_ANY = (
    truncated, cut_in_half, emptied, tail_of_zeros, web_page, header_of_a_record, lost_scheduler, unfinished,
    infos_of_another_step,
)  # fmt: skip
IN_THE_DATA = (hole, flipped_bit, not_a_number, infinite)
"""Seen only when every byte is read."""
OF_SHARDS = (
    lost_rank, lost_last_model_states, one_rank_too_many, copy_of_another_rank, swapped_ranks, shard_of_another_step,
    wrong_latest, lost_latest,
)  # fmt: skip


def damaged(run: Path, step: int, other: int, kinds: tuple[Damage, ...]) -> Iterator[tuple[str, Path]]:
    """Each damage done to a copy of the run; the copy is removed after its turn."""
    for kind in kinds:
        copy = run.with_name(f"{run.name}-{kind.__name__}")
        shutil.copytree(run, copy)
        kind(copy / f"opt_step-{step}", copy / f"opt_step-{other}")
        yield kind.__name__, copy
        shutil.rmtree(copy)
