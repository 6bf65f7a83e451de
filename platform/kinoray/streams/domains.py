"""`mtil`, `xtail`: sets of pictures from many domains, one after the other, told by the names of their classes.

`mtil` has eleven sets in torchvision's layout, whole, and a test says of which set it is (ZSCL, ICCV 2023): the
alphabetical order I, or order II as `mtil:order=2`; `mtil:shots=5` learns from five pictures of each class. `xtail` has
ten in CoOp's layout with its splits, 16 pictures of each class, and nobody says of which set a test is (RAIL, NeurIPS
2024): the alphabetical order, or LADA's as `xtail:order=2`; `xtail:shots=0` learns from all.

The sets must be prepared: `kinoray data prepare NAME --root DIR`.
"""

from kinoray.config import Recipe
from kinoray.data.manifest import read_manifest
from kinoray.datasets.prepared import manifest_of, need_prepared
from kinoray.errors import UsageError
from kinoray.streams import Stream, TaskData
from kinoray.streams.prompts import class_task
from kinoray.streams.task_manifests import options

NAMES = ("mtil", "xtail")
PUBLISHED = True

ORDERS = {
    ("mtil", "1"): "aircraft caltech101 cifar100 dtd eurosat flowers102 food101 mnist oxford-pets stanford-cars sun397",
    ("mtil", "2"): "stanford-cars food101 mnist oxford-pets flowers102 sun397 aircraft caltech101 dtd eurosat cifar100",
    ("xtail", "1"): "coop-aircraft coop-caltech101 coop-dtd coop-eurosat coop-flowers102 coop-food101 mnist coop-pets "
    "coop-cars coop-sun397",
    ("xtail", "2"): "coop-cars coop-aircraft coop-pets coop-food101 coop-sun397 mnist coop-flowers102 coop-dtd "
    "coop-caltech101 coop-eurosat",
}
"""The sets of a stream in each of its orders."""
PLAIN = "a photo of a {}."
KINDS = {
    "aircraft": "a type of aircraft",
    "dtd": "a texture",
    "eurosat": "seen from a satellite",
    "flowers102": "a type of flower",
    "food101": "a type of food",
    "oxford-pets": "a type of pet",
    "stanford-cars": "a type of car",
    "sun397": "a scene",
}
"""What the second prompt of a set of `mtil` adds."""
XTAIL = {"coop-eurosat": "a photo of a {} satellite location.", "mnist": 'a photo of a number: "{}".'}
"""Prompts of `xtail` other than the plain one, as RAIL names these classes."""
LAND = {
    "AnnualCrop": "annual crop land",
    "HerbaceousVegetation": "herbaceous vegetation",
    "PermanentCrop": "permanent crop land",
    "SeaLake": "sea or lake",
}
"""Of EuroSAT's classes those that are two words."""

BACKBONE = "clip:ViT-B-16-quickgelu/openai"
RECIPE = Recipe(
    epochs=1000,
    max_steps=1000,
    batch_size=64,
    optimizer="adamw",
    learning_rate=1e-5,
    schedule="cosine",
    warmup=0.1,
    frames=1,
    test_frames=1,
    size_px=224,
    max_tokens=77,
    grayscale=0.0,
    jitter_probability=0.0,
    validations=0,
)
"""The shared recipe of MTIL's released code: 1000 steps a task, a warm-up of 100, the last weights. Differs: one rate
for all sets (theirs is 5e-5 on Aircraft and MNIST), no crops, no label smoothing, which is a method's."""


def load(name: str, argument: str) -> Stream:
    """The stream, over prepared manifests; argument: `order` and `shots`, a number alone is the order.

    Raises: UsageError naming the sets that are not prepared, or for an argument that is none.
    """
    chosen = options(name, argument, {"order": "1", "shots": "0" if name == "mtil" else "16"})
    if (name, chosen["order"]) not in ORDERS or not chosen["shots"].isdecimal():
        raise UsageError(
            f"{name}:{argument}: give `order` 1 or 2 and `shots` as a whole number, as {name}:order=2,shots=5."
        )
    sets = ORDERS[name, chosen["order"]].split()
    need_prepared(sets)
    tasks = tuple(_task(name, data_set, int(chosen["shots"])) for data_set in sets)
    return Stream(name, "retention" if name == "mtil" else "retention-agnostic", tasks, RECIPE, BACKBONE)


def _task(stream: str, data_set: str, shots: int) -> TaskData:
    if stream == "xtail":
        prompts = [XTAIL.get(data_set, PLAIN)]
    else:
        prompts = [PLAIN, *([f"{PLAIN[:-1]}, {KINDS[data_set]}."] if data_set in KINDS else [])]
    words = LAND if data_set == "eurosat" else {}
    manifest = read_manifest(manifest_of(data_set))
    return class_task(data_set.removeprefix("coop-"), manifest, prompts, words, shots, data_set)
