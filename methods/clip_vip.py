"""CLIP-ViP (Xue et al., ICLR 2023): video proxy tokens look at all frames. A rival of FrameFusionMoE.

All frames are one sequence, in front of it the class token and a few more, the proxies. Patches look at the proxies and
at their own frame, proxies at everything; the first proxy is the video.

    x = [p_1 .. p_M, patches of frame 1 + e_1, .., patches of frame T + e_T],    z^V = W_V LN(block_12(.. x ..)_1)

Differs: it starts from plain CLIP, as in FrameFusionMoE's Table 1, not from weights pre-trained on video; added proxies
are drawn from N(0, 1), temporal embeddings are zero at the start. The paper's contrast over captions made by a model
has no part here; the loss is the sum of both directions. Masked attention is one dense product over the sequence.
"""

# B rows   T frames   P patches of a frame   M proxies   L = M + T P tokens   W width   D embedding

import math
from typing import Any

import torch
from torch import Tensor, nn

from kinoray.backbones.backbone import TextTowers
from kinoray.backbones.clip import ClipTowers
from kinoray.config import Capacity, Count, Positive, config
from kinoray.equations import clip_contrast, unit
from kinoray.method import BaseMethod, Batch, ParamGroup, StepInfo, StepOutput, trainable


@config
class Config:
    """Hyper-parameters; those of its code, with FrameFusionMoE's number of proxies."""

    added_proxies: Capacity = 4
    """Beside the class token; the original has 3."""
    temporal: Count = 12
    """Frames that have a temporal embedding; for other numbers they are interpolated."""
    log_scale: Positive = 4.6
    """Where the scale begins: CLIP's own at the end of its training. It learns."""
    largest_scale: Positive = 200.0
    """Of the scale while it learns; CLIP's own is 100."""
    new_rate: Positive = 1.0
    """Multiple of the rate for proxies and temporal embeddings."""


def proxy_mask(proxies: int, frames: int, patches: int, device: torch.device | None = None) -> Tensor:
    """What may not be looked at is -inf, all else 0: (L, L), rows look at columns."""
    frame_of = torch.arange(-proxies, frames * patches, device=device).div(patches, rounding_mode="floor")
    looks = (frame_of[:, None] == frame_of) | (frame_of < 0) | (frame_of[:, None] < 0)
    return torch.zeros(looks.shape, device=device).masked_fill(~looks, -torch.inf)


def temporal_of(temporal_FW: Tensor, frames: int) -> Tensor:
    """An embedding for each frame, (T, W): linear between those there are, for another number of frames.

    Written out, as torch sums the gradient of its own interpolation in no fixed order on a GPU.
    """
    count = len(temporal_FW)
    if frames == count:
        return temporal_FW
    last = count - 1
    place_T = ((torch.arange(frames, device=temporal_FW.device) + 0.5) * count / frames - 0.5).clamp(0, last)
    before_T = place_T.long()
    weights_T1 = (place_T - before_T)[:, None]
    return torch.lerp(temporal_FW[before_T], temporal_FW[(before_T + 1).clamp(max=last)], weights_T1)


class ProxyTowers(TextTowers):
    """CLIP whose videos are embedded by the first proxy of the whole sequence."""

    towers: ClipTowers

    def __init__(self, towers: ClipTowers, proxies_MW: nn.Parameter, temporal_FW: nn.Parameter) -> None:
        """proxies_MW: beside the class token. temporal_FW: an embedding for each of F frames."""
        super().__init__(towers)
        self.proxies, self.temporal = proxies_MW, temporal_FW

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """Unit vectors (B, D)."""
        visual: Any = self.towers.model.visual
        clips, frames = frames_BTCHW.shape[:2]
        patches_BTPW = visual.conv1(frames_BTCHW.flatten(0, 1)).flatten(2).transpose(1, 2).unflatten(0, (clips, frames))
        patches_BTPW = patches_BTPW + visual.positional_embedding[1:] + temporal_of(self.temporal, frames)[:, None]
        proxies_MW = torch.cat([visual.class_embedding[None], self.proxies]) + visual.positional_embedding[0]
        proxies_BMW = proxies_MW.to(patches_BTPW.dtype).expand(clips, -1, -1)
        x_BLW = visual.ln_pre(torch.cat([proxies_BMW, patches_BTPW.flatten(1, 2)], dim=1))
        mask = proxy_mask(len(proxies_MW), frames, patches_BTPW.shape[2], frames_BTCHW.device)
        for block in visual.transformer.resblocks:
            x_BLW = block(x_BLW, attn_mask=mask)
        return unit(visual.ln_post(x_BLW[:, 0]) @ visual.proj)


class Method(BaseMethod):
    """Both towers, proxies and temporal embeddings train by gradient."""

    suits = ("ctvr", "cvlm")
    backbones = ClipTowers
    uses_num_tasks = False

    def __init__(self, config: Config, backbone: ClipTowers, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.online = backbone
        blocks: Any = backbone.vision_blocks
        width: int = blocks[0].attn.embed_dim
        self.proxies = nn.Parameter(torch.randn(config.added_proxies, width))
        self.temporal = nn.Parameter(torch.zeros(config.temporal, width))
        self.log_scale = nn.Parameter(torch.tensor(config.log_scale))

    def param_groups(self) -> dict[str, ParamGroup]:
        """Towers, what is new, and the scale without decay."""
        new = {"proxies": self.proxies, "temporal": self.temporal} if len(self.proxies) else {"temporal": self.temporal}
        return {
            "towers": trainable(self.online, "online"),
            "new": ParamGroup(new, self.config.new_rate),
            "scale": ParamGroup({"log_scale": self.log_scale}, weight_decay=0.0),
        }

    def loss(self, batch: Batch) -> StepOutput:
        """CE over videos + CE over texts. Features: `video` and `text`, those that are tested."""
        towers = self.encoder()
        video_BD, text_BD = towers.embed_video(batch.video), towers.embed_text(batch.text)
        t2v, v2t = clip_contrast(batch, video_BD, text_BD, self.log_scale.exp())
        return StepOutput(
            objectives=t2v + v2t,
            log={"loss/text_to_video": t2v, "loss/video_to_text": v2t},
            features={"video": video_BD, "text": text_BD},
        )

    def after_step(self, carry: dict[str, Tensor], step: StepInfo) -> None:
        """Clamp the scale."""
        self.log_scale.clamp_(max=math.log(self.config.largest_scale))

    def encoder(self) -> "ProxyTowers":
        """The towers with proxies and temporal embeddings."""
        return ProxyTowers(self.online, self.proxies, self.temporal)
