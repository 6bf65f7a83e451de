"""Trainers that stop reading: decoding must stop, too, hold no CPU, and leave the object store unspilled.

    python tests/soak/slow_consumer.py [--seconds 30] [--ranks 4] [--store-mb 1000]

Ray Data's own limits in bytes do nothing without its reservation of resources; what bounds an execution here is how far
decoding may run ahead (`ray_rows.ahead`), which is looked at from outside: with one rank and Ray's own object store, or
with several that share a small one. Exit code 1 where more lies ahead than that allows, where something was spilled, or
where a CPU is still held. Rendered clips; one to two minutes.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray._private.internal_api import get_memory_info_reply, get_state_from_address

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import decode

from kinoray.data.pipeline import decode_clips, decode_slots
from kinoray.data.ray_rows import MAX_AHEAD, task_bytes
from kinoray.data.slots import ClipReader
from kinoray.decoding.clip import Clip
from kinoray.decoding.probe import probe_clip

ROWS, READ_ROWS, CPUS, RANK_CPUS = 3000, 320, 2, 0.01


class Rank:
    """Reads some of its clips, and then only holds on."""

    def __init__(self, reader: ClipReader, slots: float) -> None:
        self.batches: Iterator[Any] = decode_clips(reader, slots)

    def read(self, rows: int) -> None:
        while rows > 0:
            rows -= len(next(self.batches).video)

    def stop(self) -> None:
        self.batches.close()  # type: ignore[attr-defined]
        time.sleep(2)  # the execution's thread still asks Ray: without it the process would end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--store-mb", type=int, help="size of the object store; Ray's own choice unless told")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kr", dir="/tmp") as folder:
        made = Path(folder)
        clips = decode.clips_to_read(made / "none", made)
        probed = [probe_clip(Clip("clip", str(clip))) for clip in clips]
        manifest = decode.make_manifest(clips, probed, ROWS, made / "clips.parquet")
        store_bytes = options.store_mb and options.store_mb << 20
        ray.init(
            num_cpus=CPUS,
            object_store_memory=store_bytes,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=str(made / "ray"),
        )
        case, actor = decode.CASES[1], ray.remote(Rank).options(num_cpus=RANK_CPUS)
        slots = decode_slots(options.ranks, RANK_CPUS)
        readers = [decode.clip_reader(manifest, case, rank, options.ranks) for rank in range(options.ranks)]
        ranks: list[Any] = [actor.remote(reader, slots) for reader in readers]
        ray.get([rank.read.remote(READ_ROWS // options.ranks) for rank in ranks])
        time.sleep(options.seconds)
        store = get_memory_info_reply(get_state_from_address(ray.get_runtime_context().gcs_address)).store_stats
        free = ray.available_resources().get("CPU", 0.0) + options.ranks * RANK_CPUS
        block = task_bytes(ray.cluster_resources(), options.ranks)
        ray.get([rank.stop.remote() for rank in ranks])
        ray.shutdown()
    blocks, at_once = store.object_store_bytes_used / block, max(1, int(slots)) + 1
    # That wait and that each rank holds, which are up to two, and those of the tasks that were under way.
    most = options.ranks * (2 * (MAX_AHEAD + 1) + at_once)
    print(
        f"{options.ranks} ranks, store of {store.object_store_bytes_avail >> 20} MB: {blocks:.1f} blocks of "
        f"{block >> 20} MB wait (at most {most:g}), {store.spilled_bytes_total} bytes spilled, "
        f"{free:g} of {CPUS} CPUs free"
    )
    sys.exit(blocks > most or store.spilled_bytes_total > 0 or free < CPUS - 1e-6)


if __name__ == "__main__":
    main()
