"""Simple replay: random exemplars of every class, one loss over the union."""

import json
from pathlib import Path

import numpy as np
import torch
from support.pictures import finished, pictures, spec_on
from support.rules import in_second_task_of

from kinoray.data.plan import split_id
from kinoray.rehearsal import joined


def test_as_many_of_each_class_as_asked_come_back_in_the_next_task(tmp_path: Path) -> None:
    spec = spec_on(pictures(tmp_path), "simple_replay:moco", tmp_path, exemplars_per_class=2, max_steps=4)
    method, batch = in_second_task_of(spec)
    assert batch.replay is not None and batch.replay_size == 4
    assert set(batch.replay.tasks.tolist()) == {0}
    assert torch.bincount(batch.replay.labels).tolist() == [2, 2], "all four exemplars, two of each class"
    output = method.loss(batch)
    both = joined(batch)
    assert len(output.features["video"]) == len(both.ids) == 10
    assert len(output.gather(output.carry["keys"])) == 10, "their keys enter the queue"


def test_the_choice_is_kept_with_the_run(tmp_path: Path) -> None:
    spec = spec_on(pictures(tmp_path), "simple_replay:moco", tmp_path, exemplars_per_class=3)
    finished(spec)
    states = sorted((Path(spec.folder) / "checkpoints").glob("*/state.json"))
    tasks, _ = split_id(np.array(json.loads(states[-1].read_text())["selections"][0]))
    assert len(tasks) == 6 and set(tasks) == {0}
