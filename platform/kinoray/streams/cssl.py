"""`cssl-*`: continual self-supervised learning on pictures (CCSL), judged by a linear probe over all classes at the
end.

CIFAR-100 in 1, 2, 5 or 10 tasks, ImageNet-Sub in 10 of 10 classes, ImageNet in 10 of 100. The classes are shuffled
once, by NumPy's seed 1993 as is usual since iCaRL; `cssl-cifar100-10:7` takes seed 7, `label_order=0` the published
order of labels, and `label_order=2` the seed's second order.

The recipes are those of MoCo that the paper builds on: for CIFAR-100 the authors' CIFAR notebook (200 epochs a task,
batches of 512, rate 0.06 falling by half a cosine, weight decay 5e-4), for ImageNet MoCo v2 (200 epochs, 256, 0.03,
half a cosine, 1e-4); SGD with momentum 0.9, the weights of the last step.

The backbones are a ResNet-18 for small pictures, normalised over eight groups of a batch as in the notebook, and a
ResNet-50 over groups of 32 rows, as MoCo's eight GPUs have.

Differs: a part of the training pictures is validation (2 % of CIFAR-100, 1 % of ImageNet), which the paper trains on.
The rate falls with every step, in the originals with every epoch. Batches run over the ends of epochs.
"""

from dataclasses import replace

from kinoray.config import Recipe
from kinoray.streams import Stream
from kinoray.streams.task_manifests import class_tasks

NAMES = (
    "cssl-cifar100-1",
    "cssl-cifar100-2",
    "cssl-cifar100-5",
    "cssl-cifar100-10",
    "cssl-imagenet-sub",
    "cssl-imagenet",
)
PUBLISHED = True
SEED = 1993

CIFAR = Recipe(
    epochs=200,
    batch_size=512,
    optimizer="sgd",
    learning_rate=0.06,
    schedule="cosine",
    weight_decay=5e-4,
    frames=1,
    test_frames=1,
    size_px=32,
    augmentation="ccsl-cifar100",
    validations=1,
)
IMAGENET = replace(
    CIFAR, batch_size=256, learning_rate=0.03, weight_decay=1e-4, size_px=224, augmentation="ccsl-imagenet"
)


def load(name: str, argument: str) -> Stream:
    """The stream, over the prepared manifest of its data set.

    Raises: UsageError where that is not prepared or lacks classes, or for a wrong argument.
    """
    if name.startswith("cssl-cifar100-"):
        data_set, num_classes, num_tasks = "cifar100", 100, int(name.rpartition("-")[2])
    else:
        data_set, num_tasks = name.removeprefix("cssl-"), 10
        num_classes = 100 if data_set == "imagenet-sub" else 1000
    tasks = class_tasks(name, argument, data_set, num_classes, num_tasks, num_classes // num_tasks, seed=SEED)
    recipe, backbone = (CIFAR, "resnet18-cifar:8") if data_set == "cifar100" else (IMAGENET, "resnet50:8")
    return Stream(name, "cssl", tasks, recipe, backbone)
