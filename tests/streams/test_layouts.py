"""Folders as people have them: each layout gives the clips, captions, classes and splits that its files say."""

import gzip
import json
import logging
import os
import random
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.fs import LocalFileSystem
from support.clips import tar_of
from support.places import REPOSITORY

from kinoray.data.manifest import read_manifest
from kinoray.errors import UsageError
from kinoray.streams import user_folder
from kinoray.streams.captions import listed_clips
from kinoray.streams.own_folder import own_folder
from kinoray.system import stand_ins
from kinoray.system.remote import Remote

ANNOTATIONS = REPOSITORY.parent / "shared" / "annotations"

NAMES = [f"v{number:03d}.mp4" for number in range(9)]
SPLITS = ["train", "validate", "testing"] * 3
"""As some published sets call them."""
OURS = {"train": "train", "validate": "validation", "testing": "test"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(path: Path, data: str | bytes | list | dict = b"") -> Path:
    """A file in folders that may not be there yet; what is no text or bytes is written as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not isinstance(data, str | bytes):
        data = json.dumps(data)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def clips_of(folder) -> dict[str, tuple]:
    """Video -> captions, label, split, as the reader of the folder gives them."""
    _, clips = listed_clips(own_folder(str(folder)))
    return {clip.video: (clip.captions, clip.label, clip.split) for clip in clips}


def captioned(prefix: str = "") -> dict[str, tuple]:
    """What the nine videos should be, each with a caption."""
    return {
        f"{prefix}{name}": ([f"caption {name}"], None, OURS[split]) for name, split in zip(NAMES, SPLITS, strict=True)
    }


def rows(video="video", caption="caption", split="split", ending=".mp4") -> list[dict]:
    """The nine rows under the columns' names; videos named with another ending, or none."""
    names = [name.removesuffix(".mp4") + ending for name in NAMES]
    return [
        {video: n, caption: f"caption {name}", **({split: s} if split else {})}
        for n, name, s in zip(names, NAMES, SPLITS, strict=True)
    ]


def refused(folder, *parts):
    with pytest.raises(UsageError) as caught:
        listed_clips(own_folder(str(folder)))
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def a_caption_file(folder: Path, ending: str) -> None:
    write(folder / "captions.jsonl", "\n".join(json.dumps(row) for row in three("video", "caption", ending)))


def a_table(folder: Path, ending: str) -> None:
    write(folder / "annotations" / "mine.json", three("path", "sentence", ending))


def a_hugging_face_folder(folder: Path, ending: str) -> None:
    for row in three("file_name", "text", ending):
        (folder / row["file_name"]).rename(write(folder / row["split"] / row["file_name"]))
        write(folder / row["split"] / "metadata.csv", f"file_name,text\n{row['file_name']},{row['text']}\n")


def a_parquet_file(folder: Path, ending: str) -> None:
    for row in three("video", "caption", ending):
        (folder / row["video"]).unlink()
        value = {"bytes": row["video"].encode(), "path": row["video"]}
        table = pa.table({"image" if ending == ".jpg" else "video": [value], "caption": [row["caption"]]})
        pq.write_table(table, folder / f"{row['split']}-00000-of-00001.parquet")


def a_web_dataset(folder: Path, ending: str) -> None:
    for row in three("video", "caption", ending):
        (folder / row["video"]).unlink()
        members = {row["video"]: b"data", f"{row['video'][0]}.txt": row["caption"]}
        tar_of(folder / f"{row['split']}-000.tar", members | {f"{row['video'][0]}.{e}": "x" for e in ("pyd", "pth")})


def a_folder_per_class(folder: Path, ending: str) -> None:
    for row in three("video", "caption", ending):
        write(folder / row["split"] / row["caption"].replace(" ", "_") / row["video"])
        (folder / row["video"]).unlink()


def lists_of_labels(folder: Path, ending: str) -> None:
    for number, row in enumerate(three("video", "caption", ending)):
        write(folder / f"{row['split']}.txt", f"{row['video']} {number}\n")
    write(folder / "classes.txt", "caption a\ncaption b\ncaption c\n")


def msrvtts_own(folder: Path, ending: str) -> None:
    numbers = {"a": 0, "b": 6513, "c": 7010}
    said = [{"video_id": f"video{n}", "caption": f"caption {name}"} for name, n in numbers.items()]
    videos = [{"video_id": f"video{n}", "category": 1} for n in numbers.values()]
    write(folder / "MSRVTT_data.json", {"videos": videos, "sentences": said})
    for name, number in numbers.items():
        (folder / f"{name}{ending}").rename(folder / f"video{number}{ending}")


LAYOUTS = {
    "`captions.csv`": a_caption_file,
    "one table under": a_table,
    "Hugging Face's": a_hugging_face_folder,
    "Parquet with whole": a_parquet_file,
    "WebDataset's shards": a_web_dataset,
    "a folder per class": a_folder_per_class,
    "lists of `path": lists_of_labels,
    "MSR-VTT's own": msrvtts_own,
}
"""What makes the folder of each row of the page's table, by how the row begins."""


def three(video: str, caption: str, ending: str) -> list[dict]:
    splits = ("train", "val", "test")
    return [{video: f"{n}{ending}", caption: f"caption {n}", "split": s} for n, s in zip("abc", splits, strict=True)]


def test_the_page_lists_the_layouts_that_are_tested():
    page = (REPOSITORY / "docs" / "data.md").read_text()
    lines = page.split("| what lies in the folder |")[1].split("\n\n")[0].splitlines()[2:]
    rows = [line.removeprefix("| ") for line in lines]
    assert len(rows) == len(LAYOUTS) and all(row.startswith(begin) for row, begin in zip(rows, LAYOUTS, strict=True))


@pytest.mark.parametrize("ending", [".mp4", ".jpg"])
@pytest.mark.parametrize("in_store", [False, True])
@pytest.mark.parametrize("make", LAYOUTS.values())
def test_each_layout_of_the_page_here_and_in_a_store_with_videos_and_pictures(
    tmp_path, monkeypatch, make, in_store, ending
):
    folder = tmp_path / "mine"
    for name in "abc":
        write(folder / f"{name}{ending}")
    make(folder, ending)
    remote = Remote(LocalFileSystem(), str(folder), "s3://bucket/mine")
    monkeypatch.setattr(stand_ins, "open_remote", lambda uri: remote)
    monkeypatch.setattr(stand_ins, "_remote", lambda uri: remote)
    name = "s3://bucket/mine" if in_store else str(folder)
    listing, clips = listed_clips(own_folder(name))
    assert sorted((clip.captions[0], clip.split) for clip in clips) == [
        ("caption a", "train"),
        ("caption b", "validation"),
        ("caption c", "test"),
    ]
    assert {os.path.splitext(clip.video)[1] for clip in clips} == {ending}
    assert all((listing.root / clip.video).is_file() for clip in clips)
    others = [line for line in listing.left_out if "members of other kinds" in line]
    assert others == (
        ["6 members of other kinds are left out, first test-000.tar: c.pyd."] if make is a_web_dataset else []
    )


@pytest.mark.parametrize("video", ["video", "video_id", "path", "file_name"])
@pytest.mark.parametrize("caption", ["caption", "text", "sentence"])
@pytest.mark.parametrize("file", ["annotations.json", "captions.jsonl", "annotations/list.csv", "x.parquet"])
def test_columns_by_other_names_in_every_kind_of_table(tmp_path, video, caption, file):
    folder, table = tmp_path / "mine", rows(video, caption)
    for name in NAMES:
        write(folder / name)
    path = write(folder / file)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(table), path)
    elif path.suffix == ".json":
        write(path, table)
    elif path.suffix == ".jsonl":
        write(path, "\n".join(map(json.dumps, table)))
    else:
        lines = [",".join(row.values()) for row in table]
        write(path, "\n".join([",".join(table[0]), *lines]))
    assert clips_of(folder) == captioned()


def test_names_without_an_ending_are_found_wherever_the_videos_lie(tmp_path):
    for number, name in enumerate(NAMES):
        write(tmp_path / f"part{number % 2}" / name)
    write(tmp_path / "data.json", rows("video_id", "sentence", ending=""))
    expected = {
        f"part{NAMES.index(name)}/{name}".replace(f"part{NAMES.index(name)}", f"part{NAMES.index(name) % 2}"): value
        for name, value in captioned().items()
    }
    assert clips_of(tmp_path) == expected


def test_a_name_is_never_taken_for_another_clip(tmp_path):
    for path in ("a/1.mp4", "b/2.mp4", "c/2.mp4"):
        write(tmp_path / path)
    listed = [{"video": "a/1.mp4", "caption": "x"}, {"video": "b/1.mp4", "caption": "y"}]
    write(tmp_path / "captions.json", [*listed, {"video": "1", "caption": "z"}])
    assert clips_of(tmp_path) == {
        name: ([text], None, None) for name, text in (("a/1.mp4", "x"), ("b/1.mp4", "y"), ("1", "z"))
    }
    write(tmp_path / "captions.json", [*listed, {"video": "2.mp4", "caption": "z"}])
    refused(tmp_path, "captions.json row 3: '2.mp4' could mean 'b/2.mp4' or 'c/2.mp4'. Write the full path.")


def test_a_json_object_with_an_array_for_each_split(tmp_path):
    for name in NAMES:
        write(tmp_path / name)
    table = {s: [row for row in rows() if row["split"] == s] for s in ("train", "validate", "testing")}
    write(
        tmp_path / "set.json", {s: [{k: v for k, v in r.items() if k != "split"} for r in t] for s, t in table.items()}
    )
    assert clips_of(tmp_path) == captioned()


def test_a_table_for_each_split_is_told_by_its_name_and_two_for_one_are_refused(tmp_path):
    for name in NAMES:
        write(tmp_path / "videos" / name)
    for split, word in (("train", "train_9k"), ("validate", "val1"), ("testing", "test_1k")):
        part = [{k: v for k, v in row.items() if k != "split"} for row in rows() if row["split"] == split]
        write(tmp_path / f"mine_{word}.json", part)
    assert clips_of(tmp_path) == captioned("videos/")
    write(tmp_path / "mine_train_7k.json", rows(split=""))
    refused(tmp_path, "several tables of clips", "mine_train_7k.json, mine_train_9k.json", "Keep one")


def test_the_files_of_one_table_and_other_tables_beside_a_folder_per_class(tmp_path):
    for name in NAMES:
        write(tmp_path / "shards" / "videos" / name)
    for split, words in OURS.items():
        part = [{k: v for k, v in row.items() if k != "split"} for row in rows() if row["split"] == split]
        for number in range(3):
            path = write(tmp_path / "shards" / "data" / f"{words}-{number:05d}-of-00003.parquet")
            pq.write_table(pa.Table.from_pylist(part[number : number + 1]), path)
    assert clips_of(tmp_path / "shards") == captioned("videos/")
    for label in ("wave", "run"):
        write(tmp_path / "classes" / label / "a.mp4")
    write(tmp_path / "classes" / "metadata.csv", "id,fps\n1,25\n")
    assert clips_of(tmp_path / "classes").keys() == {"run/a.mp4", "wave/a.mp4"}


@pytest.mark.parametrize("file", ["metadata.csv", "metadata.jsonl", "metadata.parquet"])
@pytest.mark.parametrize("apart", [True, False])
def test_a_video_folder_of_hugging_face(tmp_path, file, apart):
    table = rows("file_name", "text", split="")
    for row, split in zip(table, SPLITS, strict=True):
        write(tmp_path / split / row["file_name"])
    parts = {split: [r for r, s in zip(table, SPLITS, strict=True) if s == split] for split in OURS}
    if not apart:
        parts = {"": [{**r, "file_name": f"{s}/{r['file_name']}"} for r, s in zip(table, SPLITS, strict=True)]}
    for home, part in parts.items():
        path = write(tmp_path / home / file)
        match path.suffix:
            case ".parquet":
                pq.write_table(pa.Table.from_pylist(part), path)
            case ".jsonl":
                write(path, "\n".join(map(json.dumps, part)))
            case _:
                write(path, "\n".join(["file_name,text", *(",".join(row.values()) for row in part)]))
    assert clips_of(tmp_path) == {
        f"{split}/{name}": value for (name, value), split in zip(captioned().items(), SPLITS, strict=True)
    }


def test_a_folder_per_class_in_a_nested_root(tmp_path, caplog):
    for number, name in enumerate(NAMES):
        write(tmp_path / "Kinetics-400" / SPLITS[number] / ("arm_wrestling" if number % 2 else "wave") / name)
    write(tmp_path / "Kinetics-400" / "train" / "unsorted.mp4")
    with caplog.at_level(logging.WARNING, "kinoray"):
        stream = user_folder.build(own_folder(str(tmp_path)), tmp_path / "manifests")
    manifest = read_manifest(stream.tasks[0].manifest)
    assert manifest.root == tmp_path / "Kinetics-400"
    read = {row["uri"]: (row["captions"], row["label"], row["split"]) for row in manifest.table.to_pylist()}
    assert read["validate/arm_wrestling/v001.mp4"] == (["arm wrestling"], "arm_wrestling", "validation")
    assert read["testing/wave/v008.mp4"] == (["wave"], "wave", "test")
    assert len(read) == 9
    assert "is read as a folder per class in a folder per split: 9 clips, 9 captions, 2 classes" in caplog.text
    assert "1 files that no row names are left out, first 'train/unsorted.mp4'." in caplog.text


def test_a_folder_per_class_without_splits(tmp_path):
    for label in ("wave", "run"):
        write(tmp_path / label / "a.avi")
    assert clips_of(tmp_path) == {"run/a.avi": (["run"], "run", None), "wave/a.avi": (["wave"], "wave", None)}


def test_folders_that_name_no_classes_are_none(tmp_path):
    for name in ("videos", "clips"):
        write(tmp_path / name / "a.mp4")
    refused(tmp_path, "no other layout that is known: it holds 'clips/', 'videos/'", "captions.csv")


def test_a_web_dataset_is_unpacked_once_into_the_cache(tmp_path, caplog):
    folder = tmp_path / "mine"
    tar_of(
        folder / "train-000.tar", {"a/0.mp4": b"A", "a/0.txt": " a man \n", "1.mp4": b"B", "1.json": '{"text": "x"}'}
    )
    tar_of(folder / "test-000.tar", {"0.webm": b"C", "0.cls": "7", "lost.mp4": b"D", "lost.txt": " "})
    with caplog.at_level(logging.WARNING, "kinoray"):
        stream = user_folder.build(own_folder(str(folder)), tmp_path / "manifests")
    manifest = read_manifest(stream.tasks[0].manifest)
    read = {row["id"]: (row["captions"], row["label"], row["split"]) for row in manifest.table.to_pylist()}
    expected = {
        "train-000.tar/a/0.mp4": (["a man"], None, "train"),
        "train-000.tar/1.mp4": (["x"], None, "train"),
        "test-000.tar/0.webm": (["7"], "7", "test"),
    }
    assert {id: read[id] for id in expected} == expected and {id.partition("@")[0] for id in read} == {*expected}
    data = {path.name: path.read_bytes() for path in (manifest.root / "train-000.tar").rglob("*.mp4")}
    assert data == {"0.mp4": b"A", "1.mp4": b"B"} and tmp_path / "cache" in manifest.root.parents
    assert "no row names" not in caplog.text
    assert "1 samples without a video or a caption are left out, first test-000.tar: lost." in caplog.text
    assert sorted(path.name for path in folder.iterdir()) == ["test-000.tar", "train-000.tar"]
    changed = (manifest.root / "train-000.tar" / "1.mp4").stat().st_mtime_ns
    assert clips_of(folder)["train-000.tar/1.mp4"] == (["x"], None, "train")
    assert (manifest.root / "train-000.tar" / "1.mp4").stat().st_mtime_ns == changed
    tar_of(folder / "train-000.tar", {"1.mp4": b"BB", "1.txt": "y"})
    assert clips_of(folder)["train-000.tar/1.mp4"] == (["y"], None, "train")


@pytest.mark.parametrize("name", ["../out.mp4", "/out.mp4", "a/../../out.mp4"])
def test_names_that_leave_an_archive_are_refused(tmp_path, name):
    tar_of(tmp_path / "in" / "x.tar", {"0.mp4": b"", "0.txt": "x", name: b"evil"})
    refused(tmp_path / "in", "x.tar: video", "folder")
    assert not [path for path in tmp_path.rglob("*out.mp4")] and not Path("/out.mp4").exists()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_an_archive_are_refused(tmp_path, kind):
    tar_of(tmp_path / "x.tar", {"0.mp4": b"", "0.txt": "x"}, link=kind)
    refused(tmp_path, "'link.mp4' is a link or a device")


def test_a_broken_archive_is_refused(tmp_path):
    tar_of(tmp_path / "x.tar", {"0.mp4": bytes(4000), "0.txt": "x"})
    whole = (tmp_path / "x.tar").read_bytes()
    write(tmp_path / "x.tar", whole[:2000])
    refused(tmp_path, "x.tar cannot be read", "Get it again")
    (tmp_path / "x.tar").unlink()
    tar_of(tmp_path / "x.tar", {"0.txt": "x", "0.mp4": random.Random(0).randbytes(1 << 18)})
    packed = gzip.compress((tmp_path / "x.tar").read_bytes())
    (tmp_path / "x.tar").unlink()
    write(tmp_path / "x.tar.gz", packed[: len(packed) // 2])
    refused(tmp_path, "x.tar.gz cannot be read", "Get it again")


@pytest.mark.parametrize("as_struct", [True, False])
def test_parquet_with_whole_videos(tmp_path, as_struct, caplog):
    note = {"info": {"features": {"label": {"names": ["run", "wave"], "_type": "ClassLabel"}}}}
    for split, data in (("train", [b"A", b"B", b""]), ("test", [b"C"])):
        values = [{"bytes": d, "path": f"/home/x/{i}.webm"} for i, d in enumerate(data)] if as_struct else data
        table = pa.table(
            {"video": pa.array(values), "label": pa.array([1, 0, 0][: len(data)]), "rest": [1] * len(data)}
        )
        table = table.replace_schema_metadata({"huggingface": json.dumps(note)})
        (tmp_path / "mine" / "data").mkdir(parents=True, exist_ok=True)
        pq.write_table(table, tmp_path / "mine" / "data" / f"{split}-00000-of-00001.parquet")
    listing, clips = listed_clips(own_folder(str(tmp_path / "mine")))
    read = {(listing.root / clip.video).read_bytes(): (clip.captions, clip.label, clip.split) for clip in clips}
    assert read == {
        b"A": (["wave"], "wave", "train"),
        b"B": (["run"], "run", "train"),
        b"C": (["wave"], "wave", "test"),
    }
    assert {Path(clip.video).suffix for clip in clips} == {".webm" if as_struct else ".mp4"}
    assert listing.left_out == (
        "1 rows without a video or a caption are left out, first data/train-00000-of-00001.parquet: row 3.",
    )


@pytest.mark.parametrize("line", ["{} {}", "{},{}", "{}\t{}"])
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("label_map.txt", "run\narm_wrestling\n"),
        ("annotations/classInd.txt", "0 run\n1 arm_wrestling\n"),
        ("classnames.json", '{"run": 0, "arm_wrestling": 1}'),
    ],
)
def test_lists_of_paths_and_labels(tmp_path, line, file, text):
    for name in NAMES:
        write(tmp_path / "videos_all" / "sub" / name)
    write(tmp_path / file, text)
    for split, word in zip(OURS, ("train_list.txt", "val.csv", "test.txt"), strict=True):
        chosen = [name for name, s in zip(NAMES, SPLITS, strict=True) if s == split]
        write(tmp_path / word, "\n".join(line.format(f"sub/{n}", int(n[1:4]) % 2) for n in chosen) + "\n")
    assert clips_of(tmp_path) == {
        f"videos_all/sub/{name}": (
            (["arm wrestling"], "arm_wrestling", OURS[split]) if number % 2 else (["run"], "run", OURS[split])
        )
        for number, (name, split) in enumerate(zip(NAMES, SPLITS, strict=True))
    }


def test_labels_counted_from_one_and_labels_beyond_the_classes(tmp_path):
    write(tmp_path / "classes.txt", "run\nwave\n")
    write(tmp_path / "list.txt", "a.mp4 1\nb.mp4 2\n")
    assert {video: clip[1] for video, clip in clips_of(tmp_path).items()} == {"a.mp4": "run", "b.mp4": "wave"}
    write(tmp_path / "list.txt", "a.mp4 0\nb.mp4 2\n")
    refused(tmp_path, "A list of clips has class 2, for which ", "classes.txt has no name")


def test_msrvtt_as_its_zips_leave_it(tmp_path):
    videos = [{"video_id": f"video{n}", "split": "x", "category": 3} for n in (0, 6513)]
    said = [{"video_id": f"video{n}", "caption": f"text {n}"} for n in (0, 6513)]
    write(tmp_path / "train_val_annotation" / "train_val_videodatainfo.json", {"videos": videos, "sentences": said})
    test = {
        "videos": [{"video_id": "video7010", "category": 1}],
        "sentences": [{"video_id": "video7010", "caption": "t"}],
    }
    write(tmp_path / "test_videodatainfo.json", test)
    for path in ("TrainValVideo/video0.mp4", "TrainValVideo/video6513.mp4", "TestVideo/video7010.mp4"):
        write(tmp_path / path)
    assert clips_of(tmp_path) == {
        "TrainValVideo/video0.mp4": (["text 0"], "3", "train"),
        "TrainValVideo/video6513.mp4": (["text 6513"], "3", "validation"),
        "TestVideo/video7010.mp4": (["t"], "1", "test"),
    }


@pytest.mark.skipif(not ANNOTATIONS.is_dir(), reason="needs the real annotation files")
def test_the_real_test_list_of_msrvtt_is_a_table(tmp_path):
    write(tmp_path / "captions.csv", (ANNOTATIONS / "msrvtt" / "MSRVTT_JSFUSION_test.csv").read_bytes())
    write(tmp_path / "TestVideo" / "video9770.mp4")
    clips = clips_of(tmp_path)
    assert len(clips) == 1000
    assert clips["TestVideo/video9770.mp4"] == (["a person is connecting something to system"], None, None)


@pytest.mark.skipif(not ANNOTATIONS.is_dir(), reason="needs the real annotation files")
def test_the_real_captions_of_msvd_are_a_table(tmp_path):
    write(tmp_path / "captions.json", (ANNOTATIONS / "msvd" / "captions_msvd.json").read_bytes())
    write(tmp_path / "YouTubeClips" / "-4wsuPCjDBc_5_15.avi")
    clips = clips_of(tmp_path)
    said = json.loads((ANNOTATIONS / "msvd" / "captions_msvd.json").read_text())
    assert len(clips) == 1970
    assert clips["YouTubeClips/-4wsuPCjDBc_5_15.avi"][0] == [t.strip() for t in said["-4wsuPCjDBc_5_15"]]


def test_a_json_object_of_names_by_split_is_no_table(tmp_path):
    write(tmp_path / "splits.json", {"train": ["a.mp4"], "test": ["b.mp4"]})
    refused(tmp_path, "no other layout that is known: it holds 'splits.json'")


@pytest.mark.parametrize("columns", [{"frames": [b"A"], "caption": ["x"]}, {"a": [1], "b": [2]}])
def test_parquet_without_a_column_that_is_known_is_a_line(tmp_path, columns):
    pq.write_table(pa.table(columns), tmp_path / "train.parquet")
    refused(tmp_path, "no other layout that is known: train.parquet has", *map(repr, columns), "needs a column 'video'")


def test_a_video_beside_a_picture_is_the_sample_and_pictures_beside_videos_are_no_classes(tmp_path):
    tar_of(tmp_path / "x.tar", {"a.jpg": "J", "a.mp4": "V", "a.png": "P", "a.txt": "x", "b.png": "P", "b.txt": "y"})
    assert {video: clip[0] for video, clip in clips_of(tmp_path).items()} == {
        "x.tar/a.mp4": ["x"],
        "x.tar/b.png": ["y"],
    }
    for label in ("wave", "run"):
        write(tmp_path / "classes" / label / "a.mp4")
        write(tmp_path / "classes" / label / "a.jpg")
    assert clips_of(tmp_path / "classes").keys() == {"run/a.mp4", "wave/a.mp4"}


def test_a_folder_that_nobody_can_read_says_what_it_has_and_what_to_rename(tmp_path):
    refused(tmp_path, "it is empty")
    write(tmp_path / "readme.txt", "hello")
    write(tmp_path / "list.json", [{"vid": "a.mp4", "caption": "x"}])
    refused(tmp_path, "list.json has 'vid', 'caption'", "needs a column 'video'. Did you mean 'vid'?", "video_id")
    write(tmp_path / "list.json", [{"file_name": "a.mp4", "descr": "x"}])
    refused(tmp_path, "needs a column 'caption'. It has 'file_name', 'descr'", "text, sentence")


def test_training_clips_alone_are_dealt_out_and_validation_serves_as_test(tmp_path, caplog):
    write(tmp_path / "captions.json", [{"video": f"{n}.mp4", "caption": "x", "split": "train"} for n in range(3)])
    with caplog.at_level(logging.WARNING, "kinoray"):
        assert {clip[2] for clip in clips_of(tmp_path).values()} == {None}
    assert "captions.json names training clips alone, so their splits are dealt out." in caplog.text
    table = [{"video": f"{n}.mp4", "caption": "x", "split": ("train", "val")[n % 2]} for n in range(3)]
    write(tmp_path / "captions.json", table)
    with caplog.at_level(logging.WARNING, "kinoray"):
        assert [clip[2] for clip in clips_of(tmp_path).values()] == ["train", "test", "train"]
    assert "captions.json names no test clips: those for validation are for test." in caplog.text
