"""Damaged videos: seeded mutations of small clips, each decoded in a process of its own pool, within limits.

    python benchmarks/mutations.py [--count 5000] [--seed 0] [--jobs 2] [--clips FOLDER] [--json]

Mutation n changes one small clip in a way that only n and the seed decide (bytes overwritten, blocks zeroed, moved,
doubled or lost, the end cut off). It is decoded through; where that gives frames it is probed, and random frames read
by seeking must be the same bits. What may happen: frames, or a `VideoError`. What may not: another exception, a
crash of the process, more than 10 s, other bits.

Takes about three minutes on two cores. Without the folder of real clips it mutates clips that it renders.
"""

import argparse
import json
import os
import queue
import resource
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from shared.memory import peak_bytes

HANG_S = 10.0
"""A clip must be done by then."""
START_S = 60.0
"""A new process must be ready by then."""
ADDRESS_BYTES = 4 << 30
SMALL_BYTES = 200_000
SIZE_PX = 32
REAL_CLIPS = Path(__file__).resolve().parents[2] / "shared" / "clips"


def small_clips(folder: Path | None, made: Path) -> list[Path]:
    """The small real clips of a folder, or, where it is not there, clips rendered into `made`."""
    files = sorted(p for p in folder.iterdir() if p.suffix not in (".csv", ".md")) if folder and folder.is_dir() else []
    return [path for path in files if path.stat().st_size <= SMALL_BYTES] or _rendered(made)


def _rendered(folder: Path) -> list[Path]:
    import av

    codecs = {"mp4": "libx264", "mkv": "libx264", "ts": "libx264", "flv": "libx264", "avi": "mpeg4", "webm": "libvpx"}
    paths = []
    for ending, codec in codecs.items():
        paths.append(folder / f"clip.{ending}")
        with av.open(str(paths[-1]), "w") as container:
            stream = container.add_stream(codec, rate=10, options={"g": "8"})
            stream.width = stream.height = 64
            stream.pix_fmt = "yuv420p"
            stream.codec_context.thread_count = 1
            for frame in np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), dtype=np.uint8):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
            container.mux(stream.encode(None))
    return paths


def mutated(clips: list[Path], seed: int, number: int) -> tuple[str, bytes]:
    """One damaged clip: the name of what it was, and its bytes."""
    rng = np.random.default_rng([seed, number])
    clip = clips[rng.integers(len(clips))]
    data = np.frombuffer(clip.read_bytes(), np.uint8).copy()
    for _ in range(rng.integers(1, 4)):
        size = len(data)
        # Headers lie at either end and are short, so half of the damage is done there.
        place = int(rng.integers(size) if rng.random() < 0.5 else rng.integers(min(size, 2000)) * rng.choice([1, -1]))
        place %= size
        length = int(min(size - place, 2 ** rng.integers(0, 14)))
        match rng.choice(["bytes", "noise", "zero", "lose", "double", "move", "cut"]):
            case "bytes":
                places = rng.integers(0, size, rng.integers(1, 30))
                data[places] = rng.integers(0, 256, len(places))
            case "noise":
                data[place : place + length] = rng.integers(0, 256, length)
            case "zero":
                data[place : place + length] = 0
            case "lose":
                data = np.delete(data, slice(place, place + length)) if length < size else data
            case "double":
                data = np.insert(data, place, data[place : place + length])
            case "move":
                block = data[place : place + length].copy()
                rest = np.delete(data, slice(place, place + length))
                data = np.insert(rest, rng.integers(len(rest) + 1), block)
            case "cut":
                data = data[: max(1, place)]
    return clip.name, data.tobytes()


def outcome(path: Path, seed: int) -> str:
    """Decode one file every way: "frames", a stage of `VideoError`, "differs", or "escaped: ..."."""
    from kinoray.decoding.clip import Clip, Probe
    from kinoray.decoding.decode import decode_clip
    from kinoray.decoding.probe import probe_clip
    from kinoray.decoding.sampling import Timeline
    from kinoray.errors import VideoError

    rng = np.random.default_rng(seed)
    chosen = np.zeros(0, np.int64)

    def choose(timeline: Timeline) -> np.ndarray:
        nonlocal chosen
        chosen = np.sort(rng.integers(0, timeline.num_frames, 5))
        return chosen

    try:
        frames = decode_clip(Clip("clip", str(path)), choose, SIZE_PX)
        facts = probe_clip(Clip("clip", str(path)))
        probe = Probe(facts["digest"], facts["num_frames"], tuple(facts["key_frames"]), tuple(facts["key_ticks"]))
        sought = decode_clip(Clip("clip", str(path), probe=probe), lambda _: chosen, SIZE_PX)
        return "frames" if np.array_equal(frames, sought) else "differs"
    except VideoError as error:
        return error.stage
    except Exception as error:  # whatever else comes out is what this looks for
        return f"escaped: {type(error).__name__}: {error}"


def work(clips: list[Path], seed: int) -> None:
    """A process of the pool: numbers in, one line of JSON out for each."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from kinoray.decoding import probe as index  # noqa: F401  (the slow part of starting)

    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            number = int(line)
            name, data = mutated(clips, seed, number)
            path = Path(folder) / f"{number}{Path(name).suffix}"
            path.write_bytes(data)
            result = outcome(path, number)
            path.unlink()
            print(json.dumps({"outcome": result, "peak_bytes": peak_bytes()}), flush=True)


class Worker:
    """One process of the pool; it is started again after a crash or a hang."""

    def __init__(self, clips: list[Path], seed: int) -> None:
        words = [sys.executable, __file__, "--seed", str(seed), "--work", *map(str, clips)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer(START_S) == "ready"

    def ask(self, number: int) -> dict[str, Any]:
        """The outcome of one mutation: what the process says, or "hang" or "crash" where it says nothing."""
        assert self.process.stdin
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return self._answer(HANG_S)

    def _answer(self, limit_s: float) -> Any:
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            return {"outcome": "hang", "peak_bytes": 0}
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"outcome": f"crash: status {self.process.wait()}", "peak_bytes": 0}

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def campaign(count: int, seed: int = 0, jobs: int = 2, folder: Path | None = REAL_CLIPS) -> dict[str, Any]:
    """Decode `count` mutations; counts of what happened, the worst numbers, and what must not have happened."""
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(count):
        numbers.put(number)
    results: list[tuple[int, dict[str, Any], float]] = []
    with tempfile.TemporaryDirectory() as made:
        clips = small_clips(folder, Path(made))

        def serve() -> None:
            worker = Worker(clips, seed)
            try:
                while not numbers.empty():
                    try:
                        number = numbers.get_nowait()
                    except queue.Empty:
                        return
                    begun = time.monotonic()
                    result = worker.ask(number)
                    results.append((number, result, time.monotonic() - begun))
                    if worker.process.poll() is not None or result["outcome"] == "hang":
                        worker.end()
                        worker = Worker(clips, seed)
            finally:
                worker.end()

        threads = [threading.Thread(target=serve) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    kinds = Counter(result["outcome"].split(":")[0] for _, result, _ in results)
    allowed = ("frames", "open", "decode", "limits")
    return {
        "mutations": len(results),
        "crashes": kinds["crash"],
        "hangs": kinds["hang"],
        "escaped": kinds["escaped"],
        "differs": kinds["differs"],
        "peak_memory_mb": max(result["peak_bytes"] for _, result, _ in results) // 2**20,
        "slowest_s": round(max(took for _, _, took in results), 2),
        "outcomes": dict(kinds),
        "bad": sorted((number, result["outcome"]) for number, result, _ in results if result["outcome"] not in allowed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--clips", type=Path, default=REAL_CLIPS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", nargs="+", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.seed)
        return
    numbers = campaign(options.count, options.seed, options.jobs, options.clips)
    bad, outcomes = numbers.pop("bad"), numbers.pop("outcomes")
    for number, result in bad:
        print(f"mutation {number}: {result}")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(outcomes.items())))
    for name, value in numbers.items():
        print(f"{name:16} {value}")
    if options.json:
        print(json.dumps(numbers))
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
