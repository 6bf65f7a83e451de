"""`video-ssl`: self-supervised learning on video (VideoMoCo, Pan et al., CVPR 2021).

Its one task is the pretext, Kinetics-400 without labels. Beside it stand the downstream sets, on which the encoder is
fine-tuned with labels and tested, each by itself: UCF101 and HMDB51, split 1. `video-ssl:split=2` takes the second of
the three splits, `video-ssl:downstream=ucf101` (or `hmdb51`) one of the two sets.

The recipe is the paper's pretext: 200 epochs, batches of 128, SGD with momentum 0.9 at 0.02, weight decay 1e-4, 32
neighbouring frames of 112 px from a random start; 10 such runs of a test video, evenly spaced. The rate is a tenth
after epochs 120 and 160, as released; the paper is silent. Batch normalisation is over groups of 32 rows, so that
shuffled keys are normalised among others than their queries. Fine-tuning has settings of its own.

Differs: a tenth of the source videos of UCF101 and HMDB51 is validation, which the paper trains on.
"""

from kinoray.config import Recipe
from kinoray.datasets.prepared import manifest_of, need_prepared
from kinoray.errors import UsageError
from kinoray.streams import Stream, TaskData
from kinoray.streams.task_manifests import options

NAMES = ("video-ssl",)
PUBLISHED = True

RECIPE = Recipe(
    epochs=200,
    batch_size=128,
    optimizer="sgd",
    learning_rate=0.02,
    schedule="steps",
    milestones=(120, 160),
    weight_decay=1e-4,
    frames=32,
    sampling="consecutive",
    test_frames=320,
    test_sampling="consecutive",
    test_clips=10,
    size_px=112,
    augmentation="video-moco",
    validations=0,
)

PRETEXT = "kinetics400"
DOWNSTREAM = {"both": ("ucf101", "hmdb51"), "ucf101": ("ucf101",), "hmdb51": ("hmdb51",)}


def load(name: str, argument: str) -> Stream:
    """The stream, over the prepared manifests as they are.

    Raises: UsageError naming what is not prepared, or for a wrong argument.
    """
    chosen = options(name, argument, {"split": "1", "downstream": "both"})
    if chosen["split"] not in ("1", "2", "3") or chosen["downstream"] not in DOWNSTREAM:
        raise UsageError(
            f"{name}:{argument}: split must be 1, 2 or 3 and downstream {', '.join(DOWNSTREAM)}, as in "
            f"`{name}:split=1,downstream=ucf101`."
        )
    sets = (PRETEXT, *(f"{word}-{chosen['split']}" for word in DOWNSTREAM[chosen["downstream"]]))
    need_prepared(sets)
    pretext, *downstream = (TaskData(data_set, manifest_of(data_set), data_set) for data_set in sets)
    return Stream(name, "video-ssl", (pretext,), RECIPE, "r2plus1d-18:4", downstream=tuple(downstream))
