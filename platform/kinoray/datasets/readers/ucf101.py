"""UCF101 (Soomro et al., 2012, arXiv 1212.0402): 13,320 clips of 101 actions, three splits.

The lists name files as `<Class>/v_<Class>_g<group>_c<clip>.avi`, those of training with the class number behind. Videos
are found by their name wherever they lie below the root, in any container. Clips of one group were cut from one video,
so validation is carved by groups.

Oddities: lists with CR LF; the files of `HandstandPushups` are named `v_HandStandPushups_...`, on some disks not.
"""

from pathlib import Path
from typing import Any

from kinoray.datasets.readers import (
    Annotations,
    DataSet,
    attach_videos,
    carve_validation,
    need,
    read_list,
    stem_of,
)
from kinoray.errors import UsageError

NAMES = ("ucf101-1", "ucf101-2", "ucf101-3")
SHARE = 0.1
FOLDERS = ("ucfTrainTestlist", "UCF101TrainTestSplits-RecognitionTask/ucfTrainTestlist", "UCF-101")
COUNTS = {1: (8585, 952, 3783), 2: (8614, 972, 3734), 3: (8661, 963, 3696)}
"""Clips of each split after carving; training and validation together are the published 9,537, 9,586 and 9,624."""

SETS = {
    f"ucf101-{split}": DataSet(
        name=f"ucf101-{split}",
        paper="Soomro et al., UCF101: A Dataset of 101 Human Actions Classes From Videos in The Wild, 2012",
        source="https://www.crcv.ucf.edu/data/UCF101.php",
        licence="none stated",
        layouts=(
            "UCF-101/<Class>/v_<Class>_gNN_cNN.avi and ucfTrainTestlist/{trainlist0N,testlist0N}.txt",
            "the same files anywhere below the root, videos flat or in another container",
        ),
        expected=dict(zip(("train", "validation", "test"), counts, strict=True)),
        notes=f"Validation: {SHARE:.0%} of the groups (source videos) of the training list.",
    )
    for split, counts in COUNTS.items()
}


def read(name: str, root: Path) -> Annotations:
    """One of the three splits.

    Raises: UsageError where a list is missing or a line is not of the published form.
    """
    split = name.rpartition("-")[2]
    data_set = SETS[name]
    lists = {use: need(data_set, root, f"{use}list0{split}.txt", folders=FOLDERS) for use in ("train", "test")}
    rows = [_row(path, line, use) for use, path in lists.items() for line in read_list(path)]
    extra = attach_videos(rows, root, lambda row: [row["id"].lower()], lambda path, stem: [stem.lower()])
    carve_validation(rows, SHARE)
    layout = f"lists in {lists['train'].parent.relative_to(root)}/, videos by name"
    return Annotations(data_set, layout, rows, [], extra)


def _row(path: Path, line: str, use: str) -> dict[str, Any]:
    """A line such as `Archery/v_Archery_g08_c01.avi 3`; the number is there in training lists only."""
    file, *number = line.split()
    label, _, clip = file.replace("\\", "/").rpartition("/")
    stem = stem_of(clip)
    if not label or "_g" not in stem or len(number) > 1:
        raise UsageError(f"{path}: {line!r:.80} is not a line such as 'Archery/v_Archery_g08_c01.avi 3'. Get it again.")
    return {"id": stem, "video": stem.rpartition("_c")[0], "uri": None, "label": label, "split": use}
