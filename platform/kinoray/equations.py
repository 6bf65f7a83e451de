"""Equations that methods share: pure functions, no state.

Losses return the SUM over the rows they are given; a method divides by the global count, so that gradients and logged
values of several workers add up to those of one:

    loss = info_nce(q, k, self.queue.keys_KD, temperature) / batch.global_size
"""

# B queries on this rank   G rows over all ranks   D embedding   K queue

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST_LOG_SCALE = math.log(100)
"""CLIP (arXiv 2103.00020, Sec. 2.5) clamps the logarithm of its learned scale to this after each step."""


def info_nce(q_BD: Tensor, key_BD: Tensor, queue_KD: Tensor, temperature: float) -> Tensor:
    """Contrast each query with its own key and a queue of others.

        loss = sum_i  -log  exp(q_i.k_i/T) / (exp(q_i.k_i/T) + sum_j exp(q_i.n_j/T))

    Shapes:  q_BD, key_BD (B, D); queue_KD (K, D); returns a scalar, summed over rows.
    Ranges:  rows have unit norm; temperature > 0.
    Gradient: to q_BD only when keys and queue are detached, as they are meant to be.
    Source:  MoCo (arXiv 1911.05722), Eq. 1; BMU-MoCo, Eqs. 10-11.
    """
    return info_nce_families(q_BD, [key_BD], [queue_KD], temperature)


def info_nce_families(
    q_BD: Tensor, keys_BD: Sequence[Tensor], queues_KD: Sequence[Tensor], temperature: float
) -> Tensor:
    """One softmax with a positive and a queue from each of several families of keys.

        loss = sum_i -log (e^a + e^b) / (e^a + e^b + sum_j (e^{n_j} + e^{m_j})),   a = q_i.k_i/T, b = q_i.k~_i/T, ...

    It is not the sum of several InfoNCE losses; it equals one of them when all families are identical.

    Shapes:  as in `info_nce`, a key and a queue per family; returns a scalar, summed over rows.
    Source:  BMU-MoCo, Eqs. 16-17, with two families.
    """
    with full_precision(q_BD):
        precision = queues_KD[0].dtype
        q_BD = q_BD.to(precision)
        positives = torch.stack([(q_BD * key_BD.to(precision)).sum(dim=1) for key_BD in keys_BD], dim=1)
        logits = torch.cat([positives, *(q_BD @ queue_KD.T for queue_KD in queues_KD)], dim=1) / temperature
        return (logits.logsumexp(dim=1) - logits[:, : len(keys_BD)].logsumexp(dim=1)).sum()


def in_batch_nce(q_BD: Tensor, key_BD: Tensor, keys_GD: Tensor, temperature: float) -> Tensor:
    """Contrast each query with the keys of the whole batch; its own key is among them.

        loss = sum_i  -log  exp(q_i.k_i/T) / sum_j exp(q_i.k_j/T)

    Shapes:  q_BD, key_BD (B, D); keys_GD (G, D), the keys of all ranks (`batch.gather`); returns a scalar, summed over
             rows.
    Ranges:  rows have unit norm; temperature > 0.
    Gradient: to queries and keys.
    Source:  CLIP (arXiv 2103.00020), Fig. 3, one direction; NT-Xent without the other view's negatives.
    """
    with full_precision(q_BD):
        precision = torch.promote_types(keys_GD.dtype, torch.float32)
        q_BD, key_BD, keys_GD = q_BD.to(precision), key_BD.to(precision), keys_GD.to(precision)
        positive_B = (q_BD * key_BD).sum(dim=1) / temperature
        return ((q_BD @ keys_GD.T / temperature).logsumexp(dim=1) - positive_B).sum()


class Gathers(Protocol):
    """What a loss over the rows of all ranks asks of a batch."""

    @property
    def global_size(self) -> int: ...
    @property
    def gather(self) -> Callable[[Tensor], Tensor]: ...


def clip_contrast(batch: Gathers, video_BD: Tensor, text_BD: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Each caption among all videos of the step, and each video among all captions.

        text_to_video = mean_i  -log  exp(s t_i.v_i) / sum_j exp(s t_i.v_j),    video_to_text the other way round

    Shapes:  both (B, D) in matching order; returns two scalars, each this rank's share of a mean over all ranks.
    Ranges:  rows have unit norm; scale > 0, and may learn.
    Gradient: to both, also where they are other ranks' negatives.
    Source:  CLIP (arXiv 2103.00020), Fig. 3.
    """
    videos_GD, texts_GD = batch.gather(video_BD), batch.gather(text_BD)
    text_to_video = in_batch_nce(scale * text_BD, video_BD, videos_GD, 1.0) / batch.global_size
    video_to_text = in_batch_nce(scale * video_BD, text_BD, texts_GD, 1.0) / batch.global_size
    return text_to_video, video_to_text


def soft_cross_entropy(student_BC: Tensor, teacher_BC: Tensor) -> Tensor:
    """Teach one distribution per row to another.

        loss = sum_i  - sum_c softmax(teacher_i)_c log softmax(student_i)_c

    Shapes:  logits (B, C), each already divided by its temperature; returns a scalar, summed over rows.
    Gradient: to the student only when the teacher is detached, as it is meant to be.
    Source:  Hinton et al. (arXiv 1503.02531), without the factor T^2; LwF (arXiv 1606.09282), Eq. 3; Co2L (arXiv
             2106.14413), Eq. 5.
    """
    with full_precision(student_BC):
        precision = torch.promote_types(student_BC.dtype, torch.float32)
        student_BC, teacher_BC = student_BC.to(precision), teacher_BC.to(precision)
        return -(teacher_BC.softmax(dim=1) * student_BC.log_softmax(dim=1)).sum()


def similarities(first_BD: Tensor, second_GD: Tensor, temperature: float) -> Tensor:
    """Logits (B, G) of all pairs of rows: dot products over a temperature, in full precision."""
    with full_precision(first_BD):
        precision = torch.promote_types(first_BD.dtype, torch.float32)
        return first_BD.to(precision) @ second_GD.to(precision).T / temperature


def full_precision(x: Tensor) -> torch.autocast:
    """Leave mixed precision: similarities over a small temperature need the queue's own precision."""
    return torch.autocast(x.device.type, enabled=False)


def unit(x: Tensor) -> Tensor:
    """Rows scaled to unit length, (..., D)."""
    return F.normalize(x, dim=-1)
