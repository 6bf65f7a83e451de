"""my_method against plain loops. The conformance suite runs for it by itself."""

import math

import pytest
import torch

from kinoray.cli.templates.method import matching


def test_matching_equals_plain_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    videos, texts = (torch.randn(3, 4, generator=generator) for _ in range(2))
    expected = 0.0
    for i in range(3):
        for a, b in ((videos, texts), (texts, videos)):
            scores = [math.exp(float(a[i] @ b[j]) / 0.5) for j in range(3)]
            expected -= math.log(scores[i] / sum(scores))
    assert float(matching(videos, texts, videos, texts, 0.5)) == pytest.approx(expected, rel=1e-5)
