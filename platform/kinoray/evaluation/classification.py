"""Classes of pictures told by their features: by the votes of neighbours, or by a linear probe.

Candidates are the classes of the training pictures that a picture is compared with. Every split is embedded once in an
evaluation, so its cost is linear in the number of tasks; what follows takes seconds, on the first rank.

Neighbours vote with weights (InsDisc, Wu et al., 2018). The linear probe takes seconds: multinomial logistic regression
on features that were embedded once, by L-BFGS. It stands for MoCo's probe (100 epochs of SGD;
`methods/classify.py`) after every task, where that one would take minutes. Features are standardised by the training
pictures' mean and deviation: those of self-supervised encoders differ in scale by orders of magnitude, and one
penalty then serves them all.

Differs: one view without augmentation, and the minimum of a penalised loss. SGD of so many epochs ends before its own
minimum on few pictures: on `shapes-5` it tells 1.5 points fewer than the probe whose penalty validation chooses. So the
penalty is one that agrees with SGD there, and it is of the summed loss, for more pictures also mean more steps of SGD.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from kinoray.errors import BadData
from kinoray.evaluation.tester import Clips, Tester
from kinoray.metrics import Ranks, class_ranks
from kinoray.training.stages import Stage

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
        raise ValueError(f"kNN needs a bank of pictures and `k >= 1`, but got {len(bank_NF)} pictures and {k=}.")
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


PENALTY = 2.0
"""Half of it times the squared weights is added to the loss summed over the pictures. Mean accuracy less that of SGD on
MoCo's encoders of `shapes-5`, 8 seeds: +1.5 points with 1, +0.2 with 2, -1.7 with 4. Other streams were not measured
(benchmarks/probe.py --stream)."""
MAX_STEPS = 200
TOLERANCE = 1e-5
"""Steps end where no element of the gradient is larger; gradients are those of a mean over pictures."""


@dataclass(frozen=True)
class Bank:
    """Training pictures to compare with, or to fit a probe on."""

    features: Tensor
    """(N, F)"""
    places: Tensor
    """Place of each picture's class in `classes`, (N,) int64."""
    classes: np.ndarray
    """Numbers of the candidate classes, ascending, (C,)."""


@dataclass(frozen=True)
class LinearProbe:
    """What was fitted."""

    mean: Tensor
    deviation: Tensor
    """Of the training features, (F,)."""
    weight: Tensor
    """(F + 1, C) for standardised features; the last row is the bias."""

    def logits(self, features_NF: Tensor) -> Tensor:
        """Scores of the classes, (N, C)."""
        return with_ones((features_NF.to(self.mean) - self.mean) / self.deviation) @ self.weight


def fit_probe(train: Bank, penalty: float = PENALTY, tolerance: float = TOLERANCE) -> LinearProbe:
    """The weights that minimise `probe_loss` on standardised features, from zeros.

    The whole set at every step, in the features' precision: the same numbers give the same probe. No graph is held.
    """
    mean, deviation = train.features.mean(dim=0), train.features.std(dim=0, correction=0)
    constant = deviation <= 1e-5 * mean.abs()  # but for rounding
    deviation = torch.where(constant, 1.0, deviation)
    inputs = with_ones((train.features - mean) / deviation)
    weight = inputs.new_zeros(inputs.shape[1], len(train.classes)).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight],
        max_iter=MAX_STEPS,
        tolerance_grad=tolerance,
        tolerance_change=0.0,
        history_size=10,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        value, weight.grad = probe_loss(weight.detach(), inputs, train.places, penalty / len(inputs))
        return value

    optimizer.step(loss)
    return LinearProbe(mean, deviation, weight.detach())


def probe_loss(weight: Tensor, inputs: Tensor, classes: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Penalised cross-entropy, a scalar, and its gradient (F + 1, C).

        loss = mean_i -log softmax(x_i W)[c_i] + strength / 2 * ||W without its last row, the bias||^2

    Shapes: weight (F + 1, C); inputs (N, F + 1), the last column ones; classes (N,).
    """
    log_p = torch.log_softmax(inputs @ weight, dim=1)
    own = classes[:, None]
    penalised = torch.cat([weight[:-1], torch.zeros_like(weight[-1:])])
    loss = -log_p.gather(1, own).mean() + strength / 2 * penalised.square().sum()
    residual = log_p.exp_().scatter_add_(1, own, -torch.ones_like(own, dtype=log_p.dtype))  # p - onehot
    return loss, (inputs.T @ residual).div_(len(inputs)) + strength * penalised


def with_ones(features_NF: Tensor) -> Tensor:
    """A column of ones beside the features, for the bias: (N, F + 1)."""
    return torch.cat([features_NF, features_NF.new_ones(len(features_NF), 1)], dim=1)


def validate_by_votes(tester: Tester, task: int) -> Ranks:
    """Ranks of the classes of a trained task's validation pictures, by the votes of its training pictures."""
    recipe = tester.reader.recipe
    bank = bank_of(tester, [pictures(tester, task, "train", task, recipe.knn_space, trained=True)])
    queries = pictures(tester, task, "validation", task, recipe.knn_space, trained=True)
    (ranks,) = tester.on_first_rank(partial(ranks_by_votes, tester, bank, queries, [recipe.knn_k]))
    return ranks


def votes_within_tasks(tester: Tester, stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
    """Ranks of the classes of a stage's pictures: "" by `knn_k` votes, "released" by as many as the stage has tasks.

    The bank of a task is its own training pictures or, at knn_bank=all, those of all the stage's tasks. Then a method
    that has an encoder per task is asked for the newest one's features: those of different encoders do not compare.
    """
    recipe = tester.reader.recipe
    alone, space = recipe.knn_bank == "task", recipe.knn_space
    ks = {"": recipe.knn_k, "released": min(recipe.knn_k, len(stage.tests))}
    ranks: dict[str, dict[int, Ranks]] = {reading: {} for reading in ks}
    for task in stage.tests:
        seen_as = stage.seen_as(task) if alone else stage.grown
        among = (task,) if alone else stage.tests
        train = [pictures(tester, other, "train", seen_as, space) for other in among]
        bank = tester.once(("bank", among), partial(bank_of, tester, train))
        queries = pictures(tester, task, split, seen_as, space)
        note(tester, queries)
        by_votes = tester.on_first_rank(partial(ranks_by_votes, tester, bank, queries, list(ks.values())))
        for reading, of_task in zip(ks, by_votes, strict=True):
            ranks[reading][task] = of_task
    return ranks


def probe_of_all_classes(tester: Tester, stage: Stage, split: str) -> dict[str, dict[int, Ranks]]:
    """Ranks of the classes of a stage's pictures among those of all its tasks: "" by a linear probe, "knn" by votes.

    Both learn from the training pictures of all the stage's tasks. A method that has an encoder per task is asked for
    the newest one's features: nobody says here which task a picture is of.
    """
    recipe, tasks, newest = tester.reader.recipe, stage.tests, stage.grown

    def of(split: str, space: str) -> list[Clips]:
        return [pictures(tester, task, split, newest, space) for task in tasks]

    train, tested = (of(part, "features") for part in ("train", split))
    near_train, near_tested = (of(part, recipe.knn_space) for part in ("train", split))
    for queries in tested:
        note(tester, queries)

    def both() -> dict[str, dict[int, Ranks]]:
        bank = tester.once("bank", partial(bank_of, tester, train))
        probe = tester.once("probe", partial(probe_of, tester, bank))
        near = bank if recipe.knn_space == "features" else bank_of(tester, near_train)
        told = [ranks_by_probe(tester, probe, bank, queries) for queries in tested]
        voted = [ranks_by_votes(tester, near, queries, [recipe.knn_k])[0] for queries in near_tested]
        return {"": dict(zip(tasks, told, strict=True)), "knn": dict(zip(tasks, voted, strict=True))}

    return tester.on_first_rank(both)


def pictures(tester: Tester, task: int, split: str, seen_as: int, space: str, trained: bool = False) -> Clips:
    """A split with its features, seen as the pictures of a task, in the space of `Recipe.knn_space`."""
    if space == "embedding":
        embed = partial(tester.gallery, task, split, seen_as, trained)
    else:
        method, kind = tester.method, f"probe-{seen_as}"
        embed = partial(tester.embed, task, split, lambda video: method.probe_features(video, seen_as), trained, kind)
    return tester.once((task, split, seen_as, space), embed)


def bank_of(tester: Tester, parts: Sequence[Clips]) -> Bank:
    """The pictures of some splits as one bank. Raises: BadData for a picture without a label."""
    labels = np.concatenate([tester.labels(part) for part in parts])
    if (labels < 0).any():
        ids = [f"{tester.run.names[part.task]}/{clip}" for part in parts for clip in part.ids]
        raise BadData(
            f"The training picture {ids[int(np.argmin(labels))]!r} has no label, which nearest-neighbour tests need. "
            "Label every training picture, or use a stream of another protocol."
        )
    classes, places = np.unique(labels, return_inverse=True)
    return Bank(torch.cat([part.features for part in parts]), torch.from_numpy(places), classes)


def probe_of(tester: Tester, bank: Bank) -> LinearProbe:
    """The linear probe of a bank, on the run's device."""
    device = tester.reader.world.device
    return fit_probe(Bank(bank.features.to(device), bank.places.to(device), bank.classes))


def ranks_by_probe(tester: Tester, probe: LinearProbe, bank: Bank, queries: Clips) -> Ranks:
    """Ranks of the queries' classes by the probe's scores."""
    return ranks_among(probe.logits(queries.features).cpu(), places_in(tester, bank, queries))


def ranks_by_votes(tester: Tester, bank: Bank, queries: Clips, ks: Sequence[int]) -> list[Ranks]:
    """Ranks of the queries' classes by the votes of their k nearest neighbours in the bank, for each k."""
    temperature, truth = tester.reader.recipe.knn_temperature, places_in(tester, bank, queries)
    similarity, place = nearest(queries.features, bank.features.to(tester.reader.world.device), max(ks))
    of_class = bank.places[place]
    scores = (votes(similarity[:, :k], of_class[:, :k], len(bank.classes), temperature) for k in ks)
    return [ranks_among(part, truth) for part in scores]


def places_in(tester: Tester, bank: Bank, clips: Clips) -> np.ndarray:
    """Place of each clip's class among the bank's, (V,); C for a class without training pictures, which nobody tells.

    Raises: BadData for a clip without a label.
    """
    labels = tester.labels(clips)
    if (labels < 0).any():
        clip = clips.ids[int(np.argmin(labels))]
        raise BadData(
            f"The {clips.split} picture {clip!r} of task {tester.run.names[clips.task]!r} has no label, or one that no "
            "task trains on. Label every picture, and give every class training pictures."
        )
    places = np.searchsorted(bank.classes, labels).clip(max=len(bank.classes) - 1)
    return np.where(bank.classes[places] == labels, places, len(bank.classes))


def ranks_among(scores_QC: Tensor, places_Q: np.ndarray) -> Ranks:
    """Ranks by class scores; a class that is not among them comes last."""
    nobodys = scores_QC.new_full((len(scores_QC), 1), -torch.inf)
    known = not (places_Q == scores_QC.shape[1]).any()
    return class_ranks((scores_QC if known else torch.cat([scores_QC, nobodys], dim=1)).numpy(), places_Q)


def note(tester: Tester, queries: Clips) -> None:
    """Remember which pictures of a test split were ranked."""
    if queries.split == "test":
        samples = np.searchsorted(queries.manifest.samples("test")[0], queries.rows)
        tester.note_queries(queries.task, samples, queries.ids)
