"""PNN, progressive neural networks (Rusu et al., arXiv 1606.04671, 2016), Eq. 2, on pictures without labels.

Every task has a column of its own, a whole network. Older columns rest, and every stage of the newest but the first
hears what they had found one stage earlier:

    h_i^(k) = stage_i^(k)( h_(i-1)^(k) ) + U relu( V ( alpha * [h_(i-1)^(1), ..., h_(i-1)^(k-1)] ) )

The column, with a projector and a predictor of its own, learns by SimSiam's loss. A picture goes through its own task's
column, so nothing is ever forgotten. BMU-MoCo's Table 4 quotes PNN from the benchmark of LUMP (ICLR 2022).

Differs: the paper adds laterals before a layer's ReLU; here a layer is a stage of the backbone, and they are added
behind it. alpha is one scale per channel, where the paper has one per column and the common code (mammoth) one per
element, which ties the network to a size of pictures. V and U have no bias, so that alpha = 0 is a column alone. U has
the stride of the stage; V gives as many channels as one old column has, 1 x 1 convolutions both in the paper, U 3 x 3
here to halve sides. Nothing is added to the head's input. Columns are as wide as the backbone, where papers shrink them
as they become many. All start from the weights that the run began with, be they drawn or trained before; laterals,
projector and predictor are drawn anew. The benchmark's own PNN appends one network again and again, without laterals,
and so is fine-tuning.
"""

# B batch   T frames   N pictures   C channels   F width of the features   E width of the embedding   k column, from 0

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import Backbone, StagedBackbone
from kinoray.backbones.projected import normalised_mlp
from kinoray.config import Count, Weight, config
from kinoray.equations import negative_cosine, unit
from kinoray.method import BaseMethod, Batch, Needs, ParamGroup, StepOutput, TaskFacts, trainable
from kinoray.momentum import Frozen


@config
class Config:
    """Hyper-parameters; those of the learner are SimSiam's."""

    laterals: bool = True
    """Whether columns hear older ones; False: a network for each task, alone."""
    alpha_start: Weight = 0.1
    """Scales of laterals start evenly in [0, alpha_start). The paper has "random small values" (ours); mammoth 1."""
    projector_layers: Count = 2
    """Linear layers of the projector."""
    projector_dim: Count = 2048
    """Width of the projector and of the embedding."""
    predictor_dim: Count = 512
    """Width of the predictor's bottleneck."""


SMALL = {"projector_dim": 128, "predictor_dim": 64}
"""As simsiam has them."""
RECIPES = {"digits-5": SMALL, "shapes-*": SMALL, "glyphs-*": SMALL}


class Lateral(nn.Module):
    """What older columns add to one stage: U relu(V (alpha * h)), V and U convolutions."""

    def __init__(self, old: int, before: int, after: int, stride: int, alpha_start: float) -> None:
        """old: older columns. before, after: channels of a column's maps before the stage and after it."""
        super().__init__()
        self.alpha = nn.Parameter(alpha_start * torch.rand(old * before, 1, 1))
        self.reduce = nn.Conv2d(old * before, before, kernel_size=1, bias=False)  # V
        self.expand = nn.Conv2d(before, after, kernel_size=3, stride=stride, padding=1, bias=False)  # U

    def forward(self, maps: Sequence[Tensor]) -> Tensor:
        """Each older column's maps (N, C, h, w) before the stage -> (N, C', h', w')."""
        return self.expand(self.reduce(self.alpha * torch.cat(list(maps), dim=1)).relu())


class Column(nn.Module):
    """The network of one task: backbone, laterals into its stages from the second on, projector and predictor."""

    def __init__(self, config: Config, backbone: StagedBackbone, laterals: Sequence[Lateral] = ()) -> None:
        super().__init__()
        dim = config.projector_dim
        self.backbone = backbone
        self.laterals = nn.ModuleList(laterals)
        self.projector = normalised_mlp(backbone.dim, *[dim] * config.projector_layers, last_norm=True)
        self.predictor = normalised_mlp(dim, config.predictor_dim, dim, last_norm=False)

    def stage_maps(self, pictures: Tensor, older: Sequence[Sequence[Tensor]]) -> list[Tensor]:
        """Pictures (N, 3, H, W) and the maps of older columns after each stage -> this column's."""
        maps: list[Tensor] = []
        for place, stage in enumerate(self.backbone.stages):
            after = stage(maps[-1] if maps else pictures)
            if place and self.laterals:
                after = after + self.laterals[place - 1]([column[place - 1] for column in older])
            maps.append(after)
        return maps


class Columns(Backbone):
    """The columns of all tasks so far; as a backbone it is the newest. Older ones rest in eval mode."""

    def __init__(self, first: Column, dim: int) -> None:
        """dim: width of the projector."""
        super().__init__()
        self.columns: Any = nn.ModuleList([first])
        self.dim = dim
        backbone = first.backbone
        self.mean, self.std, self.multiple_px = backbone.mean, backbone.std, backbone.multiple_px

    @property
    def newest(self) -> int:
        """The number of the column that learns."""
        return len(self.columns) - 1

    def append(self, column: Column) -> None:
        """Let the newest column rest, and another one learn."""
        self.columns[-1].requires_grad_(False)
        self.columns.append(column)

    def train(self, mode: bool = True) -> "Columns":
        """Older columns stay in eval mode whatever the mode."""
        super().train(mode)
        for column in self.columns[:-1]:
            column.train(False)
        return self

    def features_of(self, frames_BTCHW: Tensor, k: int) -> Tensor:
        """(B, F), what column k finds, before its projector."""
        pictures, own = frames_BTCHW.flatten(0, 1), self.columns[k]
        maps: list[list[Tensor]] = []
        for column in self.columns[:k] if own.laterals else ():
            maps.append(column.stage_maps(pictures, maps))
        picture_NF = own.backbone.pool(own.stage_maps(pictures, maps)[-1])
        return picture_NF.unflatten(0, frames_BTCHW.shape[:2]).mean(dim=1)

    def project(self, frames_BTCHW: Tensor, k: int) -> Tensor:
        """(B, E), as the projector of column k gives them."""
        return self.columns[k].projector(self.features_of(frames_BTCHW, k))

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, E), unit norm, of the newest column."""
        return unit(self.project(frames_BTCHW, self.newest))

    @property
    def features_dim(self) -> int:
        """F, the same for all columns."""
        return self.columns[0].backbone.features_dim

    def features(self, frames_BTCHW: Tensor) -> Tensor:
        """(B, F), the newest column's."""
        return self.features_of(frames_BTCHW, self.newest)


@torch.no_grad()
def strides_of(backbone: StagedBackbone, side_px: int = 64) -> list[int]:
    """How many times smaller each stage but the first makes the sides of maps; the backbone is in eval mode."""
    sides = [maps.shape[-1] for maps in backbone.stage_maps(torch.zeros(1, 3, side_px, side_px))]
    return [side // sides[place] for place, side in enumerate(sides[:-1], start=1)]


class Method(BaseMethod):
    """A column for each task, and the weights from which they start."""

    suits = ("ucl", "cssl")
    backbones = StagedBackbone
    whole = True
    encoder_by_task = True
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: StagedBackbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.start = Frozen(backbone)
        self.strides = strides_of(self.start.module)
        self.columns = Columns(Column(config, backbone), config.projector_dim)

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """Two views of each picture."""
        return Needs(views=2)

    def grow(self, task: TaskFacts) -> None:
        """A column, from the second task on: the first stands already."""
        if task.index == 0:
            return
        backbone, settings = copy.deepcopy(self.start.module).requires_grad_(True), self.config
        laterals = [
            Lateral(task.index, backbone.widths[place - 1], backbone.widths[place], stride, settings.alpha_start)
            for place, stride in enumerate(self.strides if settings.laterals else (), start=1)
        ]
        self.columns.append(Column(settings, backbone, laterals))

    def param_groups(self) -> dict[str, ParamGroup]:
        """The newest column with its laterals and its head."""
        k = self.columns.newest
        return {"column": trainable(self.columns.columns[k], f"columns.columns.{k}")}

    def loss(self, batch: Batch) -> StepOutput:
        """SimSiam's, of the newest column. Features: `video`, the first view's projection, and `key`, the second's,
        both of unit norm."""
        k = self.columns.newest
        z_BE = [self.columns.project(view, k) for view in batch.views[:2]]
        p_BE = [self.columns.columns[k].predictor(z) for z in z_BE]
        loss = (negative_cosine(p_BE[0], z_BE[1]) + negative_cosine(p_BE[1], z_BE[0])) / (2 * batch.global_size)
        first, second = map(unit, z_BE)
        return StepOutput(loss, features={"video": first, "key": second.detach()})

    def encoder(self) -> Columns:
        """All columns, of which the newest speaks."""
        return self.columns

    def embed_video(self, video: Tensor, task_index: int) -> Tensor:
        """(B, E), unit norm, by the task's own column."""
        return unit(self.columns.project(video, task_index))

    def probe_features(self, video: Tensor, task_index: int) -> Tensor:
        """(B, F), by the task's own column."""
        return self.columns.features_of(video, task_index)
