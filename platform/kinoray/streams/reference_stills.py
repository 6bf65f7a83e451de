"""`stills`: single frames of the small world with a caption each, as one task. A reference set for rules that want one.

They are of the part that the small backbones were pre-trained on, other draws, so they stand to them as ImageNet with
captions stands to CLIP.
"""

from functools import partial

import numpy as np

from kinoray.streams import Stream, TaskData, moving, stills, world
from kinoray.streams.rendering import Drawing, rendered, source_digest, split_of_each
from kinoray.streams.task_manifests import options
from kinoray.system.folders import cache_folder

NAMES = ("stills",)
CLIPS = (160, 16, 16)
"""For training, validation and test."""
SEED = 1
"""Of the draws; pre-training has 0."""
SIZE_PX = 32


def load(name: str, argument: str) -> Stream:
    """The stream, rendered first where the cache does not hold it. Raises: UsageError for any argument."""
    options(name, argument, {})
    folder = cache_folder() / f"stills-{source_digest('', world.__file__, stills.__file__)}"
    (manifest,) = rendered(name, drawings, NAMES, folder).values()
    return Stream(name, "cvlm", (TaskData(name, manifest),), moving.CONFLICT, "tiny")


def drawings(name: str) -> list[Drawing]:
    """The stills as videos of one frame."""
    images, captions = stills.pretraining_pairs(sum(CLIPS), SEED, size_px=SIZE_PX)
    return [
        Drawing(
            {"id": f"{n:03d}", "uri": f"clips/{n:03d}.mp4", "captions": [caption], "split": split},
            partial(np.copy, images[n : n + 1]),
            1,
        )
        for n, (caption, split) in enumerate(zip(captions, split_of_each(CLIPS), strict=True))
    ]
