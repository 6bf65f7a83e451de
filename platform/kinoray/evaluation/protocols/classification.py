"""Classification: the rank of the right class among a classifier's own logits, for a probe or a fine-tuned network.

The main reading ranks among the classes of all tasks so far, `own` among those of the clip's own task. Of a clip of
several runs of frames (`Recipe.test_clips`) the logits of the runs are averaged (VideoMoCo's released fine-tuning).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinoray.evaluation.protocol import BaseProtocol
from kinoray.metrics import Ranks
from kinoray.training.stages import Stage

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from kinoray.config import Recipe
    from kinoray.evaluation.tester import Clips, Tester
    from kinoray.method import BaseMethod


class Protocol(BaseProtocol):
    """What `embed_video` gives are logits (B, C), a column for each class number so far."""

    scores = {"accuracy": 1, "accuracy@5": 5}
    about = "Accuracy in percent by the classifier's own logits, among the classes of all tasks so far"
    headlines = ("accuracy", "FR", "BWF", "BWF_own", "accuracy@5", "accuracy_current")
    objective = "accuracy"
    default_learner = "classify"
    reads_text = False
    readings = ("", "own")

    def galleries(self, clips: Sequence[int]) -> list[int]:
        return []

    def validate(self, tester: "Tester", task: int) -> Ranks:
        clips = logits_of(tester, task, "validation", seen_as=task, trained=True)
        return right_class(clips.features, tester.labels(clips))

    def test(self, tester: "Tester", stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
        from kinoray.evaluation.classification import note

        among_all, among_own = {}, {}
        for task in stage.tests:
            clips = logits_of(tester, task, split, stage.seen_as(task))
            labels = tester.labels(clips)
            note(tester, clips)
            among_all[task] = right_class(clips.features, labels)
            among_own[task] = right_class(clips.features, labels, classes_of(tester, clips))
        return {"": among_all, "own": among_own}


def logits_of(tester: "Tester", task: int, split: str, seen_as: int, trained: bool = False) -> "Clips":
    """The clips of a split with their logits (V, C)."""
    recipe = tester.reader.recipe
    return tester.embed(task, split, lambda video: mean_logits(tester.method, video, seen_as, recipe), trained)


def mean_logits(method: "BaseMethod", video_BTCHW: "Tensor", seen_as: int, recipe: "Recipe") -> "Tensor":
    """Tested clips -> logits (B, C), means over the runs of frames of each."""
    runs = recipe.test_clips if recipe.test_sampling == "consecutive" else 1
    run_NTCHW = video_BTCHW.unflatten(1, (runs, -1)).flatten(0, 1)
    return method.embed_video(run_NTCHW, seen_as).float().unflatten(0, (-1, runs)).mean(dim=1)


def classes_of(tester: "Tester", clips: "Clips") -> list[int]:
    """Numbers of the classes of a tested task that some task trains, rising."""
    labels = clips.manifest.labels(clips.manifest.clips("train"))
    return sorted({number for label in labels if (number := tester.reader.classes.get(label or "")) is not None})


def right_class(logits_VC: "Tensor", labels_V: "np.ndarray", among: list[int] | None = None) -> Ranks:
    """Rank of each clip's class among the classes with a logit, or among some of them.

    A class without one, which no task so far has trained, comes after all others.
    """
    import numpy as np

    from kinoray.evaluation.classification import ranks_among

    classes = [number for number in (among or range(logits_VC.shape[1])) if number < logits_VC.shape[1]]
    column = {number: place for place, number in enumerate(classes)}
    truth = [column.get(label, len(classes)) for label in labels_V.tolist()]
    return ranks_among(logits_VC[:, classes], np.array(truth))
