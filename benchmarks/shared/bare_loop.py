"""BMU-MoCo's training step by hand, in plain PyTorch: what `step_overhead` and `end_to_end` measure kinoray against.

No benchmark by itself. It imports nothing of kinoray: towers are transformers' own classes, the step is Algorithm 1 of
the paper (full variant) for one task on one process, with fused (`foreach`) optimizer and moving averages.
"""

# B batch   T frames   D embedding   K queue

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Towers(nn.Module):
    """ViT per frame and BERT per token, each projected to `dim` and averaged."""

    def __init__(self, vision: dict[str, Any], text: dict[str, Any], dim: int) -> None:
        """`vision` and `text` are transformers' configurations as dictionaries."""
        # Imported late, and not through kinoray as everywhere else: who builds towers has made torchvision importable.
        from transformers import BertConfig, BertModel, ViTConfig, ViTModel  # noqa: TID251

        super().__init__()
        self.vision = ViTModel(ViTConfig.from_dict(vision), add_pooling_layer=False)
        self.text = BertModel(BertConfig.from_dict(text), add_pooling_layer=False)
        self.vision_projection = nn.Linear(vision["hidden_size"], dim)
        self.text_projection = nn.Linear(text["hidden_size"], dim)

    def embed_video(self, frames_BTCHW: Tensor) -> Tensor:
        """Unit vectors (B, D)."""
        clips, frames = frames_BTCHW.shape[:2]
        states = self.vision(frames_BTCHW.flatten(0, 1)).last_hidden_state
        return F.normalize(self.vision_projection(states[:, 0]).view(clips, frames, -1).mean(dim=1), dim=-1)

    def embed_text(self, ids_BL: Tensor, mask_BL: Tensor) -> Tensor:
        """Unit vectors (B, D)."""
        states = self.text(input_ids=ids_BL, attention_mask=mask_BL).last_hidden_state
        mask = mask_BL.unsqueeze(-1).float()
        return F.normalize((self.text_projection(states) * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)


class BareLoop:
    """Encoders, local and global averages, four queues, an optimizer, and the step over them."""

    def __init__(
        self,
        towers: Towers,
        queues: dict[str, Tensor],
        optimizer: type[torch.optim.Optimizer],
        learning_rate: float,
        weight_decay: float,
        temperature: float = 0.07,
        m: float = 0.99,
        m_hat: float = 0.99,
    ) -> None:
        """`queues`: the first keys (K, D), unit rows, named local_video, local_text, global_video, global_text."""
        self.online = towers
        self.local, self.across = (copy.deepcopy(towers).requires_grad_(False).eval() for _ in range(2))
        self.queues = queues
        self.cursor = 0
        self.params: list[Tensor] = list(towers.parameters())
        self.averages: list[list[Tensor]] = [list(towers.parameters()) for towers in (self.local, self.across)]
        options: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay, "foreach": True}
        self.optimizer = optimizer(self.params, **options)
        self.temperature, self.m, self.m_hat = temperature, m, m_hat

    def step(self, frames: Tensor, ids: Tensor, mask: Tensor) -> float:
        """One optimizer step on normalised frames (B, T, 3, H, W) and tokens (B, L); B divides K. Returns the loss."""
        q_video, q_text = self.online.embed_video(frames), self.online.embed_text(ids, mask)
        with torch.no_grad():
            local_video, local_text = self.local.embed_video(frames), self.local.embed_text(ids, mask)
            global_video, global_text = self.across.embed_video(frames), self.across.embed_text(ids, mask)
        loss = self._contrast(q_video, local_text, global_text, "text")
        loss = loss + self._contrast(q_text, local_video, global_video, "video")
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            for average in self.averages:
                torch._foreach_lerp_(self.params, average, 1 - self.m_hat)
            for average in self.averages:
                torch._foreach_lerp_(average, self.params, 1 - self.m)
        self._enqueue(
            local_video=local_video, local_text=local_text, global_video=global_video, global_text=global_text
        )
        return loss.item()

    def _contrast(self, q_BD: Tensor, local_BD: Tensor, global_BD: Tensor, kind: str) -> Tensor:
        """One softmax with two positives and two queues (Eqs. 16-17)."""
        positives = torch.stack([(q_BD * local_BD).sum(dim=1), (q_BD * global_BD).sum(dim=1)], dim=1)
        negatives = [q_BD @ self.queues[f"{family}_{kind}"].T for family in ("local", "global")]
        logits = torch.cat([positives, *negatives], dim=1) / self.temperature
        return (logits.logsumexp(dim=1) - logits[:, :2].logsumexp(dim=1)).mean()

    def _enqueue(self, **keys_BD: Tensor) -> None:
        """Replace the oldest keys."""
        for name, keys in keys_BD.items():
            self.queues[name][self.cursor : self.cursor + len(keys)] = keys
        self.cursor = (self.cursor + len(keys)) % len(self.queues[name])
