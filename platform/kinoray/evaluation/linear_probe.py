"""A linear probe in seconds: multinomial logistic regression on features that were embedded once, by L-BFGS.

Features are standardised by the training pictures' mean and deviation: those of self-supervised encoders differ in
scale by orders of magnitude (MoCo's own probe needs a rate of 30), and one range of strengths then serves them all.

Differs from the probe of the papers (SGD over augmented views, 100 epochs): one view without augmentation, the exact
optimum, and a penalty whose strength is chosen on the validation split.
"""

# N pictures   F features   C classes

from dataclasses import dataclass

import torch
from torch import Tensor

from kinoray.eager import spare_compiler

STRENGTHS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)
"""Penalties to choose from, the strongest first. Ours."""
MAX_STEPS = 200
TOLERANCE = 1e-5
"""Steps end where no element of the gradient is larger; gradients are those of a mean over pictures."""


@dataclass(frozen=True)
class Labelled:
    """Features of pictures, (N, F), and the class of each in 0..C-1, (N,) int64, on one device."""

    features: Tensor
    classes: Tensor

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True)
class LinearProbe:
    """What was fitted."""

    mean: Tensor
    deviation: Tensor
    """Of the training features, (F,)."""
    weight: Tensor
    """(F + 1, C) for standardised features; the last row is the bias."""
    strength: float
    """Its penalty."""

    def logits(self, features_NF: Tensor) -> Tensor:
        """Scores of the classes, (N, C)."""
        return with_ones((features_NF.to(self.mean) - self.mean) / self.deviation) @ self.weight


def chosen_probe(train: Labelled, validation: Labelled, num_classes: int) -> LinearProbe:
    """The probe with the strength that suits the validation pictures.

    From the strongest penalty on, each fit starts at the one before; as soon as a weaker one tells no more of the
    validation pictures rightly, the one before is taken. So a few fits decide, and a tie keeps the simpler probe.
    """
    best = fit_probe(train, num_classes, STRENGTHS[0])
    best_right = num_right(best, validation)
    for strength in STRENGTHS[1:]:
        probe = fit_probe(train, num_classes, strength, start=best.weight)
        right = num_right(probe, validation)
        if right <= best_right:
            break
        best, best_right = probe, right
    return best


def fit_probe(
    train: Labelled, num_classes: int, strength: float, start: Tensor | None = None, tolerance: float = TOLERANCE
) -> LinearProbe:
    """The weights that minimise `probe_loss` on standardised features, from zeros or from a `start` (F + 1, C).

    The whole set at every step, in the features' precision: the same numbers give the same probe. No graph is held.
    """
    mean, deviation = train.features.mean(dim=0), train.features.std(dim=0, correction=0)
    constant = deviation <= 1e-5 * mean.abs()  # but for rounding
    deviation = torch.where(constant, 1.0, deviation)
    inputs = with_ones((train.features - mean) / deviation)
    if start is None:
        start = inputs.new_zeros(inputs.shape[1], num_classes)
    weight = start.clone().requires_grad_()
    spare_compiler()
    optimizer = torch.optim.LBFGS(
        [weight],
        max_iter=MAX_STEPS,
        tolerance_grad=tolerance,
        tolerance_change=0.0,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        value, weight.grad = probe_loss(weight.detach(), inputs, train.classes, strength)
        return value

    optimizer.step(loss)
    return LinearProbe(mean, deviation, weight.detach(), strength)


def probe_loss(weight: Tensor, inputs: Tensor, classes: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Penalised cross-entropy, a scalar, and its gradient (F + 1, C).

        loss = mean_i -log softmax(x_i W)[c_i] + strength / 2 * ||W without its last row, the bias||^2

    Shapes: weight (F + 1, C); inputs (N, F + 1), the last column ones; classes (N,).
    """
    log_p = torch.log_softmax(inputs @ weight, dim=1)
    own = classes[:, None]
    penalised = torch.cat([weight[:-1], torch.zeros_like(weight[-1:])])
    loss = -log_p.gather(1, own).mean() + strength / 2 * penalised.square().sum()
    residual = log_p.exp_().scatter_add_(1, own, -torch.ones_like(own, dtype=log_p.dtype))  # p - onehot
    return loss, (inputs.T @ residual).div_(len(inputs)) + strength * penalised


def with_ones(features_NF: Tensor) -> Tensor:
    """A column of ones beside the features, for the bias: (N, F + 1)."""
    return torch.cat([features_NF, features_NF.new_ones(len(features_NF), 1)], dim=1)


def num_right(probe: LinearProbe, pictures: Labelled) -> int:
    """Pictures whose class has the highest score."""
    return int((probe.logits(pictures.features).argmax(dim=1) == pictures.classes).sum())
