"""Every search space fits the Config it explores."""

from importlib import import_module
from typing import Any

import pytest

from kinoray.config import Recipe, build, names_of, split_overrides
from kinoray.runs.method_source import MethodSource, find_method, method_names, with_learner
from kinoray.sweeps.space import check_space, distributions, load_space
from kinoray.sweeps.study import make_sampler


def spaces_of(name: str) -> dict[str, dict[str, Any]]:
    """The method's space and its named ones."""
    module = import_module(f"kinoray.search_spaces.{name}")
    return {"SPACE": module.SPACE} | getattr(module, "SPACES", {})


def runnable(name: str) -> MethodSource:
    """The method, a rule with the learner that it wraps by default under the first protocol that it suits."""
    source = find_method(name)
    return with_learner(source, (source.load().suits or ("cvlm",))[0])


ALL = [(method, space) for method in method_names() for space in spaces_of(method)]


@pytest.mark.parametrize(("name", "space"), ALL)
def test_every_knob_is_a_setting_whose_extremes_are_allowed(name: str, space: str) -> None:
    knobs, method = spaces_of(name)[space], runnable(name)
    assert set(knobs) <= set(names_of(method.load().Config)) | set(names_of(Recipe))
    check_space(load_space(method, None if space == "SPACE" else space), method, {})


@pytest.mark.parametrize("name", method_names())
def test_the_default_lies_in_the_methods_space(name: str) -> None:
    defaults = vars(find_method(name).load().Config())
    for key, knob in spaces_of(name)["SPACE"].items():
        inside = defaults[key] in knob["choices"] if "choices" in knob else knob["low"] <= defaults[key] <= knob["high"]
        assert inside, key


@pytest.mark.parametrize(("name", "space"), ALL)
def test_what_is_drawn_builds_a_config(name: str, space: str) -> None:
    config = runnable(name).load().Config
    chosen = spaces_of(name)[space]
    knobs = distributions(chosen)
    held = {key: value for key, value in chosen.items() if key not in knobs}
    for number in range(8):
        drawn = make_sampler("qmc", 0, number, knobs).sample_relative(None, _Numbered(number), knobs)  # type: ignore[arg-type]
        given = split_overrides(held | drawn, {name: config, "the recipe": Recipe})
        build(config, given[name], name)
        build(Recipe, given["the recipe"], "the recipe")


class _Numbered:
    """All that a point sampler asks of a trial."""

    def __init__(self, number: int) -> None:
        self.number = number


def test_bmu_explores_at_least_what_the_paper_did() -> None:
    space = spaces_of("bmu_moco")["SPACE"]
    for momentum in ("m", "m_hat"):
        assert (space[momentum]["low"], space[momentum]["high"]) == (0.9, 1.0)  # Fig. 4


def test_figure_4_varies_m_hat_alone_over_the_values_that_the_paper_names() -> None:
    figure = spaces_of("bmu_moco")["bmu-fig4"]
    assert list(distributions(figure)) == ["m_hat"]
    assert {0.9, 0.99, 0.999, 1.0} <= set(figure["m_hat"]["choices"])
    assert figure["m"] == 0.99
