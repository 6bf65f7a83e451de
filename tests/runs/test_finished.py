"""A finished run answers by what was remembered of its first start: fast, and never with another run's result."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import make_run

from kinoray.runs import finished
from kinoray.runs.finished import finished_runs, remember
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import resolve

REQUEST: dict[str, Any] = {"stream": "digits-5", "smoke": True, "quiet": True}


@pytest.fixture
def request_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunRequest]:
    """A request whose run of seed 0 is finished, and remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    request = RunRequest("moco", runs=tmp_path / "runs", **REQUEST)
    run = resolve(request)
    make_run(tmp_path / "made").rename(_made(run.folder))
    remember(request, run)
    yield request


def _made(folder: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_finished_run_is_found_again(request_: RunRequest) -> None:
    (result,) = finished_runs(request_) or []
    assert result.folder == resolve(request_).folder and result.state == "finished"


@pytest.mark.parametrize(
    "other",
    [{"settings": {"m": 0.5}}, {"fresh": True}, {"seed": 1}, {"seeds": 2}, {"joint": True}, {"smoke": False},
     {"backbone": "resnet18-cifar"}, {"stream": "digits-5:3"}, {"method": "simsiam"}, {"runs": "elsewhere"}],
)  # fmt: skip
def test_another_request_is_not_answered(request_: RunRequest, other: dict[str, Any]) -> None:
    assert finished_runs(replace(request_, **other)) is None


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_run_that_is_not_finished_is_started_as_usual(request_: RunRequest, state: str) -> None:
    file = resolve(request_).folder / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"state": state}))
    assert finished_runs(request_) is None


@pytest.mark.parametrize("part", ["code_digest", "methods_digest"])
def test_changed_code_forgets(request_: RunRequest, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finished, part, lambda: "another")
    assert finished_runs(request_) is None


def test_changed_data_forgets(request_: RunRequest) -> None:
    from kinoray.streams import load_stream

    other = load_stream("digits-5:3")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finished, "load_stream", lambda name: other)
        assert finished_runs(request_) is None


def test_a_method_of_ones_own_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kinoray.runs.method_source import methods_folder

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "mine.py"
    file.write_text((methods_folder() / "simsiam.py").read_text())
    request = RunRequest(str(file), runs=tmp_path / "runs", **REQUEST)
    remember(request, resolve(request))
    assert not (tmp_path / "cache" / "kinoray" / "finished").exists()


def test_a_finished_run_is_shown_without_torch_ray_and_plots(request_: RunRequest) -> None:
    words = ["run", "moco", "--stream", "digits-5", "--smoke", "--runs", str(request_.runs)]
    (resolve(request_).folder / "report.html").write_text("drawn already")
    code = (
        f"import sys; sys.argv = ['kinoray', *{words!r}]\nfrom kinoray.cli.main import main\ntry:\n    main()\n"
        "except SystemExit:\n    pass\n"
        "heavy = ('torch', 'ray', 'matplotlib', 'scipy.stats', 'transformers')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "is finished already" in done.stderr and "Overall" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
