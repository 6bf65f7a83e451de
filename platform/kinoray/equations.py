"""Equations that methods share: pure functions, no state.

Losses return the SUM over the rows they are given; a method divides by the global count, so that gradients and logged
values of several workers add up to those of one:

    loss = info_nce(q, k, self.queue.keys_KD, temperature) / batch.global_size
"""

# B queries on this rank   G rows over all ranks   D embedding   K queue

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


def info_nce(q_BD: Tensor, key_BD: Tensor, queue_KD: Tensor, temperature: float) -> Tensor:
    """Contrast each query with its own key and a queue of others.

        loss = sum_i  -log  exp(q_i.k_i/T) / (exp(q_i.k_i/T) + sum_j exp(q_i.n_j/T))

    Args:
        q_BD: Queries (B, D), rows of unit norm.
        key_BD: Their keys (B, D), rows of unit norm.
        queue_KD: Other keys (K, D), rows of unit norm.
        temperature: T > 0.

    Returns:
        A scalar, summed over rows.

    Gradient:
        To q_BD only when keys and queue are detached, as they are meant to be.

    Source:
        MoCo (arXiv 1911.05722), Eq. 1; BMU-MoCo, Eqs. 10-11.
    """
    return info_nce_families(q_BD, [key_BD], [queue_KD], temperature)


def info_nce_families(
    q_BD: Tensor, keys_BD: Sequence[Tensor], queues_KD: Sequence[Tensor], temperature: float
) -> Tensor:
    """One softmax with a positive and a queue from each of several families of keys.

        loss = sum_i -log (e^a + e^b) / (e^a + e^b + sum_j (e^{n_j} + e^{m_j})),   a = q_i.k_i/T, b = q_i.k~_i/T, ...

    It is not the sum of several InfoNCE losses; it equals one of them when all families are identical.

    Args:
        q_BD: Queries (B, D), rows of unit norm.
        keys_BD: Of each family the queries' keys (B, D), rows of unit norm.
        queues_KD: Of each family other keys (K, D), rows of unit norm.
        temperature: T > 0.

    Returns:
        A scalar, summed over rows.

    Source:
        BMU-MoCo, Eqs. 16-17, with two families.
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

    Args:
        q_BD: Queries (B, D), rows of unit norm.
        key_BD: Their keys (B, D), rows of unit norm.
        keys_GD: The keys of all ranks (G, D) (`batch.gather`).
        temperature: T > 0.

    Returns:
        A scalar, summed over rows.

    Gradient:
        To queries and keys.

    Source:
        CLIP (arXiv 2103.00020), Fig. 3, one direction; NT-Xent without the other view's negatives.
    """
    with full_precision(q_BD):
        precision = torch.promote_types(keys_GD.dtype, torch.float32)
        q_BD, key_BD, keys_GD = q_BD.to(precision), key_BD.to(precision), keys_GD.to(precision)
        positive_B = (q_BD * key_BD).sum(dim=1) / temperature
        return ((q_BD @ keys_GD.T / temperature).logsumexp(dim=1) - positive_B).sum()


def nt_xent(z_BD: Tensor, other_BD: Tensor, all_GD: Tensor, all_other_GD: Tensor, own_B: Tensor, T: float) -> Tensor:
    """Contrast both views of each picture with all other views of the step; a view is no negative of itself.

        loss = sum_i  l(z_i, z'_i) + l(z'_i, z_i),    l(a, b) = -log  exp(a.b/T) / sum_{c not a} exp(a.c/T)

    Args:
        z_BD: The first views (B, D), rows of unit norm.
        other_BD: The second views (B, D), rows of unit norm.
        all_GD: The first views of all ranks (G, D).
        all_other_GD: The second views of all ranks (G, D).
        own_B: Positions of this rank's rows among those, (B,).
        T: Temperature, > 0.

    Returns:
        A scalar, summed over rows; SimCLR's mean is over 2 G terms.

    Gradient:
        To all.

    Source:
        SimCLR (arXiv 2002.05709), Eq. 1.
    """
    with full_precision(z_BD):
        precision = torch.promote_types(z_BD.dtype, torch.float32)
        views_2GD = torch.cat([all_GD, all_other_GD]).to(precision)
        losses = []
        for a_BD, b_BD, shift in ((z_BD, other_BD, 0), (other_BD, z_BD, len(all_GD))):
            a_BD, b_BD = a_BD.to(precision), b_BD.to(precision)
            logits_B2G = a_BD @ views_2GD.T / T
            logits_B2G = logits_B2G.scatter(1, (own_B + shift)[:, None], -torch.inf)
            losses.append((logits_B2G.logsumexp(dim=1) - (a_BD * b_BD).sum(dim=1) / T).sum())
        return losses[0] + losses[1]


def noise_contrast(positive_B: Tensor, negative_BK: Tensor, num_samples: int) -> Tensor:
    """Tell the right sample from K that are drawn evenly from all N (noise-contrastive estimation).

        loss = -sum_i [ log P_i / (P_i + K/N + e) + sum_k log (K/N) / (P_ik + K/N + e) ],   e = 1e-7

    Args:
        positive_B: Probabilities exp(v.f/T) / Z of the right samples, (B,).
        negative_BK: Those of the drawn ones, (B, K).
        num_samples: N.

    Returns:
        A scalar, summed over rows.

    Source:
        InsDisc (arXiv 1805.01978), Eqs. 5-8; e is of its released code.
    """
    noise = negative_BK.shape[1] / num_samples
    right_B = (positive_B / (positive_B + noise + 1e-7)).log()
    wrong_BK = (noise / (negative_BK + noise + 1e-7)).log()
    return -(right_B.sum() + wrong_BK.sum())


def negative_cosine(prediction_BD: Tensor, target_BD: Tensor) -> Tensor:
    """Minus the cosine of each prediction to a target that gets no gradient.

    Args:
        prediction_BD: Predictions (B, D), of any length.
        target_BD: Targets (B, D), of any length.

    Returns:
        A scalar, summed over rows.

    Source:
        SimSiam (arXiv 2011.10566), Eq. 1.
    """
    with full_precision(prediction_BD):
        return -F.cosine_similarity(prediction_BD.float(), target_BD.detach().float(), dim=1).sum()


class Gathers(Protocol):
    """What a loss over the rows of all ranks asks of a batch."""

    @property
    def global_size(self) -> int: ...
    @property
    def gather(self) -> Callable[[Tensor], Tensor]: ...


def clip_contrast(batch: Gathers, video_BD: Tensor, text_BD: Tensor, scale: Tensor | float) -> tuple[Tensor, Tensor]:
    """Each caption among all videos of the step, and each video among all captions.

        text_to_video = mean_i  -log  exp(s t_i.v_i) / sum_j exp(s t_i.v_j),    video_to_text the other way round

    Args:
        batch: Gathers the rows of all ranks.
        video_BD: Videos (B, D), rows of unit norm.
        text_BD: Their captions (B, D), rows of unit norm.
        scale: s > 0; it may learn.

    Returns:
        Two scalars, each this rank's share of a mean over all ranks.

    Gradient:
        To both, also where they are other ranks' negatives.

    Source:
        CLIP (arXiv 2103.00020), Fig. 3.
    """
    videos_GD, texts_GD = batch.gather(video_BD), batch.gather(text_BD)
    text_to_video = in_batch_nce(scale * text_BD, video_BD, videos_GD, 1.0) / batch.global_size
    video_to_text = in_batch_nce(scale * video_BD, text_BD, texts_GD, 1.0) / batch.global_size
    return text_to_video, video_to_text


def soft_cross_entropy(student_BC: Tensor, teacher_BC: Tensor) -> Tensor:
    """Teach one distribution per row to another.

        loss = sum_i  - sum_c softmax(teacher_i)_c log softmax(student_i)_c

    Args:
        student_BC: Logits (B, C), divided by their temperature.
        teacher_BC: Logits (B, C), divided by their temperature.

    Returns:
        A scalar, summed over rows.

    Gradient:
        To the student only when the teacher is detached, as it is meant to be.

    Source:
        Hinton et al. (arXiv 1503.02531), without the factor T^2; LwF (arXiv 1606.09282), Eq. 3; Co2L (arXiv
        2106.14413), Eq. 5.
    """
    with full_precision(student_BC):
        precision = torch.promote_types(student_BC.dtype, torch.float32)
        student_BC, teacher_BC = student_BC.to(precision), teacher_BC.to(precision)
        return -(teacher_BC.softmax(dim=1) * student_BC.log_softmax(dim=1)).sum()


def similarities(first_BD: Tensor, second_GD: Tensor, temperature: float) -> Tensor:
    """Logits of all pairs of rows: dot products over a temperature, in full precision.

    Args:
        first_BD: Rows (B, D).
        second_GD: Rows (G, D).
        temperature: > 0.

    Returns:
        Logits (B, G).
    """
    with full_precision(first_BD):
        precision = torch.promote_types(first_BD.dtype, torch.float32)
        return first_BD.to(precision) @ second_GD.to(precision).T / temperature


def scores_kept(
    batch: Gathers, now_BD: Tensor, old_BD: Tensor, others_BD: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """How differently rows are scored against others that stay as they were, by rows and by columns of the scores.

        s = x others^T / T,    sum_i CE(softmax(old s_i), s_i)  and the same of s^T

    Args:
        batch: Gathers the rows of all ranks.
        now_BD: This rank's rows as they are now, (B, D).
        old_BD: The same as they were, (B, D).
        others_BD: What both are scored against, (B, D).
        temperature: T > 0.

    Returns:
        Two scalars, summed over this rank's rows, and columns.

    Gradient:
        To now_BD alone when the others are detached, as they are meant to be.

    Source:
        ZSCL (arXiv 2303.06628), Eq. 2, in both directions as its code has it.
    """
    others_GD, now_GD, old_GD = batch.gather(others_BD), batch.gather(now_BD), batch.gather(old_BD)
    rows = soft_cross_entropy(*(similarities(x, others_GD, temperature) for x in (now_BD, old_BD)))
    columns = soft_cross_entropy(*(similarities(others_BD, x, temperature) for x in (now_GD, old_GD)))
    return rows, columns


def lifted(rows_NL: Tensor, random_LM: Tensor) -> Tensor:
    """ReLU(x W_rand) in double precision; the rows themselves where the random matrix has no columns.

    Args:
        rows_NL: x (N, L).
        random_LM: W_rand (L, M), or (L, 0).

    Returns:
        Rows (N, M), or (N, L).
    """
    return (rows_NL.double() @ random_LM).relu() if random_LM.shape[1] else rows_NL.double()


def ridge_moments(rows_NL: Tensor, y_NC: Tensor, random_LM: Tensor) -> Tensor:
    """The sums H^T H and H^T Y of lifted rows H, some at a time; those of parts add up to the whole's.

    Args:
        rows_NL: Rows (N, L).
        y_NC: What each is to give, (N, C), in double precision.
        random_LM: As of `lifted`, (L, M), in double precision.

    Returns:
        [H^T H, H^T Y] side by side, (M, M + C).
    """
    width = random_LM.shape[1] or len(random_LM)
    total_MK = random_LM.new_zeros(width, width + y_NC.shape[1])
    for rows, y in zip(rows_NL.split(1024), y_NC.split(1024), strict=True):
        h = lifted(rows, random_LM)
        total_MK += h.T @ torch.cat([h, y], dim=1)
    return total_MK


def ridge_weights(moments_MK: Tensor, ridge: float) -> Tensor:
    """Ridge regression by its two sums.

        W = (H^T H + ridge I)^-1 H^T Y

    Args:
        moments_MK: [H^T H, H^T Y], (M, M + C), of `ridge_moments`; [K, Y] gives the weights of a kernel's rows.
        ridge: >= 0.

    Returns:
        Weights W (M, C).

    Source:
        RanPAC (arXiv 2307.02251); RAIL (NeurIPS 2024), which updates the inverse instead, to the same weights.
    """
    size = len(moments_MK)
    products_MM = moments_MK[:, :size] + ridge * torch.eye(size, dtype=moments_MK.dtype, device=moments_MK.device)
    return torch.linalg.solve(products_MM, moments_MK[:, size:])


def classes_named(text_QD: Tensor, captions_TCD: Tensor, alike: float = 0.99) -> Tensor:
    """Which class each text names: the one whose captions in some task are most like it, if alike enough.

    Args:
        text_QD: Texts (Q, D).
        captions_TCD: The sum of each class's captions in each task (T, C, D), in double precision, or 0.
        alike: Least cosine.

    Returns:
        Whether text q names class c, (Q, C) bool.
    """
    cosines_QN = unit(text_QD.double()) @ unit(captions_TCD).flatten(0, 1).T
    if not cosines_QN.shape[1]:
        return cosines_QN.bool()
    named_QN = F.one_hot(cosines_QN.argmax(dim=1), cosines_QN.shape[1]).bool() & (cosines_QN >= alike)
    return named_QN.unflatten(1, captions_TCD.shape[:2]).any(dim=1)


def full_precision(x: Tensor) -> torch.autocast:
    """Leave mixed precision: similarities over a small temperature need the queue's own precision.

    Args:
        x: A tensor on the device of what is computed.
    """
    return torch.autocast(x.device.type, enabled=False)


def unit(x: Tensor) -> Tensor:
    """Rows scaled to unit length.

    Args:
        x: Rows (..., D).

    Returns:
        Rows (..., D).
    """
    return F.normalize(x, dim=-1)
