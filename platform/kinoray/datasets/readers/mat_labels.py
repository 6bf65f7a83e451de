"""Oxford Flowers 102 and Stanford Cars: pictures whose classes stand in MATLAB files, in torchvision's layout.

As in MTIL (ZSCL, ICCV 2023) Flowers train on `train` alone. Their classes are numbered: names are torchvision's.
"""

from pathlib import Path
from typing import Any

from kinoray.datasets.readers import Annotations, need
from kinoray.datasets.readers.pictures import annotated, facts, row
from kinoray.errors import UsageError
from kinoray.system.text import one_line

NAMES = ("flowers102", "stanford-cars")

SETS = {
    "flowers102": facts(
        "flowers102", "Nilsback and Zisserman, Automated Flower Classification, 2008",
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/", "flowers-102/{imagelabels.mat,setid.mat} and jpg/",
        1020, 6149),
    "stanford-cars": facts(
        "stanford-cars", "Krause et al., 3D Object Representations for Fine-Grained Categorization, 2013",
        "mirrors of https://ai.stanford.edu/~jkrause/cars/car_dataset.html",
        "stanford_cars/{devkit/cars_meta.mat,devkit/cars_train_annos.mat,cars_test_annos_withlabels.mat}, "
        "cars_train/ and cars_test/", 8144, 8041),
}  # fmt: skip


def read(name: str, root: Path) -> Annotations:
    """The pictures as rows. Raises: UsageError where a MATLAB file is missing or damaged."""
    return (_flowers if name == "flowers102" else _cars)(root)


def _flowers(root: Path) -> Annotations:
    from kinoray.backbones.vision import torchvision

    data_set, names = SETS["flowers102"], torchvision("datasets").Flowers102.classes
    file = need(data_set, root, "imagelabels.mat", folders=("flowers-102",))
    labels, splits = _loaded(file)["labels"], _loaded(file.with_name("setid.mat"))
    of_split = (("train", splits["trnid"]), ("test", splits["tstid"]))
    rows = [row(f"jpg/image_{n:05d}.jpg", names[labels[n - 1] - 1], s) for s, numbers in of_split for n in numbers]
    return annotated(data_set, root, file.parent, rows)


def _cars(root: Path) -> Annotations:
    data_set = SETS["stanford-cars"]
    home = need(data_set, root, "devkit/cars_meta.mat", folders=("stanford_cars",)).parents[1]
    names = _loaded(home / "devkit" / "cars_meta.mat")["class_names"].tolist()
    lists = {"train": home / "devkit" / "cars_train_annos.mat", "test": home / "cars_test_annos_withlabels.mat"}
    entries = [(split, entry) for split, file in lists.items() for entry in _loaded(file)["annotations"]]
    rows = [row(f"cars_{s}/{entry['fname']}", names[int(entry["class"]) - 1], s) for s, entry in entries]
    return annotated(data_set, root, home, rows)


def _loaded(path: Path) -> dict[str, Any]:
    """A MATLAB file, arrays of one entry as that entry."""
    from scipy.io import loadmat

    try:
        return loadmat(path, squeeze_me=True)
    except (OSError, ValueError, TypeError, NotImplementedError) as error:
        raise UsageError(f"{path} cannot be read: {one_line(error):.120}. Get the file again.") from None
