"""What is to be read with a run's numbers: chance among a few clips, and data that are not as published."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.run_folders import make_run

from kinoray.datasets.prepared import shortfalls
from kinoray.execution.run import run
from kinoray.report.page import write_report
from kinoray.report.tables import compare
from kinoray.runs.cautions import cautions, data_facts
from kinoray.runs.reopen import recorded_stream
from kinoray.runs.result import Result
from kinoray.streams import Stream, load_stream
from kinoray.system.folders import prepared_folder
from kinoray.testing.small_stream import on_protocol

SMALL = "R@1 by chance is 33.3: task street ranks among 3 clips."
PARTIAL = {"partial": ["msvd is partial: 600 of 670 published test clips are there."], "home_made": []}


def facts(*test_clips: int, protocol: str = "cvlm") -> dict[str, Any]:
    tasks = ["street", "park", "night"][: len(test_clips)]
    return {"protocol": protocol, "tasks": tasks, "test_clips": list(test_clips)}


def test_a_small_gallery_is_named_with_its_level_of_chance() -> None:
    assert cautions(facts(3, 20)) == [SMALL]
    assert cautions(facts(1)) == ["R@1 by chance is 100.0: task street ranks among 1 clip."]
    assert cautions(facts(19, 4, 19)) == [
        "R@1 by chance is 5.3: tasks street, night rank among 19 clips.",
        "R@1 by chance is 25.0: task park ranks among 4 clips.",
    ]
    assert cautions(facts(3), "R@5") == ["R@5 by chance is 100.0: task street ranks among 3 clips."]


def test_a_gallery_that_grows_counts_as_it_is_at_the_end() -> None:
    assert cautions(facts(7, 7, 6, protocol="ctvr")) == []
    assert cautions(facts(7, 7, protocol="ctvr")) == ["R@1 by chance is 7.1: tasks street, park rank among 14 clips."]


@pytest.mark.parametrize("protocol", ["ucl", "cssl", "classification"])
def test_where_classes_are_ranked_few_clips_are_no_small_gallery(protocol: str) -> None:
    assert cautions(facts(3, protocol=protocol)) == []


def test_clips_of_older_runs_are_counted_in_their_manifests(micro: Stream) -> None:
    tasks = [task.name for task in micro.tasks]
    older = {"protocol": "cvlm", "tasks": tasks, "manifests": [str(task.manifest) for task in micro.tasks]}
    line = f"R@1 by chance is 16.7: tasks {', '.join(tasks)} rank among 6 clips."
    assert cautions(older) == cautions(data_facts(micro)) == [line]
    assert cautions(older | {"manifests": ["/gone.parquet", "/gone.parquet"]}) == []


def test_every_form_of_a_table_and_the_page_say_it(tmp_path: Path, kino: Callable[..., Any]) -> None:
    data = {"test_clips": [3, 30, 30, 30, 30], "shortfalls": PARTIAL}
    folder = make_run(tmp_path, facts=data)
    wanted = ["R@1 by chance is 33.3: task plain ranks among 3 clips.", *PARTIAL["partial"]]
    comparison = compare([folder])
    shown = [repr(comparison), comparison.markdown(), comparison.latex(), comparison._repr_html_()]
    shown += [Result(folder)._repr_html_(), write_report(folder).read_text()]
    shown += [kino("compare", folder)[1], json.dumps(comparison.to_json())]
    assert all(line in text for text in shown for line in wanted) and wanted[0] in repr(Result(folder))
    make_run(tmp_path, seed=1, facts=data)
    page = write_report(folder.parent).read_text()
    assert [page.count(line) for line in wanted] == [1, 1]


def test_a_row_that_has_a_caution_of_its_own_is_named(tmp_path: Path) -> None:
    make_run(tmp_path, "base_moco")
    make_run(tmp_path, "bmu_moco", facts={"shortfalls": PARTIAL})
    assert f"bmu_moco: {PARTIAL['partial'][0]}" in compare(sorted(tmp_path.iterdir())).notes()


def test_clips_that_were_left_out_are_named_and_chance_is_that_of_those_that_were_tested(tmp_path: Path) -> None:
    """A task's gallery of eight, of which the last test saw seven."""
    folder = make_run(tmp_path, facts={"test_clips": [30, 30, 30, 8, 30]})
    task = Result(folder).tasks[3]
    line = {"task": task, "id": "v9", "uri": "v9.mp4", "stage": "open", "error": "VideoError", "message": "no stream"}
    (folder / "bad_samples.jsonl").write_text(json.dumps(line) + "\n")
    chance = f"R@1 by chance is 14.3: task {task} ranks among 7 clips."
    left_out = f"1 clip was left out, {task}/v9: `bad_samples.jsonl` says why."
    assert Result(folder).cautions == compare([folder]).notes()[:2] == [chance, left_out]
    (folder / "bad_samples.jsonl").write_text((json.dumps(line) + "\n") * 5)
    assert f"5 clips were left out, {task}/v9, {task}/v9, {task}/v9, ...: " in Result(folder).cautions[1]


def test_another_score_has_its_own_level_of_chance(tmp_path: Path) -> None:
    folder = make_run(tmp_path, facts={"test_clips": [10, 30, 30, 30, 30]})
    assert "R@5 by chance is 50.0: task plain ranks among 10 clips." in compare([folder], "r5").notes()


def test_a_start_says_it_and_the_run_keeps_it(micro: Stream, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    report(published=20, ready=6)
    of_toy = replace(micro, tasks=tuple(replace(task, data_set="toy") for task in micro.tasks))
    result = run("base_moco", stream=of_toy, num_workers=0, runs=tmp_path / "runs", smoke=True)
    assert isinstance(result, Result)
    said = capsys.readouterr().err
    assert len(result.cautions) == 2 and all(f"Note: {line}\n" in said for line in result.cautions)
    assert result.cautions[1] == "toy is partial: 6 of 20 published test clips are there."
    assert recorded_stream(result).tasks == of_toy.tasks
    elsewhere = run("base_moco", stream=micro, num_workers=0, runs=tmp_path / "runs", smoke=True, quiet=True)
    assert isinstance(elsewhere, Result) and elsewhere.folder == result.folder, "what a set lacks names no run"


# What is known of published data


def report(published: int | None = 20, annotated: int = 20, ready: int = 20, **more: Any) -> None:
    """The report of a prepared set, `toy`."""
    counts = {"published": published, "annotated": annotated, "ready": ready}
    folder = prepared_folder("toy")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps({"splits": {"test": counts}} | more))


def test_a_set_is_partial_where_fewer_clips_are_ready_than_were_published(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report()
    assert shortfalls(["toy"]) == ([], [])
    report(published=None, annotated=1200, ready=1199)
    assert shortfalls(["toy"]).partial == ["toy is partial: 1,199 of 1,200 published test clips are there."]
    report(home_made=["no list: a split of our own"])
    assert shortfalls(["toy"]) == ([], ["toy is not as published: no list: a split of our own."])
    (prepared_folder("toy") / "report.json").write_text("{")
    assert "its report is gone" in shortfalls(["toy"]).partial[0]


def test_streams_of_published_data_say_which(tmp_path: Path, monkeypatch) -> None:
    from kinoray.data.manifest import write_manifest

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    rows = [
        {"id": f"{label}-{split}", "uri": "all.npy", "item": 0, "label": f"c{label}", "split": split}
        for label in range(10)
        for split in ("train", "validation", "test")
    ]
    write_manifest(rows, prepared_folder("cifar10") / "manifest.parquet", tmp_path)
    stream = load_stream("ucl-cifar10")
    assert {task.data_set for task in stream.tasks} == {"cifar10"}
    assert "cifar10 is partial" in cautions(data_facts(stream))[0]
    assert data_facts(on_protocol(stream, "ucl"))["test_clips"] == [2] * 5
