"""A folder that lies in a store elsewhere: read as one here, its files copied on demand, whole and within a bound."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from support import toy_set
from support.clips import grey_ramp, tar_of, write_clip
from support.s3_server import KEYS, s3_bucket

import kinoray
from kinoray.data.manifest import read_manifest
from kinoray.datasets.prepare import prepare
from kinoray.decoding.forms import FrameForm
from kinoray.decoding.frame_cache import OFF, Cache, fetch_clip
from kinoray.decoding.sampling import Sampling
from kinoray.decoding.video import UnreadableStorage
from kinoray.errors import UsageError
from kinoray.streams import load_stream
from kinoray.streams.own_folder import own_folder
from kinoray.system import stand_ins
from kinoray.system.remote import Remote, RemoteError, open_remote
from kinoray.system.stand_ins import fetched, opened, stand_in, uri_of

URI = "s3://bucket/clips?region=x"
COUNT = 4


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kinoray"


@pytest.fixture
def there(tmp_path, monkeypatch) -> Path:
    """A folder of clips that a store which is none holds as s3://bucket/clips."""
    folder = tmp_path / "store" / "clips"
    for number in range(COUNT):
        write_clip(folder / f"v{number}.mp4", grey_ramp(6, step=3 + number))
    (folder / "captions.csv").write_text(
        "video,caption,label\n" + "".join(f"v{n}.mp4,clip {n},c{n % 2}\n" for n in range(COUNT))
    )
    store = Remote(fs.LocalFileSystem(), str(folder), "s3://bucket/clips")
    monkeypatch.setattr(stand_ins, "open_remote", lambda uri: store)
    monkeypatch.setattr(stand_ins, "_remote", lambda uri: store)
    return folder


def copies(cache: Path) -> list[Path]:
    return sorted((cache / "fetched").glob("[!.]*"))


def test_a_folder_in_a_store_is_the_same_stream_as_one_here(there):
    ours, theirs = load_stream(str(there)), load_stream(URI)
    assert (ours.name, ours.recipe) == (theirs.name, theirs.recipe) == ("clips", ours.recipe)
    one, other = (read_manifest(stream.tasks[0].manifest) for stream in (ours, theirs))
    assert (one.digest, one.files) == (other.digest, other.files) and one.files
    assert theirs.source == URI and load_stream(theirs.source).tasks == theirs.tasks
    assert load_stream(f"{URI}:ctvr,allow-missing").source == f"{URI}:ctvr,allow-missing"


def test_tables_come_whole_and_all_other_files_take_no_room(there, cache):
    (there / ".git").mkdir()
    (there / ".git" / "config").touch()
    folder = stand_in(URI)
    assert {path.name for path in folder.iterdir()} == {path.name for path in there.iterdir()} - {".git"}
    assert (folder / "captions.csv").read_text() == (there / "captions.csv").read_text()
    for path in there.glob("*.mp4"):
        here = (folder / path.name).stat()
        assert (here.st_size, here.st_mtime_ns) == (path.stat().st_size, path.stat().st_mtime_ns)
        assert here.st_blocks == 0
    assert not copies(cache) and stand_in(URI) == folder
    (there / "v0.mp4").write_bytes(b"another")
    assert stand_in(URI) != folder and folder.is_dir()


def test_frames_are_those_of_the_file_and_a_cached_clip_is_not_fetched_again(there, cache):
    rule, form, kept = Sampling("uniform", 3), FrameForm(16), Cache(str(cache / "frames"))
    one, other = (read_manifest(load_stream(name).tasks[0].manifest) for name in (str(there), URI))
    for row in range(COUNT):
        expected = fetch_clip(one.clip(row), rule, 0, form, OFF).video
        assert np.array_equal(fetch_clip(other.clip(row), rule, 0, form, kept).video, expected)
    assert len(copies(cache)) == len({other.uri(row) for row in range(COUNT)})
    shutil.rmtree(cache / "fetched")
    (there / "more.mp4").write_bytes((there / "v0.mp4").read_bytes())  # another listing, other stand-ins
    again = read_manifest(load_stream(URI).tasks[0].manifest)
    assert again.root != other.root
    assert all(fetch_clip(again.clip(row), rule, 0, form, kept).cached for row in range(COUNT))
    assert not copies(cache)


def test_a_published_set_in_a_store_is_prepared_as_one_here(there, tmp_path, monkeypatch):
    toy_set.register(monkeypatch)
    toy_set.write_set(there)
    shutil.copytree(there, tmp_path / "copy")
    ours = prepare(toy_set.NAME, tmp_path / "copy", workers=0, progress=False)
    theirs = prepare(toy_set.NAME, URI, workers=0, progress=False)
    assert theirs.manifest_digest == ours.manifest_digest and theirs.root == URI
    assert (theirs.splits, theirs.problems) == (ours.splits, ours.problems)
    clip = read_manifest(theirs.manifest).clip(0)
    assert fetch_clip(clip, Sampling("uniform", 2), 0, FrameForm(8), OFF).video.shape == (2, 8, 8, 3)


def test_captions_here_and_videos_in_a_store(there, tmp_path):
    home = tmp_path / "mine"
    home.mkdir()
    (there / "captions.csv").rename(home / "captions.csv")
    stream = load_stream(f"{home}:videos={URI}")
    assert read_manifest(stream.tasks[0].manifest).root == stand_in(URI)
    assert stream.source == f"{home}:videos={URI}"


def test_an_archive_in_a_store_is_read_there_and_a_parquet_file_too(there, tmp_path, cache):
    for path in [*there.iterdir()]:
        path.unlink()
    tar_of(there / "train-0.tar", {"a.jpg": b"A" * 9000, "a.cls": "7", "b.jpg": b"B", "b.cls": "8"})
    root = read_manifest(load_stream(f"{URI}:ucl").tasks[0].manifest).root
    assert (root / "train-0.tar" / "a.jpg").read_bytes() == b"A" * 9000
    (there / "train-0.tar").unlink()
    pq.write_table(pa.table({"image": [b"A", b"B"], "label": ["x", "y"]}), there / "train.parquet")
    root = read_manifest(load_stream(f"{URI}:ucl").tasks[0].manifest).root
    assert {path.read_bytes() for path in (root / "train.parquet").iterdir()} == {b"A", b"B"}
    assert not copies(cache)


def test_longest_unused_copies_go_first_and_one_that_is_lent_stays(there, cache, monkeypatch):
    folder, size = stand_in(URI), 1000
    for number in range(4):
        (there / f"{number}.mp4").write_bytes(bytes([number]) * size)
    folder = stand_in(URI)
    monkeypatch.setenv("KINORAY_FETCHED_BYTES", str(2 * size + 500))

    def read(number: int) -> bytes:
        with fetched(str(folder / f"{number}.mp4")) as path:
            time.sleep(0.01)  # times of use must differ
            return Path(path).read_bytes()[:1]

    with fetched(str(folder / "0.mp4")) as lent:
        assert [read(1), read(2), read(1), read(3)] == [b"\1", b"\2", b"\1", b"\3"]
        assert os.path.exists(lent) and len(copies(cache)) == 2
    assert {path.read_bytes()[:1] for path in copies(cache)} == {b"\0", b"\3"}
    assert [read(1), read(0)] == [b"\1", b"\0"] and len(copies(cache)) == 2


def test_a_file_larger_than_the_bound_a_wrong_bound_and_a_full_disk_are_each_a_line(there, monkeypatch):
    clip = read_manifest(load_stream(URI).tasks[0].manifest).clip(0)
    monkeypatch.setenv("KINORAY_FETCHED_BYTES", "100")
    with pytest.raises(
        UnreadableStorage, match=r"v\d.mp4 .*larger than the limit for all copies together, 100. Raise KINORAY_F"
    ):
        fetch_clip(clip, Sampling("uniform", 3), 0, FrameForm(16), OFF)
    for wrong in ("0", "much"):
        monkeypatch.setenv("KINORAY_FETCHED_BYTES", wrong)
        with pytest.raises(UsageError, match=f"KINORAY_FETCHED_BYTES={wrong}: give the bound"):
            stand_in(URI)
    monkeypatch.delenv("KINORAY_FETCHED_BYTES")

    def full(self: Remote, name: str) -> Iterator[bytes]:
        yield b"begin"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Remote, "read", full)
    with pytest.raises(UnreadableStorage, match=r"v.* cannot be copied to .*No space left on device.*Free space"):
        fetch_clip(clip, Sampling("uniform", 3), 0, FrameForm(16), OFF)


@pytest.mark.parametrize("how", ["longer", "as long", "gone"])
def test_a_file_that_changed_since_it_was_listed_is_refused_and_leaves_nothing(there, cache, how):
    manifest = read_manifest(load_stream(URI).tasks[0].manifest)
    clip = manifest.clip(0)
    file = there / manifest.uri(0)
    state = file.stat()
    file.write_bytes(bytes(state.st_size + (how == "longer")))
    os.utime(file, ns=(0, state.st_mtime_ns + (2 * 10**9 if how == "as long" else 0)))
    if how == "gone":
        file.unlink()
    with pytest.raises(
        UnreadableStorage, match=f"s3://bucket/clips/{file.name} was changed or removed since"
    ) as caught:
        fetch_clip(clip, Sampling("uniform", 3), 0, FrameForm(16), OFF)
    assert "\n" not in str(caught.value) and not [*(cache / "fetched").iterdir()]


@pytest.mark.slow
def test_a_run_that_meets_a_changed_file_ends_in_one_line(there, tmp_path, monkeypatch, kino):
    for name in ("open_remote", "_remote"):  # processes that decode know of no other store
        monkeypatch.setattr(stand_ins, name, open_remote)
    listed = stand_in(f"file://{there}")
    monkeypatch.setattr(stand_ins, "stand_in", lambda uri: listed)
    for path in there.glob("*.mp4"):
        path.write_bytes(b"another")
    words = ("run", "base_moco", "--stream", URI, "--num-workers", 0, "--smoke", "--runs", tmp_path / "runs")
    code, _, err = kino(*words, "--quiet")
    assert code == 1 and "Traceback" not in err
    assert "was changed or removed since it was listed. Run the same command again" in err.splitlines()[-1]


STALLED = """
import sys
from pathlib import Path
from pyarrow import fs
from kinoray.system import stand_ins
from kinoray.system.remote import Remote

class Stalled(Remote):
    def read(self, name):
        yield b"half of it"
        print("half", flush=True)
        sys.stdin.read()

store = Stalled(fs.LocalFileSystem(), sys.argv[1], "s3://bucket/clips")
stand_ins._remote = lambda uri: store
with stand_ins.fetched(sys.argv[2]):
    pass
"""


def test_a_killed_process_leaves_no_copy_and_its_draft_goes(there, cache):
    path = stand_in(URI) / "v0.mp4"
    words = [sys.executable, "-c", STALLED, str(there), str(path)]
    writer = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"half\n"
    (draft,) = (cache / "fetched").iterdir()
    os.utime(draft, (0, 0))
    with fetched(str(path)) as copy:  # another writer of the same, while the first is at it
        assert Path(copy).read_bytes() == (there / "v0.mp4").read_bytes()
    assert draft.exists()
    writer.kill()
    writer.wait()
    with fetched(str(path.with_name("v1.mp4"))):
        assert not draft.exists() and len(copies(cache)) == 2


@pytest.mark.parametrize("name", ["../out.mp4", "/out.mp4", "a/../../out.mp4", "a//b.mp4", "a\0.mp4"])
def test_names_in_a_store_that_leave_the_folder_are_refused(there, cache, monkeypatch, name):
    monkeypatch.setattr(Remote, "states", lambda self: {"v0.mp4": (5, 0), name: (5, 0)})
    with pytest.raises(UsageError, match="is outside its folder or not a plain name"):
        stand_in(URI)
    assert not [path for path in cache.parents[1].rglob("*out.mp4")] and not [*(cache / "remote").iterdir()]


def test_a_name_in_a_store_that_is_a_file_and_a_folder_is_refused(cache, monkeypatch):
    for names in (["a", "a/b.mp4"], ["a/b.mp4", "a"]):
        monkeypatch.setattr(Remote, "states", lambda self, names=names: dict.fromkeys(names, (5, 0)))
        with pytest.raises(UsageError, match="is both a file and a folder"):
            stand_in(URI)


def test_stores_with_the_same_names_are_told_apart(there, cache):
    homes = [stand_in(f"{URI}&endpoint_override={host}") for host in ("a.lan", "b.lan")]
    for home in homes:
        with fetched(str(home / "v0.mp4")) as path, pytest.raises(FileNotFoundError):
            assert Path(path).read_bytes() == (there / "v0.mp4").read_bytes()
            raise FileNotFoundError("of who reads, not of ours")
    assert len(copies(cache)) == 2


def test_a_process_with_another_cache_folder_says_so(there, tmp_path, monkeypatch):
    clip = read_manifest(load_stream(URI).tasks[0].manifest).clip(0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    with pytest.raises(UnreadableStorage, match="Give all processes the same XDG_CACHE_HOME"):
        fetch_clip(clip, Sampling("uniform", 3), 0, FrameForm(16), Cache(str(tmp_path / "frames")))


def test_a_folder_of_the_users_that_is_laid_out_as_a_stand_in_reaches_no_store(tmp_path):
    home = tmp_path / "kinoray" / "remote" / "0123456789abcdef" / "mine"
    home.mkdir(parents=True)
    (home.parent / "source.json").write_text(json.dumps({"uri": "file:///etc"}))
    (home / "passwd").write_bytes(b"mine")
    with pytest.raises(RemoteError, match="Give all processes the same XDG_CACHE_HOME"), fetched(str(home / "passwd")):
        pass
    with pytest.raises(RemoteError, match="the cache folder of this process is"):
        opened(home / "passwd")
    assert uri_of(home) == str(home)
    (home.parent / "source.json").unlink()
    with opened(home / "passwd") as file, fetched(str(home / "passwd")) as path:
        assert file.read() == b"mine" and path == str(home / "passwd")


@pytest.mark.parametrize(
    ("uri", "why"),
    [
        ("ftp://bucket/clips", "Give a URI like s3://BUCKET/PREFIX"),
        ("s3://key:sesame@bucket/clips", "holds a key"),
        ("s3://bucket/clips?secret_key=sesame", "After `\\?`, an s3 URI may have"),
        ("s3:///clips", "names no bucket"),
        ("gs://bucket/clips", "Give a URI like s3://BUCKET/PREFIX"),
        ("s3://bucket/..", "points outside its bucket"),
        ("file:///nowhere/clips", "There is no folder /nowhere/clips"),
        ("s3://runs/x?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1", "s3://runs/x: .*AWS_ACCESS_KEY_ID"),
    ],
)
def test_what_names_no_folder_in_a_store_is_a_line_without_keys(uri, why, monkeypatch, kino):
    monkeypatch.setattr("kinoray.system.remote.TRIES", 1)
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    for stream in (uri, f"{uri}:ctvr"):
        with pytest.raises(UsageError, match=why) as caught:
            own_folder(stream)
        assert "\n" not in str(caught.value)
        assert "sesame" not in str(caught.value) and KEYS["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)
    code, out, err = kino("data", "check", uri)
    assert code == 2 and "sesame" not in out + err and err.count("\n") == 1


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_bucket(tmp_path_factory.mktemp("s3") / "log") as uri:
        yield uri


def upload(folder: Path, uri: str) -> None:
    """Put all files of a folder under a URI."""
    store = open_remote(uri)
    for path in folder.rglob("*"):
        if path.is_file():
            store.write(str(path.relative_to(folder)), [path.read_bytes()])


@pytest.mark.slow
def test_a_run_on_s3_is_bit_for_bit_the_run_on_the_same_folder_here(tmp_path, bucket, cache, kino):
    folder = tmp_path / "clips"
    lines = ["video,caption,task"]
    for number in range(12):
        write_clip(folder / "videos" / f"v{number}.mp4", grey_ramp(8, step=3 + number))
        lines.append(f"v{number}.mp4,clip {number},task {number % 2}")
    (folder / "captions.csv").write_text("\n".join(lines) + "\n")
    uri = bucket % "clips"
    upload(folder, uri)
    options: dict = {"num_workers": 0, "smoke": True, "quiet": True}
    here = kinoray.run("base_moco", stream=str(folder), runs=tmp_path / "here", **options)
    shutil.rmtree(cache / "frames")
    there = kinoray.run("base_moco", stream=uri, runs=tmp_path / "there", **options)
    assert there.outcome["state_digest"] == here.outcome["state_digest"]
    assert there.folder.parent.name == here.folder.parent.name and copies(cache)
    code, out, _ = kino("data", "check", uri)
    assert code == 0 and "s3://runs/clips/captions.csv is read as a caption file: 12 clips" in out
    assert "12 files in s3://runs/clips, all can be read" in out
    code, _, err = kino("run", "base_moco", "--stream", uri.replace("clips", "none"), "--dry-run")
    assert code == 2 and err.startswith("UsageError: There is no file under s3://runs/none.") and err.count("\n") == 1
    code, _, err = kino("run", "base_moco", "--stream", uri.replace("s3://runs", "s3://nobody"), "--dry-run")
    assert code == 2 and "There is no file under s3://nobody/clips." in err
    changed = folder / "videos" / "v0.mp4"
    write_clip(changed, grey_ramp(9))
    upload(folder, uri)
    words = ("run", "base_moco", "--stream", uri, "--num-workers", 0, "--smoke", "--runs", tmp_path / "there")
    code, _, err = kino(*words)
    assert code == 2 and "replaced" in err
