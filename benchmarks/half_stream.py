"""What the residual stream in bfloat16 does to accuracy, against the stream in float32, over paired seeds on the CPU.

    python benchmarks/half_stream.py [--json] [--keep] [--method base_moco] [--stream moving-conflict] [--seeds 10]
        [--set max_steps=20 ...] [--runs FOLDER]

Both runs of a pair compute in bfloat16 autocast (`precision=bfloat16`) from the same seed; in one the stream and the
norms are as the engine has them (`backbones/stream.py`), in the other they are float32, as autocast alone has them on a
GPU. The harmonic mean of each, and the mean of the differences with its 95 % interval by Student's t. With `--runs` the
runs stay, and a second call goes on. Minutes a run; `--stream small` is the small stream that `kinoray check` uses.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest.mock import patch

from scipy.stats import t
from shared.numbers_page import show_numbers

import kinoray
from kinoray.backbones import clip, stream
from kinoray.runs.result import Result
from kinoray.testing.small_stream import small_stream

RESULTS = Path(__file__).parent / "results"


def harmonic_mean(options: dict[str, Any], runs: Path, half: bool) -> float:
    """Of one run, in percent."""
    usual = stream.in_stream
    with (
        patch.object(stream, "in_stream", usual if half else as_float32),
        patch.object(clip, "in_stream", usual if half else as_float32),
    ):
        run = kinoray.run(**options, num_workers=0, runs=runs / ("half" if half else "float32"), quiet=True)
    assert isinstance(run, Result)
    return float(run.metrics["HM"] or 0)


def as_float32(x: Any) -> Any:
    """In place of `in_stream`."""
    return x.float()


def measure(method: str, name: str, seeds: int, settings: dict[str, Any], runs: Path) -> dict[str, float]:
    """Each seed's two harmonic means, and the mean of their differences."""
    numbers: dict[str, float] = {}
    differences = []
    for seed in range(seeds):
        chosen = small_stream() if name == "small" else name
        options = {"method": method, "stream": chosen, "seed": seed, "settings": settings | {"precision": "bfloat16"}}
        half, whole = (harmonic_mean(options, runs, is_half) for is_half in (True, False))
        differences.append(half - whole)
        numbers |= {f"seed {seed}: HM, stream in bfloat16": half, f"seed {seed}: HM, stream in float32": whole}
        print(json.dumps({"seed": seed, "half": half, "float32": whole}), flush=True)
    numbers["difference"] = fmean(differences)
    if seeds > 1:
        numbers["difference, half of its interval"] = t.ppf(0.975, seeds - 1) * stdev(differences) / seeds**0.5
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--method", default="base_moco")
    parser.add_argument("--stream", default="moving-conflict")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--set", nargs="+", default=[])
    parser.add_argument("--runs", type=Path)
    options = parser.parse_args()
    settings = {key: json.loads(value) for key, _, value in (text.partition("=") for text in options.set)}
    with tempfile.TemporaryDirectory(prefix="kinoray-bench-") as folder:
        numbers = measure(options.method, options.stream, options.seeds, settings, options.runs or Path(folder))
    title = f"{options.method} on {options.stream}, residual stream in bfloat16 against float32, {options.seeds} seeds"
    show_numbers(title, numbers, RESULTS / "half-stream.md" if options.keep else None, options.json)


if __name__ == "__main__":
    main()
