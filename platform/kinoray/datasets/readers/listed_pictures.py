"""FGVC-Aircraft, DTD, Food-101 and Oxford-IIIT Pet: pictures that text files list, in torchvision's layout.

As in MTIL (ZSCL, ICCV 2023) Aircraft and DTD train on `train` alone, Pet on `trainval`.
"""

from collections.abc import Iterator
from pathlib import Path

from kinoray.datasets.readers import Annotations, need, read_json, read_list
from kinoray.datasets.readers.pictures import annotated, facts, row

NAMES = ("aircraft", "dtd", "food101", "oxford-pets")
HOMES = {
    "aircraft": "fgvc-aircraft-2013b/data",
    "dtd": "dtd/dtd",
    "food101": "food-101",
    "oxford-pets": "oxford-iiit-pet",
}
LISTS = {
    "aircraft": ("images_variant_train.txt", "images_variant_test.txt"),
    "dtd": ("labels/train1.txt", "labels/test1.txt"),
    "food101": ("meta/train.json", "meta/test.json"),
    "oxford-pets": ("annotations/trainval.txt", "annotations/test.txt"),
}

SETS = {
    name: facts(name, paper, source, f"{HOMES[name]}/{{{','.join(LISTS[name])}}} and images/", *counts)
    for name, paper, source, counts in (
        ("aircraft", "Maji et al., Fine-Grained Visual Classification of Aircraft, 2013",
         "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft/", (3334, 3333)),
        ("dtd", "Cimpoi et al., Describing Textures in the Wild, 2014",
         "https://www.robots.ox.ac.uk/~vgg/data/dtd/ (first split)", (1880, 1880)),
        ("food101", "Bossard et al., Food-101, 2014", "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101/",
         (75750, 25250)),
        ("oxford-pets", "Parkhi et al., Cats and Dogs, 2012", "https://www.robots.ox.ac.uk/~vgg/data/pets/",
         (3680, 3669)),
    )
}  # fmt: skip


def read(name: str, root: Path) -> Annotations:
    """The pictures as rows. Raises: UsageError where a list is missing or damaged."""
    folders = (HOMES[name], HOMES[name].partition("/")[0])
    lists = [need(SETS[name], root, file, folders=folders) for file in LISTS[name]]
    home = lists[0].parents[LISTS[name][0].count("/")]
    pairs = zip(("train", "test"), lists, strict=True)
    rows = [row(f"images/{path}", label, split) for split, file in pairs for path, label in _listed(name, file)]
    return annotated(SETS[name], root, home, rows)


def _listed(name: str, file: Path) -> Iterator[tuple[str, str]]:
    """Picture below `images/` and class of each entry."""
    if name == "food101":
        entries = read_json(file, dict)
        yield from ((f"{path}.jpg", label) for label, paths in entries.items() for path in paths)
        return
    for line in read_list(file):
        first, _, rest = line.partition(" ")
        kinds = {"aircraft": rest, "dtd": first.partition("/")[0], "oxford-pets": first.rpartition("_")[0]}
        yield first if name == "dtd" else f"{first}.jpg", kinds[name]
