"""Whether a stream can judge: the script's conditions hold, and fail, where a plain look at the scores says so."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support.places import REPOSITORY, load_script

from kinoray.streams import moving_ctvr

conditions = load_script(REPOSITORY / "benchmarks" / "conditions.py")


def run(matrix: list[list[float]], gallery: int = 50, **metrics: float) -> Any:
    """What the script asks of a finished run of two tasks."""
    ranks = [(1, task, gallery, "") for task in range(2) for _ in range(3)] + [(0, 0, 7, "")]
    return SimpleNamespace(
        matrix=pd.DataFrame(matrix),
        ranks=pd.DataFrame(ranks, columns=["after_task", "task", "gallery", "reading"]),
        metrics=metrics,
        tasks=["a", "b"],
    )


def broken(lines: list[tuple[str, str, bool]]) -> list[str]:
    """The conditions that do not hold."""
    return [words for words, _, holds in lines if not holds]


def twice(rows: dict[str, Any]) -> dict[str, Any]:
    """The same run for each of two splits and seeds."""
    return {name: [[made, made], [made, made]] for name, made in rows.items()}


def test_forgetting_is_the_share_of_what_each_task_but_the_last_had() -> None:
    matrix = [[40.0, np.nan], [30.0, 60.0]]
    assert conditions.forgotten(run(matrix)) == pytest.approx(25.0)
    assert conditions.largest_loss(run(matrix)) == pytest.approx(100.0), "the last task has lost nothing yet"


def test_zero_shot_is_measured_in_chances_of_the_last_galleries() -> None:
    assert conditions.above_chance(run([[20.0, np.nan], [20.0, 10.0]], gallery=50)).tolist() == [10.0, 5.0]


@pytest.mark.parametrize(
    ("joint", "half", "fails"),
    [
        (60.0, 51.0, []),
        (52.0, 51.0, ["joint training above final by at least 8"]),
        (60.0, 56.0, ["HM moves by less than 3 at half the rate"]),
    ],
)
def test_a_stream_that_drifts_meets_its_conditions(joint: float, half: float, fails: list[str]) -> None:
    base = run([[60.0, np.nan], [40.0, 60.0]], **{"R@1": 50.0, "R@1_current": 60.0, "HM": 55.0})
    rows = {
        "base": base,
        "joint": run([[joint, np.nan], [joint, joint]], **{"R@1": joint}),
        "zero-shot": run([[30.0, np.nan], [30.0, 30.0]], **{"R@1": 30.0}),
        "rate/2": run([[50.0, np.nan], [half, half]], **{"R@1": half, "HM": half + 5.0}),
    }
    assert broken(conditions.of_moving_cvlm(twice(rows))) == fails


def test_a_stream_whose_zero_shot_is_as_good_as_learning_has_no_ground() -> None:
    base = run([[60.0, np.nan], [40.0, 60.0]], **{"R@1": 50.0, "R@1_current": 60.0, "HM": 55.0})
    joint = run([[70.0, np.nan], [70.0, 70.0]], **{"R@1": 70.0})
    runs = twice({"base": base, "joint": joint, "zero-shot": base, "rate/2": base})
    assert "zero-shot at most 0.8 of R@1 when learned" in broken(conditions.of_moving_cvlm(runs))


@pytest.mark.parametrize(
    ("joint", "order", "fails"),
    [
        (40.0, 70.0, []),
        (33.0, 70.0, ["joint above order-blind"]),
        (40.0, 60.0, ["order of joint at least 65"]),
        (60.0, 70.0, ["zero-shot at least 60 % of joint"]),
        (
            24.0,
            70.0,
            ["joint above an oracle that reads no event", "joint above order-blind", "joint above first-frame"],
        ),
    ],
)
def test_events_must_be_read_and_their_order_seen(monkeypatch, joint: float, order: float, fails: list[str]) -> None:
    monkeypatch.setattr(conditions, "reads_no_event", lambda made: 25.0)
    matrix = [[0.0, np.nan], [0.0, 0.0]]
    rows = {"zero-shot": run(matrix, **{"R@1": 26.0}), "order-blind": run(matrix, **{"R@1": 35.0})}
    rows["first-frame"] = run(matrix, **{"R@1": 30.0})
    rows["joint"] = run(matrix, **{"R@1": joint, "R@1_what": 55.0, "R@1_order": order})
    assert set(broken(conditions.of_moving_ctvr(twice(rows)))) == {*fails, "at least 1,000 queries"}


def test_who_reads_no_event_draws_among_the_videos_that_fit(monkeypatch, tmp_path: Path) -> None:
    """Of a look's two pairs each scene has four videos."""
    stream = moving_ctvr.build("small", 10, 1, clips=(2, 1, 4), cache=tmp_path, progress=False, processes=1)
    monkeypatch.setattr(conditions, "load_stream", lambda name: stream)
    assert conditions.reads_no_event(SimpleNamespace(stream="small")) == pytest.approx(25.0)


def test_what_is_blind_to_order_must_stay_at_chance() -> None:
    def scored(accuracy: float) -> Any:
        return run([[0.0, np.nan], [0.0, 0.0]], accuracy=accuracy)

    rows = {"base": 95.0, "from-scratch": 80.0, "base, at rest": 70.0, "random-encoder": 50.0, "labels": 82.0}
    rows["order-blind"] = 51.0
    runs = {name: [[scored(value)]] for name, value in rows.items()}
    assert not broken(conditions.of_ssl(runs))
    runs["order-blind"] = [[scored(60.0)]]
    assert broken(conditions.of_ssl(runs)) == ["with labels, without order 48 to 52"]


@pytest.mark.parametrize(
    ("random", "half", "fails"),
    [
        (35.0, 49.0, []),
        (36.0, 49.0, ["a random encoder at least 15 points below joint"]),
        (35.0, 47.5, ["joint gains less than 2 points by its last doubling of epochs"]),
    ],
)
def test_pictures_must_be_learned_and_learned_to_the_end(random: float, half: float, fails: list[str]) -> None:
    rows = {"joint": 50.0, "random-encoder": random, "half the epochs": half}
    runs = {name: [[run([[0.0, np.nan], [0.0, 0.0]], accuracy=value)]] for name, value in rows.items()}
    assert broken(conditions.of_pictures("accuracy")(runs)) == fails
