"""What a commit's look for weights that are not finite takes, beside `isfinite().all()` of each (`training.finite`).

    python benchmarks/finite.py [--json] [--rounds 20] [--threads 1] [--device cpu]

Many small weights, as `tiny` has them, and few large ones, as a ViT-B/16 has in its feed-forward layers; by turns.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kinoray.training.finite import not_finite

SIZES = {"small": (250, (32, 32)), "large": (24, (768, 3072))}
"""Number of weights, and their shape."""


def one_by_one(tensors: Mapping[str, Tensor]) -> list[str]:
    """The same by a call and an answer for each."""
    return [name for name, value in tensors.items() if not bool(value.isfinite().all())]


def seconds(look: Callable[[Mapping[str, Tensor]], list[str]], tensors: Mapping[str, Tensor]) -> float:
    """Wall time of a look."""
    begun = time.perf_counter()
    assert not look(tensors)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one object of {name: number} last")
    parser.add_argument("--rounds", type=int, default=20, help="looks of each kind")
    parser.add_argument("--threads", type=int, default=1, help="torch threads")
    parser.add_argument("--device", default="cpu", help="where the weights are")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    numbers: dict[str, float] = {}
    for size, (count, shape) in SIZES.items():
        tensors = {str(number): torch.randn(shape, device=options.device) for number in range(count)}
        took: dict[str, list[float]] = {"one_by_one": [], "not_finite": []}
        for number in range(1 + options.rounds):
            for name, look in (("one_by_one", one_by_one), ("not_finite", not_finite)):
                wall_s = seconds(look, tensors)
                if number:
                    took[name].append(wall_s)
        medians = {name: statistics.median(values) for name, values in took.items()}
        numbers |= {f"{size}_{name}_ms": round(1e3 * value, 3) for name, value in medians.items()}
        numbers[f"{size}_ratio"] = round(medians["not_finite"] / medians["one_by_one"], 3)
    print(", ".join(f"{name} {value}" for name, value in numbers.items()))
    if options.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
