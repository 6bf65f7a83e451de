"""Nothing that a run writes holds a secret of the environment, or names the home of whoever ran it."""

from pathlib import Path

import pytest

import kinoray
from kinoray.report.page import write_report
from kinoray.streams import Stream

SECRET = "planted-5f0c3a7e"
NAMES = ("WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "RAY_AUTH_TOKEN", "MLFLOW_TRACKING_PASSWORD")


def test_no_file_of_a_run_holds_a_secret_or_a_home(
    micro: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home-of-somebody"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in NAMES:
        monkeypatch.setenv(name, SECRET)
    result = kinoray.run(
        "base_moco", stream=micro, runs=tmp_path / "runs", settings={"queue_size": 16}, num_workers=0, quiet=True
    )
    write_report(result.folder)
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert any(path.suffix == ".safetensors" for path in files) and any(path.suffix == ".html" for path in files)
    for path in files:
        told = path.read_bytes()
        assert SECRET.encode() not in told, path
        assert home.name.encode() not in told, path
