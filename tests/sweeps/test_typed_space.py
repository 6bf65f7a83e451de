"""Search spaces as they are typed on the command line."""

from typing import Any

import pytest

from kinoray.errors import UsageError
from kinoray.sweeps.space import distributions, typed_space


@pytest.mark.parametrize(
    ("word", "knob"),
    [
        ("m_hat=0.9:1", {"low": 0.9, "high": 1}),
        ("rate=1e-4:1e-2:log", {"low": 1e-4, "high": 1e-2, "log": True}),
        ("size=240:960:240", {"low": 240, "high": 960, "step": 240}),
        ("variant=full,local", {"choices": ["full", "local"]}),
        ("epochs=1,2.5", {"choices": [1, 2.5]}),
    ],
)
def test_a_knob_is_a_range_or_choices(word: str, knob: dict[str, Any]) -> None:
    name = word.partition("=")[0]
    space = typed_space([word], []).space
    assert space == {name: knob} and list(distributions({name: knob})) == [name]


def test_several_values_of_a_setting_make_a_grid_and_the_others_are_held() -> None:
    typed = typed_space([], ["m_hat=0.9,0.99", "epochs=3", "jitter=[0.2,0.2,0.2,0.02]", "words='a,b'"])
    assert typed.space == {"m_hat": {"choices": [0.9, 0.99]}} and typed.is_grid
    assert typed.settings == {"epochs": 3, "jitter": [0.2, 0.2, 0.2, 0.02], "words": "a,b"}


def test_a_range_among_the_knobs_is_no_grid() -> None:
    assert not typed_space(["m=0.9:1"], ["m_hat=0.9,0.99"]).is_grid


def test_a_name_or_nothing_is_passed_on() -> None:
    assert typed_space(["momenta"], []).space == "momenta" and typed_space([], []).space is None
    assert not typed_space([], []).is_grid


@pytest.mark.parametrize(
    ("spaces", "settings", "message"),
    [
        (["momenta", "m=0:1"], [], "momenta is a whole space"),
        (["momenta", "budget"], [], "momenta is a whole space"),
        (["momenta"], ["m=0.9,0.99"], "momenta is a whole space"),
        (["m=0:1", "m=0.9,1"], [], "m is given twice"),
        (["m=0.9"], [], "give a range, like m=0.9:1"),
        ([], ["m"], "must be name=value"),
    ],
)
def test_what_means_nothing_is_refused(spaces: list[str], settings: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        typed_space(spaces, settings)
