"""Readers of videos with captions: the real annotation files count as published, and small trees in every layout.

The real files lie beside the checkout (`../shared/annotations`); without them those tests are skipped.
"""

import json
import os
import pickle
import re
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from support.places import SHARED

from kinoray.data.manifest import SPLITS, write_manifest
from kinoray.datasets import readers
from kinoray.datasets.readers import ctvr, didemo, msrvtt
from kinoray.datasets.readers.text import span
from kinoray.errors import UsageError

REAL = SHARED / "annotations"
FAMILIES = ("activitynet", "ctvr", "didemo", "msrvtt", "msvd", "vatex")
NAMES = [name for name, family in readers.data_sets().items() if family in FAMILIES]


def real(folder: str) -> Path:
    if not (REAL / folder).is_dir():
        pytest.skip(f"the real annotation files (../shared/annotations/{folder}) are not here")
    return REAL / folder


def counts(annotations: readers.Annotations) -> tuple[int, ...]:
    return tuple(Counter(row["split"] for row in annotations.rows)[split] for split in SPLITS)


def captions(annotations: readers.Annotations) -> tuple[int, ...]:
    return tuple(sum(len(row["captions"]) for row in annotations.rows if row["split"] == split) for split in SPLITS)


def odd(annotations: readers.Annotations, words: str) -> int:
    """The count of the one oddity that has these words."""
    (line,) = [line for line in annotations.oddities if words in line]
    return int(line.split()[0])


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def write(root: Path, name: str, value) -> None:
    """An annotation file: JSON, or lines of text."""
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    text = (
        value if isinstance(value, str) else "\n".join(value) if name.endswith((".txt", ".csv")) else json.dumps(value)
    )
    (root / name).write_text(text, encoding="utf-8")


# The real files


@pytest.mark.parametrize(
    ("name", "folder", "clips", "texts"),
    [
        ("msrvtt", "msrvtt", (8_503, 497, 1_000), (0, 0, 1_000)),
        ("msrvtt-7k", "msrvtt", (6_513, 497, 1_000), (0, 0, 1_000)),
        ("msrvtt-full", "msrvtt", (6_513, 497, 2_990), (0, 0, 0)),
        ("msvd", "msvd", (1_200, 100, 670), (48_774, 4_290, 27_763)),
        ("didemo", "didemo", (8_392, 1_065, 1_004), (0, 1_065, 1_004)),
        ("didemo-clips", "didemo", (0, 4_180, 4_021), (0, 4_180, 4_021)),
        ("activitynet", "activitynet_captions", (9_509, 500, 4_917), (9_509, 500, 4_917)),
        ("activitynet-clips", "activitynet_captions", (35_483, 1_938, 17_505), (35_483, 1_938, 17_505)),
        ("vatex-1k5", "vatex", (25_991, 1_500, 1_500), (0, 0, 0)),
        ("ctvr-msrvtt-10", "ctvr", (320, 320, 2_990), (0, 0, 2_990)),
        ("ctvr-msrvtt-20", "ctvr", (320, 320, 2_990), (0, 0, 2_990)),
        ("ctvr-actnet-10", "ctvr", (3_200, 3_200, 4_910), (3_200, 3_200, 4_910)),
        ("ctvr-actnet-20", "ctvr", (3_200, 3_200, 4_910), (3_200, 3_200, 4_910)),
    ],
)
def test_the_real_files_read_to_the_published_counts(name, folder, clips, texts):
    annotations = readers.read(name, real(folder))
    assert counts(annotations) == clips and captions(annotations) == texts
    expected = annotations.data_set.expected
    there = [split for split, count in zip(SPLITS, clips, strict=True) if count and split in expected]
    assert all(expected[split] == clips[SPLITS.index(split)] for split in there) and "test" in there
    assert len({row["id"] for row in annotations.rows}) == len(annotations.rows)
    told = "no activity_net.v1-3.min.json: weights are chosen on videos that trained" in annotations.home_made
    assert told is name.startswith("ctvr-actnet"), "validation and training videos are the same"
    assert all(row["uri"] is None for row in annotations.rows) and annotations.extra == [] and annotations.root is None
    assert all(text == text.strip() and text for row in annotations.rows for text in row["captions"])
    again = readers.read(name, REAL)  # the folder above is a known layout too
    assert again.rows == annotations.rows


def test_every_row_of_the_real_files_makes_a_manifest(tmp_path):
    for name, folder in (("activitynet-clips", "activitynet_captions"), ("ctvr-actnet-10", "ctvr"), ("msvd", "msvd")):
        annotations = readers.read(name, real(folder))
        rows = [row | {"uri": row["video"] + ".mp4"} for row in annotations.rows]
        manifest = write_manifest(rows, tmp_path / f"{name}.parquet", tmp_path)
        assert [len(manifest.clips(split)) for split in SPLITS] == list(counts(annotations))


def test_the_real_activitynet_is_never_tested_on_both_annotations():
    annotations = readers.read("activitynet-clips", real("activitynet_captions"))
    assert odd(annotations, "start > end") == 2
    assert odd(annotations, "ran past the end") == 34  # 29 of train, 5 of val_1; the other of the 35 is in val_2
    assert odd(annotations, "had no length") == 2
    assert odd(annotations, "described again in test.json (val_2): not read") == 4_885
    first = json.loads((REAL / "activitynet_captions" / "val.json").read_text())
    assert {row["video"] for row in annotations.rows if row["split"] == "test"} == set(first)
    durations = {v: e["duration"] for w in ("train", "val") for v, e in _entries(f"{w}.json").items()}
    assert all(0 <= row["start"] < row["end"] <= durations[row["video"]] for row in annotations.rows)
    assert _videos(annotations, "train") & _videos(annotations, "validation") == set()


def _entries(file: str) -> dict:
    return json.loads((REAL / "activitynet_captions" / file).read_text())


def _videos(annotations: readers.Annotations, split: str) -> set[str]:
    return {row["video"] for row in annotations.rows if row["split"] == split}


def test_the_real_span_in_the_wrong_order_is_exchanged():
    annotations = readers.read("activitynet-clips", real("activitynet_captions"))
    spans = {row["id"]: (row["start"], row["end"]) for row in annotations.rows}
    reversed_spans = [
        (f"{video}#{n}", (end, start))
        for video, entry in _entries("train.json").items()
        for n, (start, end) in enumerate(entry["timestamps"])
        if start > end
    ]
    assert len(reversed_spans) == 2 and all(spans[id] == times for id, times in reversed_spans)


def test_the_real_names_with_dashes_and_bare_dots_are_read():
    assert sum(row["id"].startswith("-") for row in readers.read("msvd", real("msvd")).rows) == 46
    annotations = readers.read("didemo", real("didemo"))
    names = {split: [r["video"] for r in annotations.rows if r["split"] == split] for split in SPLITS}
    assert [sum(n.endswith(".") for n in names[s]) for s in SPLITS] == [154, 12, 27]
    assert not any(row["id"].endswith(".") for row in annotations.rows)


def test_the_real_didemo_annotators_who_disagree_are_counted():
    annotations = readers.read("didemo-clips", real("didemo"))
    assert odd(annotations, "disagree") == 2_753 + 2_630
    assert odd(annotations, "train clips: train_data.json is not there") == 0
    assert all(
        0 <= row["start"] < row["end"] <= 30 and row["start"] % 5 == 0 == row["end"] % 5 for row in annotations.rows
    )


def test_the_real_ctvr_splits_have_the_published_tasks():
    sizes = {
        "ctvr-msrvtt-10": "305 465 211 378 366 248 309 218 295 195",
        "ctvr-msrvtt-20": "226 79 141 324 137 74 77 301 122 244 173 75 139 170 171 47 185 110 137 58",
        "ctvr-actnet-10": "522 558 512 500 511 529 449 458 445 426",
        "ctvr-actnet-20": "237 285 299 259 276 236 244 256 227 284 255 274 216 233 223 235 236 209 223 203",
    }
    for name, published in sizes.items():
        annotations = readers.read(name, real("ctvr"))
        tests = Counter(row["task"] for row in annotations.rows if row["split"] == "test")
        assert [tests[str(task + 1)] for task in range(len(tests))] == [int(size) for size in published.split()]
        per_class = Counter((row["task"], row["label"]) for row in annotations.rows if row["split"] == "train")
        assert set(per_class.values()) == {16} and len(per_class) == (200 if "actnet" in name else 20)
        assert not _videos(annotations, "train") & _videos(annotations, "test")
        order = list(dict.fromkeys(row["task"] for row in annotations.rows if row["split"] == "train"))
        assert order == [str(task + 1) for task in range(len(tests))]


def test_the_real_ctvr_training_videos_lie_in_train_7k():
    annotations = readers.read("ctvr-msrvtt-10", real("ctvr"))
    splits = Counter(msrvtt.official_split(row["video"]) for row in annotations.rows if row["split"] == "train")
    assert splits == {"train": 284, "validation": 36}


def test_the_real_vatex_lists_alone_are_no_vatex():
    with pytest.raises(UsageError, match=r"vatex_training_v1\.0\.json.*vatex-1k5"):
        readers.read("vatex", real("vatex"))


# MSR-VTT


def msrvtt_json(numbers=(0, 1, 6513, 7010, 7011, 7012)):
    return {
        "info": {},
        "videos": [{"video_id": f"video{n}", "category": n % 20, "split": "train", "id": n} for n in numbers],
        "sentences": [
            {"caption": f" text {k} of {n}", "video_id": f"video{n}", "sen_id": k} for k in (0, 1) for n in numbers
        ],
    }


ONE_K = ["key,vid_key,video_id,sentence", 'ret0,msr7011,video7011,"a query, quoted"']


@pytest.mark.parametrize("folder", ["", "annotations/", "msrvtt_data/"])
def test_msrvtt_reads_its_lists_and_captions(tmp_path, folder):
    write(tmp_path, f"{folder}MSRVTT_data.json", msrvtt_json())
    write(tmp_path, f"{folder}MSRVTT_train.9k.csv", ["video_id", *(f"video{n}" for n in (7010, 0, 1, 6513, 7012))])
    write(tmp_path, f"{folder}MSRVTT_JSFUSION_test.csv", ONE_K)
    touch(tmp_path, "videos/all/video0.mp4", "videos/all/video7011.webm", "videos/all/video42.mp4", "._video0.mp4")
    annotations = readers.read("msrvtt", tmp_path)
    assert [(r["id"], r["split"]) for r in annotations.rows] == [
        ("video7010", "train"),
        ("video0", "train"),
        ("video1", "train"),
        ("video7012", "train"),
        ("video6513", "validation"),
        ("video7011", "test"),
    ]
    by_id = {row["id"]: row for row in annotations.rows}
    assert by_id["video0"]["captions"] == ["text 0 of 0", "text 1 of 0"] and by_id["video6513"]["label"] == "13"
    assert by_id["video7011"]["captions"] == ["a query, quoted"]
    assert by_id["video0"]["uri"] == "videos/all/video0.mp4" and by_id["video7011"]["uri"].endswith(".webm")
    assert by_id["video1"]["uri"] is None and annotations.extra == ["videos/all/video42.mp4"]
    assert odd(annotations, "blanks") == 10 and "MSRVTT_data.json" in annotations.layout


def test_msrvtt_without_lists_takes_the_numbers_of_the_videos(tmp_path):
    write(tmp_path, "MSRVTT_data.json", msrvtt_json())
    write(tmp_path, "MSRVTT_JSFUSION_test.csv", ONE_K)
    assert counts(readers.read("msrvtt", tmp_path)) == (4, 1, 1)
    assert counts(readers.read("msrvtt-7k", tmp_path)) == (2, 1, 1)
    full = readers.read("msrvtt-full", tmp_path)
    assert counts(full) == (2, 1, 3) and captions(full) == (4, 2, 6)


def test_msrvtt_reads_the_two_official_halves_and_the_older_file(tmp_path):
    whole = msrvtt_json()
    for name, keep in (("train_val_videodatainfo.json", range(7010)), ("test_videodatainfo.json", range(7010, 9999))):
        half = {k: [e for e in whole[k] if int(e["video_id"][5:]) in keep] for k in ("videos", "sentences")}
        write(tmp_path / "halves", name, half)
    older = [{"image_id": e["video_id"], "caption": e["caption"]} for e in whole["sentences"]]
    write(tmp_path / "older", "annotation/MSR_VTT.json", {"annotations": older})
    write(tmp_path / "new", "MSRVTT_data.json", whole)
    texts = [
        [(r["id"], r["captions"]) for r in readers.read("msrvtt-full", tmp_path / layout).rows]
        for layout in ("new", "halves", "older")
    ]
    assert texts[0] == texts[1] == texts[2]


# MSVD


MSVD = {"-aB_1_5": ["a b", "c"], "x-y_z_0_10": ["d é"], "q_2_3": ["e"]}


def msvd_tree(root: Path) -> Path:
    for split, clip in zip(("train", "val", "test"), MSVD, strict=True):
        write(root, f"{split}_list.txt", [clip, ""])
    touch(root, "YouTubeClips/-aB_1_5.avi", "YouTubeClips/q_2_3.avi", "YouTubeClips/vid2.mp4")
    return root


@pytest.mark.parametrize("layout", ["json", "pickle", "python 2 pickle", "text"])
def test_msvd_reads_its_three_kinds_of_captions(tmp_path, layout):
    msvd_tree(tmp_path)
    tokens = {clip: [text.split() for text in texts] for clip, texts in MSVD.items()}
    if layout == "json":
        write(tmp_path, "captions_msvd.json", MSVD)
    elif layout == "text":
        lines = [f"{clip} {text}" for clip, texts in MSVD.items() for text in texts]
        write(tmp_path, "AllVideoDescriptions.txt", ["# comment", "", *lines])
    else:
        data = pickle.dumps(tokens, 4)
        if layout.startswith("python 2"):  # protocol 0 with byte strings in UTF-8
            data = re.sub(
                rb"V([^\n]*)",
                lambda m: b"S" + repr(m[1].decode("unicode-escape").encode()).encode()[1:],
                pickle.dumps(tokens, 0),
            )
        (tmp_path / "raw-captions.pkl").write_bytes(data)
    annotations = readers.read("msvd", tmp_path)
    assert {row["id"]: row["captions"] for row in annotations.rows} == MSVD and counts(annotations) == (1, 1, 1)
    assert annotations.rows[0]["uri"] == "YouTubeClips/-aB_1_5.avi" and annotations.rows[1]["uri"] is None


def test_msvd_names_by_number_are_matched_through_the_mapping(tmp_path):
    write(msvd_tree(tmp_path), "captions_msvd.json", MSVD)
    write(tmp_path, "youtube_mapping.txt", ["-aB_1_5 vid1", "x-y_z_0_10 vid2"])
    annotations = readers.read("msvd", tmp_path)
    assert annotations.rows[1]["uri"] == "YouTubeClips/vid2.mp4" and annotations.extra == []


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(("name", "file"), [("msvd", "raw-captions.pkl"), ("ctvr-msrvtt-10", "MSRVTT_10_dataset.pkl")])
def test_a_pickle_that_would_run_code_is_refused_and_did_not_run(tmp_path, name, file):
    (msvd_tree(tmp_path) / file).write_bytes(pickle.dumps({"train": Runs(tmp_path / "made")}))
    with pytest.raises(UsageError, match="nothing in it was run"):
        readers.read(name, tmp_path)
    assert not (tmp_path / "made").exists()


# DiDeMo


def moment(video, text, times, number):
    return {"video": video, "description": text, "times": times, "annotation_id": number, "num_segments": 6}


def didemo_tree(root: Path, with_lists: bool = True) -> Path:
    for word, n in (("train", 0), ("val", 1), ("test", 2)):
        moments = [
            moment(f"9@N0{n}_1_a.mov", " First. ", [[0, 0], [0, 1], [0, 1], [4, 4]], 10 * n),
            moment(f"9@N0{n}_2_b.", "other", [[2, 2]] * 4, 10 * n + 1),
            moment(f"9@N0{n}_1_a.mp4", "second", [[5, 5], [5, 5], [5, 5], [5, 5]], 10 * n + 2),
        ]
        write(root, f"annotations/{word}_data.json", moments)
        if with_lists:
            write(root, f"annotations/{word}_list.txt", [f"9@N0{n}_2_b.null", f"9@N0{n}_1_a.3gp"])
        touch(root, f"videos/{word}/9@N0{n}_1_a.MOV", f"videos/{word}/9@N0{n}_2_b.")
    return root


def test_didemo_joins_all_descriptions_of_a_video_whatever_its_suffix(tmp_path):
    annotations = readers.read("didemo", didemo_tree(tmp_path))
    assert counts(annotations) == (2, 2, 2) and annotations.extra == []
    first, second = annotations.rows[:2]
    assert (first["id"], first["captions"], first["uri"]) == ("9@N00_2_b", ["other"], "videos/train/9@N00_2_b.")
    assert (second["captions"], second["uri"]) == (["First. second"], "videos/train/9@N00_1_a.MOV")
    assert (second["start"], second["end"]) == (0.0, 30.0)


def test_didemo_without_lists_takes_every_described_video(tmp_path):
    annotations = readers.read("didemo", didemo_tree(tmp_path, with_lists=False))
    assert [row["id"] for row in annotations.rows[:2]] == ["9@N00_1_a", "9@N00_2_b"] and counts(annotations) == (
        2,
        2,
        2,
    )


def test_a_didemo_video_of_five_pieces_is_taken_whole(tmp_path):
    didemo_tree(tmp_path)
    short = moment("9@N02_1_a.mov", "text", [[0, 0]], 7) | {"num_segments": 5}
    write(tmp_path, "annotations/test_data.json", [short, moment("9@N02_2_b.", "text", [[0, 0]], 8)])
    spans = {row["id"]: (row.get("start"), row.get("end")) for row in readers.read("didemo", tmp_path).rows}
    assert spans["9@N02_1_a"] == (None, None) and spans["9@N02_2_b"] == (0.0, 30.0)


def test_didemo_videos_may_have_no_suffix_or_two(tmp_path):
    didemo_tree(tmp_path)
    (tmp_path / "videos/train/9@N00_1_a.MOV").rename(tmp_path / "videos/train/9@N00_1_a")
    (tmp_path / "videos/test/9@N02_1_a.MOV").rename(tmp_path / "videos/test/9@N02_1_a.mov.mp4")
    assert all(row["uri"] for row in readers.read("didemo", tmp_path).rows)


def test_didemo_clips_have_the_span_that_overlaps_best(tmp_path):
    rows = readers.read("didemo-clips", didemo_tree(tmp_path)).rows
    assert [(r["id"], r["start"], r["end"]) for r in rows[:3]] == [
        ("9@N00_1_a#0", 0.0, 10.0),
        ("9@N00_2_b#1", 10.0, 15.0),
        ("9@N00_1_a#2", 25.0, 30.0),
    ]


@pytest.mark.parametrize(
    ("times", "agreed"),
    [
        ([[1, 1], [1, 1], [4, 4], [4, 4]], (1, 1)),  # equal: the earlier
        ([[0, 3], [0, 3], [5, 5], [5, 5]], (5, 5)),  # equal: the shorter
        ([[0, 0], [0, 1], [1, 1]], (0, 1)),  # nobody's double, but near both
        ([[4, 4], [4, 4], [0, 0], [4, 4], [0, 0], [0, 0], [4, 4]], (4, 4)),
        ([[3, 2]], (2, 3)),
    ],
)
def test_annotators_who_disagree_are_settled_by_the_written_rule(times, agreed):
    assert didemo.agreed(times) == agreed


# ActivityNet Captions


def activitynet_tree(root: Path, val: str = "val_1.json", videos: int = 40) -> Path:
    entry = {"duration": 20.0, "timestamps": [[0, 5.5], [4, 20.0]], "sentences": ["One.", "  Two. "]}
    training = {f"v_{n:011d}": entry for n in range(videos)}
    odd_one = {"duration": 20.0, "timestamps": [[9, 3], [15, 21], [20, 20], [7, 7]], "sentences": ["a", "b", "c", "d"]}
    write(root, "train.json", training)
    write(root, val, {"v_-----------": odd_one, "v_-aaaaaaaaa-": entry})
    write(root, "val_2.json" if val == "val_1.json" else "test.json", {"v_-----------": entry})
    touch(root, "v_-----------.mp4", "sub/-aaaaaaaaa-.mkv", f"{0:011d}.mp4", "v_other.mp4")
    return root


@pytest.mark.parametrize("val", ["val_1.json", "val.json"])
def test_activitynet_joins_the_sentences_of_a_video(tmp_path, val):
    annotations = readers.read("activitynet", activitynet_tree(tmp_path, val))
    assert counts(annotations) == (38, 2, 2) and odd(annotations, "described again") == 1
    tests = {row["id"]: row for row in annotations.rows if row["split"] == "test"}
    assert tests["v_-aaaaaaaaa-"]["captions"] == ["One. Two."] and tests["v_-aaaaaaaaa-"].get("end") is None
    assert (
        tests["v_-aaaaaaaaa-"]["uri"] == "sub/-aaaaaaaaa-.mkv" and tests["v_-----------"]["uri"] == "v_-----------.mp4"
    )
    assert annotations.rows[0]["uri"] == "00000000000.mp4" and annotations.extra == ["v_other.mp4"]


def test_activitynet_clips_follow_the_written_rule_for_odd_spans(tmp_path):
    annotations = readers.read("activitynet-clips", activitynet_tree(tmp_path))
    assert counts(annotations) == (76, 4, 6)
    spans = {row["id"]: (row["start"], row["end"]) for row in annotations.rows}
    odd_ones = [spans[f"v_-----------#{n}"] for n in range(4)]
    assert odd_ones == [(3, 9), (15, 20), (19, 20), (6.5, 7.5)]
    assert [odd(annotations, words) for words in ("start > end", "ran past", "no length")] == [1, 1, 2]


def test_rounding_past_the_end_is_no_oddity():
    oddities: Counter[str] = Counter()
    assert span([57.64, 70.29], 70.28999999999999, oddities) == {"start": 57.64, "end": 70.28999999999999}
    assert span([0, 0], 0.4, Counter()) == {"start": 0.0, "end": 1.0}
    assert not oddities


def test_activitynet_labels_come_from_its_own_file(tmp_path):
    database = {"-aaaaaaaaa-": {"annotations": [{"label": "Surfing"}, {"label": "Rowing"}]}, "x": {"annotations": []}}
    write(activitynet_tree(tmp_path), "annotations/activity_net.v1-3.min.json", {"database": database})
    labels = {row["id"]: row["label"] for row in readers.read("activitynet", tmp_path).rows}
    assert labels["v_-aaaaaaaaa-"] == "Surfing" and labels["v_-----------"] is None


# VATEX


def vatex_entry(clip, n=2):
    return {"videoID": clip, "enCap": [f"text {k} " for k in range(n)], "chCap": ["x"] * n}


CLIPS = [f"-Ab_{n}_xyz{n:02d}_000010_000020" for n in range(4)]


def test_vatex_reads_english_captions_of_the_official_split(tmp_path):
    write(tmp_path, "vatex_training_v1.0.json", [vatex_entry(CLIPS[0])])
    write(tmp_path, "vatex_validation_v1.0.json", [vatex_entry(CLIPS[1]), vatex_entry(CLIPS[2])])
    write(tmp_path, "vatex_public_test_english_v1.1.json", [vatex_entry(CLIPS[3], 3)])
    touch(tmp_path, f"clips/{CLIPS[0]}.mp4", f"clips/{CLIPS[3][:-14]}.mp4")
    annotations = readers.read("vatex", tmp_path)
    assert counts(annotations) == (1, 2, 1) and captions(annotations) == (2, 4, 3)
    assert annotations.rows[0]["captions"] == ["text 0", "text 1"]
    assert [bool(row["uri"]) for row in annotations.rows] == [True, False, False, True]
    for word, clip in (("train", CLIPS[0]), ("val", CLIPS[1]), ("test", CLIPS[2])):
        write(tmp_path, f"lists/{word}_list.txt", [clip])
    halves = readers.read("vatex-1k5", tmp_path)
    assert counts(halves) == (1, 1, 1) and captions(halves) == (2, 2, 2)


# CTVR


def ctvr_tree(root: Path, published: bool = True) -> Path:
    """Two classes of MSR-VTT with 20 training, 3 official validation and 2 test videos each."""
    numbers = [*range(40), *range(6514, 6520), *range(7010, 7014)]
    whole = msrvtt_json(numbers)
    for entry in whole["videos"]:
        entry["category"] = int(entry["video_id"][5:]) % 2
    write(root, "MSRVTT_data.json", whole)
    rows = [f"ret{n},msr{n},video{n},query of {n}" for n in range(7010, 7014)]
    write(root, "MSRVTT_CL_validation.csv", ["key,vid_key,video_id,sentence", *rows])
    if published:
        train = {
            1: {0: [f"video{n}" for n in range(0, 32, 2)]},
            2: {1: [f"video{n}" for n in (*range(1, 31, 2), 6515)]},
        }
        test = {1: {0: ["video7010", "video7012"]}, 2: {1: ["video7013", "video7011"]}}
        (root / "ctvr").mkdir()
        for tasks in (10, 20):
            (root / f"ctvr/MSRVTT_{tasks}_dataset.pkl").write_bytes(pickle.dumps({"train": train, "val": test}))
    return root


def test_ctvr_follows_the_published_split_and_validates_on_unused_videos(tmp_path):
    touch(ctvr_tree(tmp_path), "video0.mp4")
    annotations = readers.read("ctvr-msrvtt-10", tmp_path)
    assert counts(annotations) == (32, 5, 4) and captions(annotations) == (64, 5, 4)
    assert annotations.home_made == []
    assert {(r["task"], r["label"]) for r in annotations.rows} == {("1", "0"), ("2", "1")}
    assert [r["video"] for r in annotations.rows if r["split"] == "test"] == [
        "video7010",
        "video7012",
        "video7013",
        "video7011",
    ]
    assert annotations.rows[-1]["captions"] == ["query of 7011"] and annotations.rows[0]["uri"] == "video0.mp4"
    assert _videos(annotations, "validation") == {f"video{n}" for n in (6514, 6516, 6517, 6518, 6519)}


def test_ctvr_builds_a_split_where_none_is_published(tmp_path, monkeypatch):
    ctvr_tree(tmp_path, published=False)
    with pytest.raises(UsageError, match="2 classes cannot be divided evenly among 10 tasks"):
        readers.read("ctvr-msrvtt-10", tmp_path)
    videos = [f"v{n}" for n in range(400)]
    classes = {v: str(int(v[1:]) % 20) for v in videos}
    order = [str(n) for n in range(20)]
    split = ctvr.build_split(videos[:380], videos[380:], classes, order, 10)
    assert split == ctvr.build_split(videos[:380][::-1], videos[380:], classes, order, 10)
    assert [list(run) for run in split["train"].values()] == [[str(n), str(n + 1)] for n in range(0, 20, 2)]
    assert {len(chosen) for run in split["train"].values() for chosen in run.values()} == {16}
    assert split["test"]["10"] == {"18": ["v398"], "19": ["v399"]}
    assert all(classes[v] == name for run in split["train"].values() for name, vs in run.items() for v in vs)


def test_ctvr_builds_activitynet_from_labels_with_the_longest_sentence(tmp_path):
    activitynet_tree(tmp_path)
    database = {f"{n:011d}": {"annotations": [{"label": f"class {n % 10}"}]} for n in range(40)}
    database["-aaaaaaaaa-"] = {"annotations": [{"label": "class 3"}]}
    write(tmp_path, "activity_net.v1-3.min.json", {"database": database})
    annotations = readers.read("ctvr-actnet-10", tmp_path)
    assert counts(annotations) == (40, 40, 1) and "built with seed 0" in annotations.layout
    assert annotations.home_made == [
        "no ACTNET_10_dataset.pkl: a split built with seed 0",
        "no train_queries.json: each video's longest sentence stands for it",
        "no val_queries.json: each video's longest sentence stands for it",
    ]
    assert all(row["captions"] == ["Two."] and (row["start"], row["end"]) == (4, 20) for row in annotations.rows)
    assert odd(annotations, "their training videos serve validation too") == 10
    assert all(r["id"].endswith("@validation") for r in annotations.rows if r["split"] == "validation")


@pytest.mark.parametrize("content", [[1], {"train": 1, "val": 2}, {"train": {}}, {"train": {1: [2]}, "val": {}}])
def test_a_ctvr_pickle_of_another_shape_is_one_line(tmp_path, content):
    ctvr_tree(tmp_path)
    (tmp_path / "ctvr/MSRVTT_10_dataset.pkl").write_bytes(pickle.dumps(content))
    with pytest.raises(UsageError, match="videos by split, task and class"):
        readers.read("ctvr-msrvtt-10", tmp_path)


# What all share


@pytest.mark.parametrize("name", NAMES)
def test_every_set_says_where_it_comes_from_and_an_empty_folder_is_one_line(tmp_path, name):
    about = readers.describe(name)
    assert about.name == name and about.paper and about.source and about.licence and about.layouts
    assert set(about.expected) <= set(SPLITS) and about.expected["test"] > 0
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))) as caught:
        readers.read(name, tmp_path)
    assert "\n" not in str(caught.value) and "Known layouts" in str(caught.value)


def test_unknown_names_and_folders_are_one_line(tmp_path):
    with pytest.raises(UsageError, match="Did you mean 'msrvtt'"):
        readers.describe("msrvt")
    with pytest.raises(UsageError, match="no folder"):
        readers.read("msrvtt", tmp_path / "none")


@pytest.mark.parametrize("text", ["", "{", "[1]", "\ufeff{}x", "[" * 100_000])
def test_a_damaged_caption_file_is_one_line(tmp_path, text):
    write(msvd_tree(tmp_path), "captions_msvd.json", text)
    with pytest.raises(UsageError, match=r"captions_msvd\.json") as caught:
        readers.read("msvd", tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "file", "content"),
    [
        ("activitynet", "train.json", {"v_a": {"duration": 3, "timestamps": [[0, 1]]}}),
        ("activitynet-clips", "train.json", {"v_a": {"duration": 3, "timestamps": [[0, 1]], "sentences": ["a", "b"]}}),
        ("activitynet-clips", "val_1.json", {"v_a": {"duration": None, "timestamps": [[0, 1]], "sentences": ["a"]}}),
        ("didemo-clips", "annotations/test_data.json", [moment("a.mp4", "text", [], 1)]),
        ("didemo", "annotations/test_data.json", ["text"]),
        ("msvd", "captions_msvd.json", {"q_2_3": [1]}),
    ],
)
def test_entries_of_another_shape_are_one_line(tmp_path, name, file, content):
    for tree in (msvd_tree, didemo_tree, activitynet_tree):
        tree(tmp_path)
    write(tmp_path, file, content)
    with pytest.raises(UsageError) as caught:
        readers.read(name, tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


def test_a_nearly_right_file_name_is_named(tmp_path):
    write(tmp_path, "captions-msvd.json", MSVD)
    with pytest.raises(UsageError, match=r"Rename 'captions-msvd\.json'"):
        readers.read("msvd", tmp_path)


def test_a_table_without_its_column_is_one_line(tmp_path):
    write(tmp_path, "MSRVTT_JSFUSION_test.csv", ["key,video,sentence", "1,2,3"])
    with pytest.raises(UsageError, match="no column 'video_id'; it has key, video, sentence"):
        readers.read("msrvtt", tmp_path)


def test_validation_is_carved_by_name_with_all_clips_of_a_video_together():
    rows = [{"id": f"{v}#{n}", "video": f"{v}", "split": "train"} for v in range(100) for n in range(3)]
    rows += [{"id": "kept", "split": "test"}]
    more = [dict(row) for row in reversed(rows)]
    readers.carve_validation(rows, 0.1)
    readers.carve_validation(more, 0.1)
    chosen = {row["video"] for row in rows if row["split"] == "validation"}
    assert len(chosen) == 10 and sum(row["split"] == "validation" for row in rows) == 30
    assert chosen == {row["video"] for row in more if row["split"] == "validation"}
    single = [{"id": "a", "split": "train"}]
    readers.carve_validation(single, 0.1)
    assert single[0]["split"] == "train"


@pytest.mark.parametrize(("listed", "there"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_media_are_found_under_the_other_form_of_their_accents(tmp_path, listed, there):
    name, on_disk = (unicodedata.normalize(form, "café.mp4") for form in (listed, there))
    (tmp_path / on_disk).touch()
    rows = [{"video": name}]
    assert not readers.attach_videos(rows, tmp_path, lambda row: [readers.stem_of(row["video"])])
    assert rows[0]["uri"] == on_disk


def test_media_are_found_by_stem_and_links_stay_inside(tmp_path, caplog):
    root, other = tmp_path / "root", tmp_path / "other"
    touch(root, "a/One.MP4", "b/One.mkv", "c/9@N1_x.", "c/9@N1_y", "notes.txt", "c/data_batch_1", ".hidden/x.mp4")
    touch(other, "far.mp4")
    (root / "near.mp4").symlink_to(root / "a/One.MP4")
    (root / "far.mp4").symlink_to(other / "far.mp4")
    (root / "folder").symlink_to(other)
    files = readers.media_files(root)
    assert files == {
        "a/One.MP4": "One",
        "b/One.mkv": "One",
        "c/9@N1_x.": "9@N1_x",
        "c/9@N1_y": "9@N1_y",
        "near.mp4": "near",
    }
    rows = [{"video": "One"}]
    assert "b/One.mkv" in readers.attach_videos(rows, root, lambda row: [row["video"]])
    assert rows[0]["uri"] == "a/One.MP4"
    assert "2 links were not followed" in caplog.text
