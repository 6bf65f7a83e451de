"""Weighted nearest neighbours beside a plain loop and numbers by hand, in blocks of any size."""

import math

import pytest
import torch
from torch import Tensor

from kinoray.evaluation import classification as nearest_file
from kinoray.evaluation.classification import nearest, votes


def pictures(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(seed))


def in_loops(queries: Tensor, bank: Tensor, classes: list[int], num_classes: int, k: int, temperature: float):
    """The same from cosines on, one number at a time."""
    unit = [torch.nn.functional.normalize(rows, dim=1) for rows in (queries, bank)]
    scores = []
    for cosines in (unit[0] @ unit[1].T).tolist():
        order = sorted(range(len(cosines)), key=lambda place: -cosines[place])
        of_class = [0.0] * num_classes
        for place in order[:k]:
            of_class[classes[place]] += math.exp(cosines[place] / temperature)
        scores.append(of_class)
    return torch.tensor(scores, dtype=torch.float64)


@pytest.mark.parametrize("k", [1, 3, 200])
def test_scores_are_those_of_plain_loops(k: int) -> None:
    queries, bank, classes = pictures(20), pictures(30, seed=1), torch.arange(30) % 4
    similarity, places = nearest(queries, bank, k)
    shares = votes(similarity, classes[places], num_classes=4, temperature=0.1)
    torch.testing.assert_close(shares, in_loops(queries, bank, classes.tolist(), 4, k, 0.1), rtol=1e-12, atol=0)


def test_votes_are_those_by_hand() -> None:
    """InsDisc, Sec. 3.4: a neighbour votes exp(cosine / T) for its class: e^9 against e^8 + e^7."""
    cosines = torch.tensor([[0.9, 0.8, 0.7]], dtype=torch.float64)
    shares = votes(cosines, torch.tensor([[0, 1, 1]]), num_classes=2, temperature=0.1)
    assert shares.tolist() == [[pytest.approx(8103.0839, abs=1e-4), pytest.approx(4077.5911, abs=1e-4)]]


def test_blocks_of_queries_change_nothing_but_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, bank = pictures(17), pictures(30, seed=1)
    whole = nearest(queries, bank, 5)
    monkeypatch.setattr(nearest_file, "SCORES_NUMEL", 3 * len(bank))
    blocks = nearest(queries, bank, 5)
    assert torch.equal(blocks[1], whole[1])
    torch.testing.assert_close(blocks[0], whole[0], rtol=0, atol=1e-6)


def test_fewer_neighbours_are_the_first_of_more_and_no_more_than_the_bank_holds() -> None:
    queries, bank = pictures(8), pictures(10, seed=1)
    many, places = nearest(queries, bank, 200)
    assert many.shape == (8, 10) and (many.diff(dim=1) <= 0).all()
    few, first = nearest(queries, bank, 3)
    assert torch.equal(few, many[:, :3]) and torch.equal(first, places[:, :3])


def test_the_length_of_features_does_not_matter() -> None:
    queries, bank = pictures(8), pictures(10, seed=1)
    assert torch.equal(nearest(8.0 * queries, 0.25 * bank, 4)[1], nearest(queries, bank, 4)[1])


@pytest.mark.parametrize(("count", "k"), [(0, 3), (10, 0)])
def test_without_a_bank_or_neighbours_it_says_so(count: int, k: int) -> None:
    with pytest.raises(ValueError, match=rf"got {count} pictures and k={k}"):
        nearest(pictures(2), pictures(count), k)
