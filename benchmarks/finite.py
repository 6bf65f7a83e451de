"""What a commit's look for weights that are not finite takes, beside `isfinite().all()` of each (`training.finite`).

    python benchmarks/finite.py [--json] [--rounds 20] [--threads 1] [--device cpu]

Many small weights, as `tiny` has them, and few large ones, as a ViT-B/16 has in its feed-forward layers; by turns.
"""

import argparse
from collections.abc import Mapping
from functools import partial
from statistics import median

import torch
from shared.numbers_page import show_numbers
from shared.turns import in_turns, ratio
from torch import Tensor

from kinoray.training.finite import not_finite

SIZES = {"small": (250, (32, 32)), "large": (24, (768, 3072))}
"""Number of weights, and their shape."""


def one_by_one(tensors: Mapping[str, Tensor]) -> list[str]:
    """The same by a call and an answer for each."""
    return [name for name, value in tensors.items() if not bool(value.isfinite().all())]


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
        assert one_by_one(tensors) == not_finite(tensors) == []
        taken = in_turns(
            {"one_by_one": partial(one_by_one, tensors), "not_finite": partial(not_finite, tensors)}, options.rounds
        )
        numbers |= {f"{size}_{side}_ms": 1e3 * median(times) for side, times in taken.items()}
        numbers[f"{size}_ratio"] = ratio(taken, "not_finite", "one_by_one")
    title = f"A look for weights that are not finite, on {options.device}, {options.threads} threads"
    show_numbers(title, numbers, None, options.json)


if __name__ == "__main__":
    main()
