"""VideoMoCo beside Eqs. 1-6 and what was released."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from support.pictures import assert_equal, finished, weights_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from kinoray.config import Recipe, build, names_of
from kinoray.data.manifest import read_manifest, write_table
from kinoray.data.plan import StepFacts
from kinoray.equations import info_nce
from kinoray.method import Batch
from kinoray.methods.video_moco import RELEASED, Config, decayed_info_nce, number_to_drop, places
from kinoray.streams import Stream, TaskData
from kinoray.testing.engine import (
    StopAfter,
    digest_of_run,
    first_batch,
    fresh_session,
    on_two_ranks,
    one_step,
    run_spec,
    spec_of,
)
from kinoray.testing.small_stream import facts_of
from kinoray.training.distributed import World
from kinoray.training.loop import RunState
from kinoray.training.optim import set_gradients


@pytest.fixture
def stream(micro: Stream, tmp_path: Path) -> Stream:
    """The small stream with two classes that stand in every split, eight frames a clip."""
    tasks = []
    for task in micro.tasks:
        table, path = read_manifest(task.manifest).table, tmp_path / f"{task.name}.parquet"
        labels = pa.array(["even", "odd"] * len(table))[: len(table)]
        table = table.set_column(table.schema.names.index("label"), "label", labels)
        tasks.append(TaskData(task.name, write_table(table, path, task.manifest.parent).path))
    recipe = replace(micro.recipe, frames=8, test_frames=8)
    return replace(micro, tasks=tuple(tasks), protocol="ucl", backbone="tiny-3d", recipe=recipe)


SMALL: dict[str, Any] = {"queue_size": 20, "m": 0.9}


def begun(stream: Stream, folder: Path, **settings: Any) -> tuple[Any, Batch]:
    """A method in train mode before its first step, and that step's rows; frames are lost from the start."""
    spec = spec_of("video_moco", stream, folder, settings=SMALL | {"dropout_from": 0.0} | settings)
    session = fresh_session(spec)
    _, batch = first_batch(session)
    session.method.train()
    return session.method, batch


def test_the_two_forms_of_decay_give_the_papers_and_the_released_term() -> None:
    q, key, negative = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, math.sqrt(0.75)]]], dtype=torch.float64)
    t, age = 0.99, 100  # the positive's term is exp(0) = 1
    paper = decayed_info_nce(q, key, negative, torch.tensor([age * math.log(t)], dtype=torch.float64), 0.07)
    released = info_nce(q, key, negative * t**age, 0.07)
    plain = info_nce(q, key, negative, 0.07)
    terms = [math.exp(loss.item()) - 1 for loss in (paper, released, plain)]
    assert terms == pytest.approx([463.0446823, 13.6606129, 1265.0376238], abs=1e-6)


def test_a_queue_of_the_papers_size_forgets_as_the_paper_says() -> None:
    weights = 0.99999 ** places(torch.tensor(0), 65_536).double()
    assert weights.min().item() == pytest.approx(0.5192534, abs=1e-7)
    assert 0.999 ** places(torch.tensor(7), 8000).max().item() == pytest.approx(0.00033412, abs=1e-8)
    released_ages = 65_536 // 128  # in steps: the batches that a queue holds
    assert 0.99999**released_ages == pytest.approx(0.9948931, abs=1e-7)


def test_weights_of_one_make_it_info_nce() -> None:
    torch.manual_seed(0)
    q, key, queue = (nn.functional.normalize(torch.randn(n, 16), dim=1) for n in (4, 4, 50))
    q.requires_grad_()
    loss, plain = decayed_info_nce(q, key, queue, torch.zeros(50), 0.07), info_nce(q, key, queue, 0.07)
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(*(torch.autograd.grad(each, q)[0] for each in (loss, plain)))


def test_the_decay_makes_one_matrix_of_logits_and_its_gradient_and_no_other() -> None:
    made: list[tuple[str, int]] = []

    class Watch(TorchDispatchMode):
        """Notes what is as large as the logits."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor) and out.numel() >= 4 * 50:
                made.append((func.name(), out.untyped_storage().data_ptr()))
            return out

    q, key, queue, log_weight = torch.randn(4, 3), torch.randn(4, 3), torch.randn(50, 3), torch.randn(50)
    with Watch():
        loss = decayed_info_nce(q.requires_grad_(), key, queue, log_weight, 0.07)
    assert [name for name, _ in made] == ["aten::addmm"]
    with Watch():
        loss.backward()
    # Backwards, the gradient of the logits and what `logsumexp` makes of the logits for it.
    assert len({place for _, place in made}) <= 4


def test_keys_are_put_into_the_queue_in_place(stream: Stream, tmp_path: Path) -> None:
    method, _ = begun(stream, tmp_path)
    places_before = method.keys.queue.keys_KD.data_ptr(), method.ages_K.data_ptr()
    for _ in range(4):
        method.after_step({"key": torch.randn(8, 128)}, None)
    assert (method.keys.queue.keys_KD.data_ptr(), method.ages_K.data_ptr()) == places_before


def test_equation_6_is_its_plain_loop() -> None:
    torch.manual_seed(0)
    q, key, queue = (nn.functional.normalize(torch.randn(n, 8), dim=1).double() for n in (3, 3, 6))
    t, temperature, cursor, expected = 0.9, 0.1, 4, 0.0
    for row in range(3):
        right, others = math.exp(q[row] @ key[row] / temperature), 0.0
        for i in range(1, 7):  # the newest key stands before the cursor
            others += t**i * math.exp(q[row] @ queue[(cursor - i) % 6] / temperature)
        expected -= math.log(right / (right + others))
    log_weight = math.log(t) * places(torch.tensor(cursor), 6)
    assert decayed_info_nce(q, key, queue, log_weight, temperature).item() == pytest.approx(expected)


def test_places_and_ages_follow_a_queue_that_wraps(stream: Stream, tmp_path: Path) -> None:
    method, _ = begun(stream, tmp_path)
    first_in_first_out: list[tuple[float, int]] = [(-1.0, 0)] * 20  # a mark of each key, the step it came in
    torch.manual_seed(0)
    for step, rows in enumerate((8, 8, 8, 5), start=1):
        keys = torch.randn(rows, 128)
        method.after_step({"key": keys}, None)
        first_in_first_out = [*first_in_first_out, *((mark, step) for mark in keys[:, 0].tolist())][-20:]
        slots = places(method.keys.queue.cursor, 20)
        for place, (mark, came) in enumerate(reversed(first_in_first_out), start=1):
            slot = int((slots == place).nonzero())
            # A key is one step old when it has come in; the first random ones count from the queue's beginning.
            assert method.ages_K[slot] == step - came + (1 if came else 0)
            assert not came or method.keys.queue.keys_KD[slot, 0].item() == mark


@pytest.mark.parametrize("decay", ["paper", "released"])
def test_without_decay_and_dropout_it_is_moco_bit_for_bit(decay: str, stream: Stream, tmp_path: Path) -> None:
    method, batch = begun(stream, tmp_path, t=1.0, dropout="none", shuffle=False, decay=decay)
    assert list(method.param_groups()) == ["encoder"]
    loss = method.loss(batch).objectives["encoder"]
    q, k = method.online.embed_video(batch.views[0]), method.keys.encoder.embed_video(batch.views[1])
    assert torch.equal(loss, info_nce(q, k, method.keys.queue.keys_KD, 0.07) / 8)
    assert not torch.equal(batch.views[0], batch.views[1])


def gradients(method: Any, batch: Batch) -> dict[str, dict[str, Tensor | None]]:
    """What the engine gives each group."""
    groups = method.param_groups()
    set_gradients(method.loss(batch), groups, torch.zeros(1), World())
    return {name: {key: p.grad for key, p in group.params.items()} for name, group in groups.items()}


def distance(first: Any, second: Any) -> float:
    """Between two tensors, or two lists of them taken together, as a share of the second's length."""
    pairs = [(first, second)] if isinstance(first, Tensor) else list(zip(first, second, strict=True))
    apart = sum(float((a - b).double().square().sum()) for a, b in pairs)
    return math.sqrt(apart / sum(float(b.double().square().sum()) for _, b in pairs))


@pytest.mark.parametrize("sees", [False, True])
@pytest.mark.parametrize("removal", ["mean", "drop"])
def test_each_network_follows_its_own_equation(sees: bool, removal: str, stream: Stream, tmp_path: Path) -> None:
    method, batch = begun(stream, tmp_path, shuffle=False, generator_sees_contrast=sees, removal=removal, t=0.9)
    ours = gradients(method, batch)
    clip, frames = batch.views[0], 8
    key = method.keys.encoder.embed_video(batch.views[1]).detach()
    log_weight = math.log(0.9) * places(method.keys.queue.cursor, 20)

    def two_of_eight_gone(scores: Tensor) -> Tensor:
        rows = []
        for video, score in zip(clip, scores, strict=True):
            gone = set(score.argsort(descending=True)[:2].tolist())
            kept = [video[t] + score[t] - score[t].detach() for t in range(frames) if t not in gone]
            if removal == "mean":
                means = [
                    torch.full_like(f, f.mean().item()) + s - s.detach() for f, s in zip(video, score, strict=True)
                ]
                kept = [means[t] if t in gone else video[t] + score[t] - score[t].detach() for t in range(frames)]
            rows.append(torch.stack(kept))
        return torch.stack(rows)

    def contrast(q: Tensor) -> Tensor:
        return decayed_info_nce(q, key, method.keys.queue.keys_KD, log_weight, 0.07) / 8

    # Eq. 6 with the generator's output as data, Eq. 4 with the encoder as a fixed function.
    masked = two_of_eight_gone(method.generator(clip))
    encoder = list(method.online.parameters())
    by_hand = torch.autograd.grad(contrast(method.online.embed_video(masked.detach())), encoder)
    for own, (name, value) in zip(by_hand, ours["encoder"].items(), strict=True):
        assert distance(value, own) < 1e-3, name
    fixed = method.online.requires_grad_(False)
    q = fixed.embed_video(masked)
    objective = -100 * (q - fixed.embed_video(clip)).abs().mean() + (contrast(q) if sees else 0)
    by_hand = torch.autograd.grad(objective, list(method.generator.parameters()))
    assert distance(ours["generator"].values(), by_hand) < 1e-3
    assert distance(ours["generator"].values(), [2 * value for value in by_hand]) > 0.4, "it is not all zeros"


def test_the_generator_rests_and_no_frame_is_lost_in_the_first_half_of_a_task(stream: Stream, tmp_path: Path) -> None:
    method, batch = begun(stream, tmp_path, dropout_from=0.5)  # of four steps
    assert method.first_drop == 2
    objectives, logs = [], []
    for step in range(4):
        output = method.loss(replace(batch, step=StepFacts(step, 0, False, 0)))
        objectives.append(output.objectives)
        logs.append(list(output.log))
    assert [each["generator"] is None for each in objectives] == [True, True, False, False]
    assert logs == [["loss/contrast"]] * 2 + [["loss/contrast", "gap"]] * 2
    whole = method.online.embed_video(batch.video)
    torch.testing.assert_close(method.loss(replace(batch, step=StepFacts(0, 0, False, 0))).features["video"], whole)


@pytest.mark.parametrize("dropout", ["random", "generator"])
def test_the_query_loses_a_share_of_its_frames_and_the_key_none(dropout: str, stream: Stream, tmp_path: Path) -> None:
    method, batch = begun(stream, tmp_path, dropout=dropout, dropout_share=0.4, shuffle=False)
    assert ("generator" in method.param_groups()) == (dropout == "generator")
    seen = []
    method.online.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    embed, keys = method.online.backbone.embed_video, method.keys.encoder.embed_video
    method.online.backbone.embed_video = lambda x: seen.append(x) or embed(x)
    method.keys.encoder.embed_video = lambda x: seen.append(x) or keys(x)
    method.loss(batch)
    *whole, query, key = seen
    assert torch.equal(key, batch.views[1])
    assert len(whole) == (dropout == "generator") and all(torch.equal(each, batch.video) for each in whole)
    flat = query.flatten(2).std(dim=2) < 1e-6
    assert flat.sum(dim=1).tolist() == [3] * 8
    assert torch.equal(query[~flat], batch.video[~flat])
    assert len(flat.unique(dim=0)) > 1, "clips lose other frames"


def test_frames_to_drop_are_a_share_rounded_one_at_least_and_never_all() -> None:
    assert [number_to_drop(32, share) for share in (0.125, 0.25, 0.375, 0.5, 0.75)] == [4, 8, 12, 16, 24]
    assert (number_to_drop(3, 0.25), number_to_drop(2, 1.0), number_to_drop(8, 0.0)) == (1, 1, 0)
    assert number_to_drop(1, 0.25) == 0, "a picture has none to lose"


RUNS = {"paper": {"dropout_from": 0.5}, "released": {"dropout_from": 0.25, "clip_frames": 8, "clip_px": 32}}
RUNS["released"] |= RELEASED[""]


@pytest.mark.parametrize("name", ["paper", pytest.param("released", marks=pytest.mark.slow)])
def test_stopped_and_resumed_equals_never_stopped_bit_for_bit(name: str, stream: Stream, tmp_path: Path) -> None:
    settings = SMALL | RUNS[name]
    whole = spec_of("video_moco", stream, tmp_path / "whole", settings=settings)
    assert run_spec(whole)
    broken = spec_of("video_moco", stream, tmp_path / "broken", settings=settings)
    for looks in (0, 1, 3, 1):
        assert not run_spec(broken, StopAfter(broken.folder, looks))
    assert run_spec(broken)
    assert digest_of_run(broken) == digest_of_run(whole)


@pytest.mark.slow
def test_two_ranks_equal_one_in_values_gradients_queue_and_statistics(stream: Stream, tmp_path: Path) -> None:
    specs = {
        name: spec_of("video_moco", stream, tmp_path / name, settings=SMALL | settings | {"dropout_from": 0.0})
        for name, settings in (RUNS | {"random": {"dropout": "random", "removal": "drop"}}).items()
    }
    pairs = on_two_ranks(specs)
    for name, spec in specs.items():
        alone = one_step(spec)
        ranks = pairs[name]
        for rank in ranks:
            assert "error" not in rank, rank["error"]
            assert rank["values"] == pytest.approx(alone["values"], rel=1e-4, abs=1e-5)
            assert rank["gradients"].keys() == alone["gradients"].keys()
            for part in ("generator.", "online."):
                names = [key for key in alone["gradients"] if key.startswith(part)]
                assert bool(names) == (part == "online." or name != "random")
                of_rank, of_one = ([each["gradients"][key] for key in names] for each in (rank, alone))
                assert not names or distance(of_rank, of_one) < 0.01, part
            for key, value in alone["after"].items():
                if "running" in key or "queue" in key or value.dtype == torch.int64:
                    torch.testing.assert_close(rank["after"][key], value, rtol=1e-4, atol=1e-4, msg=key)
        assert all(torch.equal(ranks[0]["after"][key], value) for key, value in ranks[1]["after"].items())


RING = {"memory_capacity": 6, "dropout_from": 0.5}


def test_under_er_ring_rows_of_the_memory_lose_frames_too(stream: Stream, tmp_path: Path) -> None:
    spec = spec_of("er_ring:video_moco", stream, tmp_path, settings=SMALL | RING | {"dropout": "random"})
    seen: list[Tensor] = []
    session = fresh_session(spec)
    with session.batches(spec.stages[1], 0, RunState()) as batches:
        batch = next(later for _, later in batches if later.step.step >= 2)
    method = session.method.train()
    for task in (0, 1):
        method.grow(facts_of(task))
    method.learner.online.backbone.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    embed = method.learner.online.backbone.embed_video
    method.learner.online.backbone.embed_video = lambda x: seen.append(x) or embed(x)
    output = method.loss(batch)
    assert batch.replay is not None and len(batch.replay.ids) == 8, "as many rows of the memory as of the task"
    (query,) = seen
    gone = (query.flatten(2).std(dim=2) < 1e-6).sum(dim=1).tolist()
    assert gone == [2] * (8 + 8), "two of eight frames, of replayed clips as of the task's own"
    assert len(output.carry["key"]) == 8 + 8


def test_under_er_ring_it_resumes_and_at_capacity_0_it_is_itself(stream: Stream, tmp_path: Path) -> None:
    whole, broken = (
        spec_of("er_ring:video_moco", stream, tmp_path / name, settings=SMALL | RING) for name in ("whole", "broken")
    )
    assert run_spec(whole)
    for looks in (0, 2, 3, 1):
        assert not run_spec(broken, StopAfter(broken.folder, looks))
    assert run_spec(broken)
    assert digest_of_run(broken) == digest_of_run(whole)
    off = RING | {"memory_capacity": 0}
    alone = finished(spec_of("video_moco", stream, tmp_path / "alone", settings=SMALL | {"dropout_from": 0.5}))
    within = finished(spec_of("er_ring:video_moco", stream, tmp_path / "off", settings=SMALL | off))
    assert_equal(alone, weights_of(within, "learner."))


def test_defaults_are_the_papers_and_what_was_released_builds() -> None:
    config = Config()
    assert (config.m, config.queue_size, config.t, config.dropout_share) == (0.999, 65_536, 0.99999, 0.25)
    assert (config.dropped, config.decay, config.generator_sees_contrast) == ("highest", "paper", False)
    released = {name: value for settings in RELEASED.values() for name, value in settings.items()}
    own = build(Config, {name: value for name, value in released.items() if name in names_of(Config)}, "video_moco")
    assert own.generator == "released" and own.dropped == "lowest"
    recipe = build(Recipe, {n: v for n, v in released.items() if n not in names_of(Config)}, "the recipe")
    assert (recipe.learning_rate, recipe.batch_size) == (0.005, 32)
    with pytest.raises(ValueError, match="must be above 0"):
        Config(t=0.0)
