"""HMDB51 (Kuehne et al., ICCV 2011): 6,766 clips of 51 actions, three splits.

Each class has a list per split: `<clip>.avi <1 training, 2 test, 0 unused>`, 70 and 30 clips of a class. Names hold
brackets, `#`, `&` and `!`. Videos are found by class folder and name, or by name where they lie flat. Clips that differ
only behind the class name were cut from one video, so validation is carved by what stands before.
"""

import re
from pathlib import Path
from typing import Any

from kinoray.datasets.readers import (
    FOLDERS,
    Annotations,
    DataSet,
    attach_videos,
    carve_validation,
    read_list,
    stem_of,
)
from kinoray.errors import UsageError

NAMES = ("hmdb51-1", "hmdb51-2", "hmdb51-3")
SHARE = 0.1
LIST_FOLDERS = (
    *FOLDERS,
    "testTrainMulti_7030_splits",
    "test_train_splits",
    "test_train_splits/testTrainMulti_7030_splits",
    "hmdb51_splits",
    "testTrainMulti_splits",
)
USES = {"0": None, "1": "train", "2": "test"}
LINE = re.compile(r"(.+\S)\s+([012])")
COUNTS = {1: (3207, 363, 1530), 2: (3218, 352, 1530), 3: (3191, 379, 1530)}
"""Clips of each split after carving; training and validation together are the published 3,570."""

SETS = {
    f"hmdb51-{split}": DataSet(
        name=f"hmdb51-{split}",
        paper="Kuehne et al., HMDB: A Large Video Database for Human Motion Recognition, ICCV 2011",
        source="https://serre-lab.clps.brown.edu/resource/hmdb-a-large-human-motion-database/",
        licence="CC BY 4.0",
        layouts=(
            "<class>/<clip>.avi and testTrainMulti_7030_splits/<class>_test_split{1,2,3}.txt",
            "the same files anywhere below the root, videos flat or in another container",
        ),
        expected=dict(zip(("train", "validation", "test"), counts, strict=True)),
        notes=f"Validation: {SHARE:.0%} of the source videos of the training list.",
    )
    for split, counts in COUNTS.items()
}


def read(name: str, root: Path) -> Annotations:
    """One of the three splits.

    Raises: UsageError where there are no lists, or a line is not of the published form.
    """
    ending = f"_test_split{name.rpartition('-')[2]}.txt"
    lists = _lists(root, ending)
    rows: list[dict[str, Any]] = []
    unused: list[dict[str, Any]] = []
    for path in lists:
        label = path.name.removesuffix(ending)
        for line in read_list(path):
            stem, use = _entry(path, line)
            row = {"id": f"{label}/{stem}", "video": f"{label}/{stem.rsplit('_', 6)[0]}", "label": label, "split": use}
            (rows if use else unused).append(row)
    oddities = [f"{len(unused)} clips are listed as unused in this split: left out"] if unused else []
    if len(lists) != 51:
        oddities.append(f"{len(lists)} class lists where 51 are published")
    extra = attach_videos(
        [*rows, *unused],
        root,
        lambda row: (row["id"], row["id"].partition("/")[2]),
        lambda path, stem: (f"{Path(path).parent.name}/{stem}", stem),
    )
    carve_validation(rows, SHARE)
    layout = f"{len(lists)} class lists in {lists[0].parent.relative_to(root)}/, videos by class and name"
    return Annotations(SETS[name], layout, rows, oddities, extra)


def _lists(root: Path, ending: str) -> list[Path]:
    for folder in dict.fromkeys(LIST_FOLDERS):
        lists = sorted((root / folder).glob(f"*{ending}"))
        if lists:
            return lists
    where = ", ".join(f"{folder}/" for folder in dict.fromkeys(LIST_FOLDERS) if folder)
    raise UsageError(
        f"{root} has no <class>{ending} (looked there and in {where}). Unpack the published lists of splits there."
    )


def _entry(path: Path, line: str) -> tuple[str, str | None]:
    """Clip and use of a line such as `#2_Gum_chew_h_nm_np1_fr_med_0.avi 1`."""
    match = LINE.fullmatch(line)
    if not match:
        raise UsageError(f"{path}: {line!r:.80} is not a line such as 'clip.avi 1'. Get the lists again.")
    return stem_of(match[1]), USES[match[2]]
