"""What checking videos costs: the memory of probing a large one, and `kinoray data check` against decoding each once.

    python benchmarks/data_check.py [--clips 5000] [--rounds 3] [--seconds 10] [--json] [--keep]

Memory: a process of its own probes 4K of FFmpeg's moving test pattern (H.264, 30 frames a second, x264's defaults) and
says how much it held at most, and how much before it began. Bar: 250 MB at most.

Time: a folder of short clips (320 x 240, 25 frames, H.264; a few are encoded, each file has bytes of its own) is
checked by `check_folder`, as `kinoray data check FOLDER` does, and every file is decoded once by plain PyAV, by turns
and on one core, with one thread. Bar: the check takes 3 times as long at most, with the start of its process; the
median of the rounds. Beyond a bar the script exits with 1. `--keep` writes `results/data_check.md`.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import av
from shared.numbers_page import show_numbers

from kinoray.report.check_folder import check_folder
from kinoray.streams.own_folder import own_folder

RESULTS = Path(__file__).parent / "results"
KINDS = 8
"""Clips that are encoded; all others have their frames."""
MOST_MB, MOST_RATIO = 250, 3.0
PROBE = """
import re, sys
from pathlib import Path
from kinoray.decoding.clip import Clip
from kinoray.decoding.probe import probe_clip
def held(name):
    return re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
before = held("VmRSS")
probe_clip(Clip("clip", sys.argv[1]))
print(before, held("VmHWM"))
"""


def render(path: Path, size: tuple[int, int], frames: int, rate: int, first: int = 0) -> Path:
    """FFmpeg's test pattern as H.264, `frames` of it from number `first` on."""
    graph = av.filter.Graph()
    source = graph.add("testsrc2", f"size={size[0]}x{size[1]}:rate={rate}")
    shaped = graph.add("format", "yuv420p")
    sink = graph.add("buffersink")
    source.link_to(shaped)
    shaped.link_to(sink)
    graph.configure()
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(first + frames):
            frame: Any = sink.pull()
            if number >= first:
                frame.pts = number - first
                container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def memory(folder: Path, seconds: int) -> dict[str, float]:
    """Megabytes that a process holds at most while it probes 4K, and before."""
    clip = render(folder / "large.mp4", (3840, 2160), 30 * seconds, 30)
    words = [sys.executable, "-c", PROBE, str(clip)]
    before, peak = map(int, re.findall(r"\d+", subprocess.check_output(words, text=True)))
    clip.unlink()
    return {"probe of 4K, peak MB": peak / 1024, "of it before probing, MB": before / 1024}


def make_clips(folder: Path, count: int) -> Path:
    """A folder of so many short clips with a caption file."""
    folder.mkdir()
    kinds = [render(folder.parent / f"{n}.mp4", (320, 240), 25, 25, 10 * n).read_bytes() for n in range(KINDS)]
    names = [f"{number:06d}.mp4" for number in range(count)]
    for number, name in enumerate(names):
        box = number.to_bytes(8, "big")
        (folder / name).write_bytes(kinds[number % KINDS] + (16).to_bytes(4, "big") + b"free" + box)
    (folder / "captions.csv").write_text("video,caption\n" + "".join(f"{name},a pattern\n" for name in names))
    return folder


def plain(folder: Path) -> float:
    """Seconds to decode every clip once."""
    begun, frames = time.monotonic(), 0
    for path in folder.glob("*.mp4"):
        with av.open(str(path)) as container:
            container.streams.video[0].thread_count = 1
            frames += sum(1 for _ in container.decode(video=0))
    assert frames and frames % 25 == 0
    return time.monotonic() - begun


def checked(folder: Path) -> float:
    """Seconds to check the folder."""
    begun = time.monotonic()
    assert not check_folder(own_folder(str(folder)), progress=False).problems
    return time.monotonic() - begun


def times(folder: Path, rounds: int) -> dict[str, float]:
    """Medians over the rounds, on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    pairs = [(plain(folder), checked(folder)) for _ in range(rounds)]
    ratios = [check / once for once, check in pairs]
    return {
        "decoding each once, s": statistics.median(once for once, _ in pairs),
        "check, s": statistics.median(check for _, check in pairs),
        "check / decoding": statistics.median(ratios),
        "check / decoding at most": max(ratios),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=10, help="of 4K; 0 leaves memory out")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as name:
        numbers = memory(Path(name), options.seconds) if options.seconds else {}
        numbers |= times(make_clips(Path(name) / "clips", options.clips), options.rounds)
    title = f"Checking {options.clips:,} clips on one core, and the memory of probing {options.seconds} s of 4K"
    show_numbers(title, numbers, RESULTS / "data_check.md" if options.keep else None, options.json)
    return int(numbers.get("probe of 4K, peak MB", 0) > MOST_MB or numbers["check / decoding"] > MOST_RATIO)


if __name__ == "__main__":
    sys.exit(main())
