"""X-Pool beside its paper: the pooling as plain loops, its size, and a gallery that is scored by blocks of queries."""

import pytest
import torch
from support.random_numbers import drawn, scrambled
from torch import nn

from kinoray.methods import x_pool
from kinoray.methods.x_pool import Method, Pooling
from kinoray.testing.engine import first_batch, fresh_session, spec_of
from kinoray.testing.small_stream import suited

DIM = 6


def test_every_text_pools_every_video_by_its_own_attention() -> None:
    pooling, texts, videos = scrambled(Pooling(DIM)), drawn(3, DIM), drawn(4, 5, DIM, seed=2)
    kept = (drawn(3, DIM, seed=3) > 0).float() * 2
    with torch.no_grad():
        got = pooling(texts, videos, kept)
        for q in range(3):
            for v in range(4):
                query = pooling.query(pooling.norm_in(texts[q]))
                frames = pooling.norm_in(videos[v])
                shares = (pooling.key(frames) @ query / DIM**0.5).softmax(dim=0)
                h = pooling.norm_pooled(pooling.out(shares @ pooling.value(frames)))
                wanted = pooling.norm_out(h + kept[q] * pooling.linear(h))
                assert torch.allclose(got[q, v], wanted, atol=1e-4)


def test_the_new_layers_have_1_316_352_parameters_at_clips_width() -> None:
    """Five linear layers with bias and three norms: 5 (512^2 + 512) + 3 * 2 * 512."""
    assert sum(p.numel() for p in Pooling(512).parameters()) == 1_316_352


def test_at_the_start_it_is_not_mean_pooling() -> None:
    """Norms and softmax act from the first step on."""
    texts, videos = nn.functional.normalize(drawn(2, DIM), dim=-1), drawn(3, 4, DIM)
    with torch.no_grad():
        pooled = x_pool.cosines(texts, Pooling(DIM)(texts, videos))
    mean = texts @ nn.functional.normalize(videos.mean(dim=1), dim=-1).T
    assert not torch.allclose(pooled, mean, atol=1e-2)


def test_the_gallery_is_scored_alike_whatever_the_number_of_queries_at_a_time(micro, tmp_path, monkeypatch) -> None:
    session = fresh_session(spec_of("x_pool", suited("x_pool", micro), tmp_path))
    method = session.method
    assert isinstance(method, Method)
    method.pooling = scrambled(Pooling(method.online.dim))
    queries, block = drawn(7, method.online.dim), drawn(5, 3, method.online.dim, seed=4)
    with torch.no_grad():
        whole = method.score(queries, block)
        monkeypatch.setattr(x_pool, "PAIRS_NUMEL", 1)
        assert whole.shape == (7, 5) and torch.allclose(method.score(queries, block), whole, atol=1e-5)


def test_the_loss_is_two_cross_entropies_over_what_the_texts_see(micro, tmp_path) -> None:
    session = fresh_session(spec_of("x_pool", suited("x_pool", micro), tmp_path, settings={"dropout": 0.0}))
    _, batch = first_batch(session)
    method = session.method
    assert isinstance(method, Method)
    with torch.no_grad():
        texts, frames = method.online.project_text(batch.text), method.embed_video(batch.video, 0)
        assert not torch.allclose(texts.norm(dim=1), torch.ones(len(texts)), atol=1e-3), "LN_1 sees them as they are"
        logits = method.log_scale.exp() * method.score(texts, frames)
        rows = torch.arange(len(texts))
        wanted = (nn.functional.cross_entropy(logits, rows) + nn.functional.cross_entropy(logits.T, rows)) / 2
    assert method.loss(batch).objectives.item() == pytest.approx(wanted.item(), rel=1e-4)


def test_a_text_alone_with_its_video_loses_nothing_in_bfloat16_either(micro, tmp_path) -> None:
    """The positive among the logits and the one on top are one number: as two, losses went below 0."""
    stream = suited("x_pool", micro)
    session = fresh_session(spec_of("x_pool", stream, tmp_path, settings={"batch_size": 1, "dropout": 0.0}))
    _, batch = first_batch(session)
    with torch.autocast("cpu", torch.bfloat16):
        output = session.method.loss(batch)
    assert output.objectives.dtype is torch.float32 and output.objectives.item() == 0.0
