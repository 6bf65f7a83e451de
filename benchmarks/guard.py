"""What it costs to decode where a crash ends no run: processes of the run's own against threads inside it.

    python benchmarks/guard.py [--json] [--rows 240] [--rounds 3] [--clips FOLDER]

Both decode the same rows of four real clips, two at a time, 12 uniform frames at 224 px: probed ones without a frame
cache, whose frames are all sent, and spans that differ into an empty one, where they go through the cache. Threads are
how it was before: a decoder that crashed took the run along. Rates are those between a quarter and nine tenths of the
rows; sides take turns, ratios are medians over the rounds.

Bar: guard_vs_threads >= 0.97 (the worse of both). Takes some minutes on two cores.
"""

import argparse
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

from decode import BATCH, CASES, REAL_CLIPS, make_manifest, slope
from shared.numbers_page import show_lines

WORKERS = 2


def threads_side(feed: Any) -> Iterator[Any]:
    """Rows decoded by threads of this process, two steps ahead, in order."""
    from kinoray.data.slots import coming

    with ThreadPoolExecutor(WORKERS) as pool:
        ahead, places = [], coming(feed, 0)
        for place in places:
            ahead.append(pool.submit(feed.decode, *place))
            if len(ahead) >= 2 * BATCH:
                yield ahead.pop(0).result()
        for future in ahead:
            yield future.result()


def processes_side(feed: Any) -> Iterator[Any]:
    from kinoray.data.process_rows import process_rows
    from kinoray.data.slots import coming

    return process_rows(feed, coming(feed, 0), WORKERS)


def rate(rows: Iterator[Any], count: int) -> float:
    """Clips per second of rows that have frames."""
    arrivals, seen = [], 0
    for row in rows:
        assert row.video is not None
        seen += 1
        arrivals.append((time.perf_counter(), seen))
    assert seen == count
    return slope(arrivals, count)


def manifest_of(clips: list[Path], probed: list[dict[str, Any]] | None, rows: int, folder: Path) -> Any:
    """Rows over the clips with what a probe found, or over spans of them, no two the same."""
    from kinoray.data.manifest import write_manifest

    if probed is not None:
        return make_manifest(clips, probed, rows, folder / "m.parquet")
    table = [
        {"id": str(row), "uri": clips[row % len(clips)].name, "split": "train", "start": row / 1000, "end": 6.0}
        for row in range(rows)
    ]
    return write_manifest(table, folder / "m.parquet", clips[0].parent)


def measure(rows: int, rounds: int, folder: Path) -> dict[str, float]:
    from kinoray.data.slots import ClipFeed
    from kinoray.decoding.clip import Clip
    from kinoray.decoding.frame_cache import OFF, Cache
    from kinoray.decoding.probe import probe_clip
    from kinoray.decoding.sampling import Sampling

    names = ("R6llTwEh07w.mp4", "G0mjFqytJt4_000152_000162.mp4", "3qqEKTPxLNs_1_15.avi", "flipping_a_pancake.mkv")
    clips = [folder / name for name in names if (folder / name).is_file()]
    case = CASES[0]
    ratios_by_kind = {}
    with tempfile.TemporaryDirectory() as place:
        probed = [probe_clip(Clip(path.name, str(path))) for path in clips]
        for kind in ("plain", "cache"):
            ratios = []
            for turn in range(rounds + 1):  # the first warms both up
                rates = []
                for side in (processes_side, threads_side):
                    manifest = manifest_of(clips, probed if kind == "plain" else None, rows, Path(place) / kind)
                    cache = OFF if kind == "plain" else Cache(str(Path(place) / f"{turn}-{side.__name__}"))
                    rule = Sampling(case.kind, case.count)  # type: ignore[arg-type]
                    feed = ClipFeed(str(manifest.path), tuple(range(rows)), rule, case.size_px, BATCH, cache)
                    rates.append(rate(side(feed), rows))
                if turn:
                    ratios.append(rates[0] / rates[1])
            ratios_by_kind[f"guard_vs_threads_{kind}"] = round(median(ratios), 3)
    return ratios_by_kind | {"guard_vs_threads": min(ratios_by_kind.values())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rows", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clips", type=Path, default=REAL_CLIPS)
    options = parser.parse_args()
    measured = measure(options.rows, options.rounds, options.clips)
    show_lines(measured, options.json)


if __name__ == "__main__":
    main()
