"""my_method against plain loops. The conformance suite runs for it by itself."""

import pytest
import torch

from kinoray.cli.templates.rule import apart


def test_apart_equals_plain_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    now, before = (torch.randn(3, 4, generator=generator) for _ in range(2))
    expected = sum(float(now[i, j] - before[i, j]) ** 2 for i in range(3) for j in range(4))
    assert float(apart(now, before)) == pytest.approx(expected, rel=1e-5)
