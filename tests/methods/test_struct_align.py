"""StructAlign beside its equations: known vectors, its terms as plain loops, prototypes, scores, what is refused."""

import math
from dataclasses import replace

import pytest
import torch
from support.rules import in_second_task
from torch.nn.functional import cross_entropy, normalize

from kinoray.errors import UsageError
from kinoray.methods.struct_align import RECIPES, WORDS, from_corner, kept, simplex, word_frame
from kinoray.runs.resolve import settings_for
from kinoray.testing.engine import built, first_batch, fresh_session, resolved, spec_of
from kinoray.testing.small_stream import facts_of, on_protocol


@pytest.fixture
def stream(micro):
    return on_protocol(micro, "ctvr")


def matched(words: torch.Tensor, frames: torch.Tensor) -> float:
    """s of one caption and one video, word by word."""
    cosines = [[float(w @ f / (w.norm() * f.norm())) for f in frames] for w in words]
    return (sum(map(max, cosines)) / len(words) + sum(map(max, zip(*cosines, strict=True))) / len(frames)) / 2


def test_words_and_frames_match_as_worked_and_word_by_word() -> None:
    words, frames = torch.tensor([[(1.0, 0.0), (0.6, 0.8), (0.0, 0.0)]]), torch.eye(2)[None]
    assert word_frame(words, frames).item() == pytest.approx(0.9)
    noise = torch.Generator().manual_seed(0)
    words, frames = torch.randn(3, 5, 4, generator=noise), torch.randn(2, 6, 4, generator=noise)
    words[0, 3:], words[2, 1:] = 0, 0
    for query, length in enumerate((3, 5, 1)):
        for video in range(2):
            wanted = matched(words[query, :length], frames[video])
            assert word_frame(words, frames)[query, video].item() == pytest.approx(wanted, abs=1e-6)


def test_old_similarities_are_kept_as_worked() -> None:
    now, old = torch.tensor([(2.0, 0.0), (1.0, 3.0)]), torch.tensor([(1.0, 0.0), (0.0, 2.0)])
    both = kept(now, old).mean() + kept(now.T, old.T).mean()
    assert (both / 2).item() == pytest.approx(0.0505773389, abs=1e-7)
    assert kept(now, now).abs().max() < 1e-6


@pytest.mark.parametrize(("count", "dim"), [(3, 3), (20, 48), (48, 48)])
def test_corners_are_as_far_from_each_other_as_can_be(count, dim) -> None:
    corners = simplex(count, dim)
    wanted = torch.full((count, count), -1 / (count - 1)).fill_diagonal_(1.0)
    assert torch.allclose(corners @ corners.T, wanted, atol=1e-5)


def test_words_are_drawn_to_their_corner_as_worked() -> None:
    words = torch.zeros(1, 3, 3)
    words[0, :2] = torch.eye(3)[:2]
    corner = torch.tensor([(0.816497, -0.408248, -0.408248)])
    at_corner = from_corner(words, corner[:, None], corner)
    assert at_corner.item() == pytest.approx(0.3317121144, abs=1e-6)


def test_the_loss_of_a_second_task_is_its_five_terms(stream, tmp_path) -> None:
    method, batch = in_second_task("struct_align", stream, tmp_path)
    old = int(method.means_2CD[0].any(dim=1).nonzero()[0])
    method.means_2CD[:, torch.arange(20) != old] = 0
    method.radii_2C.zero_()  # so that each drawn pair is the prototype
    with torch.no_grad():
        for parameter in method.old.module.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
        output, rows, e = method.loss(batch), range(len(batch.ids)), method.log_scale.exp()

        def sides(towers):
            words = towers.project_words(batch.text)
            return [own[mask] for own, mask in zip(words, batch.text.mask, strict=True)], towers.embed_frames(
                batch.video
            )

        now, before = (
            torch.tensor([[matched(words, frames) for frames in videos] for words in texts]) * e
            for texts, videos in (sides(method.towers), sides(method.old.module))
        )
        truth = torch.arange(len(rows))
        L = cross_entropy(now, truth) + cross_entropy(now.T, truth)
        for student, teacher in ((now, before), (now.T, before.T)):
            p, q = (teacher / 2).softmax(dim=1), (student / 2).softmax(dim=1)
            L += 5 * 4 * (p * (p / q).log()).sum(dim=1).mean()
        texts, videos = sides(method.towers)
        text_map, video_map = (side.weight for side in method.maps)
        etf = torch.zeros(())
        for words, frames, label in zip(texts, videos, batch.labels, strict=True):
            w, f = normalize(words) @ text_map.T, normalize(frames) @ video_map.T
            both = ((w @ method.corners_CD[label]).softmax(dim=0) @ w, f.mean(dim=0), method.corners_CD[label])
            drawn = (text_map @ method.means_2CD[0, old], video_map @ method.means_2CD[1, old], method.corners_CD[old])
            for text, video, corner in (both, drawn):
                etf += 2 - sum(x @ corner / x.norm() for x in (text, video))
        etf /= len(rows)
        T = torch.stack([normalize(words.mean(dim=0), dim=0) for words in texts])
        T = torch.cat([T, normalize(method.means_2CD[0, old], dim=0).expand(len(rows), -1)])
        V = torch.cat([normalize(videos.mean(dim=1)), normalize(method.means_2CD[1, old], dim=0).expand(len(rows), -1)])
        truth = torch.arange(2 * len(rows))
        proto = cross_entropy(e * T @ V.T, truth) + cross_entropy(e * V @ T.T, truth)
    for name, wanted in {"kept": L, "etf": etf, "proto": proto}.items():
        assert output.log[f"loss/{name}"].item() == pytest.approx(wanted.item(), rel=1e-3), name
    assert output.objectives.item() == pytest.approx((1.1 * L + 0.5 * proto).item(), rel=1e-3)


def test_the_first_task_has_no_reference_and_no_drawn_pairs(stream, tmp_path) -> None:
    session = fresh_session(spec_of("struct_align", stream, tmp_path, settings={"first_rate": 4.0}))
    method, (_, batch) = session.method, first_batch(session)
    output = method.loss(batch)
    assert output.log["loss/proto"] == 0
    (gradient,) = torch.autograd.grad(output.objectives, [method.maps[0].weight], retain_graph=True)
    (of_etf,) = torch.autograd.grad(output.log["loss/etf"], [method.maps[0].weight])
    share = output.log["loss/kept"] / output.log["loss/etf"]
    assert torch.allclose(gradient, 0.1 * share.detach() * of_etf, rtol=1e-4, atol=1e-7), "lambda is a constant"
    assert {group.rate for group in method.param_groups().values()} == {4.0}


def test_prototypes_are_means_and_radii_of_a_tasks_categories(stream, tmp_path) -> None:
    session = fresh_session(spec_of("struct_align", stream, tmp_path))
    method, task = session.method, session.task(session.spec.stages[0])
    method.end_task(task)
    _, text = task.encode(lambda rows: normalize(method.embed_text(rows.text, 0).sum(dim=1)))
    for label in set(task.labels.tolist()):
        own = text[torch.from_numpy(task.labels) == label].double()
        assert torch.allclose(method.means_2CD[0, label].double(), own.mean(dim=0), atol=1e-6)
        spread = sum(float((row - own.mean(dim=0)).square().sum()) for row in own) / len(own) / own.shape[1]
        assert method.radii_2C[0, label].item() == pytest.approx(math.sqrt(spread), rel=1e-4, abs=1e-6)
    assert not method.means_2CD[:, max(task.labels) + 1 :].any()


def test_clips_are_ranked_by_both_similarities(stream, tmp_path) -> None:
    session = fresh_session(spec_of("struct_align", stream, tmp_path))
    method, (_, batch) = session.method, first_batch(session)
    with torch.no_grad():
        queries, block = method.embed_text(batch.text, 0), method.embed_video(batch.video, 0)
        assert queries.shape[1] == WORDS
        scores = method.score(queries, block)
        for row, words, mask in zip(scores, queries, batch.text.mask, strict=True):
            words = words[: int(mask.sum())]
            for score, frames in zip(row, block, strict=True):
                means = normalize(words.mean(dim=0), dim=0) @ normalize(frames.mean(dim=0), dim=0)
                assert score.item() == pytest.approx((matched(words, frames) + means.item()) / 2, abs=1e-5)


def test_what_has_too_many_categories_or_no_words_is_refused(stream, tmp_path) -> None:
    method = built(spec_of("struct_align", stream, tmp_path, settings={"categories": 3}))
    with pytest.raises(UsageError, match="there are 4 categories, but struct_align allows at most 3"):
        method.grow(replace(facts_of(0), num_classes=4, new_classes=4))
    with pytest.raises(UsageError, match="from 2 to 64 here, but got 65"):
        built(spec_of("struct_align", stream, tmp_path, settings={"categories": 65}))
    with pytest.raises(UsageError, match="struct_align needs the layers of a WordTowers, but features:clip"):
        resolved("struct_align", stream, tmp_path, backbone="features:clip")


def test_published_streams_have_the_codes_rates(stream) -> None:
    for name, rate, categories in (("ctvr-msrvtt-20", 3e-6, None), ("ctvr-actnet-10", 6e-6, 200)):
        settings = settings_for(RECIPES, replace(stream, name=name))
        assert settings["learning_rate"] * settings["first_rate"] == pytest.approx(2e-5)
        assert settings["learning_rate"] == rate and settings.get("categories") == categories
