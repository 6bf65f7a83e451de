"""SimCLR (Chen et al., ICML 2020), on pictures, task after task: one of CCSL's learners (Table 3).

    L = mean over 2B views of  -log  exp(z_i.z_j/T) / sum_{k not i} exp(z_i.z_k/T)        z_j the other view of z_i

Eq. 1 (NT-Xent); negatives are all other views of the step, of all ranks.

Differs: CCSL gives no settings for it. Temperature 0.1 and a head of two layers, as in the continual SimCLR scripts of
the field; the optimizer is the stream's instead of LARS. Batch normalisation is over the step's rows on all ranks,
as in the paper (Sec. 2.2), whatever groups the backbone's name asks for.
"""

# B batch   D embedding   G rows of all ranks

from kinoray.backbones.backbone import Backbone
from kinoray.backbones.norm import over_all_rows
from kinoray.backbones.projected import HeadKind, Projected, contrast_head
from kinoray.config import Count, Positive, config
from kinoray.equations import nt_xent
from kinoray.method import BaseMethod, Batch, Needs, ParamGroup, StepOutput, trainable


@config
class Config:
    """Hyper-parameters."""

    temperature: Positive = 0.1
    """Divides cosine similarities."""
    head: HeadKind = "mlp"
    """Two layers in the paper."""
    dim: Count = 128
    """Width of the embedding."""


class Method(BaseMethod):
    """One encoder sees both views."""

    suits = ("cssl", "ucl")
    backbones = Backbone
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        over_all_rows(backbone)
        self.online = Projected(backbone, contrast_head(config.head, backbone.dim, config.dim), config.dim)

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """Two views of each picture."""
        return Needs(views=2)

    def param_groups(self) -> dict[str, ParamGroup]:
        """The encoder and its head."""
        return {"encoder": trainable(self.online, "online")}

    def loss(self, batch: Batch) -> StepOutput:
        """NT-Xent. Features: `video`, the first view's embedding, and `key`, the second's without gradient."""
        z_BD, other_BD = (self.online.embed_video(view) for view in batch.views[:2])
        everyone = batch.gather(z_BD), batch.gather(other_BD)
        loss = nt_xent(z_BD, other_BD, *everyone, batch.order, self.config.temperature) / (2 * batch.global_size)
        return StepOutput(loss, features={"video": z_BD, "key": other_BD.detach()})

    def encoder(self) -> Projected:
        """The encoder with its head."""
        return self.online
