"""Methods and comparisons for tests of extended runs, and of runs that go on elsewhere."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

from kinoray.config import Positive, Share, config
from kinoray.method import Batch, Needs, Replay, StepOutput, Task
from kinoray.momentum import Frozen, copy_into
from kinoray.runs.resolve import Resolved
from kinoray.runs.run_spec import make_spec
from kinoray.testing.engine import stages_of
from support.toys import _Toy


@config
class LateConfig:
    temperature: Positive = 0.1
    distill: Share = 0.5


class Late(_Toy):
    """Stays near the encoder that it had before the task, from the second task on."""

    Config = LateConfig

    def __init__(self, config: LateConfig, backbone: Any, num_tasks: int) -> None:
        super().__init__(config, backbone, num_tasks)
        self.teacher = Frozen(backbone)
        self.register_buffer("task", torch.zeros((), dtype=torch.int64))

    def begin_task(self, task: Task) -> None:
        copy_into(self.teacher.module, self.online)
        self.task.fill_(task.index)

    def loss(self, batch: Batch) -> StepOutput:
        video, text = self.online.embed_video(batch.video), self.online.embed_text(batch.text)
        loss = self.contrast(text, video, batch)
        if self.task:
            near = (1 - (video * self.teacher.module.embed_video(batch.video)).sum(dim=1)).sum() / batch.global_size
            loss = loss + self.config.distill * near
        return StepOutput(objectives=loss)


class Rings(Late):
    """Replays from a ring, whose slots are shared out by the number of tasks."""

    @classmethod
    def needs(cls, config: Any) -> Needs:
        return Needs(replay=Replay(policy="ring", capacity=12, rows=4))

    def loss(self, batch: Batch) -> StepOutput:
        output = super().loss(batch)
        if batch.replay is None:
            return output
        rows = batch.replay
        near = (self.online.embed_video(rows.video) * self.online.embed_text(rows.text)).sum() / batch.replay_size
        return StepOutput(objectives=output.objectives - near)


def learn(run: Resolved, stages: int | None = None) -> Path:
    """Run in this process, to the end or for some stages; returns the folder."""
    spec = make_spec(run, num_workers=0, decode_slots=0, gpu=False, say=lambda text: None)
    for done in stages_of(spec):
        if done == stages:
            break
    return run.folder


def learned(folder: Path) -> dict[str, Any]:
    """All of a finished run that must not depend on how it came about."""
    outcome = json.loads((folder / "result.json").read_text())
    assert outcome["state"] == "finished", outcome
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    cost = {name: outcome["cost"][name] for name in ("steps", "clips")}
    return {
        **{name: value for name, value in outcome.items() if name not in ("cost", "run")},
        "cost": cost,
        "log": [{name: value for name, value in line.items() if name != "time_s"} for line in lines],
        "ranks": pq.read_table(folder / "ranks.parquet").to_pydict(),
        "cells": pq.read_table(folder / "matrix.parquet").to_pydict(),
        "features": {path.name: path.read_bytes() for path in sorted(folder.glob("features/*"))},
    }


def tree(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a folder: its bytes and when it was written."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}
