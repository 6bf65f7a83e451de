"""Weights that are not numbers are named."""

import pytest
import torch

from kinoray.training.checkpoint import not_finite

BAD = (float("nan"), float("inf"), -float("inf"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_each_weight_with_a_nan_or_an_infinity_is_named(dtype: torch.dtype) -> None:
    weights = {str(bad): torch.tensor([[1.0, 2.0], [bad, -3.0]], dtype=dtype) for bad in BAD}
    sound = {
        "largest": torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min], dtype=dtype),
        "scalar": torch.tensor(1.0, dtype=dtype, requires_grad=True),
        "empty": torch.zeros(0, 3, dtype=dtype),
        "counts": torch.tensor([2**62]),
        "switches": torch.tensor([True]),
    }
    assert not_finite(weights | sound) == list(map(str, BAD))
    assert not_finite(sound | {"other": torch.tensor([float("nan")])}) == ["other"]
    assert not_finite({name: sound[name] for name in ("empty", "counts")}) == []
