"""SimSiam (Chen and He, CVPR 2021), the learner of the benchmark of unsupervised continual learning (LUMP, ICLR 2022).

    L = ( D(p_1, z_2) + D(p_2, z_1) ) / 2,   D(p, z) = - cos(p, stopgrad z),   z = projector, p = predictor of z

Eqs. 1-4. BMU-MoCo's Table 4 quotes its fine-tuning, SI, DER, LUMP and PNN rows from that benchmark.

Differs: the projector has the two layers that the benchmark uses by default; the paper's has three and a last
normalisation without weights. Batch normalisation is over the step's rows on all ranks, as in the paper,
whatever groups the backbone's name asks for.
"""

# B batch   D embedding

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.norm import over_all_rows
from kinoray.backbones.projected import Projected, normalised_mlp
from kinoray.config import Count, config
from kinoray.equations import negative_cosine, unit
from kinoray.method import BaseMethod, Batch, Needs, ParamGroup, StepOutput, trainable


@config
class Config:
    """Hyper-parameters; the defaults are the benchmark's."""

    projector_layers: Count = 2
    """Linear layers of the projector; the paper has 3."""
    projector_dim: Count = 2048
    """Width of the projector and of the embedding."""
    predictor_dim: Count = 512
    """Width of the predictor's bottleneck."""


SMALL = {"projector_dim": 128, "predictor_dim": 64}
"""As wide for `tiny-cnn` as the benchmark's are for a ResNet-18."""
RECIPES = {"digits-5": SMALL, "shapes-*": SMALL, "glyphs-*": SMALL}


class Method(BaseMethod):
    """An encoder with a projector, and a predictor of one view's projection from the other's."""

    suits = ("ucl", "cssl")
    backbones = Backbone
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        over_all_rows(backbone)
        dim = config.projector_dim
        projector = normalised_mlp(backbone.dim, *[dim] * config.projector_layers, last_norm=True)
        self.online = Projected(backbone, projector, dim)
        self.predictor = normalised_mlp(dim, config.predictor_dim, dim, last_norm=False)

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """Two views of each picture."""
        return Needs(views=2)

    def param_groups(self) -> dict[str, ParamGroup]:
        """Encoder and projector, and the predictor."""
        return {"encoder": trainable(self.online, "online"), "predictor": trainable(self.predictor, "predictor")}

    def loss(self, batch: Batch) -> StepOutput:
        """Eq. 4. Features: `video`, the first view's projection, and `key`, the second's, both of unit norm."""
        z_BD = [self.online.project(view) for view in batch.views[:2]]
        p_BD = [self.predictor(z) for z in z_BD]
        loss = (negative_cosine(p_BD[0], z_BD[1]) + negative_cosine(p_BD[1], z_BD[0])) / (2 * batch.global_size)
        first, second = map(unit, z_BD)
        return StepOutput(loss, features={"video": first, "key": second.detach()})

    def encoder(self) -> Projected:
        """The encoder with its projector."""
        return self.online
