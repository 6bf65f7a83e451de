"""my_method: in one line, what it does (authors, year, arXiv number), Eq. 1.

Differs: where the paper and its released code disagree, and which one this file follows.
"""

# B rows on this rank   G rows over all ranks   D embedding

from torch import Tensor

from kinoray.backbones.backbone import TwoTower
from kinoray.config import Positive, config
from kinoray.equations import in_batch_nce
from kinoray.method import BaseMethod, Batch, ParamGroup, StepOutput, trainable


@config
class Config:
    """Hyper-parameters; the defaults are the paper's."""

    temperature: Positive = 0.07
    """Divides cosine similarities. Sec. 4.1."""


def matching(v_BD: Tensor, t_BD: Tensor, v_GD: Tensor, t_GD: Tensor, temperature: float) -> Tensor:
    """Find each video's text among all, and each text's video.

        loss = sum_i  -log  exp(v_i.t_i/T) / sum_j exp(v_i.t_j/T)  -  log  exp(v_i.t_i/T) / sum_j exp(v_j.t_i/T)

    Shapes:  v_BD, t_BD (B, D); v_GD, t_GD (G, D), those of all ranks; returns a scalar, summed over rows.
    Source:  Eq. 1.
    """
    return in_batch_nce(v_BD, t_BD, t_GD, temperature) + in_batch_nce(t_BD, v_BD, v_GD, temperature)


class Method(BaseMethod):
    """Which equation is used when. More verbs: needs, grow, begin_task, after_step, end_task, embed_*, score.

    State must live in parameters and buffers (`self.register_buffer`): a plain attribute is lost at a resume.
    """

    uses_num_tasks = False

    def __init__(self, config: Config, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.towers = backbone

    def param_groups(self) -> dict[str, ParamGroup]:
        """What trains now."""
        return {"towers": trainable(self.towers, "towers")}

    def loss(self, batch: Batch) -> StepOutput:
        """A sum over this rank's rows, divided by the rows of all ranks."""
        v_BD, t_BD = self.towers.embed_video(batch.video), self.towers.embed_text(batch.text)
        v_GD, t_GD = batch.gather(v_BD), batch.gather(t_BD)
        loss = matching(v_BD, t_BD, v_GD, t_GD, self.config.temperature) / batch.global_size  # Eq. 1
        return StepOutput(objectives=loss, log={"loss/matching": loss})

    def encoder(self) -> TwoTower:
        """The module that is probed and exported."""
        return self.towers
