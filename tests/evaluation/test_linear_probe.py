"""The fast linear probe beside scikit-learn, and at its optimum."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from kinoray.evaluation.classification import Bank, fit_probe, probe_loss, with_ones


def blobs(count: int, noise: float = 1.0, seed: int = 0, dtype: torch.dtype = torch.float64) -> Bank:
    """Four classes around centres that are always the same, features of very different scales, one of them constant."""
    centres = torch.randn(4, 5, generator=torch.Generator().manual_seed(9))
    generator = torch.Generator().manual_seed(seed)
    classes = torch.arange(count) % 4
    features = centres[classes] + noise * torch.randn(count, 5, generator=generator)
    features = torch.cat([features * torch.tensor([100.0, 1e-3, 1.0, 10.0, 0.1]), torch.ones(count, 1)], dim=1)
    return Bank(features.to(dtype), classes, np.arange(4))


@pytest.mark.parametrize("penalty", [12.0, 0.12])
def test_weights_are_those_of_scikit_learn(penalty: float) -> None:
    train = blobs(120)
    probe = fit_probe(train, penalty, tolerance=1e-9)
    inputs = ((train.features - probe.mean) / probe.deviation).numpy()
    theirs = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=5000).fit(inputs, train.places)
    torch.testing.assert_close(probe.weight[:-1].T, torch.from_numpy(theirs.coef_), rtol=1e-5, atol=1e-6)
    ours, their = probe.logits(train.features).softmax(dim=1), torch.from_numpy(theirs.predict_proba(inputs))
    torch.testing.assert_close(ours, their, rtol=1e-5, atol=1e-6)


def test_the_gradient_is_that_of_autograd_and_zero_at_the_optimum() -> None:
    train, generator = blobs(40), torch.Generator().manual_seed(1)
    weight = torch.randn(7, 4, generator=generator, dtype=torch.float64).requires_grad_()
    inputs = with_ones(train.features)
    loss, gradient = probe_loss(weight.detach(), inputs, train.places, 0.01)
    whole = torch.nn.functional.cross_entropy(inputs @ weight, train.places) + 0.005 * weight[:-1].square().sum()
    assert loss.item() == pytest.approx(whole.item())
    torch.testing.assert_close(gradient, *torch.autograd.grad(whole, weight))
    probe = fit_probe(train, 0.01 * len(train.places), tolerance=1e-9)
    at_optimum = with_ones((train.features - probe.mean) / probe.deviation)
    assert probe_loss(probe.weight, at_optimum, train.places, 0.01)[1].abs().max() < 1e-8


def test_single_precision_comes_near_and_repeats_itself_bit_for_bit() -> None:
    exact, single = (blobs(120, dtype=dtype) for dtype in (torch.float64, torch.float32))
    first, again = fit_probe(single), fit_probe(single)
    assert torch.equal(first.weight, again.weight) and first.weight.dtype == torch.float32
    expected = fit_probe(exact, tolerance=1e-9).logits(exact.features)
    torch.testing.assert_close(first.logits(single.features).double(), expected, rtol=0, atol=0.02)


def test_the_scale_of_a_feature_does_not_matter() -> None:
    train = blobs(60)
    scaled = replace(train, features=train.features * 1024 + 7)
    one, other = (fit_probe(part, tolerance=1e-9).logits(part.features) for part in (train, scaled))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_a_constant_feature_says_nothing_whatever_its_rounding() -> None:
    train = blobs(1000, dtype=torch.float32)
    train.features[:, -1] = 0.1
    probe = fit_probe(train)
    assert probe.deviation[-1] == 1 and probe.weight[-2].abs().max() < 1e-3


def test_features_made_under_inference_mode_serve() -> None:
    with torch.inference_mode():
        train = replace(blobs(40), features=blobs(40).features + 0.0)
    told = fit_probe(train).logits(train.features).argmax(dim=1)
    assert (told == train.places).sum() > 20
