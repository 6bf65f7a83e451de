"""SimSiam beside its Eqs. 1-4."""

import pytest
import torch
from support.pictures import first_of, pictures, spec_on
from torch.nn.functional import cosine_similarity

from kinoray.backbones.projected import normalised_mlp
from kinoray.runs.method_source import find_method


def test_each_view_predicts_the_others_projection_which_gets_no_gradient(tmp_path) -> None:
    method, batch = first_of(spec_on(pictures(tmp_path, "ucl"), "simsiam", tmp_path))
    output = method.loss(batch)
    z = [method.online.project(view) for view in batch.views]
    p = [method.predictor(x) for x in z]
    expected = -(cosine_similarity(p[0], z[1].detach()) + cosine_similarity(p[1], z[0].detach())).sum() / 12
    assert output.objectives.item() == pytest.approx(expected.item(), rel=1e-5)
    output.objectives.backward()
    by_loss = [p.grad.clone() for p in method.parameters()]
    method.zero_grad()
    expected.backward()
    for gradient, parameter in zip(by_loss, method.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


def test_the_heads_are_those_of_the_benchmark() -> None:
    config = find_method("simsiam").load().Config()
    projector = normalised_mlp(512, *[config.projector_dim] * config.projector_layers, last_norm=True)
    predictor = normalised_mlp(config.projector_dim, config.predictor_dim, config.projector_dim, last_norm=False)
    kinds = [type(layer).__name__ for layer in projector]
    assert kinds == ["Linear", "SplitBatchNorm1d", "ReLU", "Linear", "SplitBatchNorm1d"]
    assert [type(layer).__name__ for layer in predictor] == ["Linear", "SplitBatchNorm1d", "ReLU", "Linear"]
    assert [projector[0].out_features, projector[3].out_features] == [2048, 2048]
    assert [predictor[0].out_features, predictor[3].out_features] == [512, 2048]
    assert predictor[3].bias is not None and projector[0].bias is None
