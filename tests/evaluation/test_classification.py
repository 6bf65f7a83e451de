"""Classification as the rank of the right class, end to end, by a protocol in a new file that is found by its name."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support.coloured import Pictures, coloured_stream
from support.sweeps import job_of, whole_trial

import kinoray
from kinoray.errors import UsageError
from kinoray.evaluation import protocols
from kinoray.evaluation.protocol import load_protocol, protocol_names
from kinoray.metrics import class_ranks
from kinoray.report.page import write_report
from kinoray.report.tables import compare
from kinoray.runs.result import Result
from kinoray.streams import Stream
from kinoray.sweeps.study import falls_behind, known_objectives, objectives_of

PROTOCOL = '''
"""Nearest class mean: a picture belongs to the class, of all tasks so far, with the nearest mean feature."""

import torch

from kinoray.evaluation.protocol import BaseProtocol
from kinoray.metrics import class_ranks


class Protocol(BaseProtocol):
    scores = {"accuracy": 1, "accuracy@2": 2}
    about = "Accuracy in percent among the classes of all tasks so far"
    headlines = ("accuracy", "FR", "BWF", "accuracy@2")
    objective = "accuracy"
    reads_text = False

    def validate(self, tester, task):
        means = self.means(tester, [task], trained=True)
        return self.ranks(tester, means, self.features(tester, task, "validation", trained=True))

    def test(self, tester, stage, split):
        means = self.means(tester, stage.tests)
        ranks = {}
        for task in stage.tests:
            clips = self.features(tester, task, split)
            if split == "test":
                tester.note_queries(task, range(len(clips.rows)), clips.ids)
            ranks[task] = self.ranks(tester, means, clips)
        return {"": ranks}

    def features(self, tester, task, split, trained=False):
        return tester.embed(task, split, tester.method.encoder().features, trained)

    def means(self, tester, tasks, trained=False):
        features, labels = [], []
        for task in tasks:
            clips = self.features(tester, task, "train", trained)
            features.append(clips.features)
            labels.append(torch.from_numpy(tester.labels(clips)))
        features, labels = torch.cat(features), torch.cat(labels)
        return {int(label): features[labels == label].mean(dim=0) for label in labels.unique()}

    def ranks(self, tester, means, clips):
        scores = -torch.cdist(clips.features, torch.stack(list(means.values())))
        columns = list(means)
        return class_ranks(scores.numpy(), [columns.index(label) for label in tester.labels(clips)])
'''


@pytest.fixture
def coloured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Two tasks of two classes each, pictures of one colour in arrays, and the protocol's file found beside others."""
    folder = tmp_path / "protocols"
    folder.mkdir()
    (folder / "nearest_mean.py").write_text(PROTOCOL)
    monkeypatch.setattr(protocols, "__path__", [*protocols.__path__, str(folder)])
    monkeypatch.delitem(__import__("sys").modules, f"{protocols.__name__}.nearest_mean", raising=False)
    return coloured_stream(tmp_path, "nearest-mean")


def learned(stream: Stream, folder: Path, seed: int = 0, **options) -> Result:
    result = kinoray.run(Pictures, stream=stream, num_workers=0, runs=folder, seed=seed, quiet=True, **options)
    assert isinstance(result, Result) and result.state == "finished"
    return result


def test_a_protocol_is_one_new_file(coloured, tmp_path) -> None:
    assert "nearest-mean" in protocol_names()
    result = learned(coloured, tmp_path / "runs")
    assert result.protocol.name == "nearest-mean" and result.run["protocol"] == "nearest-mean"
    table = result.ranks
    assert table.groupby("after_task")["gallery"].unique().map(list).to_dict() == {0: [2], 1: [4]}
    assert len(table) == 8 + 8 + 8
    for (after, task), rows in table.groupby(["after_task", "task"]):
        assert result.matrix.iloc[after, task] == pytest.approx(100 * (rows["rank"] < 1).mean())
    assert result.metrics["accuracy"] == pytest.approx(result.matrix.iloc[-1].mean())
    assert result.metrics["accuracy"] > 60, "colours are told apart"
    assert set(result.metrics) == set(load_protocol("nearest-mean").metrics)
    assert "accuracy" in repr(result) and "R@1" not in repr(result) + result._repr_html_()
    assert "validation" in result.losses


def test_the_right_class_is_ranked_as_the_classifier_does(coloured, tmp_path) -> None:
    """Accuracy of ranks = accuracy of the nearest mean, on other numbers."""
    generator = torch.Generator().manual_seed(0)
    features, means = torch.randn(30, 4, generator=generator), torch.randn(5, 4, generator=generator)
    labels = torch.arange(30) % 5
    nearest = torch.cdist(features, means).argmin(dim=1)
    ranks = class_ranks(-torch.cdist(features, means).numpy(), labels.numpy())
    assert ranks.score(1) == pytest.approx(100 * (nearest == labels).double().mean().item())


@pytest.mark.parametrize("kind", [{"joint": True}, {"zero_shot": True}])
def test_joint_training_and_zero_shot_serve_it_too(kind, coloured, tmp_path) -> None:
    result = learned(coloured, tmp_path / "runs", **kind)
    assert result.matrix.notna().to_numpy().tolist() == [[False, False], [True, True]]
    assert result.metrics["FR"] is None and result.metrics["accuracy"] is not None


def test_tables_and_pages_speak_of_accuracy(coloured, tmp_path) -> None:
    results = [learned(coloured, tmp_path / "runs", seed) for seed in (0, 1)]
    comparison = compare(results)
    assert [f"{c.group} {c.name}" for c in comparison.columns] == [
        "task-0 accuracy", "task-0 FR", "task-1 accuracy", "Overall accuracy", "Overall FR", "Overall HM",
    ]  # fmt: skip
    assert comparison.rows[0].estimate("accuracy").mean == pytest.approx(
        np.mean([result.metrics["accuracy"] for result in results])
    )
    assert compare(results, "Accuracy2").metric == "accuracy@2"
    with pytest.raises(UsageError, match="Compare by accuracy or accuracy2"):
        compare(results, "r1")
    for folder in (results[0].folder, results[0].folder.parent):
        page = write_report(folder).read_text()
        assert "Result matrix: accuracy (%)" in page and "among the classes of all tasks so far" in page
        assert "R@1" not in page and "text to video" not in page


def test_a_sweep_aims_at_accuracy_and_prunes_by_it(coloured, tmp_path) -> None:
    record = {"protocol": "nearest-mean"}
    assert objectives_of(None, record) == ["accuracy"]
    assert known_objectives(record)["accuracy"] == "max"
    with pytest.raises(UsageError, match="no objective named 'R@1'"):
        objectives_of("R@1", record)
    job = job_of(coloured, tmp_path / "runs", Pictures, objectives=("accuracy",), settings={})
    reports = whole_trial(job, {"learning_rate": 1e-3})
    assert [report["task"] for report in reports] == [1, 2] and "failed" not in reports[-1]
    outcome = json.loads((Path(reports[-1]["folders"][0]) / "result.json").read_text())
    assert reports[0]["accuracy"] == outcome["validation_matrix"]["accuracy"][0][0]
    assert reports[1]["accuracy"] == pytest.approx(outcome["validation"]["accuracy"])
    assert falls_behind(reports[0]["accuracy"], [101.0] * 4, known_objectives(record)["accuracy"], 0.5, startup=2)
