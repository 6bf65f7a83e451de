"""What makes two sweeps equal, and the simulation of TPE against random search on a table."""

import json
from itertools import product
from types import ModuleType

import pytest
from support.places import REPOSITORY, load_script

from kinoray.sweeps.result import SweepResult
from kinoray.sweeps.space import distributions
from kinoray.sweeps.study import axis_of
from kinoray.sweeps.sweep import sweep


@pytest.fixture(scope="module")
def tpe() -> ModuleType:
    return load_script(REPOSITORY / "benchmarks" / "tpe.py")


def hill(tpe: ModuleType) -> dict[tuple[float, ...], dict[str, float]]:
    """A made-up table: one top at m = 0.95, m_hat = 0.98."""
    axes = [axis_of(knob) for knob in distributions(tpe.SPACE).values()]
    return {
        tpe.key_of({"m": m, "m_hat": m_hat}, tpe.SPACE): {
            "m": m, "m_hat": m_hat, "validation_HM": -abs(m - 0.95) - abs(m_hat - 0.98), "test_HM": m,
        }
        for m, m_hat in product(*axes)
    }  # fmt: skip


def test_a_simulated_sweep_is_the_same_twice_and_tells_what_it_tried(tpe) -> None:
    table = hill(tpe)
    assert len(table) == 30
    for sampler in ("tpe", "random"):
        first, again, other = (tpe.simulate(table, tpe.SPACE, sampler, seed, 14) for seed in (3, 3, 4))
        assert first == again != other
        assert all(point in table.values() for point in first)


def test_the_numbers_are_those_of_the_points_that_were_tried(tpe, monkeypatch) -> None:
    table = {(x,): {"validation_HM": x, "test_HM": 10 * x} for x in (0.0, 1.0, 2.0, 4.0)}
    draws = {"tpe": [0.0, 2.0, 1.0, 4.0, 0.0], "random": [1.0, 2.0, 2.0, 2.0, 2.0]}
    monkeypatch.setattr(tpe, "CHECKPOINTS", (1, 2, 5))
    monkeypatch.setattr(tpe, "simulate", lambda t, space, kind, seed, n: [t[x,] for x in draws[kind]][:n])
    compared = tpe.compare(table, {}, 5, 2)
    assert [compared[f"tpe_wins_after_{n}"] for n in (1, 2, 5)] == [0.0, 0.5, 1.0]
    assert [compared[f"tpe_share_after_{n}"] for n in (1, 2, 5)] == [0.0, 0.5, 1.0]
    assert [compared[f"random_HM_after_{n}"] for n in (1, 2, 5)] == [1.0, 2.0, 2.0]
    assert [compared[f"tpe_test_HM_after_{n}"] for n in (1, 2, 5)] == [0.0, 20.0, 40.0]


def test_tpe_climbs_a_single_hill_faster_than_random_draws(tpe) -> None:
    compared = tpe.compare(hill(tpe), tpe.SPACE, 30, 12)
    assert compared["tpe_share_after_30"] > compared["random_share_after_30"]
    assert compared["tpe_wins_after_30"] > 0.5


def test_the_measured_table_covers_the_grid_and_says_how_it_was_made(tpe) -> None:
    if not tpe.TABLE.exists():
        pytest.skip("not measured yet: python benchmarks/tpe.py --measure")
    record = json.loads(tpe.TABLE.read_text())
    assert record["space"] == tpe.SPACE and record["settings"] == tpe.SETTINGS
    assert tpe.table_of(record).keys() == hill(tpe).keys()
    assert {"command", "versions", "threads", "cpu"} <= record.keys()
    scores = {point["validation_HM"] for point in record["points"]}
    assert len(scores) > 10 and all(0 < score < 100 for score in scores)


@pytest.mark.ray
@pytest.mark.slow
def test_the_same_sweep_with_one_trial_at_a_time_is_the_same_twice(cluster, micro, tmp_path, monkeypatch) -> None:
    """Beyond the random start of TPE, with pruning: settings, states, values after each task, weights."""
    monkeypatch.setattr("kinoray.sweeps.study.STARTUP", 3)
    swept: list[SweepResult] = [
        sweep("bmu_moco", stream=micro, trials=7, space="momenta", settings={"queue_size": 16}, concurrent=1,
              runs=tmp_path / place, name="s", quiet=True) for place in ("one", "two")
    ]  # fmt: skip
    first, second = ([(t.params, t.state, t.values, t.intermediate_values) for t in result.trials] for result in swept)
    assert first == second and len(first) == 7
    assert swept[0].states["pruned"], "nothing was pruned"
    digests = [[run.outcome["state_digest"] for t in result.complete for run in result.trial(t.number).runs]
               for result in swept]  # fmt: skip
    assert digests[0] == digests[1] and len(digests[0]) == swept[0].states["complete"]
