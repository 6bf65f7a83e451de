"""A run and a sweep begun by commit 179f426 go on: `tests/older_version` holds what it wrote, but for locks, pages, and
the checkpoints of finished trials.

    kinoray run moco --stream digits-5 --num-workers 0 --set max_steps=6 ...   # stopped by SIGTERM in its second task
    kinoray sweep moco --stream digits-5 --trials 2 --space temperature=0.05:0.2 --space m=0.9:0.99 ...
"""

import json
import shutil
from pathlib import Path

import pytest
from support.places import REPOSITORY

import kinoray
from kinoray.sweeps.sweep import sweep

OLDER = REPOSITORY / "tests" / "older_version"
SHORT = {"queue_size": 64, "dim": 16, "validations": 1}


def losses(folder: Path) -> dict[tuple[int, int], float]:
    """Loss by task and step, as logged."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {(record["task"], record["step"]): record["loss"] for record in records if "loss" in record}


@pytest.mark.slow
def test_a_run_begun_by_an_older_version_resumes(tmp_path: Path) -> None:
    shutil.copytree(OLDER / "run", tmp_path / "old")
    (folder,) = (tmp_path / "old").glob("moco-*/seed-0")
    before = losses(folder)
    options = {"stream": "digits-5", "num_workers": 0, "settings": SHORT | {"max_steps": 6}, "quiet": True}
    resumed = kinoray.run("moco", **options, runs=tmp_path / "old")
    assert resumed.folder == folder and resumed.state == "finished"
    after = losses(folder)
    assert len(after) > len(before) and {place: after[place] for place in before} == before
    whole = kinoray.run("moco", **options, runs=tmp_path / "new")
    fresh = losses(whole.folder)
    assert after == pytest.approx(fresh, rel=0.02), "other machines compute other last bits"
    if {place: fresh[place] for place in before} == before:
        assert resumed.outcome["state_digest"] == whole.outcome["state_digest"]


@pytest.mark.slow
def test_a_sweep_begun_by_an_older_version_is_extended(tmp_path: Path) -> None:
    shutil.copytree(OLDER / "sweep", tmp_path / "sweeps", symlinks=True)
    (journal,) = (tmp_path / "sweeps").glob("*/study.journal")
    journal.write_text(journal.read_text().replace("/home/user/sweeps", str(tmp_path / "sweeps")))
    found = sweep(
        "moco",
        stream="digits-5",
        trials=3,
        space=["temperature=0.05:0.2", "m=0.9:0.99"],
        settings=SHORT | {"max_steps": 2},
        runs=tmp_path / "sweeps",
        quiet=True,
    )
    assert found.folder == journal.parent
    assert found.states["complete"] == len(found.trials) == 3
    assert len({str(trial.params) for trial in found.trials}) == 3
