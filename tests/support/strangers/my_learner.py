"""Two views of a picture belong together, those of other pictures apart; a head of its own stands on the backbone."""

from torch import nn

from kinoray.backbones.backbone import Backbone
from kinoray.config import Positive, config
from kinoray.equations import unit
from kinoray.method import BaseMethod, Batch, Needs, ParamGroup, StepOutput, trainable


@config
class Config:
    temperature: Positive = 0.2
    """Divides cosine similarities, > 0."""


class Method(BaseMethod):
    """Contrasts the first view of each picture with the second views of all."""

    backbones = Backbone
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: Backbone, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = backbone
        self.head = nn.Linear(backbone.dim, 8)

    @classmethod
    def needs(cls, config: Config) -> Needs:
        return Needs(views=2)

    def param_groups(self) -> dict[str, ParamGroup]:
        return {"online": trainable(self.online, "online"), "head": trainable(self.head, "head", rate=2.0)}

    def loss(self, batch: Batch) -> StepOutput:
        query, key = (unit(self.head(self.online.embed_video(view))) for view in batch.views)
        own = (batch.ids[:, None] == batch.gather(batch.ids)).float().argmax(dim=1)
        logits = query @ batch.gather(key).T / self.config.temperature
        loss = nn.functional.cross_entropy(logits, own, reduction="sum") / batch.global_size
        return StepOutput(loss, log={"loss/contrast": loss}, features={"query": query})

    def encoder(self) -> nn.Module:
        return self.online
