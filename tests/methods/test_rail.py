"""RAIL beside its closed forms: known vectors, its recursion, any order of tasks, the fusion, numbers and names."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import kinoray
from kinoray.equations import ridge_moments, ridge_weights
from kinoray.method import Tokens
from kinoray.methods.rail import fused, kernel
from kinoray.testing.engine import built, fresh_session, run_spec, spec_of
from kinoray.testing.small_stream import facts_of

SMALL = {"lift": 3.0}
ROWS = torch.tensor([(1, 0), (1, 1), (0, 1), (2, 1)], dtype=torch.float64)
CLASSES = torch.eye(3, dtype=torch.float64)[[0, 1, 2, 2]]
NONE = torch.empty(2, 0, dtype=torch.float64)
QUERY = torch.tensor([(1.0, 0.5)], dtype=torch.float64)


def recursion(rows: np.ndarray, classes: np.ndarray, ridge: float, batch: int) -> np.ndarray:
    """The code's: R first, then W with the new R, batch by batch."""
    R, W = np.eye(rows.shape[1]) / ridge, np.zeros((rows.shape[1], classes.shape[1]))
    for start in range(0, len(rows), batch):
        P, Y = rows[start : start + batch], classes[start : start + batch]
        R = R - R @ P.T @ np.linalg.inv(np.eye(len(P)) + P @ R @ P.T) @ P @ R
        W = W + R @ P.T @ (Y - P @ W)
    return W


def test_the_primal_of_two_tasks_is_the_worked_one_and_the_recursions() -> None:
    first = ridge_moments(ROWS[:2], CLASSES[:2, :2], NONE)
    wanted = [[0.8396946565, 0.0763358779], [-0.7633587786, 0.8396946565]]
    assert np.allclose(ridge_weights(first, 0.1), wanted, atol=1e-10)
    both = torch.nn.functional.pad(first, (0, 1)) + ridge_moments(ROWS[2:], CLASSES[2:], NONE)
    wanted = [[0.3128153380, 0.0100908174, 0.0201816347], [-0.3027245207, 0.3128153380, 0.6256306761]]
    W_MC = ridge_weights(both, 0.1)
    assert np.allclose(W_MC, wanted, atol=1e-10)
    assert np.allclose(QUERY @ W_MC, [0.1614530777, 0.1664984864, 0.3329969728], atol=1e-10)
    for batch in (1, 2, 4):
        assert np.allclose(recursion(ROWS.numpy(), CLASSES.numpy(), 0.1, batch), W_MC, atol=1e-12)
    linear = ridge_weights(torch.cat([ROWS @ ROWS.T, CLASSES], dim=1), 0.1)
    assert np.allclose(QUERY @ ROWS.T @ linear, QUERY @ W_MC, atol=1e-10), "a dual with a linear kernel"


def test_the_dual_of_two_tasks_is_the_worked_one() -> None:
    alpha = ridge_weights(torch.cat([kernel(ROWS, ROWS, 0.1), CLASSES], dim=1), 0.1)
    assert np.allclose(kernel(QUERY, ROWS, 0.1) @ alpha, [0.4129590910, 0.2579433899, 0.3513463736], atol=1e-10)


def test_the_regression_joins_where_zero_shot_finds_a_class_seen() -> None:
    cosines = torch.tensor([(0.25, 0.24, 0.20, 0.22), (0.20, 0.21, 0.20, 0.25)], dtype=torch.float64)
    adapter, seen = torch.tensor([(0.1, 0.7, 0.05, 0.0)] * 2), torch.tensor([True, True, True, False])
    joined, alone = fused(100 * cosines, adapter, seen, 0.8)
    assert joined.tolist() == pytest.approx([0.2204095579, 0.6116537897, 0.0409460722, 0.0069905803], abs=1e-8)
    assert torch.equal(alone, (100 * cosines[1]).softmax(dim=0))


@pytest.mark.parametrize("form", ["primal", "dual"])
@pytest.mark.parametrize("backward", [False, True])
def test_it_is_the_regression_on_all_rows_in_any_order_of_the_tasks(form, backward, micro, tmp_path) -> None:
    stream = replace(micro, tasks=micro.tasks[::-1]) if backward else micro
    session = fresh_session(spec_of("rail", stream, tmp_path, settings=SMALL | {"form": form}))
    method, features, labels = session.method, [], []
    for number, stage in enumerate(session.spec.stages):
        task = session.task(stage)
        if number:
            method.grow(task)
        method.end_task(task)
        features.append(task.encode(lambda rows: method.encoder().embed_video(rows.video))[1].double().numpy())
        labels.append(task.labels)
    x, towers = np.concatenate(features), method.encoder()
    assert np.allclose(np.linalg.norm(x, axis=1), 1, atol=1e-5)
    Y = np.eye(towers.W_MC.shape[1])[np.concatenate(labels)]
    if form == "primal":
        V = towers.random_DM.numpy()
        assert V.shape == (64, 192) and 0.9 < np.abs(V).max() * 8 <= 1
        H = np.maximum(x @ V, 0)
        wanted = recursion(H, Y, 0.1, 5)
    else:
        distances = np.array([[((a - b) ** 2).sum() for b in x] for a in x])
        wanted = np.linalg.inv(np.exp(-0.1 * distances) + 0.1 * np.eye(len(x))) @ Y
    assert np.abs(towers.W_MC[: len(wanted)].numpy() - wanted).max() < 1e-6
    assert not towers.W_MC[len(wanted) :].any()


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_a_run_tells_shapes_apart_and_moves_nothing_of_the_towers(form, micro, tmp_path) -> None:
    settings = SMALL | {"form": form}
    spec = spec_of("rail", micro, tmp_path, settings=settings)
    assert run_spec(spec)
    before, after = built(spec).encoder().towers, kinoray.open_method(spec.folder).method.encoder().towers
    assert all(map(torch.equal, before.state_dict().values(), after.state_dict().values()))


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_before_any_class_names_are_answered_by_zero_shot(form, micro, tmp_path) -> None:
    method = built(spec_of("rail", micro, tmp_path, settings=SMALL | {"answer": "names", "form": form}))
    names, clips = (torch.nn.functional.normalize(torch.randn(count, 64), dim=1) for count in (3, 5))
    none = torch.cat([names, torch.ones(3, 1)], dim=1)
    assert torch.allclose(method.score(none, clips), (100 * names @ clips.T).softmax(dim=0), atol=1e-5)


def test_names_are_answered_by_their_classes_and_unseen_ones_by_zero_shot_alone(micro, tmp_path) -> None:
    method = built(spec_of("rail", micro, tmp_path, settings=SMALL | {"answer": "names"}))
    method.grow(replace(facts_of(0), num_classes=2, new_classes=2))
    towers = method.encoder()
    texts = [towers.tokenize([text], 40) for text in ("a red ring", "a blue star", "green")]
    ring, star, other = (method.embed_text(Tokens(*map(torch.from_numpy, text)), 0).detach() for text in texts)
    towers.names_TCD = torch.cat([3 * ring, 5 * star])[None, :, :64].double()
    towers.W_MC = torch.randn_like(towers.W_MC)
    x = method.embed_video(torch.randn(6, 3, 3, 32, 32), 0).detach()
    ring, star, other = (method.embed_text(Tokens(*map(torch.from_numpy, text)), 0).detach() for text in texts)
    scores = method.score(torch.cat([star, other, ring]), x)
    ring, star, other = (text[:, :64] for text in (ring, star, other))
    adapter = torch.relu(x.double() @ towers.random_DM) @ towers.W_MC
    for clip, row, learned in zip(x, scores.T, adapter, strict=True):
        p = (100 * clip @ torch.cat([star, other, ring]).T).softmax(dim=0).double()
        wanted = p if p.argmax() == 1 else 0.2 * p + 0.8 * torch.stack([learned[1], 0 * learned[0], learned[0]])
        assert torch.allclose(row.double(), wanted, atol=1e-5)
