# %% [markdown]
# # Your own method in 30 lines
#
# A method is one class: what trains, and what the loss is. Here contrastive learning with a margin, which no file of
# kinoray has. Order of tasks, loading, checkpoints, evaluation and several processes are the engine's.

# %%
import torch
from torch import Tensor, nn

import kinoray
from kinoray.config import Positive, Share, config
from kinoray.method import BaseMethod, Batch, ParamGroup, StepOutput, trainable


@config
class Config:
    temperature: Positive = 0.07
    """Divides cosine similarities."""
    margin: Share = 0.1
    """Taken from the similarity of a pair that belongs together."""


class MarginContrast(BaseMethod):
    Config = Config

    def __init__(self, config, backbone, num_tasks):
        super().__init__(config, backbone, num_tasks)
        self.towers = backbone

    def param_groups(self) -> dict[str, ParamGroup]:
        return {"towers": trainable(self.towers, "towers")}

    def loss(self, batch: Batch) -> StepOutput:
        video_BD, text_BD = self.towers.embed_video(batch.video), self.towers.embed_text(batch.text)
        video_GD, text_GD = batch.gather(video_BD), batch.gather(text_BD)  # of all processes
        loss = (self.nce(video_BD, text_GD, batch.order) + self.nce(text_BD, video_GD, batch.order)) / batch.global_size
        return StepOutput(objectives=loss)

    def nce(self, query_BD: Tensor, key_GD: Tensor, own: Tensor) -> Tensor:
        own_BG = nn.functional.one_hot(own, len(key_GD))
        scores_BG = (query_BD @ key_GD.T - self.config.margin * own_BG) / self.config.temperature
        return nn.functional.cross_entropy(scores_BG, own, reduction="sum")

    def encoder(self):
        return self.towers


# %% [markdown]
# It runs like any other, on Ray, here with 80 steps a task; its settings are checked, and its source goes into the run's
# folder.

# %%
options = dict(stream="moving-conflict", settings={"max_steps": 80}, quiet=True)
mine = kinoray.run(MarginContrast, **options)
mine

# %%
kinoray.compare([mine, kinoray.run("base_moco", **options)])

# %% [markdown]
# In a file, `kinoray new method my_method --single` writes the frame, `kinoray check ./my_method.py` tries what every
# method must do (resume bitwise, two processes equal one, ...), and any rule of kinoray wraps it: `kinoray run
# lwf:./my_method.py`.
