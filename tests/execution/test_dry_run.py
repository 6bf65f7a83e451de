"""What a run will do and hold, told before it starts."""

from collections import namedtuple
from dataclasses import replace

import psutil
import pytest
import torch

import kinoray
from kinoray.execution import dry_run
from kinoray.execution.dry_run import clips_of_a_step, kept_of_a_clip, memory_of
from kinoray.runs.request import RunRequest
from kinoray.runs.resolve import Resolved, resolve
from kinoray.runs.run_spec import grown


def run_of(micro, method: str = "base_moco", **options) -> Resolved:
    return resolve(RunRequest(method, stream=micro, **options))


def test_weights_gradients_and_moments_are_counted_from_the_method(micro) -> None:
    run = run_of(micro)
    method = grown(run)
    held = sum(value.numel() * value.element_size() for value in method.state_dict().values())
    trained = sum(4 * p.numel() for group in method.param_groups().values() for p in group.params.values())
    needed = memory_of(run, 1)
    assert needed["weights"] == pytest.approx(held / 1e9, rel=0.01)
    assert needed["gradients"] == pytest.approx(trained / 1e9, rel=0.01)
    assert needed["optimizer"] == pytest.approx(2 * trained / 1e9, rel=0.01)
    parts = ("weights", "gradients", "optimizer", "activations")
    assert needed["all"] == pytest.approx(sum(needed[part] for part in parts), rel=0.01)
    sgd = memory_of(replace(run, recipe=replace(run.recipe, optimizer="sgd")), 1)
    assert sgd["optimizer"] == sgd["gradients"]
    assert set(memory_of(run_of(micro, zero_shot=True), 1)) == {"weights", "all", "here", "fits"}


@pytest.mark.parametrize(("method", "times"), [("base_moco", 1), ("er_ring", 2), ("co2l", 4)])
def test_a_step_learns_from_all_views_of_new_and_replayed_rows(micro, method: str, times: int) -> None:
    run = run_of(micro, method)
    assert clips_of_a_step(run) == times * run.recipe.batch_size


def test_many_clips_keep_as_many_times_what_one_does(micro) -> None:
    run = run_of(micro)
    towers, recipe = grown(run).encoder(), run.recipe
    kept: dict[int, torch.UntypedStorage] = {}
    weights = {value.untyped_storage().data_ptr() for value in towers.state_dict().values()}

    def note(value: torch.Tensor) -> torch.Tensor:
        if value.untyped_storage().data_ptr() not in weights:
            kept[value.untyped_storage().data_ptr()] = value.untyped_storage()
        return value

    clips = torch.zeros(8, recipe.frames, 3, recipe.size_px, recipe.size_px)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        passed = towers.embed_video(clips), towers.embed_text(towers.random_tokens(8, recipe.max_tokens - 2))
    together = sum(storage.nbytes() for storage in kept.values())
    assert passed[0].requires_grad
    assert together == pytest.approx(8 * kept_of_a_clip(towers, run, gpu=False), rel=0.03)
    assert kept_of_a_clip(towers, run, gpu=True) == kept_of_a_clip(towers, run, gpu=False) // 2


def test_what_does_not_fit_is_told_with_what_checkpointing_makes_of_it(micro, monkeypatch) -> None:
    run = run_of(micro)
    whole = memory_of(run, 1)
    assert whole["fits"] and "checkpointed" not in whole
    monkeypatch.setattr(dry_run.psutil, "virtual_memory", lambda: namedtuple("Memory", "total")(1_000))
    small = memory_of(run, 1)
    assert not small["fits"] and small["checkpointed"] < small["all"]
    assert memory_of(run, 2)["activations"] == pytest.approx(small["activations"] / 2, rel=0.01)


def test_a_plan_holds_it_or_says_why_it_cannot(micro, tmp_path) -> None:
    plan = kinoray.dry_run("base_moco", stream=micro, runs=tmp_path)["memory_gb"]
    assert plan["here"] == pytest.approx(psutil.virtual_memory().total / 1e9, rel=0.01) and plan["fits"]
    absent = kinoray.dry_run("base_moco", stream=micro, runs=tmp_path, backbone="clip:ViT-B-32/openai")["memory_gb"]
    assert "ViT-B-32" in absent["unknown"]
