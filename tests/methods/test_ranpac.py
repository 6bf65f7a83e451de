"""RanPAC beside plain ridge regression: known vectors, any order of tasks, the first task, and names of classes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.coloured import coloured_stream

import kinoray
from kinoray.equations import lifted, ridge_moments, ridge_weights
from kinoray.method import Tokens
from kinoray.methods.ranpac import best_ridge
from kinoray.testing.engine import built, first_batch, fresh_session, one_step, spec_of
from kinoray.testing.small_stream import facts_of

FIXED = {"tune_first": False, "ridge": 0.5, "lift": 3.0}


def rows(*values: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_two_tasks_give_the_worked_classifier() -> None:
    random_LM, classes = rows((1, -1, 0.5), (0, 1, -0.5)), torch.eye(2, dtype=torch.float64)
    total = ridge_moments(rows((1, 0), (2, 1)), classes[[0, 0]], random_LM)
    total += ridge_moments(rows((0, 1), (1, 2)), classes[[1, 1]], random_LM)
    W_MC = ridge_weights(total, 1.0)
    wanted = [[0.3870967742, -0.1290322581, 0.2795698925], [0.0645161290, 0.6451612903, -0.0645161290]]
    assert np.allclose(W_MC.T, wanted, atol=1e-10)
    assert np.allclose(lifted(rows((1, 1)), random_LM) @ W_MC, [0.3870967742, 0.0645161290], atol=1e-10)


def test_lambda_is_the_best_of_the_powers_of_ten_on_rows_held_out() -> None:
    none, classes = torch.empty(3, 0, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    fitted = ridge_moments(rows((1, 0, 0.5), (2, 0, 0.5), (0, 1, 0), (1, 1, 0)), classes[[0, 0, 1, 1]], none)
    held, truth = rows((1, 0.5, 0.2)), classes[[0]]
    errors = [(held @ ridge_weights(fitted, x) - truth).square().mean().item() for x in (0.1, 1.0, 10.0)]
    assert errors == pytest.approx([0.294644, 0.263145, 0.338292], abs=1e-6)
    assert best_ridge(fitted, held, truth) == 1.0


@pytest.mark.parametrize("backward", [False, True])
def test_it_is_the_ridge_regression_on_all_rows_in_any_order_of_the_tasks(backward, tmp_path) -> None:
    stream = coloured_stream(tmp_path, "cvlm")
    stream = replace(stream, tasks=stream.tasks[::-1]) if backward else stream
    session = fresh_session(spec_of("ranpac", stream, tmp_path, settings=FIXED))
    method, features, labels = session.method, [], []
    for number, stage in enumerate(session.spec.stages):
        task = session.task(stage)
        if number:
            method.grow(task)
        method.end_task(task)
        features.append(task.encode(lambda rows: method.encoder().features(rows.video))[1].double().numpy())
        labels.append(task.labels)
    H = np.maximum(np.concatenate(features) @ method.random_LM.numpy(), 0)
    Y = np.eye(4)[np.concatenate(labels)]
    stacked = np.concatenate([H, np.sqrt(0.5) * np.eye(H.shape[1])])  # ridge as least squares: another way to solve it
    wanted = np.linalg.lstsq(stacked, np.concatenate([Y, np.zeros((H.shape[1], 4))]), rcond=None)[0]
    assert np.abs(method.W_MC.numpy() - wanted).max() < 1e-6
    gram = method.moments_MK[:, : H.shape[1]]
    assert torch.equal(gram, gram.T) and torch.linalg.eigvalsh(gram).min() > -1e-8


def test_only_the_first_task_trains_and_norms_alone(tmp_path) -> None:
    stream = coloured_stream(tmp_path, "cvlm")
    step = one_step(spec_of("ranpac", stream, tmp_path))
    moved = {name for name, value in step["before"].items() if not torch.equal(value, step["after"][name])}
    assert {"head", "sigma"} < moved and all(step["before"][name].ndim == 1 for name in moved - {"head", "sigma"})
    session = fresh_session(spec_of("ranpac", stream, tmp_path))
    method, (_, batch) = session.method, first_batch(session)
    cosines = torch.nn.functional.cosine_similarity(
        method.encoder().features(batch.video)[:, None], method.head[None], dim=2
    )
    wanted = torch.nn.functional.cross_entropy(cosines, batch.labels)
    assert method.loss(batch).objectives.item() == pytest.approx(wanted.item(), rel=1e-5)
    method.grow(session.facts(session.spec.stages[1]))
    assert list(method.param_groups()) == ["resting"] and method.loss(batch).objectives.item() == 0


def test_a_run_tells_colours_apart(tmp_path) -> None:
    settings = {"epochs": 2, "batch_size": 4}
    result = kinoray.run(
        "ranpac", stream=coloured_stream(tmp_path, "cvlm"), num_workers=0, runs=tmp_path, quiet=True, settings=settings
    )
    assert result.metrics["accuracy"] > 80  # one in four by chance


def test_names_of_classes_have_the_scores_of_their_classes_and_others_none(micro, tmp_path) -> None:
    method = built(spec_of("ranpac", micro, tmp_path, settings=FIXED))
    method.grow(replace(facts_of(0), num_classes=2, new_classes=2))
    tokens = [method.encoder().tokenize([text], 40) for text in ("a red ring", "a blue star", "green")]
    ring, star, other = (Tokens(*map(torch.from_numpy, pair)) for pair in tokens)
    captions = torch.cat([3 * method.encoder().embed_text(x) for x in (ring, star)])
    method.names_TCD = captions[None].double().detach()
    method.W_MC = torch.randn_like(method.W_MC)
    clip = torch.randn(2, 3, 3, 32, 32)
    scores = method.embed_video(clip, 0)
    for text, wanted in ((star, scores[:, 1]), (ring, scores[:, 0]), (other, torch.zeros(2))):
        assert torch.allclose(method.score(method.embed_text(text, 0), scores)[0], wanted)
