"""`ucl` and `cssl` end to end on a small stream, beside plain loops over the same features."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.multiprocessing as mp
from sklearn.linear_model import LogisticRegression
from support.coloured import Pictures, coloured_stream
from support.ranks import train_two
from support.sweeps import job_of, whole_trial
from torch import Tensor

import kinoray
from kinoray.errors import BadData
from kinoray.evaluation import tester
from kinoray.evaluation.classification import PENALTY, bank_of, pictures, places_in, probe_of, ranks_among
from kinoray.evaluation.protocol import load_protocol
from kinoray.execution.rank_session import RankSession
from kinoray.method import BaseMethod
from kinoray.metrics import backward_forgetting, final_mean
from kinoray.report.page import write_report
from kinoray.report.tables import compare
from kinoray.runs.result import Result
from kinoray.streams import Stream
from kinoray.sweeps.study import objectives_of
from kinoray.testing.engine import StopAfter, digest_of_run, fresh_session, run_spec, spec_of
from kinoray.testing.small_stream import on_protocol
from kinoray.training.loop import RunState
from kinoray.training.stages import Stage

PROTOCOLS = ("ucl", "cssl")


class Columns(Pictures):
    """An encoder per task, made believe: features tell the task that they are asked for."""

    asked: list[int] = []

    def probe_features(self, video: Tensor, task_index: int) -> Tensor:
        self.asked.append(task_index)
        return super().probe_features(video, task_index) * (task_index + 1)


@pytest.fixture(params=PROTOCOLS)
def coloured(request: pytest.FixtureRequest, tmp_path: Path) -> Stream:
    return coloured_stream(tmp_path, request.param)


def learned(stream: Stream, folder: Path, seed: int = 0, **options) -> Result:
    result = kinoray.run(Pictures, stream=stream, num_workers=0, runs=folder, seed=seed, quiet=True, **options)
    assert isinstance(result, Result) and result.state == "finished"
    return result


def session_of(protocol: str, folder: Path, method: type[BaseMethod] = Pictures, **settings) -> RankSession:
    """Untrained, before its first step."""
    return fresh_session(spec_of(method, coloured_stream(folder, protocol), folder, settings=settings))


def features_of(session: RankSession, task: int, split: str) -> tuple[Tensor, np.ndarray]:
    """Features of unit norm, and classes."""
    clips = session.tester.embed(task, split, session.method.encoder().features)
    return torch.nn.functional.normalize(clips.features, dim=1), session.tester.labels(clips)


def share_told(queries, banks, k: int, temperature: float = 0.1) -> float:
    """Accuracy in percent by votes, one picture at a time."""
    bank = torch.cat([features for features, _ in banks])
    classes = np.concatenate([labels for _, labels in banks])
    right = []
    for feature, label in zip(*queries, strict=True):
        cosines = (bank @ feature).tolist()
        score = Counter()
        for place in sorted(range(len(cosines)), key=lambda place: -cosines[place])[:k]:
            score[int(classes[place])] += math.exp(cosines[place] / temperature)
        right.append(score.most_common(1)[0][0] == label)
    return 100 * float(np.mean(right))


# Numbers


@pytest.mark.parametrize("bank", ["task", "all"])
def test_ucl_votes_as_plain_loops_do_in_both_readings(bank: str, tmp_path: Path) -> None:
    session = session_of("ucl", tmp_path, knn_k=5, knn_bank=bank)
    banks = {task: features_of(session, task, "train") for task in (0, 1)}
    for stage in session.spec.stages:
        tested = session.protocol.test(session.tester, stage, "test")
        for task in stage.tests:
            among = [banks[task]] if bank == "task" else [banks[other] for other in stage.tests]
            queries = features_of(session, task, "test")
            assert set(tested[""][task].gallery) == {2 * len(among)}, "candidates are the classes of the bank"
            for reading, k in (("", 5), ("released", len(stage.tests))):
                assert tested[reading][task].score(1) == pytest.approx(share_told(queries, among, k))


def test_validation_votes_among_the_tasks_own_training_pictures(tmp_path: Path) -> None:
    for protocol in PROTOCOLS:
        (folder := tmp_path / protocol).mkdir()
        session = session_of(protocol, folder, knn_k=3)
        expected = share_told(features_of(session, 1, "validation"), [features_of(session, 1, "train")], 3)
        assert session.protocol.validate(session.tester, 1).score(1) == pytest.approx(expected)


def test_cssl_probes_all_classes_so_far_and_lets_neighbours_vote_beside(tmp_path: Path) -> None:
    session = session_of("cssl", tmp_path, knn_k=4)
    for stage in session.spec.stages:
        tested = session.protocol.test(session.tester, stage, "test")
        clips = {
            split: [pictures(session.tester, task, split, 0, "features") for task in stage.tests]
            for split in ("train", "test")
        }
        bank = bank_of(session.tester, clips["train"])
        probe = probe_of(session.tester, bank)
        inputs = [((part.features - probe.mean) / probe.deviation).double().numpy() for part in clips["test"]]
        train = ((bank.features - probe.mean) / probe.deviation).double().numpy()
        theirs = LogisticRegression(C=1 / PENALTY, tol=1e-9, max_iter=1000).fit(train, bank.places)
        banks = [features_of(session, task, "train") for task in stage.tests]
        for task, queries in zip(stage.tests, inputs, strict=True):
            truth = places_in(session.tester, bank, clips["test"][task])
            assert tested[""][task].score(1) == pytest.approx(100 * theirs.score(queries, truth))
            expected = share_told(features_of(session, task, "test"), banks, 4)
            assert tested["knn"][task].score(1) == pytest.approx(expected)
            assert set(tested[""][task].gallery) == set(tested["knn"][task].gallery) == {2 * len(stage.tests)}


def test_neighbours_may_be_those_of_the_space_that_the_loss_acts_in(tmp_path: Path) -> None:
    class Headed(Pictures):
        def embed_video(self, video: Tensor, task_index: int) -> Tensor:
            return self.head(self.encoder().embed_video(video))

    for protocol, reading in (("ucl", ""), ("cssl", "knn")):
        (folder := tmp_path / protocol).mkdir()
        session = session_of(protocol, folder, Headed, knn_space="embedding", knn_k=3)
        near = [session.tester.gallery(0, split, 0) for split in ("test", "train")]
        queries, bank = (
            (torch.nn.functional.normalize(part.features, dim=1), session.tester.labels(part)) for part in near
        )
        assert queries[0].shape[1] == 8
        tested = session.protocol.test(session.tester, session.spec.stages[0], "test")
        assert tested[reading][0].score(1) == pytest.approx(share_told(queries, [bank], 3))


@pytest.mark.parametrize(
    ("protocol", "bank", "asked"),
    [("ucl", "task", {0, 1}), ("ucl", "all", {1}), ("cssl", "task", {1})],
)
def test_encoders_per_task_are_asked_for_their_own_task_where_it_is_known(protocol, bank, asked, tmp_path) -> None:
    session = session_of(protocol, tmp_path, Columns, knn_bank=bank)
    Columns.asked.clear()
    session.protocol.test(session.tester, session.spec.stages[1], "test")
    assert set(Columns.asked) == asked


def test_a_class_without_training_pictures_comes_last_and_is_never_told(tmp_path: Path) -> None:
    session = session_of("ucl", tmp_path)
    bank = bank_of(session.tester, [pictures(session.tester, 0, "train", 0, "features")])
    queries = pictures(session.tester, 1, "test", 1, "features")
    places = places_in(session.tester, bank, queries)
    assert places.tolist() == [2] * 8
    ranks = ranks_among(torch.rand(8, 2), places)
    assert ranks.middle.tolist() == [2.0] * 8 and ranks.gallery.tolist() == [3] * 8 and ranks.score(1) == 0
    probe = probe_of(session.tester, bank)
    assert probe.logits(queries.features).shape == (8, 2)


def test_a_picture_without_a_label_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of("ucl", tmp_path)
    bank = bank_of(session.tester, [pictures(session.tester, 0, "train", 0, "features")])
    queries = pictures(session.tester, 0, "test", 0, "features")
    monkeypatch.delitem(session.reader.classes, "green")
    with pytest.raises(BadData, match="The test picture 'test-4' of task 'task-0' has no label"):
        places_in(session.tester, bank, queries)


def test_a_training_picture_without_a_label_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of("ucl", tmp_path)
    train = pictures(session.tester, 0, "train", 0, "features")
    monkeypatch.delitem(session.reader.classes, "green")
    with pytest.raises(BadData, match="'task-0/train-6' has no label"):
        bank_of(session.tester, [train])


# Whole runs


def test_each_split_is_embedded_once_after_each_task(coloured: Stream, tmp_path: Path, monkeypatch) -> None:
    calls: Counter = Counter()
    embed, evaluate = tester.Tester.embed, RankSession.evaluate
    row: list[int] = []

    def evaluating(session: RankSession, stage: Stage, state: RunState) -> bool:
        row.append(stage.row)
        done = evaluate(session, stage, state)
        row.pop()
        return done

    def embedding(self: tester.Tester, task: int, split: str, *rest) -> tester.Clips:
        calls.update((after, task, split) for after in row)
        return embed(self, task, split, *rest)

    monkeypatch.setattr(RankSession, "evaluate", evaluating)
    monkeypatch.setattr(tester.Tester, "embed", embedding)
    assert run_spec(spec_of(Pictures, coloured, tmp_path / "runs"))
    splits = ("train", "validation", "test")
    assert calls == {(after, task, split): 1 for after in (0, 1) for task in range(after + 1) for split in splits}


def test_a_run_fills_matrix_readings_and_metrics(coloured: Stream, tmp_path: Path) -> None:
    result, protocol = learned(coloured, tmp_path / "runs"), load_protocol(coloured.protocol)
    reading = protocol.readings[1]
    assert result.matrix.notna().to_numpy().tolist() == [[True, False], [True, True]]
    assert result.metrics["accuracy"] > 60, "colours are told apart"
    other = result.matrix_of(f"{reading}/accuracy").to_numpy()
    assert result.metrics[f"accuracy_{reading}"] == pytest.approx(final_mean(other)), "tasks are of one size"
    assert result.metrics[f"BWF_{reading}"] == pytest.approx(backward_forgetting(other))
    assert result.metrics["BWF"] == pytest.approx(result.matrix.iloc[0, 0] - result.matrix.iloc[1, 0])
    assert set(result.metrics) == set(protocol.metrics) and set(protocol.headlines) <= set(protocol.metrics)
    table = result.ranks
    assert table.groupby(["reading", "after_task"]).size().to_dict() == {
        (r, row): 8 * (row + 1) for r in protocol.readings for row in (0, 1)
    }
    assert set(table["clip_id"]) == {f"test-{item}" for item in range(8)} and set(table["sample"]) == set(range(8))
    assert "accuracy" in repr(result) and "R@1" not in repr(result) + result._repr_html_()


@pytest.mark.parametrize("kind", [{"joint": True}, {"zero_shot": True}])
def test_joint_training_and_zero_shot_are_tested_too(kind, coloured: Stream, tmp_path: Path) -> None:
    result = learned(coloured, tmp_path / "runs", **kind)
    assert result.matrix.notna().to_numpy().tolist() == [[False, False], [True, True]]
    assert result.metrics["BWF"] is None and result.metrics["accuracy"] is not None


def test_an_evaluation_that_was_stopped_goes_on_to_the_same_end(coloured: Stream, tmp_path: Path) -> None:
    whole, broken = (spec_of(Pictures, coloured, tmp_path / name) for name in ("whole", "broken"))
    assert run_spec(whole)
    for looks in (5, 2, 3, 1):
        assert not run_spec(broken, StopAfter(broken.folder, looks))
    assert run_spec(broken)
    assert digest_of_run(broken) == digest_of_run(whole)


@pytest.mark.slow
def test_two_ranks_fill_the_readings_as_one_does(tmp_path: Path) -> None:
    for name in ("alone", "both"):
        (tmp_path / name).mkdir()
    streams = [coloured_stream(tmp_path / "alone", "ucl")]
    streams.append(on_protocol(streams[0], "cssl"))
    alone, both = (
        [spec_of(Pictures, stream, tmp_path / name / stream.protocol, zero_shot=True) for stream in streams]
        for name in ("alone", "both")
    )
    assert all(run_spec(spec) for spec in alone)
    mp.spawn(train_two, (str(tmp_path), both), nprocs=2)
    for one, two in zip(alone, both, strict=True):
        assert digest_of_run(one) == digest_of_run(two)


def test_tables_and_pages_speak_of_accuracy(coloured: Stream, tmp_path: Path) -> None:
    results = [learned(coloured, tmp_path / "runs", seed) for seed in (0, 1)]
    protocol = load_protocol(coloured.protocol)
    comparison = compare(results)
    expected = ["task-0 accuracy", "task-1 accuracy"]
    expected += [f"Overall {name}" for name in protocol.overall_columns("accuracy")]
    assert [f"{column.group} {column.name}" for column in comparison.columns] == expected
    for name in protocol.overall_columns("accuracy"):
        mean = np.mean([result.metrics[name] for result in results])
        assert comparison.rows[0].estimate(f"{name}").mean == pytest.approx(mean)
    page = write_report(results[0].folder).read_text()
    assert "Result matrix: accuracy (%)" in page and protocol.about in page and "R@1" not in page


def test_a_sweep_aims_at_accuracy(coloured: Stream, tmp_path: Path) -> None:
    assert objectives_of(None, {"protocol": coloured.protocol}) == ["accuracy"]
    job = job_of(coloured, tmp_path / "runs", Pictures, objectives=("accuracy",), settings={})
    reports = whole_trial(job, {"learning_rate": 1e-3})
    assert [report["task"] for report in reports] == [1, 2] and "failed" not in reports[-1]
