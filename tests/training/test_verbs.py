"""What a verb gives back wrongly is named in one line: the verb, what came, what is expected."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from kinoray.errors import RunFailed, UsageError
from kinoray.method import Needs, ParamGroup, StepOutput, trainable
from kinoray.training.verbs import (
    checked_features,
    checked_groups,
    checked_needs,
    checked_output,
    checked_scores,
    checked_selection,
)

LAYER = nn.Linear(2, 1, bias=False)
LOSS = LAYER.weight.sum()
ROWS = torch.zeros(4, 3)


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (LOSS, "`loss` returned a tensor of shape (); expected is a StepOutput"),
        (None, "`loss` returned None; expected is a StepOutput"),
        (StepOutput({"b": LOSS}), "objectives named ['b']; expected is one per parameter group: ['a']"),
        (StepOutput(LAYER.weight * 1), "a tensor of shape (1, 2) as an objective; expected is a scalar"),
        (StepOutput(0.5), "a float as an objective; expected is a scalar tensor"),
        (StepOutput({"a": LOSS.detach()}), "objective 'a' without a gradient"),
        (StepOutput(LOSS, log={"x": 1.0}), "a float to log as 'x'"),
        (StepOutput(LOSS, carry={"k": ROWS * LOSS}), "carry 'k' with a gradient; expected is a detached tensor"),
        (StepOutput(LOSS, carry={"k": ROWS[:3]}), "carry 'k' of shape (3, 3); expected is 4 or 6 rows"),
        (StepOutput(LOSS, carry={"k": torch.tensor(1.0)}), "carry 'k' of shape (); expected is 4 or 6 rows"),
        (StepOutput(LOSS, carry={"k": [1]}), "a list as carry 'k'"),
    ],
)
def test_a_wrong_output_of_loss_is_named(output, line: str) -> None:
    with pytest.raises(RunFailed, match=re.escape(line)):
        checked_output(output, ["a"], {4, 6})


def test_a_right_output_of_loss_passes_as_it_is() -> None:
    for objectives in (LOSS, {"a": LOSS}, {"a": None}):
        output = StepOutput(objectives, log={"x": torch.tensor(1.0)}, carry={"k": ROWS})
        assert checked_output(output, ["a"], {4}) is output


@pytest.mark.parametrize(
    ("groups", "line"),
    [
        (list(LAYER.parameters()), "`param_groups` returned a list; expected is a dict of ParamGroup"),
        ({"a": LAYER}, "a Linear as group 'a'; expected is a ParamGroup"),
        ({"a": ParamGroup(list(LAYER.parameters()))}, "a list as parameters of 'a'; expected is a dict"),
        ({"a": ParamGroup({"w": LOSS})}, "a tensor of shape () as 'w' of group 'a'; expected is an nn.Parameter"),
    ],
)
def test_wrong_groups_are_named(groups, line: str) -> None:
    with pytest.raises(RunFailed, match=re.escape(line)):
        checked_groups(groups)
    right = {"a": trainable(LAYER, "a")}
    assert checked_groups(right) is right


@pytest.mark.parametrize(
    ("ids", "line"),
    [
        (None, "`end_task` returned None; expected is the ids"),
        (torch.arange(3), "`end_task` returned a tensor of shape (3,)"),
        ([torch.tensor(1)], "a list with a tensor of shape (); expected is whole numbers"),
        ([1.0], "a list with a float"),
    ],
)
def test_a_wrong_selection_is_named(ids, line: str) -> None:
    with pytest.raises(RunFailed, match=re.escape(line)):
        checked_selection(ids)
    assert checked_selection(np.arange(3)) == checked_selection((0, 1, 2)) == [0, 1, 2]


def test_wrong_features_scores_and_needs_are_named() -> None:
    with pytest.raises(RunFailed, match=r"`embed_text` returned features of shape \(4, 3\); expected is 5 rows"):
        checked_features(ROWS, 5, "embed_text")
    with pytest.raises(RunFailed, match=r"`embed_video` returned None; expected is a tensor of 4 rows"):
        checked_features(None, 4, "embed_video")
    with pytest.raises(RunFailed, match=r"`score` returned a tensor of shape \(4, 3\).*\(3, 4\)"):
        checked_scores(ROWS, 3, 4)
    with pytest.raises(UsageError, match="`needs` returned a dict; expected is a Needs"):
        checked_needs({"views": 2})
    assert checked_needs(Needs()) == Needs()
