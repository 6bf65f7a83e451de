"""Does planning stay cheap for big sets? A manifest of 1,000,000 rows, and 200 epochs over 50,000 images.

    python benchmarks/million_rows.py [--json] [--rows 1000000]

For each: seconds from the manifest file to the plan and its first step, to 1,000 steps spread over the whole run, and
on to the first batch that Ray Data delivers (Ray is started before). Memory is the growth of a process's peak. The rows
name the same few clips, so reading them costs nothing. Bars: `plan_s` <= 10, `plan_gb` < 1, `stream_s` <= 10. About a
minute on two cores.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from shared.memory import peak_bytes

FILES = 8
CLASSES = 100


def write_rows(path: Path, rows: int, pictures: bool) -> None:
    """A manifest of labelled, captioned rows over a few media files, written by Arrow at once."""
    from kinoray.data.manifest import ROOT_KEY, SCHEMA

    numbers = np.arange(rows)
    columns = {
        "id": pa.array([f"clip{n:07d}" for n in range(rows)]),
        "uri": pa.array(["items.npy"] * rows if pictures else [f"{n % FILES}.mp4" for n in range(rows)]),
        "item": pa.array(numbers % FILES if pictures else [None] * rows, pa.int64()),
        "captions": pa.array([[f"a caption of clip {n}"] for n in range(rows)]),
        "label": pa.array([f"class {n % CLASSES}" for n in range(rows)]),
        "split": pa.array(
            ["test" if n % 1000 == 1 else "validation" if n % 1000 == 0 else "train" for n in range(rows)]
        ),
    }
    table = pa.table({f.name: columns[f.name] if f.name in columns else pa.nulls(rows, f.type) for f in SCHEMA})
    pq.write_table(table.cast(SCHEMA.with_metadata({ROOT_KEY: str(path.parent).encode()})), path)


def write_media(folder: Path) -> None:
    """The few clips, and the array file with as many pictures."""
    from kinoray.streams.rendering import write_video

    rng = np.random.default_rng(0)
    for n in range(FILES):
        write_video(rng.integers(0, 255, (16, 64, 64, 3), dtype=np.uint8), folder / f"{n}.mp4", 12)
    np.save(folder / "items.npy", rng.integers(0, 255, (FILES, 32, 32, 3), dtype=np.uint8))


def measure(path: Path, epochs: int, frames: int) -> dict[str, float]:
    """Plan and first batch of one manifest; runs in a process of its own."""
    import ray

    from kinoray.data.manifest import read_manifest
    from kinoray.data.pipeline import TrainReader, decode_rows
    from kinoray.data.plan import TaskPlan, step_rows, steps_for
    from kinoray.decoding.forms import FrameForm
    from kinoray.decoding.frame_cache import OFF
    from kinoray.decoding.sampling import Sampling

    before = peak_bytes()
    start = time.monotonic()
    manifest = read_manifest(path)
    samples, _ = manifest.samples("train")
    names = manifest.labels(samples)
    numbers = {name: number for number, name in enumerate(sorted({name or "" for name in names}))}
    labels = np.fromiter((numbers[name or ""] for name in names), dtype=np.int64, count=len(names))
    steps = steps_for(epochs, len(samples), 48)
    plan = TaskPlan(seed=0, task=0, num_tasks=1, samples=(len(samples),), batch_size=48, steps=(steps,))
    first = step_rows(plan, 0)
    assert len(labels) == len(samples)
    digest = manifest.digest
    plan_s = time.monotonic() - start
    for step in np.linspace(0, steps - 1, 1000).astype(int).tolist():
        step_rows(plan, step)
    spread_s = time.monotonic() - start - plan_s
    assert len(first) == 48 and len(digest) == 64
    grown_gb = (peak_bytes() - before) / 2**30
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    reader = TrainReader(
        plan=plan,
        manifests=(str(path),),
        names=("all",),
        sampling=Sampling("random", frames),
        form=FrameForm(32),
        cache=OFF,
    )
    start = time.monotonic()
    rows = decode_rows(reader, 1.0)
    batch = next(rows)
    stream_s = time.monotonic() - start
    assert batch.video.shape == (48, frames, 32, 32, 3)
    rows.close()  # type: ignore[attr-defined]
    ray.shutdown()
    return {"plan_s": plan_s, "spread_steps_s": spread_s, "plan_gb": grown_gb, "stream_s": stream_s, "steps": steps}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--measure", nargs=3, metavar=("MANIFEST", "EPOCHS", "FRAMES"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        path, epochs, frames = options.measure
        print(json.dumps(measure(Path(path), int(epochs), int(frames))))
        return
    numbers: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="kinoray-million-") as folder:
        write_media(Path(folder))
        for name, rows, pictures, epochs, frames in (
            ("videos", options.rows, False, 10, 2),
            ("images", 50_000, True, 200, 1),
        ):
            path = Path(folder) / f"{name}.parquet"
            write_rows(path, rows, pictures)
            command = [sys.executable, __file__, "--measure", str(path), str(epochs), str(frames)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            measured = json.loads(output.splitlines()[-1])
            print(f"{name}: {rows:,} rows, {epochs} epochs, {measured.pop('steps'):,} steps")
            for key, value in measured.items():
                print(f"  {key:16} {value:8.2f}")
                numbers[f"{name}_{key}"] = round(value, 3)
    numbers |= {
        key: max(numbers[f"videos_{key}"], numbers[f"images_{key}"]) for key in ("plan_s", "plan_gb", "stream_s")
    }
    if options.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
