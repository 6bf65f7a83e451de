"""Preparing a set: what is found, listed and left out; stopped anywhere, going on ends the same."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from PIL import Image
from support import toy_set
from support.clips import grey_ramp, write_clip
from support.denied import obeying_modes
from support.places import REPOSITORY
from support.toy_set import NAME, read_rows, write_rows, write_set

from kinoray.data.manifest import read_manifest
from kinoray.datasets import prepare, probing
from kinoray.datasets.check import check
from kinoray.datasets.probing import Journal
from kinoray.decoding.video import UnreadableStorage
from kinoray.errors import RunFailed, StorageFull, UsageError, VideoError
from kinoray.system import durable, pool
from kinoray.system.folders import prepared_folder
from kinoray.system.locks import hold
from kinoray.system.pool import usable_cores

TESTS = REPOSITORY / "tests"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_set(tmp_path_factory.mktemp("toy"))


@pytest.fixture
def root(rendered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the set, known as `toy`; a cache of its own."""
    toy_set.register(monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(rendered, tmp_path / "set"))


def prepared(root: Path, workers: int = 0) -> prepare.Report:
    return prepare.prepare(NAME, root, workers=workers, progress=False)


def manifest_bytes() -> bytes:
    return (prepared_folder(NAME) / "manifest.parquet").read_bytes()


def files() -> set[str]:
    return {path.name for path in prepared_folder(NAME).iterdir()}


def test_a_sound_set_is_ready_with_what_probing_found(root: Path) -> None:
    report = prepared(root)
    assert report.splits["train"] == dict(published=4, annotated=4, ready=4, captions_published=8, captions=8)
    assert not any(report.problems.values()) and (report.probed, report.known) == (8, 0)
    assert files() == {"lock", "manifest.parquet", "probed-3.jsonl", "report.json"}
    manifest = read_manifest(report.manifest)
    assert manifest.digest == report.manifest_digest and manifest.root == root
    row = manifest.table.slice(0, 1).to_pylist()[0]
    assert (row["num_frames"], row["width_px"], row["codec"]) == (10, 32, "h264")
    assert (row["fps"], row["duration_s"]) == (pytest.approx(10), pytest.approx(1))
    probe = manifest.probe(0)
    assert probe is not None and probe.key_frames[0] == 0
    assert json.loads((prepared_folder(NAME) / "report.json").read_text()) == json.loads(json.dumps(report.to_json()))


def test_what_is_wrong_is_listed_and_left_out(root: Path) -> None:
    videos = root / "videos"
    (videos / "v0.mp4").unlink()  # missing
    whole = (videos / "v1.mp4").read_bytes()
    (videos / "v1.mp4").write_bytes(whole[: len(whole) // 2])  # corrupt
    shutil.copy(videos / "v2.mp4", videos / "v6.mp4")  # the same content in training and test
    write_clip(videos / "other.mp4", grey_ramp(3))  # extra
    rows = read_rows(root)
    rows[3] |= {"start": 0.0, "end": 5.0}  # of a clip of one second
    rows[4] |= {"start": 3.0, "end": 2.0}  # no span at all
    rows.append(rows[5])  # an id twice
    write_rows(root, rows)
    report = prepared(root)
    assert report.problems["missing"] == ["v0\ttrain\tv0"]
    annotation, corrupt = report.problems["corrupt"]
    assert annotation.startswith("v4\tvalidation\tannotation: ") and "`start < end` must hold" in annotation
    assert corrupt.startswith("v1\ttrain\tvideos/v1.mp4\topen: ")
    assert report.problems["short"] == ["v3\ttrain\tvideos/v3.mp4\t1.00 of 5.00 s"]
    assert report.problems["extra"] == ["videos/other.mp4"]
    assert report.problems["duplicate"] == [
        "repeated id: v5\tvalidation",
        "same content: v2\ttrain\tvideos/v2.mp4 = v6\ttest\tvideos/v6.mp4",
    ]
    assert read_manifest(report.manifest).table["id"].to_pylist() == ["v2", "v3", "v5", "v6", "v7"]
    assert report.splits["train"]["ready"] == 2
    for kind, lines in report.problems.items():
        assert (prepared_folder(NAME) / f"{kind}.txt").read_text().splitlines() == lines

    write_set(root)  # all is well again, and no list of old problems stays
    assert not any(prepared(root).problems[kind] for kind in ("missing", "corrupt", "short", "duplicate"))
    assert {name for name in files() if name.endswith(".txt")} == {"extra.txt"}


def prepared_as_anybody(root: Path) -> tuple[dict[str, list[str]], str]:
    """The lists of problems where the modes of files hold, and what was said."""
    words = [*obeying_modes(), sys.executable, toy_set.__file__, str(root)]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(TESTS)})
    assert done.returncode == 0, done.stderr
    lists = json.loads(done.stdout)["lists"]
    return {kind: Path(file).read_text().splitlines() for kind, file in lists.items()}, done.stderr


def test_a_file_without_permission_and_a_loop_of_links_are_listed_and_tried_again(root: Path) -> None:
    videos = root / "videos"
    closed, loop = videos / "v1.mp4", videos / "v2.mp4"
    closed.chmod(0)
    loop.rename(videos / "kept")
    loop.symlink_to("v2b.mp4")
    (videos / "v2b.mp4").symlink_to("v2.mp4")
    (root / "private").mkdir(mode=0)
    lists, said = prepared_as_anybody(root)
    assert lists["corrupt"] == [
        "v1\ttrain\tvideos/v1.mp4\topen: no permission to read it",
        "v2\ttrain\tvideos/v2.mp4\topen: its links lead in a circle",
    ]
    assert "1 folders cannot be read, first [Errno 13] Permission denied" in said
    closed.chmod(0o644)  # neither size nor time of the file says so
    (videos / "v2b.mp4").unlink()
    (videos / "kept").replace(loop)
    assert prepared_as_anybody(root)[0] == {}
    (root / "private").chmod(0o755)  # for the tests' own cleaning up


def test_text_of_a_set_reaches_lists_without_control_characters(root: Path) -> None:
    rows = read_rows(root)
    rows[0] |= {"id": "a\x1b]0;x\x07\nb"}
    write_rows(root, rows)
    prepared(root)
    (line,) = (prepared_folder(NAME) / "missing.txt").read_text().splitlines()
    assert "\x1b" not in line and line.startswith("a\\x1b]0;x\\x07\\nb\ttrain")


def test_only_what_is_new_or_changed_is_probed_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probed: list[str] = []

    def noted(parts: Any, *given: Any) -> Any:
        probed.extend(part.uri for part in parts)
        return probing.probe_parts(parts, *given)

    monkeypatch.setattr(prepare, "probe_parts", noted)
    assert prepared(root).probed == len(probed) == 8
    first = manifest_bytes()
    report = prepared(root)
    assert (report.probed, report.known, len(probed)) == (0, 8, 8) and manifest_bytes() == first
    write_clip(root / "videos" / "v4.mp4", grey_ramp(12))
    write_clip(root / "videos" / "new.mp4", grey_ramp(7, step=9))
    write_rows(root, [*read_rows(root), {"id": "new", "captions": [], "split": "test", "label": None}])
    report = prepared(root)
    assert (report.probed, report.known) == (2, 7) and sorted(probed[8:]) == ["videos/new.mp4", "videos/v4.mp4"]
    counts = dict(
        zip(*(read_manifest(report.manifest).table[c].to_pylist() for c in ("id", "num_frames")), strict=True)
    )
    assert (counts["v4"], counts["new"], counts["v0"]) == (12, 7, 10)


def test_sets_of_one_folder_share_what_was_probed(root: Path, tmp_path: Path) -> None:
    assert prepared(root).probed == 8
    write_clip(root / "videos" / "v4.mp4", grey_ramp(12))
    report = prepare.prepare(toy_set.OTHER, root, workers=0, progress=False)
    assert (report.probed, report.known) == (1, 7)
    (prepared_folder(NAME) / "report.json").write_text("{")
    copy = shutil.copytree(root, tmp_path / "copy")
    for name, probed in ((NAME, 1), (toy_set.OTHER, 0)):  # its own findings hold wherever the folder is
        assert prepare.prepare(name, copy, workers=0, progress=False).probed == probed


def test_pictures_and_items_are_prepared_too(root: Path) -> None:
    Image.fromarray(grey_ramp(1, 40)[0, :20]).save(root / "picture.PNG")
    (root / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    np.save(root / "array.npy", grey_ramp(3))
    rows = [{"id": uri, "uri": uri, "split": "train", "captions": []} for uri in ("picture.PNG", "broken.jpg")]
    write_rows(root, rows)
    report = prepared(root)
    assert [line.split("\t")[0] for line in report.problems["corrupt"]] == ["broken.jpg"]
    (row,) = read_manifest(report.manifest).table.to_pylist()
    assert (row["width_px"], row["height_px"], row["num_frames"], row["codec"]) == (40, 20, 1, "png")
    assert len(row["digest"]) == 32 and row["duration_s"] is None

    items = [{"uri": "array.npy", "item": number, "id": str(number), "split": "train"} for number in range(3)]
    assert prepare._parts(items, str(root)) == {}


def test_a_file_behind_a_link_out_of_the_folder_is_not_read(root: Path, tmp_path: Path) -> None:
    outside = write_clip(tmp_path / "outside.mp4", grey_ramp(3))
    (root / "link.mp4").symlink_to(outside)
    with pytest.raises(VideoError, match="leaves the data folder"):
        probing._inside(str(root), "link.mp4")


def test_a_file_that_changes_while_it_is_read_is_not_remembered(root: Path) -> None:
    state = os.stat(root / "videos" / "v0.mp4")
    part = probing.Part("videos/v0.mp4", None, None, state.st_size - 1, state.st_mtime_ns)
    finding = probing.probe_part(part, str(root))
    assert finding["error"] == probing.CHANGED and not probing.lasts(finding)


@pytest.mark.parametrize(
    ("name", "where", "message"),
    [("toi", "", "Did you mean 'toy'"), (NAME, "nowhere", "There is no folder"), (NAME, "videos", "toy.json")],
)
def test_a_wrong_name_or_folder_is_one_line(root: Path, name: str, where: str, message: str) -> None:
    with pytest.raises((UsageError, RunFailed), match=message) as error:
        prepare.prepare(name, root / where, workers=0, progress=False)
    assert "\n" not in str(error.value)


def test_a_set_of_which_nothing_can_be_used_is_an_error_that_says_what_was_wrong(root: Path) -> None:
    for video in (root / "videos").iterdir():
        video.unlink()
    with pytest.raises(UsageError, match=r"None of the 8 clips of toy can be used: 8 missing, 0 corrupt"):
        prepared(root)
    assert "manifest.parquet" not in files() and "missing.txt" in files()


# Stopped


@pytest.fixture
def whole(root: Path) -> tuple[bytes, bytes]:
    """Manifest and journal of a run that was not stopped; they are taken away."""
    prepared(root)
    kept = manifest_bytes(), (prepared_folder(NAME) / probing.FILE).read_bytes()
    shutil.rmtree(prepared_folder(NAME))
    return kept


def test_a_journal_cut_at_any_byte_loses_one_record_at_most(root: Path, whole: tuple[bytes, bytes]) -> None:
    manifest, record = whole
    lines = record.splitlines(keepends=True)
    cuts = {0, 1, len(lines[0]) - 1, len(lines[0]), len(record) - 1}
    for cut in sorted(cuts | set(np.random.default_rng(0).integers(0, len(record), 12).tolist())):
        folder = prepared_folder(NAME)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / probing.FILE).write_bytes(record[:cut])
        (folder / "manifest.parquet").unlink(missing_ok=True)
        kept = record[:cut].count(b"\n")
        report = prepared(root)
        assert (report.probed, report.known) == (8 - kept, kept), cut
        assert manifest_bytes() == manifest, cut
        assert sorted((folder / probing.FILE).read_bytes().splitlines()) == sorted(record.splitlines()), cut


def test_a_damaged_record_is_probed_again(root: Path, whole: tuple[bytes, bytes]) -> None:
    manifest, record = whole
    lines = record.splitlines(keepends=True)
    prepared_folder(NAME).mkdir(parents=True)
    (prepared_folder(NAME) / probing.FILE).write_bytes(lines[0] + b"\0" * 50 + b"\n[1]\n{}\n" + b"".join(lines[1:]))
    assert prepared(root).probed == 0 and manifest_bytes() == manifest


def test_a_process_killed_at_any_moment_leaves_what_the_next_goes_on_from(
    root: Path, whole: tuple[bytes, bytes]
) -> None:
    manifest, _ = whole
    command = [sys.executable, "-m", "support.toy_set", str(root)]
    rng = np.random.default_rng(7)
    kills, known = 0, 0
    for records in (0, 1, 3, 5):
        path = prepared_folder(NAME) / probing.FILE
        with subprocess.Popen(command, cwd=TESTS, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            while process.poll() is None and (path.read_bytes() if path.exists() else b"").count(b"\n") < records:
                time.sleep(0.001)
            time.sleep(float(rng.uniform(0, 0.02)))
            process.send_signal(signal.SIGKILL)
        kills += process.returncode == -signal.SIGKILL
        known = max(known, records if process.returncode else 8)
    report = prepared(root)
    assert kills >= 2 and report.known >= known and report.probed == 8 - report.known
    assert manifest_bytes() == manifest
    assert not [name for name in files() if name.endswith(".draft") or name.startswith(".")]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_keeps_what_was_probed(
    root: Path, whole: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    original = probing.probe_parts

    def interrupted(*given: Any) -> Any:
        one_by_one = (pair for pairs in original(*given) for pair in pairs)
        for number, pair in enumerate(one_by_one):
            if number == 3:
                raise stop
            yield [pair]

    monkeypatch.setattr(prepare, "probe_parts", interrupted)
    with pytest.raises(stop):
        prepared(root)
    monkeypatch.setattr(prepare, "probe_parts", original)
    report = prepared(root)
    assert report.known == 3 and report.probed == 8 - report.known and manifest_bytes() == whole[0]


def test_leftovers_of_a_killed_process_are_removed(root: Path) -> None:
    folder = prepared_folder(NAME)
    folder.mkdir(parents=True)
    for name in (".manifest.parquet.0123", "report.json.draft"):
        (folder / name).write_text("half")
    prepared(root)
    assert files() == {"lock", "manifest.parquet", "probed-3.jsonl", "report.json"}


# Two at once


def test_a_second_process_is_told_who_prepares_the_set(root: Path) -> None:
    with (
        hold(prepared_folder(NAME), "held twice"),
        pytest.raises(UsageError, match=f"toy is being prepared by process {os.getpid()} on "),
    ):
        prepared(root)
    assert prepared(root).probed == 8


def test_two_at_once_do_not_harm_each_other(root: Path, whole: tuple[bytes, bytes]) -> None:
    command = [sys.executable, "-m", "support.toy_set", str(root)]
    both = [
        subprocess.Popen(command, cwd=TESTS, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ends = [(process.communicate(timeout=120)[1], process.returncode) for process in both]
    assert min(code for _, code in ends) == 0
    assert all(code == 0 or "toy is being prepared by" in message for message, code in ends), ends
    assert manifest_bytes() == whole[0] and prepared(root).probed == 0


# The disk


class FullDisk:
    """A disk with room for so many bytes of journal and text: what does not fit is cut, then refused."""

    def __init__(self, room: int) -> None:
        self.room = room

    def open(self, path: Any, mode: str = "r", **options: Any) -> Any:
        file = open(path, mode, **options)  # noqa: SIM115 (the caller closes it)
        if mode == "r" or mode == "rb":
            return file
        write = file.write

        def limited(data: Any) -> int:
            fits = data[: self.room]
            self.room -= len(fits)
            if not fits and data:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            write(fits)
            if len(fits) < len(data) and "b" not in mode:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return len(fits)

        return _Limited(file, limited)


class _Limited:
    def __init__(self, file: Any, write: Callable[[Any], int]) -> None:
        self.file, self.write = file, write

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> "_Limited":
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.5, 0.7, 0.95, 1.1])
def test_a_full_disk_is_one_line_and_the_next_run_goes_on(
    root: Path, whole: tuple[bytes, bytes], monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    manifest, record = whole
    disk = FullDisk(int(share * len(record)) + 40)
    for module in (probing, durable):
        monkeypatch.setattr(module, "open", disk.open, raising=False)
    with pytest.raises(StorageFull, match=r"No space left on device: .* bytes free") as error:
        prepared(root)
    assert "\n" not in str(error.value)
    assert not [name for name in files() if name.endswith(".draft") or name.startswith(".")]
    left = (prepared_folder(NAME) / probing.FILE).read_bytes() if probing.FILE in files() else b""
    assert not left or left.endswith(b"\n")
    for module in (probing, durable):
        monkeypatch.delattr(module, "open")
    report = prepared(root)
    assert report.known == left.count(b"\n") and manifest_bytes() == manifest


def test_a_full_disk_at_the_manifest_leaves_the_one_before(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(root)
    before = manifest_bytes()
    (root / "videos" / "v0.mp4").unlink()

    def full(table: Any, path: Path) -> None:
        path.write_bytes(b"PAR1")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pyarrow.parquet.write_table", full)
        with pytest.raises(StorageFull):
            prepared(root)
    assert manifest_bytes() == before and not [name for name in files() if name.startswith(".")]
    prepared(root)
    assert manifest_bytes() != before


def test_failing_storage_of_the_data_stops_and_says_so(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(parts: Any, at: str) -> Any:
        raise UnreadableStorage("v0.mp4 (clip v0): reading failed 3 times: Input/output error")

    monkeypatch.setattr(probing, "probe_batch", failing)
    with pytest.raises(RunFailed, match="reading failed 3 times"):
        prepared(root)


# Files that end the process that reads them


def crashing_batch(parts: Any, root: str) -> Any:
    """As `probe_batch`, but one file ends the process that reads it."""
    if any(part.uri.endswith("v3.mp4") for part in parts):
        os._exit(1)
    return probing.probe_batch(parts, root)


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import ray

    monkeypatch.setattr(probing, "probe_batch", crashing_batch)
    for library in (cloudpickle, ray.cloudpickle):
        library.register_pickle_by_value(sys.modules[__name__])
    yield
    for library in (cloudpickle, ray.cloudpickle):
        library.unregister_pickle_by_value(sys.modules[__name__])


def test_a_crashing_file_is_told_from_its_neighbours(root: Path, crashing: None) -> None:
    report = prepared(root, workers=0)
    assert report.problems["corrupt"] == [f"v3\ttrain\tvideos/v3.mp4\tdecode: {probing.KILLED}"]
    assert len(Journal(prepared_folder(NAME)).findings) == 7


def held_up_batch(parts: Any, at: str) -> Any:
    """As `probe_batch`, but the read of one file never returns."""
    if any(part.uri.endswith("v3.mp4") for part in parts):
        signal.pause()
    return probing.probe_batch(parts, at)


def test_a_read_that_never_returns_ends_preparing_with_the_files_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read until then is kept."""
    monkeypatch.setattr(probing, "probe_batch", held_up_batch)
    pool.in_pool(usable_cores(), int).result()  # their start may take longer than is waited here
    monkeypatch.setattr(pool, "GIVES_UP_S", 3.0 / probing.LONGER)
    monkeypatch.setattr(pool, "LOOK_S", 0.5)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(RunFailed, match=r"Reading videos/v3\.mp4 or a file near it has taken over 0\.05 minutes"):
            prepared(root, workers=0)
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert {part.uri for part in Journal(prepared_folder(NAME)).findings} == {
        f"videos/v{number}.mp4" for number in (0, 1, 2, 4, 5, 6, 7)
    }


@pytest.mark.ray
def test_ray_finds_the_same_and_a_deadly_file_is_told_from_its_neighbours(
    cluster: None, root: Path, whole: tuple[bytes, bytes], request: pytest.FixtureRequest
) -> None:
    assert prepared(root, workers=2).probed == 8
    assert manifest_bytes() == whole[0]
    shutil.rmtree(prepared_folder(NAME))
    request.getfixturevalue("crashing")
    report = prepared(root, workers=1)
    assert report.problems["corrupt"] == [f"v3\ttrain\tvideos/v3.mp4\tdecode: {probing.KILLED}"]
    assert len(Journal(prepared_folder(NAME)).findings) == 7


def test_small_files_share_a_task_and_large_ones_do_not() -> None:
    parts = [probing.Part(str(number), None, None, size, 0) for number, size in enumerate([1000] * 70 + [15 << 20] * 3)]
    batches = list(probing._batches(parts, slots=1))
    assert [part for batch in batches for part in batch] == parts
    assert max(map(len, batches)) == 10 and [len(batch) for batch in batches[-2:]] == [1, 1]


# Afterwards


def test_check_tells_files_that_are_gone_or_changed(root: Path) -> None:
    prepared(root)
    assert check(NAME, progress=False).problems == []
    assert check(NAME, deep=True, progress=False).problems == []
    (root / "videos" / "v0.mp4").unlink()
    with open(root / "videos" / "v1.mp4", "ab") as file:
        file.write(b"more")
    data = bytearray((root / "videos" / "v2.mp4").read_bytes())
    data[-1] ^= 1
    (root / "videos" / "v2.mp4").write_bytes(data)
    gone, longer = check(NAME, progress=False).problems
    assert gone == "videos/v0.mp4: No such file or directory" and longer.startswith("videos/v1.mp4: ")
    assert check(NAME, deep=True, progress=False).problems == [
        gone,
        longer,
        "videos/v2.mp4: other content than was probed",
    ]


def test_check_of_a_set_that_is_not_prepared_names_the_command(root: Path) -> None:
    with pytest.raises(UsageError, match=r"`kinoray data prepare toy --root DIR`"):
        check(NAME)


def test_a_signal_waits_for_rays_calls_and_is_delivered_after() -> None:
    def stop(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        reached = False
        with pytest.raises(SystemExit) as left, probing.noted_signals() as noted:
            signal.raise_signal(signal.SIGTERM)
            reached = noted == [signal.SIGTERM]
        assert reached and left.value.code == 143 and signal.getsignal(signal.SIGTERM) is stop
        with pytest.raises(SystemExit), probing.noted_signals():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            pytest.fail("the second signal ends at once")
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_training_clip_that_a_reader_lent_to_validation_is_no_copy(root: Path) -> None:
    rows = read_rows(root)
    rows.append(rows[0] | {"id": f"{rows[0]['id']}@validation", "split": "validation"})
    write_rows(root, rows)
    assert rows[0]["split"] == "train"
    assert not prepared(root).problems["duplicate"]
