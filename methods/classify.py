"""Classification: a linear layer on a backbone shows what the backbone learned without labels (He et al., CVPR 2020).

    loss = mean_i  cross-entropy(W f(x_i) + b, label_i)        W drawn from N(0, 0.01^2), b = 0

`train=head` is MoCo's linear probe: the backbone rests, in eval mode, so that its batch normalisation keeps its
statistics. `train=all` is the fine-tuning of VideoMoCo (Pan et al., CVPR 2021). Over a stream of tasks the layer grows
by the new classes of each and tells all classes so far apart; with `--joint` it probes a whole stream at once:

    kinoray run classify --stream ucl-cifar10 --joint --backbone run:runs/moco-ucl-cifar10-1f2e3d4c
    kinoray run classify --stream moving-actions/downstream --backbone run:runs/video_moco-moving-actions-1f2e3d4c

Where a stream's recipe is that of fine-tuning (`video-ssl`, `moving-actions`), `kinoray sweep classify --space probe`
has the probe's.

Differs: the releases keep the weights of the best epoch on the test set; here the validation split chooses. VideoMoCo's
paper fine-tunes with batches of 32 at 0.05, its code (`--as-released`) with 256 at 0.005 and the whole network in eval
mode; its crops of 224 px and its ten random clips of a video in each epoch are not offered under that name (`size_px`
and `epochs` set them). Samples without a label teach nothing, and count in the mean as zeros. Batch normalisation is
over the step's rows on all ranks, whatever groups the pretext had.
"""

# B batch   T frames   F features   C classes so far

from typing import Any, Literal

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.norm import over_all_rows
from kinoray.config import config
from kinoray.method import BaseMethod, Batch, ParamGroup, StepOutput, TaskFacts, trainable


@config
class Config:
    """Hyper-parameters; those of the optimizer are the recipe's (`RECIPES`)."""

    train: Literal["all", "head"] = "all"
    """What trains: the whole network (fine-tuning) or the linear layer alone (probe)."""
    frozen_norm: bool = False
    """Whether the backbone is in eval mode also while all of it trains, as VideoMoCo's code has it."""


PROBE: dict[str, Any] = {
    "train": "head",
    "epochs": 100,
    "batch_size": 256,
    "optimizer": "sgd",  # with momentum 0.9
    "learning_rate": 30.0,
    "schedule": "steps",
    "milestones": (60, 80),
    "weight_decay": 0.0,
    "validations": 10,
}
"""MoCo's linear classification (released code)."""
SMALL_PROBE: dict[str, Any] = PROBE | {"batch_size": 64}
"""For the embedded streams. Of 0.03 to 30 validation chose MoCo's own rate (`shapes-5`, seed 0: 48.5 %; with 10 46.0,
3 46.8, 1 47.0); benchmarks/probe.py sets it beside the fast probe."""
FINE_TUNE: dict[str, Any] = {
    "epochs": 10,
    "batch_size": 32,
    "optimizer": "sgd",
    "learning_rate": 0.05,
    "schedule": "steps",
    "milestones": (6, 8),
    "weight_decay": 1e-4,
    "validations": 10,
    "augmentation": "video-finetune",
}
"""VideoMoCo, Sec. 4; the milestones are the code's."""
SMALL_FINE_TUNE: dict[str, Any] = FINE_TUNE | {
    "epochs": 60,
    "batch_size": 16,
    "schedule": "cosine",
    "augmentation": "moving-actions",
}
"""For the embedded world: more steps, for its set is small, and no flip, for a mirror image may show another action."""

RECIPES: dict[str, dict[str, Any]] = {
    "cssl-cifar100-*": PROBE | {"augmentation": "linear-probe-cifar"},
    "cssl-imagenet*": PROBE | {"augmentation": "linear-probe"},
    "ucl-*": PROBE | {"augmentation": "linear-probe-ucl"},
    "shapes-*": SMALL_PROBE | {"augmentation": "linear-probe-shapes"},
    "glyphs-*": SMALL_PROBE | {"augmentation": "linear-probe-shapes"},
    "digits-5": SMALL_PROBE | {"augmentation": "digits", "learning_rate": 0.1},
    "video-ssl": FINE_TUNE,
    "moving-actions": SMALL_FINE_TUNE,
    "robots-ssl": SMALL_FINE_TUNE | {"epochs": 10},  # its set has ten times the clips
}
"""Pictures are normalised as in the stream's own training: a backbone in eval mode knows no others."""
RELEASED = {"video-ssl": {"batch_size": 256, "learning_rate": 0.005, "frozen_norm": True}}


class Method(BaseMethod):
    """A backbone and a linear layer on its features, by parts: one for the new classes of each task."""

    tested_by = "classification"
    needs_labels = True
    backbones = Backbone
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.backbone = backbone.trunk.requires_grad_(config.train == "all")
        over_all_rows(self.backbone)
        self.parts = nn.ModuleList()

    def grow(self, task: TaskFacts) -> None:
        """Rows of W and b for the classes that no earlier task had."""
        if task.new_classes:
            part = nn.Linear(self.backbone.dim, task.new_classes)
            nn.init.normal_(part.weight, std=0.01)
            nn.init.zeros_(part.bias)
            self.parts.append(part)

    def train(self, mode: bool = True) -> "Method":
        """A backbone that rests, or whose normalisation is frozen, stays in eval mode."""
        super().train(mode)
        self.backbone.train(mode and self.config.train == "all" and not self.config.frozen_norm)
        return self

    def param_groups(self) -> dict[str, ParamGroup]:
        """The linear layer, and the backbone unless it rests."""
        groups = {"head": trainable(self.parts, "parts")}
        return groups if self.config.train == "head" else groups | {"backbone": trainable(self.backbone, "backbone")}

    def loss(self, batch: Batch) -> StepOutput:
        """Cross-entropy over the classes so far. Features: `video`, those of the backbone."""
        features_BF = self.backbone.features(batch.video)
        logits_BC = self.logits(features_BF)
        loss = nn.functional.cross_entropy(logits_BC, batch.labels, ignore_index=-1, reduction="sum")
        right = (logits_BC.argmax(dim=1) == batch.labels).sum()
        return StepOutput(
            objectives=loss / batch.global_size,
            log={"accuracy": right / batch.global_size},
            features={"video": features_BF},
        )

    def logits(self, features_BF: Tensor) -> Tensor:
        """W f + b, (B, C)."""
        return torch.cat([part(features_BF) for part in self.parts], dim=1)

    def encoder(self) -> Backbone:
        """The backbone, without the linear layer."""
        return self.backbone

    def embed_video(self, video: Tensor, task_index: int) -> Tensor:
        """Logits of all classes so far, (B, C)."""
        return self.logits(self.backbone.features(video))
