"""A linear probe in seconds: multinomial logistic regression on features that were embedded once, by L-BFGS.

It stands for MoCo's probe (100 epochs of SGD; `methods/classify.py`) after every task, where that one would take
minutes. Features are standardised by the training pictures' mean and deviation: those of self-supervised
encoders differ in scale by orders of magnitude, and one penalty then serves them all.

Differs: one view without augmentation, and the minimum of a penalised loss. SGD of so many epochs ends before its own
minimum on few pictures: on `shapes-5` it tells 1.5 points fewer than the probe whose penalty validation chooses. So the
penalty is one that agrees with SGD there, and it is of the summed loss, for more pictures also mean more steps of SGD.
"""

# N pictures   F features   C classes

from dataclasses import dataclass

import torch
from torch import Tensor

PENALTY = 2.0
"""Half of it times the squared weights is added to the loss summed over the pictures. Mean accuracy less that of SGD on
MoCo's encoders of `shapes-5`, 8 seeds: +1.5 points with 1, +0.2 with 2, -1.7 with 4. Other streams were not measured
(benchmarks/probe.py --stream)."""
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

    def logits(self, features_NF: Tensor) -> Tensor:
        """Scores of the classes, (N, C)."""
        return with_ones((features_NF.to(self.mean) - self.mean) / self.deviation) @ self.weight


def fit_probe(train: Labelled, num_classes: int, penalty: float = PENALTY, tolerance: float = TOLERANCE) -> LinearProbe:
    """The weights that minimise `probe_loss` on standardised features, from zeros.

    The whole set at every step, in the features' precision: the same numbers give the same probe. No graph is held.
    """
    mean, deviation = train.features.mean(dim=0), train.features.std(dim=0, correction=0)
    constant = deviation <= 1e-5 * mean.abs()  # but for rounding
    deviation = torch.where(constant, 1.0, deviation)
    inputs = with_ones((train.features - mean) / deviation)
    weight = inputs.new_zeros(inputs.shape[1], num_classes).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight],
        max_iter=MAX_STEPS,
        tolerance_grad=tolerance,
        tolerance_change=0.0,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        value, weight.grad = probe_loss(weight.detach(), inputs, train.classes, penalty / len(train))
        return value

    optimizer.step(loss)
    return LinearProbe(mean, deviation, weight.detach())


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
