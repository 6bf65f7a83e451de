"""`ucl-*`: unsupervised continual learning on pictures (LUMP, Madaan et al., ICLR 2022; BMU-MoCo, Table 4).

CIFAR-10 in 5 tasks of 2 classes, CIFAR-100 in 20 of 5, Tiny-ImageNet in 20 of 5 (100 of its 200 classes). Evaluated by
kNN within each task's classes, and by forgetting.

The classes are shuffled by seed 0, as the paper says it draws them at random; `ucl-cifar10:3` takes seed 3,
`label_order=0` the published order 0, 1, 2, ... of the released code (of Tiny-ImageNet then the first 100 classes), and
`label_order=2` the seed's second order.

The recipe is the released code's: SGD with momentum 0.9 at a constant 0.03, 200 epochs a task, batches of 256, one
optimizer for all tasks, the weights of the last step; the backbone is `resnet18-cifar`, a ResNet-18 with a 3 x 3 stem.

Differs: a fiftieth of the training pictures is validation, which the paper trains on.
"""

from dataclasses import replace

from kinoray.config import Recipe
from kinoray.streams import Stream
from kinoray.streams.task_manifests import class_tasks

NAMES = ("ucl-cifar10", "ucl-cifar100", "ucl-tinyimagenet")
PUBLISHED = True

RECIPE = Recipe(
    epochs=200,
    batch_size=256,
    optimizer="sgd",
    learning_rate=0.03,  # 0.03 x batch / 256
    schedule="constant",
    weight_decay=5e-4,
    keep_optimizer=True,
    frames=1,
    test_frames=1,
    size_px=32,
    augmentation="ucl",
    validations=1,
)
RECIPES = {name: RECIPE for name in NAMES} | {
    "ucl-tinyimagenet": replace(RECIPE, size_px=64, augmentation="ucl-tinyimagenet")
}

SETS = {
    "ucl-cifar10": ("cifar10", 10, 5, 2),
    "ucl-cifar100": ("cifar100", 100, 20, 5),
    "ucl-tinyimagenet": ("tiny-imagenet", 200, 20, 5),
}
"""Data set, its classes, tasks, classes of a task."""


def load(name: str, argument: str) -> Stream:
    """The stream, over the prepared manifest of its data set.

    Raises: UsageError where that is not prepared or lacks classes, or for a wrong argument.
    """
    data_set, num_classes, num_tasks, per_task = SETS[name]
    tasks = class_tasks(name, argument, data_set, num_classes, num_tasks, per_task, seed=0)
    return Stream(name, "ucl", tasks, RECIPES[name], "resnet18-cifar")
