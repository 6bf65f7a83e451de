"""What VideoMoCo's temporal decay costs at the paper's size: the loss with it against the loss without.

    python benchmarks/decay.py [--json] [--rounds 40] [--keep]

Queries and keys (128, 128), a queue of 65,536 keys, float32, forward and backward; they take turns, and ratios are
medians over rounds, so that other load on the machine falls on all. Without decay is `equations.info_nce`, which the
method uses at t = 1, and, as that makes more matrices than it needs, also the decayed form itself with weights of 1
that nobody computes (`decay_vs_same_form`). Peak memory is that of all tensors, by PyTorch's own profiler, in matrices
of logits (128 x 65,536).

Bars: time <= 1.1 of either; the decay adds no such matrix. A few seconds. `--keep` writes `results/decay.md`.
"""

import argparse
import math
import time
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import torch
from shared.numbers_page import show_numbers
from torch import Tensor
from torch.nn.functional import normalize
from torch.profiler import ProfilerActivity, profile

from kinoray.equations import info_nce
from kinoray.methods.video_moco import decayed_info_nce, places

BATCH, DIM, QUEUE = 128, 128, 65_536
TEMPERATURE, T = 0.07, 0.99999
LOGITS_BYTES = BATCH * QUEUE * 4
WARM_UP = 3
RESULTS = Path(__file__).parent / "results"


def seconds(loss: Callable[[Tensor], Tensor], query_BD: Tensor) -> float:
    """One forward and backward."""
    query_BD.grad = None
    begun = time.perf_counter()
    loss(query_BD).backward()  # type: ignore[no-untyped-call]
    return time.perf_counter() - begun


def peak_matrices(loss: Callable[[Tensor], Tensor], query_BD: Tensor) -> float:
    """Most memory that a forward and backward holds at a time, in matrices of logits."""
    query_BD.grad = None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        loss(query_BD).backward()  # type: ignore[no-untyped-call]
    changes = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = accumulate(event.nbytes() for event in sorted(changes, key=lambda event: event.start_ns()))
    return max(held) / LOGITS_BYTES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--keep", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    query_BD, key_BD, queue_KD = (normalize(torch.randn(rows, DIM), dim=1) for rows in (BATCH, BATCH, QUEUE))
    query_BD.requires_grad_()
    cursor = torch.tensor(0)

    def decayed(q_BD: Tensor) -> Tensor:
        log_weight_K = math.log(T) * places(cursor, QUEUE).to(queue_KD.dtype)  # anew in every step, as the method does
        return decayed_info_nce(q_BD, key_BD, queue_KD, log_weight_K, TEMPERATURE)

    keys: dict[str, Any] = {"key_BD": key_BD, "queue_KD": queue_KD, "temperature": TEMPERATURE}
    plain = partial(info_nce, **keys)
    same_form = partial(decayed_info_nce, log_weight_K=torch.zeros(QUEUE), **keys)
    losses = (decayed, plain, same_form)
    took = [[seconds(loss, query_BD) for loss in losses] for _ in range(WARM_UP + options.rounds)][WARM_UP:]
    numbers = {
        "decay_vs_plain": median(with_it / without for with_it, without, _ in took),
        "decay_vs_same_form": median(with_it / without for with_it, _, without in took),
        "decay_ms": 1000 * median(with_it for with_it, *_ in took),
        "plain_ms": 1000 * median(without for _, without, _ in took),
        "decay_peak_matrices": peak_matrices(decayed, query_BD),
        "plain_peak_matrices": peak_matrices(plain, query_BD),
        "same_form_peak_matrices": peak_matrices(same_form, query_BD),
    }
    title = "VideoMoCo's loss with temporal decay against the loss without, queries (128, 128), 65,536 keys"
    show_numbers(title, numbers, RESULTS / "decay.md" if options.keep else None, options.json)


if __name__ == "__main__":
    main()
