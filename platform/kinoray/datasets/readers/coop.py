"""`coop-*`: nine sets in the layout and with the splits of CoOp (Zhou et al., 2022), which X-TAIL learns from.

A JSON file lists [path, number of the class, class] of each split's pictures; Aircraft has its own lists.
"""

from pathlib import Path

from kinoray.datasets.readers import Annotations, DataSet, need, read_json, read_list
from kinoray.datasets.readers.pictures import annotated, row

LAYOUTS = {
    "coop-caltech101": ("caltech-101", "split_zhou_Caltech101.json", "101_ObjectCategories", (4128, 1649, 2465)),
    "coop-dtd": ("dtd", "split_zhou_DescribableTextures.json", "images", (2820, 1128, 1692)),
    "coop-eurosat": ("eurosat", "split_zhou_EuroSAT.json", "2750", (13500, 5400, 8100)),
    "coop-flowers102": ("oxford_flowers", "split_zhou_OxfordFlowers.json", "jpg", (4093, 1633, 2463)),
    "coop-food101": ("food-101", "split_zhou_Food101.json", "images", (50500, 20200, 30300)),
    "coop-pets": ("oxford_pets", "split_zhou_OxfordPets.json", "images", (2944, 736, 3669)),
    "coop-cars": ("stanford_cars", "split_zhou_StanfordCars.json", "", (6509, 1635, 8041)),
    "coop-sun397": ("sun397", "split_zhou_SUN397.json", "SUN397", (15880, 3970, 19850)),
    "coop-aircraft": ("fgvc_aircraft", "images_variant_train.txt", "images", (3334, 3333, 3333)),
}
"""Set -> its folder, its list, the folder of its pictures there, and the pictures of each split."""
NAMES = (
    "coop-caltech101",
    "coop-dtd",
    "coop-eurosat",
    "coop-flowers102",
    "coop-food101",
    "coop-pets",
    "coop-cars",
    "coop-sun397",
    "coop-aircraft",
)
SPLITS = {"train": "train", "val": "validation", "test": "test"}

SETS = {
    name: DataSet(
        name=name,
        paper="Zhou et al., Learning to Prompt for Vision-Language Models, 2022",
        source="https://github.com/KaiyangZhou/CoOp (DATASETS.md)",
        licence="as the set's own source says",
        layouts=(f"{folder}/{file} and {folder}/{pictures or 'the folders that it names'}/",),
        expected=dict(zip(SPLITS.values(), counts, strict=True)),
    )
    for name, (folder, file, pictures, counts) in LAYOUTS.items()
}


def read(name: str, root: Path) -> Annotations:
    """The pictures as rows. Raises: UsageError where a list is missing or damaged."""
    folder, file, pictures, _ = LAYOUTS[name]
    path = need(SETS[name], root, file, folders=(folder, folder.replace("-", "")))
    prefix = f"{pictures}/" if pictures else ""
    if path.suffix == ".json":
        lists = {split: [(p, label) for p, _, label in entries] for split, entries in read_json(path, dict).items()}
    else:
        lines = {word: read_list(path.with_name(f"images_variant_{word}.txt")) for word in SPLITS}
        parts = {word: [line.partition(" ") for line in of_word] for word, of_word in lines.items()}
        lists = {word: [(f"{number}.jpg", label) for number, _, label in of_word] for word, of_word in parts.items()}
    rows = [row(f"{prefix}{p}", label, SPLITS[word]) for word, entries in lists.items() for p, label in entries]
    return annotated(SETS[name], root, path.parent, rows)
