"""MSVD (Chen and Dolan, ACL 2011): 1,970 short YouTube clips with about 41 English captions each.

Files `<youtube id>_<start>_<end>.avi`; ids may begin with `-`. Lists `train_list.txt`, `val_list.txt`, `test_list.txt`.
Captions, the first that is there: `captions_msvd.json` (clip -> texts), `raw-captions.pkl` (clip -> token lists; read
without running anything, see `kinoray.datasets.unpickle`), `AllVideoDescriptions.txt` (`<clip> <text>` a line, `#`
starts a comment). Videos named `vid<N>` are matched through `youtube_mapping.txt`. Every caption of a test video is a
query.
"""

from collections import Counter
from pathlib import Path

from kinoray.datasets.readers import Annotations, DataSet, find, need, read_json, read_list
from kinoray.datasets.readers.text import finish
from kinoray.datasets.unpickle import load_plain
from kinoray.errors import UsageError

NAMES = ("msvd",)

LISTS = {"train": "train_list.txt", "validation": "val_list.txt", "test": "test_list.txt"}
CAPTION_FILES = ("captions_msvd.json", "raw-captions.pkl", "AllVideoDescriptions.txt")
PLACES = ("msvd", "msvd_data", "MSVD", "txt_labels")
SETS = {
    "msvd": DataSet(
        name="msvd",
        paper="Chen, Dolan: Collecting Highly Parallel Data for Paraphrase Evaluation, ACL 2011",
        source="videos YouTubeClips.tar and AllVideoDescriptions.txt from the authors; lists with CLIP4Clip and X-Pool",
        licence="research use; the videos belong to their YouTube authors",
        layouts=(
            "YouTubeClips/*.avi, the three lists and captions_msvd.json",
            "the same with raw-captions.pkl, lists of token lists",
            "the same with AllVideoDescriptions.txt",
        ),
        expected={"train": 1_200, "validation": 100, "test": 670},
        captions={"train": 48_774, "validation": 4_290, "test": 27_763},
    )
}


def read(name: str, root: Path) -> Annotations:
    """The clips in the order of the lists."""
    data_set = SETS[name]
    file = need(data_set, root, *CAPTION_FILES, folders=PLACES)
    captions = captions_of(file)
    rows = [
        {"id": video, "video": video, "captions": captions.get(video, []), "split": split}
        for split, lists in LISTS.items()
        for video in read_list(need(data_set, root, lists, folders=PLACES))
    ]
    mapping_file = find(root, "youtube_mapping.txt", folders=PLACES)
    lines = [line.split() for line in read_list(mapping_file)] if mapping_file else []
    mapping = {line[0]: line[1] for line in lines if len(line) == 2}
    other_names = lambda video: (mapping[video],) if video in mapping else ()  # noqa: E731
    return finish(data_set, f"lists and {file.name}", rows, root, Counter(), other_names)


def captions_of(file: Path) -> dict[str, list[str]]:
    """Captions by clip from any of the three kinds of file.

    Raises: UsageError where a pickle holds anything but plain data, or not lists of texts by clip.
    """
    if file.suffix == ".txt":
        captions: dict[str, list[str]] = {}
        for line in read_list(file):
            clip, _, text = line.partition(" ")
            if not line.startswith("#"):
                captions.setdefault(clip, []).append(text)
        return captions
    listed = load_plain(file, encoding="utf-8") if file.suffix == ".pkl" else read_json(file, dict)
    try:
        return {clip: [c if isinstance(c, str) else " ".join(c) for c in texts] for clip, texts in listed.items()}
    except (AttributeError, TypeError):
        raise UsageError(f"{file} must hold lists of captions by clip, but does not. Get the file again.") from None
