"""Self-supervised learning on video: the beginning of each clip finds its end among the ends of all clips of its task.

No label and no caption is read, so any folder of videos can be learned from (`./videos:video-ssl`). Of clips of several
runs of frames (`Recipe.test_clips`) the first run looks for the last, of others the first half of the frames for the
second. VideoMoCo tests no pretext; what labels say of an encoder is told by runs of `classify` on downstream sets
(`STREAM/SET`, as `video-ssl/ucf101-1`).
"""

from typing import TYPE_CHECKING

import numpy as np

from kinoray.errors import UsageError
from kinoray.evaluation.protocol import BaseProtocol
from kinoray.metrics import Ranks
from kinoray.training.stages import Stage

if TYPE_CHECKING:
    from torch import Tensor

    from kinoray.evaluation.tester import Clips, Tester


class Protocol(BaseProtocol):
    """Ranks of a clip's own end, by the method's features and score."""

    scores = {"R@1": 1, "R@5": 5}
    about = "R@K in percent: the beginning of a test clip looks for its end among those of its task, without labels"
    headlines = ("R@1", "R@5", "MedR", "MeanR", "BWF")
    objective = "R@1"
    default_learner = "video_moco"
    reads_text = False

    def task_columns(self, score: str) -> tuple[str, ...]:
        return (score,)

    def overall_columns(self, score: str) -> tuple[str, ...]:
        return (score, "BWF")

    def validate(self, tester: "Tester", task: int) -> Ranks:
        return own_ends(tester, ends_of(tester, task, "validation", seen_as=task, trained=True))

    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        ranks = {}
        for task in stage.tests:
            clips = ends_of(tester, task, split, stage.seen_as(task))
            if split == "test":
                tester.note_queries(task, range(len(clips.rows)), clips.ids)
            ranks[task] = own_ends(tester, clips)
        return {"": ranks}


def ends_of(tester: "Tester", task: int, split: str, seen_as: int, trained: bool = False) -> "Clips":
    """The clips of a split with the features (V, 2, ...) of the beginning and the end of each.

    Raises: UsageError where one frame of a clip is all that is tested.
    """
    import torch

    recipe = tester.reader.recipe
    runs = recipe.test_clips if recipe.test_sampling == "consecutive" and recipe.test_clips > 1 else 2
    length = recipe.test_frames // runs
    if not length:
        raise UsageError("Matching a clip's beginning to its end needs two frames: set test_frames to 2 or more.")

    def embed(video_BTCHW: "Tensor") -> "Tensor":
        both = (video_BTCHW[:, :length], video_BTCHW[:, -length:])
        return torch.stack([tester.method.embed_video(part, seen_as) for part in both], dim=1)

    return tester.embed(task, split, embed, trained)


def own_ends(tester: "Tester", clips: "Clips") -> Ranks:
    """Rank of each clip's own end, among those of all the clips."""
    return tester.rank([clips.features[:, 0]], [clips.features[:, 1]], np.arange(len(clips.rows)))
