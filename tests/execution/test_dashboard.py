"""`kinoray run --dashboard`: Ray's dashboard beside a run, on loopback, for as long as it lasts."""

import contextlib
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from support.browser import rendered
from support.waiting import wait_until

from kinoray.errors import UsageError
from kinoray.runs.request import RunRequest
from kinoray.streams import Stream

DRIVER = """
import pickle, sys
from pathlib import Path
import kinoray
kinoray.run("bmu_moco", **pickle.loads(Path(sys.argv[1]).read_bytes()))
"""


def test_a_run_without_ray_has_no_dashboard_of_its() -> None:
    with pytest.raises(UsageError, match="`dashboard` needs Ray, but num_workers=0 does not use it"):
        RunRequest("base_moco", dashboard=True, num_workers=0)


@pytest.mark.ray
@pytest.mark.slow
def test_its_pages_name_the_run_its_trainer_its_data_and_its_actors_while_it_is_on(
    micro: Stream, tmp_path: Path
) -> None:
    settings = {"queue_size": 16, "epochs": 2000, "max_steps": 0}
    options = {"stream": micro, "runs": tmp_path / "runs", "settings": settings, "dashboard": True, "num_workers": 1}
    (tmp_path / "job").write_bytes(pickle.dumps(options))
    words, environment = [sys.executable, "-c", DRIVER, tmp_path / "job"], os.environ | {"KINORAY_CACHE": "off"}
    driver = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment)
    assert driver.stderr is not None
    try:
        told = (line for line in driver.stderr if line.strip() and not line.startswith("Note: "))  # few clips
        lines = list(itertools.islice(told, 2))
        match = re.fullmatch(r"Starting Ray \.\.\.\nRay's dashboard: http://127\.0\.0\.1:(\d+)\n", "".join(lines))
        assert match, lines
        started = next(line for line in driver.stderr if "reading its first clips" in line)
        label, address = started.split(":")[0], f"http://127.0.0.1:{match[1]}"
        assert "ray_version" in answered(f"{address}/api/version")
        trainers = answered(f"{address}/api/train/v2/runs/v1")["train_runs"]
        assert [run["name"].rpartition("-")[0] for run in trainers] == [label.replace("/", "-")]
        datasets = answered(f"{address}/api/data/datasets/02000000")["datasets"]
        assert datasets and all(dataset["dataset"].startswith("train-") for dataset in datasets)
        jobs, actors = (rendered(f"{address}/#/{page}", tmp_path / "profile") for page in ("jobs", "actors"))
        assert "RUNNING" in jobs and label.split("/")[0] in jobs
        names = [f"{actor}:{label}" for actor in ("monitor", "momentum", "store")]
        assert any(name in actors for name in names), "a page has ten"
        known = json.dumps(answered(f"{address}/api/v0/actors"))
        assert all(name in known for name in names)
    finally:
        driver.terminate()
        driver.communicate(timeout=90)


def answered(address: str) -> dict[str, Any]:
    """What the dashboard answers, as soon as it answers with anything: its parts wake up one by one."""

    def parts() -> dict[str, Any]:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=60) as answer:
            if any((told := json.load(answer)).values()):
                return told
        return {}

    return wait_until(parts, every_s=1.0)
