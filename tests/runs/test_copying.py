"""Copies of runs elsewhere: of a run that can go on, whenever they are cut off, and sent once."""

import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from support.places import REPOSITORY
from support.run_folders import make_run
from support.s3_server import AWS, BUCKET, KEYS, s3_bucket
from support.waiting import wait_until

import kinoray
from kinoray.errors import CheckpointCorrupt, UsageError
from kinoray.execution.commits import Commits
from kinoray.runs.copying import copy_folder, copying
from kinoray.system.durable import sha256
from kinoray.system.remote import Remote, RemoteError, check_uri, open_remote
from kinoray.training.checkpoint import Position, commit, take_fence

LARGE = bytes(range(256)) * 4096 * 12
"""12 MiB: several parts of an upload."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished seed with a checkpoint, features, and what is not to be copied."""
    folder = make_run(tmp_path / "here")
    add_checkpoint(folder, stage=1)
    (folder / "features" / "of-no-checkpoint.arrow").write_bytes(b"garbage")
    (folder / "tensorboard").mkdir()
    (folder / "tensorboard" / "logged.json").write_text("{}")
    (folder / "lock").write_text("process 1")
    (folder / ".result.json.0123.draft").write_text("{")
    (folder / "checkpoints" / "stage-009-0-step-00000000.tmp-ab").mkdir()
    (folder / "checkpoints" / "stage-009-0-step-00000000.tmp-ab" / "method.safetensors").write_bytes(b"half")
    (folder / "elsewhere").symlink_to("/etc")
    return folder


def add_checkpoint(folder: Path, stage: int) -> Path:
    """Commit a checkpoint, and the features that it names."""
    features = folder / "features" / f"after-{stage}.arrow"
    features.parent.mkdir(exist_ok=True)
    features.write_bytes(bytes([stage]) * 3000)
    facts = {"test-0": {"file": features.name, "sha256": sha256(features)}}
    checkpoints, tensors = folder / "checkpoints", {"method": {"weight": torch.full((4,), float(stage))}}
    return commit(checkpoints, Position(stage), tensors, {"tested": {"features": facts}}, take_fence(checkpoints))


def files_of(folder: Path) -> dict[str, bytes]:
    """Name -> bytes of all files of a folder, its lock aside."""
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths if path.name != "lock"}


def committed(folder: Path) -> dict[str, bytes]:
    """What a copy of a run has to hold."""
    last = max(folder.glob("checkpoints/stage-*/manifest.json")).parent
    facts = json.loads((last / "state.json").read_text())["tested"]["features"].values()
    ours = (f"checkpoints/{last.name}/", *(f"features/{fact['file']}" for fact in facts))
    theirs = ("checkpoints/", "features/", ".")
    return {n: data for n, data in files_of(folder).items() if n.startswith(ours) or not n.startswith(theirs)}


def uri(folder: Path) -> str:
    return folder.absolute().as_uri()


def test_a_copy_holds_the_committed_files_under_their_names_and_sends_what_changed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, sent, write, written = open_remote(uri(tmp_path / "there")), {}, Remote.write, []
    monkeypatch.setattr(Remote, "write", lambda self, name, chunks: (written.append(name), write(self, name, chunks)))
    copy_folder(run, there, sent)
    assert files_of(tmp_path / "there") == committed(run)
    assert sorted(written) == sorted(committed(run))
    written.clear()
    copy_folder(run, there, sent)
    assert written == []
    later = add_checkpoint(run, stage=2).relative_to(run)
    with (run / "metrics.jsonl").open("a") as log:
        log.write("{}\n")
    copy_folder(run, there, sent)
    needed = [f"{later}/method.safetensors", f"{later}/state.json", "features/after-2.arrow"]
    assert written == [*needed, "metrics.jsonl", f"{later}/manifest.json"]
    assert files_of(tmp_path / "there") == committed(run), "what the newest checkpoint does not need is gone"


@pytest.mark.parametrize(
    "damaged", ["checkpoints/*/method.safetensors", "checkpoints/*/manifest.json", "features/after-2*"]
)
def test_a_checkpoint_that_is_damaged_here_takes_no_ones_place_there(run: Path, tmp_path: Path, damaged: str) -> None:
    there, sent, copy = open_remote(uri(tmp_path / "there")), {}, tmp_path / "there"
    copy_folder(run, there, sent)
    before = files_of(copy)
    add_checkpoint(run, stage=2)
    file = max(run.glob(damaged))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointCorrupt):
        copy_folder(run, there, sent)
    assert files_of(copy) == before
    add_checkpoint(run, stage=3)
    copy_folder(run, there, sent)
    assert files_of(copy) == committed(run)


def test_a_copy_cut_off_at_any_file_goes_on_as_the_run_would(micro, tmp_path: Path, monkeypatch) -> None:
    """After the first task and after the second; each time cut off at every file, brought back, and run to its end."""
    options: dict = {"stream": micro, "num_workers": 0, "smoke": True, "quiet": True}
    whole = kinoray.run("base_moco", runs=tmp_path / "whole", **options)
    digest = whole.outcome["state_digest"]
    stages: dict[int, Path] = {}

    def keep(position: Position, folder: Path) -> None:
        if position == Position(position.stage) and position.stage in (1, 2):
            stages[position.stage] = Path(shutil.copytree(folder, tmp_path / f"at-{position.stage}", symlinks=True))

    commit = Commits.write

    def watched(self, method, given, state, *args, **options) -> None:
        commit(self, method, given, state, *args, **options)
        keep(state.position, self.folder.parent)

    with monkeypatch.context() as patch:
        patch.setattr(Commits, "write", watched)
        kinoray.run("base_moco", runs=tmp_path / "again", **options)
    write = Remote.write
    cut = 0
    while True:
        there, sent = open_remote(uri(tmp_path / f"there-{cut}")), {}
        copy_folder(stages[1], there, sent)
        left = [cut]

        def cut_off(self, name, chunks, left=left) -> None:
            if left[0] == 0:
                raise OSError("cut off")
            left[0] -= 1
            write(self, name, chunks)

        with monkeypatch.context() as patch, contextlib.suppress(OSError):
            patch.setattr(Remote, "write", cut_off)
            copy_folder(stages[2], there, sent)
        back = tmp_path / f"back-{cut}" / whole.folder.parent.name / "seed-0"
        shutil.copytree(tmp_path / f"there-{cut}", back)
        assert kinoray.run("base_moco", runs=back.parents[1], **options).outcome["state_digest"] == digest
        if left[0]:
            break
        cut += 1
    assert cut >= 4


def test_runs_are_copied_after_each_task_and_what_failed_is_tried_again(run: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("kinoray.runs.copying.LOOK_S", 0.01)
    messages: list[str] = []
    blocked = tmp_path / "there"
    blocked.write_text("a file where the folder should be")
    with copying(uri(blocked), lambda: [run], messages.append):
        wait_until(lambda: messages)
        assert messages[0].startswith(f"Not copied, {run.parent.name}/seed-0: ")
        blocked.unlink()
        add_checkpoint(run, stage=2)
        wait_until(
            lambda: (blocked / run.parent.name / "seed-0" / "checkpoints" / Position(2).name / "manifest.json").exists()
        )
        (run / "log.txt").write_text("the end")
    assert files_of(blocked / run.parent.name / "seed-0") == committed(run)
    assert len(messages) == 1


def test_folders_that_cannot_be_listed_and_a_dead_store_are_one_line_each(
    run: Path, tmp_path: Path, monkeypatch
) -> None:
    def unreadable() -> list[Path]:
        raise PermissionError("no runs for you")

    messages: list[str] = []
    with copying(uri(tmp_path / "there"), unreadable, messages.append):
        pass
    assert messages == [f"Not copied, {uri(tmp_path / 'there')}: no runs for you The same command tries again."]

    asked: list[str] = []

    def dead(self: Remote, name: str, chunks: object) -> None:
        asked.append(name)
        raise RemoteError("nobody answers")

    monkeypatch.setattr(Remote, "write", dead)
    messages.clear()
    with copying(
        uri(tmp_path / "there"), lambda: [run, run.with_name("seed-1"), run.with_name("seed-2")], messages.append
    ):
        pass
    assert len(asked) == 1, "the others would have waited as long"
    assert len(messages) == 1 and messages[0].startswith(f"Not copied, {run.parent.name}/seed-0 and 2 more: ")


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
    copy_folder(run, open_remote(uri(tmp_path / "there")), {})
    assert files_of(tmp_path / "there") == expected


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("s3://me:sesame@bucket/runs", "holds a key"),
        ("s3://bucket/runs?secret_key=sesame", "not secret_key"),
        ("file://sesame/runs", "names no bucket or folder"),
        ("https://sesame", "Give a URI like"),
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
    words = ("run", "base_moco", "--num-workers", 0, "--runs", root, "--copy-to")
    code, _, err = kino(*words, f"file://{root}{place}")
    assert code == 2 and "is inside the runs folder" in err
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


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
    with s3_bucket(tmp_path_factory.mktemp("s3") / "log") as uri:
        yield uri


@pytest.mark.slow
def test_a_run_copied_to_s3_is_brought_back_by_the_stores_own_copier_and_goes_on(
    micro, tmp_path: Path, bucket: str
) -> None:
    options: dict = {"stream": micro, "num_workers": 0, "smoke": True, "quiet": True}
    whole = kinoray.run("base_moco", runs=tmp_path / "here", copy_to=bucket % "runs", **options)
    page = (REPOSITORY / "docs" / "operations.md").read_text()
    (line,) = re.findall(r"^aws (s3 sync \S+ \S+)", page, re.MULTILINE)
    address = (bucket % "runs").split("endpoint_override=")[1].split("&")[0]
    words = line.replace("s3://bucket/runs", f"s3://{BUCKET}/runs").split()
    subprocess.run([AWS, *words, "--endpoint-url", f"http://{address}"], cwd=tmp_path, check=True)
    back = tmp_path / "runs" / whole.folder.parent.name / "seed-0"
    assert files_of(back) == committed(whole.folder)
    for name in ("result.json", "matrix.parquet", "ranks.parquet"):
        (back / name).unlink(missing_ok=True)
    again = kinoray.run("base_moco", runs=tmp_path / "runs", **options)
    assert again.outcome["state_digest"] == whole.outcome["state_digest"]


def test_a_store_that_is_gone_is_one_line_without_keys_and_the_run_ends(micro, tmp_path, monkeypatch, capsys) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("kinoray.system.remote.TRIES", 1)
    to = "s3://runs/x?endpoint_override=127.0.0.1:9&scheme=http&region=us-east-1"
    done = kinoray.run("base_moco", stream=micro, num_workers=0, smoke=True, runs=tmp_path, quiet=True, copy_to=to)
    assert done.state == "finished"
    err = capsys.readouterr().err
    assert err.startswith("Not copied, ") and "RemoteError" not in err.split(":")[0]
    assert KEYS["AWS_SECRET_ACCESS_KEY"] not in err
