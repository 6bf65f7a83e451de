"""Weighted nearest neighbours (InsDisc, Wu et al., 2018): the classes of the most similar pictures of a bank vote."""

# Q queries   N pictures of the bank   F features   C classes   k neighbours

import torch
from torch import Tensor, nn

SCORES_NUMEL = 1 << 24
"""Similarities held at a time: 64 MiB of float32."""


def nearest(queries_QF: Tensor, bank_NF: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Cosine similarities (Q, k) and places in the bank (Q, k) of the most similar pictures, the most similar first.

    Features need no unit norm; k is capped at N. The first columns are the answer for a smaller k. Queries are compared
    block by block, so the full matrix of similarities is never held; the work is done where the bank is, the answer
    lies on the CPU.
    Raises: ValueError if the bank is empty or k < 1.
    """
    if not len(bank_NF) or k < 1:
        raise ValueError(f"Neighbours need a bank and `k >= 1`, but got {len(bank_NF)} pictures and {k=}.")
    bank_FN = nn.functional.normalize(bank_NF, dim=1).T
    parts = []
    for block in queries_QF.split(max(1, SCORES_NUMEL // len(bank_NF))):
        similarity = nn.functional.normalize(block.to(bank_NF.device), dim=1) @ bank_FN
        values, places = similarity.topk(min(k, len(bank_NF)), dim=1)
        parts.append((values.cpu(), places.cpu()))
    return torch.cat([values for values, _ in parts]), torch.cat([places for _, places in parts])


def votes(similarity_Qk: Tensor, classes_Qk: Tensor, num_classes: int, temperature: float) -> Tensor:
    """Sum over the neighbours of each class of their weights: (Q, C) float64; 0 for a class without neighbours.

        score_c = sum_{j: class_j = c} exp(s_j / T)

    Shapes:  similarity_Qk cosines in [-1, 1]; classes_Qk int64 in 0..C-1.
    Ranges:  temperature >= 0.01: exp overflows far below.
    Source:  arXiv 1805.01978, Sec. 3.4.
    """
    weights = (similarity_Qk.double() / temperature).exp()
    return weights.new_zeros(len(weights), num_classes).scatter_add_(1, classes_Qk, weights)
