"""Decoding speed: kinoray through Ray Data against the limit of its own decoder, against other readers, and seeking.

    python benchmarks/decode.py [--json] [--rows 1600] [--rounds 3] [--processes N] [--clips FOLDER] [--peers FOLDER]
    python benchmarks/decode.py --forms [--rounds 3]        what each form of frames costs, of 16:9 clips alone
    python benchmarks/decode.py --stored [--rounds 3]       four drawn frames at 384 px: decoded, and out of the cache

Every side delivers the same frames of the same clips, uint8 at the training size, in the order of the rows, from as
many processes with one thread each: 12 uniform frames at 224 px, and 32 consecutive ones at 112 px, of the real clips
of 10 to 31 seconds (rendered ones where there are none). The limit is `read_clip` in plain processes that send nothing
anywhere. Rates of all sides are those between a quarter and three quarters of the rows, so nobody's start or end
counts; sides take turns, ratios are medians over the rounds, and every round's rates are printed. The last column is
the mean difference to kinoray's frames in grey levels: other readers scale and convert colours a little differently,
but a wrong frame shows.

The other readers are no dependencies; one that cannot be imported is left out, with the reason. To have them:
`pip install --no-deps --target FOLDER torchcodec==0.13.* opencv-python-headless decord`, and for torchcodec the shared
libraries of FFmpeg on LD_LIBRARY_PATH.

Bars: vs_pyav_limit >= 0.95, vs_best_peer > 1 (each the worse of both cases), seek_speedup >= 5 (12 frames of a video of
five minutes with a key frame every 60, against decoding it through), first batch <= 10 s cold, <= 3 s warm.
Takes half an hour on two cores with all peers.
"""

import argparse
import csv
import itertools
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

REAL_CLIPS = Path(__file__).resolve().parents[2] / "shared" / "clips"
BATCH = 8
STEADY = 0.25, 0.75
"""From which share of the rows to which the time counts: no side gains by rows that lie ready at either end, or by Ray
Data's tasks, which are smaller there. They come in bursts, of a task's rows or of those that waited for it: with 480
rows, and tasks of 32 MB, the line erred by 20 %, with 1,200 by 4 %."""
LONG_S, LONG_FPS, KEY_FRAMES_EVERY = 300, 30, 60

Reader = Callable[[str, list[int], int], np.ndarray]
"""Path, frame numbers, size in pixels -> uint8 (T, size, size, 3)."""


@dataclass(frozen=True)
class Case:
    name: str
    kind: str
    count: int
    size_px: int
    share: float
    """Rows of the case in those asked for: the cases take equally long."""


CASES = (
    Case("12 uniform, 224 px", "uniform", 12, 224, share=1.0),
    Case("32 consecutive, 112 px", "consecutive", 32, 112, share=2.5),
)


# Readers: the same frames by other means.


def read_torchcodec(path: str, frames: list[int], size_px: int, mode: str = "exact") -> np.ndarray:
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import Resize

    import kinoray.backbones.vision  # noqa: F401  (it makes torchvision importable beside a CPU torch)

    resize = Resize((size_px, size_px))
    decoder = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode=mode, transforms=[resize])
    return decoder.get_frames_at(frames).data.numpy()


def read_opencv(path: str, frames: list[int], size_px: int) -> np.ndarray:
    """By grabbing every frame up to the last one: its seeking is not promised to be exact."""
    import cv2

    cv2.setNumThreads(1)
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG, [cv2.CAP_PROP_N_THREADS, 1])
    pictures: dict[int, np.ndarray] = {}
    for number in range(max(frames) + 1):
        capture.grab()
        if number in frames:
            image = capture.retrieve()[1]
            pictures[number] = cv2.cvtColor(cv2.resize(image, (size_px, size_px)), cv2.COLOR_BGR2RGB)
    capture.release()
    return np.stack([pictures[number] for number in frames])


def read_decord(path: str, frames: list[int], size_px: int) -> np.ndarray:
    import decord

    return decord.VideoReader(path, width=size_px, height=size_px, num_threads=1).get_batch(frames).asnumpy()


PEERS: dict[str, Reader] = {
    "torchcodec": read_torchcodec,
    "torchcodec approximate": partial(read_torchcodec, mode="approximate"),
    "opencv": read_opencv,
    "decord": read_decord,
}


# Clips.


def clips_to_read(folder: Path, made: Path) -> list[Path]:
    """Real clips of 10 to 31 seconds that every reader knows, 4:2:0; rendered ones where the folder is not there.

    Each has one video stream: of several, others take the largest, kinoray the first.
    """
    table = folder / "clips.csv"
    if not table.is_file():
        return [_render(made / f"clip-{n}.mp4", 300, (320, 240), 250, seed=n) for n in range(8)]
    with table.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["codec"] in ("h264", "mpeg4") and row["duration_s"]]
    fit = [row for row in rows if 9.9 <= float(row["duration_s"]) <= 31 and row["pix_fmt"] == "yuv420p"]
    paths = [folder / row["file"] for row in fit if not row["notes"]]
    return [path for path in paths if _num_streams(path) == 1]


def _num_streams(path: Path) -> int:
    import av

    with av.open(str(path), metadata_errors="replace") as container:
        return len(container.streams.video)


def _render(path: Path, num_frames: int, size: tuple[int, int], key_frames_every: int, seed: int = 0) -> Path:
    """Textured pictures sliding over one another, H.264."""
    import av

    width, height = size
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (2, height // 8, width // 8, 3), dtype=np.uint8)
    back, front = np.kron(coarse, np.ones((1, 8, 8, 1), np.uint8))
    with av.open(str(path), "w") as container:
        options = {"preset": "veryfast", "x264-params": f"keyint={key_frames_every}:scenecut=0"}
        stream = container.add_stream("libx264", rate=LONG_FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number in range(num_frames):
            picture = np.roll(back, number, axis=1)
            picture[40:120, 40:120] = np.roll(front, (3 * number, -2 * number), axis=(0, 1))[40:120, 40:120]
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def make_manifest(clips: list[Path], probed: list[dict[str, Any]], rows: int, path: Path) -> Any:
    """`rows` rows over the clips and what `kinoray data prepare` knows of them."""
    from kinoray.data.manifest import write_manifest

    table = [
        {"id": str(row), "uri": clips[row % len(clips)].name, "split": "train", **probed[row % len(clips)]}
        for row in range(rows)
    ]
    return write_manifest(table, path, clips[0].parent)


def targets(manifest: Any, case: Case) -> list[tuple[str, list[int]]]:
    """Path and frame numbers of every row."""
    from kinoray.decoding.sampling import Sampling, Timeline

    rule = Sampling(case.kind, case.count)  # type: ignore[arg-type]
    wanted = []
    for row in range(len(manifest.table)):
        clip = manifest.clip(row)
        wanted.append((clip.path, rule.frames(Timeline(clip.probe.num_frames, lambda: np.zeros(0)), 0).tolist()))
    return wanted


# Sides: each yields batches of frames, uint8 (n, T, size, size, 3), in the order of the rows.


def clip_reader(manifest: Any, case: Case, rank: int = 0, ranks: int = 1) -> Any:
    """What a rank reads: its share of the rows, nothing from a cache."""
    from kinoray.data.slots import ClipReader
    from kinoray.decoding.forms import FrameForm
    from kinoray.decoding.frame_cache import OFF
    from kinoray.decoding.sampling import Sampling

    rule = Sampling(case.kind, case.count)  # type: ignore[arg-type]
    rows = tuple(range(rank, len(manifest.table), ranks))
    return ClipReader(str(manifest.path), rows, rule, FrameForm(case.size_px), BATCH, OFF, ranks)


def kinoray_side(manifest: Any, case: Case, processes: int) -> Iterator[np.ndarray]:
    from kinoray.data.pipeline import decode_clips

    for clips in decode_clips(clip_reader(manifest, case), processes):
        yield clips.video


class Targets:
    """Rows for PyTorch's loader."""

    def __init__(self, reader: Reader, rows: list[tuple[str, list[int]]], size_px: int) -> None:
        self.reader, self.rows, self.size_px = reader, rows, size_px

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> np.ndarray:
        return self.reader(*self.rows[row], self.size_px)


def loader_side(reader: Reader, rows: list[tuple[str, list[int]]], case: Case, processes: int) -> Iterator[np.ndarray]:
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        Targets(reader, rows, case.size_px),  # type: ignore[arg-type]
        batch_size=BATCH,
        num_workers=processes,
        multiprocessing_context="spawn",
    )
    for batch in loader:
        yield batch.numpy()


def steady_rate(batches: Iterator[np.ndarray], rows: int) -> float:
    """Clips per second while the count is within `STEADY`: the slope of the line through the arrivals."""
    seen, arrivals = 0, []
    for batch in batches:
        seen += len(batch)
        arrivals.append((time.perf_counter(), seen))
    assert seen == rows, (seen, rows)
    return slope(arrivals, rows)


def slope(arrivals: list[tuple[float, int]], rows: int) -> float:
    """Rows per second of (time, rows so far) while the count is within `STEADY`."""
    times, counts = zip(*[(at, n) for at, n in arrivals if STEADY[0] <= n / rows <= STEADY[1]], strict=True)
    return float(np.polyfit(times, counts, 1)[0])


def _limit_process(clips: list[Any], case: Case, gate: Any, times: Any) -> None:
    from kinoray.decoding.forms import FrameForm
    from kinoray.decoding.read_clip import read_clip
    from kinoray.decoding.sampling import Sampling

    rule = Sampling(case.kind, case.count)  # type: ignore[arg-type]
    read_clip(clips[0], rule, 0, FrameForm(case.size_px))
    gate.wait()
    done = []
    for clip in clips:
        read_clip(clip, rule, 0, FrameForm(case.size_px))
        done.append(time.perf_counter())  # one clock for all processes
    times.put(done)


def limit_rate(manifest: Any, case: Case, processes: int) -> float:
    """Clips per second of the decoder alone: processes that have a share of the rows each, and nothing is sent."""
    context = multiprocessing.get_context("spawn")
    gate, times = context.Barrier(processes), context.Queue()
    clips = [manifest.clip(row) for row in range(len(manifest.table))]
    shares = [clips[rank::processes] for rank in range(processes)]
    started = [context.Process(target=_limit_process, args=(share, case, gate, times)) for share in shares]
    for process in started:
        process.start()
    done = sorted(itertools.chain.from_iterable(times.get() for _ in started))
    for process in started:
        process.join()
    return slope([(at, rows) for rows, at in enumerate(done, 1)], len(clips))


def read_videos_rate(rows: list[tuple[str, list[int]]], case: Case) -> float:
    """Clips per second of `ray.data.read_videos`, which decodes every frame of each file into a row of its own."""
    import ray.data

    paths = list(dict.fromkeys(path for path, _ in rows))
    frames, begun, total = ray.data.read_videos(paths, resize=(case.size_px, case.size_px), include_paths=True), 0.0, 0
    seen: set[str] = set()
    for batch in frames.iter_batches(batch_size=64, batch_format="numpy"):
        begun = begun or time.perf_counter()
        total += len(batch["path"])
        seen.update(batch["path"])
    return len(seen) / (time.perf_counter() - begun)


# What is measured.


def usable(peers: dict[str, Reader], path: str) -> dict[str, Reader]:
    """The readers that can read a clip here; says of the others why not."""
    readers: dict[str, Reader] = {}
    for name, reader in peers.items():
        try:
            reader(path, [0], 32)
        except Exception as error:  # each has its own ways not to work
            reason = (str(error).strip().splitlines() or [""])[0]
            print(f"left out: {name}: {type(error).__name__}: {reason[:120]}", file=sys.stderr)
        else:
            readers[name] = reader
    return readers


def difference(reader: Reader, rows: list[tuple[str, list[int]]], manifest: Any, case: Case) -> float:
    """Mean absolute difference to kinoray's frames over the different clips, in grey levels of 255."""
    from kinoray.decoding.decode import decode_clip
    from kinoray.decoding.forms import FrameForm

    first = {path: (row, frames) for row, (path, frames) in reversed(list(enumerate(rows)))}
    gaps = []
    for path, (row, frames) in first.items():
        ours = decode_clip(manifest.clip(row), partial(_these, np.array(frames)), FrameForm(case.size_px))
        gaps.append(np.abs(ours.astype(int) - reader(path, frames, case.size_px).astype(int)).mean())
    return float(np.mean(gaps))


def _these(frames: np.ndarray, timeline: Any) -> np.ndarray:
    return frames


def _loader_rate(reader: Reader, rows: list[tuple[str, list[int]]], case: Case, processes: int) -> float:
    return steady_rate(loader_side(reader, rows, case, processes), len(rows))


def compare(manifest: Any, case: Case, peers: dict[str, Reader], processes: int, rounds: int) -> dict[str, float]:
    """Rates of every side, clips per second, and of kinoray against the limit and the best peer."""
    rows = targets(manifest, case)
    sides: dict[str, Callable[[], float]] = {
        "kinoray, Ray Data": lambda: steady_rate(kinoray_side(manifest, case, processes), len(rows)),
        "kinoray, plain processes": lambda: limit_rate(manifest, case, processes),
    }
    for name, reader in peers.items():
        sides[name] = partial(_loader_rate, reader, rows, case, processes)
    if "decord" in peers:
        sides["ray.data.read_videos"] = lambda: read_videos_rate(rows, case)
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(rounds):
        order = list(sides)
        for name in order if turn % 2 == 0 else order[::-1]:
            rates[name].append(sides[name]())
    ours, limit, *others = rates.values()
    gaps = {name: f"{difference(reader, rows, manifest, case):.2f}" for name, reader in peers.items()}
    print(f"\n{case.name}, {len(rows)} rows, {processes} processes")
    for name, per_round in rates.items():
        each = " ".join(f"{rate:.1f}" for rate in per_round)
        print(f"  {name:26} {median(per_round):8.1f} clips/s  {gaps.get(name, ''):>6}   {each}")
    best = [max(per_round) for per_round in zip(*others, strict=True)]
    return {
        "vs_pyav_limit": median(a / b for a, b in zip(ours, limit, strict=True)),
        **({"vs_best_peer": median(a / b for a, b in zip(ours, best, strict=True))} if others else {}),
    }


def seek_speedup(folder: Path) -> float:
    """12 frames of a long video with its key-frame index, against decoding through."""
    from kinoray.decoding.clip import Clip, Probe
    from kinoray.decoding.forms import FrameForm
    from kinoray.decoding.probe import probe_clip
    from kinoray.decoding.read_clip import read_clip
    from kinoray.decoding.sampling import Sampling

    path = str(_render(folder / "long.mp4", LONG_S * LONG_FPS, (320, 240), KEY_FRAMES_EVERY))
    facts = probe_clip(Clip("long", path))
    keys = tuple(facts["key_frames"])
    assert max(np.diff([*keys, facts["num_frames"]])) <= KEY_FRAMES_EVERY
    probe = Probe(facts["digest"], facts["num_frames"], keys, tuple(facts["key_ticks"]))
    clips, rule = (Clip("long", path), Clip("long", path, probe=probe)), Sampling("uniform", 12)
    took: tuple[list[float], list[float]] = [], []
    frames = []
    for _ in range(3):
        for clip, times in zip(clips, took, strict=True):
            begun = time.perf_counter()
            frames.append(read_clip(clip, rule, 0, FrameForm(224)))
            times.append(time.perf_counter() - begun)
    assert all(np.array_equal(frames[0], other) for other in frames)
    through, sought = map(median, took)
    print(f"\n12 frames of {LONG_S} s: through {through:.3f} s, seeking {sought:.3f} s")
    return through / sought


def forms_cost(folder: Path, rounds: int) -> None:
    """Clips per second of CPU time, and bytes, of crops' rectangles and of tests' centre cuts, each as a share of those
    of the square with the same short side; the forms take turns."""
    from kinoray.decoding.clip import Clip, Probe
    from kinoray.decoding.forms import FrameForm
    from kinoray.decoding.probe import probe_clip
    from kinoray.decoding.read_clip import read_clip
    from kinoray.decoding.sampling import Sampling

    for size in ((640, 360), (1280, 720)):
        path = str(_render(folder / f"{size[0]}.mp4", 300, size, 250))
        facts = probe_clip(Clip("wide", path))
        probe = Probe(facts["digest"], facts["num_frames"], tuple(facts["key_frames"]), tuple(facts["key_ticks"]))
        for case, short_px, cut in zip(CASES, (256, 168), ((224, "bicubic"), (168, "bilinear")), strict=True):
            forms = {
                "square": FrameForm(short_px),
                "rectangle": FrameForm(short_px, "rectangle"),
                "centre": FrameForm(cut[0], "centre", case.size_px, cut[1]),  # type: ignore[arg-type]
            }
            rule = Sampling(case.kind, case.count)  # type: ignore[arg-type]
            took: dict[str, list[float]] = {name: [] for name in forms}
            held: dict[str, int] = {}
            for _ in range(rounds):
                for name, form in forms.items():
                    begun = time.process_time()
                    for seed in range(4):
                        held[name] = read_clip(Clip("wide", path, probe=probe), rule, seed, form).nbytes
                    took[name].append((time.process_time() - begun) / 4)
            print(f"\n{case.name}, {size[0]} x {size[1]}")
            for name in forms:
                rate, bytes_ = (median(took["square"]) / median(took[name]), held[name] / held["square"])
                print(f"  {name:10} {1 / median(took[name]):7.1f} clips/s  x {rate:.2f}   bytes x {bytes_:.2f}")


def stored_cost(folder: Path, clips: list[Path], rounds: int) -> None:
    """Clips per second of CPU time that are decoded, and that the frame cache holds as they are and as JPEG, with the
    megabytes that a clip takes there; clips that it keeps whole."""
    from kinoray.decoding.clip import Clip
    from kinoray.decoding.forms import FrameForm
    from kinoray.decoding.frame_cache import OFF, Cache, fetch_clip, holds_clip
    from kinoray.decoding.sampling import Sampling

    rule = Sampling("random", 4)
    read = [Clip(path.name, str(path)) for path in clips]
    for codec in ("raw", "jpeg"):
        form, cache = FrameForm(384, codec=codec), Cache(str(folder / codec))  # type: ignore[arg-type]
        begun = time.process_time()
        kept = [clip for clip in read if fetch_clip(clip, rule, 0, form, cache) and holds_clip(clip, rule, form, cache)]
        first_s = (time.process_time() - begun) / len(read)
        took: dict[str, list[float]] = {"decoded": [], "stored": []}
        for seed in range(1, rounds + 1):
            for name, used, these in (("decoded", OFF, read), ("stored", cache, kept)):
                begun = time.process_time()
                for clip in these:
                    fetch_clip(clip, rule, seed, form, used)
                took[name] += [(time.process_time() - begun) / len(these)] if these else []
        megabytes = sum(file.stat().st_size for file in (folder / codec).rglob("*.frames")) / max(1, len(kept)) / 1e6
        rates = ", ".join(f"{name} {1 / median(times):.1f} clips/s" for name, times in took.items() if times)
        print(f"{codec}: {len(kept)} of {len(read)} clips are kept whole, {megabytes:.1f} MB each; {rates}")
        print(f"  the first time a clip takes {first_s:.2f} CPU-s")


def first_batches(manifest: Any, processes: int) -> tuple[float, float]:
    """Seconds to the first batch of 8 clips of 12 frames: in a fresh Ray, and once its workers run."""
    took = []
    for _ in range(2):
        begun = time.perf_counter()
        batches = kinoray_side(manifest, CASES[0], processes)
        next(batches)
        took.append(time.perf_counter() - begun)
        for _ in batches:  # to the end, as every task of a stream: one cut short takes its workers with it
            pass
    return took[0], took[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--clips", type=Path, default=REAL_CLIPS)
    parser.add_argument("--peers", type=Path, help="where the other readers are installed")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--forms", action="store_true")
    parser.add_argument("--stored", action="store_true")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    if options.forms:
        with tempfile.TemporaryDirectory(prefix="kr", dir="/tmp") as folder:
            forms_cost(Path(folder), options.rounds)
        return
    if options.stored:
        with tempfile.TemporaryDirectory(prefix="kr", dir="/tmp") as folder:
            stored_cost(Path(folder), clips_to_read(options.clips, Path(folder)), options.rounds)
        return
    if options.peers:  # for the processes, too
        sys.path.append(str(options.peers))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(options.peers)]))
    from kinoray.decoding.clip import Clip
    from kinoray.decoding.probe import probe_clip
    from kinoray.system.ray_session import ray_session

    numbers: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="kr", dir="/tmp") as folder:
        made = Path(folder)
        numbers["seek_speedup"] = seek_speedup(made)
        clips = clips_to_read(options.clips, made)
        probed = [probe_clip(Clip("clip", str(clip))) for clip in clips]
        manifests = [
            make_manifest(clips, probed, round(options.rows * case.share), made / f"{number}.parquet")
            for number, case in enumerate(CASES)
        ]
        with ray_session("decode"):  # as a run has it
            cold_s, warm_s = first_batches(manifests[0], options.processes)
            numbers |= {"decode_first_batch_cold_s": cold_s, "decode_first_batch_warm_s": warm_s}
            peers = usable(PEERS, manifests[0].clip(0).path)
            results = [
                compare(manifest, case, peers, options.processes, options.rounds)
                for manifest, case in zip(manifests, CASES, strict=True)
            ]
    numbers |= {name: min(result[name] for result in results) for name in results[0]}
    print()
    for name, value in numbers.items():
        print(f"{name:28} {value:8.2f}")
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in numbers.items()}))


if __name__ == "__main__":
    main()
