"""Caltech101, EuroSAT and SUN397: a folder for each class and no published split, in torchvision's layout.

As in MTIL (ZSCL, ICCV 2023) int(0.8 n) pictures train and the others test, by torch's permutation from seed 42 of the
pictures in torchvision's order: sorted classes, sorted names. torchvision lists those of SUN397 as the disk does, which
nobody can repeat: here they are sorted, too.
"""

from pathlib import Path

from kinoray.datasets.readers import PICTURES, Annotations, media_files
from kinoray.datasets.readers.pictures import annotated, facts, row
from kinoray.errors import UsageError

NAMES = ("caltech101", "eurosat", "sun397")
HOMES = {"caltech101": "caltech101/101_ObjectCategories", "eurosat": "eurosat/2750", "sun397": "SUN397"}
NO_CLASS = "BACKGROUND_Google"

SETS = {
    name: facts(name, paper, source, f"{HOMES[name]}/<class>/*.jpg", *counts, notes="80 % train, by seed 42.")
    for name, paper, source, counts in (
        ("caltech101", "Fei-Fei et al., Learning Generative Visual Models from Few Training Examples, 2004",
         "https://data.caltech.edu/records/mzrjq-6wc02", (6941, 1736)),
        ("eurosat", "Helber et al., EuroSAT, 2019", "https://github.com/phelber/EuroSAT (RGB)", (21600, 5400)),
        ("sun397", "Xiao et al., SUN Database, 2010", "https://vision.princeton.edu/projects/2010/SUN", (87003, 21751)),
    )
}  # fmt: skip


def read(name: str, root: Path) -> Annotations:
    """The pictures as rows. Raises: UsageError where the folder of classes is not there."""
    import torch

    places = (HOMES[name], HOMES[name].rpartition("/")[2])
    home = next((root / place for place in places if (root / place).is_dir()), None)
    pictures = sorted(media_files(home, PICTURES)) if home else []
    classes = {path: path.rpartition("/")[0] for path in pictures}
    if not home or not all(classes.values()) or not classes:
        raise UsageError(f"{root} has no {HOMES[name]} with a folder for each class, which {name} needs.")
    if name == "sun397":  # a class stands behind its letter
        classes = {path: label.partition("/")[2].replace("/", " ") for path, label in classes.items()}
    pictures = sorted((path for path in pictures if classes[path] != NO_CLASS), key=lambda path: (classes[path], path))
    order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(42)).tolist()
    train = set(order[: int(0.8 * len(pictures))])
    rows = [row(path, classes[path], "train" if n in train else "test") for n, path in enumerate(pictures)]
    odd = "its split is drawn as MTIL's is, over sorted names" if name == "sun397" else ""
    return annotated(SETS[name], root, home, rows, *filter(None, [odd]))
