"""Copies of runs elsewhere: whole or known not to be, sent once, verified, and brought back as they were."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.run_folders import make_run
from support.s3_server import BUCKET, KEYS, s3_server

import kinoray
from kinoray.disk.remote import Remote, RemoteError, check_uri, open_remote
from kinoray.errors import UsageError
from kinoray.runs.copier import Copier
from kinoray.runs.copying import MANIFEST, copy_folder, copy_runs, fetch_run
from kinoray.runs.made_by import MADE_BY
from kinoray.runs.result import SWEEP_RECORD
from kinoray.training.checkpoint import Position

LARGE = bytes(range(256)) * 4096 * 12
"""12 MiB: several parts of an upload."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished seed with a checkpoint, features, and what is not to be copied."""
    folder = make_run(tmp_path / "here")
    add_checkpoint(folder, stage=1)
    (folder / "features").mkdir()
    (folder / "features" / "test-0-after-0.arrow").write_bytes(bytes(3000))
    (folder / "lock").write_text("process 1")
    (folder / ".result.json.0123.draft").write_text("{")
    (folder / "checkpoints" / "stage-009-0-step-00000000.tmp-ab").mkdir()
    (folder / "checkpoints" / "stage-009-0-step-00000000.tmp-ab" / "method.safetensors").write_bytes(b"half")
    (folder / "elsewhere").symlink_to("/etc")
    return folder


def add_checkpoint(folder: Path, stage: int, content: bytes = b"weights") -> Path:
    """A committed checkpoint, as far as names go."""
    made = folder / "checkpoints" / Position(stage).name
    made.mkdir(parents=True)
    (made / "method.safetensors").write_bytes(content)
    (made / "manifest.json").write_text("{}")
    return made


def files_of(folder: Path) -> dict[str, bytes]:
    """Name -> bytes of what a copy holds, without its manifest."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.name not in (MANIFEST, "lock")}


def committed(folder: Path) -> dict[str, bytes]:
    """What a copy of the `run` fixture has to hold."""
    return {name: data for name, data in files_of(folder).items() if "draft" not in name and ".tmp-" not in name}


def uri(folder: Path) -> str:
    return folder.absolute().as_uri()


def test_a_copy_holds_the_committed_files_under_their_names(run: Path, tmp_path: Path) -> None:
    (done,) = copy_runs([run.parent], uri(tmp_path / "there"))
    there = tmp_path / "there" / run.parent.name / "seed-0"
    assert files_of(there) == committed(run) and "elsewhere" not in {path.name for path in there.iterdir()}
    assert done.files == done.sent == len(committed(run))
    assert done.bytes == sum(map(len, committed(run).values()))


def test_the_same_copy_again_sends_nothing_and_later_only_what_changed(run: Path, tmp_path: Path) -> None:
    to = uri(tmp_path / "there")
    copy_runs([run], to)
    (again,) = copy_runs([run], to)
    assert (again.sent, again.sent_bytes) == (0, 0)
    with (run / "metrics.jsonl").open("a") as log:
        log.write('{"task": 4}\n')
    (later,) = copy_runs([run], to)
    assert later.sent == 1 and later.sent_bytes == (run / "metrics.jsonl").stat().st_size


def test_a_run_that_went_on_is_not_taken_back_to_its_copy(run: Path, tmp_path: Path) -> None:
    to, name = uri(tmp_path / "there"), f"{run.parent.name}/seed-0"
    copy_runs([run], to)
    assert fetch_run(name, to, run.parent.parent) == [run], "the same"
    add_checkpoint(run, stage=2)
    before = files_of(run)
    with pytest.raises(UsageError, match=r"seed-0 is ahead of its copy in .*: stage-002.* here, stage-001.* there"):
        fetch_run(name, to, run.parent.parent)
    assert files_of(run) == before
    copy_runs([run], to)
    assert fetch_run(name, to, tmp_path / "elsewhere") == [tmp_path / "elsewhere" / name]


def test_checkpoints_that_the_run_dropped_go_from_the_copy_and_other_files_stay(run: Path, tmp_path: Path) -> None:
    to, there = uri(tmp_path / "there"), tmp_path / "there" / run.parent.name / "seed-0"
    copy_runs([run], to)
    (there / "notes.txt").write_text("mine")
    old = next(path for path in (run / "checkpoints").glob("stage-001*"))
    for file in [*old.iterdir()]:
        file.unlink()
    old.rmdir()
    add_checkpoint(run, stage=2)
    copy_runs([run], to)
    assert files_of(there) == committed(run) | {"notes.txt": b"mine"}


def test_a_copy_cut_off_anywhere_is_recognised_and_the_same_copy_ends_equal(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    total = len(committed(run))
    write = Remote.write
    for written in range(total + 1):
        there, back = tmp_path / f"there-{written}", tmp_path / f"back-{written}"
        left = iter(range(written))

        def cut(self, name, chunks, left=left) -> None:
            if next(left, None) is None:
                raise RemoteError("cut off")
            write(self, name, chunks)

        monkeypatch.setattr(Remote, "write", cut)
        with pytest.raises(RemoteError, match="cut off"):
            copy_runs([run], uri(there))
        monkeypatch.setattr(Remote, "write", write)
        with pytest.raises(UsageError, match="no copy"):
            fetch_run(f"{run.parent.name}/seed-0", uri(there), back)
        (done,) = copy_runs([run], uri(there))
        assert done.sent == total - written
        (folder,) = fetch_run(f"{run.parent.name}/seed-0", uri(there), back)
        assert files_of(folder) == committed(run)


def test_what_came_back_other_than_sent_is_never_vouched_for(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Remote.write
    monkeypatch.setattr(Remote, "write", lambda self, name, chunks: write(self, name, [bytes(len(c)) for c in chunks]))
    with pytest.raises(RemoteError, match="not what was sent"):
        copy_runs([run], uri(tmp_path / "there"))
    assert not [*(tmp_path / "there").rglob(MANIFEST)]


def test_a_file_damaged_in_the_store_is_refused_and_a_verifying_copy_mends_it(run: Path, tmp_path: Path) -> None:
    to, there = uri(tmp_path / "there"), tmp_path / "there" / run.parent.name / "seed-0"
    copy_runs([run], to)
    damaged = there / "features" / "test-0-after-0.arrow"
    damaged.write_bytes(b"x" * damaged.stat().st_size)
    with pytest.raises(RemoteError, match="not what its manifest says"):
        fetch_run(run.parent.name, to, tmp_path / "back")
    assert not (tmp_path / "back" / run.parent.name / "seed-0" / "features" / damaged.name).exists()
    (done,) = copy_runs([run], to, verify=True)
    assert done.sent == 1
    (folder,) = fetch_run(run.parent.name, to, tmp_path / "back")
    assert files_of(folder) == committed(run)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", ".hidden", ""])
def test_names_from_a_store_that_leave_the_folder_are_refused(run: Path, tmp_path: Path, name: str) -> None:
    to, there = uri(tmp_path / "there"), tmp_path / "there" / run.parent.name / "seed-0"
    copy_runs([run], to)
    manifest = json.loads((there / MANIFEST).read_text())
    manifest["files"][name] = {"bytes": 1, "sha256": "0"}
    (there / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UsageError, match="no name inside"):
        fetch_run(run.parent.name, to, tmp_path / "back")


def test_a_sweep_takes_the_runs_that_it_made_along(run: Path, tmp_path: Path) -> None:
    sweep = run.parents[1] / "a-sweep"
    sweep.mkdir()
    (sweep / SWEEP_RECORD).write_text("{}")
    (run / MADE_BY).write_text("a-sweep\n")
    other = make_run(run.parents[1], "bmu_moco")
    assert [done.name for done in copy_runs([sweep], uri(tmp_path / "there"))] == [
        f"{run.parent.name}/seed-0",
        "a-sweep",
    ]
    assert not (tmp_path / "there" / other.parent.name).exists()


def test_a_run_that_replaces_its_files_meanwhile_is_copied_as_it_stood(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, write = committed(run), Remote.write

    def meanwhile(self, name, chunks) -> None:
        monkeypatch.setattr(Remote, "write", write)
        for path in (run / "checkpoints").glob("stage-001*/*"):
            path.unlink()
        (run / "result.json.new").write_text("{}")
        (run / "result.json.new").replace(run / "result.json")
        with (run / "metrics.jsonl").open("a") as log:
            log.write("more\n")
        write(self, name, chunks)

    monkeypatch.setattr(Remote, "write", meanwhile)
    copy_folder(run, open_remote(uri(tmp_path / "there")))
    assert files_of(tmp_path / "there" / run.parent.name / "seed-0") == expected


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("s3://me:sesame@bucket/runs", "holds a key"),
        ("s3://bucket/runs?secret_key=sesame", "not secret_key"),
        ("file://sesame/runs", "names no bucket or folder"),
        ("https://sesame", "begins so"),
    ],
)
def test_a_wrong_uri_is_refused_before_anything_starts_and_not_repeated(wrong: str, why: str, kino: Callable) -> None:
    with pytest.raises(UsageError, match=why):
        check_uri(wrong, Path("runs"))
    code, out, err = kino("run", "base_moco", "--copy-to", wrong, "--num-workers", 0)
    assert code == 2 and why in err and "sesame" not in out + err


@pytest.mark.parametrize("place", ["", "/deeper", "/../link"])
def test_a_copy_into_the_runs_folder_is_refused_and_removes_nothing(run: Path, kino: Callable, place: str) -> None:
    root = run.parents[1]
    (root.parent / "link").symlink_to(root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    for words in (("copy", run, "--to"), ("run", "base_moco", "--num-workers", 0, "--runs", root, "--copy-to")):
        code, _, err = kino(*words, f"file://{root}{place}")
        assert code == 2 and "leads into the runs folder" in err
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_the_copier_copies_after_each_task_and_tries_again_what_failed(run: Path, tmp_path: Path) -> None:
    messages: list[str] = []
    blocked = tmp_path / "there"
    blocked.write_text("a file where the folder should be")
    copier = Copier(open_remote(uri(blocked)), lambda: [run], messages.append)
    copier.look()
    copier.look()
    assert len(messages) == 1 and messages[0].startswith(f"Not copied, {run.parent.name}/seed-0: ")
    blocked.unlink()
    copier.look()
    assert not blocked.exists(), "no task was learned since"
    add_checkpoint(run, stage=2)
    copier.look()
    assert files_of(blocked / run.parent.name / "seed-0") == committed(run)
    copier.look(at_end=True)
    assert messages[1:] == [
        line for line in messages[1:] if line.startswith(f"Copied to file://{blocked}: 1 folders, ")
    ]


def test_a_run_copies_itself_and_the_finished_one_again_where_the_copy_is_lost(
    micro, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "there"

    def start() -> str:
        kinoray.run("base_moco", stream=micro, num_workers=0, smoke=True, runs=tmp_path / "here", copy_to=uri(to))
        return capsys.readouterr().err

    assert f"Copied to file://{to}: 1 folders" in start()
    (run,) = (tmp_path / "here").glob("*/seed-0")
    there = to / run.parent.name / "seed-0"
    assert files_of(there) == {name: data for name, data in committed(run).items() if name != "checkpoints/fence"}
    (there / "result.json").unlink()
    assert "1 files sent" in start()
    assert (there / "result.json").read_bytes() == (run / "result.json").read_bytes()


def test_where_a_run_is_copied_to_is_no_part_of_what_it_is(micro, tmp_path: Path) -> None:
    plans = [
        kinoray.dry_run("base_moco", stream=micro, runs=tmp_path, copy_to=to) for to in (None, "s3://bucket/prefix")
    ]
    for plan in plans:
        del plan["free_disk_bytes"]  # others write meanwhile
    assert plans[0] == plans[1]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 bucket's URI, empty."""
    from pyarrow import fs

    with pytest.MonkeyPatch.context() as environment, s3_server(tmp_path_factory.mktemp("s3") / "log") as options:
        for name, value in KEYS.items():
            environment.setenv(name, value)
        check = dict(part.split("=") for part in options.split("&"))
        fs.S3FileSystem(**check, allow_bucket_creation=True).create_dir(BUCKET)
        yield f"s3://{BUCKET}/%s?{options}"


@pytest.mark.slow
def test_a_copy_on_s3_comes_back_equal_and_is_sent_once(run: Path, tmp_path: Path, bucket: str) -> None:
    add_checkpoint(run, stage=2, content=LARGE)
    to = bucket % "once"
    (done,) = copy_runs([run], to)
    assert done.sent == done.files and done.place == f"s3://{BUCKET}/once/{run.parent.name}/seed-0"
    assert copy_runs([run], to)[0].sent == 0
    (folder,) = fetch_run(run.parent.name, to, tmp_path / "back")
    assert files_of(folder) == committed(run)


@pytest.mark.slow
def test_a_copy_to_s3_killed_in_the_midst_and_repeated_ends_equal(run: Path, tmp_path: Path, bucket: str) -> None:
    for number in range(8):
        add_checkpoint(run, stage=2 + number, content=LARGE[number:])
    to = bucket % "killed"
    command = [sys.executable, "-m", "kinoray", "copy", str(run), "--to", to]
    remote = open_remote(to)
    total, seen = len(committed(run)), 0
    for share in (0.2, 0.4, 0.6):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | KEYS)
        while process.poll() is None and len(remote.sizes()) < share * total:
            time.sleep(0.01)
        process.kill()
        process.communicate()
        there = remote.sizes()
        assert seen <= len(there) < total and not any(name.endswith(MANIFEST) for name in there), "cut off in the midst"
        seen = len(there)
    (done,) = copy_runs([run], to)
    assert done.sent == total - seen, "what had arrived is not sent again"
    (folder,) = fetch_run(run.parent.name, to, tmp_path / "back")
    assert files_of(folder) == committed(run)


def test_a_store_that_is_gone_is_one_line_without_keys(run: Path, kino: Callable, monkeypatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("kinoray.disk.remote.TRIES", 1)
    code, _, err = kino("copy", run, "--to", "s3://runs/x?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1")
    assert code == 1 and err.startswith("RemoteError: s3://runs/x/") and len(err.splitlines()) == 1
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in err
