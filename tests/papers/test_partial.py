"""Papers are not measured on published data of which clips are missing, unless somebody asks for it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kinoray.errors import UsageError
from kinoray.papers.reproduce import reproduce
from kinoray.streams import Stream
from kinoray.system.folders import prepared_folder

LINE = "toy is partial: 6 of 20 published test clips are there."
LEFT_OUT = "1 clip was left out, night/clip<7>: `bad_samples.jsonl` says why."
"""Of runs that are made up."""


@pytest.fixture
def partial(micro: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """The small stream, as if it were of a prepared set of which clips are missing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = prepared_folder("toy")
    folder.mkdir(parents=True)
    counts = {"published": 20, "annotated": 20, "ready": 6}
    (folder / "report.json").write_text(json.dumps({"splits": {"test": counts}}))
    return replace(micro, tasks=tuple(replace(task, data_set="toy") for task in micro.tasks))


def test_partial_data_are_refused_before_anything_runs(partial: Stream, made_up: list, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"bmu-table1 uses published data, but {LINE} .* give --partial"):
        reproduce("bmu-table1", stream=partial, runs=tmp_path, quiet=True)
    assert made_up == []


def test_every_stream_that_a_name_stands_for_is_looked_at(
    partial: Stream, made_up: list, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def load(name: str) -> Stream:
        names.append(name)
        return partial

    monkeypatch.setattr("kinoray.papers.reproduce.load_stream", load)
    with pytest.raises(UsageError, match="toy is partial"):
        reproduce("ccsl-table1", stream="cssl-cifar100-X", runs=tmp_path, quiet=True)
    assert names[0].startswith("cssl-cifar100-") and "X" not in "".join(names) and made_up == []


def test_asked_for_they_are_measured_and_the_page_says_so(
    made_up: list, tmp_path: Path, kino: Callable[..., Any]
) -> None:
    options = ("bmu-table1", "--partial", "--seeds", 1, "--runs", tmp_path, "--quiet")
    assert "--partial" not in kino("reproduce", *options, "--json")[1]
    for path in tmp_path.glob("made/*/*/seed-*/run.json"):
        record = json.loads(path.read_text()) | {"shortfalls": {"partial": [LINE], "home_made": []}}
        path.write_text(json.dumps(record))
    _, out, _ = kino("reproduce", *options)
    assert LINE in out
    page = next(tmp_path.glob("reproductions/*/bmu-table1.md"))
    assert f"- {LINE}" in page.read_text() and "--partial`" in page.read_text()
    assert json.loads(page.with_suffix(".json").read_text())["cautions"] == [LINE, LEFT_OUT]
    assert f"% {LINE}" in page.with_suffix(".tex").read_text()
