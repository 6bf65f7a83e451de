"""`glyphs-cssl`, `glyphs-ucl`: continual self-supervised learning on emoji, 20 sub-categories in five tasks of four.

Pictures of three vendors, split by name: what is tested are names that no task has shown. `glyphs-cssl:1` is the second
way to split. `glyphs-cssl` is tested as `cssl-*` (a linear probe over all classes), `glyphs-ucl` as `ucl-*`
(neighbours). The classes are in the order of NumPy's seed 1993.

The set must be there: `kinoray data fetch glyphs`, `kinoray data prepare glyphs`.
"""

from dataclasses import replace

from kinoray.streams import Stream, ucl
from kinoray.streams.concepts import cut_by_concept, split_number
from kinoray.streams.cssl import CIFAR, SEED
from kinoray.streams.task_manifests import class_order, dealt_tasks

NAMES = ("glyphs-cssl", "glyphs-ucl")
PUBLISHED = True
TASKS = 5

RECIPE = replace(CIFAR, epochs=100, batch_size=64, learning_rate=0.03, augmentation="ccsl-cifar100", knn_k=10)
"""Schedule and decay of `cssl-cifar100-*`; batch and neighbours as a task of some 300 pictures needs."""
UCL_RECIPE = replace(ucl.RECIPE, epochs=100, batch_size=64, learning_rate=0.03, augmentation="ucl", knn_k=10)
"""As `ucl-*` train, likewise."""


def load(name: str, argument: str) -> Stream:
    """The stream, over the prepared set; the argument is the way to split, 0 if empty.

    Raises: UsageError where the set is not prepared, or for an argument that is no number.
    """
    manifest = cut_by_concept("glyphs", split_number(name, argument))
    classes = len(manifest.rows_by("label"))
    tasks = dealt_tasks(manifest, class_order(classes, SEED), TASKS, classes // TASKS)
    protocol, recipe = ("ucl", UCL_RECIPE) if name == "glyphs-ucl" else ("cssl", RECIPE)
    return Stream(name, protocol, tasks, recipe, "tiny-cnn")
