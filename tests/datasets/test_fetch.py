"""`kinoray data fetch`: packages from registries' tools or a folder, unpacked within limits, drawn once."""

import io
import json
import os
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinoray.datasets import fetch as fetching
from kinoray.datasets.download import unpack
from kinoray.datasets.fetch import fetch
from kinoray.datasets.packages import Drawn, Package, split_of_concept
from kinoray.datasets.prepare import prepare
from kinoray.errors import RunFailed, UsageError
from kinoray.system.locks import wait_for_lock


def tar_of(files: dict[str, bytes | tarfile.TarInfo], mode: Any = "w:gz") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in files.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            data = b"" if isinstance(content, tarfile.TarInfo) else content
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def deb_of(files: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": tar_of(files, "w:xz")}
    packed = b"!<arch>\n"
    for name, data in parts.items():
        packed += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(data):<10}`\n".encode() + data + b"\n" * (len(data) % 2)
        )
    return packed


DEB = deb_of({"./usr/share/games/toy/a.txt": b"red\nblue\n"})
TGZ = tar_of({"package/b.txt": b"green\n"})


class Toy:
    """A family of two packages, whose clips are named by the lines of their files."""

    ABOUT = "colours"
    RESERVED = 0.0

    def __init__(self, version: str = "1.0") -> None:
        self.PACKAGES = (
            Package("debian", "toy", version, f"toy_{version}_all.deb", sha256(DEB).hexdigest(), "GPL-2"),
            Package("npm", "@us/toy", version, f"us-toy-{version}.tgz", sha256(TGZ).hexdigest(), "MIT"),
        )

    def clips(self, unpacked: dict[str, Path]) -> Iterator[Drawn]:
        lines = (unpacked["toy"] / "usr/share/games/toy/a.txt").read_text() + (
            unpacked["@us/toy"] / "package/b.txt"
        ).read_text()
        for number, name in enumerate(lines.split()):
            frames = np.full((6, 32, 48, 3), 40 * number, np.uint8)
            yield Drawn(f"{name}/moves", (f"a {name} thing",), name, "one", partial(tuple, (frames, 5)))
            yield Drawn(f"{name}/stands", (name,), name, "two", partial(tuple, (frames[:1], 1)), is_picture=True)
        yield Drawn("none/moves", ("none",), "none", "one", partial(refused))


def refused() -> None:
    raise UsageError("the hand is not there")


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Toy:
    family = Toy()
    monkeypatch.setattr(fetching, "find_family", lambda name: family)
    monkeypatch.setattr("kinoray.system.pool.in_pool", in_this_process)
    return family


def in_this_process(processes: int, function: Callable[..., Any], *arguments: Any) -> Any:
    from concurrent.futures import Future

    future: Future[Any] = Future()
    future.set_result(function(*arguments))
    return future


@pytest.fixture
def given(tmp_path: Path) -> Path:
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "toy_1.0_all.deb").write_bytes(DEB)
    (folder / "us-toy-1.0.tgz").write_bytes(TGZ)
    return folder


def test_a_family_is_fetched_once_and_says_what_it_is_made_of(toy, given, tmp_path) -> None:
    home = tmp_path / "toy"
    fetched = fetch("toy", home, given, progress=False)
    assert fetched.is_new and fetched.clips == 6 and not fetched.notes
    assert fetched.left_out == {"none/moves": "the hand is not there"}
    assert [p["sha256"] for p in fetched.packages] == [p.sha256 for p in toy.PACKAGES]
    rows = [json.loads(line) for line in (home / "clips.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == [
        f"{name}/{does}" for name in ("red", "blue", "green") for does in ("moves", "stands")
    ]
    assert all((home / row["uri"]).stat().st_size for row in rows)
    again = fetch("toy", home, None, progress=False)
    assert not again.is_new and again.packages == fetched.packages


def test_clips_that_a_later_version_adds_are_drawn(toy, given, tmp_path) -> None:
    whole = toy.clips
    toy.clips = lambda unpacked: iter(list(whole(unpacked))[2:])
    home = tmp_path / "toy"
    assert fetch("toy", home, given, progress=False).clips == 4
    toy.clips = whole
    again = fetch("toy", home, progress=False)
    assert again.is_new and again.clips == 6 and len((home / "clips.jsonl").read_text().splitlines()) == 6


def test_what_was_stopped_on_its_way_ends_with_the_same_files(toy, given, tmp_path) -> None:
    fetch("toy", home := tmp_path / "toy", given, progress=False)
    whole = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    for gone in ("clips/red-moves.mp4", "clips.jsonl", "fetched.json", "packages/us-toy-1.0.tgz"):
        (home / gone).unlink()
    (home / "unpacked" / ".toy-draft").mkdir()
    (home / "packages" / ".draft-1").mkdir()
    fetch("toy", home, given, progress=False)
    assert not [*home.glob("*/.*")]
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == whole


def test_the_set_is_prepared_as_any_other(toy, given, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("kinoray.datasets.readers.fetched.find_family", lambda name: toy)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    fetch("sprites", home := tmp_path / "sprites", given, progress=False)
    report = prepare("sprites", home, workers=0, progress=False)
    assert sum(counts["ready"] or 0 for counts in report.splits.values()) == 6
    assert not any(report.problems.values())


def test_a_wrong_checksum_is_one_line_and_nothing_is_unpacked(toy, given, tmp_path) -> None:
    (given / "toy_1.0_all.deb").write_bytes(DEB + b"x")
    with pytest.raises(UsageError, match=r"toy_1\.0_all\.deb has the checksum .* Delete it") as error:
        fetch("toy", tmp_path / "toy", given, progress=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "toy" / "unpacked").exists()


def test_another_version_goes_on_and_is_said(toy, given, tmp_path) -> None:
    fetch("toy", tmp_path / "toy", given, progress=False)
    (tmp_path / "toy/packages/toy_1.0_all.deb").unlink()
    newer = (given / "toy_1.0_all.deb").rename(given / "toy_1.1_all.deb")
    newer.write_bytes(deb_of({"./usr/share/games/toy/a.txt": b"blue\nred\n"}))
    fetched = fetch("toy", tmp_path / "toy", given, progress=False)
    assert fetched.notes == [
        "toy_1.1_all.deb is not version 1.0, for which this was written: the set has another digest."
    ]
    assert fetched.packages[0]["file"] == "toy_1.1_all.deb" and fetched.clips == 6
    rows = [json.loads(line) for line in (tmp_path / "toy/clips.jsonl").read_text().splitlines()]
    assert rows[0]["id"] == "blue/moves" and all(not row["uri"].startswith("clips/") for row in rows)


def test_a_file_that_is_not_given_is_named(toy, given, tmp_path) -> None:
    (given / "us-toy-1.0.tgz").unlink()
    with pytest.raises(UsageError, match=r"has no us-toy-1\.0\.tgz \(npm: @us/toy 1\.0\)"):
        fetch("toy", tmp_path / "toy", given, progress=False)


def tool(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_registries_are_asked_by_their_own_tools(toy, given, tmp_path, monkeypatch) -> None:
    tool(tmp_path / "bin", "apt-get", f'[ "$*" = "download toy=1.0" ] && cp {given}/*.deb .')
    tool(tmp_path / "bin", "npm", f'[ "$*" = "pack --silent --ignore-scripts @us/toy@1.0" ] && cp {given}/*.tgz .')
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert fetch("toy", tmp_path / "toy", progress=False).clips == 6


def test_a_registry_that_answers_nothing_is_one_line(toy, tmp_path, monkeypatch) -> None:
    tool(tmp_path / "bin", "apt-get", "echo 'W: x' >&2; echo 'E: Unable to locate package toy' >&2; exit 100")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    with pytest.raises(
        RunFailed, match=r"toy 1\.0 cannot be downloaded: E: Unable to locate package toy\. Check"
    ) as error:
        fetch("toy", tmp_path / "toy", progress=False)
    assert "\n" not in str(error.value)


def test_a_missing_tool_is_one_line(toy, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="apt-get, which downloads toy, is not on this machine"):
        fetch("toy", tmp_path / "toy", progress=False)


def test_two_at_once_wait_for_each_other(toy, given, tmp_path) -> None:
    home = tmp_path / "toy"
    made: list[bool] = []
    with wait_for_lock(home):
        thread = threading.Thread(target=lambda: made.append(fetch("toy", home, given, progress=False).is_new))
        thread.start()
        time.sleep(0.3)
        assert not made and not (home / "packages").exists()
    thread.join()
    assert made == [True]


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


def device(name: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = tarfile.CHRTYPE
    return member


def test_links_out_and_devices_are_left_out_and_links_within_stay(tmp_path) -> None:
    archive = tmp_path / "a.deb"
    archive.write_bytes(
        deb_of(
            {
                "./lib.so.8.0": b"code",
                "./lib.so": link("./lib.so", "lib.so.8.0"),
                "./out": link("./out", "/etc/passwd"),
                "./up": link("./up", "../../x"),
                "./null": device("./null"),
            }
        )
    )
    unpack(archive, tmp_path / "u")
    assert sorted(path.name for path in (tmp_path / "u").iterdir()) == ["lib.so", "lib.so.8.0"]
    assert (tmp_path / "u" / "lib.so").read_bytes() == b"code"


@pytest.mark.parametrize(
    "content",
    [tar_of({"../x": b"x"}), tar_of({"a": b"x" * 2000})[:60], b"!<arch>\n", b"nothing", tar_of({"a": bytes(10 << 20)})],
    ids=["leaves", "cut", "no data", "no archive", "ratio"],
)
def test_what_is_not_a_sound_archive_leaves_nothing(tmp_path, content: bytes) -> None:
    archive = tmp_path / "a.tgz"
    archive.write_bytes(content)
    with pytest.raises(UsageError) as error:
        unpack(archive, tmp_path / "inner" / "u")
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "inner").iterdir()) and not (tmp_path / "x").exists()


def test_a_wheel_keeps_to_its_folder(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "a-1.whl", "w") as wheel:
        wheel.writestr("../../x.py", "bad")
        wheel.writestr("a/b.py", "good")
    unpack(tmp_path / "a-1.whl", tmp_path / "inner" / "u")
    assert not (tmp_path / "x.py").exists() and (tmp_path / "inner/u/a/b.py").read_text() == "good"


def test_concepts_are_cut_evenly_and_what_is_reserved_is_in_every_cut() -> None:
    names = [f"name {number}" for number in range(2000)]
    cuts = [{name: split_of_concept(name, number, 0.3) for name in names} for number in range(3)]
    reserved = [{name for name in names if cut[name] is None} for cut in cuts]
    assert reserved[0] == reserved[1] == reserved[2]
    assert 540 < len(reserved[0]) < 660
    for cut in cuts:
        counts = {split: sum(cut[name] == split for name in names) for split in ("train", "validation", "test")}
        assert (
            abs(counts["train"] - 840) < 90 and abs(counts["validation"] - 210) < 60 and abs(counts["test"] - 350) < 75
        )
    assert sum(cuts[0][name] != cuts[1][name] for name in names) > 600
