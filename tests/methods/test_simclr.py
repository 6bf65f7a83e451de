"""SimCLR beside its Eq. 1."""

import math

import pytest
import torch
from support.pictures import first_of, pictures, spec_on


def test_the_loss_is_the_mean_over_all_views_of_a_plain_loop(tmp_path) -> None:
    method, batch = first_of(spec_on(pictures(tmp_path), "simclr", tmp_path))
    output = method.loss(batch)
    with torch.no_grad():
        views = torch.cat([method.online.embed_video(view) for view in batch.views]).double()
    count = len(batch.ids)
    losses = []
    for i in range(2 * count):
        others = sum(math.exp(views[i] @ views[k] / 0.1) for k in range(2 * count) if k != i)
        losses.append(-math.log(math.exp(views[i] @ views[(i + count) % (2 * count)] / 0.1) / others))
    assert output.objectives.item() == pytest.approx(sum(losses) / (2 * count), rel=1e-4)


def test_both_views_get_gradients_and_the_key_none(tmp_path) -> None:
    method, batch = first_of(spec_on(pictures(tmp_path), "simclr", tmp_path))
    output = method.loss(batch)
    assert output.features["video"].requires_grad and not output.features["key"].requires_grad
