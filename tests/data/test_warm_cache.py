"""Filling the frame cache before a sweep."""

import json
import os
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import ray

from kinoray.data import warm_cache
from kinoray.data.presets import decode_px, preset_of
from kinoray.testing.engine import run_spec, spec_of
from kinoray.testing.small_stream import on_protocol


def test_a_run_after_warming_decodes_nothing_even_where_a_preset_scales(micro, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KINORAY_CACHE", str(tmp_path / "frames"))
    monkeypatch.setattr(warm_cache, "LOCAL_CLIPS", 1000)  # all in this process
    recipe = replace(micro.recipe, augmentation="ctvr")
    assert decode_px(preset_of(recipe), recipe.size_px) > recipe.size_px
    stream = replace(on_protocol(micro, "ctvr"), recipe=recipe)
    assert (
        warm_cache.warm_cache([task.manifest for task in stream.tasks], recipe, lambda text: None, lambda: True) == 44
    )
    assert warm_cache.warm_cache([task.manifest for task in stream.tasks], recipe, lambda text: None, lambda: True) == 0
    spec = spec_of("base_moco", stream, tmp_path / "runs")
    assert run_spec(spec)
    cost = json.loads((Path(spec.folder) / "result.json").read_text())["cost"]
    assert cost["clips_decoded"] == 0 and cost["clips_cached"] > 0


def dies(*given: Any) -> int:
    """In place of `warm_cache._fill`, in the process that decodes."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 1


@pytest.mark.parametrize("on_ray", [False, pytest.param(True, marks=pytest.mark.ray)])
def test_a_clip_that_kills_its_process_ends_no_sweep(on_ray: bool, micro, tmp_path, monkeypatch, request) -> None:
    if on_ray:
        request.getfixturevalue("cluster")
    monkeypatch.setenv("KINORAY_CACHE", str(tmp_path / "frames"))
    monkeypatch.setattr(warm_cache, "LOCAL_CLIPS", 0 if on_ray else 1000)
    monkeypatch.setattr(warm_cache, "_fill", dies)
    manifests = [micro.tasks[0].manifest]
    assert warm_cache.warm_cache(manifests, micro.recipe, lambda text: None, lambda: True) == 0


def test_tasks_that_never_answer_are_told_of_and_left(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    cancelled: list[str] = []
    monkeypatch.setattr(ray, "wait", lambda refs, timeout: ([], list(refs)))
    monkeypatch.setattr(ray, "cancel", cancelled.append)
    monkeypatch.setattr(warm_cache, "GIVES_UP_S", 3 * warm_cache.TELLS_S)
    waiting = ["first", "second"]
    assert warm_cache._some_of(waiting, cache(told.append)) is None
    assert (waiting, cancelled) == ([], ["first", "second"])
    assert len(told) == 2 and "no progress for 30 s" in told[0] and "not completed" in told[1]
