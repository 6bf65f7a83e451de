"""Damaged videos: seeded mutations of small clips, each decoded in a process of its own pool, within limits.

    python tests/soak/mutations.py [--count 5000] [--seed 0] [--jobs 2] [--runs 4] [--hang-s 10] [--clips FOLDER]
                                   [--json]

Mutation n changes one small clip in a way that only n and the seed decide (bytes overwritten, blocks zeroed, moved,
doubled or lost, the end cut off). It is decoded through; where that gives frames it is probed, and random frames read
by seeking must be the same bits. What may happen: frames, or a `VideoError`. What may not: another exception, a
crash of the process, more than 10 s, other bits. Other bits are "unrepeated" where reading the same file in both ways
again and again gives some bits in common: FFmpeg's decoder of VP8 patches up some damage with what is in memory.

One mutation in a hundred crashes its process: in the middle of decoding it gets SIGKILL or SIGSEGV, or no more memory
than it has. These go, each among a few others, the engine's own way (`data.process_rows`): the clip must be left out
and named, the others not. Then `--runs` runs over whole folders of crashing clips, by turns without and with a Ray
worker: each run must finish and name every crashing clip in `bad_samples.jsonl`.

Takes about ten minutes on two cores. Without the folder of real clips it mutates clips that it renders.
"""

import argparse
import json
import os
import queue
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from deaths import HOWS, how_of, make_crashing

HANG_S = 10.0
"""A clip must be done by then; on a busy machine later."""
REPEATS = 40
"""How often a clip is decoded again that gave other bits."""
DEATHS = 12
"""A crashing one may take so many times as long: processes are started four or five times."""
DEADLY, AMONG = 100, 4
"""One mutation in so many crashes its process, and goes among so many that follow it."""
RUN_CLIPS, RUN_S = (12, 24, 12), 900.0
"""Crashing, damaged and sound clips of a run, and how long it may take."""
START_S = 60.0
"""A new process must be ready by then."""
ADDRESS_BYTES = 4 << 30
SMALL_BYTES = 200_000
SIZE_PX = 32
REAL_CLIPS = Path(__file__).resolve().parents[3] / "shared" / "clips"


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
            stream: Any = container.add_stream(codec, rate=10, options={"g": "8"})
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
        length = int(min(size - place, 2 ** int(rng.integers(0, 14))))
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
    """Decode one file every way: "frames", a stage of `VideoError`, "differs", "unrepeated", or "escaped: ..."."""
    from kinoray.decoding.clip import Clip, Probe
    from kinoray.decoding.decode import decode_clip
    from kinoray.decoding.forms import FrameForm
    from kinoray.decoding.probe import probe_clip
    from kinoray.decoding.sampling import Timeline
    from kinoray.errors import VideoError

    rng = np.random.default_rng(seed)
    square, centre = FrameForm(SIZE_PX), FrameForm(2 * SIZE_PX, "centre", SIZE_PX)
    form = (square, centre, FrameForm(SIZE_PX, "rectangle"))[seed % 3]
    chosen = np.zeros(0, np.int64)

    def choose(timeline: Timeline) -> np.ndarray:
        nonlocal chosen
        chosen = np.sort(rng.integers(0, timeline.num_frames, 5))
        return chosen

    try:
        frames = decode_clip(Clip("clip", str(path)), choose, form)
        facts = probe_clip(Clip("clip", str(path)))
        probe = Probe(facts["digest"], facts["num_frames"], tuple(facts["key_frames"]), tuple(facts["key_ticks"]))
        sought = decode_clip(Clip("clip", str(path), probe=probe), lambda _: chosen, form)
        if np.array_equal(frames, sought):
            return "frames"
        through, by_seeking = {frames.tobytes()}, {sought.tobytes()}
        for _ in range(REPEATS):
            through.add(decode_clip(Clip("clip", str(path)), lambda _: chosen, form).tobytes())
            by_seeking.add(decode_clip(Clip("clip", str(path), probe=probe), lambda _: chosen, form).tobytes())
        return "unrepeated" if through & by_seeking else "differs"
    except VideoError as error:
        return error.stage
    except Exception as error:  # whatever else comes out is what this looks for
        return f"escaped: {type(error).__name__}: {error}"


def crash_of(number: int) -> str:
    """One of HOWS for a crashing mutation, else ""."""
    return HOWS[number // DEADLY % len(HOWS)] if number % DEADLY == DEADLY // 2 else ""


def written(clips: list[Path], seed: int, number: int, folder: Path) -> Path:
    """The file of a mutation; its name tells how it crashes its process, if it does."""
    name, data = mutated(clips, seed, number)
    path = folder / f"{number}-{crash_of(number)}{Path(name).suffix}"
    path.write_bytes(data)
    return path


def guarded_outcome(clips: list[Path], seed: int, number: int, folder: Path) -> str:
    """Read a crashing clip and a few others as the engine does: "named", or what else came of it."""
    from kinoray.data.manifest import write_manifest
    from kinoray.data.process_rows import process_rows
    from kinoray.data.slots import ClipReader, coming
    from kinoray.decoding.forms import FrameForm
    from kinoray.decoding.frame_cache import OFF
    from kinoray.decoding.sampling import Sampling

    paths = [written(clips, seed, n, folder) for n in range(number, number + AMONG + 1)]
    entries = [{"id": path.name, "uri": path.name, "split": "test"} for path in paths]
    manifest = write_manifest(entries, folder / f"{number}.parquet", folder).path
    sampling, rows = Sampling("uniform", 4), tuple(range(len(paths)))
    reader = ClipReader(str(manifest), rows, sampling, FrameForm(SIZE_PX), len(paths), OFF)
    try:
        crashing, *others = list(process_rows(reader, coming(reader, 0)))
    except Exception as error:  # whatever comes out is what this looks for
        return f"escaped: {type(error).__name__}: {error}"
    finally:
        for path in (*paths, manifest):
            path.unlink()
    if [record["id"] for record in crashing.bad] != [paths[0].name]:
        return f"unnamed: {crashing.bad}"
    wrong = [row.bad for row in others if row.bad and row.bad[0]["error"] == "ProcessDied"]
    return f"innocent named: {wrong}" if wrong else "named"


def work(clips: list[Path], seed: int) -> None:
    """A process of the pool: numbers in, one line of JSON out for each."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from kinoray.decoding import probe as index  # noqa: F401  (the slow part of starting)

    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps("ready"), flush=True)
        for line in sys.stdin:
            number = int(line)
            if crash_of(number):
                make_crashing()
                result = guarded_outcome(clips, seed, number, Path(folder))
            else:
                path = written(clips, seed, number, Path(folder))
                result = outcome(path, number)
                path.unlink()
            # Not `getrusage`, whose number is carried over `exec`.
            peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
            print(json.dumps({"outcome": result, "peak_bytes": int(peak[1]) * 1024 if peak else 0}), flush=True)


class Worker:
    """One process of the pool; it is started again after a crash or a hang."""

    def __init__(self, clips: list[Path], seed: int, hang_s: float) -> None:
        self.hang_s = hang_s
        words = [sys.executable, __file__, "--seed", str(seed), "--work", *map(str, clips)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._answer(START_S / HANG_S * hang_s) == "ready"

    def ask(self, number: int) -> dict[str, Any]:
        """The outcome of one mutation: what the process says, or "hang" or "crash" where it says nothing."""
        assert self.process.stdin
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()
        return self._answer(DEATHS * self.hang_s if crash_of(number) else self.hang_s)

    def _answer(self, limit_s: float) -> Any:
        assert self.process.stdout
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            return {"outcome": "hang", "peak_bytes": 0}
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"outcome": f"crash: status {self.process.wait()}", "peak_bytes": 0}

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def campaign(
    count: int, seed: int = 0, jobs: int = 2, folder: Path | None = REAL_CLIPS, hang_s: float = HANG_S
) -> dict[str, Any]:
    """Decode `count` mutations; counts of what happened, the worst numbers, and what must not have happened."""
    numbers: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(count):
        numbers.put(number)
    results: list[tuple[int, dict[str, Any], float]] = []
    with tempfile.TemporaryDirectory() as made:
        clips = small_clips(folder, Path(made))

        def serve() -> None:
            worker = Worker(clips, seed, hang_s)
            try:
                while not numbers.empty():
                    try:
                        number = numbers.get_nowait()
                    except queue.Empty:
                        return
                    begun = time.monotonic()
                    result = worker.ask(number)
                    if crash_of(number):
                        print(f"crashing mutation {number}: {result['outcome']}", flush=True)
                    results.append((number, result, time.monotonic() - begun))
                    if worker.process.poll() is not None or result["outcome"] == "hang":
                        worker.end()
                        worker = Worker(clips, seed, hang_s)
            finally:
                worker.end()

        threads = [threading.Thread(target=serve) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    kinds = Counter(result["outcome"].split(":")[0] for _, result, _ in results)
    allowed = ("frames", "open", "decode", "limits", "named", "unrepeated")
    return {
        "mutations": len(results),
        "crashes": kinds["crash"],
        "hangs": kinds["hang"],
        "escaped": kinds["escaped"],
        "differs": kinds["differs"],
        "unrepeated": kinds["unrepeated"],
        "crashing": sum(bool(crash_of(number)) for number, _, _ in results),
        "named": kinds["named"],
        "peak_memory_mb": max(result["peak_bytes"] for _, result, _ in results) // 2**20,
        "slowest_s": round(max(took for number, _, took in results if not crash_of(number)), 2),
        "slowest_deadly_s": round(max((took for number, _, took in results if crash_of(number)), default=0.0), 2),
        "outcomes": dict(kinds),
        "bad": sorted((number, result["outcome"]) for number, result, _ in results if result["outcome"] not in allowed),
    }


def run_over_deaths(index: int, seed: int, clips: list[Path], place: Path, workers: int) -> dict[str, Any]:
    """A run over crashing, damaged and sound clips: whether it finished, and what it named."""
    num_crashing, num_damaged, num_sound = RUN_CLIPS
    folder = place / f"clips-{index}"
    folder.mkdir()
    first = index * num_crashing
    numbers = [DEADLY * n + DEADLY // 2 for n in range(first, first + num_crashing)]
    numbers += [DEADLY * n + 1 for n in range(first * 2, first * 2 + num_damaged)]
    names = [written(clips, seed, number, folder).name for number in numbers]
    for n in range(num_sound):
        sound = clips[n % len(clips)]
        names.append(f"sound{n}{sound.suffix}")
        (folder / names[-1]).write_bytes(sound.read_bytes())
    rows = [f"{name},a clip {n},{('train', 'train', 'test', 'validation')[n % 4]}" for n, name in enumerate(names)]
    (folder / "captions.csv").write_text("\n".join(["video,caption,split", *rows]) + "\n")
    command = [sys.executable, __file__, "--drive", str(folder), str(place / f"runs-{index}"), str(workers)]
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=RUN_S)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate()
        output = f"hang: {output}"
    listed = [path for path in place.glob(f"runs-{index}/*/seed-0/bad_samples.jsonl")]
    bad = {json.loads(line)["id"] for path in listed for line in path.read_text().splitlines()}
    return {
        "workers": workers,
        "finished": process.returncode == 0,
        "crashing": num_crashing,
        "named": sum(bool(how_of(name)) for name in bad),
        "sound_named": sum(name.startswith("sound") for name in bad),
        "seconds": round(time.monotonic() - begun),
        "said": [] if process.returncode == 0 else output.strip().splitlines()[-1:],
    }


def drive(folder: Path, runs: Path, workers: int) -> None:
    """The run, in a process of its own."""
    os.environ["KINORAY_CACHE"] = "off"
    import kinoray
    from kinoray.config import config
    from kinoray.methods import base_moco
    from kinoray.runs.result import Result

    class Method(base_moco.Method):
        """Makes clips crash where it trains: decoding is asked for there."""

        @config
        class Config(base_moco.Config):
            queue_size: int = 16

        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            make_crashing()

    settings: dict[str, Any] = {"max_bad_fraction": 1.0, "epochs": 2, "batch_size": 8, "validations": 1}
    result = kinoray.run(Method, stream=str(folder), num_workers=workers, runs=runs, settings=settings, quiet=True)
    assert isinstance(result, Result)
    assert result.outcome["state"] == "finished", result.outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--hang-s", type=float, default=HANG_S, help="how long a mutation may take")
    parser.add_argument("--runs", type=int, default=4, help="runs over folders of crashing clips")
    parser.add_argument("--clips", type=Path, default=REAL_CLIPS)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", nargs="+", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--drive", nargs=3, metavar=("CLIPS", "RUNS", "WORKERS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.drive:
        folder, runs, workers = options.drive
        drive(Path(folder), Path(runs), int(workers))
        return
    if options.work:
        work(options.work, options.seed)
        return
    numbers = campaign(options.count, options.seed, options.jobs, options.clips, options.hang_s)
    bad, outcomes = numbers.pop("bad"), numbers.pop("outcomes")
    for number, result in bad:
        print(f"mutation {number}: {result}")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(outcomes.items())))
    for name, value in numbers.items():
        print(f"{name:16} {value}")
    with tempfile.TemporaryDirectory(prefix="kinoray-deaths-") as name:
        clips = small_clips(options.clips, Path(name))
        ends = [run_over_deaths(n, options.seed, clips, Path(name), n % 2) for n in range(options.runs)]
    for end in ends:
        print(", ".join(f"{name} {value}" for name, value in end.items()))
    numbers["runs"], numbers["runs_finished"] = len(ends), sum(end["finished"] for end in ends)
    numbers["crashing_in_runs"], numbers["named_in_runs"] = (sum(end[k] for end in ends) for k in ("crashing", "named"))
    if options.json:
        print(json.dumps(numbers))
    wrong = [e for e in ends if not e["finished"] or e["named"] != e["crashing"] or e["sound_named"]]
    sys.exit(1 if bad or wrong else 0)


if __name__ == "__main__":
    main()
