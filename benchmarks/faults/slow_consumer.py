"""A trainer that stops reading: decoding must stop, too, hold no CPU, and leave the object store unspilled.

    python benchmarks/faults/slow_consumer.py [--seconds 30]

Ray Data's own limits in bytes do nothing without its reservation of resources; what bounds an execution here is how far
decoding may run ahead (`ray_rows.ahead`), which is looked at from outside. Exit code 1 where more lies
ahead than that allows, where something was spilled, or where a CPU is still held. Rendered clips; under a minute.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

import ray
from ray._private.internal_api import get_memory_info_reply, get_state_from_address

from kinoray.data.ray_rows import MAX_AHEAD, task_bytes

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import decode

ROWS, READ_ROWS, CPUS = 3000, 320, 2
MOST_BLOCKS = 2 * (MAX_AHEAD + 1) + CPUS + 1
"""That wait and that the consumer holds, which are up to two, and those of the tasks that were under way."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30)
    seconds = parser.parse_args().seconds
    from kinoray.decoding.clip import Clip
    from kinoray.decoding.probe import probe_clip

    with tempfile.TemporaryDirectory(prefix="kr", dir="/tmp") as folder:
        made = Path(folder)
        clips = decode.clips_to_read(made / "none", made)
        probed = [probe_clip(Clip("clip", str(clip))) for clip in clips]
        manifest = decode.make_manifest(clips, probed, ROWS, made / "clips.parquet")
        ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False, _temp_dir=str(made / "ray"))
        batches, rows = decode.kinoray_side(manifest, decode.CASES[1], CPUS), 0
        while rows < READ_ROWS:
            rows += len(next(batches))
        time.sleep(seconds)
        store = get_memory_info_reply(get_state_from_address(ray.get_runtime_context().gcs_address)).store_stats
        free, block = ray.available_resources().get("CPU", 0.0), task_bytes(ray.cluster_resources(), world=1)
        batches.close()  # type: ignore[attr-defined]
        time.sleep(2)  # the execution's thread still asks Ray: without it the process would end
        ray.shutdown()
    blocks = store.object_store_bytes_used / block
    print(f"{blocks:.1f} blocks wait, {store.spilled_bytes_total} bytes spilled, {free:g} of {CPUS} CPUs free")
    sys.exit(blocks > MOST_BLOCKS or store.spilled_bytes_total > 0 or free < CPUS)


if __name__ == "__main__":
    main()
