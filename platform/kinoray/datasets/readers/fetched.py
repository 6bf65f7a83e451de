"""Sets that `kinoray data fetch` drew of packages: sprites (games' drawings), robots (Meta-World), glyphs (emoji).

The folder holds `clips.jsonl`, a line for each clip, and the clips. Splits are by concept: a name with all its variants
is in one split. The manifest holds way 0 of cutting; a stream cuts anew for its own number, and leaves out what is
reserved, which stands here as training clips of the task "reserved".
"""

from pathlib import Path
from typing import Any

from kinoray.datasets.packages import RESERVED_TASK, concept_of, find_family, split_of_concept
from kinoray.datasets.readers import Annotations, DataSet, need
from kinoray.system.durable import read_jsonl

NAMES = ("sprites", "robots", "glyphs")
LIST = "clips.jsonl"


def _set(name: str, paper: str, licence: str) -> DataSet:
    return DataSet(name, paper, f"`kinoray data fetch {name}`", licence, (f"{LIST} and clips/",), {})


SETS = {
    "sprites": _set("sprites", "Moving drawings of three games and of emoji, with names.", "GPL-2+, CC-BY-SA-3.0, MIT"),
    "robots": _set("robots", "Meta-World (Yu et al., CoRL 2019), each task beside its opposite.", "MIT, Apache-2.0"),
    "glyphs": _set("glyphs", "Emoji of three vendors, by sub-category.", "MIT, Apache-2.0, CC-BY-4.0"),
}


def read(name: str, root: Path) -> Annotations:
    """The clips as they were drawn."""
    path = need(SETS[name], root, LIST)
    reserved = find_family(name).RESERVED
    rows: list[dict[str, Any]] = []
    for row in read_jsonl(path, "id", "uri", "captions", "label", "task"):
        if not (root / row["uri"]).is_file():
            row |= {"uri": None, "video": row["uri"]}
        split = split_of_concept(concept_of(row["id"]), 0, reserved)
        rows.append(row | ({"split": split} if split else {"split": "train", "task": RESERVED_TASK}))
    return Annotations(SETS[name], LIST, rows, [])
