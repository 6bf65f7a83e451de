"""Spaces, objectives, pruning and samplers: pure, no Ray."""

import json
import math
from pathlib import Path

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from kinoray.errors import UsageError
from kinoray.runs.method_source import find_method
from kinoray.sweeps.space import check_space, constants, distributions, load_space, space_names
from kinoray.sweeps.study import ended, falls_behind, grid, make_sampler, objectives_of, value_at

SPACE = {
    "m_hat": {"low": 0.9, "high": 1.0},
    "temperature": {"low": 0.02, "high": 0.5, "log": True},
    "queue_size": {"choices": [240, 480]},
    "epochs": {"low": 1, "high": 9, "step": 2},
    "m": 0.99,
}
BMU = find_method("bmu_moco")


def study_of(**options) -> optuna.Study:
    return optuna.create_study(direction="maximize", **options)


# Spaces


def test_a_space_becomes_optunas_and_its_plain_values_are_held() -> None:
    drawn_from = distributions(SPACE)
    assert drawn_from["m_hat"] == FloatDistribution(0.9, 1.0)
    assert drawn_from["temperature"] == FloatDistribution(0.02, 0.5, log=True)
    assert drawn_from["queue_size"] == CategoricalDistribution([240, 480])
    assert drawn_from["epochs"] == IntDistribution(1, 9, step=2)
    assert distributions({"m": {"low": 0.9, "high": 1.0, "step": 0.1}})["m"].high == 1.0, "0.1 > 1.0 - 0.9 in floats"
    assert constants(SPACE) == {"m": 0.99}
    check_space(SPACE, BMU, {})


def test_a_space_is_found_by_name_in_a_file_and_in_a_methods_own_file(tmp_path: Path) -> None:
    assert load_space(BMU)["m_hat"] == {"low": 0.9, "high": 1.0}
    assert load_space(BMU, "bmu-fig4")["m"] == 0.99
    assert "bmu-fig4" in space_names(BMU)
    (tmp_path / "mine.yaml").write_text("m_hat:\n  low: 0.5\n  high: 1.0\nm: 0.9\n")
    assert load_space(BMU, str(tmp_path / "mine.yaml")) == {"m_hat": {"low": 0.5, "high": 1.0}, "m": 0.9}
    assert load_space(BMU, ["m_hat=0.5:1", "m=0.9,0.99"]) == {
        "m_hat": {"low": 0.5, "high": 1},
        "m": {"choices": [0.9, 0.99]},
    }
    with pytest.raises(UsageError, match="`space` must be a name, a file, a dict of knobs"):
        load_space(BMU, 3)
    from kinoray.runs.method_source import methods_folder

    text = (methods_folder() / "base_moco.py").read_text()
    own = tmp_path / "own.py"
    own.write_text(text + '\nSPACE = {"m": {"low": 0.1, "high": 0.2}}\nSPACES = {"one": {"m": {"choices": [1.0]}}}\n')
    assert load_space(find_method(str(own))) == {"m": {"low": 0.1, "high": 0.2}}
    assert load_space(find_method(str(own)), "one") == {"m": {"choices": [1.0]}}
    own.write_text(text)
    with pytest.raises(UsageError, match="has no search space"):
        load_space(find_method(str(own)))
    with pytest.raises(UsageError, match=r"named 'one'\. There are none"):
        load_space(find_method(str(own)), "one")


@pytest.mark.parametrize(
    ("knob", "message"),
    [
        ({"low": 1.0, "high": 1.0}, "the range is empty"),
        ({"low": 0.9, "high": 0.1}, "the range is empty"),
        ({"low": 0.9}, "give `choices`, or both"),
        ({"choices": []}, "must be a list that is not empty"),
        ({"choices": [0.9, 0.9]}, "must be different"),
        ({"choices": [[1], [2]]}, "must be different words, numbers or booleans"),
        ({"choices": "ab"}, "must be a list"),
        ({"low": 0.0, "high": 1.0, "log": True}, "`log` needs low > 0"),
        ({"low": 0.0, "high": 1.0, "step": 2.0}, "`step` must lie above 0"),
        ({"low": 1, "high": 4, "step": 0.5}, "whole step"),
        ({"low": "1e-3", "high": 1.0}, "must be numbers"),
        ({"low": 0.0, "high": math.inf}, "must be numbers"),
        ({"low": 0.0, "high": 1.0, "sigma": 1}, "there is no key 'sigma'"),
        ({"low": 0.5, "high": 1.5}, "m_hat=1.5"),
    ],
)
def test_a_wrong_knob_is_one_line(knob: dict, message: str) -> None:
    with pytest.raises(UsageError) as error:
        check_space({"m_hat": knob}, BMU, {})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_knobs_spaces_metrics_and_samplers_name_the_nearest() -> None:
    for wrong, near in (
        (lambda: check_space({"m_hut": {"low": 0.1, "high": 0.2}}, BMU, {}), "m_hat"),
        (lambda: load_space(BMU, "bmu-fig5"), "bmu-fig4"),
        (lambda: objectives_of("HN", {"protocol": "cvlm"}), "HM"),
        (lambda: check_space({"m": 0.9}, BMU, {}), "varies nothing"),
        (lambda: check_space(SPACE, BMU, {"m": 0.5}), "is also in the space"),
        (lambda: objectives_of(["HM", "HM"], {"protocol": "cvlm"}), "must differ"),
    ):
        with pytest.raises(UsageError, match=near):
            wrong()
    assert objectives_of(None, {"protocol": "cvlm"}) == ["HM"]
    assert objectives_of(None, {"protocol": "ctvr"}) == ["R@1"]


# Pruning


def test_a_trial_is_pruned_below_the_best_share_after_the_same_task() -> None:
    others = [10.0, 20.0, 30.0, 40.0]
    assert not falls_behind(0.0, others[:3], "max", 0.5, startup=4), "too few came so far"
    assert falls_behind(15.0, others, "max", 0.5, startup=4)
    assert not falls_behind(25.0, others, "max", 0.5, startup=4), "third of five: within ceil(5 / 2)"
    assert falls_behind(35.0, others, "min", 0.5, startup=4)
    assert not falls_behind(15.0, others, "max", 1.0, startup=4)
    assert not falls_behind(40.0, [40.0] * 9, "max", 0.1, startup=4), "equal to the best is not behind"


def test_a_failure_that_is_tried_again_is_not_done() -> None:
    study = optuna.create_study()
    for state in (TrialState.COMPLETE, TrialState.FAIL, TrialState.FAIL, TrialState.PRUNED):
        trial = study.ask()
        study.tell(trial, 1.0 if state is TrialState.COMPLETE else None, state=state)
    assert ended(study.trials) == 4
    study.enqueue_trial({}, user_attrs={"retry_of": 1})
    assert ended(study.trials) == 3
    study.tell(study.ask(), 2.0)
    assert ended(study.trials) == 4


# Samplers


@pytest.mark.parametrize("kind", ["random", "qmc", "tpe"])
def test_every_value_lies_in_its_range_and_builds_a_config(kind: str) -> None:
    knobs = distributions(SPACE)
    study = study_of()
    for number in range(24):
        study.sampler = make_sampler(kind, 7, number, knobs)
        trial = study.ask(fixed_distributions=knobs)
        for name, knob in knobs.items():
            assert knob._contains(knob.to_internal_repr(trial.params[name])), (name, trial.params[name])
        study.tell(trial, trial.params["m_hat"])
    assert len({trial.params["m_hat"] for trial in study.trials}) == 24


@pytest.mark.parametrize("kind", ["random", "qmc", "tpe"])
def test_a_sweep_that_goes_on_draws_what_it_would_have_drawn(kind: str, tmp_path: Path) -> None:
    """A new process after every trial, so a new study and sampler, gives the trials of one process."""

    def drawn(path: Path, again: bool) -> list[dict]:
        storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(path)))
        knobs = distributions(SPACE)
        study = study_of(storage=storage, study_name="s", load_if_exists=True)
        for number in range(14):
            if again:
                study = study_of(storage=storage, study_name="s", load_if_exists=True)
            study.sampler = make_sampler(kind, 3, number, knobs)
            trial = study.ask(fixed_distributions=knobs)
            study.tell(trial, trial.params["temperature"])
        return [t.params for t in study.trials]

    assert drawn(tmp_path / "one", False) == drawn(tmp_path / "many", True)


def test_a_running_trial_put_back_in_the_queue_keeps_its_number_parameters_and_values(tmp_path: Path) -> None:
    from kinoray.sweeps.study import requeue

    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(tmp_path / "j")))
    study = study_of(storage=storage, study_name="s")
    knobs = distributions(SPACE)
    first = study.ask(fixed_distributions=knobs)
    first.report(1.5, 1)
    study.tell(study.ask(fixed_distributions=knobs), 2.0)
    assert requeue(study, storage) == [0]
    assert study.trials[0].state is TrialState.WAITING
    again = study.ask(fixed_distributions=knobs)
    assert (again.number, again.params) == (0, first.params)
    study.tell(again, 3.0)
    assert [t.state for t in study.trials] == [TrialState.COMPLETE] * 2
    assert study.trials[0].intermediate_values == {1: 1.5}
    assert requeue(study, storage) == []


def test_qmc_fills_a_square_more_evenly_than_random() -> None:
    knobs = {"a": FloatDistribution(0.0, 1.0), "b": FloatDistribution(0.0, 1.0)}

    def empty(kind: str) -> int:
        from kinoray.sweeps.study import unit_point

        points = np.array([unit_point(kind, 5, n, len(knobs)) for n in range(64)])
        return 64 - len({tuple(p) for p in (points * 8).astype(int)})

    assert empty("qmc") == 0 < empty("random")


def test_shares_of_a_range_become_values() -> None:
    assert value_at(FloatDistribution(0.0, 1.0, step=0.25), 0.99) == 1.0
    assert value_at(FloatDistribution(1e-4, 1.0, log=True), 0.5) == pytest.approx(1e-2)
    assert [value_at(IntDistribution(1, 3), u) for u in (0.0, 0.5, 0.999)] == [1, 2, 3]
    assert value_at(IntDistribution(1, 1000, log=True), 0.9999999) == 1000
    assert value_at(CategoricalDistribution(["a", "b"]), 0.5) == "b"


def test_a_grid_is_every_combination() -> None:
    points = grid(distributions(SPACE))
    assert len(points) == 5 * 5 * 2 * 5
    assert points[0] == {"m_hat": 0.9, "temperature": 0.02, "queue_size": 240, "epochs": 1}
    assert points[-1] == {"m_hat": 1.0, "temperature": 0.5, "queue_size": 480, "epochs": 9}
    fig4 = grid(distributions(load_space(BMU, "bmu-fig4")))
    assert [p["m_hat"] for p in fig4] == [0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0]
    with pytest.raises(UsageError, match="points"):
        grid({str(i): CategoricalDistribution(list(range(10))) for i in range(5)})
    json.dumps(points)


def test_tpe_beats_random_on_a_smooth_problem() -> None:
    """Median over 15 seeds of the best of 30 trials; the optimum is 0."""
    knobs = {name: FloatDistribution(-5.0, 5.0) for name in "abc"}

    def best(kind: str, seed: int) -> float:
        study = study_of()
        for number in range(30):
            study.sampler = make_sampler(kind, seed, number, knobs)
            trial = study.ask(fixed_distributions=knobs)
            study.tell(trial, -sum(v**2 for v in trial.params.values()))
        return study.best_value

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    assert np.median([best("tpe", s) for s in range(15)]) > np.median([best("random", s) for s in range(15)])
