"""The protocol `classification`: ranks of the right class among a classifier's own logits."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support.coloured import coloured_stream

import kinoray
from kinoray.evaluation.protocols.classification import right_class
from kinoray.runs.reopen import recorded_request
from kinoray.runs.resolve import resolve
from kinoray.sweeps.plan import make_plan
from kinoray.sweeps.request import SweepRequest


@pytest.fixture
def coloured(tmp_path: Path):
    return coloured_stream(tmp_path, "cvlm")


def learned(stream, runs: Path, **options):
    return kinoray.run("classify", stream=stream, num_workers=0, runs=runs, quiet=True, **options)


LOGITS = torch.tensor([[3.0, 2.0, 1.0], [0.0, 5.0, 1.0], [1.0, 2.0, 0.0]])


def test_the_right_class_is_ranked_among_all_or_some() -> None:
    labels = np.array([0, 2, 0])
    assert right_class(LOGITS, labels).middle.tolist() == [0, 1, 1]
    own = right_class(LOGITS, labels, among=[0, 2])
    assert own.middle.tolist() == [0, 0, 0] and own.gallery.tolist() == [2, 2, 2]


def test_a_class_without_a_logit_comes_last() -> None:
    ranks = right_class(LOGITS, np.array([1, 7, -1]))
    assert ranks.middle.tolist() == [1, 3, 3] and ranks.score(3) == pytest.approx(100 / 3)


def test_a_classifier_brings_its_protocol_to_any_stream(coloured, tmp_path) -> None:
    result = learned(coloured, tmp_path / "runs")
    assert coloured.protocol == "cvlm" and result.protocol.name == "classification" == result.run["protocol"]
    galleries = result.ranks.groupby(["reading", "after_task"])["gallery"].unique().map(list).to_dict()
    assert galleries == {("", 0): [2], ("", 1): [4], ("own", 0): [2], ("own", 1): [2]}
    assert result.metrics["accuracy"] == pytest.approx(result.matrix.iloc[-1].mean())
    again = resolve(recorded_request(result), result.seed)
    assert again.folder == result.folder and again.stream.protocol == "classification"


def test_joint_training_is_one_task_over_all_classes(coloured, tmp_path) -> None:
    result = learned(coloured, tmp_path / "runs", joint=True, settings={"max_steps": 0, "epochs": 30})
    assert set(result.ranks[result.ranks["reading"] == ""]["gallery"]) == {4}
    assert result.metrics["accuracy"] > 60, "colours are told apart"


def test_the_accuracy_is_that_of_the_logits(coloured, tmp_path) -> None:
    result = learned(coloured, tmp_path / "runs")
    opened = kinoray.open_method(result)
    right = []
    for number, task in enumerate(coloured.tasks):
        pictures = np.load(Path(task.manifest).parent / "test.npy")
        view = opened.reader.test_view(pictures[:, None])
        labels = np.repeat([2 * number, 2 * number + 1], 4)
        with torch.inference_mode():
            # A task's classes are numbered in the order of their names.
            names = sorted(["red", "green"] if number == 0 else ["blue", "grey"])
            order = [names.index(name) for name in (["red", "green"] if number == 0 else ["blue", "grey"])]
            labels = np.repeat([2 * number + place for place in order], 4)
            right.append((opened.method.embed_video(view, number).argmax(dim=1).numpy() == labels).mean())
    assert result.matrix.iloc[-1].tolist() == pytest.approx([100 * share for share in right])


def test_logits_of_the_runs_of_a_clip_are_averaged(micro, tmp_path) -> None:
    runs = {"test_sampling": "consecutive", "test_frames": 6, "test_clips": 3, "frames": 2, "max_steps": 1}
    result = learned(micro, tmp_path / "runs", settings=runs)
    opened = kinoray.open_method(result)
    clips = torch.randn(2, 6, 3, 32, 32)
    from kinoray.evaluation.protocols.classification import logits_of

    class OneSplit:
        """Stands for a tester whose split holds these clips."""

        reader, method = opened.reader, opened.method

        def embed(self, task, split, embed, trained):
            return embed(clips)

    with torch.inference_mode():
        logits = logits_of(OneSplit(), 0, "test", 0)  # type: ignore[arg-type]
        each = [opened.method.embed_video(clips[:, start : start + 2], 0) for start in (0, 2, 4)]
    assert torch.allclose(logits, torch.stack(each).mean(dim=0), atol=1e-6)  # type: ignore[arg-type]


def test_a_sweep_of_a_classifier_aims_at_accuracy(coloured, tmp_path) -> None:
    plan = make_plan(SweepRequest("classify", stream=coloured, space="probe", runs=tmp_path / "runs"))
    assert plan.record["protocol"] == "classification" and plan.record["objectives"] == ["accuracy"]
