"""The doctor: finds what is missing, and says what to do about it."""

import json
import socket
import subprocess
from pathlib import Path

import pytest

from kinoray.report import doctor


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_this_machine_is_examined_without_starting_anything(tmp_path: Path) -> None:
    findings = {finding.what: finding for finding in doctor.examine(tmp_path)}
    assert {"cpu", "memory", "disk, runs", "gpu", "torch", "ray", "torchvision", "ffmpeg"} <= set(findings)
    assert all(finding.advice for finding in findings.values() if finding.state != "ok")
    assert findings["ffmpeg"].state == "ok"
    json.dumps([finding._asdict() for finding in findings.values()])


def test_an_untested_version_warns_and_a_missing_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "TESTED", {"numpy": "0.1", "no-such-package": "1.0"})
    old, missing = doctor._versions()
    assert (old.state, missing.state) == ("warn", "fail") and "no-such-package" in missing.advice


def test_a_full_or_read_only_disk_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert doctor._disk("disk", tmp_path / "not" / "yet").state == "ok"
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10_000})())
    assert doctor._disk("disk", tmp_path).state == "fail"
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert "cannot be written" in doctor._disk("disk", tmp_path).found


def test_frames_of_an_earlier_version_are_counted_and_its_line_deletes_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "my frames"
    monkeypatch.setenv("KINORAY_CACHE", str(folder))
    assert not list(doctor._earlier_frames())
    names = [f"{folder}/{folder * 16}.{ending}" for folder, ending in (("ab", "npy"), ("cd", "npy"), ("cd", "frames"))]
    for name in (*names, "ab/mine.npy", "cd/5.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(1 << 23))
    (finding,) = doctor._earlier_frames()
    assert finding.state == "warn" and "2 clips" in finding.found and "0.02 GiB" in finding.found
    subprocess.run(finding.advice.partition(": ")[2], shell=True, check=True)
    assert sorted(path.name for path in folder.glob("*/*")) == ["5.txt", "cd" * 16 + ".frames", "mine.npy"]
    assert not list(doctor._earlier_frames())


def test_a_cluster_that_does_not_answer_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        assert doctor._ray_cluster().state == "ok"
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    assert doctor._ray_cluster().state == "fail"


def test_a_small_machine_is_told_how_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "usable_cores", lambda: 1)
    assert "--num-workers 0" in doctor._cpu().advice
