"""How a fine-tuned network takes clips some of whose frames are partly covered: VideoMoCo's Figure 4 as numbers.

    H = - sum_c p_c log p_c        p the network's softmax over the classes        (Eq. 7)

over every test clip, complete and occluded: in a quarter of its frames, evenly spread, a grey square of half the side
covers the middle. The paper shows two clips "partially occluded" in "several frames"; which and how is not said.
"""

# T frames   S pixels of a side   C classes

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kinoray.data.manifest import read_manifest
from kinoray.errors import VideoError
from kinoray.evaluation.protocols.classification import mean_logits
from kinoray.papers.entries import ENTROPY, ENTROPY_OCCLUDED, ENTROPY_RISE, FINE_TUNED_OCCLUDED

if TYPE_CHECKING:
    from kinoray.runs.result import Result

EVERY = 4
"""One of so many frames is covered."""
GREY = 127


def occlusion(run: "Result") -> dict[str, float]:
    """Mean entropies in nats, and accuracy of occluded clips in percent, of a finished run of `classify`."""
    from kinoray.execution.open_method import open_method

    opened = open_method(run)

    def logits(frames: np.ndarray, task: int) -> Tensor:
        with torch.inference_mode():
            return mean_logits(opened.method, opened.view(frames), opened.seen_as(task), opened.reader.recipe)[0].cpu()

    lines: list[tuple[float, float, bool]] = []
    for task, path in enumerate(opened.spec.tests):
        manifest = read_manifest(path)
        rows = manifest.clips("test")
        for row, label in zip(map(int, rows), manifest.labels(rows), strict=True):
            try:
                frames = opened.frames_of(manifest.clip(row))
            except VideoError:  # left out of the run's own test, too
                continue
            complete_C, covered_C = logits(frames, task), logits(occluded(frames), task)
            is_right = int(covered_C.argmax()) == opened.reader.classes.get(label or "", -1)
            lines.append((entropy(complete_C), entropy(covered_C), is_right))
    complete, covered, right = np.array(lines, dtype=np.float64).mean(axis=0).tolist()
    return {
        ENTROPY: complete,
        ENTROPY_OCCLUDED: covered,
        ENTROPY_RISE: covered - complete,
        FINE_TUNED_OCCLUDED: 100 * right,
    }


def occluded(frames: np.ndarray) -> np.ndarray:
    """Frames uint8 (T, S, S, 3) with the middle of one in `EVERY` covered."""
    covered, side = frames.copy(), frames.shape[1]
    middle = slice(side // 4, side // 4 + side // 2)
    covered[::EVERY, middle, middle] = GREY
    return covered


def entropy(logits_C: Tensor) -> float:
    """Of the softmax, in nats."""
    return float(torch.distributions.Categorical(logits=logits_C).entropy())
