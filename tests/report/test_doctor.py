"""The doctor: finds what is missing, and says what to do about it."""

import json
import socket
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kinoray.report import doctor


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_this_machine_is_examined_without_starting_anything(tmp_path: Path) -> None:
    findings = {finding.what: finding for finding in doctor.examine(tmp_path)}
    assert {"cpu", "memory", "disk, runs", "gpu", "torch", "ray", "torchvision", "ffmpeg", "port 8265"} <= set(findings)
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


def test_a_port_in_use_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(doctor, "PORTS", {port: "a test"})
        (finding,) = doctor._ports()
        assert finding.state == "warn" and "in use" in finding.found
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        assert doctor._ray_cluster().state == "ok"
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
    assert doctor._ray_cluster().state == "fail"


def test_a_small_machine_is_told_how_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "usable_cores", lambda: 1)
    assert "--num-workers 0" in doctor._cpu().advice


@pytest.mark.parametrize(
    ("status", "text", "seen"),
    [(200, '{"ray_version": "2.60.0"}', True), (401, "Missing authentication token", True), (200, "hello", False)],
)
def test_rays_dashboard_is_told_from_other_servers_also_where_it_wants_a_token(
    monkeypatch: pytest.MonkeyPatch, status: int, text: str, seen: bool
) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/api/version"
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_port
        monkeypatch.setattr(doctor, "DASHBOARD_PORTS", (port,))
        message = doctor._ray_dashboard().found
        server.shutdown()
        thread.join()
    assert message == (f"http://127.0.0.1:{port} answers" if seen else message)
    assert ("none runs here" in message) is not seen
    assert "none runs here" in doctor._ray_dashboard().found  # once it is gone
