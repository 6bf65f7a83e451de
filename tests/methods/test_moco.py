"""MoCo on pictures beside its Eqs. 1-2."""

import pytest
import torch
from support.pictures import assert_equal, finished, first_of, pictures, spec_on, weights_of

from kinoray.equations import info_nce
from kinoray.runs.method_source import find_method
from kinoray.testing.engine import digest_of_run, run_spec, spec_of, state_of

SLOW = "simclr", "insdisc"


@pytest.mark.parametrize("symmetric", [False, True])
def test_queries_of_a_view_meet_keys_of_the_other_and_the_queue(symmetric: bool, tmp_path) -> None:
    method, batch = first_of(spec_on(pictures(tmp_path), "moco", tmp_path, symmetric=symmetric, shuffle=False))
    output, queue = method.loss(batch), method.keys.queue.keys_KD
    pairs = [(0, 1), (1, 0)][: 1 + symmetric]
    with torch.no_grad():  # batch statistics are those of the rows, so a second forward gives the same
        expected = sum(
            info_nce(
                method.online.embed_video(batch.views[query]),
                method.keys.encoder.embed_video(batch.views[key]),
                queue,
                0.1,
            )
            for query, key in pairs
        )
    assert output.objectives.item() == pytest.approx(expected.item() / 6, rel=1e-5)
    assert output.carry["keys"].shape == (6, 1 + symmetric, 16)
    enqueued = [0, 1] if symmetric else [1]  # the first view's key first, as in the notebook
    for place, view in enumerate(enqueued):
        torch.testing.assert_close(output.carry["keys"][:, place], method.keys.encoder.embed_video(batch.views[view]))


def test_the_step_averages_then_enqueues_and_keys_get_no_gradient(tmp_path) -> None:
    from kinoray.method import StepInfo

    method, batch = first_of(spec_on(pictures(tmp_path), "moco", tmp_path, m=0.75))
    output = method.loss(batch)
    output.objectives.backward()
    assert all(p.grad is None for p in method.keys.parameters())
    assert all(p.grad is not None for p in method.online.parameters())
    with torch.no_grad():
        for parameter in method.online.parameters():
            parameter.add_(1.0)
    before = state_of(method)
    method.after_step(output.carry, StepInfo(0, last_of_epoch=False, learning_rate=0.1))
    for name, value in method.keys.average.module.named_parameters():
        old = before[f"keys.average.module.{name}"]
        torch.testing.assert_close(value, 0.75 * old + 0.25 * before[f"online.{name}"])
    assert torch.equal(method.keys.queue.keys_KD[:6], output.carry["keys"][:, 0])
    assert torch.equal(method.keys.queue.keys_KD[6:], before["keys.queue.keys_KD"][6:])


def test_shuffling_alone_changes_nothing_where_statistics_are_of_all_rows(tmp_path) -> None:
    losses = []
    for shuffle in (True, False):
        method, batch = first_of(spec_on(pictures(tmp_path / str(shuffle)), "moco", tmp_path, shuffle=shuffle))
        losses.append(method.loss(batch).objectives.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_with_split_statistics_shuffled_keys_differ(groups: int, tmp_path) -> None:
    from dataclasses import replace

    keys = []
    for shuffle in (True, False):
        stream = replace(pictures(tmp_path / str(shuffle)), backbone=f"tiny-cnn:{groups}")
        method, batch = first_of(spec_on(stream, "moco", tmp_path, shuffle=shuffle))
        keys.append(method.loss(batch).features["key"])
    assert torch.allclose(*keys, atol=1e-5) == (groups == 1)


def test_encoder_average_and_queue_carry_over_to_the_next_task(tmp_path) -> None:
    method, _ = first_of(spec_on(pictures(tmp_path), "moco", tmp_path))
    before = state_of(method)
    method.begin_task(None)
    assert_equal(before, state_of(method))


def test_defaults_are_the_papers_and_recipes_the_notebooks(tmp_path) -> None:
    config = find_method("moco").load().Config()
    assert (config.temperature, config.m, config.queue_size, config.head) == (0.07, 0.999, 65_536, "linear")
    settings = spec_of("moco", pictures(tmp_path), tmp_path).run.settings
    assert (settings["temperature"], settings["m"], settings["queue_size"]) == (0.1, 0.99, 4096)


def test_bmu_moco_with_one_global_family_and_no_pull_is_moco_bit_for_bit(tmp_path) -> None:
    stream = pictures(tmp_path)
    moco = finished(spec_on(stream, "moco", tmp_path))
    bmu = finished(spec_on(stream, "bmu_moco_views", tmp_path, variant="global", m_hat=1.0))
    assert_equal(weights_of(moco, "online."), weights_of(bmu, "online."))
    assert_equal(weights_of(moco, "keys."), weights_of(bmu, "momentum.global."))


@pytest.mark.parametrize("learner", ["moco", "simsiam", *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_rules_that_are_off_are_the_learner_bit_for_bit(learner: str, tmp_path) -> None:
    stream = pictures(tmp_path, "ucl")
    alone = finished(spec_on(stream, learner, tmp_path))
    for rule, off in (
        ("er_ring", {"memory_capacity": 0}),
        ("der", {"memory_capacity": 0}),
        ("der", {"memory_weight": 0.0}),
        ("lump", {"memory_capacity": 0}),
        ("si", {"importance_weight": 0.0}),
        ("simple_replay", {"exemplars_per_class": 0}),
    ):
        assert_equal(alone, weights_of(finished(spec_on(stream, f"{rule}:{learner}", tmp_path, **off)), "learner."))


def test_every_rule_on_pictures_moves_the_learner_and_ends_the_same_twice(tmp_path) -> None:
    stream = pictures(tmp_path, "ucl")
    alone = weights_of(finished(spec_on(stream, "moco", tmp_path)), "online.")
    for rule in ("er_ring", "der", "lump", "si", "simple_replay", "ccsl"):
        specs = [spec_on(stream, f"{rule}:moco", tmp_path / name) for name in ("once", "again")]
        states = [finished(spec) for spec in specs]
        assert digest_of_run(specs[0]) == digest_of_run(specs[1])
        moved = weights_of(states[0], "learner.online.")
        assert any(not torch.equal(moved[name], value) for name, value in alone.items()), rule


def test_joint_training_and_zero_shot_serve_it(tmp_path) -> None:
    stream = pictures(tmp_path)
    for options in ({"joint": True}, {"zero_shot": True}):
        assert run_spec(spec_of("moco", stream, tmp_path, settings={"queue_size": 32}, **options))
