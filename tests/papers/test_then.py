"""Rows whose score is what another method then reaches on their encoders: VideoMoCo's tables."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.places import REPOSITORY
from support.run_folders import make_run

from kinoray.config import digest_of
from kinoray.methods.video_moco import RECIPES, Config
from kinoray.papers.catalogue import REPRODUCTIONS
from kinoray.papers.entries import FINE_TUNED, FINE_TUNED_2, GFLOP, TableEntry
from kinoray.papers.published import published
from kinoray.papers.reproduce import reproduce
from kinoray.papers.video_moco import DECAYS, PAPER_QUEUE, QUEUE, TABLE1
from kinoray.runs.request import RunRequest
from kinoray.runs.result import Result
from kinoray.streams import Stream, TaskData, family_of
from kinoray.system.durable import write_json

TABLES = {name: entry for name, entry in REPRODUCTIONS.items() if isinstance(entry, TableEntry) and entry.then}
SEEDS = (40, 41)


@pytest.fixture
def two_sets(micro: Stream) -> Stream:
    """The small stream, whose tasks are downstream sets, too."""
    sets = tuple(TaskData(name, task.manifest) for name, task in zip(("first", "second"), micro.tasks, strict=False))
    return replace(micro, downstream=sets)


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[RunRequest]:
    """`run_all` answers with made-up runs and collects the requests. A run on an encoder is the better, the more frames
    its parent drops; on the second set by 10."""
    requests: list[RunRequest] = []

    def made(request: RunRequest, seed: int) -> Result:
        asked_for = [str(request.method), dict(request.settings), request.backbone, str(request.stream)]
        name = digest_of([*asked_for, request.control])[:8]
        folder = tmp_path / "made" / f"{request.method}-{name}" / f"seed-{seed}"
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            overrides = dict(request.settings)
            make_run(tmp_path / name, str(request.method), seed, overrides=overrides).rename(folder)
            if request.method == "classify":
                assert isinstance(request.stream, Stream) and request.backbone
                parent = Result(Path(request.backbone.partition(":")[2]))
                score = 50 + 20 * parent.overrides.get("dropout_share", 0) + 10 * request.stream.name.endswith("second")
                _write(folder / "result.json", metrics={"R@1": score + seed / 100})
            stream = request.stream
            _write(folder / "run.json", stream=stream if isinstance(stream, str) else stream.name)
        return Result(folder)

    def run_all(wanted: Sequence[RunRequest]) -> list[list[Result]]:
        requests.extend(wanted)
        return [[made(request, seed) for seed in request.all_seeds] for request in wanted]

    monkeypatch.setattr("kinoray.execution.run.run_all", run_all)
    return requests


def _write(path: Path, **values: Any) -> None:
    write_json(path, json.loads(path.read_text()) | values)


def test_every_rows_encoder_is_fine_tuned_on_every_downstream_set(asked, two_sets, tmp_path) -> None:
    table = reproduce("videomoco-table1", stream=two_sets, seeds=2, runs=tmp_path / "runs", quiet=True)
    parents = [request for request in asked if request.method == "video_moco"]
    children = [request for request in asked if request.method == "classify"]
    assert [request.seeds for request in parents] == [2] * len(TABLE1.rows)
    assert len(children) == len(TABLE1.rows) * 2 * len(SEEDS)
    for row in TABLE1.rows:
        for seed, result in zip(SEEDS, table.runs["shared"][row.label], strict=True):
            own = [child for child in children if child.backbone == f"run:{result.folder}"]
            assert [child.seed for child in own] == [seed] * 2 and not any(child.settings for child in own)
            names = [child.stream.name for child in own if isinstance(child.stream, Stream)]
            assert names == [f"{two_sets.name}/first", f"{two_sets.name}/second"]
            assert [child.stream.tasks for child in own if isinstance(child.stream, Stream)] == [
                (data,) for data in two_sets.downstream
            ]
    assert not table.missing
    head, *lines = table.cells()
    assert head == ["method", "settings", FINE_TUNED, FINE_TUNED_2, GFLOP]
    assert ["baseline", "published", "75.90", "46.20", "–"] in lines
    measured = {line[0]: [cell.split()[0] for cell in line[2:4]] for line in lines if line[1] == "shared"}
    assert measured["k = 8"] == ["55.4", "65.4"] and measured["baseline"] == ["50.4", "60.4"]
    answers = {statement.words: statement.answer for statement in table.statements}
    assert answers == {
        "Random dropout degrades the baseline.": "no",
        "Adversarial learning improves the baseline.": "yes",
        "Of the numbers of frames k = 8 is best.": "no",
        "The decay improves it further.": "no",
    }
    assert f"{two_sets.name}/first and {two_sets.name}/second, from each row's encoder" in table.markdown()
    numbers = json.loads((table.folder / "videomoco-table1.json").read_text())
    assert str(tmp_path) not in json.dumps(numbers), "no path of this machine"


def test_an_encoder_is_fine_tuned_on_a_set_of_its_own_world(asked, two_sets, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("kinoray.papers.reproduce.load_stream", lambda name: replace(two_sets, name=name))
    monkeypatch.setitem(REPRODUCTIONS, "videomoco-table3", TABLES["videomoco-table3"])
    reproduce("videomoco-table3", runs=tmp_path / "runs", quiet=True)
    children = [request for request in asked if request.method == "classify"]
    assert len(children) == 4 * 3 * 2
    for child in children:
        parent = Result(Path(str(child.backbone).partition(":")[2]))
        assert isinstance(child.stream, Stream) and child.stream.name.startswith(f"{parent.stream}/")


def test_an_encoder_that_was_not_fine_tuned_is_a_gap(asked, two_sets, tmp_path, monkeypatch) -> None:
    import kinoray.execution.run as module

    answers = module.run_all

    def but_the_last(requests: Sequence[RunRequest]) -> list[list[Result]]:
        answered = answers(requests)
        if requests[0].method == "classify":
            _write(answered[-2][0].folder / "result.json", state="failed")
            answered[-1] = []
        return answered

    monkeypatch.setattr(module, "run_all", but_the_last)
    table = reproduce("videomoco-table1", stream=two_sets, seeds=2, runs=tmp_path / "runs", quiet=True)
    then = "k = 8, decay, shared, seed 41, classify on downstream set"
    assert table.missing == [f"{then} 1: failed", f"{then} 2: not run"] and table.failed
    assert table.shown is None and f"{then} 1: failed" in table.markdown()


def test_rows_of_other_papers_stand_in_the_table_and_are_not_run(asked, two_sets, tmp_path) -> None:
    table = reproduce("videomoco-table3", stream=two_sets, seeds=1, runs=tmp_path / "runs", quiet=True)
    networks = ["tiny-3d", "tiny-2plus1d"] * 2
    assert [request.backbone for request in asked if request.method == "video_moco"] == networks
    own = [row.on_paper_stream().backbone for row in TABLES["videomoco-table3"].rows]
    assert own == ["r3d-18:4", "r2plus1d-18:4"] * 2
    assert ["Deep RL, CaffeNet", "published", "58.60", "25.00", "–"] in table.cells()
    assert [line[1] for line in table.cells()[1:]].count("shared") == 4


def test_the_decay_gives_the_oldest_key_the_papers_weight_on_either_queue(asked, two_sets, tmp_path) -> None:
    assert RECIPES["moving-actions"]["queue_size"] == QUEUE and Config().queue_size == PAPER_QUEUE
    for words, row in DECAYS.items():
        t = float(words)
        assert row.settings["t"] ** QUEUE == pytest.approx(t**PAPER_QUEUE, rel=1e-6)
        assert row.paper_settings == {"t": t}
    assert RECIPES["moving-actions"]["t"] ** QUEUE == pytest.approx(0.99999**PAPER_QUEUE, rel=1e-3)
    for name, wanted in (("micro", "settings"), ("video-ssl:split=2", "paper_settings")):
        asked.clear()
        reproduce("videomoco-table2", stream=replace(two_sets, name=name), seeds=1, runs=tmp_path / name, quiet=True)
        used = [request.settings.get("t") for request in asked if request.method == "video_moco"]
        assert used == [*(getattr(row, wanted)["t"] for row in DECAYS.values()), None]


@pytest.mark.parametrize("name", TABLES)
def test_an_entry_names_a_stream_with_downstream_sets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = TABLES[name]
    assert family_of(entry.stream) == ("robots-ssl" if entry.worlds else "moving-actions")
    assert entry.paper_stream == "video-ssl" and entry.then == "classify" and FINE_TUNED in entry.overall
    assert {claim.metric for claim in entry.claims} <= {*entry.overall, *entry.beside}


def test_the_published_numbers_are_those_of_the_transcription() -> None:
    source = REPOSITORY.parent / "shared" / "published" / "video_moco.csv"
    if not source.is_file():
        pytest.skip(f"{source} is not there")
    with source.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    for number in (1, 2, 3):
        # The last row of the paper's Table 1, of R3D, is the one of Table 3.
        wanted = [r for r in rows if r["table"].endswith(str(number)) and (number == 3 or r["network"] != "R3D")]
        ours = list(published(f"video-moco-table{number}").values())
        theirs = [[float(r[name]) for name in ("ucf101", "hmdb51") if r[name]] for r in wanted]
        assert [list(row.values()) for row in ours] == theirs
