"""`kinoray ui`: where it listens, what it gives away, and what a browser shows."""

import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
from support.browser import rendered
from support.run_folders import make_run
from support.sockets import listening

from kinoray.browse import ui
from kinoray.browse.run_table import read_table
from kinoray.browse.ui import make_app, report_file
from kinoray.errors import UsageError
from kinoray.processes.web_server import LOOPBACK, listen
from kinoray.runs.made_by import MADE_BY

pytest.importorskip("dash_ag_grid")

MARKUP = "<img src=x onerror=document.body.remove()>"


@contextmanager
def served(root: Path, **options: Any) -> Iterator[str]:
    """The page's address while it is served from this process."""
    with listen(LOOPBACK, ui.PORT, None, "") as server:
        server.set_app(make_app(root, **options))
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://{LOOPBACK}:{server.server_port}/"
        server.shutdown()
        thread.join()


def status_of(address: str, **headers: str) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_reports_are_served_and_nothing_else(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    page = make_run(root).parent / "report.html"
    page.write_text("<p>the report</p>")
    (tmp_path / "report.html").write_text("outside")
    (root / "linked").symlink_to(tmp_path)
    name = page.relative_to(root).as_posix()
    assert report_file(root, name) == page.resolve()
    refused = ["../report.html", "linked/report.html", str(tmp_path / "report.html"),
               f"{page.parent.name}/seed-0/run.json",
               "report.html", "a\0/report.html", "x" * 5000 + "/report.html"]  # fmt: skip
    assert [report_file(root, other) for other in refused] == [None] * len(refused)
    client = make_app(root).test_client()
    answer = client.get(f"/pages/{name}", headers={"Host": LOOPBACK})
    assert answer.text == "<p>the report</p>" and "default-src 'none'" in answer.headers["Content-Security-Policy"]
    for other in ("../report.html", "..%2Freport.html", "%2e%2e/report.html", "linked/report.html"):
        assert client.get(f"/pages/{other}", headers={"Host": LOOPBACK}).status_code == 404, other


def test_it_answers_under_its_own_name_alone(tmp_path: Path) -> None:
    with served(tmp_path) as address:
        assert status_of(address) == 200
        assert status_of(address, Host="somebody.example") == 400


def test_everything_comes_from_this_machine(tmp_path: Path) -> None:
    page = make_app(tmp_path).test_client().get("/", headers={"Host": LOOPBACK}).text
    sources = re.findall(r"(?:src|href)=\"([^\"]+)\"", page)
    assert any("ui.js" in source for source in sources) and any("dash_ag_grid" in source for source in sources)
    assert all(source.startswith("/") and not source.startswith("//") for source in sources)


def test_what_cannot_be_shown_is_one_line(kino: Callable[..., Any], tmp_path: Path, monkeypatch) -> None:
    code, out, err = kino("ui", "--runs", tmp_path / "none")
    assert (code, out) == (2, "") and "There is no folder" in err and len(err.splitlines()) == 1
    with listen(LOOPBACK, ui.PORT, None, "") as taken:
        code, out, err = kino("ui", "--runs", tmp_path, "--port", taken.server_port)
    assert (code, out) == (2, "") and f"Port {taken.server_port} is taken" in err and "kinoray ui --port" in err
    monkeypatch.setattr(ui, "find_spec", lambda name: None)
    code, out, err = kino("ui", "--runs", tmp_path)
    assert (code, out) == (2, "") and "pip install 'kinoray[ui]'" in err and len(err.splitlines()) == 1
    with pytest.raises(UsageError, match="Dash is not installed"):
        make_app(tmp_path)


@pytest.mark.slow
def test_the_command_listens_on_loopback_until_ctrl_c(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "kinoray", "ui", "--runs", str(tmp_path)]
    command = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert command.stdout is not None
    address = command.stdout.readline().split()[0]
    assert status_of(address) == 200
    assert [heard for heard, _ in listening(psutil.Process(command.pid))] == [LOOPBACK]
    command.send_signal(signal.SIGINT)
    assert command.communicate(timeout=60) == ("", "")
    assert command.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 700])
def test_a_browser_shows_runs_sweeps_means_curves_and_differences(tmp_path: Path, width: int) -> None:
    root = tmp_path / "runs"
    names = [make_run(root, method, gain=gain, overrides={"m": m}).parent.name
             for method, gain, m in (("moco", 2.0, 0.9), ("bmu_moco", 4.0, 0.9), ("der", 6.0, 0.99))]  # fmt: skip
    reported = make_run(root, "lwf", state="running")
    (reported / "report.html").write_text("a report")
    trial = make_run(root, "co2l", overrides={"m": 0.5}, gain=20.0)
    (trial / MADE_BY).write_text("sweep-a\n")
    hostile = make_run(root, "er_ring", overrides={"note": MARKUP}, error=MARKUP, state="failed").parent.name
    chosen = "&".join(f"run={quote(name)}" for name in (names[0], names[1], hostile))
    with served(root) as address:
        page = rendered(f"{address}?by=m&{chosen}", tmp_path / "profile", width=width)
    text = re.sub(r"<[^>]+>", "\n", page)
    assert "5 runs, 1 sweeps, 0 running in" in text
    for word in ("moco", "bmu_moco", "der", "lwf", "sweep co2l", "er_ring", "finished", "stopped", "failed", "R@1"):
        assert re.search(rf"^{re.escape(word)}$", text, re.M), word
    assert "1 runs of trials: finished" in text and not re.search(r"^co2l$", text, re.M), "its trial is no row"
    assert "cvlm: means over the runs shown above" in text and re.search(r"^0\.99$", text, re.M)
    assert "3 chosen" in text and "tasks learned" in text and "differs in" in text
    assert re.findall(r'href="(pages/[^"]+)"', page) == [f"pages/{quote(reported.parent.name)}/seed-0/report.html"]
    assert "&lt;img src=x" in page and "<img src=x" not in page, "text from a run is never markup"


@pytest.mark.slow
def test_a_run_that_begins_while_the_page_is_open_appears(tmp_path: Path, monkeypatch) -> None:
    root, readings = tmp_path / "runs", []
    make_run(root, "moco")

    def read(*given: Any) -> list[dict[str, Any]]:
        """Some seconds after the page was opened another run begins."""
        readings.append(given)
        if len(readings) == 4:
            make_run(root, "bmu_moco")
        return read_table(*given)

    monkeypatch.setattr("kinoray.browse.ui_page.read_table", read)
    with served(root) as address:
        page = rendered(address, tmp_path / "profile", wait_ms=20_000)
    text = re.sub(r"<[^>]+>", "\n", page)
    assert "2 runs, 0 sweeps" in text and re.search(r"^bmu_moco$", text, re.M)
