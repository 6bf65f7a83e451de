"""Every search space fits the Config it explores."""

from typing import Any

import pytest

from kinoray.config import build, names_of
from kinoray.method_source import find_method, method_names


def space_of(name: str) -> dict[str, dict[str, Any]]:
    from importlib import import_module

    return import_module(f"kinoray.search_spaces.{name}").SPACE


def ends(knob: dict[str, Any]) -> list[Any]:
    """The extreme values of a knob."""
    return list(knob["choices"]) if "choices" in knob else [knob["low"], knob["high"]]


@pytest.mark.parametrize("name", method_names())
def test_every_knob_is_a_setting_whose_extremes_are_allowed_and_whose_default_lies_inside(name: str) -> None:
    config = find_method(name).load().Config
    defaults = config()
    for key, knob in space_of(name).items():
        assert key in names_of(config)
        assert set(knob) <= {"low", "high", "log", "choices"}
        for value in ends(knob):
            build(config, {key: value}, name)
        default = vars(defaults)[key]
        assert default in knob["choices"] if "choices" in knob else knob["low"] <= default <= knob["high"]


def test_bmu_explores_at_least_what_the_paper_did() -> None:
    space = space_of("bmu_moco")
    for momentum in ("m", "m_hat"):
        assert (space[momentum]["low"], space[momentum]["high"]) == (0.9, 1.0)  # Fig. 4
