"""A folder of your own: what is read, how splits are dealt, and one clear line for everything that is wrong."""

import csv
import json
import logging
import os
import shutil
import unicodedata
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kinoray.data.manifest import CONTENT, read_manifest
from kinoray.errors import ConfigMismatch, UsageError
from kinoray.runs.identity import identity
from kinoray.runs.record import open_run
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve
from kinoray.streams import load_stream, user_folder
from kinoray.streams.own_folder import OwnFolder, own_folder


def folder_with(tmp_path, rows, videos=None, columns=None):
    """A folder of empty video files and a captions.csv."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for video in videos if videos is not None else {row["video"] for row in rows}:
        (folder / video).parent.mkdir(exist_ok=True)
        (folder / video).touch()
    with open(folder / "captions.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return folder


def write_rows(file, rows):
    """A caption file of JSON lines or Parquet."""
    if file.suffix == ".jsonl":
        file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    else:
        pq.write_table(pa.Table.from_pylist(rows), file)


def build(folder, tmp_path):
    return user_folder.build(own_folder(str(folder)), cache=tmp_path / "cache")


def rows_of(stream, task=0):
    return read_manifest(stream.tasks[task].manifest).table.to_pylist()


def splits_of(stream, task=0):
    splits = {}
    for row in rows_of(stream, task):
        splits.setdefault(row["uri"], set()).add(row["split"])
    return splits


def many(count, **more):
    return [{"video": f"v{i:03d}.mp4", "caption": f"caption {i}", **more} for i in range(count)]


def refused(folder, tmp_path, *messages):
    with pytest.raises(UsageError) as caught:
        build(folder, tmp_path)
    message = str(caught.value)
    assert "\n" not in message and caught.value.exit_code == 2
    for part in messages:
        assert part in message, message


def test_a_plain_folder_is_one_task_split_by_name_eighty_ten_ten(tmp_path):
    stream = build(folder_with(tmp_path, many(50)), tmp_path)
    assert (stream.name, stream.backbone, [task.name for task in stream.tasks]) == ("mine", "tiny", ["mine"])
    manifest = read_manifest(stream.tasks[0].manifest)
    assert [len(manifest.clips(split)) for split in ("train", "validation", "test")] == [40, 5, 5]
    assert manifest.root == tmp_path / "mine"
    assert sorted(path.name for path in (tmp_path / "mine").iterdir() if path.suffix != ".mp4") == ["captions.csv"]


@pytest.mark.parametrize(("protocol", "views"), [("cssl", "ccsl-cifar100"), ("ucl", "ucl")])
def test_pictures_without_labels_train_by_the_recipe_of_their_protocol(tmp_path, protocol, views):
    folder = folder_with(tmp_path, many(50))
    stream = user_folder.build(own_folder(f"{folder}:{protocol}"), cache=tmp_path / "cache")
    recipe, embedded = stream.recipe, load_stream({"cssl": "shapes-5", "ucl": "shapes-ucl-5"}[protocol]).recipe
    assert recipe == replace(embedded, augmentation=views)
    assert (recipe.optimizer, recipe.frames, recipe.size_px, stream.backbone) == ("sgd", 1, 32, "tiny-cnn")
    assert recipe.validations == embedded.validations  # by accuracy of the probe, at the end alone or never


def test_the_splits_depend_on_names_only(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir(), two.mkdir()
    first = build(folder_with(one, many(30)), tmp_path)
    second = build(folder_with(two, list(reversed(many(30, label="x")))), tmp_path)
    assert splits_of(first) == splits_of(second)


def test_the_same_content_is_the_same_manifest_and_other_content_another(tmp_path):
    folder = folder_with(tmp_path, many(20))
    first = build(folder, tmp_path)
    written = first.tasks[0].manifest.stat().st_mtime_ns
    assert build(folder, tmp_path) == first
    assert first.tasks[0].manifest.stat().st_mtime_ns == written
    with open(folder / "captions.csv", "a") as file:
        file.write("v000.mp4,another caption\n")
    assert build(folder, tmp_path).tasks[0].manifest != first.tasks[0].manifest


def opened(folder, runs):
    """The record of a run over the folder, written or compared with the one that is there."""
    return open_run(resolve(RunRequest("base_moco", stream=str(folder), runs=runs)), 1, 0, print)


@pytest.fixture
def filled(tmp_path):
    """A folder of twenty videos, each of 300,000 bytes of its own."""
    folder = folder_with(tmp_path, many(20))
    for number, row in enumerate(many(20)):
        (folder / row["video"]).write_bytes(bytes([number]) * 300_000)
    return folder


def test_a_run_goes_on_with_videos_that_were_copied_or_touched(tmp_path, filled):
    first = opened(filled, tmp_path / "runs")
    os.utime(filled / "v003.mp4", (1, 1))
    copy = tmp_path / "elsewhere" / "mine"
    shutil.copytree(filled, copy, copy_function=shutil.copyfile)
    for folder in (filled, copy):
        record = opened(folder, tmp_path / "runs")
        assert (record["run"], record["digests"]) == (first["run"], first["digests"])
    assert first["digests"]["files"].keys() == {"mine"}


@pytest.mark.parametrize("place", [0, 150_000, 299_999])
@pytest.mark.parametrize("size", [300_000, 300_001])
def test_a_run_refuses_videos_that_were_replaced_under_their_names(tmp_path, filled, place, size):
    first = opened(filled, tmp_path / "runs")
    data = bytearray((filled / "v003.mp4").read_bytes().ljust(size, b"x"))
    data[place] = 99
    (filled / "v003.mp4").write_bytes(data)
    with pytest.raises(ConfigMismatch, match="holds a run on other videos: files of mine were replaced since"):
        opened(filled, tmp_path / "runs")
    file = tmp_path / "runs" / first["run"] / "run.json"
    record = json.loads(file.read_text())
    assert opened(filled, tmp_path / "others")["digests"]["files"] != record["digests"].pop("files")
    file.write_text(json.dumps(record))  # as of a run that was begun before anybody looked
    assert opened(filled, tmp_path / "runs")["run"] == first["run"]


def test_seeds_on_other_videos_are_no_row_of_a_table(tmp_path, filled):
    first, again = opened(filled, tmp_path / "a"), opened(filled, tmp_path / "b")
    (filled / "v003.mp4").write_bytes(b"other")
    other = opened(filled, tmp_path / "c")
    assert identity(first) == identity(again) != identity(other)


def test_captions_of_a_video_are_gathered(tmp_path):
    rows = [
        {"video": "a.mp4", "captions": json.dumps(["one", "two, too"])},
        {"video": "b.mp4", "captions": "three"},
        {"video": "a.mp4", "captions": "four"},
    ]
    by_uri = {row["uri"]: row["captions"] for row in rows_of(build(folder_with(tmp_path, rows), tmp_path))}
    assert by_uri == {"a.mp4": ["one", "two, too", "four"], "b.mp4": ["three"]}


@pytest.mark.parametrize("name", ["captions.jsonl", "captions.parquet"])
def test_all_kinds_of_caption_files_say_the_same(tmp_path, name):
    folder = folder_with(tmp_path, many(12, start=1.0, end=2.5, label="x", split="train"))
    rows = [row | {"captions": [row.pop("caption")]} for row in many(12, start=1.0, end=2.5, label="x", split="train")]
    for number, row in enumerate(rows):
        row["split"] = ("train", "validation", "test")[number % 3]
    (folder / "captions.csv").unlink()
    write_rows(folder / name, rows)
    row = rows_of(build(folder, tmp_path))[1]
    row = {name: row[name] for name in CONTENT.names if row[name] is not None}
    assert row == {
        "id": "v001.mp4#1-2.5",
        "uri": "v001.mp4",
        "start": 1.0,
        "end": 2.5,
        "captions": ["caption 1"],
        "label": "x",
        "split": "validation",
    }


@pytest.mark.parametrize("name", ["captions.jsonl", "captions.parquet"])
@pytest.mark.parametrize("column", ["caption", "captions"])
def test_a_list_is_several_captions(tmp_path, name, column):
    folder = folder_with(tmp_path, many(2))
    (folder / "captions.csv").unlink()
    write_rows(
        folder / name,
        [{"video": "v000.mp4", column: [" a man ", None, "", "a dog"]}, {"video": "v001.mp4", column: ["a cat"]}],
    )
    by_uri = {row["uri"]: row["captions"] for row in rows_of(build(folder, tmp_path))}
    assert by_uri == {"v000.mp4": ["a man", "a dog"], "v001.mp4": ["a cat"]}


NAN = float("nan")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"caption": {"en": "a man"}}, "row 2: a caption must be text, but is {'en': 'a man'}."),
        ({"caption": True}, "row 2: a caption must be text, but is True."),
        ({"caption": NAN}, "row 2: a caption must be text, but is nan."),
        ({"caption": NAN, "label": "man"}, "row 2: a caption must be text, but is nan."),
        ({"captions": ["a man", NAN]}, "row 2: a caption must be text, but is nan."),
        ({"captions": ["a man", ["a dog"]]}, "row 2: a caption must be text, but is ['a dog']."),
        ({"caption": "\ud83d"}, r"row 2: a caption holds an invalid character (half of a surrogate pair): '\ud83d'."),
        ({"label": ["a", "b"]}, "row 2: label must be text, but is ['a', 'b']."),
        ({"caption": "x", "task": {}}, "row 2: task must be text, but is {}."),
        ({"caption": "x", "video": ["a.mp4"]}, "row 2: video must be text, but is ['a.mp4']."),
    ],
)
def test_what_is_no_text_is_refused_by_row(tmp_path, row, message):
    folder = folder_with(tmp_path, many(2))
    (folder / "captions.csv").unlink()
    write_rows(folder / "captions.jsonl", [{"video": "v000.mp4", "caption": "x"}, {"video": "v001.mp4", **row}])
    refused(folder, tmp_path, message)


def test_nan_is_a_caption_where_it_is_text_and_an_empty_cell_elsewhere(tmp_path):
    folder = folder_with(tmp_path, [{"video": "a.mp4", "caption": "nan", "label": "x"}])
    assert rows_of(build(folder, tmp_path))[0]["captions"] == ["nan"]
    (folder / "captions.csv").unlink()
    write_rows(folder / "captions.jsonl", [{"video": "a.mp4", "caption": "nan", "start": NAN, "label": NAN}])
    row = rows_of(build(folder, tmp_path))[0]
    assert (row["captions"], row["start"], row["label"]) == (["nan"], None, None)


def test_tasks_come_in_order_of_appearance_and_spans_of_a_video_stay_together(tmp_path):
    rows = [
        {"video": f"{task}{i}.mp4", "caption": "x", "task": task, "start": start, "end": start + 1}
        for start in (0, 1, 2)
        for task in ("zebra", "ant")
        for i in range(12)
    ]
    stream = build(folder_with(tmp_path, rows), tmp_path)
    assert [task.name for task in stream.tasks] == ["zebra", "ant"]
    for task in (0, 1):
        assert len(rows_of(stream, task)) == 36
        assert all(len(splits) == 1 for splits in splits_of(stream, task).values())


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9])
def test_tiny_tasks_validate_on_training_clips_keep_the_test_apart_and_say_so(tmp_path, caplog, count):
    with caplog.at_level(logging.WARNING, "kinoray"):
        stream = build(folder_with(tmp_path, many(count)), tmp_path)
    manifest = read_manifest(stream.tasks[0].manifest)
    assert (
        "serves training, validation and test" in caplog.text if count == 1 else "serve validation too" in caplog.text
    )
    test, validation = ({manifest.uri(row) for row in manifest.clips(split)} for split in ("test", "validation"))
    train = {manifest.uri(row) for row in manifest.clips("train")}
    assert train == validation and len(test) == max(1, round(count / 5)) and train
    assert count == 1 or not train & test


def test_labels_serve_as_captions_where_there_are_none(tmp_path):
    rows = [{"video": f"{i}.mp4", "label": "wave"} for i in range(3)]
    folder = folder_with(tmp_path, rows)
    assert {tuple(row["captions"]) for row in rows_of(build(folder, tmp_path))} == {("wave",)}
    (folder / "captions.csv").unlink()
    write_rows(folder / "captions.jsonl", [{"video": f"{i}.mp4", "label": i > 1} for i in range(3)])
    assert {row["label"] for row in rows_of(build(folder, tmp_path))} == {"False", "True"}


def test_given_splits_are_kept_and_validation_is_carved_from_training(tmp_path):
    rows = [row | {"split": "test" if i < 5 else "Training"} for i, row in enumerate(many(45))]
    splits = splits_of(build(folder_with(tmp_path, rows), tmp_path))
    assert [splits[f"v{i:03d}.mp4"] for i in range(5)] == [{"test"}] * 5
    assert sum(used == {"validation"} for used in splits.values()) == 4
    assert sum(used == {"train"} for used in splits.values()) == 36


def test_without_many_videos_training_serves_validation_but_test_never_trains(tmp_path):
    rows = [
        {"video": "a.mp4", "caption": "x", "start": 0, "end": 1, "split": "train"},
        {"video": "a.mp4", "caption": "y", "start": 1, "end": 2, "split": "test"},
    ]
    built = [(row["captions"], row["split"]) for row in rows_of(build(folder_with(tmp_path, rows), tmp_path))]
    assert built == [(["x"], "train"), (["x"], "validation"), (["y"], "test")]


def test_missing_things_are_named(tmp_path):
    refused(tmp_path / "nowhere", tmp_path, "There is no folder")
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "caption.csv").touch()
    refused(empty, tmp_path, "captions.csv, captions.jsonl, captions.parquet", "Rename 'caption.csv'?")
    (empty / "captions.csv").touch()
    refused(empty, tmp_path, "is empty")
    (empty / "captions.jsonl").touch()
    refused(empty, tmp_path, "Keep one")


def test_a_caption_for_a_missing_video_names_the_first_counts_all_and_suggests(tmp_path):
    rows = [{"video": name, "caption": "x"} for name in ("clip_one.mp4", "clip_two.mp4", "zzz.mp4")]
    folder = folder_with(tmp_path, rows, videos=["clip-one.mp4"])
    refused(folder, tmp_path, "3 of 3 videos", "first 'clip_one.mp4'", "Did you mean 'clip-one.mp4'?")


def test_a_video_that_has_captions_is_not_suggested_for_a_missing_one(tmp_path):
    folder = folder_with(tmp_path, many(3), videos=["v001.mp4", "v002.mp4"])
    refused(
        folder,
        tmp_path,
        "1 of 3 videos",
        "first 'v000.mp4'",
        "Names are relative to it",
        ":allow-missing leaves them out",
    )


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"vidoe": "a.mp4", "caption": "x"}, ["needs a column 'video'", "Did you mean 'vidoe'?"]),
        ({"video": "a.mp4", "captoin": "x"}, ["needs a column 'caption'", "'captoin'"]),
        ({"video": "a.mp4", "caption": ""}, ["row 1", "neither a caption nor a label"]),
        ({"video": "", "caption": "x"}, ["row 1", "no video"]),
        ({"video": "a.mp4", "caption": "x", "start": "soon"}, ["row 1", "start must be seconds", "'soon'"]),
        ({"video": "a.mp4", "caption": "x", "start": "3", "end": "2"}, ["start < end"]),
        ({"video": "a.mp4", "caption": "x", "split": "tset"}, ["row 1", "'tset'", "'test'"]),
        ({"video": "a.mp4", "caption": "x", "split": "test"}, ["no train clips"]),
        ({"video": "a.mp4", "captions": "[broken"}, ["row 1", "JSON list"]),
        ({"video": "../a.mp4", "caption": "x"}, ["row 1", "leaves the data folder"]),
        ({"video": "/etc/passwd", "caption": "x"}, ["row 1", "is absolute"]),
        ({"video": "http://host/a.mp4", "caption": "x"}, ["row 1", "looks like a link"]),
    ],
)
def test_rows_that_are_wrong_are_refused_in_one_line(tmp_path, row, messages):
    refused(folder_with(tmp_path, [row], videos=["a.mp4"]), tmp_path, *messages)


def test_links_out_of_the_folder_are_refused(tmp_path):
    folder = folder_with(tmp_path, many(1), videos=[])
    (tmp_path / "outside.mp4").touch()
    os.symlink(tmp_path / "outside.mp4", folder / "v000.mp4")
    refused(folder, tmp_path, "links that leave the folder", "v000.mp4")


def test_broken_caption_files_are_refused(tmp_path):
    folder = folder_with(tmp_path, many(1))
    (folder / "captions.csv").write_bytes(b"video,caption\nv000.mp4,\xff\xfe\n")
    refused(folder, tmp_path, "captions.csv line 2 is not UTF-8: 'v000.mp4,ÿþ'. Save the file as UTF-8")
    (folder / "captions.csv").write_text("video,caption\nv000.mp4,x\n", encoding="utf-16")
    refused(folder, tmp_path, "captions.csv is UTF-16")
    (folder / "captions.csv").write_text("video;caption\nv000.mp4;x\n")
    refused(folder, tmp_path, "its columns are separated by semicolons ('video;caption'). Use commas")
    (folder / "captions.csv").write_text("video,caption\nv000.mp4,x,\nv000.mp4,red, blue\n")
    refused(
        folder,
        tmp_path,
        "row 2 has more cells than the header, first ' blue'. Put captions that contain commas in quotes",
    )
    (folder / "captions.csv").unlink()
    good = '{"video": "v000.mp4", "caption": "x"}\n'
    for line, message in {
        '{"video": "v000.mp4"': "row 3 cannot be read: Expecting ',' delimiter at character 21.",
        "[" * 100_000: "row 3 cannot be read: maximum recursion depth exceeded",
        '{"video": %s}' % ("1" * 5000): "row 3 cannot be read: Exceeds the limit",
        "[1, 2]": "row 3: every line must be an object",
    }.items():
        (folder / "captions.jsonl").write_text(f"{good}{good}{line}\n{good}")
        refused(folder, tmp_path, f"captions.jsonl {message}")


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_caption_in_json_lines_may_hold_other_separators_of_lines(tmp_path, separator):
    folder = folder_with(tmp_path, many(1))
    (folder / "captions.csv").unlink()
    row = {"video": "v000.mp4", "caption": f"a man{separator}a dog"}
    (folder / "captions.jsonl").write_bytes(json.dumps(row, ensure_ascii=False).encode() + b"\r\n\r\n")
    assert rows_of(build(folder, tmp_path))[0]["captions"] == [row["caption"]]


@pytest.mark.parametrize(
    ("changed", "messages"),
    [
        ({3: '"a clip'}, ["row 4: unexpected end of data", "Is a quote missing?"]),
        ({3: '"a clip', 7: '"a dog'}, ["row 4: ',' expected after '\"'", "Is a quote missing?"]),
        ({3: '"a clip', 7: 'a dog"'}, ["row 4: a cell continues over the line 'v004.mp4,caption 4'"]),
        (
            {3: '"a "red" clip"'},
            ["row 4: ',' expected after '\"'", 'a caption in quotes is written as ""'],
        ),
    ],
)
def test_a_stray_quote_swallows_no_rows(tmp_path, changed, messages):
    folder = folder_with(tmp_path, many(12))
    lines = [f"v{i:03d}.mp4,{changed.get(i, f'caption {i}')}\n" for i in range(12)]
    (folder / "captions.csv").write_text("video,caption\n" + "".join(lines))
    refused(folder, tmp_path, "captions.csv", *messages)


def test_quotes_and_line_breaks_that_belong_to_a_caption_are_kept(tmp_path):
    folder = folder_with(tmp_path, many(2))
    (folder / "captions.csv").write_text('video,caption\nv000.mp4,"a ""red"", round\nball"\nv001.mp4,a 5" screen\n')
    by_uri = {row["uri"]: row["captions"] for row in rows_of(build(folder, tmp_path))}
    assert by_uri == {"v000.mp4": ['a "red", round\nball'], "v001.mp4": ['a 5" screen']}


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    folder = folder_with(tmp_path, many(1))
    (folder / "captions.csv").write_text("video,caption,caption\nv000.mp4,a man,a dog\n")
    refused(folder, tmp_path, "captions.csv has the column 'caption' twice. Keep one.")


CAPTION = pa.array(["x"])
BYTES = pa.array([b"whole" * 1000])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"video": pa.array(["a.mp4"]), "caption": BYTES}, "column 'caption' holds bytes. Write text"),
        ({"video": pa.array(["a.mp4"]), "captions": pa.array([[b"x"]])}, "column 'captions' holds bytes."),
    ],
)
def test_a_column_of_bytes_is_refused_in_one_line(tmp_path, columns, message):
    pq.write_table(pa.table(columns), tmp_path / "captions.parquet")
    refused(tmp_path, tmp_path, f"{tmp_path}/captions.parquet: {message}")


def test_a_column_of_bytes_that_nobody_reads_is_ignored(tmp_path, caplog):
    (tmp_path / "a.mp4").touch()
    table = pa.table({"video": pa.array(["a.mp4"]), "caption": CAPTION.dictionary_encode(), "data": BYTES})
    pq.write_table(table, tmp_path / "captions.parquet")
    with caplog.at_level(logging.WARNING, "kinoray"):
        assert rows_of(build(tmp_path, tmp_path))[0]["captions"] == ["x"]
    assert caplog.text.count("ignored columns data") == 1


def test_columns_nobody_reads_are_warned_of(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "kinoray"):
        build(folder_with(tmp_path, many(12, fps=3)), tmp_path)
    assert "ignored columns fps" in caplog.text


@pytest.mark.parametrize(("listed", "there"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_a_file_is_found_under_the_other_form_of_its_accents(tmp_path, listed, there):
    name, on_disk = (unicodedata.normalize(form, "über/café.mp4") for form in (listed, there))
    assert name != on_disk
    rows = [{"video": name, "caption": "one"}, {"video": on_disk, "caption": "two"}, {"video": name, "caption": "3"}]
    (row, *_) = rows_of(build(folder_with(tmp_path, rows, videos=[on_disk]), tmp_path))
    assert (row["uri"], row["captions"]) == (on_disk, ["one", "two", "3"])


def test_two_files_whose_names_differ_in_that_form_are_two(tmp_path):
    names = [unicodedata.normalize(form, "café.mp4") for form in ("NFC", "NFD")]
    stream = build(folder_with(tmp_path, [{"video": name, "caption": "x"} for name in names]), tmp_path)
    assert {row["uri"] for row in rows_of(stream)} == set(names)


def test_a_file_name_with_a_leading_dash_is_fine(tmp_path):
    rows = [{"video": "-a.mp4", "caption": "-x"}]
    assert rows_of(build(folder_with(tmp_path, rows), tmp_path))[0]["uri"] == "-a.mp4"


def test_an_absolute_path_inside_the_folder_is_a_relative_one(tmp_path):
    folder = folder_with(tmp_path, many(3))
    text = (folder / "captions.csv").read_text()
    (folder / "captions.csv").write_text(text.replace("v000.mp4", f"{folder}/../mine/v000.mp4"))
    assert {row["uri"] for row in rows_of(build(folder, tmp_path))} == {"v000.mp4", "v001.mp4", "v002.mp4"}


def test_missing_videos_are_left_out_where_the_name_of_the_folder_says_so(tmp_path, caplog):
    rows = many(12, task="a")
    gone = {"video": "gone.mp4", "caption": "x", "task": "a"}
    folder = folder_with(tmp_path, [*rows, gone], videos=[row["video"] for row in rows])
    with caplog.at_level(logging.WARNING, "kinoray"):
        stream = build(f"{folder}:allow-missing", tmp_path)
    assert "1 of 13 videos are not in the folder, first 'gone.mp4'. They are left out." in caplog.text
    assert len(rows_of(stream)) == 12 and stream.name == "mine" and stream.source == f"{folder}:allow-missing"
    (folder / "captions.csv").write_text((folder / "captions.csv").read_text().replace("gone.mp4,x,a", "gone.mp4,x,b"))
    refused(f"{folder}:allow-missing", tmp_path, "Task 'b': none of its videos was found")


def test_videos_may_lie_in_another_folder(tmp_path):
    folder = folder_with(tmp_path, many(3), videos=[])
    (tmp_path / "videos").mkdir()
    for row in many(2):
        (tmp_path / "videos" / row["video"]).touch()
    stream = build(f"{folder}:ctvr,videos={tmp_path}/videos,allow-missing", tmp_path)
    manifest = read_manifest(stream.tasks[0].manifest)
    assert manifest.root == tmp_path / "videos" and len(set(splits_of(stream))) == 2
    assert (stream.name, stream.protocol) == ("mine:ctvr", "ctvr")
    assert own_folder(stream.source) == own_folder(f"{folder}:ctvr,allow-missing,videos={tmp_path}/videos")
    refused(f"{folder}:videos={tmp_path}/videos", tmp_path, f"1 of 3 videos are not in {tmp_path}/videos")
    refused(f"{folder}:videos=/nowhere", tmp_path, "There is no folder /nowhere")


@pytest.mark.parametrize("options", ["allow-mising", "ctvr,cvlm"])
def test_options_of_a_folder_that_make_no_sense_are_refused(tmp_path, options):
    refused(
        f"{folder_with(tmp_path, many(1))}:{options}",
        tmp_path,
        "a protocol, allow-missing or videos=DIR, each at most once",
    )


def test_a_folder_with_a_colon_in_its_name(tmp_path):
    folder = folder_with(tmp_path, many(1)).rename(tmp_path / "mine:2")
    assert own_folder(f"{folder}") == OwnFolder(folder)
    assert own_folder(f"{folder}:ctvr") == OwnFolder(folder, "ctvr")


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({}, "captions.csv has no splits: of each task's videos a tenth is for validation"),
        ({"split": "train"}, "captions.csv names no validation clips: videos of training serve, by task mine 2."),
    ],
)
def test_splits_that_nobody_named_are_announced_in_one_line(tmp_path, caplog, split, message):
    rows = many(20, **split)
    if split:
        rows += [{"video": "test.mp4", "caption": "x", "split": "test"}]
    with caplog.at_level(logging.WARNING, "kinoray"):
        build(folder_with(tmp_path, rows), tmp_path)
    assert [record.message for record in caplog.records if message in record.message] == [caplog.records[0].message]


def test_a_folder_may_say_how_it_is_tested(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = folder_with(tmp_path, [{"video": f"{n}.mp4", "caption": f"clip {n}"} for n in range(20)])
    plain, growing = load_stream(str(folder)), load_stream(f"{folder}:ctvr")
    assert (plain.name, plain.protocol) == ("mine", "cvlm")
    assert (growing.name, growing.protocol, growing.source) == ("mine:ctvr", "ctvr", f"{folder}:ctvr")
    assert growing.tasks == plain.tasks
    assert load_stream(growing.source) == growing
    with pytest.raises(UsageError, match="protocol 'ctv', which does not exist"):
        resolve(RunRequest("base_moco", stream=f"{folder}:ctv", runs=tmp_path))
    with pytest.raises(UsageError, match="There is no folder"):
        load_stream(f"{folder}-other:ctvr")
