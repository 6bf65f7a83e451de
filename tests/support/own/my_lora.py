"""LoRA on the attention of both towers, trained task after task; all else is frozen (Hu et al., ICLR 2022)."""

from kinoray.backbones.backbone import TwoTower
from kinoray.backbones.lora import add_lora
from kinoray.config import Count, Positive, config
from kinoray.equations import in_batch_nce
from kinoray.method import BaseMethod, Batch, ParamGroup, StepOutput


@config
class Config:
    rank: Count = 4
    """Of each pair of matrices."""
    temperature: Positive = 0.07
    """Divides cosine similarities."""


class Method(BaseMethod):
    """The towers contrast clips and captions of the whole batch; only the pairs of LoRA move."""

    suits = ("cvlm", "ctvr")
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: TwoTower, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.towers = backbone.requires_grad_(False)
        self.lora = add_lora(self.towers, config.rank)

    def param_groups(self) -> dict[str, ParamGroup]:
        return {"lora": ParamGroup(self.lora)}

    def loss(self, batch: Batch) -> StepOutput:
        video, text = self.towers.embed_video(batch.video), self.towers.embed_text(batch.text)
        videos, texts, t = batch.gather(video), batch.gather(text), self.config.temperature
        loss = in_batch_nce(video, text, texts, t) + in_batch_nce(text, video, videos, t)
        return StepOutput(loss / batch.global_size, log={"loss/matching": loss / batch.global_size})

    def encoder(self) -> TwoTower:
        return self.towers
