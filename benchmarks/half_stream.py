"""What the residual stream in bfloat16 does to accuracy, against the stream in float32, over paired seeds on the CPU.

    python benchmarks/half_stream.py [--json] [--keep] [--method base_moco] [--stream moving-conflict] [--seeds 10]
        [--set max_steps=20 ...] [--runs FOLDER]

Both runs of a pair compute in bfloat16 autocast (`precision=bfloat16`) from the same seed; in one the stream and the
norms are as the engine has them (`backbones/stream.py`), in the other they are float32, as autocast alone has them on a
GPU. Products of bfloat16, for which many CPUs have no instructions, are computed in float32 between the same roundings
(`RoundedProducts`). The harmonic mean of each, and the mean of the differences with its 95 % interval by Student's t.
With `--runs` the runs stay, and a second call goes on. `--stream small` is the small stream that `kinoray check` uses.
"""

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest.mock import patch

import torch
from scipy.stats import t
from shared.numbers_page import show_numbers
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

import kinoray
from kinoray.backbones import clip, stream
from kinoray.runs.result import Result
from kinoray.testing.small_stream import small_stream

RESULTS = Path(__file__).parent / "results"
PRODUCTS = (F.linear, F.conv1d, F.conv2d, F.conv3d, torch.matmul, torch.bmm, torch.einsum, Tensor.__matmul__)


class RoundedProducts(TorchFunctionMode):
    """Under autocast: what goes into a product and what comes out are rounded to bfloat16, and so are gradients."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function not in PRODUCTS or not torch.is_autocast_enabled("cpu"):
            return function(*arguments, **(named or {}))
        given, named = tree_map(_rounded, (arguments, named or {}))
        with torch.autocast("cpu", enabled=False):
            return function(*given, **named).bfloat16()


def _rounded(value: Any) -> Any:
    return value.bfloat16().float() if isinstance(value, Tensor) and value.is_floating_point() else value


def score(options: dict[str, Any], runs: Path, half: bool) -> float:
    """HM of one run, or R@1 where its protocol has none, in percent."""
    usual = stream.in_stream
    with (
        patch.object(stream, "in_stream", usual if half else as_float32),
        patch.object(clip, "in_stream", usual if half else as_float32),
        RoundedProducts(),
    ):
        run = kinoray.run(**options, num_workers=0, runs=runs / ("half" if half else "float32"), quiet=True)
    assert isinstance(run, Result)
    return float(run.metrics.get("HM", run.metrics.get("R@1")) or 0)


def as_float32(x: Any) -> Any:
    """In place of `in_stream`."""
    return x.float()


def measure(method: str, name: str, seeds: int, settings: dict[str, Any], runs: Path) -> dict[str, float]:
    """Each seed's two scores, and the mean of their differences."""
    numbers: dict[str, float] = {}
    differences = []
    for seed in range(seeds):
        chosen = small_stream() if name == "small" else name
        options = {"method": method, "stream": chosen, "seed": seed, "settings": settings | {"precision": "bfloat16"}}
        half, whole = (score(options, runs, is_half) for is_half in (True, False))
        differences.append(half - whole)
        numbers |= {f"seed {seed}: stream in bfloat16": half, f"seed {seed}: stream in float32": whole}
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
    title += "".join(f", {text}" for text in options.set)
    show_numbers(title, numbers, RESULTS / f"half-stream-{options.stream}.md" if options.keep else None, options.json)


if __name__ == "__main__":
    main()
