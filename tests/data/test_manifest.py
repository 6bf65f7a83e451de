"""The manifest: numbering of samples, digest of content, atomic writing, and paths that must stay inside."""

import os
import shutil
import time

import numpy as np
import pytest

from kinoray.data.manifest import read_manifest, write_manifest
from kinoray.errors import UsageError, VideoError

ROWS = [
    {"id": "a", "uri": "a.mp4", "captions": ["one", "two"], "label": "x", "split": "train"},
    {"id": "b", "uri": "sub/-b.mp4", "start": 1.0, "end": 2.5, "captions": ["three"], "split": "test"},
    {"id": "c", "uri": "c.mp4", "captions": [], "label": "y", "split": "train"},
    {"id": "d", "uri": "d.mp4", "captions": ["four"], "split": "train"},
]


def write(tmp_path, rows=None, name="manifest.parquet", root=None):
    return write_manifest(ROWS if rows is None else rows, tmp_path / name, root or tmp_path)


def test_samples_are_numbered_in_order_with_captions_adjacent(tmp_path):
    manifest = write(tmp_path)
    rows, numbers = manifest.samples("train")
    assert list(zip(rows.tolist(), numbers.tolist(), strict=True)) == [(0, 0), (0, 1), (2, -1), (3, 0)]
    assert [manifest.caption(r, n) for r, n in zip(rows, numbers, strict=True)] == ["one", "two", "", "four"]
    assert manifest.clips("train").tolist() == [0, 2, 3] and manifest.clips("validation").tolist() == []
    assert manifest.samples("validation")[0].dtype == np.int64
    assert manifest.labels([2, 0, 1]) == ["y", "x", None]


def test_a_clip_has_its_absolute_path_and_span(tmp_path):
    clip = write(tmp_path).clip(1)
    assert (clip.id, clip.path, clip.start, clip.end) == ("b", str(tmp_path / "sub" / "-b.mp4"), 1.0, 2.5)


def test_what_is_written_is_read_back_and_kept_until_the_file_changes(tmp_path):
    manifest = write(tmp_path)
    assert read_manifest(manifest.path) is read_manifest(str(manifest.path))
    write(tmp_path, ROWS[:2])
    os.utime(manifest.path, ns=(1, time.time_ns()))
    assert len(read_manifest(manifest.path).table) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.parquet"], "no temporary files stay"


def test_the_digest_is_of_the_content_not_of_the_place(tmp_path):
    manifest = write(tmp_path)
    (tmp_path / "else").mkdir()
    moved = write(tmp_path, name="other.parquet", root=tmp_path / "else")
    assert moved.root != manifest.root and moved.digest == manifest.digest
    for change in (
        {"id": "z"},
        {"uri": "z.mp4"},
        {"end": 9.0},
        {"captions": ["onetwo"]},
        {"label": None},
        {"split": "test"},
    ):
        assert write(tmp_path, [ROWS[0] | change, *ROWS[1:]], name="x.parquet").digest != manifest.digest, change


def test_moving_a_caption_to_the_next_clip_changes_the_digest(tmp_path):
    rows = [{"id": str(i), "uri": "a.mp4", "split": "train"} for i in range(2)]
    one = write(tmp_path, [rows[0] | {"captions": ["a", "b"]}, rows[1] | {"captions": ["c"]}])
    two = write(tmp_path, [rows[0] | {"captions": ["a"]}, rows[1] | {"captions": ["b", "c"]}])
    assert one.digest != two.digest


@pytest.mark.parametrize(
    "uri",
    [
        "../a.mp4",
        "x/../../a.mp4",
        "/etc/passwd",
        "http://h/a.mp4",
        "file:a.mp4",
        "concat:a|b",
        "C:\\a.mp4",
        "",
        "a\0.mp4",
        ".",
        "..",
    ],
)
def test_paths_that_leave_the_folder_are_refused(tmp_path, uri):
    with pytest.raises(UsageError, match="'a'") as caught:
        write(tmp_path, [ROWS[0] | {"uri": uri}])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_link_out_of_the_folder_is_a_bad_clip(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "outside.mp4").touch()
    (root / "a.mp4").symlink_to("../outside.mp4")
    (root / "real").mkdir()
    (root / "d.mp4").symlink_to("real/d.mp4")
    manifest = write(tmp_path, root=root)
    with pytest.raises(VideoError, match="symbolic link"):
        manifest.clip(0)
    assert manifest.clip(3).path == str(root / "real" / "d.mp4"), "links inside are fine"


def test_a_root_that_is_a_link_is_fine(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert write(tmp_path, root=tmp_path / "link").clip(0).path == str(tmp_path / "real" / "a.mp4")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "val"}, "split must be one of"),
        ({"start": 3.0, "end": 2.0}, "`start < end` must hold"),
        ({"start": -1.0}, "seconds >= 0"),
        ({"end": float("nan")}, "seconds >= 0"),
    ],
)
def test_rows_that_make_no_sense_are_refused(tmp_path, change, message):
    with pytest.raises(UsageError, match=message):
        write(tmp_path, [ROWS[0] | change])


def test_repeated_ids_are_refused(tmp_path):
    with pytest.raises(UsageError, match="1 are repeated, such as 'a'"):
        write(tmp_path, [ROWS[0], ROWS[0]])


def test_files_that_are_no_manifest_are_refused(tmp_path):
    with pytest.raises(UsageError, match="There is no manifest"):
        read_manifest(tmp_path / "none.parquet")
    (tmp_path / "text.parquet").write_text("hello")
    with pytest.raises(UsageError, match="not a Parquet manifest"):
        read_manifest(tmp_path / "text.parquet")


def test_manifests_of_a_long_stream_are_read_once(tmp_path, monkeypatch):
    paths = [write(tmp_path, name=f"{task}.parquet").path for task in range(40)]
    read = []
    monkeypatch.setattr("pyarrow.parquet.read_table", lambda path: read.append(path))
    for _ in range(2):
        assert [read_manifest(path).path for path in paths] == paths
    assert read == []


def test_many_rows_are_fast(tmp_path):
    count = 100_000
    rows = [{"id": str(i), "uri": f"{i}.mp4", "captions": ["a", "b"], "split": "train"} for i in range(count)]
    manifest = write(tmp_path, rows)
    shutil.copy(manifest.path, tmp_path / "again.parquet")
    began = time.process_time()
    again = read_manifest(tmp_path / "again.parquet")
    assert again.digest == manifest.digest
    assert len(again.samples("train")[0]) == 2 * count
    for row in range(0, count, 100):
        assert again.caption(row, 1) == "b"
    assert time.process_time() - began < 5, "about 0.2 s"
