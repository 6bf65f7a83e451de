"""Query drift: the kept features are the models' own, and drift is what they say."""

from pathlib import Path

import pytest
import torch

import kinoray
from kinoray.data.manifest import read_manifest
from kinoray.execution.feature_store import committed_features
from kinoray.report.page import first_queries, query_drift
from kinoray.runs.result import Result
from kinoray.testing.engine import run_spec, spec_of
from kinoray.testing.small_stream import on_protocol


def run_on(protocol: str, micro, folder: Path) -> Result:
    spec = spec_of("base_moco", on_protocol(micro, protocol), folder)
    assert run_spec(spec)
    return Result(spec.folder)


def test_the_first_tasks_queries_are_kept_as_each_model_had_them(micro, tmp_path) -> None:
    result = run_on("ctvr", micro, tmp_path)
    first, last = first_queries(result)
    assert (first.after_task, last.after_task, first.task) == (0, 1, 0)
    manifest = read_manifest(micro.tasks[0].manifest)
    clips, numbers = manifest.samples("test")
    captions = [manifest.caption(int(clip), int(number)) for clip, number in zip(clips, numbers, strict=True)]
    now = kinoray.open_method(result).encode_text(captions)
    assert torch.allclose(last.features, now, atol=1e-5) and not torch.allclose(first.features, now, atol=1e-3)
    wanted = sum(1 - float(a @ b / (a.norm() * b.norm())) for a, b in zip(first.features, now, strict=True)) / len(now)
    assert query_drift(result) == [pytest.approx(0, abs=1e-6), pytest.approx(wanted, rel=1e-3)]


def test_queries_are_no_videos_of_the_store(micro, tmp_path) -> None:
    store = committed_features(run_on("ctvr", micro, tmp_path).folder)
    assert {block.split for block in store.blocks} <= {"test", "validation"}
    assert set(store.search(torch.ones(1, store.blocks[0].shape[1]), 3).tasks.flat) <= {0, 1}


def test_a_run_without_a_growing_gallery_keeps_none(micro, tmp_path) -> None:
    result = run_on("cvlm", micro, tmp_path)
    assert first_queries(result) == [] and query_drift(result) == []
