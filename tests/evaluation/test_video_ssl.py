"""The protocol `video-ssl`: beginnings of clips look for their ends, without a label or a caption."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import kinoray
from kinoray.data.manifest import read_manifest, write_table
from kinoray.errors import UsageError
from kinoray.runs.result import Result
from kinoray.streams import Stream, TaskData

SETTINGS = {"queue_size": 16, "max_steps": 2, "epochs": 1}


@pytest.fixture
def unlabelled(micro: Stream, tmp_path: Path) -> Stream:
    """The small stream, six frames a test clip and no label anywhere."""
    tasks = []
    for task in micro.tasks:
        table = read_manifest(task.manifest).table
        bare = table.set_column(table.schema.names.index("label"), "label", pa.nulls(len(table), pa.string()))
        tasks.append(
            TaskData(task.name, write_table(bare, tmp_path / f"{task.name}.parquet", task.manifest.parent).path)
        )
    recipe = replace(micro.recipe, test_frames=6)
    return replace(micro, tasks=tuple(tasks), protocol="video-ssl", backbone="tiny-3d", recipe=recipe)


def learned(stream: Stream, runs: Path, **settings) -> Result:
    result = kinoray.run(
        "video_moco", stream=stream, num_workers=0, runs=runs, quiet=True, settings=SETTINGS | settings
    )
    assert isinstance(result, Result) and result.state == "finished"
    return result


RUNS = {"test_sampling": "consecutive", "test_clips": 3}


@pytest.mark.parametrize(("settings", "first", "last"), [({}, (0, 3), (3, 6)), (RUNS, (0, 2), (4, 6))])
def test_a_clips_beginning_looks_for_its_own_end(settings, first, last, unlabelled, tmp_path) -> None:
    result = learned(unlabelled, tmp_path / "runs", **settings)
    opened = kinoray.open_method(result)
    task = unlabelled.tasks[-1]
    manifest = read_manifest(task.manifest)

    def embed(video: torch.Tensor) -> torch.Tensor:
        return torch.stack([opened.method.embed_video(video[:, slice(*part)], 1) for part in (first, last)], dim=1)

    with torch.inference_mode():
        _, ends = opened.reader.embed_clips(task.name, manifest, "test", embed)
    scores = ends[:, 0] @ ends[:, 1].T
    better = (scores > scores.diagonal()[:, None]).sum(dim=1).tolist()
    ranks = result.ranks
    of_cell = ranks[(ranks["after_task"] == 1) & (ranks["task"] == 1)]["rank"].tolist()
    assert of_cell == better
    assert result.matrix_of("R@1").iloc[1, 1] == pytest.approx(100 * np.mean(np.array(better) == 0))


def test_one_frame_has_no_beginning_and_no_end(unlabelled, tmp_path) -> None:
    with pytest.raises(UsageError, match="set test_frames to 2 or more"):
        learned(unlabelled, tmp_path / "runs", test_frames=1, frames=1)
