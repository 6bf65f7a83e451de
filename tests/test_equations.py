"""The shared losses against numbers worked out elsewhere, plain loops and limits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kinoray.equations import (
    classes_named,
    in_batch_nce,
    info_nce,
    info_nce_families,
    negative_cosine,
    noise_contrast,
    nt_xent,
    ridge_moments,
    ridge_weights,
    soft_cross_entropy,
    unit,
)

# Logits of an example for BMU-MoCo's loss, already divided by the temperature.
LOCAL, GLOBAL = 2.0, 1.0
LOCAL_NEGATIVES, GLOBAL_NEGATIVES = (0.5, -0.5), (0.0, 1.0)


def along(*values: float) -> torch.Tensor:
    """Rows (K, 2) whose product with (1, 0) is each value; the losses do not need unit rows."""
    return torch.tensor([[value, 0.3] for value in values], dtype=torch.float64)


Q = torch.tensor([[1.0, 0.0]], dtype=torch.float64)


def test_one_family_gives_the_worked_numbers() -> None:
    assert info_nce(Q, along(LOCAL), along(*LOCAL_NEGATIVES), 1.0).item() == pytest.approx(0.2663678998, abs=1e-10)
    assert info_nce(Q, along(GLOBAL), along(*GLOBAL_NEGATIVES), 1.0).item() == pytest.approx(0.8619948041, abs=1e-10)


def test_two_families_in_one_softmax_give_the_worked_number() -> None:
    keys, queues = [along(LOCAL), along(GLOBAL)], [along(*LOCAL_NEGATIVES), along(*GLOBAL_NEGATIVES)]
    both = info_nce_families(Q, keys, queues, temperature=1.0)
    assert both.item() == pytest.approx(0.4643687841, abs=1e-10)


def test_equal_families_equal_the_single_loss() -> None:
    draws = torch.Generator().manual_seed(0)
    q, key, queue = (unit(torch.randn(n, 8, generator=draws, dtype=torch.float64)) for n in (5, 5, 11))
    single = info_nce(q, key, queue, 0.07)
    assert info_nce_families(q, [key, key], [queue, queue], 0.07).item() == pytest.approx(single.item(), rel=1e-12)


def test_equal_similarities_give_log_of_queue_and_one() -> None:
    q = torch.ones(3, 2)
    assert info_nce(q, q, torch.ones(7, 2), 0.5).item() == pytest.approx(3 * math.log(8), rel=1e-6)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 10_000), st.floats(0.05, 2.0))
def test_losses_equal_plain_loops(batch: int, size: int, seed: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, g, queue, other = (
        torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (batch, batch, batch, size, size)
    )
    one = two = 0.0
    for i in range(batch):
        a, b = math.exp(q[i] @ k[i] / temperature), math.exp(q[i] @ g[i] / temperature)
        n = sum(math.exp(q[i] @ row / temperature) for row in queue)
        m = sum(math.exp(q[i] @ row / temperature) for row in other)
        one -= math.log(a / (a + n))
        two -= math.log((a + b) / (a + b + n + m))
    assert info_nce(q, k, queue, temperature).item() == pytest.approx(one, rel=1e-9, abs=1e-9)
    assert info_nce_families(q, [k, g], [queue, other], temperature).item() == pytest.approx(two, rel=1e-9, abs=1e-9)


def test_the_order_of_the_batch_does_not_matter() -> None:
    draws = torch.Generator().manual_seed(0)
    q, key, queue = (unit(torch.randn(n, 8, generator=draws, dtype=torch.float64)) for n in (6, 6, 9))
    order = torch.randperm(6, generator=draws)
    assert info_nce(q[order], key[order], queue, 0.1).item() == pytest.approx(info_nce(q, key, queue, 0.1).item())


@given(st.integers(1, 4), st.integers(0, 3), st.integers(0, 10_000), st.floats(0.1, 2.0))
def test_in_batch_nce_equals_plain_loops(batch: int, others: int, seed: int, temperature: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, keys = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (batch, others + batch))
    loss = 0.0
    for i in range(batch):
        scores = [math.exp(q[i] @ key / temperature) for key in keys]
        loss -= math.log(scores[others + i] / sum(scores))
    assert in_batch_nce(q, keys[others:], keys, temperature).item() == pytest.approx(loss, rel=1e-9, abs=1e-9)


def test_soft_targets_give_the_worked_numbers() -> None:
    """LwF, Eq. 3, at T = 2; then with the factor T^2 of ZSCL's code."""

    def taught(student: tuple[float, float], teacher: tuple[float, float]) -> float:
        logits = torch.tensor([student, teacher], dtype=torch.float64) / 2
        return float(soft_cross_entropy(logits[:1], logits[1:]))

    assert taught((1, 0), (2, 0)) == pytest.approx(0.6085476949, abs=1e-10)
    assert 4 * taught((1, 1), (2, 0)) == pytest.approx(2.7725887222, abs=1e-10)
    assert 4 * taught((2, 0), (2, 0)) == pytest.approx(2.3288124355, abs=1e-10)


def test_nt_xent_gives_the_worked_number_and_equals_a_plain_loop_for_any_share_of_the_rows() -> None:
    z = torch.eye(2, dtype=torch.float64)
    other = torch.tensor([[0.8, 0.6], [0.6, 0.8]], dtype=torch.float64)
    assert nt_xent(z, other, z, other, torch.arange(2), 0.5).item() / 4 == pytest.approx(0.8707137571, abs=1e-10)
    draws = torch.Generator().manual_seed(0)
    first, second = (unit(torch.randn(6, 3, generator=draws, dtype=torch.float64)) for _ in range(2))
    views, size = torch.cat([first, second]), 6
    expected = 0.0
    for i in range(2 * size):
        others = sum(math.exp(views[i] @ views[k] / 0.2) for k in range(2 * size) if k != i)
        expected -= math.log(math.exp(views[i] @ views[(i + size) % (2 * size)] / 0.2) / others)
    shares = [
        nt_xent(first[part], second[part], first, second, torch.arange(6)[part], 0.2).item()
        for part in (slice(0, 2), slice(2, 6))
    ]
    assert sum(shares) == pytest.approx(expected, rel=1e-12)


def test_noise_contrast_gives_the_worked_number() -> None:
    right = torch.tensor([0.01], dtype=torch.float64)
    wrong = torch.tensor([[0.001, 0.002, 0.001, 0.003]], dtype=torch.float64)
    assert noise_contrast(right, wrong, 1000).item() == pytest.approx(1.7479183299, abs=1e-10)


def test_the_negative_cosine_gives_its_target_no_gradient() -> None:
    p, z = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    loss = negative_cosine(p, z)
    cosines = [float(unit(a) @ unit(b)) for a, b in zip(p.detach(), z.detach(), strict=True)]
    assert loss.item() == pytest.approx(-sum(cosines), rel=1e-5)
    loss.backward()
    assert p.grad is not None and z.grad is None


@pytest.mark.parametrize("columns", [0, 7])
def test_a_ridge_regression_is_least_squares_with_rows_of_zeros_whatever_the_parts(columns) -> None:
    draws = torch.Generator().manual_seed(0)
    rows, y = torch.randn(1300, 4, generator=draws), torch.randn(1300, 3, generator=draws, dtype=torch.float64)
    random = torch.randn(4, columns, generator=draws, dtype=torch.float64)
    parts = [slice(0, 1100), slice(1100, 1100), slice(1100, 1300)]
    W = ridge_weights(sum(ridge_moments(rows[part], y[part], random) for part in reversed(parts)), 0.3)
    h = rows.double() @ random if columns else rows.double()
    h = h.clamp(min=0) if columns else h
    stacked = torch.cat([h, 0.3**0.5 * torch.eye(h.shape[1])])
    wanted = torch.linalg.lstsq(stacked, torch.cat([y, torch.zeros(h.shape[1], 3)])).solution
    assert torch.allclose(W, wanted, atol=1e-10)


def test_a_text_names_the_class_whose_captions_it_is_like_or_none() -> None:
    captions = torch.tensor([[(3.0, 0.0), (0.0, 0.1), (0.0, 0.0)]], dtype=torch.float64)
    texts = torch.tensor([(0.0, 1.0), (1.0, 0.0), (0.8, 0.6), (-1.0, 0.0)])
    named = classes_named(texts, captions)
    assert named.tolist() == [[False, True, False], [True, False, False], [False] * 3, [False] * 3]
    assert classes_named(texts, captions[:, :0]).shape == (4, 0), "before any class"
    later = torch.tensor([[(0.0, 0.0), (-2.0, 0.0), (0.0, 0.0)]], dtype=torch.float64)
    assert classes_named(texts, torch.cat([captions, later])).tolist() == [*named.tolist()[:3], [False, True, False]]
    assert classes_named(texts, captions, alike=0.5)[2].tolist() == [True, False, False]
