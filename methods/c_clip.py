"""C-CLIP (Liu et al., ICLR 2025): LoRA that is merged by half, and features that stay near those of the model before.

    W_t = W_{t-1} + merged_share s B A                                    (LoRA integration, Eq. 2)
    L = L_CLIP + ckc_weight L_CKC                                         (Eqs. 6 and 5)
    L_CKC: InfoNCE in both directions between h = h_psi(features now) and z = features of the model before the task

The projector h_psi is one for both modalities and all tasks; h and z are joined over modalities (`ckc_shape`):
concat, a sample is [h_video, h_text], or stack, both are samples of their own.

Differs: neither the paper's full text nor its own code could be read. What stands here is quoted by reviews and by two
re-implementations, which disagree on CKC's shape (the constants quoted fit concat), on CKC in the first task and on the
projector: here d -> 2d -> d with ReLU, of features of any length, without the batch normalisation of one of them. That
one trains embeddings, too, which no merge halves (`embeddings`). LoRA's dropout of 0.1 is left out, for what moves here
is the matrix, not a path beside it. The recipe is the stream's; quoted are AdamW, betas 0.9 and 0.99, decay 0.2, 40
epochs with 5 of warm-up, cosine, batch 1024, 3e-5 for images (Flickr30K 1e-5, COCO 5e-7). At ckc_weight 0 it is `lora`.
"""

# B rows   K samples of CKC to a row, 2 stacked or 1   D embedding, 2 D where joined

import math
from typing import Literal

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import FrameTowers, Tokens
from kinoray.backbones.lora import ATTENTION, MLP, add_lora, restart_lora
from kinoray.config import Count, Positive, Share, Weight, config
from kinoray.equations import Gathers, clip_contrast, in_batch_nce, unit
from kinoray.method import BaseMethod, Batch, ParamGroup, Rows, StepInfo, StepOutput, Task, trainable
from kinoray.momentum import Frozen, copy_into


@config
class Config:
    """Hyper-parameters; the paper's as they are quoted."""

    rank: Count = 16
    alpha: Positive = 32.0
    """Divided by the rank, what B A is multiplied by."""
    layers: Literal["attention", "all"] = "all"
    """Of both towers: the matrices of attention, or those of the MLPs, too."""
    merged_share: Share = 0.5
    """Of what a task has learned, when it is merged."""
    ckc_weight: Weight = 1.0
    """Of the contrast with the model before the task; 0 turns it off."""
    ckc_temperature: Positive = 0.07
    ckc_shape: Literal["concat", "stack"] = "concat"
    ckc_first_task: bool = True
    """Whether the first task is held to the pre-trained model."""
    text_rate: Positive = 10.0
    """Multiple of the rate for the text tower (COCO: 80)."""
    embeddings: bool = False
    """Whether the embeddings of tokens, positions and class token train, too."""
    log_scale: Positive = 4.6
    """Where the scale of the similarities begins: CLIP's own at the end of its training."""
    largest_scale: Positive = 100.0
    """Of the scale while it learns: CLIP's."""


def knowledge_contrast(batch: Gathers, h_BKD: Tensor, z_BKD: Tensor, temperature: float) -> Tensor:
    """This rank's share of L_CKC (Eq. 5): each h among all z of the step and each z among all h, halved, by sample."""
    h_BKD, z_BKD = unit(h_BKD), unit(z_BKD)
    h_ND, z_ND = h_BKD.flatten(0, 1), z_BKD.flatten(0, 1)
    all_h, all_z = batch.gather(h_BKD).flatten(0, 1), batch.gather(z_BKD).flatten(0, 1)
    both = in_batch_nce(h_ND, z_ND, all_z, temperature) + in_batch_nce(z_ND, h_ND, all_h, temperature)
    return both / (2 * h_BKD.shape[1] * batch.global_size)


class Method(BaseMethod):
    """Two towers that move by LoRA, a projector, and the towers as they were before the task."""

    suits = ("ctvr", "cvlm")
    backbones = FrameTowers
    acts_inside = True
    whole = True
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: FrameTowers, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = backbone.requires_grad_(False)
        for name, parameter in backbone.named_parameters():
            if config.embeddings and ("embedding" in name or "cls_token" in name):
                parameter.requires_grad_("patch" not in name and "Norm" not in name)
        self.log_scale = nn.Parameter(torch.tensor(config.log_scale))
        add_lora(backbone, config.rank, config.alpha, ATTENTION + MLP if config.layers == "all" else ATTENTION)
        self.of_text = self._moved_by_text()
        self.index, width = -1, backbone.dim
        if config.ckc_weight:
            self.before = Frozen(backbone)
            self.projector = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def begin_task(self, task: Task) -> None:
        """What the towers are now is what the task is held to."""
        self.index = task.index
        if self.config.ckc_weight:
            copy_into(self.before.module, self.online)

    def param_groups(self) -> dict[str, ParamGroup]:
        """Both towers' own, the projector, and the scale without decay."""
        params, text = self._trained().items(), self.of_text
        groups = {"video": ParamGroup({f"online.{name}": p for name, p in params if name not in text})}
        groups["text"] = ParamGroup({f"online.{n}": p for n, p in params if n in text}, self.config.text_rate)
        if self.config.ckc_weight:
            groups["projector"] = trainable(self.projector, "projector")
        return groups | {"scale": ParamGroup({"log_scale": self.log_scale}, weight_decay=0.0)}

    def loss(self, batch: Batch) -> StepOutput:
        """L_CLIP + ckc_weight L_CKC. Features: `video` and `text`."""
        video_BD, text_BD = self._features(self.online, batch)
        unit_video, unit_text = unit(video_BD), unit(text_BD)
        t2v, v2t = clip_contrast(batch, unit_video, unit_text, self.log_scale.exp())
        objective = (t2v + v2t) / 2
        log = {"loss/text_to_video": t2v, "loss/video_to_text": v2t}
        if self.config.ckc_weight and (self.index > 0 or self.config.ckc_first_task):
            with torch.no_grad():
                z_B2D = torch.stack(self._features(self.before.module, batch), dim=1)
            h_B2D = self.projector(torch.stack([video_BD, text_BD], dim=1))
            h, z = (x if self.config.ckc_shape == "stack" else x.flatten(1)[:, None] for x in (h_B2D, z_B2D))
            ckc = knowledge_contrast(batch, h, z, self.config.ckc_temperature)
            objective, log = objective + self.config.ckc_weight * ckc, log | {"loss/ckc": ckc}
        return StepOutput(objectives=objective, log=log, features={"video": unit_video, "text": unit_text})

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Clamp the scale."""
        self.log_scale.clamp_(max=math.log(self.config.largest_scale))

    def end_task(self, task: Task) -> tuple[int, ...]:
        """Merge by half, and begin a new pair."""
        restart_lora(self.online, self.config.merged_share)
        return ()

    def encoder(self) -> FrameTowers:
        """The towers with LoRA."""
        return self.online

    def _trained(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.online.named_parameters() if p.requires_grad}

    @torch.enable_grad()
    def _moved_by_text(self) -> set[str]:
        """Names of what trains in the text tower: what the embedding of a caption depends on."""
        tokens = Tokens(torch.ones(1, 2, dtype=torch.int64), torch.ones(1, 2, dtype=torch.bool))
        params = self._trained()
        grads = torch.autograd.grad(self.online.project_text(tokens).sum(), [*params.values()], allow_unused=True)
        return {name for name, grad in zip(params, grads, strict=True) if grad is not None}

    @staticmethod
    def _features(towers: FrameTowers, rows: Rows) -> tuple[Tensor, Tensor]:
        """Of videos and captions, (B, D), of any length."""
        return towers.embed_frames(rows.video).mean(dim=1), towers.project_text(rows.text)
