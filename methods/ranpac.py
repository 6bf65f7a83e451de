"""RanPAC (McDonnell et al., NeurIPS 2023): frozen features, a random projection, and a ridge regression over all tasks.

The network learns in the first task alone. Every task adds to two sums; in whatever order, they give the classifier
that one ridge regression on all rows would have found.

    h = ReLU(f W_rand),    G <- G + H^T H,    Q <- Q + H^T Y,    W = (G + lambda I)^-1 Q,    scores h W
    lambda: of 10^-8 .. 10^8 the one with the least squared error on a fifth of the task's rows, fitted on the others
    first task:  L = CE(sigma cos(f, w_c)), sigma = 1 at the start, with a head w that is not used again

Differs: read in the code (`RanPAC.py`); the paper's text could not be. In its first task adapters, prompts or scales
and shifts behind all layers (SSF) learn; here those of the norms, which every tower has. The fifth is drawn, as
manifests stand in order. f is what a probe sees, of unit norm where the backbone is two towers; the projection is as
many times as wide as there. Steps of later tasks change nothing. `retention` and `retention-agnostic` ask for names of
classes: one has the score of the class that some task's captions called so, and 0 where none did.
"""

# N rows   L features   M projected   C classes so far   D text embedding   Q texts

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinoray.backbones.backbone import Backbone, Tokens, TwoTower
from kinoray.config import Weight, config
from kinoray.equations import classes_named, lifted, ridge_moments, ridge_weights, unit
from kinoray.method import BaseMethod, Batch, ParamGroup, Rows, StepOutput, Task, TaskFacts
from kinoray.rehearsal import labelled


@config
class Config:
    """Hyper-parameters; the code's."""

    lift: Weight = 10_000 / 768
    """Columns of the projection by the number of features; 0: f itself, without ReLU. The sums take 8 bytes times their
    square: 0.8 GB of ViT-B/16's 768."""
    ridge: Weight = 0.0
    """lambda; 0: chosen in every task."""
    tune_first: bool = True
    """Whether the network learns in the first task; False is the paper's row without Phase 1."""


PHASE_1 = {"epochs": 20, "batch_size": 48, "optimizer": "sgd", "learning_rate": 0.01, "weight_decay": 5e-4}
RECIPES: dict[str, dict[str, Any]] = {"": PHASE_1 | {"schedule": "cosine", "validations": 0}}


def best_ridge(fitted_MK: Tensor, h_NM: Tensor, y_NC: Tensor) -> float:
    """The lambda with the least mean squared error on rows held out; of equal ones the smallest."""
    powers = (10.0**power for power in range(-8, 9))
    return min(powers, key=lambda ridge: float((h_NM @ ridge_weights(fitted_MK, ridge) - y_NC).square().mean()))


class Method(BaseMethod):
    """A network that rests after the first task, the sums over all tasks and the classifier that follows from them."""

    tested_by = "classification"
    suits = ("classification", "retention", "retention-agnostic")
    needs_labels = True
    whole = True
    backbones = Backbone
    uses_num_tasks = False
    random_LM: Tensor
    moments_MK: Tensor  # G and Q, side by side
    W_MC: Tensor
    names_TCD: Tensor  # the sum of each class's captions in each task

    def __init__(self, config: Config, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.backbone = backbone.requires_grad_(False)
        for p in (p for m in backbone.modules() if "Norm" in type(m).__name__ for p in m.parameters(recurse=False)):
            p.requires_grad_(config.tune_first)
        self.sigma = nn.Parameter(torch.ones(()))
        dim, columns = backbone.features_dim, round(config.lift * backbone.features_dim)
        self.register_buffer("random_LM", torch.randn(dim, columns).double())
        self.register_buffer("moments_MK", torch.zeros(columns or dim, columns or dim).double())
        self.register_buffer("W_MC", torch.zeros(columns or dim, 0).double())
        text_dim = backbone.dim if isinstance(backbone, TwoTower) else 0
        self.register_buffer("names_TCD", torch.zeros(0, 0, text_dim).double())

    def grow(self, task: TaskFacts) -> None:
        """Room for the classes that no earlier task had."""
        self.moments_MK, self.W_MC = (F.pad(x, (0, task.new_classes)) for x in (self.moments_MK, self.W_MC))
        self.names_TCD = F.pad(self.names_TCD, (0, 0, 0, task.new_classes, 0, 1))
        self.tunes = task.index == 0 and self.config.tune_first
        if self.tunes:
            self.head = nn.Parameter(torch.randn(task.new_classes, self.backbone.features_dim))

    def train(self, mode: bool = True) -> "Method":
        """The network stays in eval mode."""
        super().train(mode)
        self.backbone.train(False)
        return self

    def param_groups(self) -> dict[str, ParamGroup]:
        """Norms and head in the first task; later sigma alone, whose gradient is 0."""
        if not self.tunes:
            return {"resting": ParamGroup({"sigma": self.sigma}, weight_decay=0.0)}
        return {"tuned": ParamGroup({name: p for name, p in self.named_parameters() if p.requires_grad})}

    def loss(self, batch: Batch) -> StepOutput:
        """Cross-entropy over the first task's classes; 0 in later tasks. Features: none."""
        if not self.tunes:
            return StepOutput(objectives=0.0 * self.sigma)
        logits_BC = self.sigma * unit(self.backbone.features(batch.video)) @ unit(self.head).T
        loss = F.cross_entropy(logits_BC.float(), batch.labels, ignore_index=-1, reduction="sum")
        return StepOutput(objectives=loss / batch.global_size)

    def end_task(self, task: Task) -> tuple[int, ...]:
        """Choose lambda, add the task to the sums, and solve."""

        def seen(rows: Rows) -> Tensor:
            texts = [self.backbone.embed_text(rows.text)] if isinstance(self.backbone, TwoTower) else []
            return torch.cat([self.backbone.features(rows.video), *texts], dim=1)

        labels, table = (part.to(self.W_MC.device) for part in labelled(task, seen))
        f_NL, text_ND = table.split([len(self.random_LM), self.names_TCD.shape[2]], dim=1)
        y_NC = F.one_hot(labels, self.W_MC.shape[1]).double()
        self.names_TCD[-1] += y_NC.T @ text_ND
        held = torch.randperm(len(f_NL)).to(f_NL.device) < len(f_NL) / 5
        fitted_MK, h_NM = ridge_moments(f_NL[~held], y_NC[~held], self.random_LM), lifted(f_NL[held], self.random_LM)
        ridge = self.config.ridge or best_ridge(fitted_MK, h_NM, y_NC[held])
        self.moments_MK += fitted_MK + ridge_moments(f_NL[held], y_NC[held], self.random_LM)
        self.W_MC = ridge_weights(self.moments_MK, ridge)
        return ()

    def embed_video(self, video: Tensor, task_index: int) -> Tensor:
        """Scores of all classes so far, (B, C)."""
        return (lifted(self.backbone.features(video), self.random_LM) @ self.W_MC).float()

    def embed_text(self, text: Tokens, task_index: int) -> Tensor:
        """The class that each text names, (Q, C): 1 in its column, or zeros where it names none."""
        return classes_named(super().embed_text(text, task_index), self.names_TCD).float()

    def encoder(self) -> Backbone:
        """The network, without the classifier."""
        return self.backbone
