"""Queries on a run's page: chosen by how far their right answers fell and rose, shown with frames."""

import json
from pathlib import Path

import pytest

from kinoray.data.manifest import read_manifest
from kinoray.report.examples import LOST, REGAINED, examples
from kinoray.report.page import write_report
from kinoray.runs.result import Result, command_of
from kinoray.runs.write_result import write_ranks
from kinoray.streams import Stream

THEN, NOW = [0, 3, 1, 2, 4, 5], [5, 3, 1, 2, 4, 1]


@pytest.fixture
def run(micro: Stream, tmp_path: Path) -> Path:
    """A run of two tasks with made-up ranks: the first query of task 1 falls from the top, the last one rises."""
    folder = tmp_path / "made-up" / "seed-0"
    folder.mkdir(parents=True)
    record = {"method": "base_moco", "stream": "micro", "protocol": "cvlm", "seed": 0, "joint": False}
    record |= {"tasks": [task.name for task in micro.tasks], "manifests": [str(t.manifest) for t in micro.tasks]}
    (folder / "run.json").write_text(json.dumps(record | {"zero_shot": False, "config": {"overrides": {}}}))
    manifest = read_manifest(micro.tasks[0].manifest)
    rows, _ = manifest.samples("test")
    firsts = [sample for sample in range(len(rows)) if sample == 0 or rows[sample] != rows[sample - 1]]
    write_ranks(folder, [
        {"reading": "", "after_task": after, "task": 0, "sample": sample, "clip_id": manifest.id(int(rows[sample])),
         "rank": float(rank), "ties": 0, "gallery": 6, "best": [manifest.id(int(rows[s])) for s in firsts[after:5]]}
        for after, ranks in enumerate((THEN, NOW))
        for sample, rank in zip(firsts, ranks, strict=True)
    ])  # fmt: skip
    return folder


def test_the_one_that_fell_furthest_and_the_one_that_rose_furthest_are_shown(run: Path, micro: Stream) -> None:
    lost, regained = examples(Result(run))
    manifest = read_manifest(micro.tasks[0].manifest)
    rows, numbers = manifest.samples("test")
    assert (lost.what, lost.then, lost.now) == (LOST, "1 of 6", "6 of 6")
    assert lost.query == manifest.caption(int(rows[0]), int(numbers[0])) and lost.task == micro.tasks[0].name
    assert (regained.what, regained.then, regained.now) == (REGAINED, "6 of 6", "2 of 6")
    assert {example.picture[:22] for example in (lost, regained)} == {"data:image/png;base64,"}
    assert [hit.right for hit in lost.first_then] == [True, False, False, False, False]
    assert [hit.right for hit in lost.first_now] == [False] * 4, "it was noted among the first no more"
    assert [hit.name for hit in lost.first_then[1:]] == [hit.name for hit in regained.first_now]


def test_a_run_of_other_data_or_without_manifests_has_none(run: Path, micro: Stream) -> None:
    record = json.loads((run / "run.json").read_text())
    for manifest in (str(micro.tasks[1].manifest), str(run / "gone.parquet")):
        (run / "run.json").write_text(json.dumps(record | {"manifests": [manifest] * 2}))
        assert examples(Result(run)) == []


def test_the_page_of_a_real_run_has_them_with_clips_and_chance(micro: Stream, tmp_path: Path) -> None:
    import kinoray

    result = kinoray.run("base_moco", stream=micro, runs=tmp_path, num_workers=0, quiet=True)
    text, shown = write_report(result.folder).read_text(), examples(result)
    assert "kinoray run" not in text, "the stream of the test has no name"
    assert "<td>12</td><td>4</td><td>6</td><td>16.7</td>" in text.replace("\n", "")
    assert text.count('class="right"') == sum(
        hit.right for example in shown for hit in example.first_then + example.first_now
    )
    assert ("Lost, and found later" in text) == bool(shown) and text.count("frames of the clip") == len(shown)


def test_the_page_has_the_command_that_makes_the_run(run: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    made = {"backbone": "tiny", "method_source": {"kind": "kinoray"}, "stream_source": {"made_from": "moving-cvlm:3"}}
    (run / "run.json").write_text(
        json.dumps(record | made | {"config": {"overrides": {"m": 0.9}}, "as_released": True})
    )
    words = "kinoray run base_moco --stream moving-cvlm:3 --backbone tiny --as-released --set m=0.9 --seed 0"
    assert command_of(Result(run)) == words
    own = {"kind": "rule", "parts": [{"kind": "kinoray"}, {"kind": "file", "file": "learner.py"}]}
    (run / "run.json").write_text(json.dumps(record | made | {"method_source": own}))
    assert command_of(Result(run)) == ""
